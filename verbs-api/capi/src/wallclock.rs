//! Conversion of completion timestamps to time of day.
//!
//! Completions carry the time of the device's clock. Each queue measures the offset to the time of
//! day once a second. Measurements vary a little: with one per completion, the time of day of
//! successive completions would go back and forth.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds for which a measured offset is used. Linux slews a clock by at most 500 ppm, so the
/// error is at most half a millisecond.
const OFFSET_LIFETIME: u64 = 1_000_000_000;
/// Nanoseconds by which variation of the offset can set the time of day back. If it goes back
/// further, the clock was set.
const MAX_STEP_BACK: u64 = 1_000_000_000;
/// Largest number of measurements. A measurement is inaccurate if the thread loses the processor
/// between two clock reads.
const ATTEMPTS: u32 = 8;
/// Nanoseconds between the two reads of the device's clock in an accurate measurement.
const CLOSE_READS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct WallClock {
    /// Time of day minus device time, in nanoseconds.
    offset: u64,
    /// Device time of the next measurement, in nanoseconds.
    stale_at: u64,
    /// Last returned time of day, in nanoseconds.
    last: u64,
}

impl WallClock {
    /// Converts `timestamp` of the device's clock to nanoseconds since 1970. If timestamps do not
    /// go backwards, the result does not either, unless the time of day was set back.
    pub(crate) fn at(&mut self, timestamp: u64, measure: impl FnOnce() -> u64) -> u64 {
        if timestamp >= self.stale_at {
            (self.offset, self.stale_at) = (measure(), timestamp.saturating_add(OFFSET_LIFETIME));
        }
        let time = timestamp.wrapping_add(self.offset);
        self.last = if self.last.saturating_sub(time) < MAX_STEP_BACK { time.max(self.last) } else { time };
        self.last
    }
}

/// Returns time of day minus device time, in nanoseconds.
pub(crate) fn measure_offset() -> u64 {
    best_measurement().1
}

/// Returns the most accurate of several measurements: nanoseconds between the two reads of the
/// device's clock, and time of day minus device time.
fn best_measurement() -> (u64, u64) {
    let measure = || {
        let before = roxe_provider::now().0;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let gap = roxe_provider::now().0.saturating_sub(before);
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        (gap, wall.wrapping_sub(before + gap / 2))
    };
    let mut best = measure();
    for _ in 1..ATTEMPTS {
        if best.0 <= CLOSE_READS {
            break;
        }
        best = best.min(measure());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn offset_is_kept_for_one_second() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(10, || 1000), 1010);
        assert_eq!(clock.at(SECOND + 9, || panic!("measured already")), SECOND + 1009);
        assert_eq!(clock.at(SECOND + 10, || 1005), SECOND + 1015);
    }

    #[test]
    fn time_goes_back_only_if_the_clock_was_set() {
        let mut clock = WallClock::default();
        let day = 86_400 * SECOND;
        assert_eq!(clock.at(1, || day), day + 1);
        assert_eq!(clock.at(SECOND, || panic!("measured already")), day + SECOND);
        assert_eq!(clock.at(SECOND + 1, || day - 500), day + SECOND, "half a microsecond early");
        assert_eq!(clock.at(SECOND + 600, || panic!("measured already")), day + SECOND + 100);
        assert_eq!(clock.at(9 * SECOND, || day - 3600 * SECOND), day - 3591 * SECOND);
    }

    #[test]
    fn measured_offset_matches_both_clocks() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let now = roxe_provider::now().0;
        let (gap, offset) = best_measurement();
        let wall = now.wrapping_add(offset);
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!((before - gap..=after + gap).contains(&wall), "{before} {wall} {after}");
    }
}
