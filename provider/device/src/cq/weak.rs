//! The weakest legal card: completions that a queue holds and does not show yet.
//!
//! The newest entries of a queue may not have happened yet for a program: they neither come out nor
//! raise an event. They do after a while, or when a program has looked in vain a few times. A poll
//! gives all that has happened, as its man page says. Entries keep their order. An arming may find
//! that a completion came since the last event, and raise one although it was polled. Touches
//! nothing.

use roxe_base::weakest::{Choices, Subject, Weakness, has, seed};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Completion queues created in this process.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// How often in a row a program polls in vain although there is something.
const MOST_IN_VAIN: u32 = 3;
/// How long completions are not shown, microseconds.
const HIDDEN_FOR: [u64; 4] = [10, 50, 200, 1000];

/// What a queue remembers for it.
#[derive(Debug)]
pub(super) struct WeakCq {
    completions: Choices,
    polls: Choices,
    events: Choices,
    /// What it does: hides completions, raises events for nothing.
    does: Weakness,
    /// The newest entries that are not shown yet.
    pub(super) hidden: usize,
    in_vain: u32,
    /// The engine knows of a deadline.
    is_waiting: bool,
}

impl WeakCq {
    /// That of a new queue, if it is one of the weakest legal card.
    pub(super) fn of_new() -> Option<Box<Self>> {
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let does = [Weakness::COMPLETIONS, Weakness::SPURIOUS].into_iter().filter(|weakness| has(*weakness)).collect();
        (does != Weakness::empty()).then(|| Box::new(Self::new(seed(), number, does)))
    }

    fn new(seed: u64, number: u64, does: Weakness) -> Self {
        let choices = |subject| Choices::new(seed, subject, number);
        let [completions, polls, events] = [Subject::Completions, Subject::Polls, Subject::Events].map(choices);
        Self { completions, polls, events, does, hidden: 0, in_vain: 0, is_waiting: false }
    }

    /// Whether an entry that was just appended is not shown yet; all behind one that is not are not
    /// either.
    pub(super) fn hides(&mut self) -> bool {
        let hides = self.hidden > 0 || self.does.contains(Weakness::COMPLETIONS) && self.completions.one_in(2);
        self.hidden += usize::from(hides);
        hides
    }

    /// Whether an event is raised for completions that were polled.
    pub(super) fn raises_for_nothing(&mut self) -> bool {
        self.does.contains(Weakness::SPURIOUS) && self.events.one_in(2)
    }

    /// When to show what is hidden, if nobody has been told.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        let is_new = !std::mem::replace(&mut self.is_waiting, true);
        is_new.then(|| Duration::from_micros(self.completions.pick(HIDDEN_FOR)))
    }

    /// How many entries the time lets be shown.
    pub(super) fn on_deadline(&mut self) -> usize {
        self.is_waiting = false;
        self.hidden
    }

    /// How many entries a poll for `max` gets, of `held` in the queue, and how many of those that
    /// are hidden are to be shown first.
    pub(super) fn poll(&mut self, max: usize, held: usize) -> (usize, usize) {
        let shown = held.saturating_sub(self.hidden);
        if held == 0 {
            return (0, 0);
        }
        if shown == 0 {
            self.in_vain += 1;
            if self.in_vain <= MOST_IN_VAIN && !self.polls.one_in(3) {
                return (0, 0);
            }
        }
        self.in_vain = 0;
        let more = if shown == 0 { 1 + self.polls.below(self.hidden) } else { 0 };
        (max.min(shown + more), more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_polls_gets_what_is_there_before_long() {
        for seed in 0..100 {
            let mut weak = WeakCq::new(seed, 0, Weakness::COMPLETIONS);
            let (mut held, mut in_vain, mut was_in_vain) = (0, 0, false);
            for _ in 0..1000 {
                held += 1;
                weak.hides();
                let (taken, shown) = weak.poll(16, held);
                weak.hidden -= shown;
                assert!(taken <= held - weak.hidden);
                held -= taken;
                in_vain = if taken == 0 { in_vain + 1 } else { 0 };
                was_in_vain |= taken == 0;
                assert!(in_vain <= MOST_IN_VAIN && held < 200, "{in_vain} in vain, {held} held");
            }
            assert!(was_in_vain);
        }
    }
}
