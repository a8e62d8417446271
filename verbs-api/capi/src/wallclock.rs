//! Completion timestamps as time of day.
//!
//! Entries carry the time of the device's clock. What makes time of day of it is one number, which
//! a queue keeps for a second: measured for each entry it was a little different every time, and
//! entries of one moment went back by 140 ns.
//!
//! Reads the two clocks and touches nothing else.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds for which the clocks are believed to run alike. At 500 ppm, the most that Linux
/// corrects a clock by, they differ by half a millisecond then.
const GOOD_FOR: u64 = 1_000_000_000;
/// Who finds the time of day to have gone back by more nanoseconds than this takes it for a clock
/// that was set.
const SET: u64 = 1_000_000_000;
/// How often the clocks are compared at most, because a thread may lose the processor between one
/// and the other.
const TRIES: u32 = 8;
/// Nanoseconds between two looks at the device's clock that are close enough.
const CLOSE: u64 = 1_000;

/// The conversion of one queue.
#[derive(Debug, Default)]
pub(crate) struct WallClock {
    /// Time of day less time of the device, nanoseconds.
    offset: u64,
    /// From this time of the device on, it is measured again.
    stale_at: u64,
    /// What was said last.
    last: u64,
}

impl WallClock {
    /// Nanoseconds since 1970 at `timestamp` of the device's clock, which does not go back from one
    /// call to the next. Nor does the answer, unless somebody has set the time of day back.
    pub(crate) fn at(&mut self, timestamp: u64, measure: impl FnOnce() -> u64) -> u64 {
        if timestamp >= self.stale_at {
            (self.offset, self.stale_at) = (measure(), timestamp.saturating_add(GOOD_FOR));
        }
        let time = timestamp.wrapping_add(self.offset);
        self.last = if self.last.saturating_sub(time) < SET { time.max(self.last) } else { time };
        self.last
    }
}

/// Time of day less time of the device.
pub(crate) fn measure() -> u64 {
    compare().1
}

/// The two looks at the device's clock that were closest together: how far they were apart, and
/// time of day less time of the device in the middle between them.
fn compare() -> (u64, u64) {
    let look = || {
        let before = roxe_provider::now().0;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let apart = roxe_provider::now().0.saturating_sub(before);
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        (apart, wall.wrapping_sub(before + apart / 2))
    };
    let mut best = look();
    for _ in 1..TRIES {
        if best.0 <= CLOSE {
            break;
        }
        best = best.min(look());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn entries_of_one_second_are_converted_alike() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(10, || 1000), 1010);
        assert_eq!(clock.at(SECOND + 9, || panic!("measured already")), SECOND + 1009);
        assert_eq!(clock.at(SECOND + 10, || 1005), SECOND + 1015);
    }

    #[test]
    fn a_small_correction_does_not_turn_time_back_and_a_clock_that_was_set_does() {
        let mut clock = WallClock::default();
        let day = 86_400 * SECOND;
        assert_eq!(clock.at(1, || day), day + 1);
        assert_eq!(clock.at(SECOND, || panic!("measured already")), day + SECOND);
        assert_eq!(clock.at(SECOND + 1, || day - 500), day + SECOND, "half a microsecond early");
        assert_eq!(clock.at(SECOND + 600, || panic!("measured already")), day + SECOND + 100);
        assert_eq!(clock.at(9 * SECOND, || day - 3600 * SECOND), day - 3591 * SECOND);
    }

    #[test]
    fn both_clocks_are_read_close_together() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let now = roxe_provider::now().0;
        let (apart, offset) = compare();
        let wall = now.wrapping_add(offset);
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!((before - apart..=after + apart).contains(&wall), "{before} {wall} {after}");
    }
}
