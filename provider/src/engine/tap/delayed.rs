//! Packets that fault rules hold back, by the time they go on.
//!
//! Touches nothing but memory; the engine carries out what is due.

use crate::net::RxMeta;
use parking_lot::Mutex;
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Qpn};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets that can be held at once; rules that hold more lose what is too much.
const MAX_HELD: usize = 1 << 14;
/// What `next` holds while nothing is held.
const NEVER: u64 = u64::MAX;

/// A packet that is held.
#[derive(Debug)]
pub(crate) enum Held {
    /// It shall leave.
    Outgoing {
        /// With these headers around it.
        net: NetHeader,
        /// BTH to ICRC.
        bytes: Vec<u8>,
        /// What a capture says about it.
        remark: String,
    },
    /// It shall be handed in.
    Incoming(Incoming),
}

/// A packet for a queue pair of this process.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// The queue pair.
    pub(crate) qpn: Qpn,
    /// How it arrived, alone.
    pub(crate) meta: RxMeta,
    /// BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
    /// It shall find no receive.
    pub(crate) rnr: bool,
    /// It came only once.
    pub(crate) is_copy: bool,
}

/// Ordered by time, then by order of arrival.
#[derive(Debug)]
struct Entry {
    due: Instant,
    number: u64,
    held: Held,
}

impl Entry {
    const fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug, Default)]
struct Heap {
    entries: BinaryHeap<Reverse<Entry>>,
    /// Of the next entry.
    number: u64,
}

/// All packets that an engine holds.
#[derive(Debug)]
pub(crate) struct Delayed {
    heap: Mutex<Heap>,
    /// When the first is due, so that pollers look without locking.
    next: AtomicU64,
}

impl Default for Delayed {
    fn default() -> Self {
        Self { heap: Mutex::default(), next: AtomicU64::new(NEVER) }
    }
}

impl Delayed {
    /// Holds a packet until `due`; false if too many are held already.
    pub(crate) fn hold(&self, due: Instant, held: Held) -> bool {
        let mut heap = self.heap.lock();
        if heap.entries.len() >= MAX_HELD {
            return false;
        }
        let number = heap.number;
        heap.number += 1;
        heap.entries.push(Reverse(Entry { due, number, held }));
        self.publish(&heap);
        true
    }

    /// Takes the first packet if it is due.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<Held> {
        if self.next.load(Ordering::Relaxed) > now.0 {
            return None;
        }
        let mut heap = self.heap.lock();
        heap.entries.peek().filter(|Reverse(entry)| entry.due <= now)?;
        let Reverse(entry) = heap.entries.pop()?;
        self.publish(&heap);
        Some(entry.held)
    }

    /// When the first packet is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        // SeqCst as in the queue pairs' timers.
        Some(self.next.load(Ordering::SeqCst)).filter(|&next| next != NEVER).map(Instant)
    }

    /// Loses everything.
    pub(crate) fn clear(&self) {
        let mut heap = self.heap.lock();
        heap.entries.clear();
        self.publish(&heap);
    }

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl crate::fork::Lockable {
        &self.heap
    }

    fn publish(&self, heap: &Heap) {
        let next = heap.entries.peek().map_or(NEVER, |Reverse(entry)| entry.due.0);
        self.next.store(next, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(remark: &str) -> Held {
        Held::Outgoing { net: NetHeader::default(), bytes: Vec::new(), remark: remark.to_owned() }
    }

    fn pop(delayed: &Delayed, now: u64) -> Option<String> {
        match delayed.pop_due(Instant(now))? {
            Held::Outgoing { remark, .. } => Some(remark),
            Held::Incoming(_) => None,
        }
    }

    #[test]
    fn packets_come_out_when_due_those_of_one_time_in_order() {
        let delayed = Delayed::default();
        assert_eq!(delayed.deadline(), None);
        for (due, remark) in [(30, "c"), (10, "a"), (30, "d"), (20, "b")] {
            assert!(delayed.hold(Instant(due), held(remark)));
        }
        assert_eq!(delayed.deadline(), Some(Instant(10)));
        assert_eq!(pop(&delayed, 9), None);
        let order: Vec<_> = std::iter::from_fn(|| pop(&delayed, 30)).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
        assert_eq!(delayed.deadline(), None);
    }

    #[test]
    fn what_is_held_is_bounded_and_can_be_forgotten() {
        let delayed = Delayed::default();
        assert_eq!((0..).take_while(|due| delayed.hold(Instant(*due), held(""))).count(), MAX_HELD);
        delayed.clear();
        assert_eq!((pop(&delayed, u64::MAX), delayed.deadline()), (None, None));
    }
}
