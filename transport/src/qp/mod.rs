//! The queue pair and its parts, one file per subject.
//!
//! [`Qp`] owns a requester and a responder, which know nothing of each other; files below it hold one part of a role each.
//! Arrows only point down: from `queue_pair` to the roles, from there to queues, segmentation and attributes.

mod admission;
mod attr;
mod completer;
mod congestion;
mod congestion_notice;
mod datagram;
mod early_packets;
mod error;
mod execution;
mod in_flight;
mod local;
mod migration;
mod modify;
mod outgoing;
#[cfg(any(test, feature = "sim"))]
pub mod probe;
mod queue_pair;
mod raw;
mod refusal;
mod reliable;
mod replay;
mod reply;
mod request_rules;
mod requester;
mod responder;
mod retry;
mod rq;
mod segment;
mod send_completion;
mod send_rules;
pub(crate) mod shared;
mod sq;
mod tagged;
mod unasked;
mod unreliable;
mod xrc;

pub(crate) use admission::takes_receive;
pub use attr::{AttrMask, MigState, QpAttr, QpState};
pub use congestion::{CongestionCounts, MIN_RATE_KBPS, RateLimit};
pub use early_packets::{EarlyPacket, EarlyPackets, MAX_WAIT, MAX_WAIT_RC};
pub use error::{DropReason, PostError};
pub use modify::ModifyError;
pub use queue_pair::Qp;
pub use raw::FrameNote;
pub use refusal::Outcome;
pub use retry::RetryCounts;
pub use shared::{QpCaps, QpConfig, QpEvents, Service};
pub use tagged::MAX_RENDEZVOUS_REQUEST;
