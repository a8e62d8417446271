//! Destination of the packets of one visit to a queue pair: a ring of the destination process, or
//! the staging buffer.
//!
//! A batch has one destination; a packet for another begins the next batch. Packets are built in
//! place in the ring, whose lock is held from the first packet of a batch to its end, inside that
//! of the queue pair.

use super::{Batch, Copied};
use crate::engine::Engine;
use crate::rings::{RingRoute, Sender, SharedSender};
use roxe_base::lock::{OwnedMutexGuard, rank};
use roxe_net::link::TxQueue;
use roxe_net::link::hop_limit;
use roxe_net::raw::FrameSender;
use roxe_net::shm::{IpFields, Writer, record_len};
use roxe_net::slot::Slot;
use roxe_net::udp::UdpLink;
use roxe_transport::cx::{PacketNote, TxBatch, TxReason, TxRoom};
use roxe_transport::wr::Av;
use roxe_wire::{Bth, Gid, Qpn, icrc};
use std::sync::Arc;
use std::time::Duration;

/// Visits after which a queue pair without a ring looks for one again.
const LOOK_AGAIN: u16 = 256;

/// The link and ring that a queue pair used last.
#[derive(Debug, Default)]
pub struct TxCache {
    pub(crate) link: Option<Arc<UdpLink>>,
    /// Addresses and slot for which `ring` was looked up; see [`key`].
    key: Option<(Gid, Gid, Slot)>,
    ring: Option<SharedSender>,
    version: u32,
    visits: u16,
    waits: Option<RoomWait>,
    sent: u64,
}

/// Registration of a queue pair for room.
#[derive(Debug)]
enum RoomWait {
    Ring {
        ring: SharedSender,
        /// Read position of the ring at the last check. `None` for unreliable queue pairs: their
        /// first check may run less than [`TxPath::ROOM_TIMEOUT`] after they began to wait.
        read: Option<u64>,
    },
    /// Waits for the agreement on a ring, which [`crate::rings`] bounds in time.
    Agreement,
    Socket {
        queue: Arc<TxQueue>,
        /// Number of runs that had left the queue at the last check.
        left: u64,
    },
}

impl TxCache {
    /// Returns the bytes sent, lost packets included: packets from BTH to ICRC, and whole frames.
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// Drops the registration for room, because the queue pair is being served.
    pub fn stop_waiting(&mut self) {
        self.waits = None;
    }

    /// Returns true if the queue pair waits for room and some was made since the last check.
    pub fn link_moved(&mut self, engine: &Engine) -> bool {
        match &mut self.waits {
            None => false,
            Some(RoomWait::Agreement) => true,
            Some(RoomWait::Ring { ring, read }) => {
                let now = ring.lock().read_so_far();
                std::mem::replace(read, now) != now
            }
            Some(RoomWait::Socket { queue, left }) => {
                engine.send_all_queued();
                let now = queue.sent_runs();
                std::mem::replace(left, now) != now
            }
        }
    }

    /// Called after datagrams have waited for [`TxPath::ROOM_TIMEOUT`]. If no room was made
    /// meanwhile, later datagrams are lost, as at a socket whose buffer is full.
    pub fn note_room_timeout(&mut self, engine: &Engine) {
        if !self.link_moved(engine) {
            match &self.waits {
                Some(RoomWait::Ring { ring, .. }) => ring.lock().is_stalled = true,
                Some(RoomWait::Socket { queue, .. }) => queue.set_stalled(),
                Some(RoomWait::Agreement) | None => {}
            }
        }
    }

    /// Called at the start of a visit; forgets an outdated ring.
    #[inline]
    fn renew(&mut self, engine: &Engine) {
        self.visits = self.visits.wrapping_add(1);
        let version = engine.rings.version();
        if version != self.version || (self.ring.is_none() && self.visits.is_multiple_of(LOOK_AGAIN)) {
            (self.version, self.key, self.ring) = (version, None, None);
        }
    }

    /// Looks up the ring for packets to `to` along `av`. Returns true if the ring is not agreed
    /// yet, so that requests have to wait.
    fn look_up(&mut self, engine: &Engine, av: &Av, to: Qpn) -> bool {
        (self.key, self.ring) = match engine.find_ring(av, to) {
            RingRoute::Ring(ring) => (Some(key(av, to)), Some(ring)),
            RingRoute::Socket | RingRoute::Own => (Some(key(av, to)), None),
            RingRoute::Awaited => (None, None),
        };
        self.key.is_none()
    }
}

#[inline]
fn key(av: &Av, to: Qpn) -> (Gid, Gid, Slot) {
    (av.sgid, av.dgid, Slot::of(to))
}

/// A locked ring; the cache does not hold it meanwhile.
struct OpenRing {
    sender: OwnedMutexGuard<rank::RingSender, Sender>,
    /// Process that reads the ring.
    to: Slot,
    built: Built,
    /// True if the packets of this batch are lost, because the reader has stalled.
    loses: bool,
}

impl OpenRing {
    /// Returns true if a packet to `to` with these IP fields may share the record being built.
    #[inline]
    fn goes_on(&self, to: Slot, ip_fields: &IpFields) -> bool {
        self.to == to && self.sender.writer.as_ref().is_some_and(|writer| writer.is_open_for(ip_fields))
    }
}

#[derive(Debug, Default)]
struct Built {
    packets: u64,
    bytes: u64,
    /// Packets and bytes of the last slot or extension.
    newest: (u64, u64),
}

impl Built {
    fn add(&mut self, packets: usize, bytes: usize) {
        self.newest = (packets as u64, bytes as u64);
        (self.packets, self.bytes) = (self.packets + self.newest.0, self.bytes + self.newest.1);
    }

    fn take_back(&mut self) {
        let (packets, bytes) = std::mem::take(&mut self.newest);
        (self.packets, self.bytes) = (self.packets - packets, self.bytes - bytes);
    }
}

/// Size in bytes of an acknowledgement (BTH and AETH) without its ICRC.
const ACK_LEN: usize = Bth::LEN + 4;
/// Maximum size in bytes of a packet, with its ICRC, that shares a record with an acknowledgement.
/// No other packet shares its header then, as the smallest path MTU is larger than its payload.
const MAX_BEFORE_ACK: usize = 256;

/// An acknowledgement that is placed after the next packet, in the same record: a record of its
/// own costs the reader as much as a packet. The reader processes it first
/// ([`crate::run::Run::packets`]).
struct LateAck {
    bytes: [u8; ACK_LEN],
    ip_fields: IpFields,
    /// True once the packet in front has been built.
    is_due: bool,
}

impl LateAck {
    /// Returns true if the acknowledgement can follow a packet of `total` bytes: only the last
    /// packet of a record may be shorter.
    fn can_follow_packet(&self, total: usize, ip_fields: &IpFields) -> bool {
        let lengths = ACK_LEN + icrc::LEN + 1..=MAX_BEFORE_ACK;
        !self.is_due && lengths.contains(&total) && self.ip_fields == *ip_fields
    }
}

/// The destination of one queue pair's packets for one visit.
pub struct TxPath<'a> {
    engine: &'a Engine,
    /// Staging buffer; taken by the first packet that does not go into a ring.
    batch: Option<Box<Batch>>,
    cache: &'a mut TxCache,
    qpn: Qpn,
    /// True for RC: unacknowledged packets are retransmitted.
    is_reliable: bool,
    open: Option<OpenRing>,
    /// True if an acknowledgement may share a record with the packet after it.
    pub joins_acks: bool,
    late_ack: Option<LateAck>,
    has_written: bool,
    is_blocked: bool,
}

impl<'a> TxPath<'a> {
    /// Time that datagrams wait for room before they are lost.
    pub const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

    /// Creates the batch of the queue pair `qpn`, whose packets are acknowledged if it
    /// `is_reliable`.
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
            joins_acks: true,
            late_ack: None,
            has_written: false,
            is_blocked: false,
        }
    }

    fn batch(&mut self) -> &mut Batch {
        self.batch.get_or_insert_with(Batch::take)
    }

    /// Sends everything in order; `ordinal` identifies the queue pair to fault rules. Returns false
    /// if a ring is full or not agreed yet: the visit ends, and the queue pair is registered for
    /// room.
    pub fn flush(&mut self, ordinal: u32) -> bool {
        self.put_late_ack();
        if let Some(OpenRing { sender, built, loses, .. }) = self.open.take() {
            self.flush_ring(sender, &built, loses);
        } else if let Some(batch) = &mut self.batch {
            self.cache.sent += batch.used as u64;
            batch.flush(self.engine, ordinal, &mut self.cache.link);
        }
        !self.is_blocked
    }

    /// Returns true if the last packets went into a ring.
    pub fn by_ring(&self) -> bool {
        self.cache.ring.is_some()
    }

    /// Returns the version of the rings at the last lookup, for [`Engine::knows_rings`].
    pub fn rings(&self) -> u32 {
        self.cache.version
    }

    /// Lends a list for [`TxPath::note_copied`]; `None` if the last packets went into a ring and
    /// need no ICRC.
    pub fn lend_copied(&mut self) -> Option<Vec<Copied>> {
        if self.by_ring() { None } else { Some(self.batch().lend_copied()) }
    }

    /// Passes `copied` to [`Batch::note_copied`].
    pub fn note_copied(&mut self, copied: Vec<Copied>) {
        self.batch().note_copied(copied);
    }

    /// Sends frames of a raw packet queue pair.
    pub fn flush_frames(&mut self, link: &FrameSender) -> bool {
        let counters = self.engine.counters();
        let sent = self.batch().used as u64;
        self.batch().flush_frames(link, counters);
        self.cache.sent += sent;
        true
    }

    /// Returns true if the queue pair has to wait because other packets already wait for room in
    /// the send buffer it used last, or in that of `frames`. It is then registered for room.
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
            self.wait_for_queue(&queue)
        }
    }

    #[cold]
    fn wait_for_queue(&mut self, queue: &Arc<TxQueue>) -> bool {
        if !self.is_reliable && queue.is_stalled() {
            return false;
        }
        if matches!(&self.cache.waits, Some(RoomWait::Socket { queue: other, .. }) if Arc::ptr_eq(other, queue)) {
            return true;
        }
        let left = queue.wait(self.qpn);
        if let Some(left) = left {
            self.cache.waits = Some(RoomWait::Socket { queue: Arc::clone(queue), left });
        }
        left.is_some()
    }

    /// Returns the buffer for the next use on this thread.
    #[inline]
    pub fn put_back(&mut self) {
        if let Some(batch) = self.batch.take() {
            batch.put_back();
        }
    }

    #[inline]
    fn flush_ring(&mut self, mut sender: OwnedMutexGuard<rank::RingSender, Sender>, built: &Built, loses: bool) {
        if loses {
            self.engine.counters().send_errors.add(self.batch().packets.len() as u64);
            self.batch().clear();
        }
        sender.publish();
        if built.packets > 0 {
            self.cache.sent += built.bytes;
            sender.count_sent(built.packets, built.bytes, self.engine.counters());
        }
        self.cache.ring = Some(OwnedMutexGuard::unlock(sender));
    }

    /// Chooses the destination for packets to `to` along `av`. Returns false if the batch has
    /// another, or if a reliable queue pair has to wait for a ring agreement. Responses and
    /// datagrams do not wait for it: their queue pair may have others for other processes.
    #[inline]
    fn choose(&mut self, av: &Av, to: Qpn, is_answer: bool) -> bool {
        let is_same = self.cache.key == Some(key(av, to));
        if self.open.is_some() {
            return is_same;
        }
        let is_empty = self.batch.as_ref().is_none_or(|batch| batch.packets.is_empty());
        if !is_same {
            // The batch is flushed first, then the caller calls this again.
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
                self.open = Some(OpenRing { sender, to: Slot::of(to), built: Built::default(), loses });
            }
        }
        true
    }

    /// Registers the queue pair for the agreement on a ring to `slot`. Returns false if that is
    /// already decided.
    #[cold]
    fn await_ring(&mut self, slot: Slot) -> bool {
        self.is_blocked = self.engine.rings.await_ring(slot, self.qpn);
        if self.is_blocked {
            self.cache.waits = Some(RoomWait::Agreement);
            // A program that only posts relies on the background thread for the agreement.
            self.engine.scheduler.kick();
        }
        self.is_blocked
    }

    /// Registers the queue pair for room in the full ring. Returns true if `bytes` of room have
    /// appeared meanwhile.
    fn wait(&mut self, bytes: u64) -> bool {
        self.put_late_ack();
        let Some(open) = &mut self.open else { return false };
        open.sender.publish();
        if open.sender.has_room(bytes) {
            return true;
        }
        self.is_blocked = true;
        let ring = OwnedMutexGuard::mutex(&open.sender);
        // The cache may still hold a registration with a ring of an earlier connection.
        if !matches!(&self.cache.waits, Some(RoomWait::Ring { ring: other, .. }) if Arc::ptr_eq(other, ring)) {
            let ring = Arc::clone(ring);
            let read = open.sender.read_so_far().filter(|_| self.is_reliable);
            self.cache.waits = Some(RoomWait::Ring { ring: Arc::clone(&ring), read });
            if self.engine.rings.wait(&ring, &mut open.sender, self.qpn, self.has_written) {
                self.engine.scheduler.kick();
            }
        }
        false
    }

    /// Places the late acknowledgement, if any, in the ring, where room was reserved for it.
    #[inline]
    fn put_late_ack(&mut self) {
        if self.late_ack.is_some() {
            self.place_late_ack();
        }
    }

    #[inline(never)]
    fn place_late_ack(&mut self) {
        if let Some(LateAck { bytes, ip_fields, .. }) = self.late_ack.take() {
            let total = ACK_LEN + icrc::LEN;
            let open = self.open.as_mut();
            let room = open.and_then(|open| {
                open.built.add(1, total);
                let writer = open.sender.writer.as_mut()?;
                if writer.takes(&ip_fields, total) { writer.place(&ip_fields, total)?.first(ACK_LEN) } else { None }
            });
            if let Some(room) = room {
                // The room has the requested size.
                _ = room.put(&bytes);
            }
        }
    }

    /// Returns true if the ring has room for an acknowledgement and the packet before it.
    #[inline]
    fn keeps_room_for_ack(&mut self) -> bool {
        let both = record_len(ACK_LEN + icrc::LEN) + record_len(MAX_BEFORE_ACK);
        self.open.as_mut().is_some_and(|open| open.sender.has_room(both))
    }
}

impl TxBatch for TxPath<'_> {
    #[inline]
    fn slot(&mut self, av: &Av, to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        let hop_limit = hop_limit(av.hop_limit);
        let ip_fields = IpFields { src: av.sgid, dst: av.dgid, traffic_class: av.traffic_class, hop_limit };
        let goes_on = self.open.as_ref().is_some_and(|open| open.goes_on(Slot::of(to), &ip_fields));
        if !goes_on && self.engine.rings.is_on && !self.choose(av, to, note.wr_id.is_none()) {
            return None;
        }
        let total = len + icrc::LEN;
        if self.open.as_ref().is_none_or(|open| open.loses) {
            return self.batch().room(av, to, len, note).map(TxRoom::Own);
        }
        match &mut self.late_ack {
            Some(ack) if ack.can_follow_packet(total, &ip_fields) => ack.is_due = true,
            Some(_) => self.put_late_ack(),
            None => {
                let is_ack = note.reason == TxReason::Ack && len == ACK_LEN;
                if is_ack && self.joins_acks && self.keeps_room_for_ack() {
                    let late_ack = self.late_ack.insert(LateAck { bytes: [0; ACK_LEN], ip_fields, is_due: false });
                    return Some(TxRoom::Own(&mut late_ack.bytes));
                }
            }
        }
        let writer = self.open.as_mut().and_then(|open| open.sender.writer.as_mut());
        let takes = writer.is_some_and(|writer| {
            if !goes_on {
                writer.turn_to(&ip_fields);
            }
            writer.takes_next(total)
        });
        if !takes && !self.wait(record_len(total)) {
            return None;
        }
        self.has_written = true;
        let open = self.open.as_mut()?;
        open.built.add(1, total);
        // The reader of a ring does not check the ICRC.
        open.sender.writer.as_mut()?.place(&ip_fields, total)?.first(len)
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
        // Counted as if each packet had its own headers.
        let packets = room.len() / len;
        open.built.add(packets, room.len() + packets * (Bth::LEN + icrc::LEN));
        Some(room)
    }

    /// Returns true for a batch with room. Rings take single packets as well, so a ring never fits.
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
