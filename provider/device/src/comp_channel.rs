//! Completion channels. A thread that is about to sleep on one first polls the engine for packets.

use crate::context::Context;
use crate::event::EventQueue;
use crate::sleepers::{LONG_WAIT, watch_unread};
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{RwLock, rank};
use roxe_base::uses::{ObjectId, UseCount};
use roxe_check::{Event, Object, Tracked, emit, is_on};
use roxe_engine::engine::Engine;
use roxe_engine::presence::Awaited;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_transport::time::Instant;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A channel on which completion queues announce events (`man ibv_create_comp_channel`).
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    engines: EngineSet,
    /// The user contexts of completion queues.
    events: Arc<EventQueue<u64>>,
    pub(crate) uses: UseCount,
    tracked: Tracked,
}

/// Reports to the checker that a thread of the program has waited long for an event.
#[derive(Debug)]
struct LongWait {
    channel: ObjectId,
}

impl DeadlineOwner for LongWait {
    fn on_deadline(&self, _deadline: Instant) {
        emit(|| Event::StillWaits { channel: self.channel });
    }
}

impl Context {
    /// Creates a completion channel.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Error> {
        let (context, events, uses) = (Arc::clone(self), Arc::new(EventQueue::new()?), UseCount::default());
        let tracked = Tracked::new(ObjectId::next(), || Object::Channel { context: self.id() });
        let engines = EngineSet::new(self.engine().of_this_thread());
        Ok(Arc::new(CompChannel { context, engines, events, uses, tracked }))
    }
}

impl CompChannel {
    /// Returns the context of the channel.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the descriptor that is readable while events are pending. The channel owns it; it
    /// may be polled and made non-blocking.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Borrows the descriptor of [`CompChannel::fd`].
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for the next event and returns the user context of its CQ. Fails with EAGAIN if the
    /// descriptor is non-blocking and no event is pending, with EINTR as `read(2)` does.
    pub fn get_event(&self) -> Result<u64, Error> {
        let _wait = self.before_wait();
        self.events.next()
    }

    /// Prepares a wait by a caller that sleeps itself: processes received packets, then returns the
    /// eventfd to read one unit from (`None` if an event is pending) and a guard to hold during the
    /// wait. Fails with EAGAIN if [`CompChannel::fd`] is non-blocking and no event is pending.
    pub fn before_wait(&self) -> io::Result<(Option<RawFd>, impl Sized + '_)> {
        let is_over = || !self.events.is_empty();
        emit(|| Event::Waits { channel: self.id() });
        let sleep_on = self.events.sleep_on()?;
        let watch_long_wait = || {
            let wait = Arc::new(LongWait { channel: self.id() });
            let watched: Weak<LongWait> = Arc::downgrade(&wait);
            self.context.engine().scheduler.add_deadline(clock::now().after(LONG_WAIT), watched);
            wait
        };
        let watched = (is_on() && sleep_on.is_some()).then(watch_long_wait);
        let receive = || {
            // Only the main engine is polled here; the others have threads of their own.
            self.engines.others().iter().for_each(|engine| engine.hand_over_before_sleep());
            self.engines.main().before_sleep(Awaited::Completion, is_over)
        };
        Ok((sleep_on, (watched, sleep_on.map(|_| receive()))))
    }

    /// Takes the next event after [`CompChannel::before_wait`] and returns its user context.
    /// `slept` is true if the caller has read a unit. Returns `None` if another thread took the
    /// event or its CQ was destroyed: wait again.
    pub fn take_event(&self, slept: bool) -> Option<u64> {
        self.events.take_next(slept)
    }

    /// Takes the next event like [`CompChannel::get_event`], but never waits.
    pub fn try_get_event(&self) -> Option<u64> {
        self.events.take_next(false)
    }

    /// Checks that the channel may be destroyed. Fails with EBUSY while completion queues use it.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("completion channel", "completion queues");
        unused.inspect_err(|error| emit(|| Event::DestroyRefused(self.id(), error)))
    }

    pub(crate) fn engines(&self) -> &EngineSet {
        &self.engines
    }

    pub(crate) fn has_no_events(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.tracked.id()
    }

    pub(crate) fn announce(&self, cq: ObjectId, user_context: u64) {
        let watch = watch_unread(self.context.engine(), (&self.events, self.id()), None);
        self.events.push(cq, user_context, watch);
    }

    pub(crate) fn forget(&self, cq: ObjectId) {
        self.events.forget(cq);
    }
}

/// The engines whose queue pairs complete in one CQ or announce on one channel; usually one engine.
#[derive(Debug)]
pub(crate) struct EngineSet {
    /// Used as main engine until one is added.
    default: Arc<Engine>,
    main: OnceLock<Arc<Engine>>,
    has_others: AtomicBool,
    others: RwLock<rank::EngineSet, Vec<Arc<Engine>>>,
}

impl EngineSet {
    pub(crate) fn new(default: Arc<Engine>) -> Self {
        Self { default, main: OnceLock::new(), has_others: AtomicBool::new(false), others: RwLock::default() }
    }

    /// Returns the engine that was added first.
    #[inline]
    pub(crate) fn main(&self) -> &Arc<Engine> {
        self.main.get().unwrap_or(&self.default)
    }

    pub(crate) fn add(&self, engine: &Arc<Engine>) {
        if Arc::ptr_eq(engine, self.main.get_or_init(|| Arc::clone(engine))) {
            return;
        }
        let mut others = self.others.write();
        if !others.iter().any(|known| Arc::ptr_eq(known, engine)) {
            others.push(Arc::clone(engine));
            self.has_others.store(true, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn others(&self) -> Vec<Arc<Engine>> {
        if self.has_others.load(Ordering::Acquire) { self.others.read().clone() } else { Vec::new() }
    }
}
