//! Whether anything looks at, or changes, what the card does for a program: the checker, the trace,
//! or the weakest legal card.
//!
//! One flag for all of them, so that the path of a packet asks once. Touches nothing.

use std::sync::atomic::{AtomicBool, Ordering};

static ON: AtomicBool = AtomicBool::new(false);

/// Whether one of them is on.
#[inline]
pub fn any() -> bool {
    ON.load(Ordering::Relaxed)
}

/// One of them is on from now on.
pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}
