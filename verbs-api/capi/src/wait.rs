//! Sleeping for an event: where a thread of the program can be cancelled in a call of ours (`man
//! pthread_cancel`), as it can with rdma-core.
//!
//! Whatever else a call does is done while that has to wait (see `errno.rs`). The sleep itself is a
//! plain `read` without a lock of ours, and between it and the program is nothing that stops what
//! unwinds: these functions are `C-unwind`.

use crate::errno::{Result, contained};
use core::ffi::{c_int, c_void};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;

unsafe extern "C-unwind" {
    /// `man 2 read`; the declaration of the crate `libc` promises that it does not unwind.
    fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
}

/// For calls that wait for an event and return 0, or -1 with `errno` set. `find` says on what,
/// once: a thread that waits on it goes on doing so when another one destroys it, as with
/// rdma-core. `prepare` returns the eventfd to sleep on, if no event is pending, and what to keep
/// until then; `take` works off an event, told whether its unit was read from there, and returns
/// true if it was one for the program.
pub(crate) fn for_event<T, W>(
    find: impl FnOnce() -> Result<T>,
    prepare: impl Fn(&T) -> Result<(Option<RawFd>, W)>,
    mut take: impl FnMut(&T, bool) -> Result<bool>,
) -> c_int {
    let found = match step(find) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    loop {
        let (sleep_on, kept) = match step(|| prepare(&found)) {
            Ok(prepared) => prepared,
            Err(refused) => return refused,
        };
        let slept = sleep_on.map_or(Ok(()), take_unit);
        drop(kept);
        match step(|| match slept {
            // Only the program's own descriptor says whether a call may wait.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            slept => slept.map_err(Into::into).and_then(|()| take(&found, sleep_on.is_some())),
        }) {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(refused) => return refused,
        }
    }
}

/// What `body` makes, or what the call returns instead, with `errno` set.
fn step<T>(body: impl FnOnce() -> Result<T>) -> core::result::Result<T, c_int> {
    contained(body).map_err(|errno| errno.set(-1))
}

/// Waits for one unit of an eventfd in semaphore mode and reads it. A signal handler installed with
/// `SA_RESTART` does not end that.
fn take_unit(fd: RawFd) -> io::Result<()> {
    let mut unit = [0u8; 8];
    // SAFETY: room for the eight bytes that an eventfd gives.
    let count = unsafe { read(fd, unit.as_mut_ptr().cast(), unit.len()) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
