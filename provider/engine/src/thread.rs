//! The background thread, how it comes and goes; and what threads ask of the system. **Unsafe
//! room**: pthread_sigmask, pthread_timedjoin_np, sched_setattr, getrusage.
//!
//! Other cards have no thread, so programs do between two verbs what is only safe with none about.
//! Libfabric writes jumps over functions of libc (madvise, mmap, munmap ...) right after it has
//! looked at a device: a thread of ours that was inside one of them, to get its first memory or to
//! give back its last, came back into the middle of a jump (seen as a SIGSEGV, in 2 of 90 runs of
//! `fi_pingpong -e dgram`). So who starts the thread waits until it has what it needs, and who
//! closes the device for the last time waits until it is gone. Knows nothing of what engines do.

use crate::poller::Poller;
use roxe_base::cancel::uncancelled;
use roxe_base::clock::timespec;
use roxe_base::lock::{Mutex, rank};
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest wait for the thread to come, and to go. Both take microseconds, up to a tenth of a
/// second where namespaces come and go. But a thread may need the lock of the dynamic loader, and a
/// program that opens or closes a device in a constructor or destructor of a library has that. With
/// glibc 2.36 a thread needs it to come. Tests hold no such lock, and want to see the thread gone
/// however busy the machine is.
pub(crate) const TO_COME: Duration = Duration::from_millis(100);
pub(crate) const TO_GO: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_secs(1) };

/// The background thread of an engine, as both know it.
#[derive(Debug)]
pub(crate) struct Thread {
    poller: Arc<Poller>,
    /// Held by the thread while it has hold of its engine.
    turn: Mutex<rank::ThreadTurn, ()>,
    /// Taken by who waits for its end.
    handle: Mutex<rank::ThreadHandle, Option<JoinHandle<()>>>,
}

impl Thread {
    /// Starts it, to do `prepare` and then `body`; returns when the first is done, or takes longer
    /// than `limit`.
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
        // What ends the wait is that the other half of the channel is gone, also with a panic.
        let _ = is_prepared.recv_timeout(limit);
        Ok(thread)
    }

    /// What it sleeps on.
    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// One turn of the thread, in which it may have hold of its engine.
    pub(crate) fn turn<R>(&self, turn: impl FnOnce() -> R) -> R {
        let _turn = self.turn.lock();
        turn()
    }

    /// For who has let go of the engine, with no lock held: if nobody has it any more, which
    /// `is_over` says correctly between two turns, this waits until the thread is gone, but not
    /// longer than `limit`.
    pub(crate) fn join_if(&self, limit: Duration, is_over: impl FnOnce() -> bool) {
        let turn = self.turn.try_lock_for(limit);
        let is_over = turn.is_some() && is_over();
        drop(turn);
        if is_over {
            let handle = self.handle.lock().take();
            handle.into_iter().for_each(|handle| join(handle, limit));
        }
    }
}

/// Waits for the end of a thread, but not longer than `limit`.
fn join(handle: JoinHandle<()>, limit: Duration) {
    // The call knows no other clock than that of the wall.
    let until = timespec(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + limit);
    // A number or a pointer, as the C library has it.
    let thread = handle.into_pthread_t() as libc::pthread_t;
    // SAFETY: a thread that was neither joined nor detached, and is one of the two here; `until`
    // outlives the call, and nobody wants its result.
    uncancelled(|| unsafe {
        if libc::pthread_timedjoin_np(thread, std::ptr::null_mut(), &raw const until) != 0 {
            libc::pthread_detach(thread);
        }
    });
}

/// Runs `f` on a new thread that takes no signals: handlers of the program belong on threads of the
/// program.
fn spawn_without_signals(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: an all-zero signal set is valid memory for the calls that fill it; both masks outlive
    // the calls.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        // Faults of the thread itself must reach their handlers (a registered page may be gone, see
        // `guard`).
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(f);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        spawned
    }
}

/// Asks the scheduler to run the calling thread in short slices, so that it comes to run soon after
/// a wake-up although programs spin on every processor: with two spinning programs on two
/// processors the typical `ib_write_lat -s 8` went from 4,000 us to between 30 and 580, on a busy
/// machine both times; 560 on a quiet one. Kernels before 6.12 take the wish and do not know it; a
/// refusal changes nothing.
pub(crate) fn prefer_short_slices() {
    /// The shortest slice the kernel grants, nanoseconds.
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

/// How often somebody else has had the processor although the calling thread would have gone on, or
/// had offered it.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: all zero is a valid value, and the kernel writes a complete one. A refusal leaves a
    // count that stands still.
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

    // Longer than any machine that runs tests keeps a thread from its processor.
    const AGES: Duration = Duration::from_secs(60);

    #[test]
    fn who_starts_the_thread_finds_it_prepared() {
        for _ in 0..100 {
            let is_prepared = Arc::new(AtomicBool::new(false));
            let own = Arc::clone(&is_prepared);
            let prepare = move || {
                std::thread::yield_now();
                own.store(true, Ordering::SeqCst);
            };
            let _thread = Thread::start(AGES, Poller::new().unwrap(), prepare, |_| {}).unwrap();
            assert!(is_prepared.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn a_thread_that_does_not_come_or_go_is_not_waited_for_for_ever() {
        let (come, may_come) = mpsc::channel::<()>();
        let (go, may_go) = mpsc::channel::<()>();
        let prepare = move || may_come.recv().unwrap();
        let thread = Thread::start(TO_COME, Poller::new().unwrap(), prepare, move |_| may_go.recv().unwrap()).unwrap();
        come.send(()).unwrap();
        thread.join_if(TO_COME, || true);
        go.send(()).unwrap();
    }
}
