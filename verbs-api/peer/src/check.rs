//! `roxe check-peer`: do two cards understand each other? Every service, operation, size and path
//! MTU, in both directions, with compared data; each card is driven through its agent.
//!
//! - which checks there are: `check/plan.rs`
//! - a connected pair of queue pairs with memory on both sides: `check/pair.rs`
//! - one check: `check/judge.rs`
//!
//! Touches the connections to the two agents.

mod judge;
mod pair;
mod plan;

pub use judge::{Failed, check};
pub use pair::{Pair, PairError};
pub use plan::{Check, Family, Op, Service, checks, pairs};
