//! A program that forks: the child may go on using what it inherited. **Unsafe room**: `pthread_atfork`, forced unlocks.
//!
//! A fork copies memory but only one thread, so a lock that another thread holds at that moment would stay locked for ever
//! in the child, and the sockets would have two owners. Before the fork we therefore take every lock that our background
//! thread can hold (the receive side, the tables, each queue pair, the flows and timers; completion queues, shared receive
//! queues and memory tables are only taken by it inside those; and what records and spoils packets). Afterwards both sides let go of them, and the child closes
//! its copies of the sockets, so that the packets of the parent stay the parent's. Engines of the child start again when
//! it creates its first queue pair; queue pairs it inherited belong to the parent and refuse work.
//!
//! What this cannot cover is another thread of the program that is inside a verb on a completion queue, a shared receive
//! queue or a memory region at the moment of the fork; POSIX promises such programs nothing either.

use crate::cm::{ids, ports};
use crate::engine::Engine;
use crate::engine::tap::process;
use crate::qp::QpCore;
use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
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

/// An engine whose locks are all taken, and the queue pairs it had then.
type Held = (Arc<Engine>, Vec<Arc<QpCore>>);

thread_local! {
    /// What the fork that this thread is in the middle of has locked. The child's only thread is a copy of this one.
    static HELD: Cell<Vec<Held>> = const { Cell::new(Vec::new()) };
}

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
    let engines = ENGINES.lock();
    let alive = engines.iter().filter_map(|(_, engine)| engine.upgrade());
    HELD.set(alive.map(lock_all).collect());
    std::mem::forget(engines);
    process::outer_lock().lock_raw();
    process::inner_locks().for_each(Lockable::lock_raw);
    ports::locks().into_iter().for_each(Lockable::lock_raw);
    ids().lock_raw();
}

/// Takes every lock of an engine that its thread may hold.
fn lock_all(engine: Arc<Engine>) -> Held {
    let [outside @ .., _] = engine.outer_locks();
    outside.into_iter().for_each(Lockable::lock_raw);
    let qps = engine.lock_table();
    qps.iter().for_each(|qp| qp.raw().lock_raw());
    engine.inner_locks().for_each(Lockable::lock_raw);
    (engine, qps)
}

/// Releases what [`before`] took, in this thread or in the one this is a copy of, and returns the engines.
fn release() -> Vec<Held> {
    // SAFETY: `before` took these locks and left them taken; there are no others as long as the outer one is held.
    unsafe {
        ids().unlock_raw();
        ports::locks().into_iter().for_each(|lock| lock.unlock_raw());
        process::inner_locks().for_each(|lock| lock.unlock_raw());
        process::outer_lock().unlock_raw();
    }
    let held = HELD.take();
    for (engine, qps) in &held {
        let (inner, outer) = (engine.inner_locks(), engine.outer_locks());
        // SAFETY: `lock_all` took exactly these locks, for exactly these queue pairs, and left them taken.
        unsafe {
            inner.for_each(|lock| lock.unlock_raw());
            qps.iter().for_each(|qp| qp.raw().unlock_raw());
            outer.iter().for_each(|lock| lock.unlock_raw());
        }
    }
    // SAFETY: taken in `before`, where the guard was forgotten.
    unsafe { ENGINES.unlock_raw() };
    held
}

extern "C" fn after_in_parent() {
    drop(release());
}

extern "C" fn after_in_child() {
    let held = release();
    process::abandon();
    ports::abandon();
    for (engine, _) in held {
        engine.abandon();
    }
}
