//! Congestion control (DCQCN) and rate limits.
//!
//! The *notification point* receives packets marked by a switch (ECN = CE) and sends congestion
//! notification packets (CNP) to the peer, at most one per [`CNP_INTERVAL`]. It is always active,
//! because a peer that sends ECN-capable packets expects notifications. The *reaction point*
//! receives CNPs and slows down ([`ReducedRate`]). It is active only with a line rate; only then
//! are packets sent as ECN-capable.
//!
//! UD does neither: marks in datagrams of any host would trigger CNPs, and a UD queue pair has no
//! single rate. [`RateLimit`] and the static rate of the path pace every service in the same way.

use crate::cx::{PacketNote, TxBatch, TxReason};
use crate::time::Instant;
use crate::wr::Av;
use core::num::NonZeroU64;
use core::time::Duration;
use roxe_wire::{Bth, ECN, Header, Kind, Psn, Qpn};

/// Minimum time between two CNPs to one peer (the value of the DCQCN paper and its public models).
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// ECN bits of a packet that may be marked (RFC 3168 §5).
pub(crate) const ECT_0: u8 = 0b10;
/// DSCP 48, where switches expect CNPs.
// clause: CNP-SENT
const CNP_DSCP: u8 = 48 << 2;

/// Minimum rate limit in kbit/s: with less, one packet would outlast the peer's timeouts.
pub const MIN_RATE_KBPS: u32 = 1000;

/// Rate limit of a queue pair, set by its program (`struct ibv_qp_rate_limit_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Rate of whole packets in kbit/s, at least [`MIN_RATE_KBPS`]; 0 is unlimited.
    pub kbps: u32,
    /// Maximum burst in bytes; 0 is the default. Requires a rate.
    pub max_burst: u32,
}

impl RateLimit {
    pub(crate) const fn is_valid(self) -> bool {
        self.kbps >= MIN_RATE_KBPS || (self.kbps == 0 && self.max_burst == 0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// Rate in bit/s.
    speed: u64,
    /// Burst in bytes.
    burst: u64,
}

impl Limit {
    /// Returns the lower of the program's limit `own` and the limit of the path in Mbit/s; 0 is
    /// unlimited. A default burst lasts at most a millisecond.
    fn of(own: RateLimit, path: u32) -> Option<Self> {
        let (own_speed, path_speed) = (u64::from(own.kbps) * 1000, u64::from(path) * 1_000_000);
        let speed = [own_speed, path_speed].into_iter().filter(|speed| *speed != 0).min()?;
        let burst = if own.max_burst == 0 { (speed / 8000).clamp(1, BURST) } else { own.max_burst.into() };
        Some(Self { speed, burst })
    }
}

/// Congestion counts since the last call, named like hardware counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounts {
    /// Packets received with a congestion mark.
    pub np_ecn_marked_roce_packets: u32,
    /// Number of sent CNPs.
    pub np_cnp_sent: u32,
    /// Number of received CNPs that reduced the rate.
    pub rp_cnp_handled: u32,
}

impl CongestionCounts {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled } = self;
        *np_ecn_marked_roce_packets | *np_cnp_sent | *rp_cnp_handled == 0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Congestion {
    /// Time when the last CNP became due.
    cnp_at: Option<Instant>,
    pub(crate) cnp_due: bool,
    /// The DCQCN rate, while below the line rate; boxed because few queue pairs have one.
    rate: Option<Box<ReducedRate>>,
    limit: Option<Limit>,
    pacer: Option<Pacer>,
    /// End of the current pause, when [`Congestion::on_timeout`] is due; nothing is sent before.
    pub(crate) pause: Option<Instant>,
    pub(crate) counts: CongestionCounts,
}

impl Congestion {
    pub(crate) fn on_mark(&mut self, now: Instant) {
        self.counts.np_ecn_marked_roce_packets += 1;
        // clause: CNP-INTERVAL
        if self.cnp_at.is_none_or(|at| now.since(at) >= CNP_INTERVAL) {
            self.cnp_at = Some(now);
            self.cnp_due = true;
        }
    }

    /// Sends a CNP to `dest_qpn` over `path`. Returns false if the batch is full.
    #[cold]
    pub(crate) fn send_cnp<T: TxBatch>(&mut self, tx: &mut T, qpn: Qpn, dest_qpn: Qpn, path: &Av) -> bool {
        // clause: CNP-SENT
        let bth = Bth { becn: true, ..Bth::new(dest_qpn, Psn::default()) };
        let header = Header { bth, kind: Kind::Cnp };
        // ECN-capable like the other packets.
        let av = Av { traffic_class: CNP_DSCP | path.traffic_class & ECN, ..*path };
        let note = PacketNote::without_wr(qpn, TxReason::Cnp);
        let Some(form) = header.form(0) else { return true };
        let Some(slot) = tx.slot(&av, dest_qpn, form.len(), &note) else { return false };
        // Cannot fail: the slot is as long as the header.
        let _ = slot.put_header(&header, &form);
        self.cnp_due = false;
        self.counts.np_cnp_sent += 1;
        true
    }

    /// Handles a CNP. Returns false if it is ignored for lack of a line rate.
    pub(crate) fn on_cnp(&mut self, line: Option<NonZeroU64>, now: Instant) -> bool {
        // clause: DCQCN-OFF
        let Some(line) = line else { return false };
        self.counts.rp_cnp_handled += 1;
        self.catch_up(now);
        match &mut self.rate {
            Some(rate) => rate.on_cnp(now),
            // At line rate, the next CNP counts as the first.
            rate => *rate = Some(Box::new(ReducedRate::new(line, now))),
        }
        self.set_pace(now);
        true
    }

    /// Sets the limits of program and path, the latter in Mbit/s; 0 is unlimited.
    // clause: RATE-LIMIT
    pub(crate) fn set_limit(&mut self, own: RateLimit, path: u32) {
        let limit = Limit::of(own, path);
        if limit != self.limit {
            (self.limit, self.pacer, self.pause) = (limit, None, None);
            self.set_pace(Instant::default());
        }
    }

    /// Paces at the lower of rate and limit; removes the pacer if there is neither.
    fn set_pace(&mut self, now: Instant) {
        let (rate, limit) = (self.rate.as_deref().map(ReducedRate::current), self.limit);
        let Some(speed) = rate.into_iter().chain(limit.map(|limit| limit.speed)).min() else {
            self.pacer = None;
            return;
        };
        let burst = limit.map_or(BURST, |limit| if rate.is_some() { limit.burst.min(BURST) } else { limit.burst });
        self.pacer.get_or_insert_with(|| Pacer::new(now)).set_rate(speed, burst);
    }

    /// Returns true if a packet may leave now. If not, call again at `pause`.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        self.is_unpaced() || self.may_send_limited(now)
    }

    #[cold]
    fn may_send_limited(&mut self, now: Instant) -> bool {
        if self.is_pausing() {
            return false;
        }
        self.catch_up(now);
        self.pause = self.pacer.as_ref().and_then(|pacer| pacer.pause(now));
        self.pause.is_none()
    }

    #[inline]
    pub(crate) fn is_unpaced(&self) -> bool {
        self.pacer.is_none()
    }

    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, payload: u32) {
        if let Some(pacer) = &mut self.pacer {
            pacer.on_sent(now, payload);
        }
    }

    /// Returns true if a pause follows a packet with this payload, so that it should request an
    /// acknowledgement.
    #[inline]
    pub(crate) fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.pacer.as_ref().is_some_and(|pacer| pacer.pauses_after(now, payload))
    }

    #[inline]
    pub(crate) fn is_pausing(&self) -> bool {
        self.pause.is_some()
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.pause.is_some_and(|at| at <= now) {
            self.pause = None;
        }
    }

    pub(crate) fn stop(&mut self) {
        (self.pause, self.cnp_due) = (None, false);
    }

    /// Executes due cuts and raises of the rate; removes the rate when it reaches the line rate.
    fn catch_up(&mut self, now: Instant) {
        if let Some(rate) = &mut self.rate {
            rate.advance(now);
            if rate.is_at_line() {
                self.rate = None;
            }
            self.set_pace(now);
        }
    }
}

/// Default burst in bytes: half a segmented send, so that many packets still leave per system call.
/// The next burst begins when the line time of this one has passed.
const BURST: u64 = 32 << 10;
/// Maximum burst in bytes: keeps products within 64 bits.
const MAX_BURST: u64 = 1 << 30;
/// Lateness of a burst that costs no throughput, because a sleeping thread oversleeps: up to this
/// much unused time is added to the next burst.
const MAX_LATENESS: Duration = Duration::from_micros(100);
/// Approximate bytes of a packet on Ethernet in addition to its payload.
const OVERHEAD: u64 = 64;

/// Paces packets by the time that their bytes need on the line.
#[derive(Debug)]
struct Pacer {
    /// Rate in bit/s.
    speed: u64,
    /// Burst in bytes.
    burst: u64,
    /// Time when everything sent has left at the set speed.
    free_at: Instant,
}

impl Pacer {
    const fn new(now: Instant) -> Self {
        Self { speed: 1, burst: BURST, free_at: now }
    }

    fn set_rate(&mut self, speed: u64, burst: u64) {
        (self.speed, self.burst) = (speed.max(1), burst.min(MAX_BURST));
    }

    /// Returns the start of the next burst, if the current one is complete.
    fn pause(&self, now: Instant) -> Option<Instant> {
        (self.free_at.since(now) >= self.time_of(self.burst)).then_some(self.free_at)
    }

    /// Returns true if a packet with this payload completes the burst.
    fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.free_after(now, payload).since(now) >= self.time_of(self.burst)
    }

    fn on_sent(&mut self, now: Instant, payload: u32) {
        self.free_at = self.free_after(now, payload);
    }

    /// Returns the time when a packet with this payload, sent now, has left.
    fn free_after(&self, now: Instant, payload: u32) -> Instant {
        self.free_at.max(now.before(MAX_LATENESS)).after(self.time_of(u64::from(payload) + OVERHEAD))
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes * 8_000_000_000).div_ceil(self.speed))
    }
}

/// The value of alpha that means 1.
const ONE: u32 = 1 << 16;
/// Weight of the newest period in alpha: g = 1/256, as in published configurations (hardware: about
/// 1/205).
const GAIN: u32 = 256;
/// Interval of alpha updates.
const ALPHA_PERIOD: Duration = Duration::from_micros(55);
/// Minimum interval of cuts.
const CUT_PERIOD: Duration = Duration::from_micros(4);
/// Interval of raises, counted from the last cut.
const RAISE_PERIOD: Duration = Duration::from_micros(1500);
/// Number of fast recovery raises; the next is additive, later ones are hyper.
const FAST_STAGES: u32 = 5;
/// Increment of the target by an additive raise, bit/s.
const ADDITIVE: u64 = 5_000_000;
/// Increment of the target by a hyper raise, bit/s.
const HYPER: u64 = 50_000_000;
/// Minimum rate in bit/s: a flood of CNPs must not starve a queue pair.
// clause: DCQCN-LEAST
const MIN_RATE: u64 = 100_000_000;
/// Maximum line rate in bit/s: keeps products within 64 bits.
const MAX_LINE: u64 = 1 << 46;

/// A rate below the line rate; all rates in bit/s.
#[derive(Debug)]
struct ReducedRate {
    line: u64,
    current: u64,
    target: u64,
    /// Estimated congestion, in 1/[`ONE`].
    alpha: u32,
    /// Number of raises since the last cut.
    stage: u32,
    /// True if a CNP arrived since the last alpha update.
    cnp_arrived: bool,
    alpha_at: Instant,
    /// Origin of the decrease timer's ticks.
    cuts_from: Instant,
    /// Tick of the next cut, if a CNP arrived since the last one.
    cut_at: Option<Instant>,
    /// Time of the next raise; `None` before the first cut.
    raise_at: Option<Instant>,
}

impl ReducedRate {
    /// Starts at the first CNP with alpha 1 and line rate.
    // clause: DCQCN-FIRST
    fn new(line: NonZeroU64, now: Instant) -> Self {
        let line = line.get().min(MAX_LINE);
        Self {
            line,
            current: line,
            target: line,
            alpha: ONE,
            stage: 0,
            cnp_arrived: false,
            alpha_at: now.after(ALPHA_PERIOD),
            cuts_from: now,
            cut_at: Some(now.after(CUT_PERIOD)),
            raise_at: None,
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        self.age_alpha(now);
        self.cnp_arrived = true;
        if self.cut_at.is_none() {
            self.cut_at = Some(next_tick(self.cuts_from, CUT_PERIOD, now));
        }
    }

    /// Executes due cuts and raises in order of time, a cut first.
    fn advance(&mut self, now: Instant) {
        loop {
            match (self.cut_at, self.raise_at) {
                (Some(cut), raise) if cut <= now && raise.is_none_or(|raise| cut <= raise) => self.cut(cut),
                (_, Some(raise)) if raise <= now => self.raise(raise),
                _ => return,
            }
        }
    }

    fn current(&self) -> u64 {
        self.current
    }

    fn is_at_line(&self) -> bool {
        self.current == self.line && self.cut_at.is_none()
    }

    /// Cuts the rate by the factor alpha / 2. The target follows only if there was a raise since
    /// the last cut ("clamp target" is off).
    // clause: DCQCN-CUT
    fn cut(&mut self, at: Instant) {
        self.age_alpha(at);
        if self.stage > 0 {
            self.target = self.current;
        }
        let decrease = self.current * u64::from(self.alpha) / u64::from(2 * ONE);
        self.current = (self.current - decrease).max(MIN_RATE.min(self.line));
        self.stage = 0;
        self.cut_at = None;
        self.raise_at = Some(at.after(RAISE_PERIOD));
    }

    /// Raises the rate half of the way to the target, which itself grows after fast recovery. The
    /// last step to the line rate, which halving would never reach, is taken at once.
    // clause: DCQCN-RAISE
    fn raise(&mut self, at: Instant) {
        let increase = match self.stage {
            FAST_STAGES => ADDITIVE,
            stage if stage > FAST_STAGES => HYPER,
            _ => 0,
        };
        self.target = (self.target + increase).min(self.line);
        self.current = u64::midpoint(self.current, self.target);
        self.stage = self.stage.saturating_add(1);
        self.raise_at = Some(at.after(RAISE_PERIOD));
        if self.line - self.current < ADDITIVE {
            (self.current, self.raise_at) = (self.line, None);
        }
    }

    /// Updates alpha for every period that ended by `at`. Rounds so that alpha reaches zero; from
    /// there the remaining periods are skipped at once.
    // clause: DCQCN-ALPHA
    fn age_alpha(&mut self, at: Instant) {
        while self.alpha_at <= at {
            if self.alpha == 0 && !self.cnp_arrived {
                self.alpha_at = next_tick(self.alpha_at, ALPHA_PERIOD, at);
                return;
            }
            self.alpha -= self.alpha.div_ceil(GAIN);
            if core::mem::take(&mut self.cnp_arrived) {
                self.alpha += ONE / GAIN;
            }
            self.alpha_at = self.alpha_at.after(ALPHA_PERIOD);
        }
    }
}

/// Returns the first time after `now` that is whole periods after `origin`.
fn next_tick(origin: Instant, period: Duration, now: Instant) -> Instant {
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    let passed = now.0.saturating_sub(origin.0) / period;
    Instant(origin.0.saturating_add((passed + 1).saturating_mul(period)))
}

#[cfg(test)]
mod tests;
