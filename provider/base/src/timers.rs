//! Deadlines: a heap that several threads share, whose earliest entry can be read without the lock.
//!
//! Queue pairs use it lazily. A QP adds an entry only when its deadline becomes earlier than its
//! registered one, never removes an entry, and returns its deadline when an entry fires. So a
//! QP that postpones its retransmission timer with every message costs one entry per timeout, not
//! one per message.

use crate::lock::{Lockable, Mutex, Rank};
use roxe_transport::time::Instant;
use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of [`Timers::next`] while the heap is empty.
const NEVER: u64 = u64::MAX;

/// Items by deadline. Items of one deadline are returned in insertion order.
#[derive(Debug)]
pub struct Timers<R: Rank, T> {
    heap: Mutex<R, Heap<T>>,
    /// The earliest deadline, for pollers, which do not lock.
    next: AtomicU64,
}

#[derive(Debug)]
struct Heap<T> {
    entries: BinaryHeap<Entry<T>>,
    /// The number of the next entry, counted from 0.
    number: u64,
}

#[derive(Debug)]
struct Entry<T> {
    deadline: Instant,
    number: u64,
    item: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Order {
        (other.deadline, other.number).cmp(&(self.deadline, self.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

impl<R: Rank, T> Default for Timers<R, T> {
    fn default() -> Self {
        Self { heap: Mutex::new(Heap { entries: BinaryHeap::new(), number: 0 }), next: AtomicU64::new(NEVER) }
    }
}

impl<R: Rank, T: Send> Timers<R, T> {
    /// Adds `item` with `deadline`.
    pub fn add(&self, deadline: Instant, item: T) {
        self.add_up_to(usize::MAX, deadline, item);
    }

    /// Adds `item` with `deadline`; returns true. If the heap has `max` entries, drops `item` and
    /// returns false.
    pub fn add_up_to(&self, max: usize, deadline: Instant, item: T) -> bool {
        let mut heap = self.heap.lock();
        if heap.entries.len() >= max {
            return false;
        }
        let number = heap.number;
        heap.number += 1;
        heap.entries.push(Entry { deadline, number, item });
        self.publish(&heap);
        true
    }

    /// Takes the earliest entry if it is due.
    pub fn pop_due(&self, now: Instant) -> Option<(Instant, T)> {
        self.pop_due_before(u64::MAX, now)
    }

    /// Takes the earliest entry if it is due and was added before [`Timers::added`] reached
    /// `added`.
    pub fn pop_due_before(&self, added: u64, now: Instant) -> Option<(Instant, T)> {
        if !self.is_due(now) {
            return None;
        }
        let mut heap = self.heap.lock();
        heap.entries.peek().filter(|entry| entry.deadline <= now && entry.number < added)?;
        let Entry { deadline, item, .. } = heap.entries.pop()?;
        self.publish(&heap);
        Some((deadline, item))
    }

    /// Returns the number of entries ever added.
    pub fn added(&self) -> u64 {
        self.heap.lock().number
    }

    /// Returns true if an entry is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.load(Ordering::Relaxed) <= now.0
    }

    /// Returns the earliest deadline; `None` if the heap is empty.
    pub fn next(&self) -> Option<Instant> {
        // SeqCst: the background thread stores its wake-up time and then reads the deadline; a
        // thread that adds a deadline stores it and then reads the wake-up time. At least one of
        // the two sees the other's store.
        Some(self.next.load(Ordering::SeqCst)).filter(|&next| next != NEVER).map(Instant)
    }

    /// Drops all entries.
    pub fn clear(&self) {
        let mut heap = self.heap.lock();
        heap.entries.clear();
        self.publish(&heap);
    }

    /// Returns the lock of the heap, for the fork handlers.
    pub fn lockable(&self) -> &impl Lockable {
        &self.heap
    }

    fn publish(&self, heap: &Heap<T>) {
        let next = heap.entries.peek().map_or(NEVER, |entry| entry.deadline.0);
        self.next.store(next, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::rank;

    fn pop(timers: &Timers<rank::Timers, &'static str>, now: u64) -> Option<(u64, &'static str)> {
        timers.pop_due(Instant(now)).map(|(deadline, item)| (deadline.0, item))
    }

    #[test]
    fn due_entries_are_returned_in_order() {
        let timers = Timers::<rank::Timers, _>::default();
        assert_eq!(timers.next(), None);
        for (at, item) in [(30, "c"), (10, "a"), (30, "d"), (20, "b")] {
            timers.add(Instant(at), item);
        }
        assert_eq!(timers.next(), Some(Instant(10)));
        assert_eq!(pop(&timers, 9), None);
        assert_eq!(pop(&timers, 25), Some((10, "a")));
        assert_eq!(pop(&timers, 25), Some((20, "b")));
        assert_eq!(pop(&timers, 25), None);
        assert_eq!(timers.next(), Some(Instant(30)));
        assert_eq!([pop(&timers, 30), pop(&timers, 30)], [Some((30, "c")), Some((30, "d"))]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn entries_added_later_can_stay_in_the_heap() {
        let timers = Timers::<rank::Timers, _>::default();
        timers.add(Instant(20), "before");
        let added = timers.added();
        timers.add(Instant(20), "after");
        assert_eq!(timers.pop_due_before(added, Instant(20)), Some((Instant(20), "before")));
        assert_eq!(timers.pop_due_before(added, Instant(20)), None);
        assert_eq!(pop(&timers, 20), Some((20, "after")));
    }

    #[test]
    fn entries_are_bounded_and_cleared() {
        let timers = Timers::<rank::Timers, _>::default();
        assert_eq!((0..).take_while(|at| timers.add_up_to(1 << 14, Instant(*at), "")).count(), 1 << 14);
        timers.clear();
        assert_eq!((pop(&timers, u64::MAX), timers.next()), (None, None));
    }
}
