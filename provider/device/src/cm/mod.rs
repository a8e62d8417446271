//! Connections the way programs make them: the objects behind librdmacm (`man rdma_cm`).
//!
//! ```text
//!   Channel ◄── Event ── Id ── verbs ──► Session ── Cm (transport) ── MADs ──► queue pair 1
//!      │                 │                  one per engine                        of the device
//!      fd to wait on     device, addresses, path, port, queue pair
//! ```
//!
//! An [`Id`] is what programs call `rdma_cm_id`, a [`Channel`] their `rdma_event_channel`. Every
//! verb returns at once; what comes of it is an [`Event`] on the channel of the id. A verb in the
//! wrong state is EINVAL, as with the kernel.
//!
//! An id knows its device as soon as it has an address that is one of a device: it sends and
//! receives there. An id that is bound to all addresses listens on all devices, on those without an
//! address as soon as they get one.
//!
//! # Files
//!
//! `id` is what programs hold: `state` is what it is made of, `life` how it begins and ends, and in
//! files of their own how it gets addresses (`resolve`), listens (`listen`), connects (`connect`)
//! and moves its queue pair (`pair`). `handler` is what it hears of the machine, `interface` of the
//! network interface; `multicast` and `alternate` belong to it. `explain` says why a
//! connection failed; `device_addr` finds devices and routes. The machine itself is run by `ib_cm`.

mod address;
mod alternate;
mod device_addr;
mod event;
mod explain;
mod groups;
mod handler;
mod id;
mod interface;
mod multicast;
mod options;
mod route;

pub use address::{Address, IbAddress};
pub use device_addr::connections;
pub use event::{ConnParam, EventData, EventKind, UDP_QKEY, UdParam};
pub use id::{Channel, Event, Id};
pub use options::{IdOption, JoinFlags};
pub use route::Path;
pub use roxe_transport::cm::Ece;
pub use roxe_wire::cm::{PortSpace, RejReason};
