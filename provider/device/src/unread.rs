//! Events that a program leaves unread, for the checker: which have lain there for a second, and
//! whether somebody sleeps who should have taken them.
//!
//! Only while the checker is on. Touches what [`sleepers`] reads.

use crate::event::{AsyncEventKind, EventQueue};
use crate::sleepers::sleepers;
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, is_checking, tell};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long the checker looks at what lies there.
const LONG: Duration = Duration::from_secs(1);

/// Looks after an event that waits for the program. Once the event is taken it is gone, and nobody
/// looks.
#[derive(Debug)]
struct Unread<T> {
    me: Weak<Self>,
    engine: Weak<Engine>,
    /// Where it waits, and what names that for the checker.
    events: Weak<EventQueue<T>>,
    channel: ObjectId,
    /// What it is and happened to, if the object does not survive it, and whether that is told.
    fatal: Option<(ObjectId, AsyncEventKind)>,
    is_told: AtomicBool,
}

/// Tells the checker, while it is on, if an event that comes to `events` now lies there for long:
/// of one that an object does not survive, and if it is the oldest and a thread sleeps that should
/// have taken it. To be kept with the event.
pub(crate) fn watch<T: fmt::Debug + Send + 'static>(
    engine: &Arc<Engine>,
    (events, channel): (&Arc<EventQueue<T>>, ObjectId),
    fatal: Option<(ObjectId, AsyncEventKind)>,
) -> Option<Arc<dyn Deadline>> {
    is_checking().then(|| {
        let (ours, events, is_told) = (Arc::downgrade(engine), Arc::downgrade(events), AtomicBool::new(false));
        let unread = |me: &Weak<_>| Unread { me: Weak::clone(me), engine: ours, events, channel, fatal, is_told };
        let unread = Arc::new_cyclic(unread);
        unread.look_later(engine);
        unread as _
    })
}

impl<T: fmt::Debug + Send + 'static> Unread<T> {
    fn look_later(&self, engine: &Engine) {
        engine.add_deadline(clock::now().after(LONG), Weak::clone(&self.me) as _);
    }
}

impl<T: fmt::Debug + Send + 'static> Deadline for Unread<T> {
    fn on_deadline(&self, _: Instant) {
        if let Some((source, kind)) = self.fatal.filter(|_| !self.is_told.swap(true, Ordering::Relaxed)) {
            tell(|| Event::AsyncUnread { source, kind: &kind });
        }
        let Some((events, engine)) = self.events.upgrade().zip(self.engine.upgrade()) else { return };
        match events.oldest_of(self).filter(|_| sleepers(events.fd()).iter().any(|sleeper| sleeper.by_edges)) {
            Some((source, count)) => tell(|| Event::Unread { channel: self.channel, source, count }),
            None => self.look_later(&engine),
        }
    }
}
