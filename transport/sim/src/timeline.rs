//! Events in order of time, and one deadline per queue pair. Nothing allocates after the start.

use core::cmp::Ordering;
use roxe_transport::time::Instant;
use std::collections::BinaryHeap;

const NEVER: Instant = Instant(u64::MAX);

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    order: u64,
    event: T,
}

/// Earliest first in a max-heap.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

/// Events in order of time; events of one instant keep their insertion order.
#[derive(Debug)]
pub struct Timeline<T> {
    heap: BinaryHeap<Entry<T>>,
    order: u64,
}

impl<T> Default for Timeline<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), order: 0 }
    }
}

impl<T> Timeline<T> {
    pub fn reserve(&mut self, events: usize) {
        self.heap.reserve(events);
    }

    pub fn push(&mut self, at: Instant, event: T) {
        self.order += 1;
        self.heap.push(Entry { at, order: self.order, event });
    }

    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Removes the first event if it is due by `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.event)
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// One deadline per client, and the earliest of all: a tournament tree in an array.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// Node 1 is the root, the children of `n` are `2n` and `2n + 1`, the leaves are the second
    /// half.
    tree: Vec<Instant>,
}

impl Deadlines {
    /// Sets the number of clients and clears all deadlines.
    pub fn resize(&mut self, clients: usize) {
        self.tree.clear();
        self.tree.resize(2 * clients.next_power_of_two(), NEVER);
    }

    pub fn set(&mut self, client: usize, at: Option<Instant>) {
        let mut node = self.tree.len() / 2 + client;
        self.tree[node] = at.unwrap_or(NEVER);
        while node > 1 {
            node /= 2;
            let first = self.tree[2 * node].min(self.tree[2 * node + 1]);
            if self.tree[node] == first {
                return;
            }
            self.tree[node] = first;
        }
    }

    /// Returns the earliest deadline with its client, the lowest one of equals.
    pub fn first(&self) -> Option<(Instant, usize)> {
        let at = self.tree.get(1).copied().filter(|&at| at != NEVER)?;
        let leaves = self.tree.len() / 2;
        let mut node = 1;
        while node < leaves {
            node = if self.tree[2 * node] == at { 2 * node } else { 2 * node + 1 };
        }
        Some((at, node - leaves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Choices, Rng};

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut line = Timeline::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            line.push(Instant(at), event);
        }
        let mut order = String::new();
        while let Some(event) = line.pop_due(Instant(4)) {
            order.push(event);
        }
        assert_eq!((order.as_str(), line.len(), line.next()), ("ab", 2, Some(Instant(5))));
    }

    #[test]
    fn deadlines_agree_with_a_list() {
        for clients in [1, 2, 5, 1000] {
            let (mut rng, mut list) = (Rng::new(clients.into()), vec![None; clients as usize]);
            let mut deadlines = Deadlines::default();
            deadlines.resize(list.len());
            for _ in 0..2000 {
                let (client, at) = (rng.below(clients) as usize, rng.below(100));
                list[client] = (at < 70).then_some(Instant(at.into()));
                deadlines.set(client, list[client]);
                let first = list.iter().enumerate().filter_map(|(i, at)| at.map(|at| (at, i))).min();
                assert_eq!(deadlines.first(), first);
            }
        }
    }
}
