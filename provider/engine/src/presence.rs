//! What threads of the program and the background thread tell each other: who is there, who waits,
//! who sleeps until when.
//!
//! Touches nothing but the clock.

pub(crate) mod muting;

use crate::poll_policy::POLLS_AFTER_ARMING;
use crate::waiters::Waiters;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

pub(crate) use muting::Muting;

/// How long it watches for a thread of the program, which leaves the engine for some nanoseconds
/// between two polls.
pub(crate) const WATCH: Duration = Duration::from_micros(1);
/// The thread is awake, or will look soon of its own accord.
pub(crate) const AWAKE: u64 = 0;

/// What threads of the program and the background thread tell each other. All of it is advice, but
/// for `sleeps_until`.
#[derive(Debug)]
pub(crate) struct Presence {
    /// When a thread of the program last came in, nanoseconds.
    pub(crate) last_poll: AtomicU64,
    /// Whether one is inside. Several threads overwrite each other here; the next poll corrects it.
    pub(crate) inside: AtomicBool,
    pub(crate) polls_since_arming: AtomicU32,
    pub(crate) muting: Muting,
    /// Threads of the program that wait for an event, and may receive meanwhile.
    pub(crate) waiters: Waiters,
    /// It waits in this way, so arming need not wake the background thread.
    pub(crate) waits_itself: AtomicBool,
    /// The deadline that the sleeping thread will wake up for; [`AWAKE`] if there is nothing to
    /// tell it.
    pub(crate) sleeps_until: AtomicU64,
}

impl Default for Presence {
    /// Nobody is there, and nobody waits for an event.
    fn default() -> Self {
        Self {
            last_poll: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            polls_since_arming: AtomicU32::new(u32::MAX),
            muting: Muting::default(),
            waiters: Waiters::default(),
            waits_itself: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(AWAKE),
        }
    }
}

impl Presence {
    /// A thread of the program comes in.
    pub(crate) fn enter(&self) {
        self.inside.store(true, Relaxed);
    }

    /// It is going to receive.
    pub(crate) fn note_poll(&self, now: Instant) {
        self.last_poll.store(now.0, Relaxed);
        let polls = self.polls_since_arming.load(Relaxed);
        self.polls_since_arming.store(polls.saturating_add(1), Relaxed);
    }

    /// It leaves.
    pub(crate) fn leave(&self) {
        self.inside.store(false, Relaxed);
    }

    /// The program is going to wait for an event. Whether the thread must be woken.
    pub(crate) fn arm(&self) -> bool {
        self.polls_since_arming.store(0, Relaxed);
        !self.waits_itself.load(Relaxed) && self.hand_over()
    }

    /// The thread receives from now on. Whether it must be woken.
    pub(crate) fn hand_over(&self) -> bool {
        self.muting.hand_over()
    }

    /// Whether a thread that sleeps would oversleep `deadline`. Ask after the deadline is
    /// published.
    pub(crate) fn oversleeps(&self, deadline: Instant) -> bool {
        let until = self.sleeps_until.load(SeqCst);
        until > deadline.0 && self.sleeps_until.compare_exchange(until, deadline.0, SeqCst, Relaxed).is_ok()
    }

    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.since(Instant(self.last_poll.load(Relaxed)))
    }

    /// Whether a thread of the program is inside, or comes in within [`WATCH`].
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

    /// The background thread leaves packets to the program, at the price of so many points. Whether
    /// it is muted: may sleep however many packets come.
    pub(crate) fn mute(&self, points: i32) -> bool {
        self.muting.add(-points) <= 0 && self.muting.mute()
    }

    /// The thread has received something. A program that armed and waits elsewhere, as with
    /// `poll(2)`, wants to be woken the next time.
    pub(crate) fn note_served(&self) {
        if self.waits_for_event() && !self.waiters.exist() {
            self.waits_itself.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::muting::FULL;
    use super::*;
    use roxe_base::uses::Counted;

    #[test]
    fn the_thread_is_muted_when_the_score_is_empty() {
        let presence = Presence::default();
        presence.arm();
        let muted: Vec<_> = [1, 30, 1, 1].map(|points| presence.mute(points)).into();
        assert_eq!(muted, [false, false, true, true]);
    }

    #[test]
    fn only_a_later_sleeper_is_woken_and_only_once() {
        let presence = Presence::default();
        assert!(!presence.oversleeps(Instant(10)));
        presence.sleeps_until.store(100, SeqCst);
        assert!(!presence.oversleeps(Instant(100)));
        assert!(presence.oversleeps(Instant(50)));
        assert!(!presence.oversleeps(Instant(60)));
        assert!(presence.oversleeps(Instant(40)));
    }

    #[test]
    fn arming_wakes_a_muted_thread_and_fills_the_score() {
        let presence = Presence::default();
        assert!(!presence.arm());
        presence.muting.mute();
        assert!(presence.arm());
        assert!(!presence.arm());
        assert_eq!(presence.muting.add(0), FULL);
        assert!(presence.waits_for_event());
        (0..=POLLS_AFTER_ARMING).for_each(|_| presence.note_poll(Instant(1)));
        assert!(!presence.waits_for_event());
    }

    #[test]
    fn arming_wakes_nobody_for_a_program_that_waits_itself_until_it_waits_elsewhere() {
        let presence = Presence::default();
        presence.waits_itself.store(true, Relaxed);
        presence.muting.mute();
        assert!(!presence.arm());
        let waiting = Counted::new(&presence.waiters.waiting);
        presence.note_served();
        assert!(!presence.arm(), "it waits itself");
        drop(waiting);
        presence.note_served();
        assert!(presence.arm());
    }

    #[test]
    fn a_thread_inside_is_present_and_the_score_stays_in_bounds() {
        let presence = Presence::default();
        assert!(!presence.is_present());
        presence.enter();
        assert!(presence.is_present());
        presence.leave();
        assert!(!presence.is_present());
        assert_eq!(presence.muting.add(-5), 0);
        assert_eq!(presence.muting.add(1000), FULL);
    }
}
