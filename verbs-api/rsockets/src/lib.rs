//! Sockets over RDMA (`rsocket(7)`), compatible on the wire with the rsockets of librdmacm.
//!
//! A socket has a descriptor number, as in C; [`find`] returns the [`Socket`] of a number. A stream
//! socket has one connected queue pair and writes into the receive buffer of its peer. A datagram
//! socket has UD queue pairs, and a UDP socket through which it discovers its peers.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use roxe_rsockets::{accept, close, find, open};
//!
//! let server = open(libc::AF_INET, libc::SOCK_STREAM, 0)?;
//! let listener = find(server).expect("find the listener");
//! listener.bind("127.0.0.1:0".parse().expect("parse the address"))?;
//! listener.listen(1)?;
//! let address = listener.local_addr()?;
//! let echo = std::thread::spawn(move || {
//!     let (number, _peer) = accept(server)?;
//!     let (socket, mut request) = (find(number).expect("find the accepted socket"), [0; 5]);
//!     socket.recv(&mut request, libc::MSG_WAITALL)?;
//!     socket.send(&request, 0)?;
//!     close(number)
//! });
//!
//! let client = open(libc::AF_INET, libc::SOCK_STREAM, 0)?;
//! let (socket, mut answer) = (find(client).expect("find the client socket"), [0; 5]);
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
//! Begin reading with `socket.rs` (calls of both kinds of sockets), then `proto/` (the protocol,
//! without I/O or a clock), `stream/mod.rs` and `datagram/mod.rs`. A blocking call first polls and
//! then sleeps (`wait.rs`, `poll.rs`, `epoll.rs`). One background thread serves listeners, datagram
//! sockets and keepalives (`service.rs`). All `unsafe` code is in `sys.rs`.
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
mod wait;

pub use epoll::{close, epoll_create, epoll_ctl, epoll_wait};
pub use poll::{PollFd, poll, select};
#[cfg(feature = "fuzz")]
pub use proto::check::check_protocol;
pub use socket::{Socket, accept, find, open};

/// Option level of rsockets' own options, as in `rdma/rsocket.h`.
pub const SOL_RDMA: i32 = 0x10000;
/// Length of the send queue, in requests.
pub const RDMA_SQSIZE: i32 = 0;
/// Length of the receive queue, in messages.
pub const RDMA_RQSIZE: i32 = 1;
/// Largest data that is sent inline, in bytes.
pub const RDMA_INLINE: i32 = 2;
/// Maximum number of buffers that the *peer* can map for direct writes (`riomap`).
pub const RDMA_IOMAPSIZE: i32 = 3;
/// The path of the connection, as `struct ibv_path_data`.
pub const RDMA_ROUTE: i32 = 4;
