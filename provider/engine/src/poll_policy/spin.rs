//! Spinning before sleep: its duration, and its effect on other threads.
//!
//! If another thread needs the CPU, sleeping is better, also the next times: a woken thread is
//! scheduled first, a yielding one gets less time later. [`SpinGovernor::spin_until`] is the loop.

use crate::thread;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A poll that takes longer was preempted, if the thread's count of preemptions says so. Time
/// stolen by a hypervisor does not count: sleeping would not help.
const CROWDED: Duration = Duration::from_micros(500);
/// After finding packets for long, a thread accepts empty polls for a quarter of that time, but at
/// most for this multiple of its spin time. Streams have pauses in which a receiver should not
/// sleep.
const STRETCH: u32 = 4;
/// Rounds without spinning after contention; doubled each time it happens again.
const CROWDED_ROUNDS: u32 = 16;
const MAX_CROWDED_ROUNDS: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    Empty,
    Found,
    /// The awaited event has happened.
    Enough,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    /// Return without sleeping.
    Enough,
    /// Sleep: nothing has arrived for too long.
    GiveUp,
    /// Sleep: another thread needs the CPU.
    Contended,
}

#[derive(Debug)]
pub(crate) struct SpinRound {
    spin_time: Duration,
    start: Instant,
    last_poll: Instant,
    last_found: Instant,
    /// Preemptions of the thread at the first empty poll; not read if the first poll succeeds.
    preemptions: Option<u64>,
}

impl SpinRound {
    /// Creates a round that begins at `now` and ends when nothing arrives for `spin_time`.
    pub(crate) fn new(spin_time: Duration, now: Instant) -> Self {
        Self { spin_time, start: now, last_poll: now, last_found: now, preemptions: None }
    }

    pub(crate) fn before_yield(&mut self, preemptions: impl FnOnce() -> u64) {
        self.preemptions = self.preemptions.or_else(|| Some(preemptions()));
    }

    pub(crate) fn after_poll(&mut self, poll: Poll, now: Instant, preemptions: impl FnOnce() -> u64) -> Next {
        if poll == Poll::Enough {
            return Next::Enough;
        }
        if now.since(self.last_poll) >= CROWDED {
            let before = self.preemptions.replace(preemptions());
            if before.is_some() && before != self.preemptions {
                return Next::Contended;
            }
        }
        self.last_poll = now;
        if poll == Poll::Found {
            self.last_found = now;
        } else if now.since(self.last_found) >= self.stretched() {
            return Next::GiveUp;
        }
        Next::Poll
    }

    /// Returns the maximum time of empty polls, given how long the thread has found packets.
    fn stretched(&self) -> Duration {
        (self.last_found.since(self.start) / STRETCH).clamp(self.spin_time, self.spin_time * STRETCH)
    }
}

/// Decides whether spinning is useful or hinders others. Advisory, shared by threads.
#[derive(Debug, Default)]
pub(crate) struct SpinGovernor {
    no_spin_rounds: AtomicU32,
    /// `no_spin_rounds` after the last contention.
    penalty: AtomicU32,
}

impl SpinGovernor {
    /// Returns true if the thread should spin in this round.
    pub(crate) fn may_spin(&self) -> bool {
        let rounds = self.no_spin_rounds.load(Relaxed);
        self.no_spin_rounds.store(rounds.saturating_sub(1), Relaxed);
        rounds == 0
    }

    pub(crate) fn note_contention(&self) {
        let penalty = (self.penalty.load(Relaxed) * 2).clamp(CROWDED_ROUNDS, MAX_CROWDED_ROUNDS);
        self.penalty.store(penalty, Relaxed);
        self.no_spin_rounds.store(penalty, Relaxed);
    }

    pub(crate) fn note_find(&self) {
        self.penalty.store(0, Relaxed);
    }

    /// Polls until `poll` returns [`Poll::Enough`], nothing has arrived for `spin_time`, or another
    /// thread needs the CPU. Returns true in the first case.
    pub(crate) fn spin_until(&self, spin_time: Duration, mut poll: impl FnMut() -> Poll) -> bool {
        let mut round = SpinRound::new(spin_time, clock::now());
        loop {
            let result = poll();
            if result == Poll::Empty {
                round.before_yield(thread::preemptions);
                // Yield: the peer may need this CPU to respond.
                std::thread::yield_now();
            }
            match round.after_poll(result, clock::now(), thread::preemptions) {
                Next::Poll => {}
                Next::Enough => return true,
                Next::GiveUp => return false,
                Next::Contended => {
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

    const SPIN_TIME: Duration = Duration::from_micros(50);
    const US: Duration = Duration::from_micros(1);
    const EMPTY: (Poll, Duration, u64) = (Poll::Empty, US, 0);

    /// Runs a round of polls of given durations and preemptions, the last one forever. Returns its
    /// end and the number of polls.
    fn round(polls: &[(Poll, Duration, u64)]) -> (Next, usize) {
        let (mut now, mut preemptions) = (Instant(1), 0);
        let mut round = SpinRound::new(SPIN_TIME, now);
        for at in 0.. {
            let (poll, takes, preempted) = polls[at.min(polls.len() - 1)];
            (now, preemptions) = (now.after(takes), preemptions + preempted);
            if poll == Poll::Empty {
                round.before_yield(|| preemptions);
            }
            match round.after_poll(poll, now, || preemptions) {
                Next::Poll => {}
                next => return (next, at + 1),
            }
        }
        unreachable!("the last poll lasts forever");
    }

    #[test]
    fn round_ends_on_event_or_after_idle_spin_time() {
        assert_eq!(round(&[EMPTY, (Poll::Found, US, 0), (Poll::Enough, US, 0)]), (Next::Enough, 3));
        assert_eq!(round(&[EMPTY]), (Next::GiveUp, 50));
        assert_eq!(round(&[EMPTY, (Poll::Found, 100 * US, 0), EMPTY]), (Next::GiveUp, 52));
    }

    #[test]
    fn long_success_lengthens_spin_time() {
        for (found, spin_time) in [(1, 50), (3, 75), (4, 100), (8, 200), (100, 200)] {
            let mut polls = vec![(Poll::Found, 100 * US, 0); found];
            polls.push(EMPTY);
            assert_eq!(round(&polls), (Next::GiveUp, found + spin_time));
        }
    }

    #[test]
    fn long_preempted_poll_ends_round() {
        let stolen = (Poll::Found, CROWDED, 0);
        let preempted = (Poll::Found, CROWDED, 1);
        let enough = (Poll::Enough, US, 0);
        assert_eq!(round(&[EMPTY, preempted, enough]), (Next::Contended, 2));
        assert_eq!(round(&[stolen, preempted, enough]), (Next::Contended, 2));
        // Neither stolen time without preemption nor a short preemption counts.
        assert_eq!(round(&[EMPTY, stolen, stolen, (Poll::Found, US, 1), enough]), (Next::Enough, 5));
        assert_eq!(round(&[stolen, stolen, enough]), (Next::Enough, 3));
    }

    #[test]
    fn contention_reduces_spinning_until_it_pays() {
        let governor = SpinGovernor::default();
        assert!(governor.may_spin());
        for rounds in [CROWDED_ROUNDS, 2 * CROWDED_ROUNDS, 4 * CROWDED_ROUNDS] {
            governor.note_contention();
            assert_eq!((0..).take_while(|_| !governor.may_spin()).count() as u32, rounds);
        }
        governor.note_find();
        governor.note_contention();
        assert_eq!(governor.no_spin_rounds.load(Relaxed), CROWDED_ROUNDS);
        (0..40).for_each(|_| governor.note_contention());
        assert_eq!(governor.no_spin_rounds.load(Relaxed), MAX_CROWDED_ROUNDS);
    }
}
