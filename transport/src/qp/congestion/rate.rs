//! The reaction point of DCQCN: how fast one queue pair may send after its peer told of congestion.
//!
//! Of the published forms this is the one modelled after network cards (in the simulator ns-3): a
//! notification only raises flags; a decrease timer cuts the rate, an increase timer brings it back
//! in three stages (fast recovery, additive, hyper). All in integers: rates in bit/s, alpha in
//! 2^-16, times in nanoseconds.
//!
//! No timer runs for any of this. Nothing happens between two moments at which somebody asks, so
//! [`Rate::advance`] goes through the ticks that have passed since the last one; a queue pair that
//! is idle costs nothing. Touches `time` only.

use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;

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
pub(super) struct Rate {
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
    pub(super) fn new(line: NonZeroU64, now: Instant) -> Self {
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
    pub(super) fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        self.age_alpha(now);
        self.noticed = true;
        if self.cut_at.is_none() {
            self.cut_at = Some(next_tick(self.cuts_from, CUT_PERIOD, now));
        }
    }

    /// Lets pass what has passed: cuts and raises in the order of their times, a cut first.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            match (self.cut_at, self.raise_at) {
                (Some(cut), raise) if cut <= now && raise.is_none_or(|raise| cut <= raise) => self.cut(cut),
                (_, Some(raise)) if raise <= now => self.raise(raise),
                _ => return,
            }
        }
    }

    /// What may be sent now, bit/s.
    pub(super) fn current(&self) -> u64 {
        self.current
    }

    /// Whether there is nothing to limit any more.
    pub(super) fn is_at_line(&self) -> bool {
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
