//! Start and end of the background thread, and its scheduling. Unsafe code: pthread_sigmask,
//! pthread_timedjoin_np, sched_setattr, getrusage.
//!
//! Other providers have no thread, so programs do things between two verbs that are only safe while
//! no other thread runs. Libfabric patches libc functions (madvise, mmap, munmap ...) right after
//! listing devices; a thread that is allocating inside one of them crashes. Therefore starting the
//! thread waits until it has allocated what it needs, and the last close waits until the thread has
//! ended.

use crate::poller::Poller;
use roxe_base::cancel::uncancelled;
use roxe_base::clock::timespec;
use roxe_base::lock::{Mutex, rank};
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum waits for the thread to start and to end, which normally takes microseconds. They are
/// bounded because the thread may need the lock of the dynamic loader, which a program holds when
/// it opens or closes a device in a library's constructor or destructor. Tests hold no such lock.
pub(crate) const START_LIMIT: Duration = Duration::from_millis(100);
pub(crate) const JOIN_LIMIT: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_secs(1) };

#[derive(Debug)]
pub(crate) struct Thread {
    poller: Arc<Poller>,
    /// Held by the thread while it holds a strong reference to its engine.
    turn: Mutex<rank::ThreadTurn, ()>,
    handle: Mutex<rank::ThreadHandle, Option<JoinHandle<()>>>,
}

impl Thread {
    /// Starts the thread, which runs `prepare`, then `body`. Returns after `prepare`, or after
    /// `limit`.
    pub(crate) fn start(
        limit: Duration,
        poller: Poller,
        prepare: impl FnOnce() + Send + 'static,
        body: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let thread = Arc::new(Self { poller: Arc::new(poller), turn: Mutex::default(), handle: Mutex::default() });
        let own = Arc::clone(&thread);
        let (prepared, is_prepared) = mpsc::sync_channel::<()>(0);
        let handle = spawn_without_signals("roxe", move || {
            prepare();
            drop(prepared);
            body(&own);
        })?;
        *thread.handle.lock() = Some(handle);
        // Dropping the sender ends the wait, even if `prepare` panics.
        let _ = is_prepared.recv_timeout(limit);
        Ok(thread)
    }

    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Runs one turn of the thread, in which it may hold its engine.
    pub(crate) fn turn<R>(&self, turn: impl FnOnce() -> R) -> R {
        let _turn = self.turn.lock();
        turn()
    }

    /// Called without locks after a reference to the engine was dropped: if it was the last one
    /// (`is_over`, reliable between two turns), waits up to `limit` for the thread to end.
    pub(crate) fn join_if(&self, limit: Duration, is_over: impl FnOnce() -> bool) {
        let turn = self.turn.try_lock_for(limit);
        let is_over = turn.is_some() && is_over();
        drop(turn);
        if is_over {
            let handle = self.handle.lock().take();
            if let Some(handle) = handle {
                join(handle, limit);
            }
        }
    }
}

/// Joins a thread, or detaches it after `limit`.
fn join(handle: JoinHandle<()>, limit: Duration) {
    // pthread_timedjoin_np needs wall-clock time.
    let until = timespec(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + limit);
    // An integer or a pointer, depending on the C library.
    let thread = handle.into_pthread_t() as libc::pthread_t;
    // SAFETY: `thread` was neither joined nor detached before, and is either joined or detached
    // here; `until` outlives the call; null discards the thread's result.
    uncancelled(|| unsafe {
        if libc::pthread_timedjoin_np(thread, std::ptr::null_mut(), &raw const until) != 0 {
            libc::pthread_detach(thread);
        }
    });
}

/// Runs `f` on a new thread with signals blocked: the program's handlers belong on its own threads.
fn spawn_without_signals(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: an all-zero signal set is valid memory for the calls that fill it; both masks outlive
    // the calls.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        // Faults of the thread itself must reach their handlers (a registered page may be unmapped,
        // see `guard`).
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(f);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        spawned
    }
}

/// Requests short time slices for the calling thread, so that it runs soon after a wake-up although
/// programs spin on every CPU. Kernels before 6.12 ignore the request.
pub(crate) fn prefer_short_slices() {
    const SLICE: u64 = 100_000;
    // SAFETY: `attr` is a complete sched_attr of the size told to the kernel, which writes it and
    // then reads it; 0 is the calling thread.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>() as libc::c_uint;
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.sched_policy == libc::SCHED_OTHER as u32
        {
            attr.sched_runtime = SLICE;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// Returns the number of involuntary context switches of the calling thread.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: an all-zero rusage is valid, and the kernel writes a complete one. If the call fails,
    // the count is 0.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw.cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Longer than a test machine ever keeps a thread from running.
    const TEST_LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn start_returns_after_prepare() {
        for _ in 0..100 {
            let is_prepared = Arc::new(AtomicBool::new(false));
            let own = Arc::clone(&is_prepared);
            let prepare = move || {
                std::thread::yield_now();
                own.store(true, Ordering::SeqCst);
            };
            let _thread = Thread::start(TEST_LIMIT, Poller::new().unwrap(), prepare, |_| {}).unwrap();
            assert!(is_prepared.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn start_and_join_are_bounded() {
        let (start, may_start) = mpsc::channel::<()>();
        let (end, may_end) = mpsc::channel::<()>();
        let prepare = move || may_start.recv().unwrap();
        let thread =
            Thread::start(START_LIMIT, Poller::new().unwrap(), prepare, move |_| may_end.recv().unwrap()).unwrap();
        start.send(()).unwrap();
        thread.join_if(START_LIMIT, || true);
        end.send(()).unwrap();
    }
}
