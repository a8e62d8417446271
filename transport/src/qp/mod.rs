//! The queue pair and its parts. Begin at [`Qp`] (`queue_pair.rs`): it owns a requester and a
//! responder, which do not use each other, and routes posts, packets and timeouts to them.
//!
//! * `shared`: attributes, configuration and state, read by both roles; `modify`: the table of
//!   legal state changes.
//! * Sending: `send_queue` (work requests), `requester` (which packet is next), `segment` (builds
//!   it), `reliability` (timer, retries, flow control), `completer` (responses).
//! * Receiving: `receive_queue`, `responder` (checks and executes requests), `refusal` (NAK table),
//!   `replies` (acknowledgements, READ responses, replay).
//! * `unreliable`: the UC and UD parts of both; [`EarlyPackets`]: the reorder buffer in front.

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
