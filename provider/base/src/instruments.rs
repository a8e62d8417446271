//! A flag for instruments that watch or change the card: the checker, the trace, the weakest legal
//! card.

use std::sync::atomic::{AtomicBool, Ordering};

static ON: AtomicBool = AtomicBool::new(false);

/// Returns true if an instrument is on.
#[inline]
pub fn any() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Records that an instrument is on, for the rest of the process.
pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}
