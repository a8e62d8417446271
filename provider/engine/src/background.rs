//! The background thread: serves programs that do not poll.
//!
//! It must not compete with a program that polls, nor sleep while a program waits for its memory to
//! change. So it keeps a score. At each wake-up it checks if a thread of the program is inside the
//! engine: if so, it loses a point; if not, and it received packets, it gains two. At zero it
//! mutes the sockets and only wakes after a tick. Arming a completion queue fills the score, since
//! the program is about to sleep; a waiter that receives itself ([`crate::event_wait`]) fills it
//! when it gives up. [`crate::poll_policy`] decides; this module collects its inputs and acts.

use crate::engine::Engine;
use crate::poll_policy::spin::{Poll, SpinGovernor};
use crate::poll_policy::{Background, Course, SERVED, SHORT_TICK, Served, WakeUp};
use crate::poller::{Poller, Watch, Woken};
use crate::presence::AWAKE;
use crate::routes::BEFORE_HELD;
use crate::rx_state::PollSource;
use crate::scheduler::Task;
use crate::thread::{self, Thread};
use crate::tx::Batch;
use roxe_base::clock;
use roxe_base::own_threads::OwnThread;
use roxe_check::trace;
use roxe_net::runtime_dir;
use roxe_transport::time::Instant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Maximum time for which the thread spins before it checks for events other than packets.
const HELD_ROUND: Duration = Duration::from_millis(1);

struct Sleep {
    watch: Watch,
    until: Option<Instant>,
    now: Instant,
}

impl Sleep {
    /// Sleeps for at most `tick` without being woken by packets.
    fn muted(until: Option<Instant>, now: Instant, tick: Duration) -> Self {
        let until = until.into_iter().chain([now.after(tick)]).min();
        Self { watch: Watch::Quiet, until, now }
    }

    /// Writes out the trace and limits the sleep to its interval.
    fn for_trace(self) -> Self {
        if !trace::is_on() {
            return self;
        }
        trace::write_out();
        Self { until: self.until.into_iter().chain([self.now.after(trace::WRITE_INTERVAL)]).min(), ..self }
    }
}

/// State that the thread keeps between wake-ups.
#[derive(Debug, Default)]
struct Experience {
    policy: Background,
    governor: SpinGovernor,
}

pub(crate) fn prepare() {
    thread::prefer_short_slices();
    // Allocates the buffer of this thread now, not at its first packet.
    Batch::put_back(Batch::take());
}

/// Runs the thread until the engine is dropped or no thread of the program is left.
pub(crate) fn run(engine: &Weak<Engine>, thread: &Thread) {
    let own = OwnThread::begin();
    let (mut woken, mut experience) = (Woken::Other, Experience::default());
    while let Some(sleep) = thread.turn(|| Some(engine.upgrade()?.wake_up(thread.poller(), woken, &mut experience))) {
        let check_at = own.look_again_after().map(|after| sleep.now.after(after));
        woken = thread.poller().sleep(sleep.watch, sleep.until.into_iter().chain(check_at).min(), sleep.now);
        if own.is_left_over() {
            break;
        }
    }
    trace::write_out();
}

impl Engine {
    /// Handles a wake-up and returns the next sleep.
    fn wake_up(&self, poller: &Poller, woken: Woken, experience: &mut Experience) -> Sleep {
        let handle_wake_up = || {
            match woken {
                Woken::LinkEvents => self.follow_interface(),
                Woken::Line => self.poll_ring_controls(),
                Woken::Room => self.on_send_room(poller),
                Woken::Status => self.answer_status(),
                Woken::Other => {}
            }
            runtime_dir::sweep_after_death();
            self.round(experience)
        };
        catch_unwind(AssertUnwindSafe(handle_wake_up))
            .unwrap_or_else(|_| {
                // A bug must not silence the device; the packet that caused the panic is lost.
                self.counters().panics.add(1);
                Sleep::muted(None, clock::now(), SHORT_TICK)
            })
            .for_trace()
    }

    /// Serves, unless the program does, and decides how to sleep.
    fn round(&self, experience: &mut Experience) -> Sleep {
        let presence = &self.scheduler.presence;
        presence.sleeps_until.store(AWAKE, Relaxed);
        self.rings.awake();
        let now = clock::now();
        self.steer(now);
        self.publish_counters(now);
        let seen = self.observe(now);
        match experience.policy.course(&seen, || presence.is_present()) {
            Course::Leave(points) => {
                let is_muted = presence.mute(points);
                // A waiter may have stopped receiving since then.
                if is_muted && (!seen.waiter_receives || presence.waiters.receive(now)) {
                    return Sleep::muted(self.scheduler.due(Task::Steering), now, experience.policy.tick());
                }
            }
            Course::Serve => {
                self.serve_woken(&seen, &experience.governor, now);
                self.await_held(now);
            }
        }
        presence.muting.unmute();
        experience.policy.note_listening(&seen);
        self.plan_sleep()
    }

    fn observe(&self, now: Instant) -> WakeUp {
        let presence = &self.scheduler.presence;
        WakeUp {
            since_poll: presence.age(now),
            is_receiving: self.rx.is_locked(),
            waiter_receives: presence.waiters.receive(now),
            is_muted: presence.muting.is_muted(),
        }
    }

    /// Receives for a program that does not, and spins for a while if that is worthwhile.
    fn serve_woken(&self, seen: &WakeUp, governor: &SpinGovernor, now: Instant) {
        let (presence, is_polled) = (&self.scheduler.presence, seen.is_polled());
        let found = self.serve(PollSource::Woken, now);
        if found {
            presence.note_served();
        }
        let (is_armed, receives_before_sleep) = (presence.waits_for_event(), presence.receives_before_sleep());
        let served = Served { found, is_polled, is_armed, receives_before_sleep };
        if served.is_wanted() {
            presence.muting.add(SERVED);
        }
        if served.wants_spin(|| governor.may_spin()) {
            self.spin(governor);
        }
    }

    /// Receives and runs timers, unless another thread does. Returns true if packets were received.
    fn serve(&self, source: PollSource, mut now: Instant) -> bool {
        let mut rx = self.rx.try_lock();
        // Blocks if a deadline has passed: the holder may have polled before it passed, and may
        // have been preempted since. Retrying instead would keep the holder from running.
        if rx.is_none() && self.next_deadline().is_some_and(|due| due <= now) {
            (rx, now) = (Some(self.rx.lock()), clock::now());
        }
        let found = rx.is_some_and(|rx| self.visit(rx, source, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// Spins for a while, so that a peer that is about to respond need not wake the thread.
    fn spin(&self, governor: &SpinGovernor) {
        let last_poll = self.scheduler.presence.last_poll.load(Relaxed);
        governor.spin_until(self.default_spin_time(), || {
            let now = clock::now();
            let found = self.serve(PollSource::Spinning, now);
            if found {
                governor.note_find();
            }
            self.publish_counters(now);
            if self.rings.answers.are_due(now) {
                self.poll_ring_controls();
            }
            match found {
                _ if self.scheduler.presence.last_poll.load(Relaxed) != last_poll
                    && !self.scheduler.presence.waits_for_event() =>
                {
                    Poll::Enough
                }
                true => Poll::Found,
                false => Poll::Empty,
            }
        });
    }

    /// Spins while a packet that a fault rule delays is due soon, at most for [`HELD_ROUND`].
    fn await_held(&self, start: Instant) {
        while let Some(due) = self.held_until() {
            let now = clock::now();
            if due > now.after(BEFORE_HELD) || now.since(start) > HELD_ROUND {
                return;
            }
            self.serve(PollSource::Spinning, now);
            std::thread::yield_now();
        }
    }

    /// Publishes the next deadline, then reads it again: a thread that adds an earlier deadline
    /// meanwhile either sees the published one, or this function sees the earlier one.
    fn plan_sleep(&self) -> Sleep {
        self.publish_counters(clock::now());
        loop {
            let until = self.wake_deadline();
            self.scheduler.presence.sleeps_until.store(until.map_or(u64::MAX, |until| until.0), SeqCst);
            if self.wake_deadline() == until {
                let now = clock::now();
                // Packets that entered a ring meanwhile rang no doorbell.
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
    fn long_receive_keeps_thread_present() {
        let engine = private_engine(config().unwrap());
        let _held = engine.rx.lock();
        let now = clock::now();
        engine.scheduler.presence.note_poll(now);
        assert!(engine.observe(now.after(Duration::from_secs(1))).is_polled());
    }
}
