//! A lock for what every thread reads all the time and nobody changes often. **Unsafe room**: the raw lock below.
//!
//! Readers of an ordinary lock count themselves in one word, whose cache line then travels between all processors. Here each
//! thread locks one of several small locks, nearly always the same one alone; who writes locks them all. Touches nothing.

use parking_lot::RawRwLock as Shard;
use parking_lot::lock_api::{self, GuardNoSend, RawRwLock};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A lock whose readers do not disturb each other.
pub(crate) type RwLock<T> = lock_api::RwLock<RawShardedLock, T>;
/// Its guard for reading.
pub(crate) type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawShardedLock, T>;

/// Small locks of a lock. Threads beyond this share one with another thread.
const SHARDS: usize = 16;

/// The lock without what it guards.
pub(crate) struct RawShardedLock([Line; SHARDS]);

/// One small lock, alone in what processors move between them: a pair of cache lines.
#[repr(align(128))]
struct Line(Shard);

thread_local! {
    /// Which small lock this thread takes, once it has taken one.
    static OWN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The small lock of this thread.
#[inline]
fn own() -> usize {
    OWN.get().unwrap_or_else(choose)
}

/// Gives this thread its small lock: threads take turns.
#[cold]
fn choose() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let own = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    OWN.set(Some(own));
    own
}

impl RawShardedLock {
    #[inline]
    fn shard(&self) -> &Shard {
        // `choose` gives out no others.
        &self.0[own() % SHARDS].0
    }
}

// SAFETY: who writes holds every small lock exclusively, who reads holds one of them, so a writer is alone. Guards stay on
// their thread (`GuardNoSend`), for which `own` always gives the same answer: what is released is what was taken.
unsafe impl RawRwLock for RawShardedLock {
    const INIT: Self = Self([const { Line(Shard::INIT) }; SHARDS]);

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        self.shard().lock_shared();
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.shard().try_lock_shared()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        // SAFETY: this thread has taken its small lock for reading.
        unsafe { self.shard().unlock_shared() }
    }

    fn lock_exclusive(&self) {
        // Always in this order, so that of two writers one gets them all.
        self.0.iter().for_each(|line| line.0.lock_exclusive());
    }

    fn try_lock_exclusive(&self) -> bool {
        let taken = self.0.iter().take_while(|line| line.0.try_lock_exclusive()).count();
        if taken < SHARDS {
            // SAFETY: the first `taken` were taken just now.
            self.0.iter().take(taken).for_each(|line| unsafe { line.0.unlock_exclusive() });
        }
        taken == SHARDS
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds the lock for writing, which is all small locks.
        self.0.iter().for_each(|line| unsafe { line.0.unlock_exclusive() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_writer_is_alone_and_readers_are_not() {
        let lock = RwLock::new(0);
        let first = lock.read();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(lock.try_read().is_some() && lock.try_write().is_none());
                drop(lock.try_read());
            });
            other.join().unwrap();
        });
        drop(first);
        let mut writer = lock.try_write().unwrap();
        *writer = 1;
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_read().is_none() && lock.try_write().is_none())).join().unwrap();
        });
        drop(writer);
        assert_eq!(*lock.read(), 1);
    }

    #[test]
    fn what_is_written_in_two_steps_is_read_whole() {
        let lock = RwLock::new((0_u32, 0_u32));
        let (begin, ends) = (Barrier::new(3), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    begin.wait();
                    while !ends.load(Ordering::Relaxed) {
                        let pair = lock.read();
                        assert_eq!(pair.0, pair.1);
                    }
                });
            }
            begin.wait();
            for _ in 0..2000 {
                let mut pair = lock.write();
                pair.0 += 1;
                std::thread::yield_now();
                pair.1 += 1;
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(*lock.read(), (2000, 2000));
    }

    #[test]
    fn every_thread_keeps_its_own() {
        let owns: Vec<_> = (0..4).map(|_| std::thread::spawn(|| [own(), own()]).join().unwrap()).collect();
        assert!(owns.iter().all(|[first, again]| first == again && *first < SHARDS));
        assert!(owns.iter().any(|own| *own != owns[0]), "{owns:?}");
    }
}
