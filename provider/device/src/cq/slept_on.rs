//! Looks once a second after a completion queue that has completions, while the checker is on:
//! whether a thread sleeps in front of its channel. Touches nothing.

use roxe_base::clock;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long without a poll it is time to look.
pub(super) const LONG: Duration = Duration::from_secs(1);

/// What is looked after.
pub(super) trait Watched: fmt::Debug + Send + Sync {
    /// Looks, and returns when to do so again; `None` if there is nothing left to look after.
    fn look(&self) -> Option<Instant>;

    /// Lets `deadline` come at this time.
    fn wait(&self, at: Instant, deadline: Weak<dyn Deadline>);
}

/// Looks after a queue from its first unpolled completion on, until it is empty.
#[derive(Debug)]
pub(super) struct SleptOn {
    me: Weak<Self>,
    queue: Weak<dyn Watched>,
}

impl SleptOn {
    /// To be kept by the queue.
    pub(super) fn begin(queue: Weak<dyn Watched>) -> Arc<dyn Deadline> {
        let watch = Arc::new_cyclic(|me| Self { me: Weak::clone(me), queue });
        if let Some(queue) = watch.queue.upgrade() {
            watch.wait(&*queue, clock::now().after(LONG));
        }
        watch
    }

    fn wait(&self, queue: &dyn Watched, at: Instant) {
        queue.wait(at, Weak::clone(&self.me) as _);
    }
}

impl Deadline for SleptOn {
    fn on_deadline(&self, _: Instant) {
        if let Some(queue) = self.queue.upgrade()
            && let Some(at) = queue.look()
        {
            self.wait(&*queue, at);
        }
    }
}
