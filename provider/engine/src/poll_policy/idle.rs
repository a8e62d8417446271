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

/// Whether a poller yields that has found nothing for so long, and is not young any more.
#[inline]
pub(crate) fn yields(idle: Duration) -> bool {
    idle >= IDLE_TIME
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
}
