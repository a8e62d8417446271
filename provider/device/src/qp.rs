//! The queue pair of a program: the transport's state machine under one lock, with its queues,
//! memory and engine.
//!
//! - `resources`: what a queue pair is created with, and what is fixed of it
//! - `verbs`: the verbs of a program but posting sends
//! - `send`: posting sends, down to what is left for later
//! - `core`: what the lock guards, and a visit: begin, transmit, end
//! - `queue_pair`: what the engine asks of it: packets in, timers
//! - `host`: what the state machine reaches of this process: memory, completions, flow control
//! - `cold`: what that does out of line, while something watches or changes what the card does
//! - `failure`, `watch`: why requests failed, and what came before; bytes that the checker watches
//! - `steering`: only raw packets: flows, tables of work queues

mod cold;
mod core;
mod failure;
mod host;
mod queue_pair;
mod resources;
mod send;
mod steering;
mod verbs;
mod watch;

pub use resources::QpInit;
pub use send::SendGuard;
pub(crate) use steering::Rss;
pub use steering::{Flow, FlowInit, RwqTable};
pub(crate) use verbs::Part;
pub use verbs::Qp;
