//! Locks, and the order in which a thread may acquire them. Unsafe code: the traits of `lock_api`
//! and forced unlocks.
//!
//! The type of a lock includes its rank; [`rank`] lists the ranks from outermost to innermost. A
//! thread that holds a lock may wait only for locks of later ranks. Only the fork handlers acquire
//! several locks of one rank. `try_lock` and the locks with a timeout work at any rank, because
//! they cannot deadlock, but the lock then counts as held.
//!
//! With debug assertions each thread records what it holds, and waiting out of order aborts with
//! both lock sites. It does not panic, because the background thread and the C functions catch
//! panics, and a test would pass. Other builds check nothing. Crates that use this one declare
//! further tables, whose ranks are all outer to the ranks here.

mod held;
pub mod rank;

pub use rank::Rank;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use parking_lot::lock_api;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A mutex of rank `R`.
pub type Mutex<R, T> = lock_api::Mutex<RankedMutex<R>, T>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, R, T> = lock_api::MutexGuard<'a, RankedMutex<R>, T>;
/// A lock of rank `R` for one writer or several readers. A thread must not read-lock it twice: a
/// writer waiting in between would deadlock.
pub type RwLock<R, T> = lock_api::RwLock<RankedRwLock<R>, T>;

/// The raw lock in a [`Mutex`].
pub struct RankedMutex<R>(parking_lot::RawMutex, PhantomData<R>);

// SAFETY: every call is passed on to the `RawMutex` inside.
unsafe impl<R: Rank> lock_api::RawMutex for RankedMutex<R> {
    const INIT: Self = Self(parking_lot::RawMutex::INIT, PhantomData);
    type GuardMarker = <parking_lot::RawMutex as lock_api::RawMutex>::GuardMarker;

    #[inline]
    #[track_caller]
    fn lock(&self) {
        held::check::<R>(self);
        self.0.lock();
        held::note::<R>(self);
    }

    #[inline]
    #[track_caller]
    fn try_lock(&self) -> bool {
        held::note_if::<R>(self, self.0.try_lock())
    }

    #[inline]
    unsafe fn unlock(&self) {
        held::forget(self);
        // SAFETY: by the trait's contract the caller holds the lock.
        unsafe { self.0.unlock() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

// SAFETY: every call is passed on to the `RawMutex` inside.
unsafe impl<R: Rank> lock_api::RawMutexFair for RankedMutex<R> {
    unsafe fn unlock_fair(&self) {
        held::forget(self);
        // SAFETY: by the trait's contract the caller holds the lock.
        unsafe { lock_api::RawMutexFair::unlock_fair(&self.0) }
    }
}

// SAFETY: every call is passed on to the `RawMutex` inside.
unsafe impl<R: Rank> lock_api::RawMutexTimed for RankedMutex<R> {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_for(&self, timeout: Duration) -> bool {
        held::note_if::<R>(self, lock_api::RawMutexTimed::try_lock_for(&self.0, timeout))
    }

    #[track_caller]
    fn try_lock_until(&self, timeout: Instant) -> bool {
        held::note_if::<R>(self, lock_api::RawMutexTimed::try_lock_until(&self.0, timeout))
    }
}

/// The raw lock in a [`RwLock`].
pub struct RankedRwLock<R>(parking_lot::RawRwLock, PhantomData<R>);

// SAFETY: every call is passed on to the `RawRwLock` inside.
unsafe impl<R: Rank> lock_api::RawRwLock for RankedRwLock<R> {
    const INIT: Self = Self(parking_lot::RawRwLock::INIT, PhantomData);
    type GuardMarker = <parking_lot::RawRwLock as lock_api::RawRwLock>::GuardMarker;

    #[inline]
    #[track_caller]
    fn lock_shared(&self) {
        held::check::<R>(self);
        self.0.lock_shared();
        held::note::<R>(self);
    }

    #[inline]
    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        held::note_if::<R>(self, self.0.try_lock_shared())
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        held::forget(self);
        // SAFETY: by the trait's contract the caller holds the lock for reading.
        unsafe { self.0.unlock_shared() }
    }

    #[inline]
    #[track_caller]
    fn lock_exclusive(&self) {
        held::check::<R>(self);
        self.0.lock_exclusive();
        held::note::<R>(self);
    }

    #[inline]
    #[track_caller]
    fn try_lock_exclusive(&self) -> bool {
        held::note_if::<R>(self, self.0.try_lock_exclusive())
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        held::forget(self);
        // SAFETY: by the trait's contract the caller holds the lock for writing.
        unsafe { self.0.unlock_exclusive() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.0.is_locked_exclusive()
    }
}

/// A reader-writer lock in a fixed number of shards. A reader locks only the shard of its thread, a
/// writer locks all: reading is cheap, writing is expensive.
pub struct Sharded<R, T>(ShardedLock<T>, PhantomData<R>);

/// The guard of a [`Sharded`].
#[derive(Debug)]
pub struct ShardedGuard<G> {
    guard: G,
    _noted: held::Noted,
}

/// The guard of [`Sharded::read`].
pub type ShardedReadGuard<'a, T> = ShardedGuard<ShardedLockReadGuard<'a, T>>;
/// The guard of [`Sharded::write`].
pub type ShardedWriteGuard<'a, T> = ShardedGuard<ShardedLockWriteGuard<'a, T>>;

impl<R: Rank, T> Sharded<R, T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        Self(ShardedLock::new(value), PhantomData)
    }

    /// Waits for the writer, then locks for reading.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ShardedReadGuard<'_, T> {
        held::check::<R>(self);
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ShardedGuard { guard, _noted: held::Noted::new::<R>(self) }
    }

    /// Waits for readers and writers, then locks for writing.
    #[track_caller]
    pub fn write(&self) -> ShardedWriteGuard<'_, T> {
        held::check::<R>(self);
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ShardedGuard { guard, _noted: held::Noted::new::<R>(self) }
    }
}

impl<R, T: fmt::Debug> fmt::Debug for Sharded<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<G: Deref> Deref for ShardedGuard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for ShardedGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// An owned guard. It takes over the caller's `Arc`, where the `Arc` guard of `lock_api` clones it.
pub struct OwnedMutexGuard<R: Rank, T> {
    mutex: ManuallyDrop<Arc<Mutex<R, T>>>,
}

impl<R: Rank, T> OwnedMutexGuard<R, T> {
    /// Waits for the lock.
    #[inline]
    #[track_caller]
    pub fn lock(mutex: Arc<Mutex<R, T>>) -> Self {
        std::mem::forget(mutex.lock());
        Self { mutex: ManuallyDrop::new(mutex) }
    }

    /// Releases the lock.
    #[inline]
    pub fn unlock(this: Self) -> Arc<Mutex<R, T>> {
        let mut this = ManuallyDrop::new(this);
        // SAFETY: `lock` has taken the lock and forgotten its guard. `this` is not dropped, so the
        // lock is released once and the `Arc` is moved out once.
        unsafe {
            this.mutex.force_unlock();
            ManuallyDrop::take(&mut this.mutex)
        }
    }

    /// Returns the locked mutex.
    #[inline]
    pub fn mutex(this: &Self) -> &Arc<Mutex<R, T>> {
        &this.mutex
    }
}

impl<R: Rank, T> Drop for OwnedMutexGuard<R, T> {
    fn drop(&mut self) {
        // SAFETY: as in `unlock`; the guard is not used after this.
        unsafe {
            self.mutex.force_unlock();
            ManuallyDrop::drop(&mut self.mutex);
        }
    }
}

impl<R: Rank, T> Deref for OwnedMutexGuard<R, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard exists.
        unsafe { &*self.mutex.data_ptr() }
    }
}

impl<R: Rank, T> DerefMut for OwnedMutexGuard<R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed exclusively.
        unsafe { &mut *self.mutex.data_ptr() }
    }
}

/// A lock that the fork handlers acquire in one call and release in another.
pub trait Lockable: Sync {
    /// Returns the [`Rank::LEVEL`] of the lock.
    fn level(&self) -> u16;

    /// Takes the lock exclusively. The thread may hold others of its rank.
    fn lock_raw(&self);

    /// Releases the lock.
    ///
    /// # Safety
    /// This thread, or the thread it is a copy of, has taken the lock with [`Lockable::lock_raw`]
    /// and not released it.
    unsafe fn unlock_raw(&self);

    /// Releases the lock if the unlock has handed it to a thread that waited for it at the moment
    /// of the fork. A fair unlock does that, and the waiter does not exist in the child.
    ///
    /// # Safety
    /// The caller is the child of a fork, and has just called [`Lockable::unlock_raw`].
    unsafe fn unlock_for_lost_waiter(&self);
}

/// Takes `lock` as [`Lockable::lock_raw`] does, and returns the result of `read` on its value.
pub fn lock_raw_and_read<R: Rank, T, V>(lock: &RwLock<R, T>, read: impl FnOnce(&T) -> V) -> V {
    let guard = held::allowing_same_rank(|| lock.write());
    let value = read(&guard);
    std::mem::forget(guard);
    value
}

impl<R: Rank, T: Send> Lockable for Mutex<R, T> {
    fn level(&self) -> u16 {
        R::LEVEL
    }

    fn lock_raw(&self) {
        std::mem::forget(held::allowing_same_rank(|| self.lock()));
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock, whose guard was forgotten.
        unsafe { self.force_unlock() }
    }

    unsafe fn unlock_for_lost_waiter(&self) {
        while self.is_locked() {
            // SAFETY: this is the only thread, so the owner of the lock does not exist.
            unsafe { self.force_unlock() }
        }
    }
}

impl<R: Rank, T: Send + Sync> Lockable for RwLock<R, T> {
    fn level(&self) -> u16 {
        R::LEVEL
    }

    fn lock_raw(&self) {
        lock_raw_and_read(self, |_| ());
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock for writing, and the guard was forgotten.
        unsafe { self.force_unlock_write() }
    }

    unsafe fn unlock_for_lost_waiter(&self) {
        while self.is_locked() {
            // SAFETY: this is the only thread, so no reader or writer of the lock exists.
            unsafe {
                if self.is_locked_exclusive() {
                    self.force_unlock_write();
                } else {
                    self.force_unlock_read();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
