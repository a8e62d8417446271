//! A program that forks: the child may go on using what it inherited. **Unsafe room**: `pthread_atfork`, forced unlocks.
//!
//! A fork copies memory but only one thread, so a lock that another thread holds at that moment would stay locked for ever
//! in the child, and the sockets would have two owners. Before the fork we therefore take every lock that our background
//! thread can hold (the receive side, the tables, each queue pair, the flows and timers; completion queues, shared receive
//! queues and memory tables are only taken by it inside those). Afterwards both sides let go of them, and the child closes
//! its copies of the sockets, so that the packets of the parent stay the parent's. Engines of the child start again when
//! it creates its first queue pair; queue pairs it inherited belong to the parent and refuse work.
//!
//! What this cannot cover is another thread of the program that is inside a verb on a completion queue, a shared receive
//! queue or a memory region at the moment of the fork; POSIX promises such programs nothing either.

use crate::engine::Engine;
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, Once, Weak};

/// A lock that can be taken in one call and released in another.
pub(crate) trait Lockable {
    /// Takes it exclusively.
    fn lock_raw(&self);

    /// Releases it.
    ///
    /// # Safety
    /// This thread, or the one it is a copy of, took it with [`Lockable::lock_raw`] and did not release it since.
    unsafe fn unlock_raw(&self);
}

impl<T> Lockable for Mutex<T> {
    fn lock_raw(&self) {
        std::mem::forget(self.lock());
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock, whose guard was forgotten.
        unsafe { self.force_unlock() }
    }
}

impl<T> Lockable for RwLock<T> {
    fn lock_raw(&self) {
        std::mem::forget(self.write());
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock for writing, and the guard was forgotten.
        unsafe { self.force_unlock_write() }
    }
}

/// The engines of this process by interface index.
static ENGINES: Mutex<Vec<(u32, Weak<Engine>)>> = Mutex::new(Vec::new());
/// The engines that are locked while a fork is under way.
static LOCKED: Mutex<Vec<Arc<Engine>>> = Mutex::new(Vec::new());

/// The engine of the interface `ifindex`, made by `make` if there is none.
pub(crate) fn find_or_insert<E>(ifindex: u32, make: impl FnOnce() -> Result<Arc<Engine>, E>) -> Result<Arc<Engine>, E> {
    install();
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    let found = engines.iter().find(|(of, _)| *of == ifindex).and_then(|(_, engine)| engine.upgrade());
    if let Some(engine) = found {
        return Ok(engine);
    }
    let engine = make()?;
    engines.push((ifindex, Arc::downgrade(&engine)));
    Ok(engine)
}

/// Installs the fork handlers, once. Without memory for them (the only failure) forks are as unsafe as in a program
/// without handlers.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that live as long as the process: this library is never unloaded while the program
        // runs, because its thread-local buffers have destructors.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    });
}

extern "C" fn before() {
    let mut locked = LOCKED.lock();
    ENGINES.lock_raw();
    // SAFETY: the line above took the lock, so nobody changes the list; it is only read.
    let engines = unsafe { &*ENGINES.data_ptr() };
    locked.extend(engines.iter().filter_map(|(_, engine)| engine.upgrade()));
    for engine in locked.iter() {
        engine.for_each_lock(&mut |lock| lock.lock_raw());
    }
    std::mem::forget(locked);
}

/// Releases what [`before`] took and returns the engines.
fn release() -> Vec<Arc<Engine>> {
    // SAFETY: `before` ran in this thread (or in the one this is a copy of) and left LOCKED locked, so the list is ours
    // alone.
    let engines = unsafe { std::mem::take(&mut *LOCKED.data_ptr()) };
    for engine in &engines {
        engine.for_each_lock(&mut |lock| {
            // SAFETY: `before` took exactly these locks; they guard the lists they are found by.
            unsafe { lock.unlock_raw() }
        });
    }
    // SAFETY: taken in `before`, and their guards were forgotten there.
    unsafe {
        ENGINES.unlock_raw();
        LOCKED.unlock_raw();
    }
    engines
}

extern "C" fn after_in_parent() {
    drop(release());
}

extern "C" fn after_in_child() {
    for engine in release() {
        engine.abandon();
    }
}
