//! The queue pair and its parts, one file per subject.
//!
//! [`Qp`] (`queue_pair.rs`) owns a requester and a responder, which know nothing of each other;
//! other files hold one part of a role each. Arrows only point down: from `queue_pair` to the
//! roles, from there to queues, segmentation and attributes.
//!
//! * Both roles read `shared` and `attr`; `modify` checks what programs change there; `admission`
//!   turns packets away that the state or the connection does not take.
//! * Sending: `sq` is the queue, `send_rules` says what it takes, `segment` and `outgoing` make
//!   packets; `requester` has the cursors, `reliable`, `unreliable`, `raw` and `local` the send
//!   loops; `in_flight` reserves room at the receiver, `unasked` decides when to ask for an
//!   acknowledgement; `completer` takes responses in, `retry` has counters and timers,
//!   `send_completion` reports.
//! * Receiving: `rq` is the queue; `responder` puts requests through `request_rules` and
//!   `execution`, or into `refusal`; `datagram` has UD, `xrc` the shared queues of XRC, `tagged`
//!   what a matched tag means; `replay` remembers answers and `reply` sends them.
//! * Beside them: `status` for who watches, `congestion` and its notices, `migration` of paths, and
//!   [`EarlyPackets`] in front of all.

mod completer;
mod early_packets;
pub(crate) mod features;
mod modify;
mod queue_pair;
mod receive_queue;
mod refusal;
mod reliability;
mod replies;
mod requester;
mod responder;
mod segment;
mod send_queue;
pub(crate) mod shared;
mod status;
mod unreliable;

pub use early_packets::{EarlyPacket, EarlyPackets, MAX_WAIT, MAX_WAIT_RC};
pub use features::congestion::{CongestionCounts, MIN_RATE_KBPS, RateLimit};
pub use features::raw::FrameNote;
pub use features::tags::MAX_RENDEZVOUS_REQUEST;
pub use modify::ModifyError;
#[cfg(any(test, feature = "sim"))]
pub(crate) use modify::transition;
pub use queue_pair::Qp;
pub(crate) use queue_pair::takes_receive;
pub use refusal::Outcome;
pub use shared::{
    AttrMask, DropReason, MigState, PostError, QpAttr, QpCaps, QpConfig, QpEvents, QpState, RetryCounts, Service,
};
pub use status::{Probe, QpStatus};
pub use unreliable::GRH_LEN;

/// Where the roles of a queue pair stand.
pub mod probe {
    pub use super::status::Probe;
}
