//! Converts a Rust result to the C return value that the manual page of each call promises. A panic
//! becomes EIO. A thread cannot be cancelled (`man pthread_cancel`) inside a call.

use core::ffi::c_int;
use roxe_check::{explain, faults};
use roxe_provider::{standard_error, uncancelled};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// NULL, a foreign handle, or an impossible value.
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl Errno {
    /// Stores the number in `errno` and returns it. rdma-core also sets `errno` in calls that
    /// return an errno value, and programs rely on it: they call `perror` after any failed call.
    #[cold]
    pub(crate) fn report(self) -> c_int {
        self.set(self.0)
    }

    /// Stores the number in `errno`; returns `returned`.
    #[cold]
    pub(crate) fn set<T>(self, returned: T) -> T {
        set_errno(self.0);
        returned
    }
}

impl From<roxe_provider::Error> for Errno {
    fn from(error: roxe_provider::Error) -> Self {
        static REPORTED: Once = Once::new();
        if error.is_about_host() {
            // Reported once: the program sees only the errno, which does not name the problem.
            REPORTED.call_once(|| standard_error::write(&format!("roxe: {error}\n")));
        } else {
            explain::because(|| error.to_string());
        }
        Self(error.errno())
    }
}

impl From<roxe_provider::PostError> for Errno {
    /// Converts the error of a post: ENOMEM for a full queue, else EINVAL (`man ibv_post_send`).
    #[cold]
    fn from(error: roxe_provider::PostError) -> Self {
        let errno = if error == roxe_provider::PostError::QueueFull { libc::ENOMEM } else { libc::EINVAL };
        explain::because_at_least(|| format!("a request was not posted: {error}"));
        Self(errno)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Returns EINVAL for an argument. `why` names the argument, its value and the accepted values.
#[cold]
pub(crate) fn invalid(why: impl FnOnce() -> String) -> Errno {
    explain::because(why);
    EINVAL
}

#[cold]
pub(crate) fn einval(why: &'static str) -> Errno {
    invalid(|| why.to_owned())
}

/// Returns EOPNOTSUPP for an argument. `why` names the argument, its value and the supported
/// values.
#[cold]
pub(crate) fn unsupported(why: impl FnOnce() -> String) -> Errno {
    explain::because(why);
    EOPNOTSUPP
}

#[cold]
pub(crate) fn null(argument: &'static str) -> Errno {
    invalid(|| format!("{argument} is NULL"))
}

#[cold]
pub(crate) fn out_of_range(argument: &'static str, value: impl Into<i64>, accepted: &'static str) -> Errno {
    let value = value.into();
    invalid(|| format!("{argument} is {value}; accepted is {accepted}"))
}

pub(crate) fn no_comp_mask(comp_mask: u32) -> Result<()> {
    if comp_mask == 0 { Ok(()) } else { Err(invalid(|| format!("comp_mask is {comp_mask:#x}; accepted is 0"))) }
}

/// Borrows the structure at a pointer that the program passed. Fails with EINVAL for NULL.
macro_rules! required {
    ($pointer:ident) => {
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        unsafe { $pointer.as_ref() }.ok_or_else(|| $crate::errno::null(stringify!($pointer)))?
    };
    (mut $pointer:ident) => {
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        unsafe { $pointer.as_mut() }.ok_or_else(|| $crate::errno::null(stringify!($pointer)))?
    };
}

pub(crate) use required;

/// Returns the name of the verb whose body is the closure type `F`, for example
/// `module::ibv_x::{{closure}}`.
fn verb_name<F>() -> String {
    let path = core::any::type_name::<F>();
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    let name = path.rsplit("::").next().unwrap_or(path);
    let prefix = if name.starts_with("ibv_") || name.starts_with("rdma_") || path.contains("::rsocket::") {
        ""
    } else if path.contains("::rdmacm::") {
        "rdma_"
    } else {
        "ibv_"
    };
    format!("{prefix}{name}")
}

#[cold]
fn note_refusal<F>(errno: Errno) -> Errno {
    explain::refused(verb_name::<F>, errno.0);
    errno
}

/// Writes a result to a variable or structure of the program. Fails with EINVAL for NULL.
///
/// # Safety
/// `out` is NULL or valid for writes.
pub(crate) unsafe fn write_out<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(null("the variable for the result"));
    }
    // SAFETY: not NULL; the caller guarantees that it is valid for writes.
    unsafe { out.write(value) };
    Ok(())
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: glibc returns the address of this thread's errno, which is valid while the thread
    // runs.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `body`; a panic becomes EIO instead of unwinding into C.
#[inline]
fn catch_panic<T, F: FnOnce() -> Result<T>>(body: F) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO))).map_err(note_refusal::<F>)
}

/// Runs `body`; a panic becomes EIO. Disables cancellation of the thread: a cancellation unwinds
/// too, and catching that ends the process.
pub(crate) fn run_call<T, F: FnOnce() -> Result<T>>(body: F) -> Result<T> {
    run_modify_call(None, body)
}

/// Runs `body` like [`run_call`]. `state` is the name of the state that `ibv_modify_qp` requests.
fn run_modify_call<T, F: FnOnce() -> Result<T>>(state: Option<&str>, body: F) -> Result<T> {
    uncancelled(|| {
        let _verb = explain::enter_verb();
        if faults::is_on() { with_fault_rules(state, body) } else { catch_panic(body) }
    })
}

/// Runs `body`, unless a fault rule makes the call fail.
#[cold]
fn with_fault_rules<T, F: FnOnce() -> Result<T>>(state: Option<&str>, body: F) -> Result<T> {
    let failed = |faults::Failed(errno)| Err(note_refusal::<F>(Errno(errno)));
    faults::call(&verb_name::<F>(), state, || catch_panic(body)).unwrap_or_else(failed)
}

/// Runs the body of `ibv_modify_qp` like [`status`]. `state` is the name of the requested state.
pub(crate) fn status_of_modify(state: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    run_modify_call(Some(state), body).map_or_else(Errno::report, |()| 0)
}

/// Runs a body like [`status`], for calls of the data path. They disable cancellation themselves
/// where needed, because doing so in every call would cost more than the call.
#[inline]
pub(crate) fn quick_status(body: impl FnOnce() -> Result<()>) -> c_int {
    catch_panic(body).map_or_else(Errno::report, |()| 0)
}

/// Runs a body like [`negative`], for calls of the data path; see [`quick_status`].
#[inline]
pub(crate) fn quick_negative(body: impl FnOnce() -> Result<c_int>) -> c_int {
    catch_panic(body).unwrap_or_else(|errno| -errno.report())
}

/// Runs the body of a call that returns 0 or a positive errno value.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    run_call(body).map_or_else(Errno::report, |()| 0)
}

/// Runs the body of a call that returns a number, or -1 with `errno` set.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int>) -> c_int {
    run_call(body).unwrap_or_else(|errno| errno.set(-1))
}

/// Runs the body of a call that returns 0, or -1 with `errno` set.
pub(crate) fn zero(body: impl FnOnce() -> Result<()>) -> c_int {
    run_call(body).map_or_else(|errno| errno.set(-1), |()| 0)
}

/// Runs the body of a call that returns a length or an offset, or -1 with `errno` set.
pub(crate) fn length(body: impl FnOnce() -> Result<usize>) -> isize {
    run_call(body).map_or_else(|errno| errno.set(-1), usize::cast_signed)
}

/// Runs the body of a call that returns a number, or a negative errno value.
pub(crate) fn negative(body: impl FnOnce() -> Result<c_int>) -> c_int {
    run_call(body).unwrap_or_else(|errno| -errno.report())
}

/// Runs the body of a call that returns a pointer, or NULL with `errno` set.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    run_call(body).unwrap_or_else(|errno| errno.set(core::ptr::null_mut()))
}

/// Runs the body of a call that returns nothing.
pub(crate) fn no_result(body: impl FnOnce() -> Result<()>) {
    let _ = run_call(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_returns_its_value_and_sets_errno() {
        let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        assert_eq!((status(|| Err(EOPNOTSUPP)), errno()), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
        assert_eq!((negative(|| Err(EINVAL)), errno()), (-libc::EINVAL, libc::EINVAL));
        assert_eq!((status(|| Ok(())), negative(|| Ok(3)), errno()), (0, 3, libc::EINVAL));
        assert_eq!(minus_one(|| Ok(7)), 7);
        assert_eq!(minus_one(|| Err(EINVAL)), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert_eq!((length(|| Ok(usize::MAX >> 1)), length(|| Err(EOPNOTSUPP))), (isize::MAX, -1));
        assert!(pointer::<u8>(|| Err(EOPNOTSUPP)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn verb_name_is_that_of_its_function() {
        fn of<F: FnOnce() -> Result<()>>(_: F) -> String {
            verb_name::<F>()
        }
        fn ibv_destroy_everything() -> String {
            of(|| Err(EINVAL))
        }
        assert_eq!(ibv_destroy_everything(), "ibv_destroy_everything");
        assert_eq!(of(|| Err(EINVAL)), "ibv_verb_name_is_that_of_its_function");
    }

    #[test]
    fn panic_becomes_eio() {
        assert_eq!(status(|| panic!("expected in this test")), libc::EIO);
    }
}
