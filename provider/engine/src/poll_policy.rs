//! The polling policy: pure functions from observations to decisions, except for one loop in
//! `spin`.
//!
//! This module decides whether the background thread serves, spins, or leaves packets to the
//! program, and how long a thread spins before it waits for an event. `spin` ends spinning, `idle`
//! makes empty polls yield, `delayed_ack` delays acknowledgements. The constants interact, so tests
//! replay what real programs did (`traces/`).

pub(crate) mod delayed_ack;
pub(crate) mod idle;
pub(crate) mod spin;
#[cfg(test)]
mod traces;

use crate::presence::muting::FULL;
pub use delayed_ack::DelayedAck;
use std::time::Duration;

/// A program that polled within this time counts as polling. A poll that receives 64 KB on a slow
/// processor lasts as long.
const POLLS_WITHIN: Duration = Duration::from_millis(1);
/// The first sleep after muting is short, because the program may have polled just once. The next
/// ones double up to [`SHORT_TICK`], since each wake-up takes time from a slow processor.
pub(crate) const FIRST_TICK: Duration = Duration::from_micros(62);
pub(crate) const SHORT_TICK: Duration = Duration::from_millis(1);
/// A program that stops polling without arming is served after one tick. A tick may grow to this
/// part of the time for which the program has polled, up to [`LONGEST_TICK`], since each wake-up
/// delays a pinned program.
const SHARE: u32 = 16;
const LONGEST_TICK: Duration = Duration::from_millis(8);
/// While the thread is muted, a program that polled within this time counts as polling although it
/// is outside the engine. If the two share a CPU, the timer interrupt that wakes the thread has
/// preempted the program, which cannot enter the engine while the thread runs.
pub(crate) const RECENT: Duration = Duration::from_micros(50);
/// A program that polls more often than this after arming is not waiting for the event.
pub(crate) const POLLS_AFTER_ARMING: u32 = 4;
/// Points that a wake-up adds to the score if it had packets to serve.
pub(crate) const SERVED: i32 = 2;
/// Points that a wake-up subtracts from the score if the program did not need it. Each consecutive
/// unneeded one costs twice as much: its cause wakes the thread again until the program has
/// received, and the program may wait for this CPU.
pub(crate) const UNNEEDED: i32 = 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUp {
    /// Time since a thread of the program last entered to receive.
    pub(crate) since_poll: Duration,
    /// True if another thread holds the receive side.
    pub(crate) is_receiving: bool,
    /// True if a thread that waits for an event receives until it sleeps.
    pub(crate) waiter_receives: bool,
    /// True if the thread was muted until now and no program thread has handed over.
    pub(crate) is_muted: bool,
}

impl WakeUp {
    /// Returns true if a thread of the program entered to receive [recently](POLLS_WITHIN), or is
    /// still receiving.
    pub(crate) fn is_polled(&self) -> bool {
        self.since_poll < POLLS_WITHIN || self.is_receiving
    }
}

/// The decision at a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Leave packets to the program and take these points off the score; at zero mute.
    Leave(i32),
    Serve,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// True if the wake-up received packets.
    pub(crate) found: bool,
    pub(crate) is_polled: bool,
    /// True if the program has armed and waits.
    pub(crate) is_armed: bool,
    /// True if threads of the program receive before they sleep.
    pub(crate) receives_before_sleep: bool,
}

impl Served {
    /// Returns true if the wake-up was useful although the program polls; adds [`SERVED`].
    pub(crate) fn is_wanted(self) -> bool {
        self.found && self.is_polled
    }

    /// Returns true if the thread should spin, because the peer may respond soon. Returns false
    /// while the program polls, or if it receives before it sleeps. `may_spin` is called only if
    /// the program has not armed.
    pub(crate) fn wants_spin(self, may_spin: impl FnOnce() -> bool) -> bool {
        self.found && !self.receives_before_sleep && (self.is_armed || !self.is_polled && may_spin())
    }
}

/// State of the policy between wake-ups.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// Time for which wake-ups have found the program polling; halved when the program was outside
    /// of the engine.
    muted: Duration,
    unneeded: u32,
}

impl Background {
    /// Decides at a wake-up. `is_present` watches for a moment whether a thread of the program
    /// enters; it is called only where that matters.
    pub(crate) fn course(&mut self, seen: &WakeUp, is_present: impl FnOnce() -> bool) -> Course {
        let polls_alone = seen.is_muted && seen.since_poll < RECENT;
        // A thread that receives may have been preempted: frequent checks would delay it.
        if !seen.is_polled() || !(seen.waiter_receives || polls_alone || seen.is_receiving || is_present()) {
            self.unneeded = 0;
            return Course::Serve;
        }
        if seen.waiter_receives {
            // The waiter receives until it hands over.
            return Course::Leave(FULL);
        }
        let before = self.unneeded;
        self.unneeded = before.saturating_add(1);
        Course::Leave(UNNEEDED << before.saturating_sub(1).min(FULL.ilog2()))
    }

    /// Returns the length of the next sleep of the muted thread.
    pub(crate) fn tick(&mut self) -> Duration {
        let tick = (self.muted / SHARE).max((self.muted + FIRST_TICK).min(SHORT_TICK));
        self.muted = (self.muted + tick).min(LONGEST_TICK * SHARE);
        tick
    }

    /// Notes that the thread stays unmuted. A polling program that was outside at that moment still
    /// counts as polling.
    pub(crate) fn note_listening(&mut self, seen: &WakeUp) {
        self.muted = if seen.is_polled() { self.muted / 2 } else { Duration::ZERO };
    }
}

/// Time within which a thread that received its event itself is expected to wait again.
pub(crate) const BETWEEN_WAITS: Duration = Duration::from_micros(50);
/// A thread woken within this multiple of the default spin time gave up too soon, so the next waits
/// spin for this multiple. Otherwise two peers may both sleep before every message.
pub(crate) const LONG_SPIN_FACTOR: u32 = 4;

/// Returns true if a thread that found its event `since_catch` ago will wait again at once.
pub(crate) fn is_expected_back(since_catch: Duration) -> bool {
    since_catch < BETWEEN_WAITS
}

/// Returns true if a thread woken `waited` after it began to wait gave up too soon.
pub(crate) fn gave_up_too_soon(waited: Duration, default: Duration) -> bool {
    waited < default * LONG_SPIN_FACTOR
}

/// Returns the spin time before sleeping; `spins_longer` if the last sleeper [`gave_up_too_soon`].
pub(crate) fn spin_time(default: Duration, spins_longer: bool) -> Duration {
    if spins_longer { default * LONG_SPIN_FACTOR } else { default }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLLED: WakeUp =
        WakeUp { since_poll: Duration::ZERO, is_receiving: false, waiter_receives: false, is_muted: false };

    #[test]
    fn tick_grows_while_program_polls_then_resets() {
        let mut policy = Background::default();
        let ticks: Vec<Duration> = (0..100).map(|_| policy.tick()).collect();
        assert_eq!((ticks[0], ticks[1], ticks[99]), (FIRST_TICK, 2 * FIRST_TICK, LONGEST_TICK));
        assert!(ticks.is_sorted());
        for (nth, &tick) in ticks.iter().enumerate() {
            let polled: Duration = ticks[..nth].iter().sum();
            assert!(tick <= (polled + FIRST_TICK).min(SHORT_TICK).max(polled / SHARE), "{tick:?} after {polled:?}");
        }
        policy.note_listening(&POLLED);
        assert!(policy.tick() > SHORT_TICK, "the program was outside the engine once");
        policy.note_listening(&WakeUp { since_poll: POLLS_WITHIN, ..POLLED });
        assert_eq!(policy.tick(), FIRST_TICK);
    }

    #[test]
    fn repeated_absence_shortens_tick() {
        let mut policy = Background::default();
        let polled: Duration = (0..10_000).map(|_| policy.tick()).sum();
        assert!(polled > Duration::from_secs(60));
        (0..4).for_each(|_| policy.note_listening(&POLLED));
        assert!(policy.tick() <= SHORT_TICK);
    }

    #[test]
    fn course_follows_from_receiving_thread() {
        let none = WakeUp { since_poll: POLLS_WITHIN, ..POLLED };
        let waiter = WakeUp { waiter_receives: true, ..POLLED };
        for (seen, is_present, course) in [
            (POLLED, true, Course::Leave(UNNEEDED)),
            (POLLED, false, Course::Serve),
            (none, true, Course::Serve),
            (WakeUp { is_receiving: true, ..none }, true, Course::Leave(UNNEEDED)),
            (WakeUp { is_receiving: true, ..none }, false, Course::Leave(UNNEEDED)),
            (waiter, false, Course::Leave(FULL)),
            (WakeUp { since_poll: POLLS_WITHIN, ..waiter }, false, Course::Serve),
        ] {
            assert_eq!(Background::default().course(&seen, || is_present), course, "{seen:?}, present: {is_present}");
        }
    }

    #[test]
    fn muted_thread_trusts_recent_poll() {
        let muted = WakeUp { is_muted: true, ..POLLED };
        let late = WakeUp { since_poll: RECENT, ..muted };
        let mut policy = Background::default();
        assert_eq!(policy.course(&POLLED, || false), Course::Serve, "it may have been the last poll");
        assert_eq!(policy.course(&late, || false), Course::Serve, "no thread has received since then");
        assert_eq!(policy.course(&muted, || false), Course::Leave(UNNEEDED));
    }

    #[test]
    fn consecutive_unneeded_wakeups_cost_more() {
        let mut policy = Background::default();
        let mut costs = |seen: [bool; 7]| seen.map(|is_present| policy.course(&POLLED, || is_present));
        let [a, b, c, d, e] = [1, 1, 2, 4, 8].map(Course::Leave);
        assert_eq!(costs([true, true, true, true, true, false, true]), [a, b, c, d, e, Course::Serve, a]);
        (0..40).for_each(|_| match policy.course(&POLLED, || true) {
            Course::Leave(points) => assert!(points <= FULL),
            Course::Serve => panic!("the program is receiving"),
        });
    }

    #[test]
    fn thread_spins_only_for_sleeping_programs() {
        let found = Served { found: true, is_polled: false, is_armed: false, receives_before_sleep: false };
        for (served, may_spin, wants_spin, is_wanted) in [
            (found, true, true, false),
            (found, false, false, false),
            (Served { found: false, ..found }, true, false, false),
            (Served { is_polled: true, ..found }, true, false, true),
            (Served { is_polled: true, is_armed: true, ..found }, false, true, true),
            (Served { receives_before_sleep: true, is_armed: true, ..found }, true, false, false),
        ] {
            assert_eq!((served.wants_spin(|| may_spin), served.is_wanted()), (wants_spin, is_wanted), "{served:?}");
        }
    }
}
