//! A thread of the program that waits for an event first receives for a while.
//!
//! A packet that arrives soon then wakes neither the background thread nor, by its event, the
//! program. Meanwhile the background thread is muted as for a program that polls.

use crate::engine::Engine;
use crate::poll_policy::spin::Poll;
use crate::presence::{Awaited, Waiters};
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::uses::Counted;
use roxe_transport::time::Instant;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A waiting thread.
#[derive(Debug)]
pub struct Wait {
    engine: Arc<Engine>,
    awaited: Awaited,
    since: Instant,
    /// True if the thread sleeps, because all of its polls were empty, or it did not poll.
    sleeps: bool,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.engine.scheduler.presence.waits(self.awaited).threads.fetch_sub(1, SeqCst);
        if self.sleeps {
            let waited = clock::now().since(self.since);
            self.engine.waiters().note_sleep(waited, self.engine.default_spin_time());
        }
    }
}

impl Engine {
    /// Receives for a while before the calling thread sleeps until an event of the kind `awaited`,
    /// for which `is_over` returns true. The caller drops the result after the sleep.
    pub fn before_sleep(self: &Arc<Self>, awaited: Awaited, is_over: impl Fn() -> bool) -> Wait {
        let (presence, waiters) = (&self.scheduler.presence, self.waiters());
        let waits = presence.waits(awaited);
        waits.threads.fetch_add(1, SeqCst);
        waits.receive_first.store(true, Relaxed);
        let mut wait = Wait { engine: Arc::clone(self), awaited, since: clock::now(), sleeps: false };
        // A thread that is cancelled must not hold locks of the engine.
        wait.sleeps = uncancelled(|| !self.is_started() || !self.receive_until(&is_over));
        if wait.sleeps {
            waiters.last_catch.store(0, SeqCst);
            if presence.muting.hand_over() {
                self.scheduler.kick();
            }
        }
        wait
    }

    /// Receives until `is_over` returns true, or until no packet has arrived for a while. Returns
    /// true in the first case.
    fn receive_until(&self, is_over: &impl Fn() -> bool) -> bool {
        let waiters = self.waiters();
        if !waiters.governor.may_spin() {
            return false;
        }
        let _counted = Counted::new(&waiters.spinning);
        let poll = || {
            let found = self.work(self.enter());
            self.scheduler.presence.leave();
            match found {
                _ if is_over() => Poll::Enough,
                true => Poll::Found,
                false => Poll::Empty,
            }
        };
        let is_over = waiters.governor.spin_until(waiters.spin_time(self.default_spin_time()), poll);
        if is_over {
            waiters.governor.note_find();
            waiters.last_catch.store(clock::now().0, SeqCst);
        }
        is_over
    }

    pub(crate) fn default_spin_time(&self) -> Duration {
        Duration::from_micros(self.config.spin_us.into())
    }

    fn waiters(&self) -> &Waiters {
        &self.scheduler.presence.waiters
    }
}
