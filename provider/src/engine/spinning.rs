//! Looking again and again before a sleep: what is about to come must not pay for waking a thread.
//!
//! Who finds nothing gives the processor to whoever wants it. If somebody does, sleeping is better, the next times as well: who
//! wakes up goes first, who only waits for his turn does not, and who yields has less of it later. Touches the scheduler.

use roxe_transport::time::Instant;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A look, with what it found, that takes longer than this was interrupted by somebody else's turn.
const CROWDED: Duration = Duration::from_micros(500);
/// After that the thread goes to sleep without looking around for so many rounds, and for twice as many each time it
/// happens again.
const CROWDED_ROUNDS: u32 = 16;
const MAX_CROWDED_ROUNDS: u32 = 4096;

/// What a look was good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// For nothing.
    Vain,
    /// Something had come.
    Found,
    /// There is no need to look any more.
    Enough,
}

/// Whether looking around is of use, or in the way of others. Advice.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Rounds that still end without spinning, and how many there will be the next time.
    hasty_rounds: AtomicU32,
    penalty: AtomicU32,
}

impl Crowd {
    /// Whether to keep looking for a while.
    pub(super) fn may_spin(&self) -> bool {
        let rounds = self.hasty_rounds.load(Relaxed);
        self.hasty_rounds.store(rounds.saturating_sub(1), Relaxed);
        rounds == 0
    }

    /// Looks until it is enough, or nothing has come for as long as `patience`, or somebody else wants the processor. Whether
    /// it was enough.
    pub(super) fn keep_looking(
        &self,
        patience: Duration,
        clock: impl Fn() -> Instant,
        mut look: impl FnMut() -> Look,
    ) -> bool {
        let mut last_look = clock();
        let mut last_found = last_look;
        loop {
            let what = look();
            if what == Look::Vain {
                // Who shares this processor may be the one that answers.
                std::thread::yield_now();
            }
            let now = clock();
            match what {
                Look::Enough => return true,
                _ if now.since(last_look) >= CROWDED => {
                    self.note_crowd();
                    return false;
                }
                Look::Found => last_found = now,
                Look::Vain if now.since(last_found) >= patience => return false,
                Look::Vain => {}
            }
            last_look = now;
        }
    }

    /// Somebody else wanted the processor while the thread was spinning.
    fn note_crowd(&self) {
        let penalty = (self.penalty.load(Relaxed) * 2).clamp(CROWDED_ROUNDS, MAX_CROWDED_ROUNDS);
        self.penalty.store(penalty, Relaxed);
        self.hasty_rounds.store(penalty, Relaxed);
    }

    /// Spinning was of use.
    pub(super) fn note_find(&self) {
        self.penalty.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PATIENCE: Duration = Duration::from_micros(50);

    /// What comes of these looks, which take a microsecond each, or so long; and how many were needed.
    fn keep_looking(crowd: &Crowd, looks: &[(Look, Duration)]) -> (bool, usize) {
        let (time, mut count) = (Cell::new(Instant(1)), 0);
        let look = || {
            let (what, takes) = looks[count.min(looks.len() - 1)];
            time.set(time.get().after(takes));
            count += 1;
            what
        };
        (crowd.keep_looking(PATIENCE, || time.get(), look), count)
    }

    #[test]
    fn looking_ends_when_it_is_enough_or_nothing_has_come_for_as_long_as_patience() {
        let (crowd, us) = (Crowd::default(), Duration::from_micros(1));
        assert_eq!(keep_looking(&crowd, &[(Look::Vain, us), (Look::Found, us), (Look::Enough, us)]), (true, 3));
        assert_eq!(keep_looking(&crowd, &[(Look::Vain, us)]), (false, 50));
        assert_eq!(keep_looking(&crowd, &[(Look::Vain, us), (Look::Found, 100 * us), (Look::Vain, us)]), (false, 52));
        assert!(crowd.may_spin());
    }

    #[test]
    fn who_was_in_the_way_spins_less_and_less_until_it_pays() {
        let crowd = Crowd::default();
        assert!(crowd.may_spin());
        for rounds in [CROWDED_ROUNDS, 2 * CROWDED_ROUNDS, 4 * CROWDED_ROUNDS] {
            assert_eq!(keep_looking(&crowd, &[(Look::Found, CROWDED)]), (false, 1));
            assert_eq!((0..).take_while(|_| !crowd.may_spin()).count() as u32, rounds);
        }
        crowd.note_find();
        crowd.note_crowd();
        assert_eq!(crowd.hasty_rounds.load(Relaxed), CROWDED_ROUNDS);
        (0..40).for_each(|_| crowd.note_crowd());
        assert_eq!(crowd.hasty_rounds.load(Relaxed), MAX_CROWDED_ROUNDS);
    }
}
