//! The reaction point of DCQCN: how fast one queue pair may send after its peer told of congestion.
//!
//! Of the published forms this is the one modelled after network cards (in the simulator ns-3): a notification only
//! raises flags; a decrease timer cuts the rate, an increase timer brings it back in three stages (fast recovery,
//! additive, hyper). All in integers: rates in bit/s, alpha in 2^-16, times in nanoseconds.
//!
//! No timer runs for any of this. Nothing happens between two moments at which somebody asks, so [`Rate::advance`] goes
//! through the ticks that have passed since the last one; a queue pair that is idle costs nothing. Touches `time` only.

use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;

/// One, in the unit of alpha.
const ONE: u32 = 1 << 16;
/// Weight of the newest period in alpha: g = 1/256, as in published configurations (hardware: about 1/205).
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
    /// The first notification came: alpha is 1, the timers start, and the rate is still that of the line.
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

    /// Towards half the rate, as far as alpha goes. The target follows only if there was a raise since the last cut
    /// ("clamp target" is off).
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

    /// Half of the way to the target, which itself moves on after fast recovery. The last bit of the way to the line, which
    /// halving would never reach, is given at once.
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

    /// Lets alpha follow for every period that ended by `at`. Rounded so that alpha does come to zero; from there to the
    /// end in one step.
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
mod tests {
    use super::*;

    const GIGA: u64 = 1_000_000_000;

    /// A rate below a line of 10 Gbit/s, its first notification at 0.
    fn rate() -> Rate {
        Rate::new(NonZeroU64::new(10 * GIGA).expect("not zero"), Instant(0))
    }

    const fn us(us: u64) -> Instant {
        Instant(us * 1000)
    }

    /// The rate at `at`, in kbit/s.
    fn kbits(rate: &mut Rate, at: Instant) -> u64 {
        rate.advance(at);
        rate.current / 1000
    }

    /// One notification: alpha is 1, so 4 us later the rate is halved while the target stays at the line. Then, every
    /// 1.5 ms, half of what is missing comes back.
    // clause: DCQCN-FIRST, DCQCN-CUT
    #[test]
    fn the_first_cut_halves_and_fast_recovery_halves_the_gap() {
        let mut rate = rate();
        assert_eq!(kbits(&mut rate, Instant(3_999)), 10_000_000);
        assert_eq!(kbits(&mut rate, us(4)), 5_000_000);
        assert_eq!(kbits(&mut rate, Instant(1_503_999)), 5_000_000);
        let gaps = [(1504, 7_500_000), (3004, 8_750_000), (4504, 9_375_000), (6004, 9_687_500), (7504, 9_843_750)];
        for (at, expected) in gaps {
            assert_eq!(kbits(&mut rate, us(at)), expected, "{at} us");
        }
    }

    /// The gap after n raises is 5 Gbit/s / 2^n; the tenth makes it 4.9 Mbit/s, which is less than one additive step.
    // clause: DCQCN-RAISE
    #[test]
    fn after_ten_raises_the_line_is_free_again() {
        let mut rate = rate();
        rate.advance(us(4 + 9 * 1500));
        assert!(!rate.is_at_line());
        rate.advance(us(4 + 10 * 1500));
        assert!(rate.is_at_line());
        assert_eq!((rate.current, rate.raise_at), (10 * GIGA, None));
    }

    /// Target 2 Gbit/s, rate 1: five raises give 1.5, 1.75, 1.875, 1.9375 and 1.96875 Gbit/s. The sixth adds 5 Mbit/s to
    /// the target: (1968.75 + 2005) / 2 = 1986.875. Then 50 each time: (1986.875 + 2055) / 2 = 2020.9375 and
    /// (2020.9375 + 2105) / 2 = 2062.96875.
    // clause: DCQCN-RAISE
    #[test]
    fn recovery_goes_through_its_three_stages() {
        let mut rate = rate();
        (rate.current, rate.target, rate.cut_at, rate.raise_at) = (GIGA, 2 * GIGA, None, Some(us(1500)));
        let kbits_after = [1_500_000, 1_750_000, 1_875_000, 1_937_500, 1_968_750, 1_986_875, 2_020_937, 2_062_968];
        for (n, expected) in (1..).zip(kbits_after) {
            assert_eq!(kbits(&mut rate, us(n * 1500)), expected, "raise {n}");
        }
        assert_eq!(rate.target, 2 * GIGA + 105_000_000);
    }

    /// A cut before any raise leaves the target at the line; one after a raise makes the rate the target.
    // clause: DCQCN-CUT
    #[test]
    fn the_target_follows_only_after_a_raise() {
        let mut rate = rate();
        rate.on_cnp(us(1));
        rate.advance(us(4));
        rate.on_cnp(us(5));
        rate.advance(us(8));
        assert_eq!((rate.current, rate.target), (5 * GIGA / 2, 10 * GIGA));
        // Raised at 1508 us to (2.5 + 10) / 2 = 6.25 Gbit/s.
        rate.on_cnp(us(1509));
        rate.advance(us(1512));
        assert_eq!(rate.target, 25 * GIGA / 4);
        assert!(rate.current < rate.target);
    }

    /// However many notifications come, there is one cut in 4 us, alpha stays 1, and the rate ends at its least: 10,000
    /// Mbit/s halved seven times is 78, less than 100.
    // clause: DCQCN-CUT, DCQCN-LEAST
    #[test]
    fn a_flood_cuts_once_per_period_and_stops_at_the_least_rate() {
        let mut rate = rate();
        for ns in (0..24_000).step_by(100) {
            rate.on_cnp(Instant(ns));
        }
        assert_eq!(kbits(&mut rate, Instant(24_000)), 156_250);
        for ns in (24_000..1_000_000).step_by(100) {
            rate.on_cnp(Instant(ns));
        }
        assert_eq!(kbits(&mut rate, us(1000)), 100_000);
        assert_eq!(rate.alpha, ONE);
    }

    /// alpha loses 1/256 of itself in 55 us. After one period 65536 - 256 = 65280; after the next 65280 - 255 = 65025.
    /// With a notification in the third: 65025 - 255 (254.0 rounded up) + 256 = 65026.
    // clause: DCQCN-ALPHA
    #[test]
    fn alpha_follows_the_notifications() {
        let mut rate = rate();
        let mut alpha = |at| {
            rate.age_alpha(at);
            rate.alpha
        };
        assert_eq!([alpha(Instant(54_999)), alpha(us(55)), alpha(us(110))], [65_536, 65_280, 65_025]);
        rate.on_cnp(us(120));
        rate.age_alpha(us(165));
        assert_eq!(rate.alpha, 65_026);
        // Quiet for a minute: zero, and in step with the 55 us.
        rate.age_alpha(us(60_000_000));
        assert_eq!((rate.alpha, rate.alpha_at), (0, us(60_000_050)));
    }

    /// It makes no difference how often anybody looks.
    #[test]
    fn looking_once_gives_the_same_as_looking_always() {
        let (mut often, mut once) = (rate(), rate());
        for round in 0..5 {
            let start = round * 4_000;
            [10, 90, 170].iter().for_each(|at| {
                often.on_cnp(us(start + at));
                once.on_cnp(us(start + at));
            });
            (start + 170..start + 4_000).for_each(|at| often.advance(us(at)));
        }
        often.advance(us(20_000));
        once.advance(us(20_000));
        assert_eq!((often.current, often.target, often.stage), (once.current, once.target, once.stage));
        assert!(often.current < 10 * GIGA);
    }

    #[test]
    fn a_line_slower_than_the_least_rate_is_never_cut() {
        let mut rate = Rate::new(NonZeroU64::MIN, Instant(0));
        rate.advance(us(4));
        assert_eq!(rate.current, 1);
        let mut fastest = Rate::new(NonZeroU64::MAX, Instant(0));
        fastest.advance(us(1504));
        assert_eq!(fastest.current, MAX_LINE / 4 * 3);
    }
}
