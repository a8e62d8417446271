//! Connection management: from an address to a connected queue pair, as `librdmacm` does it.
//!
//! Queue pairs know each other by numbers; programs know each other by addresses and ports. The
//! connection manager of the card brings the two together: it speaks the InfiniBand connection
//! management protocol with the one at the other address, whether that is this card, the Linux
//! kernel's or a hardware card, and sets both queue pairs up.
//!
//! # One thread for each connection
//!
//! [`Listener`] and [`Connection`] are for programs that can wait; they are used like the TCP types
//! of the standard library:
//!
//! ```
//! use roxe::cm::{Connection, Listener};
//! use roxe::{Access, WorkRequest};
//! use std::time::Duration;
//!
//! let patience = Duration::from_secs(10);
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! let server = std::thread::spawn(move || {
//!     let connection = listener.accept()?;
//!     let qp = connection.qp();
//!     qp.post_send(&WorkRequest::send_inline(b"hello").signaled())?;
//!     qp.send_cq().wait(patience)?.check().map(drop) // the client has it
//! });
//!
//! let connection = Connection::connect(address)?;
//! let qp = connection.qp();
//! let inbox = qp.pd().alloc_mr(4096, Access::LOCAL_WRITE)?;
//! qp.post_recv(1, &[inbox.slice(..)?])?;
//! assert_eq!(qp.recv_cq().wait(patience)?.check()?.byte_len(), 5);
//! assert_eq!(inbox.to_vec(..5)?, b"hello");
//! # server.join().unwrap()?;
//! # Ok::<(), roxe::Error>(())
//! ```
//!
//! [`Outgoing`] and [`Incoming`] are the same in two steps: in between, the program makes its
//! queues and memory, looks at the private data of the peer, and sends its own.
//!
//! # Many connections and one event loop
//!
//! [`CmId`] and [`EventChannel`] never wait: each verb returns at once, and what becomes of it is a
//! [`CmEvent`] on the channel. Channels of connections and of completions work alike: their
//! descriptor ([`AsFd`](std::os::fd::AsFd)) is readable while something is pending, and `try_next`
//! and `try_get_event` take it without waiting, whatever the mode of the descriptor. So waiting is
//! the same loop with any runtime: wait until the descriptor is readable; try; if there was
//! nothing, once more. The crate `roxe-tokio` does so for tokio, and its `examples/tokio_echo.rs`
//! is a whole server of this kind.

mod connection;
mod event;
mod id;

pub use connection::{Connection, Incoming, Listener, Outgoing};
pub use event::{CmEvent, UdPeer};
pub use id::{CmId, EventChannel};
pub use roxe_provider::cm::{
    Address, ConnParam, Ece, EventKind as CmEventKind, IbAddress, IdOption, JoinFlags, Path, PortSpace, UdParam,
};
