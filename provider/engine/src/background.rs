//! The background thread: does for programs that do not poll what polling does for the others.
//!
//! The difficulty is to stay out of the way of a program that does poll. If every packet woke this thread, it would take
//! the processor from the program and cost the sender an interrupt to another core; if it slept too deeply, a program
//! that waits for its memory to change instead of polling would never see a packet. So it *watches*: each time it wakes
//! it looks whether a thread of the program is inside the engine right now. If so, one point is taken from the score; if
//! not, and there was something to receive, two points are added. At zero points it mutes the sockets and only looks
//! again after a tick. A busy poller is inside nearly always, so the score goes to zero; one that waits on memory is
//! outside when its packets come, so it stays up. Arming a completion queue fills the score: the program is about to
//! sleep. If it receives itself before it does ([`crate::event_wait`]), the score is filled when it gives up.

mod muting;

use crate::engine::Engine;
use crate::event_wait::Waiters;
use crate::poller::{Poller, Watch, Woken};
use crate::rx::{Rx, Visitor};
use crate::spinning::{Look, SpinGovernor, ThisProcessor};
use crate::thread::{self, Thread};
use crate::tx::Batch;
use muting::{FULL, Muting};
use roxe_base::clock;
use roxe_base::lock::{MutexGuard, rank};
use roxe_net::runtime_dir;
use roxe_transport::time::Instant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// How often a muted thread looks whether the program still polls, after it always did.
const TICK: Duration = Duration::from_millis(1);
/// The first look after muting comes so soon; each that finds the program polling doubles the time to the next.
const FIRST_TICK: Duration = Duration::from_micros(62);
/// The longest while acknowledgements wait for answers: such a program may look at its memory only, once something has
/// disturbed the two.
const DELAYED_ACK_TICK: Duration = Duration::from_micros(250);
/// How long it watches for a thread of the program, which leaves the engine for some nanoseconds between two polls.
const WATCH: Duration = Duration::from_micros(1);
/// Score: what a served and an unneeded wake-up change. From the second unneeded one in a row on each costs
/// twice as much as the one before: what woke the thread wakes it again until the program has taken it, and that program may
/// wait for this very processor. Thirty of them took 100 us.
const SERVED: i32 = 2;
const UNNEEDED: i32 = 1;
/// A program that polls more often than this after arming is not waiting for the event.
const POLLS_AFTER_ARMING: u32 = 4;
/// The thread is awake, or will look soon of its own accord.
const AWAKE: u64 = 0;

/// What threads of the program and the background thread tell each other. All of it is advice, but for `sleeps_until`.
#[derive(Debug)]
pub(crate) struct Presence {
    /// When a thread of the program last came in, nanoseconds.
    last_poll: AtomicU64,
    /// Whether one is inside. Several threads overwrite each other here; the next poll corrects it.
    inside: AtomicBool,
    polls_since_arming: AtomicU32,
    muting: Muting,
    /// Threads of the program that wait for an event, and may receive meanwhile.
    pub(crate) waiters: Waiters,
    /// It waits in this way, so arming need not wake the background thread.
    pub(crate) waits_itself: AtomicBool,
    /// An acknowledgement has waited for the program's answer since the last look.
    acks_are_delayed: AtomicBool,
    /// The deadline that the sleeping thread will wake up for; [`AWAKE`] if there is nothing to tell it.
    sleeps_until: AtomicU64,
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
            acks_are_delayed: AtomicBool::new(false),
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

    /// It answers its peer at once, and again and again.
    pub(crate) fn note_delayed_ack(&self) {
        self.acks_are_delayed.store(true, Relaxed);
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

    /// Whether a thread that sleeps would oversleep `deadline`. Ask after the deadline is published.
    pub(crate) fn oversleeps(&self, deadline: Instant) -> bool {
        let until = self.sleeps_until.load(SeqCst);
        until > deadline.0 && self.sleeps_until.compare_exchange(until, deadline.0, SeqCst, Relaxed).is_ok()
    }

    fn age(&self, now: Instant) -> Duration {
        now.since(Instant(self.last_poll.load(Relaxed)))
    }

    /// Whether a thread of the program is inside, or comes in within [`WATCH`].
    fn is_present(&self) -> bool {
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

    fn waits_for_event(&self) -> bool {
        self.polls_since_arming.load(Relaxed) <= POLLS_AFTER_ARMING
    }

    /// A thread of the program is there. Whether the background thread may sleep however many packets come, and how long.
    fn mute(&self, experience: &mut Experience, now: Instant) -> Option<Duration> {
        let is_sure = self.waiters.receive(now);
        let points = if is_sure { FULL } else { experience.note_unneeded() };
        if self.muting.add(-points) > 0 {
            return None;
        }
        let still = self.muting.mute() && (!is_sure || self.waiters.receive(now));
        still.then(|| experience.next_tick(self.acks_are_delayed.swap(false, Relaxed)))
    }

    /// In the child of a fork, where no thread waits.
    pub(crate) fn abandon(&self) {
        self.waiters.abandon();
    }

    /// The thread has received something. A program that armed and waits elsewhere, as with `poll(2)`, wants to be woken the
    /// next time.
    fn note_served(&self) {
        if self.waits_for_event() && !self.waiters.exist() {
            self.waits_itself.store(false, Relaxed);
        }
    }
}

/// What the thread has learnt.
#[derive(Debug, Default)]
struct Experience {
    /// Looks in a row that found the program polling since the thread was muted.
    muted_looks: u32,
    /// Wake-ups in a row that were not needed.
    unneeded: u32,
    governor: SpinGovernor,
}

impl Experience {
    /// How long the thread stays muted until its next look.
    fn next_tick(&mut self, acks_are_delayed: bool) -> Duration {
        let looks = self.muted_looks;
        self.muted_looks = looks.saturating_add(1);
        let longest = if acks_are_delayed { DELAYED_ACK_TICK } else { TICK };
        FIRST_TICK.saturating_mul(1 << looks.min(8)).min(longest)
    }

    /// The program receives what woke the thread. How many points that costs.
    fn note_unneeded(&mut self) -> i32 {
        let before = self.unneeded;
        self.unneeded = before.saturating_add(1);
        UNNEEDED << before.saturating_sub(1).min(FULL.ilog2())
    }
}

/// How the thread sleeps next.
struct Sleep {
    watch: Watch,
    until: Option<Instant>,
    now: Instant,
}

impl Sleep {
    /// For `tick` at most, undisturbed by packets.
    fn muted(until: Option<Instant>, now: Instant, tick: Duration) -> Self {
        let until = until.into_iter().chain([now.after(tick)]).min();
        Self { watch: Watch::Quiet, until, now }
    }
}

/// What the thread does first.
pub(crate) fn prepare() {
    thread::prefer_short_slices();
    // The buffer of this thread exists from now on, not from its first packet on.
    Batch::put_back(Batch::take());
}

/// The body of the thread; ends when nobody uses the engine any more.
pub(crate) fn run(engine: &Weak<Engine>, thread: &Thread) {
    let (mut woken, mut experience) = (Woken::Other, Experience::default());
    while let Some(sleep) = thread.turn(|| Some(engine.upgrade()?.wake_up(thread.poller(), woken, &mut experience))) {
        woken = thread.poller().sleep(sleep.watch, sleep.until, sleep.now);
    }
}

impl Engine {
    /// What the background thread does when it wakes up, and how it sleeps next.
    fn wake_up(&self, poller: &Poller, woken: Woken, experience: &mut Experience) -> Sleep {
        let awake = || {
            match woken {
                Woken::LinkEvents => self.follow_interface(),
                Woken::Line => self.tend_rings(),
                Woken::Room => self.on_send_room(poller),
                Woken::Other => {}
            }
            runtime_dir::sweep_after_death();
            self.round(experience)
        };
        catch_unwind(AssertUnwindSafe(awake)).unwrap_or_else(|_| {
            // A bug of ours must not silence the device; the packet that met it is lost.
            self.counters().panics.add(1);
            Sleep::muted(None, clock::now(), TICK)
        })
    }

    /// One round: serve what there is, unless the program does it, and decide how to sleep.
    fn round(&self, experience: &mut Experience) -> Sleep {
        let presence = &self.presence;
        presence.sleeps_until.store(AWAKE, Relaxed);
        self.rings().awake();
        let now = clock::now();
        self.steer(now);
        self.tell_counters(now);
        let polled_recently = self.polled_recently(now);
        if polled_recently && (presence.waiters.receive(now) || presence.is_present()) {
            if let Some(tick) = presence.mute(experience, now) {
                return Sleep::muted(self.steering_deadline(), now, tick);
            }
        } else {
            experience.unneeded = 0;
            let found = self.serve(Visitor::Woken, now);
            if found {
                presence.note_served();
            }
            if found && polled_recently {
                presence.muting.add(SERVED);
            }
            // Who waits itself looks around before it sleeps.
            let is_alone = !presence.waits_itself.load(Relaxed);
            let pays = || presence.waits_for_event() || !polled_recently && experience.governor.may_spin();
            if found && is_alone && pays() {
                self.spin(&experience.governor);
            }
            self.clear_kept();
        }
        presence.muting.unmute();
        experience.muted_looks = 0;
        self.plan_sleep()
    }

    /// Whether a thread of the program has come in to receive within the last [`TICK`], or is at it since then. On a slow
    /// processor 64 KB take as long, and to look again and again meanwhile took half of it: `ib_send_bw` in an emulated
    /// remote target ran at 24 instead of 46 to 58 MB/s.
    pub(crate) fn polled_recently(&self, now: Instant) -> bool {
        self.presence.age(now) < TICK || self.rx.is_locked()
    }

    /// Receives and runs timers, unless a thread of the program is at it. Whether there was anything to receive.
    fn serve(&self, visitor: Visitor, now: Instant) -> bool {
        let (rx, now) = self.receive_side(now);
        let found = rx.is_some_and(|rx| self.visit(rx, visitor, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// The receive side, unless another thread has it; and the time. Waits for it when something is due: the other may have
    /// looked before it was, and may not have the processor now. To look again and again would keep it from going on.
    fn receive_side(&self, now: Instant) -> (Option<MutexGuard<'_, rank::Rx, Rx>>, Instant) {
        let rx = self.rx.try_lock();
        if rx.is_none() && self.next_deadline().is_some_and(|due| due <= now) {
            return (Some(self.rx.lock()), clock::now());
        }
        (rx, now)
    }

    /// Keeps looking for a while: a peer that is about to answer must not pay for waking us.
    fn spin(&self, governor: &SpinGovernor) {
        let seen = self.presence.last_poll.load(Relaxed);
        governor.keep_looking(self.usual_patience(), ThisProcessor, || {
            let now = clock::now();
            let found = self.serve(Visitor::Spinning, now);
            if found {
                governor.note_find();
            }
            self.tell_counters(now);
            match found {
                _ if self.presence.last_poll.load(Relaxed) != seen && !self.presence.waits_for_event() => Look::Enough,
                true => Look::Found,
                false => Look::Vain,
            }
        });
    }

    /// Announces the next deadline, then looks at it again: whoever adds an earlier one meanwhile either finds the
    /// announcement or is found here.
    fn plan_sleep(&self) -> Sleep {
        self.tell_counters(clock::now());
        loop {
            let until = self.next_deadline();
            self.presence.sleeps_until.store(until.map_or(u64::MAX, |until| until.0), SeqCst);
            if self.next_deadline() == until {
                let now = clock::now();
                // Packets that came into a ring meanwhile have woken nobody.
                let until = if self.rings().prepare_sleep() { Some(now) } else { until };
                return Sleep { watch: Watch::All, until, now };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::private_engine;
    use roxe_base::config::config;

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
    fn ticks_grow_while_the_program_polls() {
        let mut experience = Experience::default();
        let ticks: Vec<Duration> = (0..20).map(|_| experience.next_tick(false)).collect();
        assert_eq!((ticks[0], ticks[1], ticks[19]), (FIRST_TICK, 2 * FIRST_TICK, TICK));
        assert!(ticks.is_sorted());
        assert_eq!(experience.next_tick(true), DELAYED_ACK_TICK);
    }

    #[test]
    fn a_few_unneeded_wake_ups_in_a_row_empty_the_score() {
        let (presence, mut experience) = (Presence::default(), Experience::default());
        presence.arm();
        let scores: Vec<_> = (0..6).map(|_| presence.muting.add(-experience.note_unneeded())).collect();
        assert_eq!(scores, [31, 30, 28, 24, 16, 0]);
        (0..40).for_each(|_| assert!(experience.note_unneeded() <= FULL));
    }

    #[test]
    fn arming_wakes_nobody_for_a_program_that_waits_itself_until_it_waits_elsewhere() {
        let presence = Presence::default();
        presence.waits_itself.store(true, Relaxed);
        presence.muting.mute();
        assert!(!presence.arm());
        let waiting = presence.waiters.come();
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

    #[test]
    fn who_receives_for_long_has_not_gone() {
        let engine = private_engine(config().unwrap());
        let _held = engine.rx.lock();
        let now = clock::now();
        engine.presence.note_poll(now);
        assert!(engine.polled_recently(now.after(Duration::from_secs(1))));
    }
}
