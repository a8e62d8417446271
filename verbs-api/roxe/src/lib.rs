//! Verbs for Rust programs: open an RDMA device, register memory, connect queue pairs, and move
//! data without copies.
//!
//! The names are those of `libibverbs`. The device is software: it runs in this process and speaks
//! RoCEv2 over an ordinary UDP socket. Nothing has to be installed, the default device is the
//! loopback interface, and most of the API is safe.
//!
//! Two queue pairs of one process exchange a message:
//!
//! ```
//! use roxe::{Access, Context, WorkRequest};
//! use std::time::Duration;
//!
//! let context = Context::open_first()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16)?;
//! let alice = pd.create_qp(&cq, &cq).build()?;
//! let bob = pd.create_qp(&cq, &cq).build()?;
//!
//! // Each side needs the endpoint of the other. It prints as one line of text, so that two
//! // processes can exchange it over any channel.
//! alice.connect(&bob.endpoint())?;
//! bob.connect(&alice.endpoint())?;
//!
//! let inbox = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! bob.post_recv(1, &[inbox.slice(..)?])?;
//! alice.post_send(&WorkRequest::send_inline(b"hello").imm(7).wr_id(2).signaled())?;
//!
//! for _ in 0..2 {
//!     let completion = *cq.wait(Duration::from_secs(5))?.check()?;
//!     if completion.wr_id() == 1 {
//!         assert_eq!(completion.imm_data(), Some(7));
//!         assert_eq!(inbox.to_vec(..5)?, b"hello");
//!     }
//! }
//! # Ok::<(), roxe::Error>(())
//! ```
//!
//! # Tour
//!
//! - [`devices`] and [`Context`]: find and open a device; every other object is created from it.
//! - [`ProtectionDomain`]: creates [`MemoryRegion`]s, [`QueuePair`]s and [`SharedReceiveQueue`]s.
//! - [`WorkRequest`]: SEND, WRITE, READ and atomics. [`WorkCompletion`]: their results.
//! - [`CompletionQueue::wait`] polls; a program sleeps on a [`CompletionChannel`], directly or in
//!   `poll` and `epoll`.
//! - [`cm`]: connects by IP address and port, blocking or in an event loop.
//! - [`DeviceMemory`], [`DmaBufRegion`], [`NullRegion`]: regions in memory of the device, in a
//!   dma-buf or file, and without memory.
//! - [`MemoryWindow`]: opens part of a region to a peer, and closes it again.
//! - [`XrcDomain`]: many receive queues for one connection.
//! - [`QueuePair::attach_mcast`]: multicast. [`QueuePair::offer_path`]: a failover path.
//! - `examples/ping_pong.rs`: a complete program for two processes. `examples/shared_counter.rs`:
//!   atomics on the memory of a sleeping server, in 60 lines. The crate `roxe-tokio` provides
//!   futures.
//!
//! # Errors
//!
//! The variants of [`Error`] name the party that can fix it: the program ([`ArgumentError`]), this
//! host ([`EnvironmentError`]), a resource limit ([`ResourceError`]), or the peer and the network
//! ([`PeerError`]). [`Error::errno`] is the errno of the same call in C. [`Error::request`]
//! describes a request that was not posted, [`Error::completion`] one that failed later, and
//! [`Error::connection`] a failed connection.
//!
//! A request that fails after it was posted yields a completion with a status;
//! [`WorkCompletion::check`] turns that into an error. [`CmEvent::check`](cm::CmEvent::check) and
//! [`expect`](cm::CmEvent::expect) do so for events of the connection manager.
//!
//! # Not covered
//!
//! Flow steering (`ibv_create_flow`), raw packet queue pairs, work queues and RSS (`ibv_wq`,
//! `ibv_rwq_ind_table`), tag matching (`ibv_post_srq_ops`), extended completions (`ibv_cq_ex`) and
//! counters have no Rust API yet. The C library (`libroxe.so`, as `libibverbs.so.1`) has them.
//!
//! # Threads and order
//!
//! Every type is `Send` and `Sync`, and every method takes `&self`. Requests of one queue pair
//! start in the order of their posts. A thread that polls an empty completion queue receives
//! packets; while no thread polls, a background thread does. So peers can read and write the memory
//! of a process that sleeps.
#![deny(unsafe_code)]
#![deny(missing_docs)]

pub mod cm;
mod cq;
mod device;
mod dm;
mod endpoint;
mod error;
mod lock;
mod mr;
mod mw;
mod pd;
mod qp;
mod srq;
mod wr;
mod xrc;

pub use cq::{CompletionChannel, CompletionQueue, WorkCompletion};
pub use device::{
    AhAttr, AsyncEvent, AsyncEventKind, Context, Device, DeviceAttr, DeviceList, GidEntry, PortAttr, devices,
};
pub use dm::{DeviceMemory, DeviceMemoryRegion, DmaBufRegion, NullRegion};
pub use endpoint::{Endpoint, RemoteAddr};
pub use error::{
    ArgumentError, EnvironmentError, Error, FailedCompletion, FailedConnection, PeerError, Refusal, RefusedRequest,
    ResourceError,
};
pub use mr::{MemoryRegion, Sge};
pub use mw::{MemoryWindow, WindowKind};
pub use pd::{AddressHandle, ProtectionDomain};
pub use qp::{AlternatePath, QueuePair, QueuePairBuilder};
pub use roxe_transport::qp::{AttrMask, MigState, PostError, QpAttr, QpState, Service};
pub use roxe_transport::wr::{Access, WcOpcode, WcStatus};
pub use roxe_wire::{Gid, LKey, PathMtu, Pkey, Psn, Qkey, Qpn, RKey};
pub use srq::{SharedReceiveQueue, SrqNumber};
pub use wr::{WindowBinding, WorkRequest};
pub use xrc::XrcDomain;

use std::sync::atomic::{AtomicU64, Ordering};

/// Identity of a queue, queue pair or connection id in this process. Events carry it, and the
/// method `id` of the object returns it.
// The provider's field for it is `user_context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId(u64);

impl ObjectId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
