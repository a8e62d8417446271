//! The user and the privileges of the process. Unsafe code: `geteuid`, `getauxval`,
//! `getxattr`.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the effective user id of this process.
pub fn effective_uid() -> libc::uid_t {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns true if the program runs with more rights than its user (set-uid, set-gid, file
/// capabilities), so that the environment must not be trusted (`man 3 getauxval`, AT_SECURE).
pub(crate) fn is_privileged_start() -> bool {
    // SAFETY: the call takes no pointers and cannot fail.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns true if the file of a program grants capabilities (`man 7 capabilities`, "File
/// capabilities").
pub fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are nul-terminated; with a null buffer of size 0 the call only returns
    // the length of the value.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
