//! Completions that a program leaves in a queue while it sleeps in front of its channel, by
//! `epoll_wait`, `poll` or `select`: only while the checker is on.
//!
//! One look a second of a queue that has completions. Touches what [`sleepers`] reads.

use super::Cq;
use crate::sleepers::sleepers;
use roxe_base::clock;
use roxe_check::{Event, is_checking, tell};
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long without a poll the checker looks for threads that sleep.
const LONG: Duration = Duration::from_secs(1);

/// Looks after a queue from its first unpolled completion on, until it is empty.
#[derive(Debug)]
pub(super) struct SleptOn {
    me: Weak<Self>,
    cq: Weak<Cq>,
}

impl SleptOn {
    /// To be kept by the queue.
    pub(super) fn watch(cq: &Cq) -> Option<Arc<dyn Deadline>> {
        if !is_checking() || cq.channel.is_none() {
            return None;
        }
        let watch = Arc::new_cyclic(|me| Self { me: Weak::clone(me), cq: Weak::clone(&cq.me) });
        watch.look_at(cq, clock::now().after(LONG));
        Some(watch)
    }

    fn look_at(&self, cq: &Cq, at: Instant) {
        cq.engine().add_deadline(at, Weak::clone(&self.me) as _);
    }
}

impl Deadline for SleptOn {
    fn on_deadline(&self, _: Instant) {
        let Some(cq) = self.cq.upgrade() else { return };
        let Some(channel) = &cq.channel else { return };
        let (now, due) = {
            let mut state = cq.state.lock();
            if state.ring.is_empty() {
                state.slept_on = None;
                return;
            }
            (clock::now(), state.polled_at.after(LONG))
        };
        if now < due {
            return self.look_at(&cq, due);
        }
        // One that has an event to take does not sleep, or waits for an edge: see `unread`.
        if channel.has_no_events() {
            for sleeper in sleepers(channel.fd()) {
                tell(|| Event::Sleeps { cq: cq.id, thread: sleeper.thread, call: sleeper.call });
            }
        }
        self.look_at(&cq, now.after(LONG));
    }
}
