//! Who listens to events. Touches nothing.

use roxe_base::instruments;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) const CHECK: u8 = 1;
pub(crate) const TRACE: u8 = 2;

/// None, or some of them.
static LISTENERS: AtomicU8 = AtomicU8::new(0);

/// Whether anybody listens: the checker or the trace.
#[inline]
pub fn is_on() -> bool {
    LISTENERS.load(Ordering::Relaxed) != 0
}

/// Whether the checker is on: then the card is also stricter than it has to be.
#[inline]
pub fn is_checking() -> bool {
    LISTENERS.load(Ordering::Relaxed) & CHECK != 0
}

/// Whether there is a trace.
#[inline]
pub fn is_tracing() -> bool {
    LISTENERS.load(Ordering::Relaxed) & TRACE != 0
}

pub(crate) fn add(listener: u8) {
    LISTENERS.fetch_or(listener, Ordering::Relaxed);
    instruments::turn_on();
}

pub(crate) fn remove(listener: u8) {
    LISTENERS.fetch_and(!listener, Ordering::Relaxed);
}
