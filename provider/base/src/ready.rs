//! Flags of pending work in one word, so that a poller tests all of them at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Up to 32 flags.
#[derive(Debug, Default)]
pub struct ReadyMask(Arc<AtomicU32>);

/// One of the flags of a [`ReadyMask`].
#[derive(Clone, Debug)]
pub struct ReadyFlag {
    mask: Arc<AtomicU32>,
    bit: u32,
}

impl ReadyMask {
    /// Returns the flag `number`, below 32.
    pub fn flag(&self, number: u32) -> ReadyFlag {
        ReadyFlag { mask: Arc::clone(&self.0), bit: 1 << number }
    }

    /// Returns the flags as bits by number: 1 for each that is set.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

impl Default for ReadyFlag {
    /// Creates a flag in a new mask.
    fn default() -> Self {
        ReadyMask::default().flag(0)
    }
}

impl ReadyFlag {
    /// Sets the flag. A thread that finds it set sees all earlier writes.
    pub fn set(&self) {
        self.mask.fetch_or(self.bit, Ordering::SeqCst);
    }

    /// Clears the flag; returns true if it was set.
    pub fn clear(&self) -> bool {
        self.mask.fetch_and(!self.bit, Ordering::SeqCst) & self.bit != 0
    }

    /// Sets the flag to `value`; stores nothing if the flag has that value already. The caller
    /// holds the lock of the pending work.
    pub fn set_to(&self, value: bool) {
        match (self.is_set(), value) {
            (false, true) => self.set(),
            (true, false) => _ = self.clear(),
            _ => {}
        }
    }

    /// Returns true if the flag is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.mask.load(Ordering::SeqCst) & self.bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_one_mask_are_independent() {
        let mask = ReadyMask::default();
        let [a, b] = [0, 31].map(|number| mask.flag(number));
        assert_eq!(mask.get(), 0);
        a.set();
        b.set_to(true);
        assert_eq!((mask.get(), a.is_set(), b.is_set()), (1 << 31 | 1, true, true));
        assert!(a.clear() && !a.clear());
        b.set_to(true);
        assert_eq!((mask.get(), a.is_set(), b.is_set()), (1 << 31, false, true));
        b.set_to(false);
        assert_eq!(mask.get(), 0);
    }
}
