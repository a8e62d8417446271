//! The queue pair and its parts, one file per subject.
//!
//! [`Qp`] (`queue_pair.rs`) has the entry points: a request is posted, a packet is handed in,
//! packets are asked for, a timer is due. It owns a requester and a responder, which know nothing
//! of each other. Arrows only point down: from `queue_pair` to the roles, from there to queues,
//! segmentation and attributes.
//!
//! * Both roles read `shared`: attributes, configuration, state; `modify` is the table of what
//!   programs may change there.
//! * Sending: `send_queue` holds the requests, `requester` says which packet is next and sends it,
//!   `segment` makes it, `reliability` has timer, retries and room at the receiver, `completer`
//!   takes responses in; `unreliable` sends for UC and UD.
//! * Receiving: `receive_queue` holds the receives, `responder` checks and executes requests or
//!   turns to `refusal`, `replies` remembers answers and sends them; `unreliable` takes datagrams
//!   in.
//! * Beside them: `features`, `status` for those who watch, and [`EarlyPackets`] in front of all.

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
pub use modify::{ModifyError, transition};
pub use queue_pair::{Qp, takes_receive};
pub use shared::{
    AttrMask, DropReason, MigState, PostError, QpAttr, QpCaps, QpConfig, QpEvents, QpState, RetryCounts, Service,
};
pub use status::{Probe, QpStatus};
pub use unreliable::GRH_LEN;

/// Where the roles of a queue pair stand.
pub mod probe {
    pub use super::status::Probe;
}
