//! The queue pair: the transport's state machine under one lock, with its queues, memory and
//! engine.
//!
//! To follow a SEND read `send` (post), `core` (a visit: transmit, settle, announce) and `host`
//! (payload, room, completions); packets arrive in `queue_pair`. `cold` holds out-of-line work for
//! the checker and the weakest legal card, `failure` and `watch` explain errors, `steering` is for
//! raw packets only.

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
pub use verbs::Qp;
pub(crate) use verbs::QpRole;
