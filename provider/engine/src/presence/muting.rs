//! Muting of the background thread, so that packets do not wake it.
//!
//! The thread is muted when its score reaches zero, because a thread of the program receives. A
//! program that is going to sleep fills the score, then checks for muting; the thread sets muting,
//! then checks the score. With a full fence between the two steps on each side, at least one of
//! them sees the other, so packets are never left unattended.

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

    /// Makes the thread receive. Returns true if it must be woken.
    pub(crate) fn hand_over(&self) -> bool {
        self.score.store(FULL, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.muted.swap(false, Ordering::Relaxed)
    }

    /// Mutes the thread. Returns false if the score was filled just before; a thread that fills it
    /// from now on finds the thread muted and wakes it.
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
