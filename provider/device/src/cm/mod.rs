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
//! `id` is what programs hold; how it gets addresses is in `resolve`, how it listens and
//! becomes an id for each request in `listener`, how it connects, moves its queue pair and hears of
//! the machine in `connection`, groups in `multicast` and `groups`. `explain` says why a connection
//! failed; `route` has addresses, and finds devices and routes. The machine itself is run by
//! `ib_cm`.

mod connection;
mod event;
mod explain;
mod groups;
mod id;
mod listener;
mod multicast;
mod resolve;
mod route;

pub use event::{ConnParam, EventData, EventKind, UDP_QKEY, UdParam};
pub use id::{Channel, Event, Id, IdOption};
pub use multicast::JoinFlags;
pub use route::{Address, IbAddress, Path, connections};
pub use roxe_transport::cm::Ece;
pub use roxe_wire::cm::{PortSpace, RejReason};
