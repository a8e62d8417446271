//! How much may be under way towards one receiving socket.
//!
//! A loopback socket drops silently when its buffer is full, so all queue pairs of this process share one window per
//! destination: an address and a slot, which is one process there. RC gives its bytes back when they are acknowledged. UC
//! and UD have no acknowledgements; towards a process of this host the receiving engine returns *credits* for what it took
//! out of its socket, towards other hosts there is no window. Lost packets return no credit, so a window without any sign
//! of life for [`STALL`] opens again: flow control may cost speed, never liveness.
//!
//! Locks here are the innermost of all. Touches nothing.

use crate::net::slot::Slot;
use parking_lot::Mutex;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Qpn};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long a sender of datagrams waits for credits before it assumes that they are lost.
pub(crate) const STALL: Duration = Duration::from_millis(100);
/// Bounds of the window derived from a socket buffer, bytes. Throughput is flat above the lower one.
const WINDOW: (usize, usize) = (128 << 10, 1 << 20);
/// Unused destinations are forgotten when there are more than this.
const MAX_IDLE: usize = 1024;

/// One receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Its address.
    pub(crate) dst: Gid,
    /// One of its slots.
    pub(crate) slot: Slot,
}

impl Key {
    /// The process behind a queue pair.
    pub(crate) fn of(dst: Gid, qpn: Qpn) -> Self {
        Self { dst, slot: Slot::of(qpn) }
    }
}

/// What is known about the receiver of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
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
pub(crate) struct Flow {
    key: Key,
    window: u32,
    /// Unacknowledged bytes of RC.
    stream: AtomicU32,
    /// RC was refused room and waits for more than a little.
    is_full: AtomicBool,
    /// Bytes of UC and UD without credit.
    datagrams: AtomicU32,
    receiver: Mutex<Receiver>,
    /// When the last credit came or the window was opened, nanoseconds.
    last_sign: AtomicU64,
    /// Queue pairs to serve when there is room.
    waiters: Mutex<Vec<Qpn>>,
    has_waiters: AtomicBool,
}

impl Flow {
    /// The destination.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Takes `bytes` of the RC window; never refuses a QP that has nothing under way (`own` = 0). Once used up, the window
    /// opens when a quarter of it is free: room of a few packets at a time would make short runs, and a system call costs
    /// as much as 30 packets in it.
    pub(crate) fn reserve_stream(&self, bytes: u32, own: u32) -> bool {
        let used = self.stream.fetch_add(bytes, Ordering::SeqCst).saturating_add(bytes);
        let was_full = self.is_full.load(Ordering::Relaxed);
        let limit = if was_full { self.window - self.window / 4 } else { self.window };
        if used <= limit || own == 0 {
            if was_full && used <= limit {
                self.is_full.store(false, Ordering::Relaxed);
            }
            return true;
        }
        self.is_full.store(true, Ordering::Relaxed);
        self.stream.fetch_sub(bytes, Ordering::SeqCst);
        false
    }

    /// After how many bytes RC asks for an acknowledgement: four in a window, so that the sender need not stop for them,
    /// and one for several superpackets, because each costs about as much as a superpacket.
    pub(crate) fn ask_after(&self) -> u32 {
        self.window / 4
    }

    /// Gives `bytes` of the RC window back.
    pub(crate) fn release_stream(&self, bytes: u32) {
        let less = |used: u32| Some(used.saturating_sub(bytes));
        let _ = self.stream.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Takes `bytes` of the datagram window. `look` finds out about the receiver and is asked when a window is used up
    /// without anybody who would return credits.
    pub(crate) fn reserve_datagram(&self, bytes: u32, now: Instant, look: impl FnOnce() -> Receiver) -> bool {
        let used = self.datagrams.fetch_add(bytes, Ordering::SeqCst);
        if used.saturating_add(bytes) <= self.window {
            return true;
        }
        let mut receiver = self.receiver.lock();
        if *receiver == Receiver::Absent {
            *receiver = look();
            self.last_sign.store(now.0, Ordering::Relaxed);
        }
        if *receiver == Receiver::Credits {
            self.datagrams.fetch_sub(bytes, Ordering::SeqCst);
            return false;
        }
        self.datagrams.store(0, Ordering::SeqCst);
        true
    }

    /// The receiver has taken `bytes` of datagrams out of its socket.
    pub(crate) fn credit(&self, bytes: u32, now: Instant) {
        let less = |used: u32| Some(used.saturating_sub(bytes));
        let _ = self.datagrams.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.last_sign.store(now.0, Ordering::Relaxed);
    }

    /// Opens the datagram window if there was no sign of life for [`STALL`]; the receiver is looked at again.
    pub(crate) fn open_if_stalled(&self, now: Instant) {
        if now.since(Instant(self.last_sign.load(Ordering::Relaxed))) >= STALL {
            self.last_sign.store(now.0, Ordering::Relaxed);
            *self.receiver.lock() = Receiver::Absent;
            self.datagrams.store(0, Ordering::SeqCst);
        }
    }

    /// `qpn` was refused and wants to be served when there is room. Ask once more afterwards: room that came before the
    /// registration woke nobody.
    pub(crate) fn wait(&self, qpn: Qpn) {
        self.waiters.lock().push(qpn);
        self.has_waiters.store(true, Ordering::SeqCst);
    }

    fn is_idle(&self) -> bool {
        self.stream.load(Ordering::Relaxed) == 0 && !self.has_waiters.load(Ordering::Relaxed)
    }
}

/// All destinations of an engine, and the queue pairs that have room again.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    window: AtomicU32,
    map: Mutex<HashMap<Key, Arc<Flow>>>,
    ready: Mutex<VecDeque<Qpn>>,
    has_ready: AtomicBool,
    /// What this process owes to senders.
    credits: Mutex<Credits>,
    /// Whether datagrams were refused since the mailboxes were last read to the end.
    starved: AtomicBool,
}

impl Flows {
    /// Sets the window of destinations that are met from now on: `configured`, or what a receive buffer of `rcvbuf` bytes
    /// (as the kernel reports it) holds.
    pub(crate) fn set_window(&self, configured: Option<u32>, rcvbuf: usize) {
        let derived = (rcvbuf / 2).clamp(WINDOW.0, WINDOW.1) as u32;
        self.window.store(configured.unwrap_or(derived), Ordering::Relaxed);
    }

    /// Credits are worth sending from this many bytes on: a receiver that keeps less to itself stops nobody.
    fn credit_unit(&self) -> u32 {
        (self.window.load(Ordering::Relaxed) / 8).max(8 << 10)
    }

    /// Datagrams of `bytes` from the process of `to` have left the socket of `key`.
    pub(crate) fn owe(&self, to: Slot, key: Key, bytes: u32) {
        self.credits.lock().add(to, key, bytes);
    }

    /// Takes a debt that should be paid now.
    pub(crate) fn next_due(&self) -> Option<Owed> {
        self.credits.lock().next_due(self.credit_unit())
    }

    /// Puts a debt back that could not be paid now.
    pub(crate) fn put_back(&self, owed: Owed) {
        self.credits.lock().put_back(owed);
    }

    /// Whether a debt could not be paid.
    pub(crate) fn is_blocked(&self) -> bool {
        self.credits.lock().is_blocked
    }

    /// The window of `key`; `look` finds out about the receiver if the destination is new.
    pub(crate) fn get(&self, key: Key, now: Instant, look: impl FnOnce() -> Receiver) -> Arc<Flow> {
        let mut map = self.map.lock();
        if let Some(flow) = map.get(&key) {
            return Arc::clone(flow);
        }
        if map.len() >= MAX_IDLE {
            map.retain(|_, flow| Arc::strong_count(flow) > 1 || !flow.is_idle());
        }
        let flow = Arc::new(Flow {
            key,
            window: self.window.load(Ordering::Relaxed),
            stream: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
            datagrams: AtomicU32::new(0),
            receiver: Mutex::new(look()),
            last_sign: AtomicU64::new(now.0),
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
        });
        map.insert(key, Arc::clone(&flow));
        flow
    }

    /// Applies a credit of `key`'s owner.
    pub(crate) fn credit(&self, key: Key, bytes: u32, now: Instant) {
        let flow = self.map.lock().get(&key).map(Arc::clone);
        if let Some(flow) = flow {
            flow.credit(bytes, now);
            self.wake(&flow);
        }
    }

    /// From now on the process of `slot` is `receiver`, and has taken all datagrams that went to it.
    pub(crate) fn set_receiver(&self, slot: Slot, receiver: Receiver) {
        let map = self.map.lock();
        let flows: Vec<_> = map.values().filter(|flow| flow.key.slot == slot).map(Arc::clone).collect();
        drop(map);
        for flow in flows {
            *flow.receiver.lock() = receiver;
            flow.datagrams.store(0, Ordering::SeqCst);
            self.wake(&flow);
        }
    }

    /// These queue pairs have room again.
    pub(crate) fn push_ready(&self, qpns: impl Iterator<Item = Qpn>) {
        self.ready.lock().extend(qpns);
        self.has_ready.store(true, Ordering::Release);
    }

    /// There is room on `flow`: marks whoever waits for it as ready.
    pub(crate) fn wake(&self, flow: &Flow) {
        if flow.has_waiters.load(Ordering::SeqCst) && flow.has_waiters.swap(false, Ordering::SeqCst) {
            self.ready.lock().extend(flow.waiters.lock().drain(..));
            self.has_ready.store(true, Ordering::Release);
        }
    }

    /// Takes the next queue pair that has room again.
    pub(crate) fn pop_ready(&self) -> Option<Qpn> {
        if !self.has_ready.load(Ordering::Acquire) {
            return None;
        }
        let mut ready = self.ready.lock();
        let qpn = ready.pop_front();
        self.has_ready.store(!ready.is_empty(), Ordering::Release);
        qpn
    }

    /// A sender of datagrams ran out of credits.
    pub(crate) fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Ordering::Relaxed);
    }

    /// Whether somebody waits for credits.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.map.lock().clear();
        self.ready.lock().clear();
        *self.credits.lock() = Credits::default();
        self.has_ready.store(false, Ordering::Relaxed);
    }

    /// The locks, for the fork handlers, in the order they are taken.
    pub(crate) fn raw(&self) -> [&dyn crate::fork::Lockable; 3] {
        [&self.map, &self.ready, &self.credits]
    }
}

/// Credits not returned yet, by who is owed them. Bounded: what a peer writes into its packets chooses the entry.
#[derive(Debug, Default)]
struct Credits {
    owed: Vec<Owed>,
    /// An entry was put back.
    is_blocked: bool,
}

/// Bytes taken from the socket `key` that came from the process of `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Slot of the sender.
    pub(crate) to: Slot,
    /// Where the datagrams went: what the sender keeps its window by.
    pub(crate) key: Key,
    /// How many bytes.
    pub(crate) bytes: u32,
}

/// Senders remembered at a time.
const MAX_OWED: usize = 64;

impl Credits {
    /// Notes `bytes` for the sender `to`.
    fn add(&mut self, to: Slot, key: Key, bytes: u32) {
        if let Some(owed) = self.owed.iter_mut().find(|owed| owed.to == to && owed.key == key) {
            owed.bytes = owed.bytes.saturating_add(bytes);
        } else if self.owed.len() < MAX_OWED {
            // With too many senders at a time, one waits until it believes its credits lost.
            self.owed.push(Owed { to, key, bytes });
        }
    }

    /// Takes an entry that should be sent: one of at least `unit` bytes, or any one when the table is full.
    fn next_due(&mut self, unit: u32) -> Option<Owed> {
        self.is_blocked = false;
        let is_full = self.owed.len() >= MAX_OWED;
        let at = self.owed.iter().position(|owed| is_full || owed.bytes >= unit)?;
        Some(self.owed.swap_remove(at))
    }

    /// Puts back what could not be sent now.
    fn put_back(&mut self, owed: Owed) {
        self.add(owed.to, owed.key, owed.bytes);
        self.is_blocked = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn key(slot: u16) -> Key {
        Key { dst: Ipv4Addr::LOCALHOST.into(), slot: Slot::new(slot) }
    }

    fn flows() -> Flows {
        let flows = Flows::default();
        flows.set_window(Some(1000), 0);
        flows
    }

    const T0: Instant = Instant(1_000_000_000);

    #[test]
    fn windows_follow_the_buffer_within_bounds() {
        let flows = Flows::default();
        for (rcvbuf, window) in [(0, 128 << 10), (425_984, 212_992), (8 << 20, 1 << 20)] {
            flows.set_window(None, rcvbuf);
            assert_eq!(flows.get(key(rcvbuf as u16 & 0xff), T0, || Receiver::Remote).window, window);
            flows.clear();
        }
    }

    #[test]
    fn queue_pairs_share_the_window_and_the_first_packet_always_goes() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(600, 0) && flow.reserve_stream(400, 600));
        assert!(!flow.reserve_stream(1, 1000));
        assert!(flow.reserve_stream(600, 0));
        flow.release_stream(1200);
        assert!(flow.reserve_stream(200, 400));
        assert!(flow.reserve_stream(400, 600));
        assert!(!flow.reserve_stream(1, 1000));
    }

    #[test]
    fn a_full_window_opens_when_a_quarter_of_it_is_free() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && !flow.reserve_stream(1, 1000));
        flow.release_stream(200);
        assert!(!flow.reserve_stream(1, 800));
        assert!(flow.reserve_stream(10, 0), "who has nothing under way is never refused, and opens it for nobody else");
        assert!(!flow.reserve_stream(1, 10));
        flow.release_stream(61);
        assert!(flow.reserve_stream(1, 749) && flow.reserve_stream(250, 750));
        assert!(!flow.reserve_stream(1, 1000));
    }

    #[test]
    fn waiters_become_ready_when_room_comes() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        flow.wait(Qpn::new(7));
        flow.wait(Qpn::new(8));
        assert_eq!(flows.pop_ready(), None);
        flows.wake(&flow);
        assert_eq!(flows.pop_ready(), Some(Qpn::new(7)));
        assert_eq!(flows.pop_ready(), Some(Qpn::new(8)));
        flows.wake(&flow);
        assert_eq!(flows.pop_ready(), None);
    }

    #[test]
    fn datagrams_stop_without_credits_and_go_on_with_them() {
        let flows = flows();
        let flow = flows.get(key(2), T0, || Receiver::Credits);
        let reserve = |bytes| flow.reserve_datagram(bytes, T0, || panic!("the receiver is known"));
        assert!(reserve(1000));
        assert!(!reserve(1));
        flows.credit(key(2), 300, T0);
        assert!(reserve(300));
        assert!(!reserve(1));
    }

    #[test]
    fn a_window_without_signs_of_life_opens_again() {
        let flows = flows();
        let flow = flows.get(key(3), T0, || Receiver::Credits);
        assert!(flow.reserve_datagram(1000, T0, || Receiver::Credits));
        flow.open_if_stalled(T0.after(STALL - Duration::from_nanos(1)));
        assert!(!flow.reserve_datagram(1, T0, || Receiver::Credits));
        flow.open_if_stalled(T0.after(STALL));
        assert!(flow.reserve_datagram(1000, T0, || Receiver::Credits));
    }

    #[test]
    fn nobody_waits_for_the_dead_or_the_distant() {
        let flows = flows();
        let dead = flows.get(key(4), T0, || Receiver::Absent);
        let distant = flows.get(key(5), T0, || Receiver::Remote);
        for _ in 0..10 {
            assert!(dead.reserve_datagram(900, T0, || Receiver::Absent));
            assert!(distant.reserve_datagram(900, T0, || panic!("a remote receiver stays remote")));
        }
        assert!(!(0..3).all(|_| dead.reserve_datagram(900, T0, || Receiver::Credits)));
    }

    #[test]
    fn credits_are_collected_up_to_the_unit() {
        let mut credits = Credits::default();
        credits.add(Slot::new(1), key(9), 60);
        credits.add(Slot::new(2), key(9), 60);
        assert_eq!(credits.next_due(100), None);
        credits.add(Slot::new(1), key(9), 60);
        let due = credits.next_due(100).unwrap();
        assert_eq!((due.to, due.bytes), (Slot::new(1), 120));
        credits.put_back(due);
        assert!(credits.is_blocked);
        assert_eq!(credits.next_due(100), Some(due));
        assert!(!credits.is_blocked);
    }

    #[test]
    fn a_flood_of_senders_stays_bounded() {
        let mut credits = Credits::default();
        (0..1000).for_each(|slot| credits.add(Slot::new(slot), key(9), 1));
        assert_eq!(credits.owed.len(), MAX_OWED);
        assert!(credits.next_due(100).is_some());
        assert!(credits.next_due(100).is_none());
    }

    #[test]
    fn idle_destinations_are_forgotten() {
        let flows = flows();
        let kept = flows.get(key(0), T0, || Receiver::Remote);
        assert!(kept.reserve_stream(10, 0));
        for slot in 1..3000 {
            flows.get(key(slot), T0, || Receiver::Remote);
        }
        assert!(flows.map.lock().len() <= MAX_IDLE);
        assert!(Arc::ptr_eq(&kept, &flows.get(key(0), T0, || Receiver::Remote)));
    }
}
