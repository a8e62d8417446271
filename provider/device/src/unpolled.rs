//! Which completions of sends a program has not taken yet: their places in the send queue are still
//! occupied.
//!
//! A completion queue numbers its entries and knows how many were taken, so nothing has to be done
//! when a program polls: a queue pair that looks full asks. Touches nothing.

use std::collections::VecDeque;

/// Where an entry went into a completion queue, and how far that queue has been emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number of the entry, from 0 in the life of the queue.
    pub(crate) number: u64,
    /// Entries taken so far: those with a lower number than this.
    pub(crate) polled: u64,
}

/// The completions of one send queue that may still lie in its completion queue.
#[derive(Debug, Default)]
pub(crate) struct Unpolled {
    /// Mostly it is the only one; here it needs no memory of its own, which would be another cache
    /// miss for each message of a program with many queue pairs.
    oldest: Option<u64>,
    /// The others, oldest first.
    newer: VecDeque<u64>,
}

impl Unpolled {
    /// How many there are. Never more than the send queue has places.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(usize::from(self.oldest.is_some()) + self.newer.len()).unwrap_or(u32::MAX)
    }

    /// One more was appended.
    pub(crate) fn note(&mut self, entry: Entry) {
        self.forget(entry.polled);
        match self.oldest {
            None => self.oldest = Some(entry.number),
            Some(_) => self.newer.push_back(entry.number),
        }
    }

    /// Those with a lower number than `polled` were taken.
    pub(crate) fn forget(&mut self, polled: u64) {
        while self.oldest.is_some_and(|number| number < polled) {
            self.oldest = self.newer.pop_front();
        }
    }

    /// The send queue starts anew.
    pub(crate) fn clear(&mut self) {
        self.oldest = None;
        self.newer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polled_entries_are_forgotten_with_the_next_entry_or_on_request() {
        let mut unpolled = Unpolled::default();
        for (number, polled, len) in [(3, 0, 1), (5, 3, 2), (9, 4, 2), (10, 9, 2), (11, 11, 1)] {
            unpolled.note(Entry { number, polled });
            assert_eq!(unpolled.len(), len, "entry {number}, {polled} taken");
        }
        unpolled.forget(11);
        assert_eq!(unpolled.len(), 1);
        unpolled.forget(12);
        assert_eq!(unpolled.len(), 0);
    }
}
