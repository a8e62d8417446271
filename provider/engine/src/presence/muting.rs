//! Whether the background thread sleeps however many packets come, and who ends that.
//!
//! It is muted when its score has gone to zero, because a thread of the program receives. A program
//! that is going to sleep fills the score and looks whether the thread is muted; the thread says
//! that it is, and looks at the score again. With a full fence between the two steps of either side
//! at least one of them sees the other: packets are never left alone.

use crate::sync::{AtomicBool, AtomicI32, Ordering, fence};

/// The highest score of the background thread; at zero it is muted.
pub(crate) const FULL: i32 = 32;

/// The score, and whether the thread is muted.
#[derive(Debug, Default)]
pub(crate) struct Muting {
    score: AtomicI32,
    muted: AtomicBool,
}

impl Muting {
    /// Adds `points`; the new score. Advice only: who does so at the same time may overwrite it.
    pub(crate) fn add(&self, points: i32) -> i32 {
        let score = (self.score.load(Ordering::Relaxed) + points).clamp(0, FULL);
        self.score.store(score, Ordering::Relaxed);
        score
    }

    /// The thread receives from now on. Whether it must be woken.
    pub(crate) fn hand_over(&self) -> bool {
        self.score.store(FULL, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.muted.swap(false, Ordering::Relaxed)
    }

    /// The thread is going to be muted. Whether it may: whoever hands over from now on finds it
    /// muted and wakes it, and who did just before has filled the score.
    pub(crate) fn mute(&self) -> bool {
        self.muted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.score.load(Ordering::Relaxed) == 0
    }

    /// Whether the thread is muted, and nobody has handed over.
    pub(crate) fn is_muted(&self) -> bool {
        self.muted.load(Ordering::Relaxed)
    }

    /// The thread is not muted any more.
    pub(crate) fn unmute(&self) {
        self.muted.store(false, Ordering::SeqCst);
    }
}
