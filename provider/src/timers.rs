//! Which queue pair wants to be woken when.
//!
//! A lazy heap: a QP enters when its deadline becomes earlier than what it has registered, never leaves early, and is
//! asked again when its entry fires. So a QP that keeps moving its retransmission timer forward, once per message, costs
//! one entry per timeout and not one per message. Touches nothing.

use parking_lot::Mutex;
use roxe_transport::time::Instant;
use roxe_wire::Qpn;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What [`Timers::next`] holds while the heap is empty.
const NEVER: u64 = u64::MAX;

/// Deadlines of all queue pairs of an engine.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, Qpn)>>>,
    /// The earliest deadline, so that pollers look without locking.
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { heap: Mutex::default(), next: AtomicU64::new(NEVER) }
    }
}

impl Timers {
    /// Registers `qpn` for `deadline`.
    pub(crate) fn add(&self, deadline: Instant, qpn: Qpn) {
        let mut heap = self.heap.lock();
        heap.push(Reverse((deadline, qpn)));
        self.publish(&heap);
    }

    /// Takes the earliest entry if it is due.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<(Instant, Qpn)> {
        if !self.is_due(now) {
            return None;
        }
        let mut heap = self.heap.lock();
        let entry = heap.peek().filter(|Reverse((deadline, _))| *deadline <= now).map(|Reverse(entry)| *entry);
        if entry.is_some() {
            heap.pop();
            self.publish(&heap);
        }
        entry
    }

    /// Whether an entry is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.load(Ordering::Relaxed) <= now.0
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        // SeqCst: the background thread announces until when it sleeps and then looks here; whoever adds a deadline
        // stores here and then looks at the announcement. One of the two sees the other.
        Some(self.next.load(Ordering::SeqCst)).filter(|&next| next != NEVER).map(Instant)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut heap = self.heap.lock();
        heap.clear();
        self.publish(&heap);
    }

    /// The lock of the heap, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl crate::fork::Lockable {
        &self.heap
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, Qpn)>>) {
        let next = heap.peek().map_or(NEVER, |Reverse((deadline, _))| deadline.0);
        self.next.store(next, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_when_due_in_order() {
        let timers = Timers::default();
        assert_eq!(timers.next(), None);
        for at in [30, 10, 20] {
            timers.add(Instant(at), Qpn::new(at as u32));
        }
        assert_eq!(timers.next(), Some(Instant(10)));
        assert_eq!(timers.pop_due(Instant(9)), None);
        assert_eq!(timers.pop_due(Instant(25)), Some((Instant(10), Qpn::new(10))));
        assert_eq!(timers.pop_due(Instant(25)), Some((Instant(20), Qpn::new(20))));
        assert_eq!(timers.pop_due(Instant(25)), None);
        assert_eq!(timers.next(), Some(Instant(30)));
    }
}
