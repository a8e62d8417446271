//! A program that forks: the child may go on using what it inherited. **Unsafe room**: `pthread_atfork`, forced unlocks.
//!
//! A fork copies memory but only one thread, so a lock that another thread holds at that moment would stay locked for ever
//! in the child, and the sockets would have two owners. Before the fork we therefore take every lock that our background
//! thread can hold (the receive side, the tables, each queue pair, the flows and timers; completion queues, shared receive
//! queues and memory tables are only taken by it inside those; and what records and spoils packets), and that of the list of
//! devices. Afterwards both sides let go of them, and the child closes its copies of the sockets, so that the packets of the
//! parent stay the parent's, and counts from 0. Engines of the child start again when it creates its first queue pair; queue
//! pairs it inherited belong to the parent and refuse work.
//!
//! What this cannot cover is another thread of the program that is inside a verb on a completion queue, a shared receive
//! queue or a memory region at the moment of the fork; POSIX promises such programs nothing either.

use crate::cm::{ids, ports};
use crate::device;
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

    /// Takes it back from a thread that waited for it at the moment of the fork: a lock that is released may be handed over
    /// to who has waited long, and in the child there is nobody to take it.
    ///
    /// # Safety
    /// As for [`Lockable::unlock_raw`], which was just called, in the child of a fork.
    unsafe fn take_back(&self);
}

impl<T> Lockable for Mutex<T> {
    fn lock_raw(&self) {
        std::mem::forget(self.lock());
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock, whose guard was forgotten.
        unsafe { self.force_unlock() }
    }

    unsafe fn take_back(&self) {
        while self.is_locked() {
            // SAFETY: this thread is alone, so whoever has the lock does not exist.
            unsafe { self.force_unlock() }
        }
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

    unsafe fn take_back(&self) {
        while self.is_locked() {
            // SAFETY: this thread is alone, so whoever has the lock, for reading or writing, does not exist.
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

/// The engines of this process; none while a thread forks.
pub(crate) fn engines() -> Vec<Arc<Engine>> {
    let engines = ENGINES.try_lock();
    engines.iter().flat_map(|engines| engines.iter().filter_map(|(_, engine)| engine.upgrade())).collect()
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
    device::lock().lock_raw();
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
fn release(unlock: fn(&dyn Lockable)) -> Vec<Held> {
    unlock(ids());
    ports::locks().into_iter().for_each(unlock);
    process::inner_locks().for_each(&unlock);
    unlock(process::outer_lock());
    let held = HELD.take();
    for (engine, qps) in &held {
        engine.inner_locks().for_each(&unlock);
        qps.iter().for_each(|qp| unlock(qp.raw()));
        engine.outer_locks().into_iter().for_each(unlock);
    }
    unlock(&ENGINES);
    unlock(device::lock());
    held
}

fn unlock_in_parent(lock: &dyn Lockable) {
    // SAFETY: `release` passes the locks that `before` took, for the same engines and queue pairs, whose lists nobody can
    // change until they are unlocked.
    unsafe { lock.unlock_raw() }
}

fn unlock_in_child(lock: &dyn Lockable) {
    // SAFETY: as in the parent, and this is the only thread.
    unsafe {
        lock.unlock_raw();
        lock.take_back();
    }
}

extern "C" fn after_in_parent() {
    drop(release(unlock_in_parent));
}

extern "C" fn after_in_child() {
    let held = release(unlock_in_child);
    process::abandon();
    ports::abandon();
    device::abandon();
    for (engine, _) in held {
        engine.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// Whether a thread of this process sleeps.
    fn sleeps(thread: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn a_lock_comes_back_from_a_thread_that_the_child_lacks() {
        static LOCK: Mutex<()> = Mutex::new(());
        static WAITER: AtomicI32 = AtomicI32::new(0);
        LOCK.lock_raw();
        let waiter = std::thread::spawn(|| {
            // SAFETY: takes nothing.
            WAITER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            drop(LOCK.lock());
        });
        while !sleeps(WAITER.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        // SAFETY: the child has the lock as this thread has it, hands it over to the copy of who waits, which nobody runs, and
        // ends with `_exit`.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                LOCK.force_unlock_fair();
                let was_handed_over = LOCK.is_locked();
                LOCK.take_back();
                libc::_exit(i32::from(!was_handed_over || LOCK.is_locked()));
            }
            pid
        };
        let mut status = -1;
        // SAFETY: a child of this test, whose status outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        // SAFETY: taken above.
        unsafe { LOCK.unlock_raw() };
        waiter.join().unwrap();
    }
}
