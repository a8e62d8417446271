//! What events are about: objects as they were made, and packets that were not taken. Pure data.

use roxe_base::uses::ObjectId;
use roxe_transport::qp::{QpCaps, Service};
use roxe_transport::wr::Access;
use roxe_wire::{Gid, Header, Psn, Qpn};

/// A packet that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Its headers.
    pub header: Header,
    /// Bytes of its payload.
    pub len: usize,
    /// The PSN of the next request in order; on RC a packet that is not taken does not change it.
    pub expected: Psn,
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A context: a device was opened.
    Context,
    /// A protection domain.
    Pd {
        /// What it belongs to.
        context: ObjectId,
    },
    /// A completion channel.
    Channel {
        /// What it belongs to.
        context: ObjectId,
    },
    /// A completion queue.
    Cq {
        /// What it belongs to.
        context: ObjectId,
        /// Where its events go.
        channel: Option<ObjectId>,
        /// Completions that it holds.
        capacity: u32,
    },
    /// A shared receive queue.
    Srq {
        /// The domain.
        pd: ObjectId,
        /// Requests that it holds.
        max_wr: u32,
    },
    /// A queue pair.
    Qp(Pair),
    /// A region.
    Mr(Memory),
    /// A memory window.
    Mw {
        /// The domain.
        pd: ObjectId,
        /// The key it was allocated with. Each binding replaces the lower 8 bits.
        key: u32,
    },
    /// An address handle.
    Ah {
        /// The domain.
        pd: ObjectId,
    },
}

/// A queue pair, as it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The context.
    pub context: ObjectId,
    /// The domain.
    pub pd: ObjectId,
    /// Its number.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: Service,
    /// Depths and limits as the program asked for them, not as they were granted.
    pub caps: QpCaps,
    /// Every send reports its completion.
    pub sq_sig_all: bool,
    /// Where sends complete.
    pub send_cq: ObjectId,
    /// Where receives complete.
    pub recv_cq: ObjectId,
    /// Where receives come from instead of an own queue.
    pub srq: Option<ObjectId>,
    /// Payload bytes of the largest packet of its port.
    pub port_mtu: u32,
}

/// A region, as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The context.
    pub context: ObjectId,
    /// The domain.
    pub pd: ObjectId,
    /// Key for local lists.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    /// Where the memory is.
    pub addr: u64,
    /// The address by which lists and peers name its first byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub access: Access,
}
