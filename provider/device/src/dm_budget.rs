//! How much memory of its own a device has left for this process. Touches nothing.

use roxe_base::error::Error;
use roxe_base::limits::MAX_DM_SIZE;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes of a device's memory this process has.
#[derive(Debug, Default)]
pub(crate) struct DmBudget(AtomicU64);

impl DmBudget {
    /// ENOMEM if there are not `length` bytes left.
    pub(crate) fn take(&self, length: u64) -> Result<(), Error> {
        let after = |used: u64| used.checked_add(length).filter(|used| *used <= MAX_DM_SIZE);
        let used = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        used.map(drop).map_err(|used| {
            let left = MAX_DM_SIZE.saturating_sub(used);
            Error::new(libc::ENOMEM, format!("{left} bytes of device memory are left; free some, or ask for less"))
        })
    }

    pub(crate) fn give_back(&self, length: u64) {
        self.0.fetch_sub(length, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
