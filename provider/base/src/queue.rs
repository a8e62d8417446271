//! A mostly empty queue whose emptiness is tested without its lock.

use crate::lock::{Lockable, Mutex, Rank};
use crate::ready::ReadyFlag;
use std::collections::VecDeque;

/// Entries that any thread may remove, oldest first.
#[derive(Debug)]
pub struct Queue<R: Rank, T> {
    entries: Mutex<R, VecDeque<T>>,
    /// Changed under the lock only.
    has_entries: ReadyFlag,
}

impl<R: Rank, T> Default for Queue<R, T> {
    fn default() -> Self {
        Self { entries: Mutex::default(), has_entries: ReadyFlag::default() }
    }
}

impl<R: Rank, T: Send> Queue<R, T> {
    /// Creates an empty queue; `flag` is set while it has entries.
    pub fn new(flag: ReadyFlag) -> Self {
        Self { entries: Mutex::default(), has_entries: flag }
    }

    /// Returns true if there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_entries.is_set()
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        if self.is_empty() { None } else { self.change(VecDeque::pop_front) }
    }

    /// Returns the result of `change`, which runs under the lock of the entries.
    pub fn change<U>(&self, change: impl FnOnce(&mut VecDeque<T>) -> U) -> U {
        let mut entries = self.entries.lock();
        let result = change(&mut entries);
        self.has_entries.set_to(!entries.is_empty());
        result
    }

    /// Returns the lock, for the fork handlers.
    pub fn lockable(&self) -> &impl Lockable {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::rank;

    #[test]
    fn queue_is_fifo_and_reports_empty() {
        let queue = Queue::<rank::FlowReady, _>::default();
        assert!(queue.is_empty() && queue.pop().is_none());
        queue.change(|entries| entries.extend([1, 2]));
        assert!(!queue.is_empty());
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(1), Some(2), None]);
        queue.change(|entries| entries.push_back(3));
        queue.change(VecDeque::clear);
        assert!(queue.is_empty());
    }
}
