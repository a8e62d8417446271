//! What connections stand on (`ib_cm` of the kernel): one connection manager per device and
//! process, the [`Agent`], between the verbs of programs and queue pair 1; and which ids hear of
//! changes of network interfaces.
//!
//! The agent takes what the engine hands up, and runs the machine of [`roxe_transport::cm`]. Under
//! its lock a verb, a message or a timer works on the machine, with a [`Session`]; what comes of
//! it, messages and events, leaves before the lock is dropped. May touch everything of the engine.
//! `ports` says which program has which port. Ids are known by the traits [`CmHandler`] and
//! [`Observer`] only.

pub(crate) mod ports;
mod session;

use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::random;
use roxe_base::uses::ObjectId;
use roxe_engine::engine::{Engine, Services};
use roxe_observe::adapter::Adapter;
use roxe_transport::cm::{Cm, Cx, ListenId, Route, Settings};
use roxe_transport::time::Instant;
use roxe_wire::Psn;
use roxe_wire::cm::{CommId, Guid, Mad};
use session::{Inbox, MadSender, Unanswered};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

pub(crate) use session::{CmHandler, Request, Session};

/// Messages that wait for the agent; more are lost, as on any network.
const MAX_INBOX: usize = 4096;
/// How often a process that ends says what nobody will repeat for it.
const END_REPEATS: usize = 3;

/// Everything of connection management of one device in this process.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// `None` until somebody needs it, and again in the child of a fork.
    core: Mutex<rank::CmAgent, Option<Core>>,
    /// The engine knows whether something is in there.
    inbox: Mutex<rank::CmInbox, Inbox>,
}

/// What the lock guards.
#[derive(Debug)]
struct Core {
    cm: Cm,
    ids: HashMap<CommId, Arc<dyn CmHandler>>,
    listeners: HashMap<ListenId, Arc<dyn CmHandler>>,
    mad_sender: MadSender,
    /// When the engine's timers call next.
    called_at: Option<Instant>,
    /// When to check the peers, and the requests that nobody answers.
    check_at: Option<Instant>,
    unanswered: Vec<Unanswered>,
    /// Where numbers come from that nobody can predict.
    random: fn() -> u64,
}

impl Core {
    fn new(engine: &Engine) -> Result<Self, Error> {
        let settings = Settings { prefix: engine.slot()?.get(), ..Settings::new(Guid(engine.node_guid())) };
        let mad_sender = MadSender::new(Psn::new(draw() as u32));
        let (ids, listeners) = (HashMap::new(), HashMap::new());
        let (called_at, check_at, unanswered, random) = (None, None, Vec::new(), draw);
        Ok(Self { cm: Cm::new(settings), ids, listeners, mad_sender, called_at, check_at, unanswered, random })
    }

    fn session<'a>(&'a mut self, engine: &'a Engine) -> Session<'a> {
        let Self { cm, ids, listeners, mad_sender, check_at, unanswered, random, .. } = self;
        let (cx, errno_of_silence) = (Cx { now: clock::now(), random }, libc::ETIMEDOUT);
        Session { cm, engine, ids, listeners, cx, check_at, unanswered, errno_of_silence, mad_sender }
    }

    /// Asks the engine to call when the machine's next timer is due, or the peers are to be
    /// checked.
    fn ask_for_call(&mut self, engine: &Engine) {
        let Some(due) = self.cm.poll_timeout().into_iter().chain(self.check_at).min() else { return };
        if self.called_at.is_none_or(|at| due < at) {
            self.called_at = Some(due);
            engine.scheduler.add_cm_timer(due);
        }
    }

    fn work_off(&mut self, engine: &Engine, mut inbox: Inbox) {
        // A call that an earlier one has overtaken means nothing.
        inbox.call = inbox.call.filter(|call| self.called_at.is_some_and(|at| at <= *call));
        if inbox.call.is_some() {
            self.called_at = None;
        }
        self.session(engine).take_in(inbox);
        self.ask_for_call(engine);
    }
}

impl Agent {
    fn empty_inbox(&self, engine: &Engine) -> Inbox {
        let mut inbox = self.inbox.lock();
        engine.scheduler.take_connection_work();
        std::mem::take(&mut *inbox)
    }

    /// In the child of a fork: connections and listeners are the parent's.
    pub(crate) fn abandon(&self) {
        // What the child holds itself stays; nothing is told to anybody.
        drop(self.core.lock().take());
        drop(std::mem::take(&mut *self.inbox.lock()));
    }

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl Lockable {
        &self.core
    }

    /// That of the inbox.
    pub(crate) fn raw_inbox(&self) -> &impl Lockable {
        &self.inbox
    }

    /// Starts the engine and its sockets if need be, runs `verb` under the agent's lock, then sends
    /// the messages and delivers the events that came of it. Take no lock of an id around this.
    ///
    /// # Errors
    /// Why the engine cannot start: no address, no slot.
    pub(crate) fn run<T>(&self, engine: &Engine, verb: impl FnOnce(&mut Session<'_>) -> T) -> Result<T, Error> {
        engine.start_with_links()?;
        // Whoever calls is likely to wait for an event next.
        engine.arm();
        let value = {
            let mut core = self.core.lock();
            let core = self.ensure(&mut core, engine)?;
            let mut session = core.session(engine);
            let value = verb(&mut session);
            session.settle();
            core.ask_for_call(engine);
            value
        };
        look_again(engine);
        Ok(value)
    }

    /// How many connections and lookups there are, those included that are over but for late
    /// packets.
    pub(crate) fn connections(&self, engine: &Engine) -> usize {
        let count = self.core.lock().as_ref().map_or(0, |core| core.cm.len());
        look_again(engine);
        count
    }

    fn ensure<'a>(&self, core: &'a mut Option<Core>, engine: &Engine) -> Result<&'a mut Core, Error> {
        if core.is_none() {
            *core = Some(Core::new(engine)?);
        }
        core.as_mut().ok_or_else(|| Error::new(libc::ENODEV, "connection management is not running"))
    }

    fn work_off(&self, engine: &Engine) {
        while engine.scheduler.has_connection_work() {
            fence(Ordering::SeqCst);
            let Some(mut guard) = self.core.try_lock() else { return };
            // Without numbers of its own this process cannot have been meant.
            let Ok(core) = self.ensure(&mut guard, engine) else {
                return engine.counters().mads_lost.add(self.empty_inbox(engine).messages.len() as u64);
            };
            core.work_off(engine, self.empty_inbox(engine));
            drop(guard);
            fence(Ordering::SeqCst);
        }
    }
}

/// What the engine hands up: messages and deadlines wait in the inbox, changes of the interface are
/// passed on.
impl Services for Agent {
    /// Leaves a message for whoever calls [`Engine::run_cm`] next.
    fn leave_message(&self, engine: &Engine, route: Route, mad: Mad) {
        let mut inbox = self.inbox.lock();
        if inbox.messages.len() < MAX_INBOX {
            inbox.messages.push_back((route, mad));
            engine.scheduler.note_connection_work();
        } else {
            engine.counters().mads_lost.add(1);
        }
    }

    /// The call that was asked for `deadline`: the next one of [`Engine::run_cm`] acts on it.
    fn leave_deadline(&self, engine: &Engine, deadline: Instant) {
        let mut inbox = self.inbox.lock();
        inbox.call = inbox.call.max(Some(deadline));
        engine.scheduler.note_connection_work();
    }

    /// Works off what waits for the agent. Whoever finds it locked leaves the inbox to the thread
    /// that holds it, which looks once more after it has let go: the fences see to it that one of
    /// the two finds what is there.
    #[cold]
    fn run_connections(&self, engine: &Engine) {
        uncancelled(|| self.work_off(engine));
    }

    /// The process ends: the program forgets all connections and lookups, and peers are told so
    /// several times. Takes the lock only if it gets it in time.
    // clause: CM-DISCONNECT, CM-PARTING
    fn end_connections(&self, engine: &Engine, limit: Duration) {
        let Some(mut guard) = self.core.try_lock_for(limit) else { return };
        let Some(core) = guard.as_mut() else { return };
        let mut session = core.session(engine);
        let everybody: Vec<_> = session.cm.all().collect();
        session.end_all(&everybody);
        // Nothing is lost on the way to other processes of this host, and those notice.
        let is_far = |(_, route): &(CommId, Route)| engine.link(route.remote).is_none();
        let far: Vec<_> = everybody.into_iter().filter(is_far).collect();
        for _ in 1..END_REPEATS {
            session.end_all(&far);
        }
        session.settle();
    }

    fn interface_changed(&self, engine: &Engine) {
        let observers: Vec<Arc<_>> = OBSERVERS.lock().values().filter_map(Weak::upgrade).collect();
        observers.iter().for_each(|observer| observer.interface_changed(engine.adapter()));
    }
}

/// The agent was let go of: who came for it meanwhile has left again.
fn look_again(engine: &Engine) {
    fence(Ordering::SeqCst);
    engine.run_cm();
}

/// A number that nobody can predict: ids and starting PSNs keep strangers out of connections.
fn draw() -> u64 {
    // The system refuses only where it has been told to. Then the keys of hash maps, which it gave
    // earlier, must do.
    random::number().unwrap_or_else(|_| RandomState::new().hash_one(clock::now().0))
}

/// Who hears of changes of an interface.
pub(crate) trait Observer: Send + Sync {
    /// The interface of `adapter` has changed. Called without any lock.
    fn interface_changed(&self, adapter: &Adapter);
}

type Observers = HashMap<ObjectId, Weak<dyn Observer>>;

static OBSERVERS: LazyLock<Mutex<rank::CmIds, Observers>> = LazyLock::new(Mutex::default);

/// From now on `observer` hears of every change, until [`unobserve`] is called with the same name.
pub(crate) fn observe(name: ObjectId, observer: Weak<dyn Observer>) {
    OBSERVERS.lock().insert(name, observer);
}

/// The observer with this name goes away.
pub(crate) fn unobserve(name: ObjectId) {
    OBSERVERS.lock().remove(&name);
}

/// The lock of the list, for the fork handlers.
pub(crate) fn observers_lock() -> &'static impl Lockable {
    &*OBSERVERS
}

#[cfg(test)]
pub(crate) fn is_observed_by(name: ObjectId) -> bool {
    OBSERVERS.lock().contains_key(&name)
}
