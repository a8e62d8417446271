//! The queue pair of a program: the transport's state machine under one lock, with its queues,
//! memory and engine.
//!
//! - `init`, `verbs`: what a queue pair is created with; the verbs of a program but posting sends
//! - `send`: posting sends, down to what is left for later
//! - `resources`, `core`: what is fixed; what the lock guards, and a visit: begin, transmit, end
//! - `queue_pair`: what the engine asks of it: packets in, timers
//! - `host`, `host_state`: what the state machine reaches of this process: memory, completions,
//!   flow control
//! - `credits`: credit for datagrams that senders on this host wait for
//! - `failure`, `history`, `watch`, `told`: why requests failed, and what came before;
//!   what the checker is told
//! - `weak`, `placement`, `weakly`: the weakest legal card: what it remembers, what is not in
//!   memory yet, and what it does instead
//! - `steering`, `rss`: only raw packets: flows, tables of work queues

mod core;
mod credits;
mod failure;
mod history;
mod host;
mod host_state;
mod init;
mod placement;
mod queue_pair;
mod resources;
mod rss;
mod send;
mod steering;
mod told;
mod verbs;
mod watch;
mod weak;
mod weakly;

pub use init::QpInit;
pub(crate) use rss::Rss;
pub use rss::RwqTable;
pub use send::SendGuard;
pub use steering::{Flow, FlowInit};
pub(crate) use verbs::Part;
pub use verbs::Qp;
