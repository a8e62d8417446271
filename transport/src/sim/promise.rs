//! What a queue pair promises, and the report of a broken promise.
//!
//! May touch: `time`. Judges return a [`Broken`] instead of panicking, so that a run can be
//! repeated with less in it until nothing can be left out.

use crate::time::Instant;
use core::fmt;

/// What every run must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// A work request completes at most once, in order, exactly once if nothing fails, and as what
    /// it was.
    Completions,
    /// What succeeded brought exactly the right bytes to exactly the right place.
    Bytes,
    /// PSNs stay in their windows and never go back: never more than 2^23 outstanding, nothing
    /// acknowledged that did not arrive, nothing sent or answered outside.
    Windows,
    /// Room at the peer that a QP holds is room for packets under way: none leaks, none is held by
    /// the dead, and together all stay within the window.
    Credit,
    /// A timer runs only while something is waited for, and a deadline that was handled is not due
    /// again.
    Timers,
    /// A QP in the error state says nothing but its last NAK; one without work says nothing at all.
    Silence,
    /// A run ends: nobody waits for ever, nobody sends without end.
    Progress,
    /// The state machine does not panic.
    NoPanic,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The promise that was broken.
    pub promise: Promise,
    /// By which end; `None` when it cannot be told.
    pub end: Option<usize>,
    /// When, in virtual time.
    pub at: Instant,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken", self.promise)?;
        if let Some(end) = self.end {
            write!(f, " by #{end}")?;
        }
        write!(f, " at {} ns: {}", self.at.0, self.detail)
    }
}

impl core::error::Error for Broken {}

/// Returns a [`Broken`] from the function unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $promise:ident, $end:expr, $at:expr, $($detail:tt)+) => {
        if !$holds {
            let (promise, detail) = ($crate::sim::promise::Promise::$promise, format!($($detail)+));
            return Err($crate::sim::promise::Broken { promise, end: $end, at: $at, detail });
        }
    };
}
pub(super) use ensure;
