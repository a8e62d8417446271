//! Limits on the bytes in flight to one receiving socket.
//!
//! A loopback socket drops silently when its buffer is full, so all queue pairs of this process
//! share one window per destination: an address and a slot, which is one process. RC releases its
//! bytes on acknowledgement. For UC and UD the receiving engine returns *credits* for what it read
//! from its socket, if it is on this host; other hosts have no window. Lost packets return no
//! credit, so a window without progress for [`STALL`] is reset: flow control may cost speed, never
//! liveness.

mod flow;
mod used;
mod waiters;

pub use flow::{Flow, Grant, Key, Receiver, STALL, STREAM_STALL};
pub use waiters::Pool;

use roxe_base::lock::{Mutex, rank};
use roxe_base::queue::Queue;
use roxe_base::ready::ReadyFlag;
use roxe_net::slot::Slot;
use roxe_transport::time::Instant;
use roxe_wire::Qpn;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use used::Used;

/// Bounds of the window derived from a socket buffer, in bytes.
const WINDOW: (usize, usize) = (128 << 10, 1 << 20);
/// Number of destinations from which on unused ones are removed.
const MAX_IDLE: usize = 1024;

/// A queue pair to be served.
#[derive(Debug)]
pub struct Turn {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Room held for it, if it waited for a window.
    pub grant: Option<Grant>,
}

/// Windows of all destinations of an engine, and the queue pairs to be served.
#[derive(Debug, Default)]
pub struct Flows {
    window: AtomicU32,
    map: Mutex<rank::Flows, HashMap<Key, Arc<Flow>>>,
    ready: Queue<rank::FlowReady, Turn>,
    credits: Mutex<rank::FlowCredits, Credits>,
    owes: ReadyFlag,
    /// True after datagrams were refused, until the mailboxes have been read.
    wants_credits: AtomicBool,
}

impl Flows {
    /// Creates the windows. `ready` is set while queue pairs have room, `owes` while credits are
    /// owed.
    pub(crate) fn new(ready: ReadyFlag, owes: ReadyFlag) -> Self {
        Self { ready: Queue::new(ready), owes, ..Self::default() }
    }

    /// Sets the window of new destinations: `configured`, or derived from a receive buffer of
    /// `rcvbuf` bytes as the kernel reports it.
    pub fn set_window(&self, configured: Option<u32>, rcvbuf: usize) {
        let derived = (rcvbuf / 2).clamp(WINDOW.0, WINDOW.1) as u32;
        self.window.store(configured.unwrap_or(derived), Ordering::Relaxed);
    }

    /// Returns the fewest bytes worth a credit message; less withheld credit blocks no sender.
    fn credit_unit(&self) -> u32 {
        (self.window.load(Ordering::Relaxed) / 8).max(8 << 10)
    }

    /// Notes credit owed to the process of `to` for `bytes` read from the socket of `key`.
    pub fn owe(&self, to: Slot, key: Key, bytes: u32) {
        let mut credits = self.credits.lock();
        credits.add(to, key, bytes);
        self.owes.set_to(true);
    }

    /// Takes credits that should be sent now.
    pub fn next_due(&self) -> Option<Owed> {
        if !self.owes.is_set() {
            return None;
        }
        let mut credits = self.credits.lock();
        let due = credits.next_due(self.credit_unit());
        self.owes.set_to(!credits.owed.is_empty());
        due
    }

    /// Puts back credits that could not be sent.
    pub fn put_back(&self, owed: Owed) {
        let mut credits = self.credits.lock();
        credits.put_back(owed);
        self.owes.set_to(true);
    }

    /// Returns true if sending credits was blocked.
    pub fn is_blocked(&self) -> bool {
        self.owes.is_set() && self.credits.lock().is_blocked
    }

    /// Returns the window of `key`; `find_receiver` determines the receiver of a new destination.
    pub fn get(&self, key: Key, now: Instant, find_receiver: impl FnOnce() -> Receiver) -> Arc<Flow> {
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
            stream: Used::default(),
            is_full: AtomicBool::new(false),
            datagrams: Used::default(),
            receiver: Mutex::new(find_receiver()),
            last_credit: AtomicU64::new(now.0),
            last_release: AtomicU64::new(now.0),
            waiters: Default::default(),
        });
        map.insert(key, Arc::clone(&flow));
        flow
    }

    /// Applies credit returned by the owner of `key`.
    pub fn credit(&self, key: Key, bytes: u32, now: Instant) {
        let flow = self.map.lock().get(&key).map(Arc::clone);
        if let Some(flow) = flow {
            flow.credit(bytes, now);
            self.wake(&flow);
        }
    }

    /// Sets how the process of `slot` receives, and resets its datagram windows.
    pub fn set_receiver(&self, slot: Slot, receiver: Receiver) {
        let map = self.map.lock();
        let flows: Vec<_> = map.values().filter(|flow| flow.key.slot == slot).map(Arc::clone).collect();
        drop(map);
        for flow in flows {
            *flow.receiver.lock() = receiver;
            flow.datagrams.clear();
            self.wake(&flow);
        }
    }

    /// Makes queue pairs ready to be served.
    #[inline]
    pub fn push_ready(&self, qpns: impl Iterator<Item = Qpn>) {
        self.ready.change(|ready| ready.extend(qpns.map(|qpn| Turn { qpn, grant: None })));
    }

    /// Grants room on `flow` to waiters in order of arrival, so that a released window costs one
    /// visit, not one per waiter.
    #[inline]
    pub fn wake(&self, flow: &Arc<Flow>) {
        for pool in [Pool::Stream, Pool::Datagrams] {
            if flow.waiters(pool).has_waiters() {
                self.wake_waiters(flow, pool);
            }
        }
    }

    #[inline(never)]
    fn wake_waiters(&self, flow: &Arc<Flow>, pool: Pool) {
        self.ready.change(|ready| {
            while let Some((qpn, bytes)) = flow.waiters(pool).pop_if(|bytes| flow.room_for(pool, bytes)) {
                flow.used(pool).take(bytes);
                ready.push_back(Turn { qpn, grant: Some(Grant { flow: Arc::clone(flow), pool, bytes }) });
            }
        });
    }

    /// Takes the next queue pair to be served.
    pub fn pop_ready(&self) -> Option<Turn> {
        self.ready.pop()
    }

    /// Sets whether a sender of datagrams waits for credits.
    pub fn set_wants_credits(&self, wants: bool) {
        self.wants_credits.store(wants, Ordering::Relaxed);
    }

    /// Returns true if a sender of datagrams waits for credits.
    pub fn wants_credits(&self) -> bool {
        self.wants_credits.load(Ordering::Relaxed)
    }

    /// Resets all state.
    pub fn clear(&self) {
        self.map.lock().clear();
        self.ready.change(VecDeque::clear);
        *self.credits.lock() = Credits::default();
    }

    /// Returns the locks in the order they are taken, for the fork handlers.
    pub fn locks(&self) -> [&dyn roxe_base::lock::Lockable; 3] {
        [&self.map, self.ready.lockable(), &self.credits]
    }
}

/// Credits not returned yet. Bounded, because packets of peers choose the entries.
#[derive(Debug, Default)]
struct Credits {
    owed: Vec<Owed>,
    is_blocked: bool,
}

/// Bytes read from the socket of `key` that the process of `to` sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Slot of the sender.
    pub to: Slot,
    /// Destination of the datagrams: the key of the sender's window.
    pub key: Key,
    /// Bytes owed.
    pub bytes: u32,
}

/// Maximum number of senders remembered at a time.
const MAX_OWED: usize = 64;

impl Credits {
    /// Adds `bytes` for the sender `to`.
    fn add(&mut self, to: Slot, key: Key, bytes: u32) {
        if let Some(owed) = self.owed.iter_mut().find(|owed| owed.to == to && owed.key == key) {
            owed.bytes = owed.bytes.saturating_add(bytes);
        } else if self.owed.len() < MAX_OWED {
            // The credit of further senders is lost; they reset their windows after a stall.
            self.owed.push(Owed { to, key, bytes });
        }
    }

    /// Takes an entry of at least `unit` bytes, or any entry if the table is full.
    fn next_due(&mut self, unit: u32) -> Option<Owed> {
        self.is_blocked = false;
        let is_full = self.owed.len() >= MAX_OWED;
        let at = self.owed.iter().position(|owed| is_full || owed.bytes >= unit)?;
        Some(self.owed.swap_remove(at))
    }

    fn put_back(&mut self, owed: Owed) {
        self.add(owed.to, owed.key, owed.bytes);
        self.is_blocked = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_net::link::MAX_BYTES;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn key(slot: u16) -> Key {
        Key { dst: Ipv4Addr::LOCALHOST.into(), slot: Slot::new(slot) }
    }

    fn flows() -> Flows {
        let flows = Flows::default();
        flows.set_window(Some(1000), 0);
        flows
    }

    /// The part of a window of 1000 that datagrams may use.
    const DATAGRAMS: u32 = 750;

    const T0: Instant = Instant(1_000_000_000);

    #[test]
    fn window_follows_buffer_within_bounds() {
        let flows = Flows::default();
        for (rcvbuf, window) in [(0, 128 << 10), (425_984, 212_992), (8 << 20, 1 << 20)] {
            flows.set_window(None, rcvbuf);
            assert_eq!(flows.get(key(rcvbuf as u16 & 0xff), T0, || Receiver::Remote).window, window);
            flows.clear();
        }
    }

    #[test]
    fn datagrams_both_ways_fit_one_socket_buffer() {
        let (flows, rcvbuf) = (Flows::default(), 425_984);
        flows.set_window(None, rcvbuf);
        let flow = flows.get(key(1), T0, || Receiver::Credits);
        let cost = roxe_net::rcvbuf_cost::packet_cost(4096);
        let most = (0..1000).take_while(|_| flow.reserve_datagram(cost, T0, || Receiver::Credits, || false)).count();
        // The memory that Linux 6.18 accounts for a single packet of 4112 bytes.
        assert!((30..=rcvbuf / 4953 / 2).contains(&most), "{most} each way");
    }

    #[test]
    fn queue_pairs_share_window_and_first_packet_goes() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(600, 0) && flow.reserve_stream(400, 600));
        assert!(!flow.reserve_stream(1, 1000));
        assert!(flow.reserve_stream(600, 0));
        flow.release_stream(1200, T0);
        assert!(flow.reserve_stream(200, 400));
        assert!(flow.reserve_stream(400, 600));
        assert!(!flow.reserve_stream(1, 1000));
    }

    #[test]
    fn run_exceeds_full_window_by_at_most_a_quarter() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(900, 0) && !flow.reserve_stream(101, 900));
        assert!(flow.reserve_in_run(300) && flow.reserve_in_run(50) && !flow.reserve_in_run(1));
        flow.release_stream(300, T0);
        assert!(!flow.reserve_stream(1, 950), "the window stays full");
        flow.release_stream(950, T0);
        assert!(flow.reserve_stream(1000, 0), "no bytes are reserved any more");
        let flows = Flows::default();
        flows.set_window(None, 8 << 20);
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1 << 20, 0) && flow.reserve_in_run(MAX_BYTES as u32) && !flow.reserve_in_run(1));
    }

    #[test]
    fn full_window_opens_when_a_quarter_is_free() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && !flow.reserve_stream(1, 1000));
        flow.release_stream(200, T0);
        assert!(!flow.reserve_stream(1, 800));
        assert!(
            flow.reserve_stream(10, 0),
            "a sender with nothing in flight is never refused, and the window stays closed for others"
        );
        assert!(!flow.reserve_stream(1, 10));
        flow.release_stream(61, T0);
        assert!(flow.reserve_stream(1, 749) && flow.reserve_stream(250, 750));
        assert!(!flow.reserve_stream(1, 1000));
    }

    #[test]
    fn reserve_ahead_needs_free_window_without_waiters() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_ahead(900) && !flow.reserve_ahead(101));
        assert!(flow.reserve_stream(100, 900), "a refused reservation holds no bytes and leaves the window open");
        flow.release_stream(900, T0);
        flow.add_waiter(Pool::Stream, Qpn::new(7), 1);
        assert!(!flow.reserve_ahead(1), "another queue pair waits");
        let full = flows().get(key(1), T0, || Receiver::Remote);
        assert!(full.reserve_stream(1000, 0) && !full.reserve_stream(1, 1000));
        full.release_stream(200, T0);
        assert!(!full.reserve_ahead(1), "the window is not open yet");
    }

    /// Returns the queue pairs that are ready now, with their grants.
    fn ready(flows: &Flows) -> Vec<Turn> {
        std::iter::from_fn(|| flows.pop_ready()).collect()
    }

    fn numbers(ready: &[Turn]) -> Vec<u32> {
        ready.iter().map(|ready| ready.qpn.get()).collect()
    }

    #[test]
    fn waiters_get_granted_room_in_order() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && !flow.reserve_stream(100, 1));
        (7..12).for_each(|qpn| flow.add_waiter(Pool::Stream, Qpn::new(qpn), 100));
        flows.wake(&flow);
        assert!(ready(&flows).is_empty());
        flow.release_stream(500, T0);
        flows.wake(&flow);
        let turn = ready(&flows);
        assert_eq!(numbers(&turn), [7, 8, 9], "up to three quarters, and one more");
        assert!(!flow.reserve_stream(100, 1) && !flow.reserve_stream(300, 0), "others wait");
        for ready in turn {
            drop(ready.grant);
            assert!(flow.reserve_in_turn(100));
        }
        flow.release_stream(800, T0);
        flows.wake(&flow);
        assert_eq!(numbers(&ready(&flows)), [10, 11]);
        flows.wake(&flow);
        assert!(ready(&flows).is_empty());
        assert!(flow.reserve_stream(1000, 1), "unused reservations are released");
    }

    #[test]
    fn long_message_waits_for_a_quarter_of_the_window() {
        let flows = Flows::default();
        flows.set_window(Some(100_000), 0);
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(100_000, 0) && !flow.reserve_stream(4192, 1));
        (7..10).for_each(|qpn| flow.add_waiter(Pool::Stream, Qpn::new(qpn), 4192));
        flow.release_stream(30_000, T0);
        flows.wake(&flow);
        assert_eq!(numbers(&ready(&flows)), [7]);
    }

    #[test]
    fn idle_queue_pair_may_use_second_window() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && flow.reserve_stream(1000, 0));
        assert!(!flow.reserve_stream(1, 0));
        flow.release_stream(500, T0);
        flow.add_waiter(Pool::Stream, Qpn::new(7), 1);
        assert!(!flow.reserve_stream(1, 0));
    }

    #[test]
    fn stalled_stream_window_reopens() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(2000, 0));
        flow.add_waiter(Pool::Stream, Qpn::new(7), 1);
        flow.reset_stream_if_stalled(T0.after(STREAM_STALL - Duration::from_nanos(1)));
        flows.wake(&flow);
        assert!(ready(&flows).is_empty());
        flow.reset_stream_if_stalled(T0.after(STREAM_STALL));
        flows.wake(&flow);
        assert_eq!(numbers(&ready(&flows)), [7]);
    }

    #[test]
    fn datagrams_stop_without_credits_and_resume() {
        let flows = flows();
        let flow = flows.get(key(2), T0, || Receiver::Credits);
        let reserve = |bytes| flow.reserve_datagram(bytes, T0, || panic!("the receiver is known"), || true);
        assert!(reserve(DATAGRAMS));
        assert!(!reserve(1));
        flows.credit(key(2), 300, T0);
        assert!(reserve(300));
        assert!(!reserve(1));
    }

    #[test]
    fn socket_sender_next_to_ring_keeps_window() {
        let flows = flows();
        let flow = flows.get(key(2), T0, || Receiver::Credits);
        let reserve = |bytes, by_ring| flow.reserve_datagram(bytes, T0, || panic!("the receiver is known"), || by_ring);
        assert!(reserve(DATAGRAMS, false));
        flows.set_receiver(key(2).slot, Receiver::Ring);
        assert!(reserve(DATAGRAMS, false) && !reserve(1, false), "the socket may hold two windows");
        flows.credit(key(2), 300, T0);
        assert!(reserve(300, false) && !reserve(1, false));
        assert!((0..10).all(|_| reserve(1000, true)));
    }

    #[test]
    fn stalled_datagram_window_reopens() {
        let flows = flows();
        let flow = flows.get(key(3), T0, || Receiver::Credits);
        assert!(flow.reserve_datagram(DATAGRAMS, T0, || Receiver::Credits, || false));
        assert!(!flow.reset_datagrams_if_stalled(T0.after(STALL - Duration::from_nanos(1))));
        assert!(!flow.reserve_datagram(1, T0, || Receiver::Credits, || false));
        assert!(flow.reset_datagrams_if_stalled(T0.after(STALL)));
        assert!(flow.reserve_datagram(DATAGRAMS, T0, || Receiver::Credits, || false));
    }

    #[test]
    fn absent_and_remote_receivers_have_no_window() {
        let flows = flows();
        let dead = flows.get(key(4), T0, || Receiver::Absent);
        let distant = flows.get(key(5), T0, || Receiver::Remote);
        for _ in 0..10 {
            assert!(dead.reserve_datagram(900, T0, || Receiver::Absent, || false));
            assert!(distant.reserve_datagram(900, T0, || panic!("a remote receiver stays remote"), || false));
        }
        assert!(!(0..3).all(|_| dead.reserve_datagram(900, T0, || Receiver::Credits, || false)));
    }

    #[test]
    fn credits_are_collected_up_to_unit() {
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
    fn owed_credits_are_bounded() {
        let mut credits = Credits::default();
        (0..1000).for_each(|slot| credits.add(Slot::new(slot), key(9), 1));
        assert_eq!(credits.owed.len(), MAX_OWED);
        assert!(credits.next_due(100).is_some());
        assert!(credits.next_due(100).is_none());
    }

    #[test]
    fn idle_destinations_are_removed() {
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
