//! Scripts of packets against an RDMA card, and the conformance cases written in them: what `roxe
//! drill` and `roxe conform` do.
//!
//! A script ([`Script`]) reads like a trace: the *near side* sends packets, legal or not, and says
//! what must come back; the *far side* is the card under test behind verbs. A [`Target`] has both:
//! [`VirtualCard`] is roxe's transport in this process, at a time that jumps. [`run()`] runs one
//! case of a script and answers with a [`Verdict`].
//!
//! `docs/reference/scripts.md` is the manual of the language. Packets are written and read by
//! tables of this crate (`layout`, `mad`), not by the encoders of the card.
#![forbid(unsafe_code)]

mod agent;
pub mod conform;
mod craft;
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
pub use conform::Deviations;
pub use log::{Log, Seen};
pub use run::{Failure, Outcome, Verdict, run};
pub use script::{Case, Script, ScriptError};
pub use target::Target;
pub use virtual_card::VirtualCard;
