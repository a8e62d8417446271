//! Rings to and from other processes of this host: who has one, how they come to be, and how they end.
//!
//! A queue pair that sends to a slot of this host asks for a ring and goes on by the socket. Whoever receives next offers one
//! ([`roxe_net::shm`]); when the other process has accepted it, packets to that slot go there, from the next visit to
//! each queue pair on. A young ring is only read when the sockets are empty, so nothing overtakes what went before.
//!
//! A ring never loses packets: a queue pair that finds it full waits until the reader has made room. Rings end
//! under the receive lock.

use crate::engine::Engine;
use crate::flow_control::Receiver;
use crate::poller::Poller;
use crate::rx::{RxState, Sources, YOUNG};
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::lock::{Lockable, Mutex, RwLock, rank};
use roxe_net::forward::Frame;
use roxe_net::shm::{self, ControlSocket, Doorbell, Heading, Inbound, Offer, PeerEvent, Writer};
use roxe_net::slot::Slot;
use roxe_transport::cx::TxRoom;
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::Qpn;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration;

/// Rings of one process in each direction; with more peers than that, the others are reached by the socket. Each costs two
/// descriptors and the memory of a ring.
const MAX_RINGS: usize = 128;
/// Beyond this many, they are small.
const FEW: usize = 16;
/// How soon a process that did not want a ring, or was not there, is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The same for one whose mailbox was full.
const BUSY: Duration = Duration::from_millis(5);
/// Queue pairs that are served at a time when a ring has room again. Thousands may wait, and if all were served most would
/// find it full once more.
const TURNS: usize = 64;

/// The writing half of a ring, shared by the queue pairs that send to one process.
#[derive(Debug, Default)]
pub struct Sender {
    /// `None`: the ring is gone.
    writer: Option<Writer>,
    doorbell: Option<Doorbell>,
    /// Queue pairs that wait for room: who could write nothing goes first.
    starved: VecDeque<Qpn>,
    sated: VecDeque<Qpn>,
    /// Whether it is in the list of rings that somebody waits for.
    is_listed: bool,
    /// The reader stood still for so long that datagrams are lost while the ring is full.
    is_stalled: bool,
}

/// As many queue pairs have it.
pub type SharedSender = Arc<Mutex<rank::RingSender, Sender>>;

impl Sender {
    /// Whether the ring is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.writer.is_none()
    }

    /// Room for a packet of `len` bytes with its ICRC; `None`: the ring is full, or gone.
    pub(crate) fn slot(&mut self, heading: &Heading, len: usize) -> Option<TxRoom<'_>> {
        self.writer.as_mut()?.slot(heading, len)
    }

    /// The same for who has just asked whether it is there; `None`: the ring is gone.
    #[inline]
    pub(crate) fn place(&mut self, heading: &Heading, len: usize) -> Option<TxRoom<'_>> {
        self.writer.as_mut()?.place(heading, len)
    }

    /// Whether there is room for one.
    #[inline]
    pub(crate) fn takes(&mut self, heading: &Heading, len: usize) -> bool {
        self.writer.as_mut().is_some_and(|writer| writer.takes(heading, len))
    }

    /// As [`Writer::extend`].
    #[inline]
    pub(crate) fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        self.writer.as_mut()?.extend(len, count)
    }

    /// Takes the last slot back, or what it was extended by.
    pub(crate) fn retract(&mut self) {
        self.writer.iter_mut().for_each(Writer::retract);
    }

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

    /// The reader stood still for too long.
    pub(crate) fn set_stalled(&mut self) {
        self.is_stalled = true;
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
    fn is_half_free(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free)
    }

    /// The same. If not, the reader will tell when there is.
    fn is_half_free_or_waits(&mut self) -> bool {
        self.writer.as_mut().is_none_or(Writer::is_half_free_or_waits)
    }

    fn close(&mut self) {
        (self.writer, self.doorbell) = (None, None);
    }
}

/// What there is towards one slot.
#[derive(Debug)]
enum Out {
    /// Somebody asked for a ring.
    Wanted,
    /// It was offered.
    Offered(Writer, ControlSocket),
    /// It is read.
    Ready(SharedSender, ControlSocket),
    /// Not before this time.
    Refused(Instant),
}

/// All rings of an engine.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    is_on: bool,
    /// Changes when a ring can be used or is gone.
    version: AtomicU32,
    out: Mutex<rank::RingsOut, HashMap<Slot, Out>>,
    has_wanted: AtomicBool,
    inbound: RwLock<rank::RingsIn, Vec<Arc<Inbound>>>,
    inbound_version: AtomicU32,
    /// Rings that somebody waits for.
    full: Mutex<rank::RingsFull, Vec<SharedSender>>,
    has_full: AtomicBool,
    /// Whether the background thread sleeps, and nobody else looks for room.
    sleeps: AtomicBool,
}

impl Rings {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, version: AtomicU32::new(1), ..Self::default() }
    }

    /// Whether there may be rings at all.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// What [`Engine::find_ring`] says may be different when this changes. Never 0.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether packets to `slot` go through a ring.
    fn is_ready(&self, slot: Slot) -> bool {
        self.is_on && matches!(self.out.lock().get(&slot), Some(Out::Ready(..)))
    }

    /// The ring to `slot`. Without one, it is noted that somebody wants it.
    fn find(&self, slot: Slot) -> Option<SharedSender> {
        let mut out = self.out.lock();
        if out.len() >= MAX_RINGS {
            out.retain(|_, what| !matches!(what, Out::Refused(until) if *until <= clock::now()));
        }
        match out.get(&slot) {
            Some(Out::Ready(sender, _)) => return Some(Arc::clone(sender)),
            Some(Out::Wanted | Out::Offered(..)) => return None,
            Some(Out::Refused(until)) if *until > clock::now() => return None,
            None if out.len() >= MAX_RINGS => return None,
            Some(Out::Refused(_)) | None => {}
        }
        out.insert(slot, Out::Wanted);
        self.has_wanted.store(true, Ordering::Relaxed);
        None
    }

    /// The slots to which somebody wants a ring.
    fn wanted(&self) -> Vec<Slot> {
        self.has_wanted.store(false, Ordering::Relaxed);
        let out = self.out.lock();
        out.iter().filter(|(_, what)| matches!(what, Out::Wanted)).map(|(slot, _)| *slot).collect()
    }

    /// Whether this ring is still read.
    fn reads(&self, ring: &Arc<Inbound>) -> bool {
        self.inbound.read().iter().any(|other| Arc::ptr_eq(other, ring))
    }

    fn set(&self, slot: Slot, what: Out) {
        self.out.lock().insert(slot, what);
    }

    /// Registers `qpn` for room in `ring`, whose lock the caller holds as `sender`. Whether the background thread must be
    /// woken: there is room by now, of which nobody will tell it.
    #[must_use]
    pub(crate) fn wait(&self, ring: &SharedSender, sender: &mut Sender, qpn: Qpn, has_written: bool) -> bool {
        if has_written {
            sender.sated.push_back(qpn)
        } else {
            sender.starved.push_back(qpn)
        }
        if !std::mem::replace(&mut sender.is_listed, true) {
            self.full.lock().push(Arc::clone(ring));
            self.has_full.store(true, Ordering::Release);
        }
        self.is_asleep() && sender.is_half_free_or_waits()
    }

    /// Before the background thread sleeps: from now on writers wake it, and so do readers of full rings. Whether something
    /// has come already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let prepare = |found, ring: &Arc<Inbound>| ring.reader.prepare_sleep() | found;
        self.is_on && {
            self.sleeps.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let has_come = self.inbound.read().iter().fold(false, prepare);
            has_come || self.has_room_again()
        }
    }

    /// Whether the background thread sleeps: asked after somebody was listed, who may have been overlooked when it lay down.
    fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Whether there is room that somebody waits for. If not, readers tell.
    fn has_room_again(&self) -> bool {
        if !self.has_full.load(Ordering::Acquire) {
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

    /// The locks, for the fork handlers, in the order they are taken. Those of single rings are only taken under locks of
    /// queue pairs and of the receive side.
    pub(crate) fn raw(&self) -> [&dyn Lockable; 3] {
        [&self.out, &self.inbound, &self.full]
    }
}

impl Engine {
    /// The rings.
    #[inline]
    pub(crate) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// The ring for packets to `to` behind `av`, if there is one by now: only between addresses of this device.
    // clause: PATH-SOURCE
    pub(crate) fn find_ring(&self, av: &Av, to: Qpn) -> Option<SharedSender> {
        let slot = Slot::of(to);
        let is_local = slot.can_be_owned() && self.link(av.dgid).is_some() && self.link(av.sgid).is_some();
        if is_local { self.rings.find(slot) } else { None }
    }

    /// Whether who looked for rings at `version` knows all there are, and uses them.
    pub fn knows_rings(&self, version: u32) -> bool {
        self.rings.version() == version
    }

    /// Whether packets to `slot` go through a ring.
    pub(crate) fn has_ring(&self, slot: Slot) -> bool {
        self.rings.is_ready(slot)
    }

    /// Offers the rings that somebody wants.
    pub(crate) fn offer_rings(&self, state: &RxState, now: Instant) {
        if self.rings.has_wanted.load(Ordering::Relaxed) {
            self.offer_wanted(state, now);
        }
    }

    #[cold]
    fn offer_wanted(&self, state: &RxState, now: Instant) {
        for slot in self.rings.wanted() {
            let what = match uncancelled(|| self.offer_ring(state, slot)) {
                Ok(Offer { writer, control, .. }) => Out::Offered(writer, control),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Out::Refused(now.after(BUSY)),
                Err(_) => Out::Refused(now.after(ASK_AGAIN)),
            };
            self.rings.set(slot, what);
        }
    }

    fn offer_ring(&self, state: &RxState, slot: Slot) -> io::Result<Offer> {
        let size = if self.rings.out.lock().len() <= FEW { shm::SIZE } else { shm::SMALL };
        let (offer, poller) = (Offer::new(size)?, self.poller().map_err(io::Error::other)?);
        let from = state.slots.first().ok_or(io::ErrorKind::NotConnected)?;
        poller.watch_line(offer.control.fd())?;
        let header = Frame::Ring { size: size as u32 }.header();
        from.send_descriptors(slot, &header, &offer.descriptors(poller.doorbell()))?;
        Ok(offer)
    }

    /// Another process offers a ring. Without it, it goes on using the socket.
    pub(crate) fn accept_ring(&self, size: u32, descriptors: Vec<OwnedFd>) {
        let size = size as usize;
        let is_wanted =
            self.rings.is_on && [shm::SIZE, shm::SMALL].contains(&size) && self.rings.inbound.read().len() < MAX_RINGS;
        if let (true, Ok(poller)) = (is_wanted, self.poller()) {
            // What cannot be mapped or watched is let go of, which the other process notices.
            let _ = uncancelled(|| self.open_inbound(size, descriptors, &poller));
        }
    }

    fn open_inbound(&self, size: usize, descriptors: Vec<OwnedFd>, poller: &Poller) -> io::Result<()> {
        let ring = Inbound::accept(size, descriptors, poller.doorbell(), |control: RawFd| poller.watch_line(control))?;
        self.rings.inbound.write().push(Arc::new(ring));
        self.rings.inbound_version.fetch_add(1, Ordering::Release);
        // If the background thread sleeps now, the writer does not know that it has to wake it.
        poller.kick();
        Ok(())
    }

    /// Takes over the list of rings to read. New ones are young.
    pub(crate) fn refresh_rings(&self, sources: &mut Sources) {
        let version = self.rings.inbound_version.load(Ordering::Acquire);
        if version != sources.rings_version {
            self.take_over_rings(sources);
            (sources.rings_version, sources.young_visits) = (version, YOUNG);
        }
    }

    #[cold]
    fn take_over_rings(&self, sources: &mut Sources) {
        uncancelled(|| sources.rings.clone_from(&self.rings.inbound.read()));
    }

    /// Something was said on lines: rings were accepted or are gone. Background thread only.
    pub(crate) fn tend_rings(&self) {
        let mut rx = self.rx.lock();
        self.tend_out();
        self.tend_inbound(&mut rx);
        drop(rx);
        self.serve_ready(clock::now());
    }

    fn tend_out(&self) {
        let mut changed = Vec::new();
        let mut gone = Vec::new();
        let mut out = self.rings.out.lock();
        for (slot, what) in out.iter_mut() {
            // One event may stand for both of what a line can say.
            changed.extend((0..2).map_while(|_| what.hear(&mut gone)).map(|receiver| (*slot, receiver)));
        }
        if !changed.is_empty() {
            // Before anybody hears of a ring: who sends without end because there is one must know that it has to use it.
            self.rings.version.fetch_add(2, Ordering::Release);
        }
        drop(out);
        // Without the list: who holds the lock of a ring, because it writes there, may look for another one in the list.
        gone.iter().for_each(|ring| ring.lock().close());
        if changed.iter().any(|(_, receiver)| *receiver == Receiver::Absent) {
            self.note_death(clock::now());
        }
        for (slot, receiver) in &changed {
            self.flows.set_receiver(*slot, *receiver);
        }
    }

    /// Reads what is left of rings whose writers are gone, and forgets them.
    fn tend_inbound(&self, rx: &mut crate::rx::Rx) {
        // A writer says nothing else.
        let is_gone = |ring: &Arc<Inbound>| !matches!(ring.control.poll(), PeerEvent::Nothing);
        let gone: Vec<_> = self.rings.inbound.read().iter().filter(|ring| is_gone(ring)).map(Arc::clone).collect();
        if gone.is_empty() {
            return;
        }
        // A broken writer may have left marks everywhere, and nobody takes them away any more.
        let end = |ring: &Arc<Inbound>| ring.reader.read_so_far().saturating_add(ring.reader.size());
        let ends: Vec<_> = gone.iter().map(end).collect();
        let is_left = |(ring, end): (&Arc<Inbound>, &u64)| {
            !ring.reader.is_empty() && ring.reader.read_so_far() < *end && self.rings.reads(ring)
        };
        while gone.iter().zip(&ends).any(is_left) && self.receive(rx, true, clock::now()) {}
        self.forget_inbound(&gone);
        self.refresh_rings(rx.sources());
        self.note_death(clock::now());
    }

    /// Does not read these rings any more.
    pub(crate) fn forget_inbound(&self, gone: &[Arc<Inbound>]) {
        let is_kept = |ring: &Arc<Inbound>| !gone.iter().any(|gone| Arc::ptr_eq(gone, ring));
        self.rings.inbound.write().retain(is_kept);
        self.rings.inbound_version.fetch_add(1, Ordering::Release);
    }

    /// Marks as ready who waited for room that there is now.
    pub(crate) fn look_for_room(&self) {
        if !self.rings.has_full.load(Ordering::Acquire) {
            return;
        }
        let mut full = std::mem::take(&mut *self.rings.full.lock());
        full.retain(|ring| self.offer_room(ring));
        let mut list = self.rings.full.lock();
        list.extend(full);
        self.rings.has_full.store(!list.is_empty(), Ordering::Release);
        drop(list);
        if self.rings.is_asleep() && self.rings.has_room_again() {
            self.kick();
        }
    }

    /// Lets some of those who wait for room in `ring` have it, if there is. Whether others go on waiting.
    fn offer_room(&self, ring: &SharedSender) -> bool {
        let mut sender = ring.lock();
        if !sender.is_half_free() {
            return true;
        }
        let Sender { starved, sated, is_listed, .. } = &mut *sender;
        let first = starved.len().min(TURNS);
        let then = sated.len().min((TURNS - first).max(TURNS / 4));
        self.flows.push_ready(starved.drain(..first).chain(sated.drain(..then)));
        *is_listed = !starved.is_empty() || !sated.is_empty();
        *is_listed
    }
}

impl Out {
    /// What its line says: how packets get there from now on. A ring that is not read any more is put into `gone`, for the
    /// caller to close once it has let go of the list.
    fn hear(&mut self, gone: &mut Vec<SharedSender>) -> Option<Receiver> {
        let (Self::Offered(_, control) | Self::Ready(_, control)) = self else { return None };
        match control.poll() {
            PeerEvent::Nothing => None,
            PeerEvent::Accepted(doorbell) => {
                self.accept(doorbell);
                Some(Receiver::Ring)
            }
            PeerEvent::Gone => {
                gone.extend(self.give_up());
                Some(Receiver::Absent)
            }
        }
    }

    /// The offer was accepted.
    fn accept(&mut self, doorbell: Doorbell) {
        *self = match std::mem::replace(self, Self::Wanted) {
            Self::Offered(writer, control) => {
                let sender = Sender { writer: Some(writer), doorbell: Some(doorbell), ..Sender::default() };
                Self::Ready(Arc::new(Mutex::new(sender)), control)
            }
            other => other,
        };
    }

    /// The other process is gone or wants no ring. The ring that it had.
    fn give_up(&mut self) -> Option<SharedSender> {
        std::mem::replace(self, Self::Refused(clock::now().after(ASK_AGAIN))).into_ring()
    }

    fn into_ring(self) -> Option<SharedSender> {
        match self {
            Self::Ready(sender, _) => Some(sender),
            Self::Wanted | Self::Offered(..) | Self::Refused(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
