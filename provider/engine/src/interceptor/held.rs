//! Packets that fault rules hold back until they go on.
//!
//! Touches nothing but memory; the engine carries out what is due.

use super::packet_comment::PacketComment;
use roxe_net::link::RxMeta;
use roxe_wire::{NetHeader, Qpn};

/// Packets that can be held at once; rules that hold more lose what is too much.
pub(crate) const MAX_HELD: usize = 1 << 14;

/// A packet that is held.
#[derive(Debug)]
pub(crate) enum Held {
    /// It shall leave.
    Outgoing {
        /// With these headers around it.
        net: NetHeader,
        /// BTH to ICRC.
        bytes: Vec<u8>,
        /// What a capture says about it.
        packet_comment: PacketComment,
    },
    /// It shall be handed in.
    Incoming(Incoming),
}

/// A packet for a queue pair of this process.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// The queue pair.
    pub qpn: Qpn,
    /// How it arrived, alone.
    pub meta: RxMeta,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
    /// It shall find no receive.
    pub rnr: bool,
    /// It came only once.
    pub is_copy: bool,
}
