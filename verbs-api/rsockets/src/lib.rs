//! Sockets over RDMA: what `rsocket(7)` describes, on the wire as the rsockets of librdmacm speak it.
//!
//! A socket is a number, as in C, and behind the number stands a [`Socket`]. A stream lives on a connected queue pair and
//! writes straight into the receive buffer of its peer; a datagram socket lives on a UDP socket, over which it learns where
//! the peers are, and on UD queue pairs. The two have only the calls in common.
//!
//! - `proto/` decides: what is said on the wire, when something may be sent, what a message of the peer means. No I/O, no clock.
//! - `stream/` and `datagram/` do it, over the crate `roxe`; `service.rs` is the one background thread, which exists as long
//!   as somebody listens, has a datagram socket or asked for keepalives.
//! - `wait.rs` and `poll.rs` wait: a short spin, then sleep on descriptors.
//! - `options.rs`, `config.rs`: what programs and administrators set; `table.rs`: numbers to sockets.
//! - `sys.rs` makes the system calls that need `unsafe`; it is the only place that has any.
//!
//! Every error is an [`std::io::Error`] with the errno that the C call sets.
#![deny(unsafe_code)]

mod addr;
mod completions;
mod config;
mod datagram;
mod errno;
mod lock;
mod poll;
mod proto;
mod service;
mod socket;
mod stream;
mod sys;
mod table;
mod wait;

pub use poll::{PollFd, poll, select};
pub use socket::{Socket, accept, close, open};
pub use table::find;

/// Option level of rsockets' own options, as in `rdma/rsocket.h`.
pub const SOL_RDMA: i32 = 0x10000;
/// Requests that the send queue holds.
pub const RDMA_SQSIZE: i32 = 0;
/// Messages that the peer may send before this side has answered.
pub const RDMA_RQSIZE: i32 = 1;
/// Bytes that are sent without being copied into the send buffer first.
pub const RDMA_INLINE: i32 = 2;
/// Buffers that the *peer* can map for direct writes.
pub const RDMA_IOMAPSIZE: i32 = 3;
/// The path of the connection, as `struct ibv_path_data`.
pub const RDMA_ROUTE: i32 = 4;
