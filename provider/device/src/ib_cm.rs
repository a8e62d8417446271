//! Connection management of a device (`ib_cm` of the kernel): the [`Agent`] between verbs and queue
//! pair 1, and the list of ids that observe network interfaces.
//!
//! Verbs, messages and timers work on the state machine of [`roxe_transport::cm`] with a
//! [`Session`], under the agent's lock; the resulting messages and events are sent before it is
//! released. Messages arrive under the lock of the receive side, which ranks inside the agent's,
//! and so wait in an inbox.

pub(crate) mod ports;
mod session;

use crate::inventory;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::random;
use roxe_base::uses::ObjectId;
use roxe_engine::engine::{Engine, Services};
use roxe_engine::presence::Awaited;
use roxe_net::status::ObjectKind;
use roxe_observe::adapter::Adapter;
use roxe_transport::cm::{Cm, Cx, ListenId, Route, Settings};
use roxe_transport::time::Instant;
use roxe_wire::Psn;
use roxe_wire::cm::{CommId, Guid, Mad};
use session::{Inbox, MadSender, Unanswered};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Arguments;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use session::{CmHandler, Request, Session};

/// Messages in the inbox; further ones are lost, as on any network.
const MAX_INBOX: usize = 4096;
/// Copies of the last messages of a process that ends, because it cannot retransmit them.
const END_REPEATS: usize = 3;

/// Connection management of one device in this process.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// `None` until first used, and again in the child of a fork.
    core: Mutex<rank::CmAgent, Option<Core>>,
    /// Work for the next thread that gets `core`; the engine knows if there is any.
    inbox: Mutex<rank::CmInbox, Inbox>,
}

#[derive(Debug)]
struct Core {
    cm: Cm,
    ids: HashMap<CommId, Arc<dyn CmHandler>>,
    listeners: HashMap<ListenId, Arc<dyn CmHandler>>,
    mad_sender: MadSender,
    /// Time of the registered timer.
    called_at: Option<Instant>,
    /// Time of the next check of peers and unanswered requests.
    check_at: Option<Instant>,
    unanswered: Vec<Unanswered>,
    random: fn() -> u64,
}

impl Core {
    fn new(engine: &Engine) -> Result<Self, Error> {
        let settings = Settings { prefix: engine.slot()?.get(), ..Settings::new(Guid(engine.adapter.node_guid())) };
        let mad_sender = MadSender::new(Psn::new(draw() as u32));
        let (ids, listeners) = (HashMap::new(), HashMap::new());
        let (called_at, check_at, unanswered, random) = (None, None, Vec::new(), draw);
        Ok(Self { cm: Cm::new(settings), ids, listeners, mad_sender, called_at, check_at, unanswered, random })
    }

    fn session<'a>(&'a mut self, engine: &'a Engine) -> Session<'a> {
        let Self { cm, ids, listeners, mad_sender, check_at, unanswered, random, .. } = self;
        let (cx, timeout_errno) = (Cx { now: clock::now(), random }, libc::ETIMEDOUT);
        Session { cm, engine, ids, listeners, cx, check_at, unanswered, timeout_errno, mad_sender }
    }

    fn register_timer(&mut self, engine: &Engine) {
        let Some(due) = self.cm.poll_timeout().into_iter().chain(self.check_at).min() else { return };
        if self.called_at.is_none_or(|at| due < at) {
            self.called_at = Some(due);
            engine.scheduler.add_cm_timer(due);
        }
    }

    fn process(&mut self, engine: &Engine, mut inbox: Inbox) {
        // Ignore a call that an earlier one has replaced.
        inbox.call = inbox.call.filter(|call| self.called_at.is_some_and(|at| at <= *call));
        if inbox.call.is_some() {
            self.called_at = None;
        }
        self.session(engine).process(inbox);
        self.register_timer(engine);
    }
}

impl Agent {
    fn empty_inbox(&self, engine: &Engine) -> Inbox {
        let mut inbox = self.inbox.lock();
        engine.scheduler.take_connection_work();
        std::mem::take(&mut *inbox)
    }

    /// Drops the parent's connections and listeners in the child of a fork.
    pub(crate) fn abandon(&self) {
        drop(self.core.lock().take());
        drop(std::mem::take(&mut *self.inbox.lock()));
    }

    pub(crate) fn lockable(&self) -> &impl Lockable {
        &self.core
    }

    pub(crate) fn inbox_lock(&self) -> &impl Lockable {
        &self.inbox
    }

    /// Starts the engine and its sockets, runs `verb` under the agent's lock, and sends the
    /// resulting messages and events. Fails if the engine cannot start: no address, no slot. The
    /// caller holds no lock of an id.
    pub(crate) fn run<T>(&self, engine: &Engine, verb: impl FnOnce(&mut Session<'_>) -> T) -> Result<T, Error> {
        engine.start_with_links()?;
        // The caller is likely to wait for an event next.
        engine.arm(Awaited::Connection);
        let value = {
            let mut core = self.core.lock();
            let core = self.ensure(&mut core, engine)?;
            let mut session = core.session(engine);
            let value = verb(&mut session);
            session.settle();
            core.register_timer(engine);
            value
        };
        run_again(engine);
        Ok(value)
    }

    /// Returns the number of connections and lookups, including those in timewait.
    pub(crate) fn connections(&self, engine: &Engine) -> usize {
        let count = self.core.lock().as_ref().map_or(0, |core| core.cm.len());
        run_again(engine);
        count
    }

    fn ensure<'a>(&self, core: &'a mut Option<Core>, engine: &Engine) -> Result<&'a mut Core, Error> {
        if core.is_none() {
            *core = Some(Core::new(engine)?);
        }
        core.as_mut().ok_or_else(|| Error::new(libc::ENODEV, "connection management is not running"))
    }

    fn process_inbox(&self, engine: &Engine) {
        while engine.scheduler.has_connection_work() {
            fence(Ordering::SeqCst);
            let Some(mut guard) = self.core.try_lock() else { return };
            // A process without a slot has no queue pairs, so the messages are not for it.
            let Ok(core) = self.ensure(&mut guard, engine) else {
                return engine.counters().mads_lost.add(self.empty_inbox(engine).messages.len() as u64);
            };
            core.process(engine, self.empty_inbox(engine));
            drop(guard);
            fence(Ordering::SeqCst);
        }
    }
}

/// The engine's side: messages and deadlines enter the inbox.
impl Services for Agent {
    /// Queues a message for the next [`Engine::run_cm`].
    fn queue_message(&self, engine: &Engine, route: Route, mad: Mad) {
        let mut inbox = self.inbox.lock();
        if inbox.messages.len() < MAX_INBOX {
            inbox.messages.push_back((route, mad));
            engine.scheduler.note_connection_work();
        } else {
            engine.counters().mads_lost.add(1);
        }
    }

    /// Queues the call for `deadline` for the next [`Engine::run_cm`].
    fn queue_deadline(&self, engine: &Engine, deadline: Instant) {
        let mut inbox = self.inbox.lock();
        inbox.call = inbox.call.max(Some(deadline));
        engine.scheduler.note_connection_work();
    }

    /// Processes the inbox. A thread that finds the agent locked leaves the inbox to the holder,
    /// which checks the inbox again after unlocking; the fences ensure that one of the two threads
    /// finds the work.
    #[cold]
    fn run_connections(&self, engine: &Engine) {
        uncancelled(|| self.process_inbox(engine));
    }

    /// Ends all connections and lookups when the process ends, and notifies peers. Gives up if the
    /// lock is not free within `limit`.
    // clause: CM-DISCONNECT, CM-PARTING
    fn end_connections(&self, engine: &Engine, limit: Duration) {
        let Some(mut guard) = self.core.try_lock_for(limit) else { return };
        let Some(core) = guard.as_mut() else { return };
        let mut session = core.session(engine);
        let all: Vec<_> = session.cm.all().collect();
        session.end_all(&all);
        // Messages to this host are not lost, and its processes notice the end by themselves.
        let is_remote = |(_, route): &(CommId, Route)| engine.link(route.remote).is_none();
        let remote: Vec<_> = all.into_iter().filter(is_remote).collect();
        for _ in 1..END_REPEATS {
            session.end_all(&remote);
        }
        session.settle();
    }

    fn interface_changed(&self, engine: &Engine) {
        observers().iter().for_each(|observer| observer.interface_changed(&engine.adapter));
    }

    fn list_objects(&self, engine: &Engine, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>)) {
        if kind != ObjectKind::CmId {
            return inventory::list(engine.adapter.ifindex(), kind, line);
        }
        let observers = observers();
        // Without this lock a fork could find an id locked by this thread.
        let core = self.core.lock();
        observers
            .iter()
            .filter_map(|observer| observer.describe(&engine.adapter))
            .for_each(|id| line(format_args!("{id}")));
        drop(core);
        run_again(engine);
    }
}

/// Returns the ids of this process, oldest first.
fn observers() -> Vec<Arc<dyn Observer>> {
    OBSERVERS.lock().values().filter_map(Weak::upgrade).collect()
}

/// Processes messages that arrived while the agent was locked.
fn run_again(engine: &Engine) {
    fence(Ordering::SeqCst);
    engine.run_cm();
}

/// Returns an unpredictable number: other processes must not guess ids and starting PSNs.
fn draw() -> u64 {
    // getrandom may be forbidden (seccomp); then the keys of hash maps, drawn earlier, must do.
    random::number().unwrap_or_else(|_| RandomState::new().hash_one(clock::now().0))
}

pub(crate) trait Observer: Send + Sync {
    /// Called without any lock after the interface of `adapter` has changed.
    fn interface_changed(&self, adapter: &Adapter);

    /// Returns words `name=value` for lists of other programs; `None` if the observer does not use
    /// `adapter`.
    fn describe(&self, adapter: &Adapter) -> Option<String>;
}

type Observers = BTreeMap<ObjectId, Weak<dyn Observer>>;

static OBSERVERS: Mutex<rank::CmIds, Observers> = Mutex::new(BTreeMap::new());

/// Registers `observer` until [`unobserve`] with the same name.
pub(crate) fn observe(name: ObjectId, observer: Weak<dyn Observer>) {
    OBSERVERS.lock().insert(name, observer);
}

pub(crate) fn unobserve(name: ObjectId) {
    OBSERVERS.lock().remove(&name);
}

pub(crate) fn observers_lock() -> &'static impl Lockable {
    &OBSERVERS
}

#[cfg(test)]
pub(crate) fn is_observed_by(name: ObjectId) -> bool {
    OBSERVERS.lock().contains_key(&name)
}
