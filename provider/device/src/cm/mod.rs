//! Connections the way programs make them: the objects behind librdmacm (`man rdma_cm`).
//!
//! ```text
//!   Channel ◄── Event ── Id ── verbs ──► Session ── Cm (transport) ── MADs ──► queue pair 1
//!      │                 │                  one per engine                        of the device
//!      fd to wait on     device, addresses, path, port, queue pair
//! ```
//!
//! An [`Id`] is what programs call `rdma_cm_id`, a [`Channel`] their `rdma_event_channel`. Every verb returns at once; what
//! comes of it is an [`Event`] on the channel of the id. A verb in the wrong state is EINVAL, as with the kernel.
//!
//! An id knows its device as soon as it has an address that is one of a device: it sends and receives there. An id that
//! is bound to all addresses listens on all devices, on those without an address as soon as they get one.
//!
//! # Files
//!
//! `id` is what programs hold: its life, and in files of its own how it gets addresses (`resolve`), connects (`connect`) and
//! moves its queue pair (`pair`); `multicast` and `alternate` belong to it. `deliver` is what it hears of the machine, `follow`
//! of the interface. `place` finds devices and routes, `ports` gives out ports; `agent` runs the machine of a device,
//! `peer_liveness` ends what is left of processes that died. Messages come in through `engine/gsi.rs`.

mod address;
mod agent;
mod alternate;
mod channel;
mod deliver;
mod event;
mod follow;
mod id;
mod multicast;
mod options;
mod peer_liveness;
mod place;
pub(crate) mod ports;
mod route;

pub(crate) use agent::{Agent, Session};
pub(crate) use follow::{follow, ids};

use crate::device::Device;
use crate::runtime::Runtime;
use std::sync::Arc;

pub use address::{Address, IbAddress};
pub use channel::Channel;
pub use event::{ConnParam, Event, EventData, EventKind, UdParam};
pub use id::Id;
pub use options::{IdOption, JoinFlags};
pub use route::Path;
pub use roxe_transport::cm::Ece;
pub use roxe_wire::cm::{PortSpace, RejReason};

/// The most bytes of private data that a program may give, by verb and kind of id, and how many of them its peer is told of.
pub mod private_data {
    /// `connect` of an id with IP addresses: what the addresses leave of 92 bytes.
    pub const CONNECT: usize = 56;
    /// `connect` of an id with an `AF_IB` address.
    pub const CONNECT_IB: usize = 92;
    /// `connect` of a datagram id with IP addresses.
    pub const LOOKUP: usize = 180;
    /// `connect` of a datagram id with an `AF_IB` address.
    pub const LOOKUP_IB: usize = 216;
    /// `accept`.
    pub const ACCEPT: usize = 196;
    /// `accept` and `reject` of a datagram id.
    pub const LOOKUP_REPLY: usize = 136;
    /// `reject`.
    pub const REJECT: usize = 148;
}

/// The Q_Key of datagram ids and of groups (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: roxe_wire::Qkey = roxe_wire::Qkey(0x0123_4567);

/// How many connections and lookups of `device` this process has, those included that are over but for late packets.
pub fn connections(device: &Arc<Device>) -> usize {
    Runtime::get(device).map_or(0, |engine| engine.connections())
}
