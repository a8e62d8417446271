//! [`Agent`]: connection management of one device in this process, between the verbs of programs and queue pair 1.
//!
//! Under the agent's lock a verb, a message or a timer works on the machine; what comes of it, messages and events, leaves
//! before the lock is dropped. May touch everything of the engine.

use super::Id;
use super::deliver::deliver;
use crate::runtime::{self, Runtime};
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_engine::engine::Engine;
use roxe_engine::gsi::GSI_ORDINAL;
use roxe_engine::shutdown;
use roxe_engine::tx::Batch;
use roxe_net::link::HOP_LIMIT;
use roxe_net::udp::UdpLink;
use roxe_transport::cm::{Cm, Cx, ListenId, Outgoing, Route, Settings};
use roxe_transport::cx::{PacketNote, TxReason};
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::cm::{CommId, Guid, MAD_LEN, Mad, Message, gsi_header};
use roxe_wire::{Header, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Messages that wait for the agent; more are lost, as on any network.
const MAX_INBOX: usize = 4096;
/// How often a process that ends says what nobody will repeat for it.
const PARTINGS: usize = 3;
/// From how many at a time: the machine holds a few thousand messages.
const MOST_PARTINGS: usize = 64;
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
    ids: HashMap<CommId, Arc<Id>>,
    listeners: HashMap<ListenId, Arc<Id>>,
    mad_sender: MadSender,
    /// When the engine's timers call next.
    called_at: Option<Instant>,
    /// When to look after peers.
    look_at: Option<Instant>,
}

/// The way out of queue pair 1.
#[derive(Debug)]
struct MadSender {
    /// The PSN of the next message. Nobody looks at it.
    psn: Psn,
    /// The link of the last message.
    link: Option<Arc<UdpLink>>,
    /// The receive side was not to be had in time the last time.
    was_kept_waiting: bool,
}

/// What came while nobody looked.
#[derive(Debug, Default)]
struct Inbox {
    messages: VecDeque<(Route, Mad)>,
    /// The engine's timers have called for this time.
    call: Option<Instant>,
}

/// What a verb or a delivery works with, under the agent's lock. It must not wait, and must not call [`Runtime::cm`].
pub(crate) struct Session<'a> {
    /// The machine.
    pub(crate) cm: &'a mut Cm,
    /// Whose.
    pub(crate) engine: &'a Engine,
    /// Who hears of a connection or lookup.
    pub(crate) ids: &'a mut HashMap<CommId, Arc<Id>>,
    /// Who hears of requests.
    pub(crate) listeners: &'a mut HashMap<ListenId, Arc<Id>>,
    /// The time.
    pub(crate) now: Instant,
    /// When to look after peers.
    pub(super) look_at: &'a mut Option<Instant>,
    random: fn() -> u64,
    mad_sender: &'a mut MadSender,
}

impl Session<'_> {
    /// The machine, and what its verbs take from outside.
    pub(crate) fn cx(&mut self) -> (&mut Cm, Cx<'_>) {
        (&mut *self.cm, Cx { now: self.now, random: &mut self.random })
    }

    /// An unpredictable number.
    pub(crate) fn random(&self) -> u64 {
        (self.random)()
    }

    /// Sends what the machine has to send. Happens by itself before every delivery and at the end; a delivery does it
    /// before it tells the program something after which that may end.
    pub(crate) fn send(&mut self) {
        let Some(first) = self.cm.poll_transmit() else { return };
        let mut batch = Batch::take();
        self.mad_sender.put(&mut batch, &first, self.engine);
        while let Some(next) = self.cm.poll_transmit() {
            self.mad_sender.put(&mut batch, &next, self.engine);
        }
        batch.flush(self.engine, GSI_ORDINAL, &mut self.mad_sender.link);
        batch.put_back();
    }

    /// The process ends, and with it these.
    fn part(&mut self, from: &[(CommId, Route)]) {
        for some in from.chunks(MOST_PARTINGS) {
            for (id, _) in some {
                let (cm, mut cx) = self.cx();
                cm.shut_down(&mut cx, *id);
            }
            self.send();
        }
    }

    /// Lets everything leave that came of a verb or an input, until there is no more.
    fn settle(&mut self) {
        loop {
            self.send();
            let Some(event) = self.cm.poll_event() else { return };
            self.note_peer(&event.kind);
            deliver(self, event);
        }
    }

    /// Works off an inbox. Management messages and data come by different ways (a mailbox and a ring, say), and none of these
    /// knows what has come by the others: before a message that ends a connection counts, all that arrived before it is
    /// received, so a program that hears of the end has the completions of what its peer sent or acknowledged.
    // clause: CM-END-LAST
    fn take_in(&mut self, inbox: Inbox) {
        if inbox.messages.iter().any(|(_, mad)| ends_connection(&mad.message)) {
            self.engine.receive_all_arrived();
        }
        for (route, mad) in inbox.messages {
            let (cm, mut cx) = self.cx();
            if let Err(why) = cm.handle_message(&mut cx, route, &mad) {
                self.engine.counters().count_ignored(why);
            }
            self.settle();
        }
        if inbox.call.is_some() {
            self.cm.handle_timeout(self.now);
            self.look_after_peers();
            self.settle();
        }
    }
}

/// Whether a program may hear of the end of its connection by this message.
const fn ends_connection(message: &Message) -> bool {
    matches!(message, Message::Dreq(_) | Message::Drep(_) | Message::Rej(_))
}

impl MadSender {
    /// Puts a message into `batch`; what is in there leaves if it is full. One that stays on this host leaves at once.
    fn put(&mut self, batch: &mut Batch, outgoing: &Outgoing, engine: &Engine) {
        let Outgoing { route, mad } = outgoing;
        let av = Av { sgid: route.local, dgid: route.remote, hop_limit: HOP_LIMIT, ..Av::default() };
        let (header, mad) = (gsi_header(self.psn), mad.to_bytes());
        self.psn = self.psn.add(1);
        if !self.put_to_own_host(*route, &header, &mad, engine) && !write(batch, &av, &header, &mad) {
            batch.flush(engine, GSI_ORDINAL, &mut self.link);
            write(batch, &av, &header, &mad);
        }
        engine.counters().sent_mads.add(1);
    }

    /// Sends a message that stays on this host, if it does and can be sent without the socket now. The thread that holds the
    /// receive side may be this very one, in a signal handler that ends the process: waits for it once only.
    fn put_to_own_host(&mut self, route: Route, header: &Header, mad: &[u8; MAD_LEN], engine: &Engine) -> bool {
        if !engine.keeps_mads(route) {
            return false;
        }
        let limit = if self.was_kept_waiting { Duration::ZERO } else { shutdown::LOCK_LIMIT };
        let sent = engine.route_own_mad(route, header, mad, limit);
        self.was_kept_waiting = sent.is_none();
        sent == Some(true)
    }
}

/// Writes one packet into `batch`; false if it is full.
fn write(batch: &mut Batch, av: &Av, header: &Header, mad: &[u8; MAD_LEN]) -> bool {
    let note = PacketNote::answer(Qpn::GSI, TxReason::Management);
    let Some(slot) = batch.room(av, header.padded_len(MAD_LEN), note) else { return false };
    if let Some(payload) = header.emit(MAD_LEN, slot) {
        payload.copy_from_slice(mad);
    }
    true
}

impl Core {
    fn new(engine: &Engine) -> Result<Self, Error> {
        let settings = Settings { prefix: engine.slot()?.get(), ..Settings::new(Guid(engine.node_guid())) };
        let mad_sender = MadSender { psn: Psn::new(draw() as u32), link: None, was_kept_waiting: false };
        let (ids, listeners) = (HashMap::new(), HashMap::new());
        Ok(Self { cm: Cm::new(settings), ids, listeners, mad_sender, called_at: None, look_at: None })
    }

    fn session<'a>(&'a mut self, engine: &'a Engine) -> Session<'a> {
        let Self { cm, ids, listeners, mad_sender, look_at, .. } = self;
        Session { cm, engine, ids, listeners, now: clock::now(), look_at, random: draw, mad_sender }
    }

    /// Asks the engine to call when the machine's next timer is due, or peers are to be looked after.
    fn ask_for_call(&mut self, engine: &Engine) {
        let Some(due) = self.cm.poll_timeout().into_iter().chain(self.look_at).min() else { return };
        if self.called_at.is_none_or(|at| due < at) {
            self.called_at = Some(due);
            engine.add_cm_timer(due);
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
    /// Leaves a message for whoever calls [`Engine::run_cm`] next.
    pub(crate) fn leave_message(&self, engine: &Engine, route: Route, mad: Mad) {
        let mut inbox = self.inbox.lock();
        if inbox.messages.len() < MAX_INBOX {
            inbox.messages.push_back((route, mad));
            engine.note_connection_work();
        } else {
            engine.counters().mads_lost.add(1);
        }
    }

    /// The call that was asked for `deadline`: the next one of [`Engine::run_cm`] acts on it.
    pub(crate) fn leave_deadline(&self, engine: &Engine, deadline: Instant) {
        let mut inbox = self.inbox.lock();
        inbox.call = inbox.call.max(Some(deadline));
        engine.note_connection_work();
    }

    fn empty_inbox(&self, engine: &Engine) -> Inbox {
        let mut inbox = self.inbox.lock();
        engine.take_connection_work();
        std::mem::take(&mut *inbox)
    }

    /// The process ends: the program forgets all connections and lookups, and peers are told so several times. Takes the lock
    /// only if it gets it in time.
    // clause: CM-DISCONNECT, CM-PARTING
    pub(crate) fn end_all(&self, engine: &Engine, limit: Duration) {
        let Some(mut guard) = self.core.try_lock_for(limit) else { return };
        let Some(core) = guard.as_mut() else { return };
        let mut session = core.session(engine);
        let everybody: Vec<_> = session.cm.all().collect();
        session.part(&everybody);
        // Nothing is lost on the way to other processes of this host, and those notice.
        let is_far = |(_, route): &(CommId, Route)| engine.link(route.remote).is_none();
        let far: Vec<_> = everybody.into_iter().filter(is_far).collect();
        for _ in 1..PARTINGS {
            session.part(&far);
        }
        session.settle();
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
}

impl Runtime {
    /// Starts the engine and its sockets if need be, runs `verb` under the agent's lock, then sends the messages and
    /// delivers the events that came of it. Take no lock of an id around this.
    ///
    /// # Errors
    /// Why the engine cannot start: no address, no slot.
    pub(crate) fn cm<T>(&self, verb: impl FnOnce(&mut Session<'_>) -> T) -> Result<T, Error> {
        self.start_with_links()?;
        // Whoever calls is likely to wait for an event next.
        self.arm();
        let value = {
            let mut core = self.agent().core.lock();
            let core = ensure(&mut core, self)?;
            let mut session = core.session(self);
            let value = verb(&mut session);
            session.settle();
            core.ask_for_call(self);
            value
        };
        self.look_again();
        Ok(value)
    }

    /// How many connections and lookups there are, those included that are over but for late packets.
    pub(super) fn connections(&self) -> usize {
        let count = self.agent().core.lock().as_ref().map_or(0, |core| core.cm.len());
        self.look_again();
        count
    }

    /// The agent was let go of: who came for it meanwhile has left again.
    fn look_again(&self) {
        fence(Ordering::SeqCst);
        self.run_cm();
    }
}

impl Agent {
    /// Works off what waits for the agent. Whoever finds it locked leaves the inbox to the thread that holds it, which looks
    /// once more after it has let go: the fences see to it that one of the two finds what is there.
    #[cold]
    pub(crate) fn work_off_inbox(&self, engine: &Engine) {
        uncancelled(|| self.work_off(engine));
    }

    fn work_off(&self, engine: &Engine) {
        while engine.has_connection_work() {
            fence(Ordering::SeqCst);
            let Some(mut guard) = self.core.try_lock() else { return };
            // Without numbers of its own this process cannot have been meant.
            let Ok(core) = ensure(&mut guard, engine) else {
                return engine.counters().mads_lost.add(self.empty_inbox(engine).messages.len() as u64);
            };
            core.work_off(engine, self.empty_inbox(engine));
            drop(guard);
            fence(Ordering::SeqCst);
        }
    }
}

fn ensure<'a>(core: &'a mut Option<Core>, engine: &Engine) -> Result<&'a mut Core, Error> {
    if core.is_none() {
        *core = Some(Core::new(engine)?);
        at_exit(Stage::Shutdown, runtime::shut_down);
    }
    core.as_mut().ok_or_else(|| Error::new(libc::ENODEV, "connection management is not running"))
}

/// A number that nobody can predict: ids and starting PSNs keep strangers out of connections.
fn draw() -> u64 {
    // The system refuses only where it has been told to. Then the keys of hash maps, which it gave earlier, must do.
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(clock::now().0))
}
