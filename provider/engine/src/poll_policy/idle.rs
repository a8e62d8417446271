//! Decides when a thread with empty polls yields its CPU, which the peer may need.

use std::time::Duration;

/// Number of consecutive empty polls before a poller starts to yield.
const IDLE_VISITS: u32 = 24;
/// Minimum duration of empty polls before a poller yields, since polls of rings are short.
const IDLE_TIME: Duration = Duration::from_micros(10);

/// Returns true if a poller had too few consecutive empty polls to yield.
#[inline]
pub(crate) fn is_below_idle_limit(visits: u32) -> bool {
    visits < IDLE_VISITS
}

/// A poller yields in every second stretch of this length only. Its caller may hold a spin lock
/// that another thread on this CPU waits for: if every poll yielded, that thread would run only
/// while the lock is taken. In the other stretches the scheduler preempts at any point.
const STRETCH_MS: u128 = 8;

/// Returns true if a poller above the limit of empty polls yields; `idle` is their duration.
#[inline]
pub(crate) fn yields(idle: Duration) -> bool {
    idle >= IDLE_TIME && (idle.as_millis() / STRETCH_MS).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_yields_after_many_empty_polls() {
        let yields = |visits, idle| !is_below_idle_limit(visits) && yields(Duration::from_nanos(idle));
        assert_eq!(
            [(23, 20_000), (24, 9_999), (24, 10_000)].map(|(visits, idle)| yields(visits, idle)),
            [false, false, true]
        );
    }

    #[test]
    fn long_idle_poller_yields_half_of_the_time() {
        assert_eq!(
            [1, 7, 8, 15, 16, 24].map(|ms| yields(Duration::from_millis(ms))),
            [true, true, false, false, true, false]
        );
    }
}
