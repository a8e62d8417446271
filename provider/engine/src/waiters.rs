//! Threads of the program that wait for events, and how their spinning went.

use crate::poll_policy::spin::SpinGovernor;
use crate::poll_policy::{self, gave_up_too_soon, is_expected_back};
use roxe_transport::time::Instant;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

/// Threads that wait for events. Advisory, except for `looking`.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) waiting: AtomicU32,
    pub(crate) looking: AtomicU32,
    /// When the last of these found its event, in nanoseconds; 0 if one has given up since.
    pub(crate) last_catch: AtomicU64,
    /// True if the next waits spin longer.
    pub(crate) are_patient: AtomicBool,
    pub(crate) governor: SpinGovernor,
}

impl Waiters {
    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Returns true if a waiter receives, or did a moment ago and is expected to again.
    pub(crate) fn receive(&self, now: Instant) -> bool {
        self.looking.load(SeqCst) > 0 || is_expected_back(now.since(Instant(self.last_catch.load(SeqCst))))
    }

    pub(crate) fn abandon(&self) {
        self.waiting.store(0, Relaxed);
        self.looking.store(0, Relaxed);
    }

    /// Notes that a thread gave up, slept, and was woken `waited` after it began to wait.
    pub(crate) fn note_sleep(&self, waited: Duration, usual: Duration) {
        self.are_patient.store(gave_up_too_soon(waited, usual), Relaxed);
    }

    pub(crate) fn patience(&self, usual: Duration) -> Duration {
        poll_policy::patience(usual, self.are_patient.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll_policy::{BETWEEN_WAITS, LONG};
    use roxe_base::uses::Counted;

    #[test]
    fn receiving_waiter_counts_until_it_gives_up() {
        let (waiters, now) = (Waiters::default(), Instant(1_000_000_000));
        assert!(!waiters.receive(now) && !waiters.any_waiting());
        let waiting = Counted::new(&waiters.waiting);
        assert!(!waiters.receive(now) && waiters.any_waiting(), "it sleeps");
        let looking = Counted::new(&waiters.looking);
        assert!(waiters.receive(now));
        drop((looking, waiting));
        assert!(!waiters.receive(now) && !waiters.any_waiting());
        waiters.last_catch.store(now.0, SeqCst);
        assert!(waiters.receive(now.after(BETWEEN_WAITS / 2)));
        assert!(!waiters.receive(now.after(BETWEEN_WAITS)));
    }

    #[test]
    fn early_give_up_makes_next_wait_longer() {
        let (waiters, usual) = (Waiters::default(), Duration::from_micros(50));
        assert_eq!(waiters.patience(usual), usual);
        waiters.note_sleep(2 * usual, usual);
        assert_eq!(waiters.patience(usual), LONG * usual);
        waiters.note_sleep(LONG * usual, usual);
        assert_eq!(waiters.patience(usual), usual, "not even that would have been enough");
    }
}
