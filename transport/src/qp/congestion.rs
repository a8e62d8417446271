//! Congestion: what follows when a switch marks packets instead of dropping them.
//!
//! Of the three roles two live here. The *notification point* is the end that receives a marked
//! packet (ECN = CE): it sends congestion notification packets (CNP) to the peer, not more often
//! than every [`NOTICE_INTERVAL`]. It always does, because a peer whose packets can be marked has
//! asked for that. The *reaction point* is the end that receives a CNP: it slows down ([`rate`]) if
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

mod pacer;
mod rate;

use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;
use pacer::{BURST, Pacer};
use rate::Rate;
use roxe_wire::ECN;

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

/// The traffic class of a CNP on a path with this one: it may be marked if the others may.
pub(crate) const fn cnp_class(traffic_class: u8) -> u8 {
    CNP_DSCP | traffic_class & ECN
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

    /// The peer was told of the congestion.
    pub(crate) fn on_notice_sent(&mut self) {
        self.notice_due = false;
        self.counts.np_cnp_sent += 1;
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
