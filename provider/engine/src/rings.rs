//! Rings to and from other processes of this host.
//!
//! The first packet to a slot of this host requests a ring. RC requests wait for the agreement: the
//! next thread that receives offers the ring ([`roxe_net::shm`]), and the peer process accepts or
//! refuses it. Without an answer for [`AGREEMENT_TIMEOUT`], packets are sent through the socket
//! until one arrives. Responses never wait, because the responding process may exit once its
//! program has seen the request. The ring of an engine to itself is made at once. Polls of a new
//! ring read the sockets first, so that order is kept. A full ring blocks its writer; it loses no
//! packets. Rings are closed under the receive lock.

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

/// Maximum number of rings of a process in each direction, over all engines; further peers are
/// reached through sockets. A ring needs two descriptors and its memory.
pub(crate) const MAX_RINGS: usize = 128;
/// Maximum number of written rings of full size; further ones are small.
const MAX_LARGE_RINGS: usize = 16;
/// Interval after which the next offer is sent to a process that refused or did not exist.
pub(crate) const OFFER_INTERVAL: Duration = Duration::from_secs(1);
/// Interval after which the next offer is sent to a process with a full mailbox.
const FULL_MAILBOX_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum wait of requests for an agreement: the peer may be stopped or not scheduled.
const AGREEMENT_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns the data bytes of the next ring to be written; `None` if the limit is reached.
pub(crate) fn size_of_next() -> Option<usize> {
    match shm::written() {
        0..MAX_LARGE_RINGS => Some(shm::SIZE),
        MAX_LARGE_RINGS..MAX_RINGS => Some(shm::SMALL),
        _ => None,
    }
}

/// The writing half of a ring, shared by the queue pairs that send to one process.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// `None` once the ring is closed.
    pub(crate) writer: Option<Writer>,
    pub(crate) doorbell: Option<Doorbell>,
    /// Queue pairs that wait for room and could write nothing; served first.
    pub(crate) blocked: VecDeque<Qpn>,
    /// Queue pairs that wait for room after they wrote some packets.
    pub(crate) partial: VecDeque<Qpn>,
    pub(crate) is_listed: bool,
    /// True after the reader has stalled: datagrams are lost while the ring is full.
    pub(crate) is_stalled: bool,
    /// Counters of packets sent; `None` before the first.
    pub(crate) sent: Option<Arc<SentByRing>>,
}

pub(crate) type SharedSender = Arc<Mutex<rank::RingSender, Sender>>;

impl Sender {
    /// Publishes what was written and wakes the reader if it sleeps.
    pub(crate) fn publish(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        writer.publish();
        if writer.must_wake() {
            self.doorbell.iter().for_each(Doorbell::ring);
        }
    }

    /// Returns the total bytes read by the reader; `None` if the ring is closed.
    pub(crate) fn read_so_far(&mut self) -> Option<u64> {
        self.writer.as_mut().map(Writer::read_so_far)
    }

    /// Returns true if datagrams are lost: after a stall, until half of the ring is free.
    pub(crate) fn loses_datagrams(&mut self) -> bool {
        self.is_stalled = self.is_stalled && !self.is_half_free();
        self.is_stalled
    }

    pub(crate) fn has_room(&mut self, bytes: u64) -> bool {
        self.writer.as_mut().is_some_and(|writer| writer.has_room(bytes))
    }

    /// Returns true if there is room for waiting queue pairs, or the ring is closed.
    pub(crate) fn is_half_free(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free)
    }

    /// Like [`Sender::is_half_free`]; if false, the reader will ring the doorbell when there is
    /// room.
    pub(crate) fn is_half_free_or_waits(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free_or_waits)
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, packets: u64, bytes: u64, counters: &Counters) {
        self.sent.get_or_insert_with(|| counters.add_ring()).count(packets, bytes);
    }

    pub(crate) fn close(&mut self) {
        (self.writer, self.doorbell, self.sent) = (None, None, None);
    }
}

/// Queue pairs that wait for the agreement on a ring to a slot.
#[derive(Debug)]
pub(crate) struct Awaiting {
    /// Time after which they use the socket.
    until: Instant,
    qpns: Vec<Qpn>,
}

#[derive(Debug)]
pub(crate) enum RingState {
    /// The slot belongs to this engine, which has not sent to itself yet.
    Own,
    Wanted(Option<Awaiting>),
    Offered(Writer, ControlSocket, Option<Awaiting>),
    Ready(SharedSender, ControlSocket),
    /// Refused; not requested again before this time.
    Refused(Instant),
}

#[derive(Debug)]
pub(crate) enum RingRoute {
    Ring(SharedSender),
    /// Requests wait for the agreement; responses are sent through the socket.
    Awaited,
    Socket,
    /// The ring of this engine to itself, which has to be made first.
    Own,
}

#[derive(Debug, Default)]
pub(crate) struct Rings {
    pub(crate) is_on: bool,
    /// Incremented when a ring becomes usable or is closed.
    pub(crate) version: AtomicU32,
    pub(crate) out: Mutex<rank::RingsOut, HashMap<Slot, RingState>>,
    pub(crate) has_wanted: ReadyFlag,
    pub(crate) inbound: RwLock<rank::RingsIn, Vec<Arc<Inbound>>>,
    pub(crate) inbound_version: AtomicU32,
    /// Rings with queue pairs that wait for room.
    pub(crate) full: Mutex<rank::RingsFull, Vec<SharedSender>>,
    pub(crate) has_full: ReadyFlag,
    has_awaiting: ReadyFlag,
    /// True while the background thread sleeps and does not check for room.
    pub(crate) sleeps: AtomicBool,
    pub(crate) answers: Answers,
}

/// Times of checks for the acceptance of an offered ring while the background thread spins: an
/// acceptance wakes only a sleeping thread.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    offered: AtomicU64,
    /// Time of the next check; 0 if no ring is offered.
    due: AtomicU64,
}

impl Answers {
    /// First interval; responsive peers accept within it.
    const FIRST: Duration = Duration::from_micros(20);

    fn expect(&self, now: Instant) {
        self.offered.store(now.0, Ordering::Relaxed);
        self.due.store(now.after(Self::FIRST).0, Ordering::Relaxed);
    }

    /// Returns true if a check is due. The interval doubles each time.
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
    /// Rings whose flags request service for wanted, full and awaited rings.
    pub(crate) fn new(is_on: bool, [has_wanted, has_full, has_awaiting]: [ReadyFlag; 3]) -> Self {
        Self { is_on, version: AtomicU32::new(1), has_wanted, has_full, has_awaiting, ..Self::default() }
    }

    /// Returns the version of the routes of [`crate::engine::Engine::find_ring`]; never 0.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns true if packets to `slot` are sent through a ring.
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        self.is_on && matches!(self.out.lock().get(&slot), Some(RingState::Ready(..)))
    }

    /// Returns the route of packets to `slot`. Requests a ring if there is none.
    pub(crate) fn find(&self, slot: Slot) -> RingRoute {
        let mut out = self.out.lock();
        if out.len() >= MAX_RINGS {
            out.retain(|_, state| !matches!(state, RingState::Refused(until) if *until <= clock::now()));
        }
        let awaiting = match out.get(&slot) {
            Some(RingState::Ready(sender, _)) => return RingRoute::Ring(Arc::clone(sender)),
            Some(RingState::Own) => return RingRoute::Own,
            Some(RingState::Wanted(awaiting) | RingState::Offered(_, _, awaiting)) => {
                return if awaiting.is_some() { RingRoute::Awaited } else { RingRoute::Socket };
            }
            Some(RingState::Refused(until)) if *until > clock::now() => return RingRoute::Socket,
            None if out.len() >= MAX_RINGS => return RingRoute::Socket,
            // Requests do not wait again for a process that has refused once.
            Some(RingState::Refused(_)) => None,
            None => Some(Awaiting { until: clock::now().after(AGREEMENT_TIMEOUT), qpns: Vec::new() }),
        };
        let route = if awaiting.is_some() { RingRoute::Awaited } else { RingRoute::Socket };
        out.insert(slot, RingState::Wanted(awaiting));
        self.has_wanted.set();
        route
    }

    /// Registers `qpn` to be served once the route to `slot` is decided. Returns false if it is
    /// decided already.
    pub(crate) fn await_ring(&self, slot: Slot, qpn: Qpn) -> bool {
        let mut out = self.out.lock();
        let Some(RingState::Wanted(Some(awaiting)) | RingState::Offered(_, _, Some(awaiting))) = out.get_mut(&slot)
        else {
            return false;
        };
        if !awaiting.qpns.contains(&qpn) {
            awaiting.qpns.push(qpn);
        }
        self.has_awaiting.set();
        true
    }

    /// Ends the waits due at `now` and returns their queue pairs, which use the socket.
    pub(crate) fn end_awaiting(&self, now: Instant) -> Vec<Qpn> {
        let mut ended = Vec::new();
        for state in self.out.lock().values_mut() {
            if let RingState::Wanted(awaiting) | RingState::Offered(_, _, awaiting) = state
                && let Some(expired) = awaiting.take_if(|awaiting| awaiting.until <= now)
            {
                ended.extend(expired.qpns);
            }
        }
        ended
    }

    /// Returns the end of the first wait for an agreement. Clears the flag if there is none.
    pub(crate) fn awaited_until(&self) -> Option<Instant> {
        if !self.has_awaiting.is_set() {
            return None;
        }
        let out = self.out.lock();
        let until = out.values().filter_map(|state| match state {
            RingState::Wanted(Some(awaiting)) | RingState::Offered(_, _, Some(awaiting))
                if !awaiting.qpns.is_empty() =>
            {
                Some(awaiting.until)
            }
            _ => None,
        });
        let until = until.min();
        self.has_awaiting.set_to(until.is_some());
        until
    }

    pub(crate) fn wanted(&self) -> Vec<Slot> {
        self.has_wanted.clear();
        let out = self.out.lock();
        out.iter().filter(|(_, state)| matches!(state, RingState::Wanted(_))).map(|(slot, _)| *slot).collect()
    }

    /// Records the result of offering the ring to `slot`. Returns the queue pairs that stop waiting
    /// and use the socket.
    pub(crate) fn note_offer(&self, slot: Slot, offer: io::Result<Offer>, now: Instant) -> Vec<Qpn> {
        let mut out = self.out.lock();
        let Some(RingState::Wanted(awaiting)) = out.get_mut(&slot) else { return Vec::new() };
        let awaiting = awaiting.take();
        let is_full = offer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        let (state, ended) = match offer {
            Ok(Offer { writer, control, .. }) => {
                self.answers.expect(now);
                (RingState::Offered(writer, control, awaiting), None)
            }
            Err(_) if is_full && awaiting.is_some() => {
                self.has_wanted.set();
                (RingState::Wanted(awaiting), None)
            }
            Err(_) => {
                (RingState::Refused(now.after(if is_full { FULL_MAILBOX_INTERVAL } else { OFFER_INTERVAL })), awaiting)
            }
        };
        out.insert(slot, state);
        ended.map(|awaiting| awaiting.qpns).unwrap_or_default()
    }

    pub(crate) fn add_own(&self, slot: Slot) {
        self.out.lock().insert(slot, RingState::Own);
    }

    /// Opens the ring to `slot`, which is one of this engine, by `make`.
    pub(crate) fn open_own(&self, slot: Slot, make: impl FnOnce() -> io::Result<OwnRing>) {
        let mut out = self.out.lock();
        let Some(state @ RingState::Own) = out.get_mut(&slot) else { return };
        *state = match make() {
            Ok(OwnRing { writer, control, doorbell, inbound }) => {
                self.inbound.write().push(Arc::new(inbound));
                self.inbound_version.fetch_add(1, Ordering::Release);
                self.version.fetch_add(2, Ordering::Release);
                let sender = Sender { writer: Some(writer), doorbell: Some(doorbell), ..Sender::default() };
                RingState::Ready(Arc::new(Mutex::new(sender)), control)
            }
            Err(_) => RingState::Refused(clock::now().after(OFFER_INTERVAL)),
        };
    }

    pub(crate) fn reads(&self, ring: &Arc<Inbound>) -> bool {
        self.inbound.read().iter().any(|other| Arc::ptr_eq(other, ring))
    }

    /// Stops checks for acceptance if none of `out` is offered.
    pub(crate) fn note_answers(&self, out: &HashMap<Slot, RingState>) {
        if !out.values().any(|state| matches!(state, RingState::Offered(..))) {
            self.answers.due.store(0, Ordering::Relaxed);
        }
    }

    /// Registers `qpn` for room in `ring`, which the caller has locked as `sender`. Returns true if
    /// the background thread must be woken, because there is room now and the reader will not wake
    /// it.
    #[must_use]
    pub(crate) fn wait(&self, ring: &SharedSender, sender: &mut Sender, qpn: Qpn, has_written: bool) -> bool {
        if has_written {
            sender.partial.push_back(qpn)
        } else {
            sender.blocked.push_back(qpn)
        }
        if !std::mem::replace(&mut sender.is_listed, true) {
            self.full.lock().push(Arc::clone(ring));
            self.has_full.set();
        }
        self.is_asleep() && sender.is_half_free_or_waits()
    }

    /// Called before the background thread sleeps: from now on writers, and readers of full rings,
    /// wake it. Returns true if packets or room have arrived already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let prepare = |found, ring: &Arc<Inbound>| ring.reader.prepare_sleep() | found;
        self.is_on && {
            self.sleeps.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let has_packets = self.inbound.read().iter().fold(false, prepare);
            has_packets || self.has_room_again()
        }
    }

    /// Returns true if the background thread sleeps. Call after listing a ring in `full`, which the
    /// thread may have missed.
    pub(crate) fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Returns true if a waiting queue pair has room. If false, readers ring the doorbell.
    pub(crate) fn has_room_again(&self) -> bool {
        if !self.has_full.is_set() {
            return false;
        }
        let full = self.full.lock().clone();
        full.iter().any(|ring| ring.lock().is_half_free_or_waits())
    }

    /// Called when the background thread wakes, or a thread of the program does its work.
    pub(crate) fn awake(&self) {
        if self.is_on {
            self.sleeps.store(false, Ordering::Relaxed);
            self.inbound.read().iter().for_each(|ring| ring.reader.awake());
        }
    }

    /// Closes all rings, which the peer processes notice.
    pub(crate) fn clear(&self) {
        let out = std::mem::take(&mut *self.out.lock());
        out.into_values().filter_map(RingState::into_ring).for_each(|ring| ring.lock().close());
        self.full.lock().clear();
        self.inbound.write().clear();
        self.version.fetch_add(2, Ordering::Release);
        self.inbound_version.fetch_add(1, Ordering::Release);
    }
}

impl RingState {
    /// Polls the control socket; returns how packets reach the slot from now on. Queue pairs that
    /// waited are added to `ready`. A ring that is no longer read is added to `gone`, which the
    /// caller closes after unlocking the list.
    pub(crate) fn poll_control(&mut self, ready: &mut Vec<Qpn>, gone: &mut Vec<SharedSender>) -> Option<Receiver> {
        let (Self::Offered(_, control, _) | Self::Ready(_, control)) = self else { return None };
        let event = control.poll();
        if matches!(event, PeerEvent::Nothing) {
            return None;
        }
        let before = std::mem::replace(self, Self::Refused(clock::now().after(OFFER_INTERVAL)));
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

    fn into_ring(self) -> Option<SharedSender> {
        match self {
            Self::Ready(sender, _) => Some(sender),
            Self::Own | Self::Wanted(_) | Self::Offered(..) | Self::Refused(_) => None,
        }
    }
}
