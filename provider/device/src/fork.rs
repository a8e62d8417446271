//! Forks: the child may use the objects that it inherited. Contains unsafe code for
//! `pthread_atfork`.
//!
//! A lock that another thread holds during the fork would stay locked in the child, and sockets
//! would have two owners. So the handlers take every lock that a background thread takes first, and
//! both sides release them. The child closes its copies of the sockets, which keeps the parent's
//! packets, and resets counters. Its engines start again with its first queue pair; inherited queue
//! pairs refuse work.
//!
//! Not covered: another thread inside a verb on a protection domain, completion queue, shared
//! receive queue or memory region at that moment. POSIX promises such programs nothing either.

use crate::device::Device;
use crate::ib_cm::{observers_lock, ports};
use crate::inventory;
use crate::runtime::{self, ENGINES, KNOWN, Runtime, alive};
use roxe_base::error::Error;
use roxe_base::lock::Lockable;
use roxe_base::{random, weakest};
use roxe_check::{Event, emit};
use roxe_engine::engine::Engine;
use roxe_engine::further;
use roxe_engine::interceptor::process;
use roxe_engine::queue_pair::QueuePair;
use roxe_net::{port_owners, runtime_dir};
use roxe_observe::reasons;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Once};

/// Locks held during the fork, by their owners.
#[derive(Default)]
struct HeldLocks {
    runtimes: Vec<Runtime>,
    engines: Vec<Arc<Engine>>,
    /// Queue pairs of the engines when their tables were locked.
    qps: Vec<Arc<dyn QueuePair>>,
}

thread_local! {
    /// Locks of the fork that this thread is in. The child's only thread is a copy of it. Without a
    /// destructor, so that it still exists when an exit handler forks.
    static HELD: Cell<Option<ManuallyDrop<HeldLocks>>> = const { Cell::new(None) };
}

/// Returns the engine of `device` in this process, with fork handlers installed. Fails with EINVAL
/// if an environment variable cannot be parsed.
pub(crate) fn runtime_of(device: &Device) -> Result<Runtime, Error> {
    install();
    Runtime::get(device)
}

/// Installs the fork handlers, once, before the first object that a child must not share. If this
/// fails for lack of memory, forks are unsafe.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions live as long as the process: this library is never unloaded
        // while the program runs, because its thread-local buffers have destructors.
        let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) };
    });
}

extern "C" fn before_fork() {
    emit(|| Event::Fork);
    let runtimes = lock_runtimes();
    let engines: Vec<_> = runtimes.iter().flat_map(Runtime::engines).collect();
    by_rank(outer_locks(&engines)).for_each(Lockable::lock_raw);
    let qps: Vec<_> = engines.iter().flat_map(|engine| engine.lock_table()).collect();
    qps.iter().for_each(|qp| qp.lockable().lock_raw());
    by_rank(inner_locks(&runtimes, &engines)).for_each(Lockable::lock_raw);
    HELD.set(Some(ManuallyDrop::new(HeldLocks { runtimes, engines, qps })));
}

/// Locks connection managers, then the lists of devices, engines and further engines. An engine may
/// be created before the list is locked, so this repeats until the list is unchanged.
fn lock_runtimes() -> Vec<Runtime> {
    loop {
        let engines = alive(&ENGINES.lock());
        engines.iter().for_each(|engine| engine.agent().lockable().lock_raw());
        KNOWN.lock_raw();
        ENGINES.lock_raw();
        // SAFETY: this thread has just taken the lock, and changes nothing.
        let now = alive(unsafe { &*ENGINES.data_ptr() });
        if now.iter().all(|engine| engines.iter().any(|known| engine.is(known))) {
            further::lock().lock_raw();
            return engines;
        }
        [&ENGINES as &dyn Lockable, &KNOWN].into_iter().for_each(unlock_in_parent);
        engines.iter().for_each(|engine| unlock_in_parent(engine.agent().lockable()));
    }
}

fn by_rank<'a>(locks: impl Iterator<Item = &'a dyn Lockable>) -> impl Iterator<Item = &'a dyn Lockable> {
    let mut locks: Vec<_> = locks.collect();
    locks.sort_by_key(|lock| lock.level());
    locks.into_iter()
}

/// Locks that rank between the list of engines and their tables.
fn outer_locks<'a>(engines: &'a [Arc<Engine>]) -> impl Iterator<Item = &'a dyn Lockable> {
    let process_locks = [process::outer_lock()].map(|lock| -> &'a dyn Lockable { lock });
    engines.iter().flat_map(|engine| engine.outer_locks()).chain(process_locks)
}

/// Locks that rank inside those of queue pairs; complete once the outer ones are held.
fn inner_locks<'a>(runtimes: &'a [Runtime], engines: &'a [Arc<Engine>]) -> impl Iterator<Item = &'a dyn Lockable> {
    let process_locks = process::inner_locks()
        .chain(ports::locks())
        .chain([inventory::lock() as &dyn Lockable, observers_lock()])
        .chain([port_owners::lock() as &dyn Lockable, runtime_dir::lock()])
        .chain(roxe_check::locks())
        .chain([reasons::lock()]);
    let process_locks = process_locks.map(|lock| -> &'a dyn Lockable { lock });
    let inboxes = runtimes.iter().map(|runtime| runtime.agent().inbox_lock() as &dyn Lockable);
    engines.iter().flat_map(|engine| engine.inner_locks()).chain(inboxes).chain(process_locks)
}

/// Releases the locks of [`before_fork`], in the parent or the child, and returns the engines.
fn release(unlock: fn(&dyn Lockable)) -> Vec<Runtime> {
    let HeldLocks { runtimes, engines, qps } = HELD.take().map(ManuallyDrop::into_inner).unwrap_or_default();
    inner_locks(&runtimes, &engines).for_each(unlock);
    qps.iter().for_each(|qp| unlock(qp.lockable()));
    engines.iter().for_each(|engine| unlock(engine.table_lock()));
    outer_locks(&engines).for_each(unlock);
    [further::lock(), &ENGINES, &KNOWN].into_iter().for_each(unlock);
    runtimes.iter().for_each(|runtime| unlock(runtime.agent().lockable()));
    runtimes
}

fn unlock_in_parent(lock: &dyn Lockable) {
    // SAFETY: `release` passes the locks that `before_fork` took, for the same engines and queue
    // pairs, whose lists cannot change until they are unlocked.
    unsafe { lock.unlock_raw() }
}

fn unlock_in_child(lock: &dyn Lockable) {
    // SAFETY: as in the parent, and this is the only thread.
    unsafe {
        lock.unlock_raw();
        lock.unlock_for_lost_waiter();
    }
}

extern "C" fn after_in_parent() {
    release(unlock_in_parent);
}

extern "C" fn after_in_child() {
    let held = release(unlock_in_child);
    random::abandon();
    weakest::abandon();
    runtime_dir::abandon();
    process::abandon();
    ports::abandon();
    runtime::abandon_counts();
    roxe_check::abandon();
    reasons::abandon();
    for runtime in held {
        runtime.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_base::lock::Mutex;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// The fork handlers run while the test has its lock.
    mod rank {
        crate::ranks! { pub(crate), 1.. ;
            OfTest,
        }
    }

    fn sleeps(thread: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn child_takes_back_lock_handed_to_missing_thread() {
        static LOCK: Mutex<rank::OfTest, ()> = Mutex::new(());
        static WAITER: AtomicI32 = AtomicI32::new(0);
        LOCK.lock_raw();
        let waiter = std::thread::spawn(|| {
            // SAFETY: the call takes no arguments.
            WAITER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            drop(LOCK.lock());
        });
        while !sleeps(WAITER.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        // SAFETY: the child owns the lock as this thread does, unlocks it in favour of the waiter,
        // which it lacks, and ends with `_exit`.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                LOCK.force_unlock_fair();
                let was_handed_over = LOCK.is_locked();
                LOCK.unlock_for_lost_waiter();
                libc::_exit(i32::from(!was_handed_over || LOCK.is_locked()));
            }
            pid
        };
        let mut status = -1;
        // SAFETY: the call waits for a child of this test, and `status` outlives it.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        // SAFETY: this thread took the lock above.
        unsafe { LOCK.unlock_raw() };
        waiter.join().unwrap();
    }
}
