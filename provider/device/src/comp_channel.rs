//! Completion channels: where completion queues announce that they have something.
//!
//! A program that is about to sleep on one lets the engine receive first. Touches its queue of
//! events and the engine.

use crate::context::Context;
use crate::engine_set::EngineSet;
use crate::event::EventQueue;
use crate::sleepers::watch_unread;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_check::{Event, Made, Tracked, is_on, tell};
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long the checker looks at what a thread waits for.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Where completion queues announce that they have something (`man ibv_create_comp_channel`).
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    engines: EngineSet,
    /// The `user` tokens of completion queues.
    events: Arc<EventQueue<u64>>,
    uses: UseCount,
    tracked: Tracked,
}

/// A thread of the program waits for an event of a channel.
#[derive(Debug)]
struct LongWait {
    channel: ObjectId,
}

impl Deadline for LongWait {
    fn on_deadline(&self, _deadline: Instant) {
        tell(|| Event::StillWaits { channel: self.channel });
    }
}

impl Context {
    /// A new completion channel.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Error> {
        let (context, events, uses) = (Arc::clone(self), Arc::new(EventQueue::new()?), UseCount::default());
        let tracked = Tracked::new(ObjectId::next(), || Made::Channel { context: self.id() });
        let engines = EngineSet::new(self.engine().of_this_thread());
        Ok(Arc::new(CompChannel { context, engines, events, uses, tracked }))
    }
}

impl CompChannel {
    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Readable while events are pending. Stays owned by the channel; may be polled and made
    /// non-blocking.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The descriptor of [`CompChannel::fd`], borrowed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for the next event and returns the `user` token of its CQ; EAGAIN if the descriptor is
    /// non-blocking and nothing is pending, EINTR as `read(2)` gives it.
    pub fn get_event(&self) -> Result<u64, Error> {
        let _wait = self.before_wait();
        self.events.next()
    }

    /// For a caller that sleeps itself: receives what has arrived, and returns the descriptor of
    /// which a unit is to be read (`None` if an event is pending) and what to keep until it was.
    ///
    /// # Errors
    /// EAGAIN if the program has made [`CompChannel::fd`] non-blocking and nothing is pending.
    pub fn before_wait(&self) -> io::Result<(Option<RawFd>, impl Sized + '_)> {
        let is_over = || !self.events.is_empty();
        tell(|| Event::Waits { channel: self.id() });
        let sleep_on = self.events.sleep_on()?;
        let watched = (is_on() && sleep_on.is_some()).then(|| self.watch());
        let wait = || {
            // One of them is enough to look at: the threads of the others see to the rest.
            self.engines.others().iter().for_each(|engine| engine.before_sleep_elsewhere());
            self.engines.main().before_sleep(is_over)
        };
        Ok((sleep_on, (watched, sleep_on.map(|_| wait()))))
    }

    /// Tells when a wait that begins now has taken long; not once the answer is dropped.
    fn watch(&self) -> Arc<LongWait> {
        let wait = Arc::new(LongWait { channel: self.id() });
        let watched: Weak<LongWait> = Arc::downgrade(&wait);
        self.context.engine().scheduler.add_deadline(clock::now().after(LONG_WAIT), watched);
        wait
    }

    /// The `user` token of the next event, for a caller of [`CompChannel::before_wait`] that has
    /// `slept`, by reading a unit, or did not have to. `None`: there is no event any more, go on
    /// waiting.
    pub fn take_event(&self, slept: bool) -> Option<u64> {
        self.events.take_next(slept)
    }

    /// As [`CompChannel::get_event`], but never waits, whatever the mode of the descriptor.
    pub fn try_get_event(&self) -> Option<u64> {
        self.events.try_next()
    }

    /// Whether the channel may be destroyed: EBUSY while completion queues use it.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("completion channel", "completion queues");
        unused.inspect_err(|error| tell(|| Event::DestroyRefused(self.id(), error)))
    }

    /// The engines of the completion queues that announce here.
    pub(crate) fn engines(&self) -> &EngineSet {
        &self.engines
    }

    /// Returns true if no event waits.
    pub(crate) fn has_no_events(&self) -> bool {
        self.events.is_empty()
    }

    /// Names it in what the checker is told.
    pub(crate) fn id(&self) -> ObjectId {
        self.tracked.id()
    }

    /// Registers one CQ as a user.
    pub(crate) fn hold(&self) -> Use {
        self.uses.hold()
    }

    pub(crate) fn announce(&self, cq: ObjectId, user: u64) {
        let watch = watch_unread(self.context.engine(), (&self.events, self.id()), None);
        self.events.push(cq, user, watch);
    }

    /// Forgets the pending events of a CQ that is destroyed.
    pub(crate) fn forget(&self, cq: ObjectId) {
        self.events.forget(cq);
    }
}
