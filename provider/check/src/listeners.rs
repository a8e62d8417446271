//! The subscribers of events: the checker and the trace.

use roxe_base::instruments;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) const CHECK: u8 = 1;
pub(crate) const TRACE: u8 = 2;

/// Bit set of the subscribers that are on.
static LISTENERS: AtomicU8 = AtomicU8::new(0);

/// Returns true if the checker or the trace is on.
#[inline]
pub fn is_on() -> bool {
    LISTENERS.load(Ordering::Relaxed) != 0
}

/// Returns true if the checker is on. The card is then stricter than the standard requires.
#[inline]
pub fn is_checking() -> bool {
    LISTENERS.load(Ordering::Relaxed) & CHECK != 0
}

/// Returns true if the trace is on.
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
