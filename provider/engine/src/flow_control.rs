//! How much may be under way towards one receiving socket.
//!
//! A loopback socket drops silently when its buffer is full, so all queue pairs of this process
//! share one window per destination: an address and a slot, which is one process there. RC gives
//! its bytes back when they are acknowledged. UC and UD have no acknowledgements; towards a process
//! of this host the receiving engine returns *credits* for what it took out of its socket, towards
//! other hosts there is no window. Lost packets return no credit, so a window without any sign of
//! life for [`STALL`] opens again: flow control may cost speed, never liveness.
//!
//! Touches nothing.

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

/// Bounds of the window derived from a socket buffer, bytes. Throughput is flat above the lower
/// one.
const WINDOW: (usize, usize) = (128 << 10, 1 << 20);
/// Unused destinations are forgotten when there are more than this.
const MAX_IDLE: usize = 1024;

/// A queue pair whose turn it is.
#[derive(Debug)]
pub struct Turn {
    /// Its number.
    pub qpn: Qpn,
    /// What it waited for.
    pub grant: Option<Grant>,
}

/// All destinations of an engine, and the queue pairs that have room again.
#[derive(Debug, Default)]
pub struct Flows {
    window: AtomicU32,
    map: Mutex<rank::Flows, HashMap<Key, Arc<Flow>>>,
    ready: Queue<rank::FlowReady, Turn>,
    /// What this process owes to senders.
    credits: Mutex<rank::FlowCredits, Credits>,
    /// Whether that is anything.
    owes: ReadyFlag,
    /// Whether datagrams were refused since the mailboxes were last read to the end.
    starved: AtomicBool,
}

impl Flows {
    /// With the flags for queue pairs that have room, and for credits that are owed.
    pub(crate) fn new(ready: ReadyFlag, owes: ReadyFlag) -> Self {
        Self { ready: Queue::new(ready), owes, ..Self::default() }
    }

    /// Sets the window of destinations that are met from now on: `configured`, or what a receive
    /// buffer of `rcvbuf` bytes (as the kernel reports it) holds.
    pub fn set_window(&self, configured: Option<u32>, rcvbuf: usize) {
        let derived = (rcvbuf / 2).clamp(WINDOW.0, WINDOW.1) as u32;
        self.window.store(configured.unwrap_or(derived), Ordering::Relaxed);
    }

    /// Credits are worth sending from this many bytes on: a receiver that keeps less to itself
    /// stops nobody.
    fn credit_unit(&self) -> u32 {
        (self.window.load(Ordering::Relaxed) / 8).max(8 << 10)
    }

    /// Datagrams of `bytes` from the process of `to` have left the socket of `key`.
    pub fn owe(&self, to: Slot, key: Key, bytes: u32) {
        let mut credits = self.credits.lock();
        credits.add(to, key, bytes);
        self.owes.set_to(true);
    }

    /// Takes a debt that should be paid now.
    pub fn next_due(&self) -> Option<Owed> {
        if !self.owes.is_set() {
            return None;
        }
        let mut credits = self.credits.lock();
        let due = credits.next_due(self.credit_unit());
        self.owes.set_to(!credits.owed.is_empty());
        due
    }

    /// Puts a debt back that could not be paid now.
    pub fn put_back(&self, owed: Owed) {
        let mut credits = self.credits.lock();
        credits.put_back(owed);
        self.owes.set_to(true);
    }

    /// Whether a debt could not be paid.
    pub fn is_blocked(&self) -> bool {
        self.owes.is_set() && self.credits.lock().is_blocked
    }

    /// The window of `key`; `look` finds out about the receiver if the destination is new.
    pub fn get(&self, key: Key, now: Instant, look: impl FnOnce() -> Receiver) -> Arc<Flow> {
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
            receiver: Mutex::new(look()),
            last_sign: AtomicU64::new(now.0),
            last_landing: AtomicU64::new(now.0),
            waiters: Default::default(),
        });
        map.insert(key, Arc::clone(&flow));
        flow
    }

    /// Applies a credit of `key`'s owner.
    pub fn credit(&self, key: Key, bytes: u32, now: Instant) {
        let flow = self.map.lock().get(&key).map(Arc::clone);
        if let Some(flow) = flow {
            flow.credit(bytes, now);
            self.wake(&flow);
        }
    }

    /// From now on the process of `slot` is `receiver`, and has taken all datagrams that went to
    /// it.
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

    /// These queue pairs have room again, or waited for something else to be served.
    #[inline]
    pub fn push_ready(&self, qpns: impl Iterator<Item = Qpn>) {
        self.ready.change(|ready| ready.extend(qpns.map(|qpn| Turn { qpn, grant: None })));
    }

    /// There may be room on `flow`: whoever waited longest is ready and has it, as far as it goes.
    /// So a message costs one waiting queue pair a visit, not all of them.
    #[inline]
    pub fn wake(&self, flow: &Arc<Flow>) {
        for pool in [Pool::Stream, Pool::Datagrams] {
            if flow.waiters(pool).are_there() {
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

    /// Takes the next queue pair that has room again.
    pub fn pop_ready(&self) -> Option<Turn> {
        self.ready.pop()
    }

    /// A sender of datagrams ran out of credits.
    pub fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Ordering::Relaxed);
    }

    /// Whether somebody waits for credits.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.map.lock().clear();
        self.ready.change(VecDeque::clear);
        *self.credits.lock() = Credits::default();
    }

    /// The locks, for the fork handlers, in the order they are taken.
    pub fn raw(&self) -> [&dyn roxe_base::lock::Lockable; 3] {
        [&self.map, self.ready.raw(), &self.credits]
    }
}

/// Credits not returned yet, by who is owed them. Bounded: what a peer writes into its packets
/// chooses the entry.
#[derive(Debug, Default)]
struct Credits {
    owed: Vec<Owed>,
    /// An entry was put back.
    is_blocked: bool,
}

/// Bytes taken from the socket `key` that came from the process of `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Slot of the sender.
    pub to: Slot,
    /// Where the datagrams went: what the sender keeps its window by.
    pub key: Key,
    /// How many bytes.
    pub bytes: u32,
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

    /// Takes an entry that should be sent: one of at least `unit` bytes, or any one when the table
    /// is full.
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

    /// Of its window of 1000 what datagrams may use.
    const DATAGRAMS: u32 = 750;

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
    fn datagrams_both_ways_fit_one_socket_as_the_kernel_counts_them() {
        let (flows, rcvbuf) = (Flows::default(), 425_984);
        flows.set_window(None, rcvbuf);
        let flow = flows.get(key(1), T0, || Receiver::Credits);
        let charge = roxe_net::rcvbuf_cost::charge(4096);
        let most = (0..1000).take_while(|_| flow.reserve_datagram(charge, T0, || Receiver::Credits, || false)).count();
        // What Linux 6.18 takes for a packet of 4112 bytes that comes alone.
        assert!((30..=rcvbuf / 4953 / 2).contains(&most), "{most} each way");
    }

    #[test]
    fn queue_pairs_share_the_window_and_the_first_packet_always_goes() {
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
    fn a_run_goes_beyond_a_full_window_by_a_quarter_at_most_and_no_more_than_one_send() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(900, 0) && !flow.reserve_stream(101, 900));
        assert!(flow.reserve_in_run(300) && flow.reserve_in_run(50) && !flow.reserve_in_run(1));
        flow.release_stream(300, T0);
        assert!(!flow.reserve_stream(1, 950), "the window stays full");
        flow.release_stream(950, T0);
        assert!(flow.reserve_stream(1000, 0), "nothing is held any more");
        let flows = Flows::default();
        flows.set_window(None, 8 << 20);
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1 << 20, 0) && flow.reserve_in_run(MAX_BYTES as u32) && !flow.reserve_in_run(1));
    }

    #[test]
    fn a_full_window_opens_when_a_quarter_of_it_is_free() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && !flow.reserve_stream(1, 1000));
        flow.release_stream(200, T0);
        assert!(!flow.reserve_stream(1, 800));
        assert!(flow.reserve_stream(10, 0), "who has nothing under way is never refused, and opens it for nobody else");
        assert!(!flow.reserve_stream(1, 10));
        flow.release_stream(61, T0);
        assert!(flow.reserve_stream(1, 749) && flow.reserve_stream(250, 750));
        assert!(!flow.reserve_stream(1, 1000));
    }

    #[test]
    fn room_for_later_is_there_only_while_nobody_else_wants_it() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_ahead(900) && !flow.reserve_ahead(101));
        assert!(flow.reserve_stream(100, 900), "what was refused holds nothing and leaves the window open");
        flow.release_stream(900, T0);
        flow.wait(Pool::Stream, Qpn::new(7), 1);
        assert!(!flow.reserve_ahead(1), "somebody waits");
        let full = flows().get(key(1), T0, || Receiver::Remote);
        assert!(full.reserve_stream(1000, 0) && !full.reserve_stream(1, 1000));
        full.release_stream(200, T0);
        assert!(!full.reserve_ahead(1), "the window is not open yet");
    }

    /// The queue pairs that are ready now, with what is held for them.
    fn ready(flows: &Flows) -> Vec<Turn> {
        std::iter::from_fn(|| flows.pop_ready()).collect()
    }

    fn numbers(ready: &[Turn]) -> Vec<u32> {
        ready.iter().map(|ready| ready.qpn.get()).collect()
    }

    #[test]
    fn waiters_get_the_room_that_comes_in_their_turn_and_nobody_else_does() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && !flow.reserve_stream(100, 1));
        (7..12).for_each(|qpn| flow.wait(Pool::Stream, Qpn::new(qpn), 100));
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
        assert!(flow.reserve_stream(1000, 1), "what they did not need is there again");
    }

    #[test]
    fn a_long_message_waits_for_a_quarter_of_the_window() {
        let flows = Flows::default();
        flows.set_window(Some(100_000), 0);
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(100_000, 0) && !flow.reserve_stream(4192, 1));
        (7..10).for_each(|qpn| flow.wait(Pool::Stream, Qpn::new(qpn), 4192));
        flow.release_stream(30_000, T0);
        flows.wake(&flow);
        assert_eq!(numbers(&ready(&flows)), [7]);
    }

    #[test]
    fn who_has_nothing_under_way_may_use_a_second_window_while_nobody_waits() {
        let flow = flows().get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(1000, 0) && flow.reserve_stream(1000, 0));
        assert!(!flow.reserve_stream(1, 0));
        flow.release_stream(500, T0);
        flow.wait(Pool::Stream, Qpn::new(7), 1);
        assert!(!flow.reserve_stream(1, 0));
    }

    #[test]
    fn a_window_of_bytes_that_never_come_back_opens_again() {
        let flows = flows();
        let flow = flows.get(key(1), T0, || Receiver::Remote);
        assert!(flow.reserve_stream(2000, 0));
        flow.wait(Pool::Stream, Qpn::new(7), 1);
        flow.open_stream_if_stalled(T0.after(STREAM_STALL - Duration::from_nanos(1)));
        flows.wake(&flow);
        assert!(ready(&flows).is_empty());
        flow.open_stream_if_stalled(T0.after(STREAM_STALL));
        flows.wake(&flow);
        assert_eq!(numbers(&ready(&flows)), [7]);
    }

    #[test]
    fn datagrams_stop_without_credits_and_go_on_with_them() {
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
    fn who_goes_on_by_the_socket_when_there_is_a_ring_keeps_within_the_window() {
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
    fn a_window_without_signs_of_life_opens_again() {
        let flows = flows();
        let flow = flows.get(key(3), T0, || Receiver::Credits);
        assert!(flow.reserve_datagram(DATAGRAMS, T0, || Receiver::Credits, || false));
        assert!(!flow.open_if_stalled(T0.after(STALL - Duration::from_nanos(1))));
        assert!(!flow.reserve_datagram(1, T0, || Receiver::Credits, || false));
        assert!(flow.open_if_stalled(T0.after(STALL)));
        assert!(flow.reserve_datagram(DATAGRAMS, T0, || Receiver::Credits, || false));
    }

    #[test]
    fn nobody_waits_for_the_dead_or_the_distant() {
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
