//! A program that forks: the child may go on using what it inherited. **Unsafe room**:
//! `pthread_atfork`.
//!
//! A fork copies memory but only one thread, so a lock that another thread holds at that moment
//! would stay locked for ever in the child, and the sockets would have two owners. Before the fork
//! we therefore take every lock that our background thread can hold (the receive side, the tables,
//! each queue pair, the flows and timers; completion queues, shared receive queues and memory
//! tables are only taken by it inside those; and what records and spoils packets), and that of the
//! list of devices. Afterwards both sides let go of them, and the child closes its copies of the
//! sockets, so that the packets of the parent stay the parent's, and counts from 0; their names
//! stay, too. Engines of the child start again when it creates its first queue pair; queue pairs it
//! inherited belong to the parent and refuse work.
//!
//! What this cannot cover is another thread of the program that is inside a verb on a completion
//! queue, a shared receive queue or a memory region at the moment of the fork; POSIX promises such
//! programs nothing either.

use crate::device::Device;
use crate::ib_cm::{observers_lock, ports};
use crate::runtime::{self, ENGINES, KNOWN, Runtime, alive};
use roxe_base::error::Error;
use roxe_base::lock::Lockable;
use roxe_base::random;
use roxe_check::{Event, tell};
use roxe_engine::engine::Engine;
use roxe_engine::further;
use roxe_engine::interceptor::process;
use roxe_engine::queue_pair::QueuePair;
use roxe_net::{port_owners, runtime_dir};
use roxe_observe::reasons;
use std::cell::Cell;
use std::sync::{Arc, Once};

/// Everything that is locked while a thread forks.
#[derive(Default)]
struct Held {
    runtimes: Vec<Runtime>,
    /// The first engines and all further ones.
    engines: Vec<Arc<Engine>>,
    /// Those that the engines had when their tables were locked.
    qps: Vec<Arc<dyn QueuePair>>,
}

thread_local! {
    /// What the fork that this thread is in the middle of has locked. The child's only thread is a
    /// copy of this one.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// The engine of `device` in this process, from now on ready for a fork. EINVAL: an environment
/// variable is not understood.
pub(crate) fn runtime_of(device: &Device) -> Result<Runtime, Error> {
    install();
    Runtime::get(device)
}

/// Installs the fork handlers, once, before anything is made that a child shall not use as its own.
/// Without memory for them (the only failure) forks are as unsafe as in a program without handlers.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that live as long as the process: this library is never unloaded
        // while the program runs, because its thread-local buffers have destructors.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    });
}

extern "C" fn before() {
    tell(|| Event::Fork);
    let runtimes = lock_runtimes();
    let engines: Vec<_> = runtimes.iter().flat_map(Runtime::engines).collect();
    in_order(outside(&engines)).for_each(Lockable::lock_raw);
    let qps: Vec<_> = engines.iter().flat_map(|engine| engine.lock_table()).collect();
    qps.iter().for_each(|qp| qp.raw().lock_raw());
    in_order(inside(&runtimes, &engines)).for_each(Lockable::lock_raw);
    HELD.set(Some(Held { runtimes, engines, qps }));
}

/// Takes the locks outside of that of the list of engines, that one, and the one of their further
/// engines. Connection managers look for engines, so theirs come first; as one may be made
/// meanwhile, this looks again when it has the list.
fn lock_runtimes() -> Vec<Runtime> {
    loop {
        let engines = alive(&ENGINES.lock());
        engines.iter().for_each(|engine| engine.agent().raw().lock_raw());
        KNOWN.lock_raw();
        ENGINES.lock_raw();
        // SAFETY: this thread has just taken the lock, and changes nothing.
        let now = alive(unsafe { &*ENGINES.data_ptr() });
        if now.iter().all(|engine| engines.iter().any(|known| engine.is(known))) {
            further::lock().lock_raw();
            return engines;
        }
        [&ENGINES as &dyn Lockable, &KNOWN].into_iter().for_each(unlock_in_parent);
        engines.iter().for_each(|engine| unlock_in_parent(engine.agent().raw()));
    }
}

/// These locks in the order of their ranks, whether they are of one engine or of the process.
fn in_order<'a>(locks: impl Iterator<Item = &'a dyn Lockable>) -> impl Iterator<Item = &'a dyn Lockable> {
    let mut locks: Vec<_> = locks.collect();
    locks.sort_by_key(|lock| lock.level());
    locks.into_iter()
}

/// The locks between that of the list of engines and those of their tables.
fn outside<'a>(engines: &'a [Arc<Engine>]) -> impl Iterator<Item = &'a dyn Lockable> {
    let of_process = [process::outer_lock()].map(|lock| -> &'a dyn Lockable { lock });
    engines.iter().flat_map(|engine| engine.outer_locks()).chain(of_process)
}

/// The locks inside of those of queue pairs. Which there are is certain once those outside are
/// taken.
fn inside<'a>(runtimes: &'a [Runtime], engines: &'a [Arc<Engine>]) -> impl Iterator<Item = &'a dyn Lockable> {
    let of_process = process::inner_locks()
        .chain(ports::locks())
        .chain([observers_lock() as &dyn Lockable, port_owners::lock(), runtime_dir::lock()])
        .chain(roxe_check::locks())
        .chain([reasons::lock()]);
    let of_process = of_process.map(|lock| -> &'a dyn Lockable { lock });
    let inboxes = runtimes.iter().map(|runtime| runtime.agent().raw_inbox() as &dyn Lockable);
    engines.iter().flat_map(|engine| engine.inner_locks()).chain(inboxes).chain(of_process)
}

/// Releases what [`before`] took, in this thread or in the one this is a copy of, and returns the
/// engines.
fn release(unlock: fn(&dyn Lockable)) -> Vec<Runtime> {
    let Held { runtimes, engines, qps } = HELD.take().unwrap_or_default();
    inside(&runtimes, &engines).for_each(unlock);
    qps.iter().for_each(|qp| unlock(qp.raw()));
    engines.iter().for_each(|engine| unlock(engine.raw_table()));
    outside(&engines).for_each(unlock);
    [further::lock(), &ENGINES, &KNOWN].into_iter().for_each(unlock);
    runtimes.iter().for_each(|runtime| unlock(runtime.agent().raw()));
    runtimes
}

fn unlock_in_parent(lock: &dyn Lockable) {
    // SAFETY: `release` passes the locks that `before` took, for the same engines and queue pairs,
    // whose lists nobody can change until they are unlocked.
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
    random::abandon();
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
            /// That of the test.
            OfTest,
        }
    }

    /// Whether a thread of this process sleeps.
    fn sleeps(thread: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn a_lock_comes_back_from_a_thread_that_the_child_lacks() {
        static LOCK: Mutex<rank::OfTest, ()> = Mutex::new(());
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
        // SAFETY: the child has the lock as this thread has it, hands it over to the copy of who
        // waits, which nobody runs, and ends with `_exit`.
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
