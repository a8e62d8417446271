//! Answers of the calls that roxe does not implement: EOPNOTSUPP in the way each call reports
//! errors.
//!
//! One function serves many symbols. None of those looks at its arguments, so the number and types
//! of the arguments, even a variable number, do not matter to the calling convention.

use crate::errno::{EOPNOTSUPP, set_errno};
use core::ffi::{c_int, c_long, c_void};

/// For calls that return an errno value; it is in `errno`, too.
pub(crate) extern "C" fn status() -> c_int {
    EOPNOTSUPP.tell()
}

/// For calls that return NULL and set errno.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// For calls that return -1 and set errno; wide enough for those that return a `ssize_t` or an
/// offset.
pub(crate) extern "C" fn minus_one() -> c_long {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// For calls that cannot report anything, or whose "nothing there" is zero (a port number, a
/// length).
pub(crate) extern "C" fn nothing() -> c_long {
    0
}
