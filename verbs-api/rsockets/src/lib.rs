//! Sockets over RDMA: what `rsocket(7)` describes, on the wire as the rsockets of librdmacm speak
//! it.
//!
//! A socket is a number, as in C, and behind the number stands a [`Socket`]. A stream lives on a
//! connected queue pair and writes straight into the receive buffer of its peer; a datagram socket
//! lives on a UDP socket, over which it learns where the peers are, and on UD queue pairs. The two
//! have only the calls in common.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use roxe_rsockets::{accept, close, find, open};
//!
//! let server = open(libc::AF_INET, libc::SOCK_STREAM, 0)?;
//! let listener = find(server).expect("it is open");
//! listener.bind("127.0.0.1:0".parse().expect("an address"))?;
//! listener.listen(1)?;
//! let address = listener.local_addr()?;
//! let echo = std::thread::spawn(move || {
//!     let (number, _peer) = accept(server)?;
//!     let (socket, mut word) = (find(number).expect("it is open"), [0; 5]);
//!     socket.recv(&mut word, libc::MSG_WAITALL)?;
//!     socket.send(&word, 0)?;
//!     close(number)
//! });
//!
//! let client = open(libc::AF_INET, libc::SOCK_STREAM, 0)?;
//! let (socket, mut answer) = (find(client).expect("it is open"), [0; 5]);
//! socket.connect(address)?;
//! socket.send(b"hello", 0)?;
//! assert_eq!(socket.recv(&mut answer, libc::MSG_WAITALL)?, 5);
//! assert_eq!(&answer, b"hello");
//! close(client)?;
//! # echo.join().unwrap()?;
//! # close(server)
//! # }
//! ```
//!
//! - from numbers to sockets, which are opened, accepted and closed by them; what one can do, of
//!   either kind: `table.rs`; `socket.rs`
//! - what is said on the wire, when something may be sent, what a message of the peer means: no
//!   I/O, no clock: `proto/`: `conn.rs`, `stream.rs`, `message.rs`, `datagram.rs`
//! - streams: from a connection to bytes: `stream/`; `mod.rs` first, then `open.rs`
//! - datagrams: `datagram/`
//! - waiting: a short spin, then sleep on descriptors: `wait.rs`, `poll.rs`, `epoll.rs`; events of
//!   completion queues: `completions.rs`
//! - the one background thread, which exists as long as somebody listens, has a datagram socket or
//!   asked for keepalives: `service.rs`
//! - what programs and administrators set: `stream/options.rs`, `stream/settings.rs`; `config.rs`
//! - system calls that need `unsafe`; nothing else has any: `sys.rs`
//!
//! Every error is an [`std::io::Error`] with the errno that the C call sets.
#![deny(unsafe_code)]

mod addr;
mod completions;
mod config;
mod datagram;
mod epoll;
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

pub use epoll::{close, epoll_create, epoll_ctl, epoll_wait};
pub use poll::{PollFd, poll, select};
#[cfg(feature = "fuzz")]
pub use proto::check::check_protocol;
pub use socket::Socket;
pub use table::{accept, find, open};

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
