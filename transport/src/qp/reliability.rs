//! State of a reliable sender: retries and their timer, bytes in flight, and when to request an
//! acknowledgement.
//!
//! One timer runs either for an acknowledgement or for the wait after an RNR NAK, never for both
//! (IBA §9.7.5.2.8). Bytes in flight are counted per packet ([`FlowControl::packet_cost`]), because
//! each packet has a cost in the receiving socket. Reserved bytes are first `ahead`, then `unacked`
//! once their packet is in the batch, and are released when it is acknowledged or given up.

use crate::cx::FlowControl;
use crate::qp::shared::{QpAttr, Shared};
use crate::time::{Instant, ack_timeout, rnr_wait};
use core::time::Duration;

/// The value of `rnr_retry` that means "infinite".
const RNR_FOREVER: u8 = 7;

/// Minimum ACK timeout. The responder is a thread that may have to be scheduled first, so the
/// microseconds of small codes would only cause retries. Hardware rounds small codes up too.
const MIN_ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 10);

/// Limit of longer timeouts: from the third in a row on, each grows up to four times the first,
/// because an overloaded machine may need that long to schedule the responder.
const MAX_GROWN_ACK_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Ack,
    Rnr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

#[derive(Debug, Default)]
pub(crate) struct Retry {
    retries_left: u8,
    rnr_left: u8,
    consecutive_timeouts: u8,
    timer: Option<(Timer, Instant)>,
    /// True if a NAK arrived since the last progress: further NAKs report the same loss.
    went_back: bool,
}

impl Retry {
    pub(crate) fn reset(&mut self, attr: &QpAttr) {
        *self = Self { retries_left: attr.retry_cnt, rnr_left: attr.rnr_retry, ..Self::default() };
    }

    // clause: RETRY-RELOAD
    pub(crate) fn reload(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.consecutive_timeouts = 0;
    }

    /// Reloads the counters after progress, and restarts the ACK timer if more is `outstanding`.
    // clause: TIMER-RESTART
    pub(crate) fn on_progress(&mut self, attr: &QpAttr, now: Instant, outstanding: bool) {
        self.reload(attr);
        self.went_back = false;
        if !outstanding {
            // This also ends an RNR wait: the responder has accepted another copy of the refused
            // packet.
            self.timer = None;
        } else if !self.is_waiting() {
            self.timer = None;
            self.on_sent(attr, now);
        }
    }

    /// Starts the ACK timer after a packet was sent, unless a timer runs.
    #[inline]
    pub(crate) fn on_sent(&mut self, attr: &QpAttr, now: Instant) {
        if self.timer.is_none() {
            self.timer = ack_timeout(attr.timeout).map(|wait| (Timer::Ack, now.after(self.scaled(wait))));
        }
    }

    pub(crate) fn restart(&mut self, attr: &QpAttr, now: Instant) {
        if let Some((Timer::Ack, _)) = self.timer.take_if(|(timer, _)| *timer == Timer::Ack) {
            self.on_sent(attr, now);
        }
    }

    /// Returns the ACK timeout for the `wait` of the attributes.
    // clause: TIMER-RANGE
    #[inline]
    fn scaled(&self, wait: Duration) -> Duration {
        let first = wait.max(MIN_ACK_TIMEOUT);
        match self.consecutive_timeouts {
            0 | 1 => first,
            count => (wait * (1 << (count - 1).min(2))).min(MAX_GROWN_ACK_TIMEOUT).max(first),
        }
    }

    /// Uses up a retry after an explicit or implied NAK. Returns `Ok(false)` if a retransmission
    /// for that loss is already in progress.
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

    pub(crate) fn on_ack_timeout(&mut self) -> Result<(), Exhausted> {
        self.timer = None;
        self.went_back = false;
        self.consecutive_timeouts = self.consecutive_timeouts.saturating_add(1);
        self.spend()
    }

    fn spend(&mut self) -> Result<(), Exhausted> {
        // clause: RETRY-COUNT
        self.retries_left = self.retries_left.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// Uses up an RNR retry and starts the wait of timer code `code`.
    pub(crate) fn on_rnr(&mut self, attr: &QpAttr, now: Instant, code: u8) -> Result<(), Exhausted> {
        // clause: RNR-COUNT
        if attr.rnr_retry != RNR_FOREVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.timer = Some((Timer::Rnr, now.after(rnr_wait(code))));
        Ok(())
    }

    pub(crate) fn on_rnr_timeout(&mut self) {
        self.timer = None;
        // The packets leave again, so a NAK after the wait reports another loss.
        self.went_back = false;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.timer, Some((Timer::Rnr, _)))
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timer.map(|(_, at)| at)
    }

    pub(crate) fn expired_timer(&self, now: Instant) -> Option<Timer> {
        self.timer.filter(|(_, at)| *at <= now).map(|(timer, _)| timer)
    }
}

/// Reservations of one RC QP, in bytes of [`FlowControl::packet_cost`].
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    unacked: u32,
    /// Bytes reserved and not sent.
    ahead: u32,
    /// Bytes acknowledged and not released.
    acked: u32,
}

impl InFlight {
    /// Reserves `first` and then `more` bytes beyond what is in flight. If there is plenty of room,
    /// reserves `run_bytes()` for the packets after the first instead of `more`.
    /// `fits_same_send(n)` is true if `n` packets leave in the same send as the last one.
    #[inline]
    pub(crate) fn reserve<F: FlowControl>(
        &mut self,
        sh: &Shared,
        flow: &mut F,
        first: u32,
        more: u32,
        run_bytes: impl FnOnce() -> u32,
        fits_same_send: impl Fn(usize) -> bool,
    ) -> Room {
        // The reservation of a long message lasts for most of its packets.
        if first + more <= self.ahead {
            return Room::Both;
        }
        if !self.reserve_to(sh, flow, first, || fits_same_send(1)) {
            // If only unused reservations are held, no acknowledgement will free room. Release
            // them: with nothing in flight, the host does not refuse.
            if self.unacked != 0 || self.ahead == 0 {
                return Room::None;
            }
            self.clear(sh, flow);
            if !self.reserve_to(sh, flow, first, || false) {
                return Room::None;
            }
        }
        let enough = more == 0
            || self.reserve_ahead_to(sh, flow, first + run_bytes())
            || self.reserve_to(sh, flow, first + more, || fits_same_send(2));
        if enough { Room::Both } else { Room::First }
    }

    /// Raises `ahead` to `bytes` if no other QP needs them. A QP that may have to pause reserves
    /// nothing in advance.
    fn reserve_ahead_to<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32) -> bool {
        let missing = bytes - self.ahead;
        let is_free = sh.config.line_rate.is_none() && flow.reserve_ahead(&sh.attr.av, sh.attr.dest_qpn, missing);
        if is_free {
            self.ahead = bytes;
        }
        is_free
    }

    /// Raises `ahead` to at least `bytes`. `in_run` is true if the last packet leaves in the same
    /// send as the one before it.
    #[inline]
    fn reserve_to<F: FlowControl>(
        &mut self,
        sh: &Shared,
        flow: &mut F,
        bytes: u32,
        in_run: impl FnOnce() -> bool,
    ) -> bool {
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

    pub(crate) fn on_sent(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_sub(bytes);
        self.unacked += bytes;
    }

    /// Counts acknowledged bytes; [`InFlight::give_back`] releases them in one call.
    pub(crate) fn on_acked(&mut self, bytes: u32) {
        let bytes = bytes.min(self.unacked);
        self.unacked -= bytes;
        self.acked += bytes;
    }

    pub(crate) fn give_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        let acked = core::mem::take(&mut self.acked);
        if acked != 0 {
            flow.release(&sh.attr.av, sh.attr.dest_qpn, acked);
        }
    }

    pub(crate) fn held(&self) -> u32 {
        self.unacked + self.ahead + self.acked
    }

    pub(crate) fn clear<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.acked += core::mem::take(&mut self.unacked) + core::mem::take(&mut self.ahead);
        self.give_back(sh, flow);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// This packet and the next fit.
    Both,
    /// Only this packet fits.
    First,
    None,
}

/// Maximum number of packets, however small, between two acknowledgement requests.
const MAX_PACKETS_PER_ACK_REQ: i32 = 64;

/// Packets sent since the last acknowledgement request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckReqPacing {
    packets: i32,
    bytes: u32,
    /// Bytes after which an acknowledgement is requested, from
    /// [`crate::cx::FlowControl::ack_interval`].
    pub(super) limit: u32,
}

impl AckReqPacing {
    /// Returns true if the next packet, of `bytes`, must request an acknowledgement. At least four
    /// packets of a `window` do, so that losing one of them does not stall the sender until the
    /// timer expires.
    pub(super) fn is_due(&self, bytes: u32, window: i32) -> bool {
        self.bytes + bytes >= self.limit || self.packets + 1 >= MAX_PACKETS_PER_ACK_REQ.min(window / 4)
    }

    /// Returns the number of packets of `bytes` that may leave before one must request an
    /// acknowledgement.
    pub(super) fn packets_until_due(&self, bytes: u32, window: i32) -> u32 {
        let by_bytes = self.limit.saturating_sub(self.bytes + 1) / bytes;
        let by_packets = MAX_PACKETS_PER_ACK_REQ.min(window / 4) - 1 - self.packets;
        by_bytes.min(u32::try_from(by_packets).unwrap_or(0))
    }

    /// Counts `packets` of `bytes` in total; `ack_req` is true if one of them requests an
    /// acknowledgement.
    pub(super) fn add(&mut self, packets: u32, bytes: u32, ack_req: bool) {
        (self.packets, self.bytes) = if ack_req { (0, 0) } else { (self.packets + packets as i32, self.bytes + bytes) };
    }
}

#[cfg(test)]
mod tests;
