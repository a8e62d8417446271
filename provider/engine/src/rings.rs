//! Rings to and from other processes of this host: who has one, how they come to be, and how they
//! end.
//!
//! The first packet of a queue pair for a slot of this host asks for a ring. A request of RC waits
//! until it is agreed: the next thread that receives offers it ([`roxe_net::shm`]), and the other
//! process accepts or refuses. A process that does not answer for [`AGREEMENT`] is sent to by the
//! socket until it does. Answers (acknowledgements, data of READs) never wait: the process that
//! sends them may end as soon as its program has seen what they acknowledge. The ring to a slot of
//! this engine is made at once. A young ring is only read when the sockets are empty, so nothing
//! overtakes what went before.
//!
//! A ring never loses packets: a queue pair that finds it full waits until the reader has made
//! room. Rings end under the receive lock.

use crate::flow_control::Receiver;
use roxe_base::clock;
use roxe_base::lock::{Mutex, RwLock, rank};
use roxe_base::ready::ReadyFlag;
use roxe_net::shm::{self, ControlSocket, Doorbell, Inbound, Offer, OwnRing, PeerEvent, Writer};
use roxe_net::slot::Slot;
use roxe_observe::counters::{Counters, SentByRing};
use roxe_transport::time::Instant;
use roxe_wire::Qpn;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Rings of one process in each direction, whichever of its engines has them; with more peers than
/// that, the others are reached by the socket. Each costs two descriptors and the memory of a ring.
pub(crate) const MAX_RINGS: usize = 128;
/// Beyond this many that the process writes, rings are small.
const FEW: usize = 16;
/// How soon a process that did not want a ring, or was not there, is asked again.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The same for one whose mailbox was full.
const BUSY: Duration = Duration::from_millis(5);
/// How long requests wait for a process to accept a ring: it may be stopped, or have no processor.
const AGREEMENT: Duration = Duration::from_millis(200);

/// Bytes of data of the next ring that this process writes; `None`: it has as many as it may have.
pub(crate) fn size_of_next() -> Option<usize> {
    match shm::written() {
        0..FEW => Some(shm::SIZE),
        FEW..MAX_RINGS => Some(shm::SMALL),
        _ => None,
    }
}

/// The writing half of a ring, shared by the queue pairs that send to one process.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// `None`: the ring is gone.
    pub(crate) writer: Option<Writer>,
    pub(crate) doorbell: Option<Doorbell>,
    /// Queue pairs that wait for room: who could write nothing goes first.
    pub(crate) starved: VecDeque<Qpn>,
    pub(crate) sated: VecDeque<Qpn>,
    /// Whether it is in the list of rings that somebody waits for.
    pub(crate) is_listed: bool,
    /// The reader stood still for so long that datagrams are lost while the ring is full.
    pub(crate) is_stalled: bool,
    /// What was handed to it; `None` before the first packet.
    pub(crate) sent: Option<Arc<SentByRing>>,
}

/// As many queue pairs have it.
pub(crate) type SharedSender = Arc<Mutex<rank::RingSender, Sender>>;

impl Sender {
    /// Hands over what was written and wakes the reader if it sleeps.
    pub(crate) fn publish(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        writer.publish();
        if writer.must_wake() {
            self.doorbell.iter().for_each(Doorbell::ring);
        }
    }

    /// How many bytes the reader has ever read; `None`: the ring is gone.
    pub(crate) fn read_so_far(&mut self) -> Option<u64> {
        self.writer.as_mut().map(Writer::read_so_far)
    }

    /// Whether datagrams are lost here: until half of the ring is free.
    pub(crate) fn loses_datagrams(&mut self) -> bool {
        self.is_stalled = self.is_stalled && !self.is_half_free();
        self.is_stalled
    }

    /// Whether packets that take `bytes` in the ring have room.
    pub(crate) fn has_room(&mut self, bytes: u64) -> bool {
        self.writer.as_mut().is_some_and(|writer| writer.has_room(bytes))
    }

    /// Whether there is room for those who wait.
    pub(crate) fn is_half_free(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free)
    }

    /// The same. If not, the reader will tell when there is.
    pub(crate) fn is_half_free_or_waits(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free_or_waits)
    }

    /// Counts what was handed over, for the sums of `counters`.
    #[inline]
    pub(crate) fn count_sent(&mut self, packets: u64, bytes: u64, counters: &Counters) {
        self.sent.get_or_insert_with(|| counters.of_new_ring()).count(packets, bytes);
    }

    pub(crate) fn close(&mut self) {
        (self.writer, self.doorbell, self.sent) = (None, None, None);
    }
}

/// Queue pairs that send nothing to a slot before its ring is agreed.
#[derive(Debug)]
pub(crate) struct Awaiting {
    /// When they go on by the socket.
    until: Instant,
    qpns: Vec<Qpn>,
}

/// What there is towards one slot.
#[derive(Debug)]
pub(crate) enum Out {
    /// The slot is one of this engine, which has sent nothing to itself yet.
    Own,
    /// A queue pair asked for a ring.
    Wanted(Option<Awaiting>),
    /// It was offered.
    Offered(Writer, ControlSocket, Option<Awaiting>),
    /// It is read.
    Ready(SharedSender, ControlSocket),
    /// Not before this time.
    Refused(Instant),
}

/// How packets to a slot go.
#[derive(Debug)]
pub(crate) enum Route {
    /// Through this ring.
    Ring(SharedSender),
    /// Requests wait for the ring that is being agreed, answers go by the socket.
    Awaited,
    /// By the socket.
    Socket,
    /// Through the ring of this engine to itself, which has to be made.
    Own,
}

/// All rings of an engine.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// Whether there may be rings at all.
    pub(crate) is_on: bool,
    /// Changes when a ring can be used or is gone.
    pub(crate) version: AtomicU32,
    pub(crate) out: Mutex<rank::RingsOut, HashMap<Slot, Out>>,
    pub(crate) has_wanted: ReadyFlag,
    pub(crate) inbound: RwLock<rank::RingsIn, Vec<Arc<Inbound>>>,
    pub(crate) inbound_version: AtomicU32,
    /// Rings that somebody waits for.
    pub(crate) full: Mutex<rank::RingsFull, Vec<SharedSender>>,
    pub(crate) has_full: ReadyFlag,
    has_awaiting: ReadyFlag,
    /// Whether the background thread sleeps, and nobody else looks for room.
    pub(crate) sleeps: AtomicBool,
    pub(crate) answers: Answers,
}

/// When to look whether an offered ring was accepted, for a background thread that keeps looking
/// for packets: only one that sleeps hears of it. Without that, the answers of a process that only
/// answers went by the socket in 4 of 14 runs of `ib_read_lat`, at three times the latency.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// When the last ring was offered.
    offered: AtomicU64,
    /// 0: none is.
    due: AtomicU64,
}

impl Answers {
    /// Who answers at all mostly does so within this time.
    const FIRST: Duration = Duration::from_micros(20);

    fn expect(&self, now: Instant) {
        self.offered.store(now.0, Ordering::Relaxed);
        self.due.store(now.after(Self::FIRST).0, Ordering::Relaxed);
    }

    /// Whether it is time; the next time is when it has taken twice as long.
    #[inline]
    pub(crate) fn are_due(&self, now: Instant) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        let is_due = due != 0 && due <= now.0;
        if is_due {
            let taken = now.since(Instant(self.offered.load(Ordering::Relaxed)));
            self.due.store(now.after(taken).0, Ordering::Relaxed);
        }
        is_due
    }
}

impl Rings {
    /// With the flags for rings that are wanted, are full, and are awaited.
    pub(crate) fn new(is_on: bool, [has_wanted, has_full, has_awaiting]: [ReadyFlag; 3]) -> Self {
        Self { is_on, version: AtomicU32::new(1), has_wanted, has_full, has_awaiting, ..Self::default() }
    }

    /// What [`crate::engine::Engine::find_ring`] says may be different when this changes. Never 0.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether packets to `slot` go through a ring.
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        self.is_on && matches!(self.out.lock().get(&slot), Some(Out::Ready(..)))
    }

    /// How packets to `slot` go. If there is no ring, one is asked for.
    pub(crate) fn find(&self, slot: Slot) -> Route {
        let mut out = self.out.lock();
        if out.len() >= MAX_RINGS {
            out.retain(|_, what| !matches!(what, Out::Refused(until) if *until <= clock::now()));
        }
        let awaiting = match out.get(&slot) {
            Some(Out::Ready(sender, _)) => return Route::Ring(Arc::clone(sender)),
            Some(Out::Own) => return Route::Own,
            Some(Out::Wanted(awaiting) | Out::Offered(_, _, awaiting)) => {
                return if awaiting.is_some() { Route::Awaited } else { Route::Socket };
            }
            Some(Out::Refused(until)) if *until > clock::now() => return Route::Socket,
            None if out.len() >= MAX_RINGS => return Route::Socket,
            // A process that has refused would hold up its peers each time that it is asked.
            Some(Out::Refused(_)) => None,
            None => Some(Awaiting { until: clock::now().after(AGREEMENT), qpns: Vec::new() }),
        };
        let route = if awaiting.is_some() { Route::Awaited } else { Route::Socket };
        out.insert(slot, Out::Wanted(awaiting));
        self.has_wanted.set();
        route
    }

    /// Registers `qpn` to be served when it is decided how packets to `slot` go. Returns false if
    /// that is decided by now.
    pub(crate) fn await_ring(&self, slot: Slot, qpn: Qpn) -> bool {
        let mut out = self.out.lock();
        let Some(Out::Wanted(Some(awaiting)) | Out::Offered(_, _, Some(awaiting))) = out.get_mut(&slot) else {
            return false;
        };
        if !awaiting.qpns.contains(&qpn) {
            awaiting.qpns.push(qpn);
        }
        self.has_awaiting.set();
        true
    }

    /// Ends all waiting that was due at `now`: these queue pairs go on by the socket.
    pub(crate) fn end_awaiting(&self, now: Instant) -> Vec<Qpn> {
        let mut ended = Vec::new();
        for what in self.out.lock().values_mut() {
            if let Out::Wanted(awaiting) | Out::Offered(_, _, awaiting) = what
                && let Some(over) = awaiting.take_if(|awaiting| awaiting.until <= now)
            {
                ended.extend(over.qpns);
            }
        }
        ended
    }

    /// When the first wait for a ring ends. Clears the flag if there is none.
    pub(crate) fn awaited_until(&self) -> Option<Instant> {
        if !self.has_awaiting.is_set() {
            return None;
        }
        let out = self.out.lock();
        let until = out.values().filter_map(|what| match what {
            Out::Wanted(Some(awaiting)) | Out::Offered(_, _, Some(awaiting)) if !awaiting.qpns.is_empty() => {
                Some(awaiting.until)
            }
            _ => None,
        });
        let until = until.min();
        self.has_awaiting.set_to(until.is_some());
        until
    }

    /// The slots to which a ring is wanted.
    pub(crate) fn wanted(&self) -> Vec<Slot> {
        self.has_wanted.clear();
        let out = self.out.lock();
        out.iter().filter(|(_, what)| matches!(what, Out::Wanted(_))).map(|(slot, _)| *slot).collect()
    }

    /// The ring that is wanted to `slot` was offered, or why not. Returns the queue pairs that go
    /// on by the socket.
    pub(crate) fn note_offer(&self, slot: Slot, offer: io::Result<Offer>, now: Instant) -> Vec<Qpn> {
        let mut out = self.out.lock();
        let Some(Out::Wanted(awaiting)) = out.get_mut(&slot) else { return Vec::new() };
        let awaiting = awaiting.take();
        let is_full = offer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        let (what, ended) = match offer {
            Ok(Offer { writer, control, .. }) => {
                self.answers.expect(now);
                (Out::Offered(writer, control, awaiting), None)
            }
            Err(_) if is_full && awaiting.is_some() => {
                self.has_wanted.set();
                (Out::Wanted(awaiting), None)
            }
            Err(_) => (Out::Refused(now.after(if is_full { BUSY } else { ASK_AGAIN })), awaiting),
        };
        out.insert(slot, what);
        ended.map(|awaiting| awaiting.qpns).unwrap_or_default()
    }

    /// Notes that `slot` is one of this engine.
    pub(crate) fn add_own(&self, slot: Slot) {
        self.out.lock().insert(slot, Out::Own);
    }

    /// Makes the ring to `slot`, which is one of this engine, by `make`.
    pub(crate) fn open_own(&self, slot: Slot, make: impl FnOnce() -> io::Result<OwnRing>) {
        let mut out = self.out.lock();
        let Some(what @ Out::Own) = out.get_mut(&slot) else { return };
        *what = match make() {
            Ok(OwnRing { writer, control, doorbell, inbound }) => {
                self.inbound.write().push(Arc::new(inbound));
                self.inbound_version.fetch_add(1, Ordering::Release);
                self.version.fetch_add(2, Ordering::Release);
                let sender = Sender { writer: Some(writer), doorbell: Some(doorbell), ..Sender::default() };
                Out::Ready(Arc::new(Mutex::new(sender)), control)
            }
            Err(_) => Out::Refused(clock::now().after(ASK_AGAIN)),
        };
    }

    /// Whether this ring is still read.
    pub(crate) fn reads(&self, ring: &Arc<Inbound>) -> bool {
        self.inbound.read().iter().any(|other| Arc::ptr_eq(other, ring))
    }

    /// `out` was looked at: what is offered still.
    pub(crate) fn note_answers(&self, out: &HashMap<Slot, Out>) {
        if !out.values().any(|what| matches!(what, Out::Offered(..))) {
            self.answers.due.store(0, Ordering::Relaxed);
        }
    }

    /// Registers `qpn` for room in `ring`, whose lock the caller holds as `sender`. Whether the
    /// background thread must be woken: there is room by now, of which nobody will tell it.
    #[must_use]
    pub(crate) fn wait(&self, ring: &SharedSender, sender: &mut Sender, qpn: Qpn, has_written: bool) -> bool {
        if has_written {
            sender.sated.push_back(qpn)
        } else {
            sender.starved.push_back(qpn)
        }
        if !std::mem::replace(&mut sender.is_listed, true) {
            self.full.lock().push(Arc::clone(ring));
            self.has_full.set();
        }
        self.is_asleep() && sender.is_half_free_or_waits()
    }

    /// Before the background thread sleeps: from now on writers wake it, and so do readers of full
    /// rings. Whether something has come already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let prepare = |found, ring: &Arc<Inbound>| ring.reader.prepare_sleep() | found;
        self.is_on && {
            self.sleeps.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let has_come = self.inbound.read().iter().fold(false, prepare);
            has_come || self.has_room_again()
        }
    }

    /// Whether the background thread sleeps: asked after somebody was listed, who may have been
    /// overlooked when it lay down.
    pub(crate) fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Whether there is room that somebody waits for. If not, readers tell.
    pub(crate) fn has_room_again(&self) -> bool {
        if !self.has_full.is_set() {
            return false;
        }
        let full = self.full.lock().clone();
        full.iter().any(|ring| ring.lock().is_half_free_or_waits())
    }

    /// The background thread is awake, or a thread of the program does its work.
    pub(crate) fn awake(&self) {
        if self.is_on {
            self.sleeps.store(false, Ordering::Relaxed);
            self.inbound.read().iter().for_each(|ring| ring.reader.awake());
        }
    }

    /// Forgets all rings; whoever is at their other ends hears of it.
    pub(crate) fn clear(&self) {
        let out = std::mem::take(&mut *self.out.lock());
        out.into_values().filter_map(Out::into_ring).for_each(|ring| ring.lock().close());
        self.full.lock().clear();
        self.inbound.write().clear();
        self.version.fetch_add(2, Ordering::Release);
        self.inbound_version.fetch_add(1, Ordering::Release);
    }
}

impl Out {
    /// Takes what its line says: how packets get there from now on. Queue pairs that waited for
    /// that are added to `ready`. A ring that is not read any more is put into `gone`, for the
    /// caller to close once it has let go of the list.
    pub(crate) fn hear(&mut self, ready: &mut Vec<Qpn>, gone: &mut Vec<SharedSender>) -> Option<Receiver> {
        let (Self::Offered(_, control, _) | Self::Ready(_, control)) = self else { return None };
        let event = control.poll();
        if matches!(event, PeerEvent::Nothing) {
            return None;
        }
        let before = std::mem::replace(self, Self::Refused(clock::now().after(ASK_AGAIN)));
        if let Self::Offered(_, _, Some(awaiting)) = &before {
            ready.extend(&awaiting.qpns);
        }
        match (event, before) {
            (PeerEvent::Accepted(doorbell), Self::Offered(writer, control, _)) => {
                let sender = Sender { writer: Some(writer), doorbell: Some(doorbell), ..Sender::default() };
                *self = Self::Ready(Arc::new(Mutex::new(sender)), control);
                Some(Receiver::Ring)
            }
            (PeerEvent::Accepted(_), before) => {
                *self = before;
                Some(Receiver::Ring)
            }
            (_, before) => {
                gone.extend(before.into_ring());
                Some(Receiver::Absent)
            }
        }
    }

    /// The ring that it had.
    fn into_ring(self) -> Option<SharedSender> {
        match self {
            Self::Ready(sender, _) => Some(sender),
            Self::Own | Self::Wanted(_) | Self::Offered(..) | Self::Refused(_) => None,
        }
    }
}
