//! How often to try again and how long to wait: the retry counters and the one timer of a
//! requester; and what is counted of it for people.
//!
//! The timer runs either for an acknowledgement or, after an RNR NAK, until the responder wants to
//! be asked again; never for both (IBA §9.7.5.2.8). Touches `time` and the attributes.

use crate::qp::attr::QpAttr;
use crate::time::{Instant, ack_timeout, rnr_wait};
use core::time::Duration;

/// The value of `rnr_retry` that means "for ever".
const RNR_FOREVER: u8 = 7;

/// The shortest ACK timeout. A responder here is a thread that may have to be scheduled first, so
/// the microseconds that small codes ask for would only ever produce retries; hardware rounds small
/// codes up too.
const MIN_ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 10);

/// From the third timeout in a row on they are longer, up to four times the first, as far as this:
/// what an overloaded machine may take to schedule the responder. With the usual code 14 and seven
/// retries a peer has 1.5 s instead of 0.5; where 17 threads shared a processor, one waited 0.23 s
/// for its turn.
const PATIENT_ACK_TIMEOUT: Duration = Duration::from_millis(250);

/// What the timer runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// An acknowledgement is overdue.
    Ack,
    /// The responder may have a receive request now.
    Rnr,
}

/// No retries are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// What a queue pair met of losses and of receivers that were not ready since it was last asked,
/// named as hardware counters are. A message that fails by them in the end counts like one that
/// does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCounts {
    /// NAKs of the peer that tell of a gap.
    pub packet_seq_err: u32,
    /// Answers that imply the loss of an earlier answer.
    pub implied_nak_seq_err: u32,
    /// RNR NAKs of the peer.
    pub rnr_nak_retry_err: u32,
    /// Times no acknowledgement came within the timeout.
    pub local_ack_timeout_err: u32,
    /// RNR NAKs due to the peer.
    pub send_rnr_err: u32,
}

impl RetryCounts {
    /// Whether nothing was counted. Every visit asks; to compare with an empty one took four times
    /// the instructions.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { packet_seq_err, implied_nak_seq_err, rnr_nak_retry_err, local_ack_timeout_err, send_rnr_err } = self;
        *packet_seq_err | *implied_nak_seq_err | *rnr_nak_retry_err | *local_ack_timeout_err | *send_rnr_err == 0
    }
}

/// Retry state of a requester.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    retries_left: u8,
    rnr_left: u8,
    /// Timeouts since something was acknowledged.
    silent: u8,
    timer: Option<(Timer, Instant)>,
    /// A NAK made us go back and nothing was acknowledged since: more news of the same loss are old
    /// news.
    went_back: bool,
}

impl Retry {
    /// Full counters, no timer.
    pub(crate) fn reset(&mut self, attr: &QpAttr) {
        *self = Self { retries_left: attr.retry_cnt, rnr_left: attr.rnr_retry, ..Self::default() };
    }

    /// Full counters.
    // clause: RETRY-RELOAD
    pub(crate) fn reload(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.silent = 0;
    }

    /// Something was acknowledged: reloads the counters, and restarts the ACK timer if more is
    /// `outstanding`.
    // clause: TIMER-RESTART
    pub(crate) fn on_progress(&mut self, attr: &QpAttr, now: Instant, outstanding: bool) {
        self.reload(attr);
        self.went_back = false;
        if !outstanding {
            // What the responder was not ready for has arrived as well, by an earlier packet.
            self.timer = None;
        } else if !self.is_waiting() {
            self.timer = None;
            self.on_sent(attr, now);
        }
    }

    /// A packet was sent: starts the ACK timer unless a timer runs.
    pub(crate) fn on_sent(&mut self, attr: &QpAttr, now: Instant) {
        if self.timer.is_none() {
            self.timer = ack_timeout(attr.timeout).map(|wait| (Timer::Ack, now.after(self.scaled(wait))));
        }
    }

    /// The ACK timer, if it runs, starts again: nobody could have answered so far.
    pub(crate) fn restart(&mut self, attr: &QpAttr, now: Instant) {
        if let Some((Timer::Ack, _)) = self.timer.take_if(|(timer, _)| *timer == Timer::Ack) {
            self.on_sent(attr, now);
        }
    }

    /// How long to wait for an acknowledgement where the attributes say `wait`.
    // clause: TIMER-RANGE
    fn scaled(&self, wait: Duration) -> Duration {
        let first = wait.max(MIN_ACK_TIMEOUT);
        match self.silent {
            0 | 1 => first,
            silent => (wait * (1 << (silent - 1).min(2))).min(PATIENT_ACK_TIMEOUT).max(first),
        }
    }

    /// A NAK, written or implied, tells of a loss: uses up a retry. `Ok(false)` when that loss is
    /// being repaired already.
    pub(crate) fn on_loss(&mut self) -> Result<bool, Exhausted> {
        // clause: NAK-ONCE
        if self.went_back {
            return Ok(false);
        }
        // clause: RETRY-SPENT
        self.spend()?;
        self.went_back = true;
        self.timer = None;
        Ok(true)
    }

    /// The ACK timer ran out: uses up a retry.
    pub(crate) fn on_ack_timeout(&mut self) -> Result<(), Exhausted> {
        self.timer = None;
        self.went_back = false;
        self.silent = self.silent.saturating_add(1);
        self.spend()
    }

    fn spend(&mut self) -> Result<(), Exhausted> {
        // clause: RETRY-COUNT
        self.retries_left = self.retries_left.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// The responder is not ready: uses up an RNR retry and starts the wait that `code` asks for.
    pub(crate) fn on_rnr(&mut self, attr: &QpAttr, now: Instant, code: u8) -> Result<(), Exhausted> {
        // clause: RNR-COUNT
        if attr.rnr_retry != RNR_FOREVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.timer = Some((Timer::Rnr, now.after(rnr_wait(code))));
        Ok(())
    }

    /// The RNR wait is over.
    pub(crate) fn on_rnr_timeout(&mut self) {
        self.timer = None;
    }

    /// Whether an RNR wait keeps the requester from sending.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.timer, Some((Timer::Rnr, _)))
    }

    /// When the timer is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timer.map(|(_, at)| at)
    }

    /// The timer that is due, if any.
    pub(crate) fn due(&self, now: Instant) -> Option<Timer> {
        self.timer.filter(|(_, at)| *at <= now).map(|(timer, _)| timer)
    }
}

#[cfg(test)]
mod tests;
