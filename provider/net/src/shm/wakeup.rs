//! The wake-ups of a ring: handshakes between a reader that may sleep and a writer that may wait
//! for room.
//!
//! One side writes a record (or frees room), then checks whether the other sleeps (or waits). The
//! other announces its sleep, then checks for records (or room). With a full fence between the two
//! steps on each side, at least one sees the other, so no wake-up is lost.

use crate::sync::{AtomicU64, Ordering, fence};

/// Announces that the reader sleeps, to be woken once. Returns true if it `finds` a record instead.
pub(super) fn announce_sleep(asleep: &AtomicU64, finds: impl FnOnce() -> bool) -> bool {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    finds()
}

/// Withdraws the announcement of the reader.
pub(super) fn withdraw_sleep(asleep: &AtomicU64) {
    if asleep.load(Ordering::Relaxed) != 0 {
        asleep.store(0, Ordering::Relaxed);
    }
}

/// Returns true, once, if the writer must wake the reader. Call after writing.
pub(super) fn must_wake(asleep: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

/// Announces that the writer waits until the reader has read `until` bytes, to be woken once.
/// Returns true if it `finds` room instead.
pub(super) fn announce_wait(wake_at: &AtomicU64, until: u64, finds: impl FnOnce() -> bool) -> bool {
    wake_at.store(until, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    finds()
}

/// Returns true, once, if the reader must wake the writer. Call after publishing `read` bytes.
pub(super) fn must_wake_writer(wake_at: &AtomicU64, read: u64) -> bool {
    fence(Ordering::SeqCst);
    let until = wake_at.load(Ordering::Relaxed);
    until != 0 && read >= until && wake_at.swap(0, Ordering::Relaxed) != 0
}
