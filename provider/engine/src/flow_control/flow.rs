//! The window to one receiving process: RC bytes in flight, and datagram bytes without credit.

use super::used::Used;
use super::waiters::{Pool, RoomQueue};
use roxe_base::lock::{Mutex, rank};
use roxe_net::link::MAX_BYTES;
use roxe_net::slot::Slot;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time without credits after which a sender of datagrams assumes that they are lost.
pub const STALL: Duration = Duration::from_millis(100);
/// Time without releases after which a sender of RC with nothing in flight assumes that others'
/// bytes will never be released.
pub const STREAM_STALL: Duration = Duration::from_secs(1);
/// Maximum size in bytes of the packet of a short message.
const MAX_SHORT_LEN: u32 = 1024;

/// Identifies a receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Address of the process.
    pub dst: Gid,
    /// One of the slots of the process.
    pub slot: Slot,
}

impl Key {
    /// Returns the process that owns the queue pair `qpn`.
    pub fn of(dst: Gid, qpn: Qpn) -> Self {
        Self { dst, slot: Slot::of(qpn) }
    }
}

/// Kind of a receiver of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// On another host: no credits, no window.
    Remote,
    /// On this host, but no process owns the slot.
    Absent,
    /// A process on this host that returns credits.
    Credits,
    /// A process reached through a ring, which has its own limit.
    Ring,
}

/// The window of one destination.
#[derive(Debug)]
pub struct Flow {
    pub(crate) key: Key,
    pub(crate) window: u32,
    pub(crate) stream: Used,
    /// True from a refusal in [`Flow::take_stream`] until a reservation fits its limit again.
    pub(crate) is_full: AtomicBool,
    pub(crate) datagrams: Used,
    pub(crate) receiver: Mutex<rank::FlowReceiver, Receiver>,
    /// Time of the last credit or reset in nanoseconds.
    pub(crate) last_credit: AtomicU64,
    /// Time of the last release of RC bytes in nanoseconds.
    pub(crate) last_release: AtomicU64,
    /// Waiting queue pairs in order of arrival: of RC, and of UC and UD.
    pub(crate) waiters: [RoomQueue; 2],
}

impl Flow {
    /// Returns the destination.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Takes `bytes` of the RC window for a QP that holds `own` of it. A window that was full opens
    /// when a quarter is free, since little room makes short runs. A QP that holds nothing may use
    /// the window a second time, as the socket buffer holds two, unless others wait: with thousands
    /// of them, packets would stay in the buffer until their timers expire.
    pub fn reserve_stream(&self, bytes: u32, own: u32) -> bool {
        let limit = if self.is_full.load(Ordering::Relaxed) { self.nearly_full() } else { self.window };
        let is_new = own == 0 && !self.waiters(Pool::Stream).has_waiters();
        self.take_stream(bytes, limit, if is_new { 2 * self.window } else { limit })
    }

    /// Takes `bytes` of the RC window for packets not built yet, if no queue pair waits.
    pub fn reserve_ahead(&self, bytes: u32) -> bool {
        let is_free = !self.is_full.load(Ordering::Relaxed) && !self.waiters(Pool::Stream).has_waiters();
        is_free && self.take_up_to(bytes, self.window)
    }

    /// Takes `bytes` for another packet of a run, also a little beyond the RC window: a packet left
    /// for later would cost a system call of its own.
    pub fn reserve_in_run(&self, bytes: u32) -> bool {
        self.take_up_to(bytes, self.window + (self.window / 4).min(MAX_BYTES as u32))
    }

    /// As [`Flow::reserve_stream`], for a queue pair whose turn it is after waiting.
    pub fn reserve_in_turn(&self, bytes: u32) -> bool {
        self.take_stream(bytes, self.window, self.window)
    }

    /// Takes `bytes` if at most `max` bytes are then in use, or none were before. A full window
    /// opens again if at most `limit` bytes are then in use.
    pub(crate) fn take_stream(&self, bytes: u32, limit: u32, max: u32) -> bool {
        let before = self.stream.take(bytes);
        let used = before.saturating_add(bytes);
        let fits = used <= max || before == 0;
        if used <= limit && self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(false, Ordering::Relaxed);
        }
        if !fits {
            self.is_full.store(true, Ordering::Relaxed);
            self.give(Pool::Stream, bytes);
        }
        fits
    }

    /// Takes `bytes` of the RC window if at most `max` are then in use.
    pub(crate) fn take_up_to(&self, bytes: u32, max: u32) -> bool {
        let used = self.stream.take(bytes).saturating_add(bytes);
        if used > max {
            self.give(Pool::Stream, bytes);
        }
        used <= max
    }

    /// Returns the bytes in use below which a full window opens again.
    pub(crate) fn nearly_full(&self) -> u32 {
        self.window - self.window / 4
    }

    /// Returns the window of UC and UD. Smaller, because their packets are not retransmitted: until
    /// steering is established, both directions between two processes may share one socket, and the
    /// kernel charges more for small packets than their size.
    pub(crate) fn datagram_window(&self) -> u32 {
        self.window - self.window / 4
    }

    /// Returns the bytes after which RC requests an acknowledgement: a quarter of the window, so
    /// that the sender need not stop for it, while one acknowledgement covers several superpackets.
    pub fn ack_interval(&self) -> u32 {
        self.window / 4
    }

    /// Releases `bytes` of the RC window.
    pub fn release_stream(&self, bytes: u32, now: Instant) {
        self.give(Pool::Stream, bytes);
        self.last_release.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn used(&self, pool: Pool) -> &Used {
        match pool {
            Pool::Stream => &self.stream,
            Pool::Datagrams => &self.datagrams,
        }
    }

    pub(crate) fn give(&self, pool: Pool, bytes: u32) {
        self.used(pool).give(bytes);
    }

    /// Takes `bytes` of the datagram window. `find_receiver` determines the receiver when the
    /// window is used up and the receiver is unknown. A receiver with a ring is unlimited only for
    /// packets that go `by_ring`: senders that began before the ring existed still use the socket.
    pub fn reserve_datagram(
        &self,
        bytes: u32,
        now: Instant,
        find_receiver: impl FnOnce() -> Receiver,
        by_ring: impl FnOnce() -> bool,
    ) -> bool {
        let used = self.datagrams.take(bytes);
        if used.saturating_add(bytes) <= self.datagram_window() {
            return true;
        }
        let mut receiver = self.receiver.lock();
        if *receiver == Receiver::Absent {
            *receiver = find_receiver();
            self.last_credit.store(now.0, Ordering::Relaxed);
        }
        let has_window = match *receiver {
            Receiver::Credits => true,
            Receiver::Ring => !by_ring(),
            Receiver::Remote | Receiver::Absent => false,
        };
        if has_window {
            self.datagrams.give(bytes);
            return false;
        }
        self.datagrams.clear();
        true
    }

    /// Returns `bytes` of datagram credit.
    pub fn credit(&self, bytes: u32, now: Instant) {
        self.give(Pool::Datagrams, bytes);
        self.last_credit.store(now.0, Ordering::Relaxed);
    }

    /// Resets the datagram window and the receiver if no credit arrived for [`STALL`]. Returns true
    /// if it did.
    pub fn open_if_stalled(&self, now: Instant) -> bool {
        let is_stalled = now.since(Instant(self.last_credit.load(Ordering::Relaxed))) >= STALL;
        if is_stalled {
            self.last_credit.store(now.0, Ordering::Relaxed);
            *self.receiver.lock() = Receiver::Absent;
            self.datagrams.clear();
        }
        is_stalled
    }

    /// Resets the RC window if nothing was released for [`STREAM_STALL`]: queue pairs with lost
    /// packets may wait very long before they retransmit.
    pub fn open_stream_if_stalled(&self, now: Instant) {
        if now.since(Instant(self.last_release.load(Ordering::Relaxed))) >= STREAM_STALL {
            self.last_release.store(now.0, Ordering::Relaxed);
            self.stream.clear();
        }
    }

    /// Registers `qpn`, which was refused `bytes`, for room. The caller has to reserve once more
    /// afterwards: room released before the registration is not granted to `qpn`.
    pub fn wait(&self, pool: Pool, qpn: Qpn, bytes: u32) {
        self.waiters(pool).push(qpn, bytes);
    }

    pub(crate) fn waiters(&self, pool: Pool) -> &RoomQueue {
        &self.waiters[pool as usize]
    }

    /// Returns the bytes granted to a waiter that needs `bytes`, if there is room: for a long
    /// message a quarter of the window, so that runs are long.
    pub(crate) fn room_for(&self, pool: Pool, bytes: u32) -> Option<u32> {
        let used = self.used(pool).get();
        let (room, wanted) = match pool {
            Pool::Stream if bytes > MAX_SHORT_LEN => (used <= self.nearly_full(), bytes.max(self.window / 4)),
            Pool::Stream => (used <= self.nearly_full(), bytes),
            Pool::Datagrams => (used.saturating_add(bytes) <= self.datagram_window(), bytes),
        };
        (room || used == 0).then_some(wanted)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stream.get() == 0 && !self.waiters.iter().any(RoomQueue::has_waiters)
    }
}

/// Room held for one queue pair; dropped just before that queue pair reserves its room.
#[derive(Debug)]
pub struct Grant {
    pub(crate) flow: Arc<Flow>,
    pub(crate) pool: Pool,
    pub(crate) bytes: u32,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.flow.give(self.pool, self.bytes);
    }
}
