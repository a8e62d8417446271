//! Threads of the program that wait for events, and what they met while they looked around first.
//!
//! Touches nothing.

use crate::poll_policy::spin::SpinGovernor;
use crate::poll_policy::{self, gave_up_too_soon, is_expected_back};
use roxe_transport::time::Instant;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

/// The threads of the program that wait for events, and what they met. Advice, but for who looks
/// around.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many wait, asleep or not.
    pub(crate) waiting: AtomicU32,
    /// Those of them that receive at this moment.
    pub(crate) looking: AtomicU32,
    /// When the last one of these found what it waited for, nanoseconds; 0 if one gave up after
    /// that.
    pub(crate) last_catch: AtomicU64,
    /// Whether the next ones shall be patient.
    pub(crate) are_patient: AtomicBool,
    pub(crate) governor: SpinGovernor,
}

impl Waiters {
    /// Whether a thread waits.
    pub(crate) fn exist(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Whether one of them receives, or did a moment ago and will again.
    pub(crate) fn receive(&self, now: Instant) -> bool {
        self.looking.load(SeqCst) > 0 || is_expected_back(now.since(Instant(self.last_catch.load(SeqCst))))
    }

    /// In the child of a fork, where no thread waits.
    pub(crate) fn abandon(&self) {
        self.waiting.store(0, Relaxed);
        self.looking.store(0, Relaxed);
    }

    /// One of them gave up, slept, and was woken so long after it had begun to wait.
    pub(crate) fn note_sleep(&self, waited: Duration, usual: Duration) {
        self.are_patient.store(gave_up_too_soon(waited, usual), Relaxed);
    }

    /// How long to look around.
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
    fn who_receives_while_it_waits_does_so_until_it_gives_up_or_does_something_else() {
        let (waiters, now) = (Waiters::default(), Instant(1_000_000_000));
        assert!(!waiters.receive(now) && !waiters.exist());
        let waiting = Counted::new(&waiters.waiting);
        assert!(!waiters.receive(now) && waiters.exist(), "it sleeps");
        let looking = Counted::new(&waiters.looking);
        assert!(waiters.receive(now));
        drop((looking, waiting));
        assert!(!waiters.receive(now) && !waiters.exist());
        waiters.last_catch.store(now.0, SeqCst);
        assert!(waiters.receive(now.after(BETWEEN_WAITS / 2)));
        assert!(!waiters.receive(now.after(BETWEEN_WAITS)));
    }

    #[test]
    fn who_gave_up_too_soon_is_patient_the_next_time() {
        let (waiters, usual) = (Waiters::default(), Duration::from_micros(50));
        assert_eq!(waiters.patience(usual), usual);
        waiters.note_sleep(2 * usual, usual);
        assert_eq!(waiters.patience(usual), LONG * usual);
        waiters.note_sleep(LONG * usual, usual);
        assert_eq!(waiters.patience(usual), usual, "not even that would have been enough");
    }
}
