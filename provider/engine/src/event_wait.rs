//! A thread of the program that waits for an event receives for a while before it sleeps.
//!
//! What comes soon then wakes nobody: neither the background thread by its packet nor the program
//! by its event, and either costs more than all the rest of a message. Meanwhile the background
//! thread is muted like that of a program that polls.

use crate::engine::Engine;
use crate::poll_policy::spin::Look;
use crate::waiters::Waiters;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::uses::Counted;
use roxe_transport::time::Instant;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A thread that waits.
pub struct Wait<'a> {
    engine: &'a Engine,
    _counted: Counted<'a>,
    since: Instant,
    /// Whether it looked around in vain, or not at all.
    sleeps: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.sleeps {
            let waited = clock::now().since(self.since);
            self.engine.waiters().note_sleep(waited, self.engine.usual_patience());
        }
    }
}

impl Engine {
    /// The calling thread is going to sleep until `is_over`, which it is not yet: it looks around
    /// first. Keep the answer until it has slept.
    pub fn before_sleep(&self, is_over: impl Fn() -> bool) -> Wait<'_> {
        let (presence, waiters) = (&self.scheduler.presence, self.waiters());
        let counted = Counted::new(&waiters.waiting);
        presence.waits_itself.store(true, Relaxed);
        let mut wait = Wait { engine: self, _counted: counted, since: clock::now(), sleeps: false };
        // A thread that is cancelled must not hold locks of ours.
        wait.sleeps = uncancelled(|| !self.is_started() || !self.look_around(&is_over));
        if wait.sleeps {
            waiters.last_catch.store(0, SeqCst);
            if presence.hand_over() {
                self.scheduler.kick();
            }
        }
        wait
    }

    /// Receives until `is_over`, or nothing has come for a while. Whether it is over.
    fn look_around(&self, is_over: &impl Fn() -> bool) -> bool {
        let waiters = self.waiters();
        if !waiters.governor.may_spin() {
            return false;
        }
        let _counted = Counted::new(&waiters.looking);
        let look = || {
            let found = self.work(self.enter());
            self.scheduler.presence.leave();
            match found {
                _ if is_over() => Look::Enough,
                true => Look::Found,
                false => Look::Vain,
            }
        };
        let is_over = waiters.governor.keep_looking(waiters.patience(self.usual_patience()), look);
        if is_over {
            waiters.governor.note_find();
            waiters.last_catch.store(clock::now().0, SeqCst);
        }
        is_over
    }

    /// How long a thread looks around before it sleeps, if nothing is known.
    pub(crate) fn usual_patience(&self) -> Duration {
        Duration::from_micros(self.config.spin_us.into())
    }

    fn waiters(&self) -> &Waiters {
        &self.scheduler.presence.waiters
    }
}
