//! Verbs for Rust programs: open an RDMA device, register memory, connect queue pairs, and move
//! data without copies on the way.
//!
//! The nouns are those of `libibverbs` and of the crates that wrap it. The difference is
//! underneath: here the card itself is software, runs in this process, and speaks RoCEv2 over an
//! ordinary UDP socket. So nothing has to be installed, the default device is the loopback
//! interface, and most of the API is safe.
//!
//! Two queue pairs of one process, a SEND, and a look at what arrived:
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
//! // Each side learns the endpoint of the other; between processes it travels as a line of text.
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
//! # Where to go from here
//!
//! - [`devices`] and [`Context`]: what there is, and what everything is made from.
//! - [`ProtectionDomain`]: makes [`MemoryRegion`]s, [`QueuePair`]s and [`SharedReceiveQueue`]s.
//! - [`DeviceMemory`]: memory of the card instead of the program.
//! - [`DmaBufRegion`] and [`NullRegion`]: bytes behind a descriptor, and bytes that do not matter.
//! - [`MemoryWindow`]: opens a part of a region to a peer, and closes it again.
//! - [`WorkRequest`]: SEND, WRITE, READ, atomics. [`WorkCompletion`]: how they ended.
//! - [`XrcDomain`]: many queues behind one connection. [`QueuePair::attach_mcast`]: multicast.
//!   [`QueuePair::offer_path`]: a second way for a connection.
//! - [`CompletionQueue::wait`] polls; [`CompletionChannel`] sleeps, and works with `poll` and
//!   `epoll`.
//! - [`cm`]: from an address to a connected queue pair, for programs that wait and for event loops.
//! - `examples/ping_pong.rs`: the whole way for two processes; `examples/shared_counter.rs`:
//!   atomics on the memory of a server that sleeps, in 60 lines. The crate `roxe-tokio` makes
//!   futures of what waits.
//!
//! # Errors
//!
//! [`Error`] says whose fault it is: the program's ([`ArgumentError`]), this host's
//! ([`EnvironmentError`]), nobody's but something has run out ([`ResourceError`]), the peer's or
//! the network's ([`PeerError`]). [`Error::errno`] is what the same call says in C. Three more
//! things are worth a look: [`Error::request`] (not posted), [`Error::completion`] (posted and
//! failed) and [`Error::connection`] (not connected).
//!
//! A request that fails after it was posted is a completion with a status, not an error, until the
//! program asks by [`WorkCompletion::check`]. An event of the connection manager likewise:
//! [`CmEvent::check`](cm::CmEvent::check) and [`expect`](cm::CmEvent::expect).
//!
//! # What is missing
//!
//! Flow steering (`ibv_create_flow`) and raw packet queue pairs, work queues and RSS (`ibv_wq`,
//! `ibv_rwq_ind_table`), tag matching (`ibv_post_srq_ops`), extended completions (`ibv_cq_ex`: time
//! stamps) and counters have no Rust type yet: they are in the C library only (`libroxe.so`, as
//! `libibverbs.so.1`).
//!
//! # Threads and order
//!
//! Every type is `Send` and `Sync`, and every method takes `&self`. Requests of one queue pair
//! start in the order in which they were posted. Packets are received by whoever polls an empty
//! completion queue, and by one background thread when nobody does; so the memory of a passive
//! process can be read and written while it sleeps.
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

/// Identity of a queue or queue pair in this process: events carry it, and the object's `id`
/// returns it.
// The provider calls it `user`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId(u64);

impl ObjectId {
    /// One that no other object has.
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
