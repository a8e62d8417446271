//! Shared by unit tests: forks.

use crate::runtime_dir;

/// Asserts that `is_true` in the child of a fork, after the fork handlers.
pub(crate) fn in_child(is_true: impl Fn() -> bool) {
    let lock = runtime_dir::lock();
    lock.lock_raw();
    // SAFETY: as the fork handlers do, the lock is taken before and released on both sides, and the
    // child forgets the parent's names. It ends with `_exit`.
    let pid = unsafe {
        let pid = libc::fork();
        lock.unlock_raw();
        if pid == 0 {
            lock.unlock_for_lost_waiter();
        }
        pid
    };
    if pid == 0 {
        runtime_dir::abandon();
        let status = i32::from(!is_true());
        // SAFETY: ends the child without exit handlers.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of this test, whose status outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}
