//! Sections of code that `pthread_cancel` must not interrupt. Unsafe code:
//! `pthread_setcancelstate`.

use libc::c_int;

/// Runs `f` with cancellation of the calling thread postponed (`man pthread_cancel`). A system call
/// would act on a cancellation at once, with locks held and Rust frames on the stack that C must
/// not unwind.
///
/// Posting and polling as a whole need no such section: the cancellable system calls among their
/// steps have their own.
#[inline]
pub fn uncancelled<R>(f: impl FnOnce() -> R) -> R {
    /// `PTHREAD_CANCEL_DISABLE` of glibc.
    const DISABLE: c_int = 1;
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    struct Restore(c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the call affects the calling thread only; null discards the old state.
            unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
        }
    }
    let mut old = 0;
    // SAFETY: the call affects the calling thread only; `old` outlives the call.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
    let _restore = Restore(old);
    f()
}
