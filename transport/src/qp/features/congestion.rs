//! Congestion: what follows when a switch marks packets instead of dropping them.
//!
//! Of the three roles two live here. The *notification point* is the end that receives a marked
//! packet (ECN = CE): it sends congestion notification packets (CNP) to the peer, not more often
//! than every [`NOTICE_INTERVAL`]. It always does, because a peer whose packets can be marked has
//! asked for that. The *reaction point* is the end that receives a CNP: it slows down ([`Rate`]) if
//! the queue pair was made with a line rate; only then do its packets say that they can be marked
//! (ECT), so that switches drop instead of marking for nothing.
//!
//! RC and UC do both. UD does neither: its packets come from anybody, so that answers to marks
//! could be aimed at third parties, and it sends to anybody, so that there is no one rate. Touches
//! `time` only.
//!
//! Such pauses also keep a queue pair below the rate that its program wants ([`RateLimit`]), or
//! that its path has; whichever is less counts. That has nothing to do with marks and is there for
//! every service.

use crate::cx::{PacketNote, TxBatch, TxReason};
use crate::time::Instant;
use crate::wr::Av;
use core::num::NonZeroU64;
use core::time::Duration;
use roxe_wire::{Bth, ECN, Header, Kind, Psn, Qpn};

/// The least time between two CNPs to one peer (the value of the DCQCN paper and its public
/// models).
const NOTICE_INTERVAL: Duration = Duration::from_micros(50);
/// What a sender writes into the ECN bits: packets may be marked (RFC 3168 §5).
const ECT_0: u8 = 0b10;
/// DSCP 48, where switches expect CNPs.
// clause: CNP-SENT
const CNP_DSCP: u8 = 48 << 2;

/// The least limit a queue pair takes, kbit/s: with less, one packet would take longer than peers
/// wait for an answer.
pub const MIN_RATE_KBPS: u32 = 1000;

/// How fast a queue pair may send, as its program wants it (`struct ibv_qp_rate_limit_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// kbit/s of whole packets, at least [`MIN_RATE_KBPS`]; 0: no limit.
    pub kbps: u32,
    /// Bytes that may leave in one go; 0 leaves it to the queue pair. Only with a rate.
    pub max_burst: u32,
}

impl RateLimit {
    /// Whether it can be kept.
    pub(crate) const fn is_valid(self) -> bool {
        self.kbps >= MIN_RATE_KBPS || (self.kbps == 0 && self.max_burst == 0)
    }
}

/// What holds of a queue pair: its program's limit or that of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// Bit/s.
    speed: u64,
    /// Bytes in one go.
    burst: u64,
}

impl Limit {
    /// The lower one, `path` in Mbit/s; 0 is none. What leaves in one go takes a millisecond at
    /// most.
    fn of(own: RateLimit, path: u32) -> Option<Self> {
        let (own_speed, path_speed) = (u64::from(own.kbps) * 1000, u64::from(path) * 1_000_000);
        let speed = [own_speed, path_speed].into_iter().filter(|speed| *speed != 0).min()?;
        let burst = if own.max_burst == 0 { (speed / 8000).clamp(1, BURST) } else { own.max_burst.into() };
        Some(Self { speed, burst })
    }
}

/// What a queue pair met of congestion since it was last asked, named as hardware counters are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounts {
    /// Packets of the peer that were marked on their way.
    pub np_ecn_marked_roce_packets: u32,
    /// CNPs sent.
    pub np_cnp_sent: u32,
    /// CNPs that were obeyed.
    pub rp_cnp_handled: u32,
}

impl CongestionCounts {
    /// Whether nothing was counted.
    #[inline]
    const fn is_empty(&self) -> bool {
        let Self { np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled } = self;
        *np_ecn_marked_roce_packets | *np_cnp_sent | *rp_cnp_handled == 0
    }
}

/// The traffic class of packets that may be marked; the DSCP stays.
pub(crate) const fn markable(traffic_class: u8) -> u8 {
    traffic_class & !ECN | ECT_0
}

/// Both roles of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    /// When the last CNP became due.
    noticed_at: Option<Instant>,
    /// A CNP is to be sent.
    pub(crate) notice_due: bool,
    /// The rate, while it is below that of the line. Elsewhere, because hardly any queue pair has
    /// one and it is long.
    rate: Option<Box<Rate>>,
    /// What program and path allow.
    limit: Option<Limit>,
    /// Keeps to the rate and the limit, while there is one.
    pacer: Option<Pacer>,
    /// Nothing is sent before this moment, when [`Congestion::on_timeout`] wants to be called.
    pub(crate) pause: Option<Instant>,
    counts: CongestionCounts,
}

impl Congestion {
    /// A packet of the peer was marked.
    pub(crate) fn on_mark(&mut self, now: Instant) {
        self.counts.np_ecn_marked_roce_packets += 1;
        // clause: CNP-INTERVAL
        if self.noticed_at.is_none_or(|at| now.since(at) >= NOTICE_INTERVAL) {
            self.noticed_at = Some(now);
            self.notice_due = true;
        }
    }

    /// Sends a CNP to the peer `dest_qpn` at the end of `path`; nothing else of the connection is
    /// in it. Returns false if the batch is full.
    #[cold]
    pub(crate) fn notify<T: TxBatch>(&mut self, tx: &mut T, qpn: Qpn, dest_qpn: Qpn, path: &Av) -> bool {
        // clause: CNP-SENT
        let bth = Bth { becn: true, ..Bth::new(dest_qpn, Psn::default()) };
        let header = Header { bth, kind: Kind::Cnp };
        // It may be marked if the others may.
        let av = Av { traffic_class: CNP_DSCP | path.traffic_class & ECN, ..*path };
        let note = PacketNote::answer(qpn, TxReason::Cnp);
        let Some(form) = header.form(0) else { return true };
        let Some(slot) = tx.slot(&av, dest_qpn, form.len(), &note) else { return false };
        // The slot is as long as the header.
        let _ = slot.put_header(&header, &form);
        self.notice_due = false;
        self.counts.np_cnp_sent += 1;
        true
    }

    /// A CNP of the peer. Returns false if it is ignored: without a line rate, rates are not
    /// limited.
    pub(crate) fn on_cnp(&mut self, line: Option<NonZeroU64>, now: Instant) -> bool {
        // clause: DCQCN-OFF
        let Some(line) = line else { return false };
        self.counts.rp_cnp_handled += 1;
        self.catch_up(now);
        match &mut self.rate {
            Some(rate) => rate.on_cnp(now),
            // Back at the line everything starts anew: the next CNP counts as the first.
            rate => *rate = Some(Box::new(Rate::new(line, now))),
        }
        self.set_pace(now);
        true
    }

    /// The program or the path allows this much, the path in Mbit/s; 0 is everything. A new limit
    /// begins anew.
    // clause: RATE-LIMIT
    pub(crate) fn set_limit(&mut self, own: RateLimit, path: u32) {
        let limit = Limit::of(own, path);
        if limit != self.limit {
            (self.limit, self.pacer, self.pause) = (limit, None, None);
            self.set_pace(Instant::default());
        }
    }

    /// Keeps to what is less; with nothing to keep to, packets leave as they come.
    fn set_pace(&mut self, now: Instant) {
        let (rate, limit) = (self.rate.as_deref().map(Rate::current), self.limit);
        let Some(speed) = rate.into_iter().chain(limit.map(|limit| limit.speed)).min() else {
            self.pacer = None;
            return;
        };
        let burst = limit.map_or(BURST, |limit| if rate.is_some() { limit.burst.min(BURST) } else { limit.burst });
        self.pacer.get_or_insert_with(|| Pacer::new(now)).set(speed, burst);
    }

    /// Whether a packet may leave now. If not, `pause` says when to ask again.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        self.is_free() || self.may_send_limited(now)
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

    /// Whether packets may leave as they come.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.pacer.is_none()
    }

    /// A packet with this payload left.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, payload: u32) {
        if let Some(pacer) = &mut self.pacer {
            pacer.on_sent(now, payload);
        }
    }

    /// Whether a pause follows a packet with this payload, so that it should ask for an
    /// acknowledgement.
    #[inline]
    pub(crate) fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.pacer.as_ref().is_some_and(|pacer| pacer.pauses_after(now, payload))
    }

    /// Whether nothing may leave before the timer.
    #[inline]
    pub(crate) fn is_pausing(&self) -> bool {
        self.pause.is_some()
    }

    /// Ends a pause that is over.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.pause.is_some_and(|at| at <= now) {
            self.pause = None;
        }
    }

    /// The queue pair will not send any more.
    pub(crate) fn stop(&mut self) {
        (self.pause, self.notice_due) = (None, false);
    }

    /// Takes what was counted since the last call, if anything was.
    #[inline]
    pub(crate) fn take_counts(&mut self) -> Option<CongestionCounts> {
        if self.counts.is_empty() { None } else { Some(core::mem::take(&mut self.counts)) }
    }

    /// Lets the rate recover; at that of the line there is none to keep.
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

/// What leaves in one go unless the program says otherwise, bytes: half a segmented send. A whole
/// burst is paid for before the next one begins, so that packets go on leaving many per system call
/// and not one per timer.
const BURST: u64 = 32 << 10;
/// No burst is longer than this, bytes: it keeps products within 64 bits.
const MAX_BURST: u64 = 1 << 30;
/// How much later than asked a pause may end without loss: a sleeping thread oversleeps by about as
/// much. What could have left meanwhile, or while there was nothing to send, is added to the next
/// burst.
const LATE: Duration = Duration::from_micros(100);
/// What a packet occupies on an Ethernet besides its payload, about.
const OVERHEAD: u64 = 64;

/// How far what was sent is paid for.
#[derive(Debug)]
struct Pacer {
    /// Bit/s.
    speed: u64,
    /// Bytes that leave in one go.
    burst: u64,
    /// When all that was sent has left at the speed it was sent with.
    free_at: Instant,
}

impl Pacer {
    /// Nothing was sent before `now`.
    const fn new(now: Instant) -> Self {
        Self { speed: 1, burst: BURST, free_at: now }
    }

    /// From now on at most `speed` bit/s, in bursts of `burst` bytes.
    fn set(&mut self, speed: u64, burst: u64) {
        (self.speed, self.burst) = (speed.max(1), burst.min(MAX_BURST));
    }

    /// When the next burst may begin, if the current one is complete.
    fn pause(&self, now: Instant) -> Option<Instant> {
        (self.free_at.since(now) >= self.time_of(self.burst)).then_some(self.free_at)
    }

    /// Whether the burst would be complete with a packet of this payload.
    fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.free_after(now, payload).since(now) >= self.time_of(self.burst)
    }

    /// A packet with this payload left.
    fn on_sent(&mut self, now: Instant, payload: u32) {
        self.free_at = self.free_after(now, payload);
    }

    /// When a packet with this payload, sent now, would have left.
    fn free_after(&self, now: Instant, payload: u32) -> Instant {
        self.free_at.max(now.before(LATE)).after(self.time_of(u64::from(payload) + OVERHEAD))
    }

    /// How long `bytes` take.
    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes * 8_000_000_000).div_ceil(self.speed))
    }
}

/// One, in the unit of alpha.
const ONE: u32 = 1 << 16;
/// Weight of the newest period in alpha: g = 1/256, as in published configurations (hardware: about
/// 1/205).
const GAIN: u32 = 256;
/// How often alpha is updated.
const ALPHA_PERIOD: Duration = Duration::from_micros(55);
/// How often the rate may be cut.
const CUT_PERIOD: Duration = Duration::from_micros(4);
/// How often the rate is raised, counted from the last cut.
const RAISE_PERIOD: Duration = Duration::from_micros(1500);
/// Raises of fast recovery; the one after them is additive, those after that are hyper.
const FAST_STAGES: u32 = 5;
/// What the additive and each hyper raise add to the target, bit/s.
const ADDITIVE: u64 = 5_000_000;
const HYPER: u64 = 50_000_000;
/// Never slower than this, bit/s: a flood of notifications must not starve anybody.
// clause: DCQCN-LEAST
const MIN_RATE: u64 = 100_000_000;
/// No line is faster than this, bit/s: it keeps products within 64 bits.
const MAX_LINE: u64 = 1 << 46;
/// A rate below that of the line.
#[derive(Debug)]
struct Rate {
    /// What the line carries.
    line: u64,
    /// What may be sent now.
    current: u64,
    /// Where recovery leads.
    target: u64,
    /// The estimate of how congested the network is, in 1/[`ONE`].
    alpha: u32,
    /// Raises since the last cut.
    stage: u32,
    /// A notification came since the last update of alpha.
    noticed: bool,
    /// When alpha is updated next.
    alpha_at: Instant,
    /// Where the ticks of the decrease timer are counted from.
    cuts_from: Instant,
    /// The tick of the decrease timer that will cut, if a notification came since the last one.
    cut_at: Option<Instant>,
    /// When the rate is raised next; not before it was cut.
    raise_at: Option<Instant>,
}

impl Rate {
    /// The first notification came: alpha is 1, the timers start, and the rate is still that of the
    /// line.
    // clause: DCQCN-FIRST
    fn new(line: NonZeroU64, now: Instant) -> Self {
        let line = line.get().min(MAX_LINE);
        Self {
            line,
            current: line,
            target: line,
            alpha: ONE,
            stage: 0,
            noticed: false,
            alpha_at: now.after(ALPHA_PERIOD),
            cuts_from: now,
            cut_at: Some(now.after(CUT_PERIOD)),
            raise_at: None,
        }
    }

    /// One more notification.
    fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        self.age_alpha(now);
        self.noticed = true;
        if self.cut_at.is_none() {
            self.cut_at = Some(next_tick(self.cuts_from, CUT_PERIOD, now));
        }
    }

    /// Lets pass what has passed: cuts and raises in the order of their times, a cut first.
    fn advance(&mut self, now: Instant) {
        loop {
            match (self.cut_at, self.raise_at) {
                (Some(cut), raise) if cut <= now && raise.is_none_or(|raise| cut <= raise) => self.cut(cut),
                (_, Some(raise)) if raise <= now => self.raise(raise),
                _ => return,
            }
        }
    }

    /// What may be sent now, bit/s.
    fn current(&self) -> u64 {
        self.current
    }

    /// Whether there is nothing to limit any more.
    fn is_at_line(&self) -> bool {
        self.current == self.line && self.cut_at.is_none()
    }

    /// Towards half the rate, as far as alpha goes. The target follows only if there was a raise
    /// since the last cut ("clamp target" is off).
    // clause: DCQCN-CUT
    fn cut(&mut self, at: Instant) {
        self.age_alpha(at);
        if self.stage > 0 {
            self.target = self.current;
        }
        let less = self.current * u64::from(self.alpha) / u64::from(2 * ONE);
        self.current = (self.current - less).max(MIN_RATE.min(self.line));
        self.stage = 0;
        self.cut_at = None;
        self.raise_at = Some(at.after(RAISE_PERIOD));
    }

    /// Half of the way to the target, which itself moves on after fast recovery. The last bit of
    /// the way to the line, which halving would never reach, is given at once.
    // clause: DCQCN-RAISE
    fn raise(&mut self, at: Instant) {
        let more = match self.stage {
            FAST_STAGES => ADDITIVE,
            stage if stage > FAST_STAGES => HYPER,
            _ => 0,
        };
        self.target = (self.target + more).min(self.line);
        self.current = u64::midpoint(self.current, self.target);
        self.stage = self.stage.saturating_add(1);
        self.raise_at = Some(at.after(RAISE_PERIOD));
        if self.line - self.current < ADDITIVE {
            (self.current, self.raise_at) = (self.line, None);
        }
    }

    /// Lets alpha follow for every period that ended by `at`. Rounded so that alpha does come to
    /// zero; from there to the end in one step.
    // clause: DCQCN-ALPHA
    fn age_alpha(&mut self, at: Instant) {
        while self.alpha_at <= at {
            if self.alpha == 0 && !self.noticed {
                self.alpha_at = next_tick(self.alpha_at, ALPHA_PERIOD, at);
                return;
            }
            self.alpha -= self.alpha.div_ceil(GAIN);
            if core::mem::take(&mut self.noticed) {
                self.alpha += ONE / GAIN;
            }
            self.alpha_at = self.alpha_at.after(ALPHA_PERIOD);
        }
    }
}

/// The first moment after `now` that lies whole periods behind `origin`.
fn next_tick(origin: Instant, period: Duration, now: Instant) -> Instant {
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    let passed = now.0.saturating_sub(origin.0) / period;
    Instant(origin.0.saturating_add((passed + 1).saturating_mul(period)))
}

#[cfg(test)]
mod tests;
