//! Congestion: what follows when a switch marks packets instead of dropping them.
//!
//! Of the three roles two live here. The *notification point* is the end that receives a marked packet (ECN = CE): it
//! sends congestion notification packets (CNP) to the peer, not more often than every [`NOTICE_INTERVAL`]. It always
//! does, because a peer whose packets can be marked has asked for that. The *reaction point* is the end that receives a
//! CNP: it slows down ([`rate`]) if the queue pair was made with a line rate; only then do its packets say that they can
//! be marked (ECT), so that switches drop instead of marking for nothing.
//!
//! RC and UC do both. UD does neither: its packets come from anybody, so that answers to marks could be aimed at third
//! parties, and it sends to anybody, so that there is no one rate. Touches `time` only.

mod rate;

use crate::qp::DropReason;
use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;
use rate::Rate;
use roxe_wire::ECN;

/// The least time between two CNPs to one peer (the value of the DCQCN paper and its public models).
const NOTICE_INTERVAL: Duration = Duration::from_micros(50);
/// What a sender writes into the ECN bits: packets may be marked (RFC 3168 §5).
const ECT_0: u8 = 0b10;
/// DSCP 48, where switches expect CNPs.
// clause: CNP-SENT
const CNP_DSCP: u8 = 48 << 2;

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
    notice_due: bool,
    /// The rate, while it is below that of the line.
    rate: Option<Rate>,
    /// Nothing is sent before this moment.
    pause: Option<Instant>,
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

    /// Whether a CNP is to be sent.
    pub(crate) fn is_notice_due(&self) -> bool {
        self.notice_due
    }

    /// It was.
    pub(crate) fn on_notice_sent(&mut self) {
        self.notice_due = false;
        self.counts.np_cnp_sent += 1;
    }

    /// A CNP of the peer.
    ///
    /// # Errors
    /// It is ignored: without a line rate, rates are not limited.
    pub(crate) fn on_cnp(&mut self, line: Option<NonZeroU64>, now: Instant) -> Result<(), DropReason> {
        // clause: DCQCN-OFF
        let line = line.ok_or(DropReason::CongestionNotice)?;
        self.counts.rp_cnp_handled += 1;
        self.catch_up(now);
        match &mut self.rate {
            Some(rate) => rate.on_cnp(now),
            // Back at the line everything starts anew: the next CNP counts as the first.
            rate => *rate = Some(Rate::new(line, now)),
        }
        Ok(())
    }

    /// Whether a packet may leave now. If not, [`Congestion::deadline`] says when to ask again.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        self.rate.is_none() || self.may_send_limited(now)
    }

    #[cold]
    fn may_send_limited(&mut self, now: Instant) -> bool {
        if self.is_pausing() {
            return false;
        }
        self.catch_up(now);
        self.pause = self.rate.as_ref().and_then(|rate| rate.pause(now));
        self.pause.is_none()
    }

    /// A packet with this payload left.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, payload: u32) {
        if let Some(rate) = &mut self.rate {
            rate.on_sent(now, payload);
        }
    }

    /// Whether a pause follows a packet with this payload, so that it should ask for an acknowledgement.
    #[inline]
    pub(crate) fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.rate.as_ref().is_some_and(|rate| rate.pauses_after(now, payload))
    }

    /// Whether nothing may leave before the timer.
    #[inline]
    pub(crate) fn is_pausing(&self) -> bool {
        self.pause.is_some()
    }

    /// When [`Congestion::on_timeout`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pause
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
        if self.counts == CongestionCounts::default() { None } else { Some(core::mem::take(&mut self.counts)) }
    }

    /// Lets the rate recover; at that of the line there is none to keep.
    fn catch_up(&mut self, now: Instant) {
        if let Some(rate) = &mut self.rate {
            rate.advance(now);
            if rate.is_at_line() {
                self.rate = None;
            }
        }
    }
}
