//! For how long a thread looks again and again before it sleeps, and whether that is in the way of
//! others.
//!
//! If somebody else wants the processor, sleeping is better, the next times as well: who wakes up
//! goes first, who only waits for his turn does not, and who yields has less of it later.
//!
//! [`SpinGovernor::keep_looking`] does it, and touches the clock and the scheduler of the system.

use crate::thread;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A look, with what it found, that takes longer than this was interrupted: by somebody else's turn
/// if the thread was preempted. A machine below this one that takes the processor away gets nothing
/// if the thread sleeps.
const CROWDED: Duration = Duration::from_micros(500);
/// Who has looked with success for long looks in vain for a quarter of that time, but at most for
/// so many times its patience. Streams have pauses: a receiver that fell asleep in each had the
/// sender wake it a thousand times a second.
const STRETCH: u32 = 4;
/// After that the thread goes to sleep without looking around for so many rounds, and for twice as
/// many each time it happens again.
const CROWDED_ROUNDS: u32 = 16;
const MAX_CROWDED_ROUNDS: u32 = 4096;

/// What a look was good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// For nothing.
    Vain,
    /// Something had come.
    Found,
    /// There is no need to look any more.
    Enough,
}

/// What a thread does after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It looks again.
    Look,
    /// It does not sleep.
    Enough,
    /// It sleeps: nothing has come for too long.
    GiveUp,
    /// It sleeps: somebody else wants the processor.
    MakeRoom,
}

/// One round of looks.
#[derive(Debug)]
pub(crate) struct SpinRound {
    patience: Duration,
    start: Instant,
    last_look: Instant,
    last_found: Instant,
    /// How often the thread had been preempted at the first look in vain: who finds at once shall
    /// not ask.
    preemptions: Option<u64>,
}

impl SpinRound {
    /// A round begins `now`. It ends when nothing has come for as long as `patience`.
    pub(crate) fn new(patience: Duration, now: Instant) -> Self {
        Self { patience, start: now, last_look: now, last_found: now, preemptions: None }
    }

    /// A look was in vain. Told before the thread yields.
    pub(crate) fn before_yield(&mut self, preemptions: impl FnOnce() -> u64) {
        self.preemptions = self.preemptions.or_else(|| Some(preemptions()));
    }

    /// What comes after this look, which was over `now`.
    pub(crate) fn after_look(&mut self, look: Look, now: Instant, preemptions: impl FnOnce() -> u64) -> Next {
        if look == Look::Enough {
            return Next::Enough;
        }
        if now.since(self.last_look) >= CROWDED {
            let before = self.preemptions.replace(preemptions());
            if before.is_some() && before != self.preemptions {
                return Next::MakeRoom;
            }
        }
        self.last_look = now;
        if look == Look::Found {
            self.last_found = now;
        } else if now.since(self.last_found) >= self.stretched() {
            return Next::GiveUp;
        }
        Next::Look
    }

    /// How long the thread looks in vain, having found packets until then.
    fn stretched(&self) -> Duration {
        (self.last_found.since(self.start) / STRETCH).clamp(self.patience, self.patience * STRETCH)
    }
}

/// Whether looking around is of use, or in the way of others. Advice, shared by threads.
#[derive(Debug, Default)]
pub(crate) struct SpinGovernor {
    /// Rounds that still end without spinning, and how many there will be the next time.
    hasty_rounds: AtomicU32,
    penalty: AtomicU32,
}

impl SpinGovernor {
    /// Whether to keep looking for a while.
    pub(crate) fn may_spin(&self) -> bool {
        let rounds = self.hasty_rounds.load(Relaxed);
        self.hasty_rounds.store(rounds.saturating_sub(1), Relaxed);
        rounds == 0
    }

    /// Somebody else wanted the processor while the thread was spinning.
    pub(crate) fn note_contention(&self) {
        let penalty = (self.penalty.load(Relaxed) * 2).clamp(CROWDED_ROUNDS, MAX_CROWDED_ROUNDS);
        self.penalty.store(penalty, Relaxed);
        self.hasty_rounds.store(penalty, Relaxed);
    }

    /// Spinning was of use.
    pub(crate) fn note_find(&self) {
        self.penalty.store(0, Relaxed);
    }

    /// Looks until it is enough, or nothing has come for as long as `patience`, or somebody else
    /// wants the processor. Whether it was enough.
    pub(crate) fn keep_looking(&self, patience: Duration, mut look: impl FnMut() -> Look) -> bool {
        let mut round = SpinRound::new(patience, clock::now());
        loop {
            let what = look();
            if what == Look::Vain {
                round.before_yield(thread::preemptions);
                // Who shares this processor may be the one that answers.
                std::thread::yield_now();
            }
            match round.after_look(what, clock::now(), thread::preemptions) {
                Next::Look => {}
                Next::Enough => return true,
                Next::GiveUp => return false,
                Next::MakeRoom => {
                    self.note_contention();
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_micros(50);
    const US: Duration = Duration::from_micros(1);
    const VAIN: (Look, Duration, u64) = (Look::Vain, US, 0);

    /// What ends a round of these looks, which take so long and are preempted so often, and how
    /// many were needed. The last one is for ever.
    fn round(looks: &[(Look, Duration, u64)]) -> (Next, usize) {
        let (mut now, mut preemptions) = (Instant(1), 0);
        let mut round = SpinRound::new(PATIENCE, now);
        for at in 0.. {
            let (look, takes, preempted) = looks[at.min(looks.len() - 1)];
            (now, preemptions) = (now.after(takes), preemptions + preempted);
            if look == Look::Vain {
                round.before_yield(|| preemptions);
            }
            match round.after_look(look, now, || preemptions) {
                Next::Look => {}
                next => return (next, at + 1),
            }
        }
        unreachable!("the last look is for ever");
    }

    #[test]
    fn looking_ends_when_it_is_enough_or_nothing_has_come_for_as_long_as_patience() {
        assert_eq!(round(&[VAIN, (Look::Found, US, 0), (Look::Enough, US, 0)]), (Next::Enough, 3));
        assert_eq!(round(&[VAIN]), (Next::GiveUp, 50));
        assert_eq!(round(&[VAIN, (Look::Found, 100 * US, 0), VAIN]), (Next::GiveUp, 52));
    }

    #[test]
    fn who_has_found_for_long_is_patient_for_longer() {
        for (found, patience) in [(1, 50), (3, 75), (4, 100), (8, 200), (100, 200)] {
            let mut looks = vec![(Look::Found, 100 * US, 0); found];
            looks.push(VAIN);
            assert_eq!(round(&looks), (Next::GiveUp, found + patience));
        }
    }

    #[test]
    fn a_long_look_ends_the_round_if_somebody_else_had_the_processor_meanwhile() {
        let stolen = (Look::Found, CROWDED, 0);
        let preempted = (Look::Found, CROWDED, 1);
        let enough = (Look::Enough, US, 0);
        assert_eq!(round(&[VAIN, preempted, enough]), (Next::MakeRoom, 2));
        assert_eq!(round(&[stolen, preempted, enough]), (Next::MakeRoom, 2));
        // A machine below this one that takes the processor away counts for nothing, and neither
        // does a short preemption.
        assert_eq!(round(&[VAIN, stolen, stolen, (Look::Found, US, 1), enough]), (Next::Enough, 5));
        assert_eq!(round(&[stolen, stolen, enough]), (Next::Enough, 3));
    }

    #[test]
    fn who_was_in_the_way_spins_less_and_less_until_it_pays() {
        let governor = SpinGovernor::default();
        assert!(governor.may_spin());
        for rounds in [CROWDED_ROUNDS, 2 * CROWDED_ROUNDS, 4 * CROWDED_ROUNDS] {
            governor.note_contention();
            assert_eq!((0..).take_while(|_| !governor.may_spin()).count() as u32, rounds);
        }
        governor.note_find();
        governor.note_contention();
        assert_eq!(governor.hasty_rounds.load(Relaxed), CROWDED_ROUNDS);
        (0..40).for_each(|_| governor.note_contention());
        assert_eq!(governor.hasty_rounds.load(Relaxed), MAX_CROWDED_ROUNDS);
    }
}
