//! Used bytes of a window.

use crate::sync::{AtomicU32, Ordering};

/// Number of used bytes. Each operation is one atomic step, so that a release which finds no
/// waiter and a waiter which registers and tries again cannot miss each other.
#[derive(Debug, Default)]
pub(crate) struct Used(AtomicU32);

impl Used {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Takes `bytes` unconditionally; returns the bytes used before.
    pub(crate) fn take(&self, bytes: u32) -> u32 {
        self.0.fetch_add(bytes, Ordering::SeqCst)
    }

    /// Releases `bytes`; the count stops at 0, because bytes sent through a ring were never taken.
    pub(crate) fn give(&self, bytes: u32) {
        let less = |used: u32| (used > 0).then(|| used.saturating_sub(bytes));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
