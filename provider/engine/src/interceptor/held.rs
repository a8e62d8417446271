//! Packets delayed by fault rules.

use super::packet_comment::PacketComment;
use roxe_net::link::RxMeta;
use roxe_wire::{NetHeader, Qpn};

/// Most delayed packets at a time; further ones are lost.
pub(crate) const MAX_HELD: usize = 1 << 14;

#[derive(Debug)]
pub(crate) enum Held {
    /// To be sent.
    Outgoing {
        /// Network headers.
        net: NetHeader,
        /// Bytes from BTH to ICRC.
        bytes: Vec<u8>,
        /// Comment for the capture.
        packet_comment: PacketComment,
    },
    /// To be delivered.
    Incoming(Incoming),
}

/// A delayed packet for a queue pair of this process.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub qpn: Qpn,
    /// Receive metadata of this packet alone.
    pub meta: RxMeta,
    /// Bytes from BTH to ICRC.
    pub bytes: Vec<u8>,
    /// True if it shall find no posted receive.
    pub rnr: bool,
    /// True for a duplicate made by a rule.
    pub is_copy: bool,
}
