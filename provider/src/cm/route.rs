//! The way to a peer: which source address and device, and the path between the two.

use roxe_wire::{Gid, PathMtu};

/// A path (`struct ibv_sa_path_rec`), in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub sgid: Gid,
    /// The peer's.
    pub dgid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// Bytes of a full packet.
    pub mtu: PathMtu,
    /// `enum ibv_rate`; 0 is not known.
    pub rate: u8,
    /// How long a packet lives on the way, a code.
    pub packet_life_time: u8,
}
