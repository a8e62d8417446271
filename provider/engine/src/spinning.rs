//! Looking again and again before a sleep: what is about to come must not pay for waking a thread.
//!
//! Who finds nothing gives the processor to whoever wants it. If somebody does, sleeping is better, the next times as well: who
//! wakes up goes first, who only waits for his turn does not, and who yields has less of it later. Touches the scheduler.

use crate::thread;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A look, with what it found, that takes longer than this was interrupted: by somebody else's turn if the thread was
/// preempted. A machine below this one that takes the processor away gets nothing if the thread sleeps.
const CROWDED: Duration = Duration::from_micros(500);
/// Who has looked with success for long looks in vain for a quarter of that time, but at most for so many times its patience.
/// Streams have pauses: a receiver that fell asleep in each had the sender wake it a thousand times a second.
const STRETCH: u32 = 4;
/// After that the thread goes to sleep without looking around for so many rounds, and for twice as many each time it
/// happens again.
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

/// What a thread can know of the processor it runs on.
pub(crate) trait Processor {
    fn now(&self) -> Instant;
    /// How often somebody else had it although the thread would have gone on, or had offered it.
    fn preemptions(&self) -> u64;
}

/// The one of the calling thread.
pub(crate) struct ThisProcessor;

impl Processor for ThisProcessor {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn preemptions(&self) -> u64 {
        thread::preemptions()
    }
}

/// Whether looking around is of use, or in the way of others. Advice.
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

    /// Looks until it is enough, or nothing has come for as long as `patience`, or somebody else wants the processor. Whether
    /// it was enough.
    pub(crate) fn keep_looking(
        &self,
        patience: Duration,
        processor: impl Processor,
        mut look: impl FnMut() -> Look,
    ) -> bool {
        let start = processor.now();
        let (mut last_look, mut last_found) = (start, start);
        // Known from the first vain look on: who finds at once shall not ask.
        let mut preemptions = None;
        loop {
            let what = look();
            if what == Look::Vain {
                preemptions = preemptions.or_else(|| Some(processor.preemptions()));
                // Who shares this processor may be the one that answers.
                std::thread::yield_now();
            }
            let now = processor.now();
            if what == Look::Enough {
                return true;
            }
            if now.since(last_look) >= CROWDED {
                let before = preemptions.replace(processor.preemptions());
                if before.is_some() && before != preemptions {
                    self.note_contention();
                    return false;
                }
            }
            if what == Look::Found {
                last_found = now;
            }
            let stretched = (last_found.since(start) / STRETCH).clamp(patience, patience * STRETCH);
            if now.since(last_found) >= stretched && what == Look::Vain {
                return false;
            }
            last_look = now;
        }
    }

    /// Somebody else wanted the processor while the thread was spinning.
    fn note_contention(&self) {
        let penalty = (self.penalty.load(Relaxed) * 2).clamp(CROWDED_ROUNDS, MAX_CROWDED_ROUNDS);
        self.penalty.store(penalty, Relaxed);
        self.hasty_rounds.store(penalty, Relaxed);
    }

    /// Spinning was of use.
    pub(crate) fn note_find(&self) {
        self.penalty.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PATIENCE: Duration = Duration::from_micros(50);
    const US: Duration = Duration::from_micros(1);

    /// A processor whose time and preemptions are those of looks.
    struct Simulated<'a> {
        time: &'a Cell<Instant>,
        preemptions: &'a Cell<u64>,
    }

    impl Processor for Simulated<'_> {
        fn now(&self) -> Instant {
            self.time.get()
        }

        fn preemptions(&self) -> u64 {
            self.preemptions.get()
        }
    }

    /// What comes of these looks, which take so long and are preempted so often, and how many were needed. The last one
    /// is for ever.
    fn look_at(governor: &SpinGovernor, looks: &[(Look, Duration, u64)]) -> (bool, usize) {
        let (time, preemptions, mut count) = (Cell::new(Instant(1)), Cell::new(0), 0);
        let look = || {
            let (what, takes, preempted) = looks[count.min(looks.len() - 1)];
            time.set(time.get().after(takes));
            preemptions.set(preemptions.get() + preempted);
            count += 1;
            what
        };
        (governor.keep_looking(PATIENCE, Simulated { time: &time, preemptions: &preemptions }, look), count)
    }

    #[test]
    fn looking_ends_when_it_is_enough_or_nothing_has_come_for_as_long_as_patience() {
        let (governor, vain) = (SpinGovernor::default(), (Look::Vain, US, 0));
        assert_eq!(look_at(&governor, &[vain, (Look::Found, US, 0), (Look::Enough, US, 0)]), (true, 3));
        assert_eq!(look_at(&governor, &[vain]), (false, 50));
        assert_eq!(look_at(&governor, &[vain, (Look::Found, 100 * US, 0), vain]), (false, 52));
        assert!(governor.may_spin());
    }

    #[test]
    fn who_has_found_for_long_is_patient_for_longer() {
        for (found, patience) in [(1, 50), (3, 75), (4, 100), (8, 200), (100, 200)] {
            let mut looks = vec![(Look::Found, 100 * US, 0); found];
            looks.push((Look::Vain, US, 0));
            assert_eq!(look_at(&SpinGovernor::default(), &looks), (false, found + patience));
        }
    }

    #[test]
    fn who_was_in_the_way_spins_less_and_less_until_it_pays() {
        let governor = SpinGovernor::default();
        assert!(governor.may_spin());
        for rounds in [CROWDED_ROUNDS, 2 * CROWDED_ROUNDS, 4 * CROWDED_ROUNDS] {
            assert_eq!(look_at(&governor, &[(Look::Vain, US, 0), (Look::Found, CROWDED, 1)]), (false, 2));
            assert_eq!((0..).take_while(|_| !governor.may_spin()).count() as u32, rounds);
        }
        governor.note_find();
        governor.note_contention();
        assert_eq!(governor.hasty_rounds.load(Relaxed), CROWDED_ROUNDS);
        (0..40).for_each(|_| governor.note_contention());
        assert_eq!(governor.hasty_rounds.load(Relaxed), MAX_CROWDED_ROUNDS);
    }

    #[test]
    fn a_machine_below_that_takes_the_processor_away_is_no_crowd() {
        let (governor, stolen, enough) = (SpinGovernor::default(), (Look::Found, CROWDED, 0), (Look::Enough, US, 0));
        assert_eq!(look_at(&governor, &[(Look::Vain, US, 0), stolen, stolen, (Look::Found, US, 1), enough]), (true, 5));
        assert_eq!(look_at(&governor, &[stolen, stolen, enough]), (true, 3));
        assert_eq!(look_at(&governor, &[stolen, (Look::Found, CROWDED, 1), enough]), (false, 2));
    }
}
