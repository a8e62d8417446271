//! What a reliable sender keeps count of: its retries and the one timer, how much is on its way to
//! the peer, and when to ask for an acknowledgement.
//!
//! The timer runs either for an acknowledgement or, after an RNR NAK, until the responder wants to
//! be asked again; never for both (IBA §9.7.5.2.8). Room at the peer is accounted per packet,
//! because a receiving socket has a cost for each; what it is, the host says
//! ([`FlowControl::charge`]). Bytes reserved are first `ahead`, then, once their packet is in the
//! batch, `unacked`, and are given back when the packet is acknowledged or given up.

use crate::cx::FlowControl;
use crate::qp::shared::{QpAttr, Shared};
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

/// Room held for one RC QP, in the bytes of [`FlowControl::charge`].
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Packets sent and not acknowledged.
    unacked: u32,
    /// Reserved and not used yet.
    ahead: u32,
    /// Acknowledged and not given back yet.
    acked: u32,
}

impl InFlight {
    /// Makes sure that `first` and then `more` bytes are reserved beyond what is in flight: whether
    /// both are, or nothing but the first, or not even that. Instead of `more` takes what `run`
    /// says that the packets behind the first one need, if there is plenty. `fits_same_send` says
    /// whether so many packets travel with the last one.
    #[inline]
    pub(crate) fn reserve<F: FlowControl>(
        &mut self,
        sh: &Shared,
        flow: &mut F,
        first: u32,
        more: u32,
        run: impl FnOnce() -> u32,
        fits_same_send: impl Fn(usize) -> bool,
    ) -> Room {
        // What a long message takes at once lasts for most of its packets.
        if first + more <= self.ahead {
            return Room::Both;
        }
        if !self.reach(sh, flow, first, || fits_same_send(1)) {
            // What is merely reserved brings no acknowledgement. Without it nothing is under way,
            // so this is not refused.
            if self.unacked != 0 || self.ahead == 0 {
                return Room::None;
            }
            self.clear(sh, flow);
            if !self.reach(sh, flow, first, || false) {
                return Room::None;
            }
        }
        let enough = more == 0
            || self.reach_ahead(sh, flow, first + run())
            || self.reach(sh, flow, first + more, || fits_same_send(2));
        if enough { Room::Both } else { Room::First }
    }

    /// Raises `ahead` to `bytes`, more than it is, if nobody else might want them. Who may have to
    /// pause takes nothing for later.
    fn reach_ahead<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32) -> bool {
        let missing = bytes - self.ahead;
        let is_free = sh.config.line_rate.is_none() && flow.reserve_ahead(&sh.attr.av, sh.attr.dest_qpn, missing);
        if is_free {
            self.ahead = bytes;
        }
        is_free
    }

    /// Raises `ahead` to at least `bytes`; `in_run`: the last packet of them travels with the one
    /// before it.
    #[inline]
    fn reach<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32, in_run: impl FnOnce() -> bool) -> bool {
        let missing = bytes.saturating_sub(self.ahead);
        let (av, qpn, own) = (&sh.attr.av, sh.attr.dest_qpn, self.unacked + self.ahead);
        let fits = missing == 0
            || own != 0 && in_run() && flow.reserve_in_run(av, qpn, missing)
            || flow.reserve(av, qpn, missing, own);
        if fits {
            self.ahead += missing;
        }
        fits
    }

    /// A packet of `bytes`, reserved before, is in the batch.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_sub(bytes);
        self.unacked += bytes;
    }

    /// Packets of `bytes` arrived; [`InFlight::give_back`] tells the host once for all of them.
    pub(crate) fn on_acked(&mut self, bytes: u32) {
        let bytes = bytes.min(self.unacked);
        self.unacked -= bytes;
        self.acked += bytes;
    }

    /// Gives back the room of the packets that were acknowledged.
    pub(crate) fn give_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        let acked = core::mem::take(&mut self.acked);
        if acked != 0 {
            flow.release(&sh.attr.av, sh.attr.dest_qpn, acked);
        }
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> u32 {
        self.unacked + self.ahead + self.acked
    }

    /// Gives back everything: what is in flight is given up.
    pub(crate) fn clear<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.acked += core::mem::take(&mut self.unacked) + core::mem::take(&mut self.ahead);
        self.give_back(sh, flow);
    }
}

/// Answer of [`InFlight::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// For this packet and the one after it.
    Both,
    /// For this packet, and then no more until something is acknowledged.
    First,
    /// For no packet.
    None,
}

/// Packets after which an acknowledgement is asked for, also where they count for few bytes.
const ASK_PACKETS: i32 = 64;

/// Packets on their way whose arrival nobody has asked about yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unasked {
    packets: i32,
    bytes: u32,
    /// [`crate::cx::FlowControl::ack_interval`].
    pub(super) limit: u32,
}

impl Unasked {
    /// Whether a packet of `bytes` more is to ask, when `window` PSNs may be under way. A quarter
    /// of them, so that losing one packet that asks does not stop everything until the timer runs
    /// out.
    pub(super) fn is_enough(&self, bytes: u32, window: i32) -> bool {
        self.bytes + bytes >= self.limit || self.packets + 1 >= ASK_PACKETS.min(window / 4)
    }

    /// How many packets of `bytes` may leave before one is to ask.
    pub(super) fn spare(&self, bytes: u32, window: i32) -> u32 {
        let by_bytes = self.limit.saturating_sub(self.bytes + 1) / bytes;
        let by_packets = ASK_PACKETS.min(window / 4) - 1 - self.packets;
        by_bytes.min(u32::try_from(by_packets).unwrap_or(0))
    }

    /// Packets of `bytes` together leave, and ask if one of them `asks`.
    pub(super) fn add(&mut self, packets: u32, bytes: u32, asks: bool) {
        (self.packets, self.bytes) = if asks { (0, 0) } else { (self.packets + packets as i32, self.bytes + bytes) };
    }
}

#[cfg(test)]
mod tests;
