//! The user and the privileges of the process. **Unsafe room**: `geteuid`, `getauxval`.

/// The user this process acts for.
pub fn effective_uid() -> libc::uid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether this program runs with rights that whoever started it lacks (set-uid, set-gid,
/// capabilities of the file): then nothing that the environment says may be believed (`man 3
/// getauxval`, `AT_SECURE`).
pub(crate) fn is_privileged_start() -> bool {
    // SAFETY: takes no pointers and cannot fail.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
