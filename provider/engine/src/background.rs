//! The background thread: does for programs that do not poll what polling does for the others.
//!
//! The difficulty is to stay out of the way of a program that does poll. If every packet woke this
//! thread, it would take the processor from the program and cost the sender an interrupt to another
//! core; if it slept too deeply, a program that waits for its memory to change instead of polling
//! would never see a packet. So it *watches*: each time it wakes it looks whether a thread of the
//! program is inside the engine right now. If so, a point is taken from the score; if not, and
//! there was something to receive, two points are added. At zero points it mutes the sockets and
//! only looks again after a tick. A busy poller is inside nearly always, so the score goes to zero;
//! one that waits on memory is outside when its packets come, so it stays up. Arming a completion
//! queue fills the score: the program is about to sleep. If it receives itself before it does
//! ([`crate::event_wait`]), the score is filled when it gives up.
//! [`crate::poll_policy`] decides; this asks, and does it.

use crate::engine::Engine;
use crate::poll_policy::spin::{Look, SpinGovernor};
use crate::poll_policy::{Background, Course, SERVED, SHORT_TICK, Served, WakeUp};
use crate::poller::{Poller, Watch, Woken};
use crate::presence::AWAKE;
use crate::rx_state::{Rx, Visitor};
use crate::scheduler::Task;
use crate::thread::{self, Thread};
use crate::tx::Batch;
use roxe_base::clock;
use roxe_base::lock::{MutexGuard, rank};
use roxe_base::own_threads::OwnThread;
use roxe_check::trace;
use roxe_net::runtime_dir;
use roxe_transport::time::Instant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

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

    /// The same, not so long that the trace waits to be written, which it is now.
    fn for_trace(self) -> Self {
        if !trace::is_on() {
            return self;
        }
        trace::write_out();
        Self { until: self.until.into_iter().chain([self.now.after(trace::INTERVAL)]).min(), ..self }
    }
}

/// What the thread has learnt.
#[derive(Debug, Default)]
struct Experience {
    policy: Background,
    governor: SpinGovernor,
}

/// What the thread does first.
pub(crate) fn prepare() {
    thread::prefer_short_slices();
    // The buffer of this thread exists from now on, not from its first packet on.
    Batch::put_back(Batch::take());
}

/// The body of the thread; ends when the engine is no longer used, or no thread of the program is
/// left.
pub(crate) fn run(engine: &Weak<Engine>, thread: &Thread) {
    let own = OwnThread::begin();
    let (mut woken, mut experience) = (Woken::Other, Experience::default());
    while let Some(sleep) = thread.turn(|| Some(engine.upgrade()?.wake_up(thread.poller(), woken, &mut experience))) {
        let look = own.look_again_after().map(|after| sleep.now.after(after));
        woken = thread.poller().sleep(sleep.watch, sleep.until.into_iter().chain(look).min(), sleep.now);
        if own.is_left_over() {
            break;
        }
    }
    trace::write_out();
}

impl Engine {
    /// What the background thread does when it wakes up, and how it sleeps next.
    fn wake_up(&self, poller: &Poller, woken: Woken, experience: &mut Experience) -> Sleep {
        let awake = || {
            match woken {
                Woken::LinkEvents => self.follow_interface(),
                Woken::Line => self.tend_rings(),
                Woken::Room => self.on_send_room(poller),
                Woken::Status => self.tell_status(),
                Woken::Other => {}
            }
            runtime_dir::sweep_after_death();
            self.round(experience)
        };
        catch_unwind(AssertUnwindSafe(awake))
            .unwrap_or_else(|_| {
                // A bug of ours must not silence the device; the packet that met it is lost.
                self.counters().panics.add(1);
                Sleep::muted(None, clock::now(), SHORT_TICK)
            })
            .for_trace()
    }

    /// One round: serve what there is, unless the program does it, and decide how to sleep.
    fn round(&self, experience: &mut Experience) -> Sleep {
        let presence = &self.scheduler.presence;
        presence.sleeps_until.store(AWAKE, Relaxed);
        self.rings.awake();
        let now = clock::now();
        self.steer(now);
        self.tell_counters(now);
        let seen = self.what_is_seen(now);
        match experience.policy.course(&seen, || presence.is_present()) {
            Course::Leave(points) => {
                let is_muted = presence.mute(points);
                // Who waits may have handed over since then.
                if is_muted && (!seen.waiter_receives || presence.waiters.receive(now)) {
                    return Sleep::muted(self.scheduler.due(Task::Steering), now, experience.policy.tick());
                }
            }
            Course::Serve => self.serve_woken(&seen, &experience.governor, now),
        }
        presence.muting.unmute();
        experience.policy.note_listening(&seen);
        self.plan_sleep()
    }

    /// What the policy is told.
    fn what_is_seen(&self, now: Instant) -> WakeUp {
        WakeUp {
            since_poll: self.scheduler.presence.age(now),
            is_receiving: self.rx.is_locked(),
            waiter_receives: self.scheduler.presence.waiters.receive(now),
            is_muted: self.scheduler.presence.muting.is_muted(),
        }
    }

    /// Receives for a program that does not, and goes on for a while if that is worth it.
    fn serve_woken(&self, seen: &WakeUp, governor: &SpinGovernor, now: Instant) {
        let (presence, is_polled) = (&self.scheduler.presence, seen.is_polled());
        let found = self.serve(Visitor::Woken, now);
        if found {
            presence.note_served();
        }
        let (is_armed, waits_itself) = (presence.waits_for_event(), presence.waits_itself.load(Relaxed));
        let served = Served { found, is_polled, is_armed, waits_itself };
        if served.is_wanted() {
            presence.muting.add(SERVED);
        }
        if served.keeps_looking(|| governor.may_spin()) {
            self.spin(governor);
        }
    }

    /// Receives and runs timers, unless a thread of the program is at it. Whether there was
    /// anything to receive.
    fn serve(&self, visitor: Visitor, now: Instant) -> bool {
        let (rx, now) = self.receive_side(now);
        let found = rx.is_some_and(|rx| self.visit(rx, visitor, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// The receive side, unless another thread has it; and the time. Waits for it when something is
    /// due: the other may have looked before it was, and may not have the processor now. To look
    /// again and again would keep it from going on.
    fn receive_side(&self, now: Instant) -> (Option<MutexGuard<'_, rank::Rx, Rx>>, Instant) {
        let rx = self.rx.try_lock();
        if rx.is_none() && self.next_deadline().is_some_and(|due| due <= now) {
            return (Some(self.rx.lock()), clock::now());
        }
        (rx, now)
    }

    /// Keeps looking for a while: a peer that is about to answer must not pay for waking us.
    fn spin(&self, governor: &SpinGovernor) {
        let seen = self.scheduler.presence.last_poll.load(Relaxed);
        governor.keep_looking(self.usual_patience(), || {
            let now = clock::now();
            let found = self.serve(Visitor::Spinning, now);
            if found {
                governor.note_find();
            }
            self.tell_counters(now);
            if self.rings.answers.are_due(now) {
                self.tend_rings();
            }
            match found {
                _ if self.scheduler.presence.last_poll.load(Relaxed) != seen
                    && !self.scheduler.presence.waits_for_event() =>
                {
                    Look::Enough
                }
                true => Look::Found,
                false => Look::Vain,
            }
        });
    }

    /// Announces the next deadline, then looks at it again: whoever adds an earlier one meanwhile
    /// either finds the announcement or is found here.
    fn plan_sleep(&self) -> Sleep {
        self.tell_counters(clock::now());
        loop {
            let until = self.next_deadline();
            self.scheduler.presence.sleeps_until.store(until.map_or(u64::MAX, |until| until.0), SeqCst);
            if self.next_deadline() == until {
                let now = clock::now();
                // Packets that came into a ring meanwhile have woken nobody.
                let until = if self.rings.prepare_sleep() { Some(now) } else { until };
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
    fn who_receives_for_long_has_not_gone() {
        let engine = private_engine(config().unwrap());
        let _held = engine.rx.lock();
        let now = clock::now();
        engine.scheduler.presence.note_poll(now);
        assert!(engine.what_is_seen(now.after(Duration::from_secs(1))).is_polled());
    }
}
