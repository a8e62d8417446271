//! A world for queue pairs in a test: memory, network with faults, virtual time. No I/O, no clock,
//! no threads.
//!
//! Lives here, behind the feature `sim`:
//! * [`rng`]: where decisions come from, a seed or a fuzz input;
//! * [`memory`], [`host`]: what one QP reaches ([`crate::cx::Host`]) over vectors;
//! * [`link`], [`topology`], [`wire`]: the network, packets as sealed bytes, faults as rules
//!   ([`crate::fault`]);
//! * [`setup`], [`end`], [`world`]: connected queue pairs on nodes, that run until nothing is due;
//!   [`pair`] is the smallest world;
//! * [`promise`]: what is checked after every step, and the report of what is broken;
//! * [`random`]: setups and faults by chance;
//! * [`scenario`]: random work on a world, and the judge of what comes out;
//! * [`case`], [`shrink`]: a run as a text that repeats it, and the smallest such text that still
//!   fails.
//!
//! Everything is deterministic: the same seed gives the same packets at the same instants. These
//! modules are judges, so unlike the rest of the crate they may panic when they are used wrongly.

pub mod batch;
pub mod case;
pub mod end;
pub mod host;
pub mod link;
pub mod memory;
pub mod pair;
pub mod promise;
pub mod random;
pub mod rng;
pub mod scenario;
pub mod setup;
pub mod shrink;
pub mod timeline;
pub mod topology;
pub mod wire;
pub mod world;

mod rewinds;
mod watch;

pub use case::Case;
pub use end::{End, LinkState};
pub use host::{SimHost, XrcQueue};
pub use link::LinkSpec;
pub use memory::{Mr, VecMemory};
pub use pair::Pair;
pub use promise::{Broken, Promise};
pub use rng::{Choices, Rng, Script};
pub use setup::{Peer, Place, Setup};
pub use topology::Topology;
pub use wire::Wire;
pub use world::{Logged, World};
