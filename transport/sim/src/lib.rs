//! A world for queue pairs in a test: memory, network with faults, virtual time. No I/O, no clock,
//! no threads.
//!
//! * [`rng`]: where decisions come from, a seed or a fuzz input
//! * [`host`]: what one QP reaches ([`roxe_transport::cx::Host`]), over vectors
//! * [`links`], [`wire`]: the network: cables and switches, packets as sealed bytes, faults as
//!   rules ([`roxe_transport::fault`])
//! * [`setup`], [`world`]: connected queue pairs on nodes, that run until nothing is due; [`pair`]
//!   is the smallest world; [`timeline`] orders what happens
//! * [`judge`]: what is checked after every step, and the report of what is broken
//! * [`scenario`]: random work on a world, and the judge of what comes out
//! * [`case`]: a run as a text that repeats it, and the smallest such text that still fails
//!
//! Everything is deterministic: the same seed gives the same packets at the same instants. These
//! modules are judges, so unlike the transport they may panic when they are used wrongly.
#![forbid(unsafe_code)]

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
pub use world::{End, LinkState, Logged, World};
