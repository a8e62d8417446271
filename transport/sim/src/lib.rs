//! A simulated world for queue pairs: memory, a network with faults, virtual time. No I/O, no
//! clock, no threads.
//!
//! * [`rng`]: the source of decisions, a seed or a fuzz input
//! * [`host`]: the environment of one QP ([`roxe_transport::cx::Host`]), over vectors
//! * [`links`], [`wire`]: the network: links and switches, packets as sealed bytes, fault rules
//!   ([`roxe_transport::fault`])
//! * [`setup`], [`world`]: connected queue pairs on nodes, run until nothing is due; [`pair`] is
//!   the smallest world; [`timeline`] orders events
//! * [`judge`]: the promises checked after every step, and the report of a broken one
//! * [`scenario`]: random work on a world, and the checks of its results
//! * [`case`]: a reproducible run as a text, and the search for the smallest failing one
//!
//! Everything is deterministic: the same seed gives the same packets at the same time. Unlike the
//! transport, these modules may panic when they are misused.
#![forbid(unsafe_code)]
// Used by tests only: names suffice for most items.
#![allow(missing_docs)]

pub mod case;
pub mod host;
pub mod judge;
pub mod links;
pub mod pair;
pub mod rng;
pub mod scenario;
pub mod setup;
pub mod timeline;
pub mod wire;
pub mod world;

pub use case::Case;
pub use host::{Mr, SimHost, VecMemory, XrcQueue};
pub use judge::{Broken, Promise};
pub use links::{LinkSpec, Topology};
pub use pair::Pair;
pub use rng::{Choices, Rng, Script};
pub use setup::{Peer, Place, Setup};
pub use wire::Wire;
pub use world::{End, LinkState, LoggedPacket, World};
