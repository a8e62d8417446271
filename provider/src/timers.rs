//! What is due when, shared by several threads; the earliest deadline can be read without a lock.
//!
//! For queue pairs it is lazy: a QP enters when its deadline becomes earlier than what it has registered, never leaves
//! early, and is asked again when its entry fires. So a QP that keeps moving its retransmission timer forward, once per
//! message, costs one entry per timeout and not one per message. Packets that fault rules hold back wait in another one.
//!
//! Most timers run for as long as others that were set before, so they come in the order of their deadlines and wait in
//! lines. Only what fits behind none goes into a heap: with 10,000 entries in no cache, taking one out of it took 250 ns.
//! Touches nothing.

use parking_lot::Mutex;
use roxe_transport::time::Instant;
use std::cmp::Ordering as Order;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// What [`Timers::next`] holds while there is nothing.
const NEVER: u64 = u64::MAX;
/// Lines: as many durations may be in use at a time before the heap is.
const LINES: usize = 4;

/// Deadlines, and what each is for. Those of one time come in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    queue: Mutex<Queue<T>>,
    /// The earliest deadline, so that pollers look without locking.
    next: AtomicU64,
}

#[derive(Debug)]
struct Queue<T> {
    /// Each is in the order of deadlines.
    lines: [VecDeque<Entry<T>>; LINES],
    /// What fits behind no line.
    heap: BinaryHeap<Entry<T>>,
    /// Of the next entry.
    number: u64,
}

/// Where an entry waits.
#[derive(Clone, Copy, Debug)]
enum Place {
    Line(usize),
    Heap,
}

impl<T> Queue<T> {
    fn len(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum::<usize>() + self.heap.len()
    }

    fn push(&mut self, entry: Entry<T>) {
        // Behind the latest that is not later: so a few long timers have a line of their own.
        let fits = self.lines.iter_mut().filter(|line| line.back().is_none_or(|last| last.deadline <= entry.deadline));
        match fits.max_by_key(|line| line.back().map(|last| last.deadline)) {
            Some(line) => line.push_back(entry),
            None => self.heap.push(entry),
        }
    }

    /// The earliest entry.
    fn earliest(&self) -> Option<(Place, &Entry<T>)> {
        let lines = self.lines.iter().enumerate().filter_map(|(at, line)| Some((Place::Line(at), line.front()?)));
        lines.chain(self.heap.peek().map(|entry| (Place::Heap, entry))).max_by_key(|(_, entry)| *entry)
    }

    fn pop(&mut self, place: Place) -> Option<Entry<T>> {
        match place {
            Place::Line(at) => self.lines.get_mut(at)?.pop_front(),
            Place::Heap => self.heap.pop(),
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    deadline: Instant,
    number: u64,
    what: T,
}

/// Earliest first in a max-heap.
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

impl<T> Default for Timers<T> {
    fn default() -> Self {
        let lines = [const { VecDeque::new() }; LINES];
        Self { queue: Mutex::new(Queue { lines, heap: BinaryHeap::new(), number: 0 }), next: AtomicU64::new(NEVER) }
    }
}

impl<T> Timers<T> {
    /// Registers `what` for `deadline`.
    pub(crate) fn add(&self, deadline: Instant, what: T) {
        self.add_up_to(usize::MAX, deadline, what);
    }

    /// The same, unless `most` entries are there already: then `what` is gone, and the answer is false.
    pub(crate) fn add_up_to(&self, most: usize, deadline: Instant, what: T) -> bool {
        let mut queue = self.queue.lock();
        if queue.len() >= most {
            return false;
        }
        let number = queue.number;
        queue.number += 1;
        queue.push(Entry { deadline, number, what });
        self.publish(&queue);
        true
    }

    /// Takes the earliest entry if it is due.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<(Instant, T)> {
        self.pop_due_before(u64::MAX, now)
    }

    /// The same, if it was there when [`Timers::added`] said `added`.
    pub(crate) fn pop_due_before(&self, added: u64, now: Instant) -> Option<(Instant, T)> {
        if !self.is_due(now) {
            return None;
        }
        let mut queue = self.queue.lock();
        let (place, _) = queue.earliest().filter(|(_, entry)| entry.deadline <= now && entry.number < added)?;
        let Entry { deadline, what, .. } = queue.pop(place)?;
        self.publish(&queue);
        Some((deadline, what))
    }

    /// How many entries were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.queue.lock().number
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
        let mut queue = self.queue.lock();
        queue.lines.iter_mut().for_each(VecDeque::clear);
        queue.heap.clear();
        self.publish(&queue);
    }

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl crate::fork::Lockable {
        &self.queue
    }

    fn publish(&self, queue: &Queue<T>) {
        let next = queue.earliest().map_or(NEVER, |(_, entry)| entry.deadline.0);
        self.next.store(next, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop(timers: &Timers<&'static str>, now: u64) -> Option<(u64, &'static str)> {
        timers.pop_due(Instant(now)).map(|(deadline, what)| (deadline.0, what))
    }

    #[test]
    fn entries_come_out_when_due_in_order_those_of_one_time_as_they_came() {
        let timers = Timers::default();
        assert_eq!(timers.next(), None);
        for (at, what) in [(30, "c"), (10, "a"), (30, "d"), (20, "b")] {
            timers.add(Instant(at), what);
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
    fn however_deadlines_come_they_go_in_order() {
        let timers = Timers::default();
        let mut left: Vec<(u64, usize)> = (0..1000).map(|at| (at * 7_919 % 257 * 1000 + at % 3, at as usize)).collect();
        for (deadline, what) in &left {
            timers.add(Instant(*deadline), *what);
        }
        left.sort_unstable();
        let out = std::iter::from_fn(|| timers.pop_due(Instant(u64::MAX - 1)));
        assert!(out.map(|(deadline, what)| (deadline.0, what)).eq(left));
    }

    #[test]
    fn timers_of_a_few_durations_need_no_heap() {
        let timers = Timers::default();
        for now in 0..1000 {
            for (at, length) in [5_000, 100, 1_000_000, 700].into_iter().enumerate() {
                timers.add(Instant(now * 10 + length), at);
            }
            timers.pop_due(Instant(now * 10));
        }
        assert!(timers.queue.lock().heap.is_empty());
    }

    #[test]
    fn what_was_added_later_can_be_left_for_later() {
        let timers = Timers::default();
        timers.add(Instant(20), "before");
        let added = timers.added();
        timers.add(Instant(20), "after");
        assert_eq!(timers.pop_due_before(added, Instant(20)), Some((Instant(20), "before")));
        assert_eq!(timers.pop_due_before(added, Instant(20)), None);
        assert_eq!(pop(&timers, 20), Some((20, "after")));
    }

    #[test]
    fn what_waits_can_be_bounded_and_forgotten() {
        let timers = Timers::default();
        assert_eq!((0..).take_while(|at| timers.add_up_to(1 << 14, Instant(*at), "")).count(), 1 << 14);
        timers.clear();
        assert_eq!((pop(&timers, u64::MAX), timers.next()), (None, None));
    }
}
