//! What a program may set on an id. Plain data.

use super::route::Path;

/// An option of an id (`man rdma_set_option`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// TOS or traffic class of what the id's queue pair sends.
    Tos(u8),
    /// Other ids may bind the same address and port, as long as none listens.
    ReuseAddr(bool),
    /// An id bound to all IPv6 addresses does not stand for the IPv4 addresses too.
    AfOnly(bool),
    /// The queue pair's ACK timeout, a code: 4.096 µs · 2^code; 0 is none.
    AckTimeout(u8),
    /// The path, instead of [`Id::resolve_route`](super::Id::resolve_route).
    Path(Path),
}

/// How to be member of a group (`enum rdma_cm_join_mc_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinFlags {
    /// Not to receive: to send only.
    pub send_only: bool,
}
