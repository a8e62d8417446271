//! How a request is repeated that found nobody listening: a service may come into being at this
//! very moment, or come back.
//!
//! Stock programs close their listener and open it again between two connections (perftest with
//! `-R`), and agree with their client over the first one; the client may be quicker.

use crate::time::Instant;
use core::time::Duration;

/// The first pause; each one after that is twice as long, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(160);

/// Until when a refused request is repeated, and how long the next pause is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReqRetry {
    /// How long after the first refusal.
    length: Duration,
    until: Option<Instant>,
    pause: Duration,
    /// The request was refused, and is not repeated yet.
    pub(super) is_pausing: bool,
}

impl ReqRetry {
    /// That of a side that was asked: it repeats nothing.
    pub(super) const NONE: Self = Self::new(Duration::ZERO);

    pub(super) const fn new(length: Duration) -> Self {
        Self { length, until: None, pause: FIRST, is_pausing: false }
    }

    /// Nobody listens: when to ask again, or `None` when it has been long enough. A peer that
    /// refuses for that reason has forgotten the request, and takes its repetition for a new one.
    // clause: CM-REQ-AGAIN
    pub(super) fn pause(&mut self, now: Instant) -> Option<Instant> {
        let until = *self.until.get_or_insert_with(|| now.after(self.length));
        let next = Some(now.after(self.pause)).filter(|next| *next < until);
        self.pause = LONGEST.min(2 * self.pause);
        self.is_pausing = next.is_some();
        next
    }
}
