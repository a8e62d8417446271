//! The objects of librdmacm (`man rdma_cm`).
//!
//! ```text
//!   Channel ◄── Event ── Id ── verbs ──► Session ── Cm (transport) ── MADs ──► queue pair 1
//!      │                 │                  one per engine                        of the device
//!      fd to wait on     device, addresses, path, port, queue pair
//! ```
//!
//! Every verb of an [`Id`] (`rdma_cm_id`) returns at once; its result is an [`Event`] on the id's
//! [`Channel`]. Begin reading in `id`, then `connection`. `ib_cm` runs the state machine.

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
