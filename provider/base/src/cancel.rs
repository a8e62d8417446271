//! Keeping requests to cancel a thread (`man pthread_cancel`) away from what must not be cut short.
//! **Unsafe room**: `pthread_setcancelstate`.

use libc::c_int;

/// Runs `f` while a request to cancel the calling thread (`man pthread_cancel`) has to wait: system
/// calls would heed it, wherever they are, with locks held and frames above them that nothing of C
/// may unwind.
///
/// Posting and polling do not run in here: they make no system call that could be cancelled, or
/// make it through this.
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
