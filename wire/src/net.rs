//! What the IP and UDP headers around a packet say, as far as RoCEv2 cares.
//!
//! The ICRC covers these fields ([`crate::icrc`]) and a UD receiver is handed them as a GRH. Touches nothing but `core`.

use crate::num::Gid;

/// The network header of one received or sent packet. IPv4 or IPv6 follows from `src` and `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetHeader {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class; ECN in the low two bits.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// IPv4 identification; 0 for IPv6.
    pub ident: u16,
}
