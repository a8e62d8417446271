//! A thread of the program that waits for an event receives for a while before it sleeps.
//!
//! What comes soon then wakes nobody: neither the background thread by its packet nor the program by its event, and either
//! costs more than all the rest of a message. Meanwhile the background thread is muted like that of a program that polls.

use super::background::CROWDED;
use super::{Engine, clock, poller};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A thread that waits.
pub(crate) struct Wait<'a>(&'a Engine);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.presence.waiting.fetch_sub(1, Relaxed);
    }
}

impl Engine {
    /// The calling thread is going to sleep until `is_over`, which it is not yet: it looks around first. Keep the answer until
    /// it has slept.
    pub(crate) fn before_sleep(&self, is_over: impl Fn() -> bool) -> Wait<'_> {
        let presence = &self.presence;
        presence.waiting.fetch_add(1, Relaxed);
        presence.waits_itself.store(true, Relaxed);
        let wait = Wait(self);
        // A thread that is cancelled must not hold locks of ours.
        let is_over = poller::uncancelled(|| self.is_started() && self.look_around(&is_over));
        if !is_over && presence.hand_over() {
            self.kick();
        }
        wait
    }

    /// Receives until `is_over`, or nothing has come for a while. Whether it is over.
    fn look_around(&self, is_over: &impl Fn() -> bool) -> bool {
        let (presence, crowd) = (&self.presence, &self.presence.crowd);
        if !crowd.may_spin() {
            return false;
        }
        let patience = Duration::from_micros(self.config.spin_us.into());
        let mut last_look = clock::now();
        let mut last_found = last_look;
        loop {
            let found = self.work();
            let done = is_over();
            if !found && !done {
                // Who shares this processor with the program may be the one that answers.
                std::thread::yield_now();
            }
            presence.leave();
            let now = clock::now();
            if done {
                crowd.note_find();
                return true;
            }
            if now.since(last_look) >= CROWDED {
                crowd.note_crowd();
                return false;
            }
            last_look = now;
            if found {
                last_found = now;
            } else if now.since(last_found) >= patience {
                return false;
            }
        }
    }
}
