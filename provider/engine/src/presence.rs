//! State shared between threads of the program and the background thread: which are present, which
//! wait, and until when the background thread sleeps.

pub(crate) mod muting;

use crate::poll_policy::spin::SpinGovernor;
use crate::poll_policy::{self, POLLS_AFTER_ARMING, gave_up_too_soon, is_expected_back};
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

pub(crate) use muting::Muting;

/// Time to wait for a thread of the program, which leaves the engine briefly between two polls.
pub(crate) const WATCH: Duration = Duration::from_micros(1);
/// Deadline while the thread is awake, or will read the deadlines without being woken.
pub(crate) const AWAKE: u64 = 0;

/// State shared between threads. All fields but `sleeps_until` are advisory.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Time of the last poll by the program in nanoseconds.
    pub(crate) last_poll: AtomicU64,
    /// True while a thread of the program is in the engine. Racy by design: the next poll corrects
    /// a stale value.
    pub(crate) inside: AtomicBool,
    pub(crate) polls_since_arming: AtomicU32,
    pub(crate) muting: Muting,
    /// Threads that wait for an event, and may receive packets meanwhile.
    pub(crate) waiters: Waiters,
    /// Waits for completions.
    completions: Waits,
    /// Waits for events of connections.
    connections: Waits,
    /// True if the program armed for a connection last.
    armed_for_connection: AtomicBool,
    /// Deadline for which the sleeping thread wakes; [`AWAKE`] if it need not be woken for an
    /// earlier one.
    pub(crate) sleeps_until: AtomicU64,
}

impl Default for Presence {
    fn default() -> Self {
        Self {
            last_poll: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            polls_since_arming: AtomicU32::new(u32::MAX),
            muting: Muting::default(),
            waiters: Waiters::default(),
            completions: Waits::default(),
            connections: Waits::default(),
            armed_for_connection: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(AWAKE),
        }
    }
}

impl Presence {
    pub(crate) fn enter(&self) {
        self.inside.store(true, Relaxed);
    }

    /// Notes that the entered thread is going to receive.
    pub(crate) fn note_poll(&self, now: Instant) {
        self.last_poll.store(now.0, Relaxed);
        let polls = self.polls_since_arming.load(Relaxed);
        self.polls_since_arming.store(polls.saturating_add(1), Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.inside.store(false, Relaxed);
    }

    /// Called when the program is going to wait. Returns true if the background thread must be
    /// woken.
    pub(crate) fn arm(&self, awaited: Awaited) -> bool {
        self.polls_since_arming.store(0, Relaxed);
        self.armed_for_connection.store(awaited == Awaited::Connection, Relaxed);
        !self.receives_before_sleep() && self.muting.hand_over()
    }

    /// Returns true if threads receive themselves before they sleep until the event that the
    /// program armed for last, so that arming need not wake the background thread.
    pub(crate) fn receives_before_sleep(&self) -> bool {
        self.armed().receive_first.load(Relaxed)
    }

    pub(crate) fn waits(&self, awaited: Awaited) -> &Waits {
        match awaited {
            Awaited::Completion => &self.completions,
            Awaited::Connection => &self.connections,
        }
    }

    fn armed(&self) -> &Waits {
        if self.armed_for_connection.load(Relaxed) { &self.connections } else { &self.completions }
    }

    /// Returns true, once, if the sleeping thread would oversleep `deadline`. Call after publishing
    /// the deadline.
    pub(crate) fn oversleeps(&self, deadline: Instant) -> bool {
        let until = self.sleeps_until.load(SeqCst);
        until > deadline.0 && self.sleeps_until.compare_exchange(until, deadline.0, SeqCst, Relaxed).is_ok()
    }

    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.since(Instant(self.last_poll.load(Relaxed)))
    }

    /// Returns true if a thread of the program is inside or enters within [`WATCH`].
    pub(crate) fn is_present(&self) -> bool {
        let (seen, start) = (self.last_poll.load(Relaxed), clock::now());
        loop {
            if self.inside.load(Relaxed) || self.last_poll.load(Relaxed) != seen {
                return true;
            }
            if clock::now().since(start) >= WATCH {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    pub(crate) fn waits_for_event(&self) -> bool {
        self.polls_since_arming.load(Relaxed) <= POLLS_AFTER_ARMING
    }

    /// Subtracts `points` from the score. Returns true if the background thread is muted now:
    /// packets do not wake it.
    pub(crate) fn mute(&self, points: i32) -> bool {
        self.muting.add(-points) <= 0 && self.muting.mute()
    }

    /// Called when the background thread has received. A program that armed and waits in `poll(2)`
    /// outside roxe needs the thread to be woken the next time.
    pub(crate) fn note_served(&self) {
        let waits = self.armed();
        if self.waits_for_event() && waits.threads.load(Relaxed) == 0 {
            waits.receive_first.store(false, Relaxed);
        }
    }

    /// Resets the counts of waiting threads in the child of a fork, which does not have them.
    pub(crate) fn abandon(&self) {
        let counts = [&self.completions.threads, &self.connections.threads, &self.waiters.spinning];
        counts.into_iter().for_each(|count| count.store(0, Relaxed));
    }
}

/// Kind of event that a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// An event of a completion queue.
    Completion,
    /// An event of the connection manager.
    Connection,
}

/// Waits of the program for one kind of event. Advisory.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Number of waiting threads.
    pub(crate) threads: AtomicU32,
    /// True if the waiting threads receive packets before they sleep.
    pub(crate) receive_first: AtomicBool,
}

/// Threads that wait for events. Advisory, except for `spinning`.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) spinning: AtomicU32,
    /// Time in nanoseconds at which a spinning thread last found its event; 0 if one has given up
    /// since.
    pub(crate) last_catch: AtomicU64,
    /// True if the next waits spin longer.
    pub(crate) spins_longer: AtomicBool,
    pub(crate) governor: SpinGovernor,
}

impl Waiters {
    /// Returns true if a waiter receives packets, or did a moment ago and is expected to do so
    /// again.
    pub(crate) fn receive(&self, now: Instant) -> bool {
        self.spinning.load(SeqCst) > 0 || is_expected_back(now.since(Instant(self.last_catch.load(SeqCst))))
    }

    /// Notes that a thread gave up, slept, and was woken `waited` after it began to wait.
    pub(crate) fn note_sleep(&self, waited: Duration, default: Duration) {
        self.spins_longer.store(gave_up_too_soon(waited, default), Relaxed);
    }

    pub(crate) fn spin_time(&self, default: Duration) -> Duration {
        poll_policy::spin_time(default, self.spins_longer.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::muting::FULL;
    use super::*;
    use crate::poll_policy::{BETWEEN_WAITS, LONG_SPIN_FACTOR};
    use roxe_base::uses::Counted;

    #[test]
    fn thread_is_muted_at_score_zero() {
        let presence = Presence::default();
        presence.arm(Awaited::Completion);
        let muted: Vec<_> = [1, 30, 1, 1].map(|points| presence.mute(points)).into();
        assert_eq!(muted, [false, false, true, true]);
    }

    #[test]
    fn only_later_sleeper_is_woken_once() {
        let presence = Presence::default();
        assert!(!presence.oversleeps(Instant(10)));
        presence.sleeps_until.store(100, SeqCst);
        assert!(!presence.oversleeps(Instant(100)));
        assert!(presence.oversleeps(Instant(50)));
        assert!(!presence.oversleeps(Instant(60)));
        assert!(presence.oversleeps(Instant(40)));
    }

    #[test]
    fn arming_wakes_muted_thread_and_fills_score() {
        let presence = Presence::default();
        assert!(!presence.arm(Awaited::Completion));
        presence.muting.mute();
        assert!(presence.arm(Awaited::Completion));
        assert!(!presence.arm(Awaited::Completion));
        assert_eq!(presence.muting.add(0), FULL);
        assert!(presence.waits_for_event());
        (0..=POLLS_AFTER_ARMING).for_each(|_| presence.note_poll(Instant(1)));
        assert!(!presence.waits_for_event());
    }

    #[test]
    fn arming_skips_wakeup_until_program_waits_in_poll() {
        for awaited in [Awaited::Completion, Awaited::Connection] {
            let presence = Presence::default();
            presence.waits(awaited).receive_first.store(true, Relaxed);
            presence.muting.mute();
            assert!(!presence.arm(awaited));
            let waiting = Counted::new(&presence.waits(awaited).threads);
            presence.note_served();
            assert!(!presence.arm(awaited), "the program receives before it sleeps");
            drop(waiting);
            presence.note_served();
            assert!(presence.arm(awaited));
        }
    }

    /// One thread waits for connections forever, another one arms and waits in `poll(2)`.
    #[test]
    fn waiter_for_connections_hides_no_waiter_for_completions() {
        let presence = Presence::default();
        let _waiting = Counted::new(&presence.waits(Awaited::Connection).threads);
        presence.waits(Awaited::Connection).receive_first.store(true, Relaxed);
        presence.muting.mute();
        assert!(!presence.arm(Awaited::Connection));
        assert!(presence.arm(Awaited::Completion));
    }

    #[test]
    fn entered_thread_is_present_and_score_is_bounded() {
        let presence = Presence::default();
        assert!(!presence.is_present());
        presence.enter();
        assert!(presence.is_present());
        presence.leave();
        assert!(!presence.is_present());
        assert_eq!(presence.muting.add(-5), 0);
        assert_eq!(presence.muting.add(1000), FULL);
    }

    #[test]
    fn receiving_waiter_counts_until_it_gives_up() {
        let (waiters, now) = (Waiters::default(), Instant(1_000_000_000));
        assert!(!waiters.receive(now), "the program sleeps");
        let spinning = Counted::new(&waiters.spinning);
        assert!(waiters.receive(now));
        drop(spinning);
        assert!(!waiters.receive(now));
        waiters.last_catch.store(now.0, SeqCst);
        assert!(waiters.receive(now.after(BETWEEN_WAITS / 2)));
        assert!(!waiters.receive(now.after(BETWEEN_WAITS)));
    }

    #[test]
    fn early_give_up_makes_next_wait_longer() {
        let (waiters, default) = (Waiters::default(), Duration::from_micros(50));
        assert_eq!(waiters.spin_time(default), default);
        waiters.note_sleep(2 * default, default);
        assert_eq!(waiters.spin_time(default), LONG_SPIN_FACTOR * default);
        waiters.note_sleep(LONG_SPIN_FACTOR * default, default);
        assert_eq!(waiters.spin_time(default), default, "longer spinning would not have sufficed");
    }
}
