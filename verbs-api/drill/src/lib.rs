//! Packet scripts against an RDMA card, and the conformance cases written in them, for `roxe drill`
//! and `roxe conform`.
//!
//! In a [`Script`] the *near side* sends packets, legal or not, and expects others; the *far side*
//! is the card under test, driven by verbs. A [`Target`] has both sides: [`AgentCard`] is any card
//! next to an agent, [`VirtualCard`] roxe's transport in this process, at virtual time. [`run()`]
//! runs one case of a script and returns an [`Outcome`] with a [`Verdict`].
//!
//! `docs/reference/scripts.md` is the manual of the language. Tables of this crate (`layout`,
//! `mad`) encode and decode packets, not the encoders of the card.
#![forbid(unsafe_code)]

mod agent;
mod clauses;
pub mod compare;
pub mod conform;
mod craft;
pub mod figures;
pub mod fuzz;
mod layout;
mod log;
mod mad;
mod number;
pub mod replay;
pub mod report;
mod run;
mod script;
pub mod target;
mod virtual_card;

pub use agent::AgentCard;
pub use clauses::Class;
pub use conform::Deviations;
pub use log::{Log, LoggedPacket};
pub use run::{Failure, Outcome, Verdict, run};
pub use script::{Case, Script, ScriptError};
pub use target::Target;
pub use virtual_card::VirtualCard;
