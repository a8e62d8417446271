//! The window towards one receiving process: what RC has under way there, and what datagrams may
//! without credit.
//!
//! Touches nothing.

use super::used::Used;
use super::waiters::{Pool, Waiters};
use roxe_base::lock::{Mutex, rank};
use roxe_net::link::MAX_BYTES;
use roxe_net::slot::Slot;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a sender of datagrams waits for credits before it assumes that they are lost.
pub const STALL: Duration = Duration::from_millis(100);
/// How long a sender of RC with nothing under way waits for others' bytes to come back before it
/// assumes that they do not.
pub const STREAM_STALL: Duration = Duration::from_secs(1);
/// What a packet of a short message occupies at most.
const SHORT: u32 = 1024;

/// One receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its address.
    pub dst: Gid,
    /// One of its slots.
    pub slot: Slot,
}

impl Key {
    /// The process behind a queue pair.
    pub fn of(dst: Gid, qpn: Qpn) -> Self {
        Self { dst, slot: Slot::of(qpn) }
    }
}

/// What is known about the receiver of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Not on this host: no credits, no window.
    Remote,
    /// Of this host, but no process owns the slot now.
    Absent,
    /// A process that returns credits.
    Credits,
    /// A process that is reached through a ring, which has a window of its own.
    Ring,
}

/// The window of one destination.
#[derive(Debug)]
pub struct Flow {
    pub(crate) key: Key,
    pub(crate) window: u32,
    /// Unacknowledged bytes of RC.
    pub(crate) stream: Used,
    /// RC was refused room and waits for more than a little.
    pub(crate) is_full: AtomicBool,
    /// Bytes of UC and UD without credit.
    pub(crate) datagrams: Used,
    pub(crate) receiver: Mutex<rank::FlowReceiver, Receiver>,
    /// When the last credit came or the window was opened, nanoseconds.
    pub(crate) last_sign: AtomicU64,
    /// The same for RC: when the last bytes came back.
    pub(crate) last_landing: AtomicU64,
    /// Queue pairs to serve when there is room, in their turn: RC, and UC and UD.
    pub(crate) waiters: [Waiters; 2],
}

impl Flow {
    /// The destination.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Takes `bytes` of the RC window for a QP that has `own` of it. Once used up, the window opens
    /// when a quarter of it is free: room of a few packets at a time would make short runs, and a
    /// system call costs as much as 30 packets in it. Who has nothing under way may use it a second
    /// time, as the socket buffer holds two, unless others wait: with thousands of them the last
    /// packets would lie in the buffer until their timers run out.
    pub fn reserve_stream(&self, bytes: u32, own: u32) -> bool {
        let limit = if self.is_full.load(Ordering::Relaxed) { self.nearly_full() } else { self.window };
        let is_new = own == 0 && !self.waiters(Pool::Stream).are_there();
        self.take_stream(bytes, limit, if is_new { 2 * self.window } else { limit })
    }

    /// Takes `bytes` of the RC window for packets that are still to be made, if nobody waits for
    /// any.
    pub fn reserve_ahead(&self, bytes: u32) -> bool {
        let is_free = !self.is_full.load(Ordering::Relaxed) && !self.waiters(Pool::Stream).are_there();
        is_free && self.take_up_to(bytes, self.window)
    }

    /// Takes `bytes` for another packet of a run, a little beyond the RC window too: packets that
    /// are left for the next time cost a system call of their own. Of 20 sends per MB two or three
    /// were such, 5 us each.
    pub fn reserve_in_run(&self, bytes: u32) -> bool {
        self.take_up_to(bytes, self.window + (self.window / 4).min(MAX_BYTES as u32))
    }

    /// As [`Flow::reserve_stream`] for who waited, in its turn.
    pub fn reserve_in_turn(&self, bytes: u32) -> bool {
        self.take_stream(bytes, self.window, self.window)
    }

    /// Takes `bytes` if `most` are used then, or none were; up to `limit` the window is open for
    /// all.
    pub(crate) fn take_stream(&self, bytes: u32, limit: u32, most: u32) -> bool {
        let before = self.stream.take(bytes);
        let used = before.saturating_add(bytes);
        let fits = used <= most || before == 0;
        if used <= limit && self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(false, Ordering::Relaxed);
        }
        if !fits {
            self.is_full.store(true, Ordering::Relaxed);
            self.give(Pool::Stream, bytes);
        }
        fits
    }

    /// Takes `bytes` of the RC window if no more than `most` are used then.
    pub(crate) fn take_up_to(&self, bytes: u32, most: u32) -> bool {
        let used = self.stream.take(bytes).saturating_add(bytes);
        if used > most {
            self.give(Pool::Stream, bytes);
        }
        used <= most
    }

    /// What is used when the window opens again.
    pub(crate) fn nearly_full(&self) -> u32 {
        self.window - self.window / 4
    }

    /// The window of UC and UD, whose lost packets do not come again. Until steering is sure both
    /// directions between two processes may lie in one socket; a packet of 4 KB that comes alone
    /// occupies a sixth more than it counts for, and the kernel may take note of what has left the
    /// buffer later. Two windows of half a buffer of 425,984 bytes lost packets.
    pub(crate) fn datagram_window(&self) -> u32 {
        self.window - self.window / 4
    }

    /// After how many bytes RC asks for an acknowledgement: four in a window, so that the sender
    /// need not stop for them, and one for several superpackets, because each costs about as much
    /// as a superpacket.
    pub fn ack_interval(&self) -> u32 {
        self.window / 4
    }

    /// Gives `bytes` of the RC window back.
    pub fn release_stream(&self, bytes: u32, now: Instant) {
        self.give(Pool::Stream, bytes);
        self.last_landing.store(now.0, Ordering::Relaxed);
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

    /// Takes `bytes` of the datagram window. `look` finds out about the receiver and is asked when
    /// a window is used up without anybody who would return credits. A receiver with a ring is sent
    /// to without end only if the packet goes `by_ring`: who began to send before the ring was
    /// there goes on by the socket.
    pub fn reserve_datagram(
        &self,
        bytes: u32,
        now: Instant,
        look: impl FnOnce() -> Receiver,
        by_ring: impl FnOnce() -> bool,
    ) -> bool {
        let used = self.datagrams.take(bytes);
        if used.saturating_add(bytes) <= self.datagram_window() {
            return true;
        }
        let mut receiver = self.receiver.lock();
        if *receiver == Receiver::Absent {
            *receiver = look();
            self.last_sign.store(now.0, Ordering::Relaxed);
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

    /// The receiver has taken `bytes` of datagrams out of its socket.
    pub fn credit(&self, bytes: u32, now: Instant) {
        self.give(Pool::Datagrams, bytes);
        self.last_sign.store(now.0, Ordering::Relaxed);
    }

    /// Opens the datagram window if there was no sign of life for [`STALL`]; the receiver is looked
    /// at again. Whether it was so.
    pub fn open_if_stalled(&self, now: Instant) -> bool {
        let is_stalled = now.since(Instant(self.last_sign.load(Ordering::Relaxed))) >= STALL;
        if is_stalled {
            self.last_sign.store(now.0, Ordering::Relaxed);
            *self.receiver.lock() = Receiver::Absent;
            self.datagrams.clear();
        }
        is_stalled
    }

    /// The same for RC, if nothing came back for [`STREAM_STALL`]: who lost its packets may wait
    /// for years before it sends them again.
    pub fn open_stream_if_stalled(&self, now: Instant) {
        if now.since(Instant(self.last_landing.load(Ordering::Relaxed))) >= STREAM_STALL {
            self.last_landing.store(now.0, Ordering::Relaxed);
            self.stream.clear();
        }
    }

    /// `qpn` was refused `bytes` and wants to be served when there is room. Ask once more
    /// afterwards: room that came before the registration woke nobody.
    pub fn wait(&self, pool: Pool, qpn: Qpn, bytes: u32) {
        self.waiters(pool).push(qpn, bytes);
    }

    pub(crate) fn waiters(&self, pool: Pool) -> &Waiters {
        &self.waiters[pool as usize]
    }

    /// What is held for a waiter that needs `bytes`, if there is room for it: for a packet of a
    /// long message a quarter of the window, so that runs are long.
    pub(crate) fn room_for(&self, pool: Pool, bytes: u32) -> Option<u32> {
        let used = self.used(pool).get();
        let (room, wanted) = match pool {
            Pool::Stream if bytes > SHORT => (used <= self.nearly_full(), bytes.max(self.window / 4)),
            Pool::Stream => (used <= self.nearly_full(), bytes),
            Pool::Datagrams => (used.saturating_add(bytes) <= self.datagram_window(), bytes),
        };
        (room || used == 0).then_some(wanted)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stream.get() == 0 && !self.waiters.iter().any(Waiters::are_there)
    }
}

/// Room of a window that nobody else can take. Dropped just before its owner asks for what it
/// needs.
#[derive(Debug)]
pub struct Grant {
    /// Of which window.
    pub(crate) flow: Arc<Flow>,
    pub(crate) pool: Pool,
    pub(crate) bytes: u32,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.flow.give(self.pool, self.bytes);
    }
}
