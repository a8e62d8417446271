//! What threads ask of the system: signals, cancellation, slices of the processor. **Unsafe room**: pthread_sigmask,
//! pthread_setcancelstate, sched_setattr, getrusage.
//!
//! Knows nothing of engines.

use libc::c_int;
use std::io;

/// Runs `f` on a new thread that takes no signals: handlers of the program belong on threads of the program.
pub(super) fn spawn_without_signals(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: an all-zero signal set is valid memory for the calls that fill it; both masks outlive the calls.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        // Faults of the thread itself must reach their handlers (a registered page may be gone, see `guard`).
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(f);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        spawned.map(drop)
    }
}

/// Runs `f` while a request to cancel the calling thread (`man pthread_cancel`) has to wait: system calls would heed it,
/// wherever they are, with locks held and frames above them that nothing of C may unwind.
///
/// Whoever posts and polls does so without, and what it calls does nothing that could be cancelled, or does it in here.
#[inline]
pub fn uncancelled<R>(f: impl FnOnce() -> R) -> R {
    /// `PTHREAD_CANCEL_DISABLE` of glibc.
    const DISABLE: c_int = 1;
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    /// Restores what was.
    struct Restore(c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: concerns the calling thread only; the old state is not wanted.
            unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
        }
    }
    let mut old = 0;
    // SAFETY: concerns the calling thread only; `old` outlives the call.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
    let _restore = Restore(old);
    f()
}

/// Asks the scheduler to run the calling thread in short slices, so that it comes to run soon after a wake-up although
/// programs spin on every processor: with two spinning programs on two processors the typical `ib_write_lat -s 8` went
/// from 4,000 us to between 30 and 580, on a busy machine both times; 560 on a quiet one. Kernels before 6.12 take the
/// wish and do not know it; a refusal changes nothing.
pub(super) fn prefer_short_slices() {
    /// The shortest slice the kernel grants, nanoseconds.
    const SLICE: u64 = 100_000;
    // SAFETY: `attr` is a complete sched_attr of the size told to the kernel, which writes it and then reads it; 0 is
    // the calling thread.
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

/// How often somebody else has had the processor although the calling thread would have gone on, or had offered it.
pub(super) fn preemptions() -> u64 {
    // SAFETY: all zero is a valid value, and the kernel writes a complete one. A refusal leaves a count that stands still.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw.cast_unsigned()
    }
}
