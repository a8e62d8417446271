//! What of a window is used.

use crate::sync::{AtomicU32, Ordering};

/// Bytes. Taking and giving back are each one step that no other comes between: who gives and then
/// finds nobody waiting, and who waits and then asks again, cannot both have come first.
#[derive(Debug, Default)]
pub(crate) struct Used(AtomicU32);

impl Used {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Takes `bytes` whatever is used; what was used before.
    pub(crate) fn take(&self, bytes: u32) -> u32 {
        self.0.fetch_add(bytes, Ordering::SeqCst)
    }

    /// Gives `bytes` back. What went by a ring was not taken here.
    pub(crate) fn give(&self, bytes: u32) {
        let less = |used: u32| (used > 0).then(|| used.saturating_sub(bytes));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// All of it is given back.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
