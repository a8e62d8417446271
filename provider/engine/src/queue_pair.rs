//! A queue pair as the engine sees it: something with a number that takes packets, timers and room
//! to send.
//!
//! The crate above has the queue pairs, their state machines and their locks; the engine knows
//! nothing of them but this. Every call is a *visit*: it takes the lock of the queue pair, lets its
//! state machine work, may send, and says what is left to be done once no lock is held.

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
    /// What a visit to a queue pair leaves to be done without its lock.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VisitOutcome: u16 {
        /// These asynchronous events were raised.
        const EVENTS = QpEvents::all().bits() as u16;
        /// The queue of sends fired.
        const ANNOUNCE_SEND = 1 << 8;
        /// The queue of receives fired.
        const ANNOUNCE_RECV = 1 << 9;
        /// There is something to send.
        const HAS_WORK = 1 << 10;
        /// So much waits for receives, or for packets in front of it, that no more shall come by
        /// rings.
        const IS_CROWDED = 1 << 11;
        /// A request failed, and the user may want to hear why.
        const FAILED = 1 << 12;
    }
}

impl VisitOutcome {
    /// `flag` if it `applies`.
    #[inline]
    pub fn when(flag: Self, applies: bool) -> Self {
        if applies { flag } else { Self::empty() }
    }
}

/// What a queue pair met since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Losses.
    pub retries: RetryCounts,
    /// How its last request failed.
    pub error: Option<WcStatus>,
    /// Bytes of the packets that it has sent, from the BTH to the ICRC, or of frames; also of those
    /// that were lost then.
    pub sent_bytes: u64,
    /// Bytes of those that came for it, taken or not.
    pub received_bytes: u64,
}

impl Met {
    /// It met these losses.
    pub fn add(&mut self, more: RetryCounts) {
        let sum = &mut self.retries;
        sum.packet_seq_err = sum.packet_seq_err.wrapping_add(more.packet_seq_err);
        sum.implied_nak_seq_err = sum.implied_nak_seq_err.wrapping_add(more.implied_nak_seq_err);
        sum.rnr_nak_retry_err = sum.rnr_nak_retry_err.wrapping_add(more.rnr_nak_retry_err);
        sum.local_ack_timeout_err = sum.local_ack_timeout_err.wrapping_add(more.local_ack_timeout_err);
        sum.send_rnr_err = sum.send_rnr_err.wrapping_add(more.send_rnr_err);
    }
}

/// Bytes of a queue pair that are brought into the cache when it is looked up: its own lines, and
/// the lock's.
pub const PREFETCHED: usize = 1152;

/// What the engine asks of a queue pair.
pub trait QueuePair: Debug + Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Which queue pair of this process it is, from 0 in the order of creation: fault rules count
    /// by that.
    fn ordinal(&self) -> u32;

    /// Its transport service.
    fn service(&self) -> Service;

    /// Where it stands, for people who watch it; and what it met. Takes its lock.
    fn status(&self) -> (QpStatus, Met);

    /// Takes in a run of packets addressed to it. What it wants to send is left for
    /// [`QueuePair::serve`].
    fn receive(&self, run: Run<'_>, tools: &mut RxTools<'_>, now: Instant) -> VisitOutcome;

    /// As [`QueuePair::receive`], for packets that share a header. `None`: they have to be taken
    /// apart first.
    fn receive_joined(&self, meta: &RxMeta, packets: &Joined<'_>, now: Instant) -> Option<VisitOutcome>;

    /// Whether it looks at no payload but where it is copied to, so that
    /// [`QueuePair::receive_shared`] may be used.
    fn takes_shared_payload(&self) -> bool;

    /// As [`QueuePair::receive`], for packets that lie in `shared`, of which `copies` has at least
    /// the first `head` bytes of each one, and nobody looks at the others.
    fn receive_shared(
        &self,
        meta: &RxMeta,
        copies: (&[u8], usize),
        shared: SharedBytes<'_>,
        now: Instant,
    ) -> VisitOutcome;

    /// Takes in a frame that a flow has chosen it for.
    fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> VisitOutcome;

    /// A datagram left the socket that will never be handed in, because of a fault: its sender on
    /// this host waits for credit all the same.
    fn return_credit(&self, packet: &Packet<'_>, net: &NetHeader, tools: &RxTools<'_>);

    /// Whether more than half of what may wait for it waits.
    fn is_crowded(&self) -> bool;

    /// Sends what there is to send.
    fn serve(&self, now: Instant);

    /// The same after packets came, which left `outcome`; but a lone acknowledgement may wait for
    /// what the program is about to send. Returns until when, if it does.
    fn serve_or_wait(&self, outcome: VisitOutcome, now: Instant) -> Option<Instant>;

    /// What it has taken in is in memory when this returns, and acknowledgements do not wait any
    /// more: memory or the queue pair goes away. Something is to be done only on the weakest legal
    /// card.
    fn settle_memory(&self) {}

    /// An acknowledgement has waited long enough; if the program has taken it along, this does
    /// nothing.
    fn end_waiting(&self, now: Instant);

    /// Sends what there is to send, after it waited for room, and has it with `grant`, or for more
    /// requests of the program.
    fn serve_waiter(&self, grant: Option<Grant>, now: Instant);

    /// Acts on the timer that was registered for `deadline`.
    fn on_timer(&self, deadline: Instant, now: Instant);

    /// Tells the program what a visit brought. No lock of a queue pair may be held.
    fn announce(&self, outcome: VisitOutcome);

    /// Ends all work: it is destroyed, or belongs to the parent of this process. False if that was
    /// so already.
    fn cut_off(&self) -> bool;

    /// The lock, for the fork handlers.
    fn raw(&self) -> &dyn Lockable;
}

/// Chooses one of several queue pairs for a frame (RSS).
pub trait Spread: Debug + Send + Sync {
    /// The queue pair for one frame.
    fn choose(&self, key: &FrameKey) -> Option<Arc<dyn QueuePair>>;
}

/// Something that waits for a time on its own: a completion queue whose events are moderated, a
/// queue pair of the weakest legal card.
pub trait Deadline: Debug + Send + Sync {
    /// The time has come.
    fn on_deadline(&self, deadline: Instant);
}
