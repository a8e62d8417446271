//! The polling policy: from what was seen to what to do. Pure, but for one loop in `spin`: told the
//! time and what was seen, it knows no clock, makes no system call and wakes nobody.
//!
//! - here: whether the background thread serves, keeps looking, or leaves packets to the program,
//!   and for how long; for how long a thread that waits for an event looks around before it sleeps
//! - `spin`: when looking again and again ends, and whether it is in the way of others
//! - `idle`: when a thread that polls in vain yields
//! - `delayed_ack`: which acknowledgement waits for the program's next packet, and for how long
//!
//! What threads tell each other for this is in `presence`. The constants act on each other, so they
//! are tested together: what the policy saw in runs of real programs is in `traces/`, and tests
//! replay it.

pub(crate) mod delayed_ack;
pub(crate) mod idle;
pub(crate) mod spin;
#[cfg(test)]
mod traces;

use crate::presence::muting::FULL;
pub use delayed_ack::DelayedAck;
use std::time::Duration;

/// Who has come in to receive within this time polls, for all that the thread knows. On a slow
/// processor a poll that takes in 64 KB lasts as long.
const POLLS_WITHIN: Duration = Duration::from_millis(1);
/// The first look after muting comes so soon, because the program may have polled just this once.
/// The next ones come when it has polled twice as long, up to [`SHORT_TICK`]: on a slow processor,
/// to look again and again during one long poll took half of it, and `ib_send_bw` in an emulated
/// remote target ran at 24 instead of 46 to 58 MB/s.
pub(crate) const FIRST_TICK: Duration = Duration::from_micros(62);
pub(crate) const SHORT_TICK: Duration = Duration::from_millis(1);
/// A program that stops polling without arming anything is served after one tick. That may take
/// this part of the time for which it has polled, up to [`LONGEST_TICK`]: each look takes a pinned
/// program 20 to 60 us, which one message in a hundred met at a look each millisecond.
const SHARE: u32 = 16;
const LONGEST_TICK: Duration = Duration::from_millis(8);
/// While the thread is muted nobody else receives: a program that has polled within this time does
/// so all the time, although it is outside of the engine at this moment. Where it shares the
/// thread's processor it always stands still while the thread looks, and since up to 25 us before,
/// from the timer's interrupt on. Looks that found it outside were followed by up to ten wake-ups
/// of 20 us each, which two pinned programs saw 300 times a second.
pub(crate) const RECENT: Duration = Duration::from_micros(50);
/// A program that polls more often than this after arming is not waiting for the event.
pub(crate) const POLLS_AFTER_ARMING: u32 = 4;
/// Score: what a wake-up that had packets to serve adds, and what one that the program did not need
/// takes. From the second unneeded one in a row on each costs twice as much as the one before: what
/// woke the thread wakes it again until the program has taken it, and that program may wait for
/// this very processor. Thirty of them took 100 us.
pub(crate) const SERVED: i32 = 2;
pub(crate) const UNNEEDED: i32 = 1;

/// What the thread sees as it wakes up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUp {
    /// How long ago a thread of the program came in to receive.
    pub(crate) since_poll: Duration,
    /// Whether somebody has the receive side at this moment.
    pub(crate) is_receiving: bool,
    /// Whether a thread that waits for an event receives until it sleeps.
    pub(crate) waiter_receives: bool,
    /// The thread was muted until now, and nobody has handed over meanwhile.
    pub(crate) is_muted: bool,
}

impl WakeUp {
    /// Whether a thread of the program has come in to receive [within so short a time](
    /// POLLS_WITHIN), or is at it since then.
    pub(crate) fn is_polled(&self) -> bool {
        self.since_poll < POLLS_WITHIN || self.is_receiving
    }
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// It leaves the packets to the program and takes so many points from the score; at zero points
    /// it is muted.
    Leave(i32),
    /// It receives.
    Serve,
}

/// What has come of receiving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// There was something to receive.
    pub(crate) found: bool,
    /// [`WakeUp::is_polled`] was true.
    pub(crate) is_polled: bool,
    /// The program has armed, and waits since then.
    pub(crate) is_armed: bool,
    /// Its threads receive themselves before they sleep.
    pub(crate) waits_itself: bool,
}

impl Served {
    /// Whether the program wanted this wake-up, although it polls: that adds [`SERVED`] to the
    /// score.
    pub(crate) fn is_wanted(self) -> bool {
        self.found && self.is_polled
    }

    /// Whether the thread keeps looking, because the peer may be about to answer. Not beside a
    /// program that polls, nor for one that looks around before it sleeps. `may_spin` is asked only
    /// where nobody is known to wait.
    pub(crate) fn keeps_looking(self, may_spin: impl FnOnce() -> bool) -> bool {
        self.found && !self.waits_itself && (self.is_armed || !self.is_polled && may_spin())
    }
}

/// What the thread has learnt from one wake-up to the next.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// For how long looks have found the program polling, as far as it matters; half of it when one
    /// found it outside.
    muted: Duration,
    /// Wake-ups in a row that were not needed.
    unneeded: u32,
}

impl Background {
    /// What the thread does, having woken up. `is_present` looks for a moment whether a thread of
    /// the program is there; it is asked only where the answer matters.
    pub(crate) fn course(&mut self, seen: &WakeUp, is_present: impl FnOnce() -> bool) -> Course {
        let polls_alone = seen.is_muted && seen.since_poll < RECENT;
        if !seen.is_polled() || !(seen.waiter_receives || polls_alone || is_present()) {
            self.unneeded = 0;
            return Course::Serve;
        }
        if seen.waiter_receives {
            // It is known to go on until it hands over.
            return Course::Leave(FULL);
        }
        let before = self.unneeded;
        self.unneeded = before.saturating_add(1);
        Course::Leave(UNNEEDED << before.saturating_sub(1).min(FULL.ilog2()))
    }

    /// The thread is muted. For how long.
    pub(crate) fn tick(&mut self) -> Duration {
        let tick = (self.muted / SHARE).max((self.muted + FIRST_TICK).min(SHORT_TICK));
        self.muted = (self.muted + tick).min(LONGEST_TICK * SHARE);
        tick
    }

    /// The thread is not muted after all. A program that polls and was outside just then is still
    /// one that polls.
    pub(crate) fn note_listening(&mut self, seen: &WakeUp) {
        self.muted = if seen.is_polled() { self.muted / 2 } else { Duration::ZERO };
    }
}

/// A thread that received for itself while it waited is expected to wait again so soon.
pub(crate) const BETWEEN_WAITS: Duration = Duration::from_micros(50);
/// Who is woken within so many times the usual patience gave up too soon: the next ones are as
/// patient as that. A peer that sleeps needs about 150 us to answer, for which two threads have to
/// wake up. If each gives up before the other one has, both sleep before every message: two of five
/// waits ended so, and `ib_send_lat -e` took 17 us instead of 3.
pub(crate) const LONG: u32 = 4;

/// Whether a thread that found what it waited for so long ago will wait again at once.
pub(crate) fn is_expected_back(since_catch: Duration) -> bool {
    since_catch < BETWEEN_WAITS
}

/// Whether a thread that was woken so long after it began to wait gave up too soon.
pub(crate) fn gave_up_too_soon(waited: Duration, usual: Duration) -> bool {
    waited < usual * LONG
}

/// How long to look around; `are_patient`: the last thread that slept [`gave_up_too_soon`].
pub(crate) fn patience(usual: Duration, are_patient: bool) -> Duration {
    if are_patient { usual * LONG } else { usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLLED: WakeUp =
        WakeUp { since_poll: Duration::ZERO, is_receiving: false, waiter_receives: false, is_muted: false };

    #[test]
    fn a_tick_grows_while_the_program_polls_and_begins_anew_once_it_does_not() {
        let mut policy = Background::default();
        let ticks: Vec<Duration> = (0..100).map(|_| policy.tick()).collect();
        assert_eq!((ticks[0], ticks[1], ticks[99]), (FIRST_TICK, 2 * FIRST_TICK, LONGEST_TICK));
        assert!(ticks.is_sorted());
        for (nth, &tick) in ticks.iter().enumerate() {
            let polled: Duration = ticks[..nth].iter().sum();
            assert!(tick <= (polled + FIRST_TICK).min(SHORT_TICK).max(polled / SHARE), "{tick:?} after {polled:?}");
        }
        policy.note_listening(&POLLED);
        assert!(policy.tick() > SHORT_TICK, "it was outside for once");
        policy.note_listening(&WakeUp { since_poll: POLLS_WITHIN, ..POLLED });
        assert_eq!(policy.tick(), FIRST_TICK);
    }

    #[test]
    fn a_program_that_is_found_outside_again_and_again_is_looked_for_soon_however_long_it_has_polled() {
        let mut policy = Background::default();
        let polled: Duration = (0..10_000).map(|_| policy.tick()).sum();
        assert!(polled > Duration::from_secs(60));
        (0..4).for_each(|_| policy.note_listening(&POLLED));
        assert!(policy.tick() <= SHORT_TICK);
    }

    #[test]
    fn the_course_follows_from_who_receives() {
        let none = WakeUp { since_poll: POLLS_WITHIN, ..POLLED };
        let waiter = WakeUp { waiter_receives: true, ..POLLED };
        for (seen, is_present, course) in [
            (POLLED, true, Course::Leave(UNNEEDED)),
            (POLLED, false, Course::Serve),
            (none, true, Course::Serve),
            (WakeUp { is_receiving: true, ..none }, true, Course::Leave(UNNEEDED)),
            (waiter, false, Course::Leave(FULL)),
            (WakeUp { since_poll: POLLS_WITHIN, ..waiter }, false, Course::Serve),
        ] {
            assert_eq!(Background::default().course(&seen, || is_present), course, "{seen:?}, present: {is_present}");
        }
    }

    #[test]
    fn a_muted_thread_leaves_packets_to_a_program_that_has_polled_just_now_wherever_it_is() {
        let muted = WakeUp { is_muted: true, ..POLLED };
        let late = WakeUp { since_poll: RECENT, ..muted };
        let mut policy = Background::default();
        assert_eq!(policy.course(&POLLED, || false), Course::Serve, "it may have been the last poll");
        assert_eq!(policy.course(&late, || false), Course::Serve, "nobody receives since then");
        assert_eq!(policy.course(&muted, || false), Course::Leave(UNNEEDED));
    }

    #[test]
    fn unneeded_wake_ups_in_a_row_cost_more_and_more_until_one_was_needed() {
        let mut policy = Background::default();
        let mut costs = |seen: [bool; 7]| seen.map(|is_present| policy.course(&POLLED, || is_present));
        let [a, b, c, d, e] = [1, 1, 2, 4, 8].map(Course::Leave);
        assert_eq!(costs([true, true, true, true, true, false, true]), [a, b, c, d, e, Course::Serve, a]);
        (0..40).for_each(|_| match policy.course(&POLLED, || true) {
            Course::Leave(points) => assert!(points <= FULL),
            Course::Serve => panic!("the program is there"),
        });
    }

    #[test]
    fn the_thread_keeps_looking_for_sleeping_programs_only() {
        let found = Served { found: true, is_polled: false, is_armed: false, waits_itself: false };
        for (served, may_spin, keeps_looking, is_wanted) in [
            (found, true, true, false),
            (found, false, false, false),
            (Served { found: false, ..found }, true, false, false),
            (Served { is_polled: true, ..found }, true, false, true),
            (Served { is_polled: true, is_armed: true, ..found }, false, true, true),
            (Served { waits_itself: true, is_armed: true, ..found }, true, false, false),
        ] {
            assert_eq!(
                (served.keeps_looking(|| may_spin), served.is_wanted()),
                (keeps_looking, is_wanted),
                "{served:?}"
            );
        }
    }
}
