//! Muting of the background thread, so that packets do not wake it.
//!
//! The score falls while a thread of the program receives packets, and rises when the background
//! thread was needed; at zero the background thread is muted. A program that is going to sleep
//! fills the score, then checks for muting; the thread sets muting, then checks the score. With a
//! full fence between the two steps on each side, at least one of them sees the other, so packets
//! are never left unattended.

use crate::sync::{AtomicBool, AtomicI32, Ordering, fence};

/// The highest score; at zero the thread is muted.
pub(crate) const FULL: i32 = 32;

#[derive(Debug, Default)]
pub(crate) struct Muting {
    score: AtomicI32,
    muted: AtomicBool,
}

impl Muting {
    /// Adds `points` and returns the new score. Advisory: concurrent updates may be lost.
    pub(crate) fn add(&self, points: i32) -> i32 {
        let score = (self.score.load(Ordering::Relaxed) + points).clamp(0, FULL);
        self.score.store(score, Ordering::Relaxed);
        score
    }

    /// Leaves receiving to the background thread again: fills the score and ends muting. Returns
    /// true if the caller must wake that thread.
    pub(crate) fn hand_over(&self) -> bool {
        self.score.store(FULL, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.muted.swap(false, Ordering::Relaxed)
    }

    /// Mutes the thread. Returns false if the score was filled just before: the caller must unmute
    /// the thread. A program that fills the score from now on sees the muting and wakes the thread.
    pub(crate) fn mute(&self) -> bool {
        self.muted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.score.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_muted(&self) -> bool {
        self.muted.load(Ordering::Relaxed)
    }

    pub(crate) fn unmute(&self) {
        self.muted.store(false, Ordering::SeqCst);
    }
}
