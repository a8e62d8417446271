//! Queue pairs as the engine sees them.
//!
//! The crate `roxe-provider` owns queue pairs, their state machines and locks. Each call is a
//! *visit*: it locks the queue pair, runs its state machine, may send, and returns the work that
//! remains after the lock is released.

use crate::flow_control::Grant;
use crate::run::{Joined, Run, RxTools};
use bitflags::bitflags;
use roxe_base::lock::Lockable;
use roxe_memory::guard::SharedBytes;
use roxe_net::link::RxMeta;
use roxe_transport::qp::{FrameNote, QpEvents, QpStatus, RetryCounts, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::WcStatus;
use roxe_wire::frame::FrameKey;
use roxe_wire::{NetHeader, Packet, Qpn};
use std::fmt::Debug;
use std::sync::Arc;

bitflags! {
    /// Work that a visit leaves to be done without the lock of the queue pair.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VisitOutcome: u16 {
        /// Asynchronous events were raised.
        const EVENTS = QpEvents::all().bits() as u16;
        /// The send completion queue must notify its waiters.
        const NOTIFY_SEND_CQ = 1 << 8;
        /// The receive completion queue must notify its waiters.
        const NOTIFY_RECV_CQ = 1 << 9;
        /// There are packets to send.
        const HAS_WORK = 1 << 10;
        /// More than half of the early packet queue is in use: rings stay unread until it drains.
        const IS_CROWDED = 1 << 11;
        /// A request failed and may be explained to the user.
        const FAILED = 1 << 12;
    }
}

impl VisitOutcome {
    /// Returns `flag` if `applies` is true, else no flag.
    #[inline]
    pub fn when(flag: Self, applies: bool) -> Self {
        if applies { flag } else { Self::empty() }
    }
}

/// Statistics of a queue pair since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpStats {
    /// Retransmissions and retries.
    pub retries: RetryCounts,
    /// Status of the last failed request.
    pub error: Option<WcStatus>,
    /// Bytes sent, lost packets included: packets from BTH to ICRC, and whole frames.
    pub sent_bytes: u64,
    /// Bytes received, whether accepted or not.
    pub received_bytes: u64,
}

impl QpStats {
    /// Adds `more` to the retry counts.
    pub fn add_retries(&mut self, more: RetryCounts) {
        let sum = &mut self.retries;
        sum.packet_seq_err = sum.packet_seq_err.wrapping_add(more.packet_seq_err);
        sum.implied_nak_seq_err = sum.implied_nak_seq_err.wrapping_add(more.implied_nak_seq_err);
        sum.rnr_nak_retry_err = sum.rnr_nak_retry_err.wrapping_add(more.rnr_nak_retry_err);
        sum.local_ack_timeout_err = sum.local_ack_timeout_err.wrapping_add(more.local_ack_timeout_err);
        sum.send_rnr_err = sum.send_rnr_err.wrapping_add(more.send_rnr_err);
    }
}

/// Number of bytes of a queue pair that a lookup prefetches.
pub const PREFETCH_LEN: usize = 1152;

/// The engine's interface to a queue pair.
pub trait QueuePair: Debug + Send + Sync {
    /// Returns the queue pair number.
    fn qpn(&self) -> Qpn;

    /// Returns the number of queue pairs that the process created before this one. Fault rules
    /// identify queue pairs by it.
    fn ordinal(&self) -> u32;

    /// Returns the transport service.
    fn service(&self) -> Service;

    /// Returns state and statistics for observers. Locks the queue pair.
    fn status(&self) -> (QpStatus, QpStats);

    /// Returns the numbers of the protection domain and, if there is one, of the shared receive
    /// queue.
    fn pd_and_srq(&self) -> (u32, Option<u32>);

    /// Returns true for a receive work queue, which has no queue pair in the verbs API.
    fn is_work_queue(&self) -> bool;

    /// Receives a run of packets. Sends the responses at once if `tools.serves_at_once`, else
    /// leaves them to [`QueuePair::serve`].
    fn receive(&self, run: Run<'_>, tools: &mut RxTools<'_>, now: Instant) -> VisitOutcome;

    /// Like [`QueuePair::receive`], for packets that share a header. Returns `None` if the caller
    /// has to split them.
    fn receive_joined(&self, meta: &RxMeta, packets: &Joined<'_>, now: Instant) -> Option<VisitOutcome>;

    /// Returns true if the queue pair copies payloads to their destination without reading them
    /// before, so that [`QueuePair::receive_shared`] may be called.
    fn takes_shared_payload(&self) -> bool;

    /// Like [`QueuePair::receive`], for packets in `shared`. `copies` holds copies of at least the
    /// first bytes of each packet, and the number of bytes per copy.
    fn receive_shared(
        &self,
        meta: &RxMeta,
        copies: (&[u8], usize),
        shared: SharedBytes<'_>,
        now: Instant,
    ) -> VisitOutcome;

    /// Receives a frame that a flow rule directs to the queue pair.
    fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> VisitOutcome;

    /// Returns the credit for a datagram that a fault discards: a sender on this host waits for the
    /// credit.
    fn return_credit(&self, packet: &Packet<'_>, net: &NetHeader, tools: &RxTools<'_>);

    /// Returns true if more than half of the early packet queue is in use.
    fn is_crowded(&self) -> bool;

    /// Sends pending packets.
    fn serve(&self, now: Instant);

    /// Like [`QueuePair::serve`] after a visit with `outcome`, but may delay a lone acknowledgement
    /// for the program's next packet. Returns the time until which it is delayed.
    fn serve_or_delay_ack(&self, outcome: VisitOutcome, now: Instant) -> Option<Instant>;

    /// Completes deferred placement and acknowledgements before memory or the queue pair is
    /// destroyed. Only the weakest legal card defers any.
    fn settle_memory(&self) {}

    /// Sends a delayed acknowledgement, unless it has left with a packet of the program.
    fn send_delayed_ack(&self, now: Instant);

    /// Sends pending packets after a wait for room, which `grant` holds, or for more requests.
    fn serve_waiter(&self, grant: Option<Grant>, now: Instant);

    /// Handles the timer that was added for `deadline`.
    fn on_timer(&self, deadline: Instant, now: Instant);

    /// Raises the events of a visit. The caller must hold no lock of a queue pair.
    fn announce(&self, outcome: VisitOutcome);

    /// Ends all work before destruction, or in the child of a fork. Returns false if already ended.
    fn cut_off(&self) -> bool;

    /// Returns the lock, for the fork handlers.
    fn lockable(&self) -> &dyn Lockable;
}

/// Selects one of several queue pairs for a frame (RSS).
pub trait RssGroup: Debug + Send + Sync {
    /// Returns the queue pair for a frame with `key`.
    fn choose(&self, key: &FrameKey) -> Option<Arc<dyn QueuePair>>;
}

/// Owner of a timer that is not a transport timer, such as a completion queue with moderation.
pub trait DeadlineOwner: Debug + Send + Sync {
    /// Called when `deadline` is reached.
    fn on_deadline(&self, deadline: Instant);
}
