//! A world for queue pairs in a test: memory, network with faults, virtual time. No I/O, no clock, no threads.
//!
//! Lives here, behind the feature `sim`:
//! * [`rng`]: where decisions come from, a seed or a fuzz input;
//! * [`memory`], [`host`]: what one QP reaches ([`crate::cx::Host`]) over vectors;
//! * [`wire`]: the network, packets as sealed bytes;
//! * [`setup`], [`pair`]: two connected QPs that run until nothing is due;
//! * [`scenario`]: random work on a pair, and the judge of what comes out.
//!
//! Everything is deterministic: the same seed gives the same packets at the same instants. These modules are judges, so
//! unlike the rest of the crate they panic when a queue pair breaks a promise.

pub mod host;
pub mod memory;
pub mod pair;
pub mod rng;
pub mod scenario;
pub mod setup;
pub mod wire;

pub use host::SimHost;
pub use memory::{Mr, VecMemory};
pub use pair::{End, Logged, Pair};
pub use rng::{Choices, Rng, Script};
pub use setup::Setup;
pub use wire::{Faults, Peer, Rule, Tally, Verdict, Wire};
