//! When a thread that polls in vain offers its processor to others: the peer that it waits for may
//! need this very one.

use std::time::Duration;

/// Visits in a row that find nothing before a poller starts to yield.
const IDLE_VISITS: u32 = 24;
/// And so long it waits at least: where packets come by rings, visits are short.
const IDLE_TIME: Duration = Duration::from_micros(10);

/// Whether so many visits in vain before this one are still too few for [`yields`] to be asked.
#[inline]
pub(crate) fn is_young(visits: u32) -> bool {
    visits < IDLE_VISITS
}

/// Who has found nothing for long yields every second stretch of so many milliseconds only. The
/// caller may hold a spin lock that another thread on this processor waits for, as UCX does: while
/// each poll yields, that one only ever runs when the lock is taken, and never gets it. In the
/// other stretches the scheduler takes the processor at any time, also between two polls.
const STRETCH_MS: u128 = 8;

/// Whether a poller yields that has found nothing for so long, and is not young any more.
#[inline]
pub(crate) fn yields(idle: Duration) -> bool {
    idle >= IDLE_TIME && (idle.as_millis() / STRETCH_MS).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_yields_after_many_visits_in_vain_that_took_a_while_together() {
        let yields = |visits, idle| !is_young(visits) && yields(Duration::from_nanos(idle));
        assert_eq!(
            [(23, 20_000), (24, 9_999), (24, 10_000)].map(|(visits, idle)| yields(visits, idle)),
            [false, false, true]
        );
    }

    #[test]
    fn a_poller_that_finds_nothing_for_long_does_not_yield_all_the_time() {
        assert_eq!(
            [1, 7, 8, 15, 16, 24].map(|ms| yields(Duration::from_millis(ms))),
            [true, true, false, false, true, false]
        );
    }
}
