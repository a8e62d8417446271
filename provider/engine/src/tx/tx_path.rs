//! Where the packets of one visit to a queue pair go: into a ring of the process they are for, or
//! into the staging buffer.
//!
//! A batch has one way; a packet for another begins the next batch. A ring's lock is held from the
//! first packet of a batch to its end, inside that of the queue pair. Packets are built where the
//! other process reads them.

use super::{Batch, Copied};
use crate::engine::Engine;
use crate::rings::{Route, Sender, SharedSender};
use roxe_base::lock::{OwnedMutexGuard, rank};
use roxe_net::link::TxQueue;
use roxe_net::link::hop_limit;
use roxe_net::raw::FrameSender;
use roxe_net::shm::{Heading, Writer, record_len};
use roxe_net::slot::Slot;
use roxe_net::udp::UdpLink;
use roxe_transport::cx::{PacketNote, TxBatch, TxReason, TxRoom};
use roxe_transport::wr::Av;
use roxe_wire::{Bth, Gid, Qpn, icrc};
use std::sync::Arc;
use std::time::Duration;

/// Visits after which a queue pair without a ring looks for one again.
const LOOK_AGAIN: u16 = 256;

/// The ways that a queue pair used last.
#[derive(Debug, Default)]
pub struct TxCache {
    /// The socket.
    pub(crate) link: Option<Arc<UdpLink>>,
    /// Addresses and slot for which `ring` was looked up.
    key: Option<(Gid, Gid, Slot)>,
    ring: Option<SharedSender>,
    /// Of the rings, when it was looked up.
    version: u32,
    visits: u16,
    /// What it is registered for room in.
    waits: Option<Wait>,
    /// Bytes that have left.
    sent: u64,
}

/// A queue pair is registered for room.
#[derive(Debug)]
enum Wait {
    Ring {
        ring: SharedSender,
        /// What its reader had read when somebody looked last. Nobody has looked for one that
        /// brought datagrams: it may be less than [`TxPath::PATIENCE`] ago when their timer runs
        /// out.
        read: Option<u64>,
    },
    /// Until a ring is agreed, which takes [`crate::rings`] a bounded time.
    Agreement,
    Socket {
        queue: Arc<TxQueue>,
        /// How many runs had left from the queue when somebody looked last.
        left: u64,
    },
}

impl TxCache {
    /// Bytes of what has left, from the BTH to the ICRC, or of frames; what was lost then counts.
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// It is being served: whatever it waited for, it has to ask again.
    pub fn stop_waiting(&mut self) {
        self.waits = None;
    }

    /// Whether it waits for room where some was made since this was last asked, or since it waits.
    pub fn link_moved(&mut self, engine: &Engine) -> bool {
        match &mut self.waits {
            None => false,
            Some(Wait::Agreement) => true,
            Some(Wait::Ring { ring, read }) => {
                let now = ring.lock().read_so_far();
                std::mem::replace(read, now) != now
            }
            Some(Wait::Socket { queue, left }) => {
                engine.send_all_queued();
                let now = queue.left();
                std::mem::replace(left, now) != now
            }
        }
    }

    /// It has waited for [`TxPath::PATIENCE`] with datagrams: they are lost from now on if no room
    /// was made meanwhile, as at a socket whose buffer is full.
    pub fn end_patience(&mut self, engine: &Engine) {
        if !self.link_moved(engine) {
            match &self.waits {
                Some(Wait::Ring { ring, .. }) => ring.lock().is_stalled = true,
                Some(Wait::Socket { queue, .. }) => queue.set_stalled(),
                Some(Wait::Agreement) | None => {}
            }
        }
    }

    /// A visit begins.
    #[inline]
    fn renew(&mut self, engine: &Engine) {
        self.visits = self.visits.wrapping_add(1);
        let version = engine.rings.version();
        if version != self.version || (self.ring.is_none() && self.visits.is_multiple_of(LOOK_AGAIN)) {
            (self.version, self.key, self.ring) = (version, None, None);
        }
    }

    /// Looks up the ring for packets to `to` behind `av`. Returns true if it is being agreed, and
    /// what may wait for it is to wait.
    fn look_up(&mut self, engine: &Engine, av: &Av, to: Qpn) -> bool {
        (self.key, self.ring) = match engine.find_ring(av, to) {
            Route::Ring(ring) => (Some(key(av, to)), Some(ring)),
            Route::Socket | Route::Own => (Some(key(av, to)), None),
            Route::Awaited => (None, None),
        };
        self.key.is_none()
    }
}

/// What a ring is looked up by.
#[inline]
fn key(av: &Av, to: Qpn) -> (Gid, Gid, Slot) {
    (av.sgid, av.dgid, Slot::of(to))
}

/// An open ring, which the cache has not meanwhile.
struct OpenRing {
    sender: OwnedMutexGuard<rank::RingSender, Sender>,
    built: Built,
    /// What is staged goes nowhere.
    loses: bool,
}

/// What was built in a ring.
#[derive(Debug, Default)]
struct Built {
    packets: u64,
    bytes: u64,
    /// Packets and bytes of the last slot, or of what it was extended by.
    newest: (u64, u64),
}

impl Built {
    /// A slot, or what it was extended by.
    fn add(&mut self, packets: usize, bytes: usize) {
        self.newest = (packets as u64, bytes as u64);
        (self.packets, self.bytes) = (self.packets + self.newest.0, self.bytes + self.newest.1);
    }

    fn take_back(&mut self) {
        let (packets, bytes) = std::mem::take(&mut self.newest);
        (self.packets, self.bytes) = (self.packets - packets, self.bytes - bytes);
    }
}

/// Bytes of an acknowledgement without its ICRC: BTH and AETH.
const ACK_LEN: usize = Bth::LEN + 4;
/// Longest packet, with its ICRC, that an acknowledgement goes behind into the same record of a
/// ring. No other packet shares its header, as the smallest path MTU is larger than its payload.
const MAX_BEFORE_ACK: usize = 256;

/// An acknowledgement that leaves behind the next packet, in the record of that: a record of its
/// own costs the reader as much as a packet. The reader takes it first
/// ([`crate::run::Run::packets`]).
struct LateAck {
    bytes: [u8; ACK_LEN],
    heading: Heading,
    /// The packet is there.
    is_due: bool,
}

impl LateAck {
    /// Returns true if it can go behind a packet of `total` bytes: only the last packet of a record
    /// may be shorter.
    fn goes_behind(&self, total: usize, heading: &Heading) -> bool {
        let lengths = ACK_LEN + icrc::LEN + 1..=MAX_BEFORE_ACK;
        !self.is_due && lengths.contains(&total) && self.heading == *heading
    }
}

/// The way out of one queue pair for one visit.
pub struct TxPath<'a> {
    engine: &'a Engine,
    /// What is staged; packets that go into a ring need none.
    batch: Option<Box<Batch>>,
    cache: &'a mut TxCache,
    qpn: Qpn,
    /// Nobody sends again what is lost, or waits for an answer.
    is_reliable: bool,
    open: Option<OpenRing>,
    late_ack: Option<LateAck>,
    has_written: bool,
    is_blocked: bool,
}

impl<'a> TxPath<'a> {
    /// How long datagrams wait for room where none is made.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// For the queue pair `qpn`, whose packets are acknowledged if it `is_reliable`.
    pub fn new(engine: &'a Engine, cache: &'a mut TxCache, qpn: Qpn, is_reliable: bool) -> Self {
        if engine.rings.is_on {
            cache.renew(engine);
        }
        Self {
            engine,
            batch: None,
            cache,
            qpn,
            is_reliable,
            open: None,
            late_ack: None,
            has_written: false,
            is_blocked: false,
        }
    }

    fn batch(&mut self) -> &mut Batch {
        self.batch.get_or_insert_with(Batch::take)
    }

    /// Lets everything leave, in order; `ordinal` says which queue pair of this process it comes
    /// from. Whether the visit may go on: not if a ring is full, which the queue pair is registered
    /// for.
    pub fn flush(&mut self, ordinal: u32) -> bool {
        self.put_late_ack();
        match (self.open.take(), &mut self.batch) {
            (Some(open), _) => self.flush_ring(open),
            (None, Some(batch)) => {
                self.cache.sent += batch.used as u64;
                batch.flush(self.engine, ordinal, &mut self.cache.link);
            }
            (None, None) => {}
        }
        !self.is_blocked
    }

    /// Whether the last packets went into a ring.
    pub fn by_ring(&self) -> bool {
        self.cache.ring.is_some()
    }

    /// What it knows of rings, for [`Engine::knows_rings`].
    pub fn rings(&self) -> u32 {
        self.cache.version
    }

    /// A list of payloads that are summed up on their way, for [`TxPath::note_copied`]; `None` if
    /// packets need no ICRC: the last ones went into a ring.
    pub fn lend_copied(&mut self) -> Option<Vec<Copied>> {
        if self.by_ring() { None } else { Some(self.batch().lend_copied()) }
    }

    /// As [`Batch::note_copied`].
    pub fn note_copied(&mut self, copied: Vec<Copied>) {
        self.batch().note_copied(copied);
    }

    /// The same for raw packets.
    pub fn flush_frames(&mut self, link: &FrameSender) -> bool {
        let counters = self.engine.counters();
        let sent = self.batch().used as u64;
        self.batch().flush_frames(link, counters);
        self.cache.sent += sent;
        true
    }

    /// Whether the queue pair has to wait before it builds more packets, as others wait for room in
    /// the send buffer that it used last, or in the one of its frames: then it is registered for
    /// room.
    #[inline]
    pub fn waits_for_send_room(&mut self, frames: Option<&FrameSender>) -> bool {
        let queue = match frames {
            Some(frames) => frames.queue(),
            None if self.by_ring() => return false,
            None => match &self.cache.link {
                Some(link) => link.queue(),
                None => return false,
            },
        };
        !queue.is_empty() && {
            let queue = Arc::clone(queue);
            self.wait_behind(&queue)
        }
    }

    #[cold]
    fn wait_behind(&mut self, queue: &Arc<TxQueue>) -> bool {
        if !self.is_reliable && queue.is_stalled() {
            return false;
        }
        if matches!(&self.cache.waits, Some(Wait::Socket { queue: other, .. }) if Arc::ptr_eq(other, queue)) {
            return true;
        }
        let left = queue.wait(self.qpn);
        if let Some(left) = left {
            self.cache.waits = Some(Wait::Socket { queue: Arc::clone(queue), left });
        }
        left.is_some()
    }

    /// Keeps the buffer for the next user on this thread.
    #[inline]
    pub fn put_back(self) {
        self.batch.into_iter().for_each(Batch::put_back);
    }

    fn flush_ring(&mut self, mut open: OpenRing) {
        if open.loses {
            self.engine.counters().send_errors.add(self.batch().packets.len() as u64);
            self.batch().clear();
        }
        open.sender.publish();
        if open.built.packets > 0 {
            self.cache.sent += open.built.bytes;
            open.sender.count_sent(open.built.packets, open.built.bytes, self.engine.counters());
        }
        self.cache.ring = Some(OwnedMutexGuard::unlock(open.sender));
    }

    /// Takes the way for packets to `to` behind `av`; false if the batch has another, or if a
    /// reliable queue pair has to wait until there is one. An answer does not wait, nor does a
    /// datagram: its queue pair may have others for other processes.
    #[inline]
    fn choose(&mut self, av: &Av, to: Qpn, is_answer: bool) -> bool {
        let is_same = self.cache.key == Some(key(av, to));
        if self.open.is_some() {
            return is_same;
        }
        let is_empty = self.batch.as_ref().is_none_or(|batch| batch.packets.is_empty());
        if !is_same {
            // What was built leaves first; then this is asked again.
            if !is_empty {
                return false;
            }
            if self.cache.look_up(self.engine, av, to) && self.is_reliable && !is_answer {
                if self.await_ring(Slot::of(to)) {
                    return false;
                }
                self.cache.look_up(self.engine, av, to);
            }
        }
        if self.cache.ring.is_some() && !is_empty {
            return false;
        }
        if let Some(ring) = self.cache.ring.take() {
            let mut sender = OwnedMutexGuard::lock(ring);
            let loses = !self.is_reliable && sender.loses_datagrams();
            if sender.writer.is_some() {
                self.open = Some(OpenRing { sender, built: Built::default(), loses });
            }
        }
        true
    }

    /// Registers the queue pair for the ring to `slot`. Returns false if it is decided by now
    /// whether there is one.
    #[cold]
    fn await_ring(&mut self, slot: Slot) -> bool {
        self.is_blocked = self.engine.rings.await_ring(slot, self.qpn);
        if self.is_blocked {
            self.cache.waits = Some(Wait::Agreement);
            // A program that only posts leaves the agreement to the background thread.
            self.engine.scheduler.kick();
        }
        self.is_blocked
    }

    /// The ring is full: registers the queue pair for room, unless there are `bytes` of it after
    /// all.
    fn wait(&mut self, bytes: u64) -> bool {
        self.put_late_ack();
        let Some(open) = &mut self.open else { return false };
        open.sender.publish();
        if open.sender.has_room(bytes) {
            return true;
        }
        self.is_blocked = true;
        let ring = OwnedMutexGuard::mutex(&open.sender);
        // It may still be registered with a ring of an earlier connection.
        if !matches!(&self.cache.waits, Some(Wait::Ring { ring: other, .. }) if Arc::ptr_eq(other, ring)) {
            let ring = Arc::clone(ring);
            let read = open.sender.read_so_far().filter(|_| self.is_reliable);
            self.cache.waits = Some(Wait::Ring { ring: Arc::clone(&ring), read });
            if self.engine.rings.wait(&ring, &mut open.sender, self.qpn, self.has_written) {
                self.engine.scheduler.kick();
            }
        }
        false
    }

    /// Puts the acknowledgement that waits into the ring, where there is room kept for it.
    #[inline]
    fn put_late_ack(&mut self) {
        if let Some(LateAck { bytes, heading, .. }) = self.late_ack.take() {
            let total = ACK_LEN + icrc::LEN;
            let open = self.open.as_mut();
            let room = open.and_then(|open| {
                open.built.add(1, total);
                let writer = open.sender.writer.as_mut()?;
                if writer.takes(&heading, total) { writer.place(&heading, total)?.first(ACK_LEN) } else { None }
            });
            // The room has the size that was asked for.
            room.into_iter().for_each(|room| _ = room.put(&bytes));
        }
    }

    /// Returns true if the ring has room for an acknowledgement and the packet that it leaves
    /// behind.
    #[inline]
    fn keeps_room_for_ack(&mut self) -> bool {
        let both = record_len(ACK_LEN + icrc::LEN) + record_len(MAX_BEFORE_ACK);
        self.open.as_mut().is_some_and(|open| open.sender.has_room(both))
    }
}

impl TxBatch for TxPath<'_> {
    #[inline]
    fn slot(&mut self, av: &Av, to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        if self.engine.rings.is_on && !self.choose(av, to, note.wr_id.is_none()) {
            return None;
        }
        let total = len + icrc::LEN;
        if self.open.as_ref().is_none_or(|open| open.loses) {
            return self.batch().room(av, to, len, note).map(TxRoom::Own);
        }
        let heading = heading(av);
        match &mut self.late_ack {
            Some(ack) if ack.goes_behind(total, &heading) => ack.is_due = true,
            Some(_) => self.put_late_ack(),
            None => {
                if note.reason == TxReason::Ack && len == ACK_LEN && self.keeps_room_for_ack() {
                    let late_ack = self.late_ack.insert(LateAck { bytes: [0; ACK_LEN], heading, is_due: false });
                    return Some(TxRoom::Own(&mut late_ack.bytes));
                }
            }
        }
        let writer = self.open.as_mut().and_then(|open| open.sender.writer.as_mut());
        let takes = writer.is_some_and(|writer| writer.takes(&heading, total));
        if !takes && !self.wait(record_len(total)) {
            return None;
        }
        self.has_written = true;
        let open = self.open.as_mut()?;
        open.built.add(1, total);
        // Who reads the ring looks at no ICRC.
        open.sender.writer.as_mut()?.place(&heading, total)?.first(len)
    }

    fn frame(&mut self, len: usize, note: &PacketNote) -> Option<&mut [u8]> {
        self.batch().room(&Av::default(), Qpn::default(), len, note)
    }

    #[inline]
    fn joins(&self) -> bool {
        self.open.is_some()
    }

    #[inline]
    fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let open = self.open.as_mut()?;
        let room = open.sender.writer.as_mut()?.extend(len, count)?;
        // As much as they would be alone.
        let packets = room.len() / len;
        open.built.add(packets, room.len() + packets * (Bth::LEN + icrc::LEN));
        Some(room)
    }

    /// A ring takes packets one by one as well.
    fn fits_same_send(&self, len: usize, count: usize) -> bool {
        self.open.is_none() && self.batch.as_ref().is_some_and(|batch| batch.fits_same_send(len, count))
    }

    fn retract(&mut self) {
        match &mut self.open {
            Some(open) if !open.loses => {
                self.late_ack.iter_mut().for_each(|ack| ack.is_due = false);
                open.built.take_back();
                open.sender.writer.iter_mut().for_each(Writer::retract);
            }
            _ => self.batch().retract(),
        }
    }
}

/// What a ring is told of packets along `av`.
fn heading(av: &Av) -> Heading {
    let hop_limit = hop_limit(av.hop_limit);
    Heading { src: av.sgid, dst: av.dgid, traffic_class: av.traffic_class, hop_limit }
}
