//! The window to one receiving process: RC bytes in flight, and datagram bytes not credited yet.

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

/// Time without credits after which a datagram sender assumes that the missing ones are lost.
pub const STALL: Duration = Duration::from_millis(100);
/// Time without releases after which an RC sender with nothing in flight resets the window, even if
/// other senders hold bytes of it.
pub const STREAM_STALL: Duration = Duration::from_secs(1);
/// Maximum size in bytes of the packet of a short message.
const SHORT_PACKET: u32 = 1024;

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

/// The process at a destination, and the source from which it takes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// On another host, which has no window because it returns no credits.
    Remote,
    /// No process of this host owns the slot, or the owner is not known yet.
    Absent,
    /// From a socket on this host; the process returns credits.
    Credits,
    /// From a ring, which has its own limit.
    Ring,
}

/// The window of one destination.
#[derive(Debug)]
pub struct Flow {
    pub(crate) key: Key,
    /// Size of the RC window in bytes.
    pub(crate) window: u32,
    /// Used bytes of the RC window.
    pub(crate) stream: Used,
    /// True from a refusal in [`Flow::take_stream`] until a reservation fits its limit again.
    pub(crate) is_full: AtomicBool,
    /// Used bytes of the datagram window.
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

    /// Reserves `bytes` of the RC window for a QP that holds `own` bytes of it. Returns false if
    /// they do not fit.
    ///
    /// A full window opens again when a quarter of it is free, because little room makes short
    /// runs. A QP that holds nothing may exceed the window by as much again, because the socket
    /// buffer holds two windows. It may not while other QPs wait: with thousands of waiting QPs,
    /// packets would stay in the buffer until the timers of their senders expire.
    pub fn reserve_stream(&self, bytes: u32, own: u32) -> bool {
        let limit = if self.is_full.load(Ordering::Relaxed) { self.reopen_level() } else { self.window };
        let is_new = own == 0 && !self.waiters(Pool::Stream).has_waiters();
        self.take_stream(bytes, limit, if is_new { 2 * self.window } else { limit })
    }

    /// Reserves `bytes` of the RC window for packets that are not built yet. Returns false if they
    /// do not fit, or if a queue pair waits.
    pub fn reserve_ahead(&self, bytes: u32) -> bool {
        let is_free = !self.is_full.load(Ordering::Relaxed) && !self.waiters(Pool::Stream).has_waiters();
        is_free && self.take_up_to(bytes, self.window)
    }

    /// Reserves `bytes` for another packet of a run; returns false if they do not fit. The run may
    /// exceed the RC window a little, because a packet left for later would cost a system call of
    /// its own.
    pub fn reserve_in_run(&self, bytes: u32) -> bool {
        self.take_up_to(bytes, self.window + (self.window / 4).min(MAX_BYTES as u32))
    }

    /// Like [`Flow::reserve_stream`], for a queue pair that waited for room and is now served.
    /// Returns false if the bytes do not fit.
    pub fn reserve_in_turn(&self, bytes: u32) -> bool {
        self.take_stream(bytes, self.window, self.window)
    }

    /// Takes `bytes` if at most `max` bytes are then in use, or none were before. Returns true if
    /// so. A full window opens again if at most `limit` bytes are then in use.
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

    /// Takes `bytes` of the RC window if at most `max` are then in use. Returns true if so.
    pub(crate) fn take_up_to(&self, bytes: u32, max: u32) -> bool {
        let used = self.stream.take(bytes).saturating_add(bytes);
        if used > max {
            self.give(Pool::Stream, bytes);
        }
        used <= max
    }

    /// Returns the bytes in use below which a full window opens again.
    pub(crate) fn reopen_level(&self) -> u32 {
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

    /// Reserves `bytes` of the datagram window; returns false if they do not fit. `find_receiver`
    /// determines the receiver when the window is used up and the receiver is absent. A receiver
    /// with a ring is unlimited only for packets that go `by_ring`: senders that began before the
    /// ring existed still use the socket.
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

    /// Releases `bytes` of the datagram window, for which the receiver returned credit.
    pub fn credit(&self, bytes: u32, now: Instant) {
        self.give(Pool::Datagrams, bytes);
        self.last_credit.store(now.0, Ordering::Relaxed);
    }

    /// Resets the datagram window and the receiver if no credit arrived for [`STALL`]. Returns true
    /// if it did.
    pub fn reset_datagrams_if_stalled(&self, now: Instant) -> bool {
        let is_stalled = now.since(Instant(self.last_credit.load(Ordering::Relaxed))) >= STALL;
        if is_stalled {
            self.last_credit.store(now.0, Ordering::Relaxed);
            *self.receiver.lock() = Receiver::Absent;
            self.datagrams.clear();
        }
        is_stalled
    }

    /// Resets the RC window if no bytes were released for [`STREAM_STALL`], because queue pairs
    /// that lost packets may wait very long before they retransmit.
    pub fn reset_stream_if_stalled(&self, now: Instant) {
        if now.since(Instant(self.last_release.load(Ordering::Relaxed))) >= STREAM_STALL {
            self.last_release.store(now.0, Ordering::Relaxed);
            self.stream.clear();
        }
    }

    /// Enqueues `qpn`, which was refused `bytes`, as a waiter for room. The caller must then try to
    /// reserve again, because room released before this call is not granted to `qpn`.
    pub fn add_waiter(&self, pool: Pool, qpn: Qpn, bytes: u32) {
        self.waiters(pool).push(qpn, bytes);
    }

    pub(crate) fn waiters(&self, pool: Pool) -> &RoomQueue {
        &self.waiters[pool as usize]
    }

    /// Returns the bytes to grant to a waiter that was refused `bytes`; `None` if there is no room.
    /// A long message gets at least a quarter of the window, so that runs are long.
    pub(crate) fn room_for(&self, pool: Pool, bytes: u32) -> Option<u32> {
        let used = self.used(pool).get();
        let (has_room, granted) = match pool {
            Pool::Stream if bytes > SHORT_PACKET => (used <= self.reopen_level(), bytes.max(self.window / 4)),
            Pool::Stream => (used <= self.reopen_level(), bytes),
            Pool::Datagrams => (used.saturating_add(bytes) <= self.datagram_window(), bytes),
        };
        (has_room || used == 0).then_some(granted)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stream.get() == 0 && !self.waiters.iter().any(RoomQueue::has_waiters)
    }
}

/// Room held for one queue pair. The queue pair drops the grant, which releases the room, just
/// before it reserves the same room itself.
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
