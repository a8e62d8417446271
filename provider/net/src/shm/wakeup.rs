//! The wake-ups of a ring: two handshakes between its reader, which may sleep, and its writer,
//! which may wait for room.
//!
//! One side does something (writes a record; makes room) and then looks whether the other one
//! sleeps. The other says that it sleeps, and then looks whether something was done. With a full
//! fence between the two steps of either side at least one of them sees the other: nobody sleeps
//! while there is something for it. Touches one word of the shared memory.

use crate::sync::{AtomicU64, Ordering, fence};

/// The reader sleeps from now on, unless it `finds` something: the writer wakes it, once.
pub(super) fn sleep(asleep: &AtomicU64, finds: impl FnOnce() -> bool) -> bool {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    finds()
}

/// The reader need not be woken.
pub(super) fn awake(asleep: &AtomicU64) {
    if asleep.load(Ordering::Relaxed) != 0 {
        asleep.store(0, Ordering::Relaxed);
    }
}

/// Whether the writer, which has written something, must wake the reader; it is told once.
pub(super) fn must_wake(asleep: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

/// The writer waits from now on until the reader has read `until` bytes, unless it `finds` that
/// there is room: the reader tells it, once.
pub(super) fn wait(waits: &AtomicU64, until: u64, finds: impl FnOnce() -> bool) -> bool {
    waits.store(until, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    finds()
}

/// Whether the reader, which has read `read` bytes and said so, must tell the writer; it is told
/// once.
pub(super) fn must_tell(waits: &AtomicU64, read: u64) -> bool {
    fence(Ordering::SeqCst);
    let until = waits.load(Ordering::Relaxed);
    until != 0 && read >= until && waits.swap(0, Ordering::Relaxed) != 0
}
