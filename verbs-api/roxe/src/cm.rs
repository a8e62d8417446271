//! Connection management: connects queue pairs by IP address and port, as `librdmacm` does.
//!
//! The connection managers of the two ends exchange messages of the InfiniBand connection
//! management protocol (REQ, REP, RTU ...) and configure the two queue pairs. The peer may be roxe,
//! the Linux kernel or a hardware card.
//!
//! # One thread for each connection
//!
//! [`Listener`] and [`Connection`] block; they are used like the TCP types of the standard library:
//!
//! ```
//! use roxe::cm::{Connection, Listener};
//! use roxe::{Access, WorkRequest};
//! use std::time::Duration;
//!
//! let timeout = Duration::from_secs(10);
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! let server = std::thread::spawn(move || {
//!     let connection = listener.accept()?;
//!     let qp = connection.qp();
//!     qp.post_send(&WorkRequest::send_inline(b"hello").signaled())?;
//!     qp.send_cq().wait(timeout)?.check().map(drop) // the client has received the message
//! });
//!
//! let connection = Connection::connect(address)?;
//! let qp = connection.qp();
//! let inbox = qp.pd().alloc_mr(4096, Access::LOCAL_WRITE)?;
//! qp.post_recv(1, &[inbox.slice(..)?])?;
//! assert_eq!(qp.recv_cq().wait(timeout)?.check()?.byte_len(), 5);
//! assert_eq!(inbox.to_vec(..5)?, b"hello");
//! # server.join().unwrap()?;
//! # Ok::<(), roxe::Error>(())
//! ```
//!
//! [`Outgoing`] and [`Incoming`] split the setup into two steps. Between the steps the program
//! creates its queues and memory, reads the peer's private data, and chooses its own private data.
//!
//! # Many connections and one event loop
//!
//! [`CmId`] and [`EventChannel`] do not block: each verb returns at once, and its result is a
//! [`CmEvent`] on the channel. The descriptor of a channel ([`AsFd`](std::os::fd::AsFd)) is
//! readable while events are pending; [`EventChannel::try_next`] and
//! [`CompletionChannel::try_get_event`](crate::CompletionChannel::try_get_event) return them
//! without waiting. An event loop of any runtime waits until the descriptor is readable, calls the
//! function of the channel until it returns `None`, and waits again. The crate `roxe-tokio` is such
//! a loop for tokio; its `examples/tokio_echo.rs` is a complete server.

mod connection;
mod event;
mod id;

pub use connection::{Connection, Incoming, Listener, Outgoing};
pub use event::{CmEvent, UdPeer};
pub use id::{CmId, EventChannel};
pub use roxe_provider::cm::{
    Address, ConnParam, Ece, EventKind as CmEventKind, IbAddress, IdOption, JoinFlags, Path, PortSpace, UdParam,
};
