//! The functions of libc that this library replaces.

use crate::fail;
use core::ffi::{CStr, c_int, c_long, c_uint, c_ulong, c_void};
use libc::{epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t};
use libc::{ssize_t, timespec, timeval};
use std::sync::OnceLock;

/// Declares a table of functions, and `load`, which looks them up by name.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($name:ident: $function:ty;)+) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: $function,)+
        }

        impl $table {
            /// Looks up every function with `find`.
            ///
            /// # Safety
            ///
            /// `find` returns a function of the type declared for the name.
            pub(crate) unsafe fn load(mut find: impl FnMut(&CStr) -> *mut c_void) -> Self {
                const fn name(text: &'static str) -> &'static CStr {
                    match CStr::from_bytes_with_nul(text.as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name with a NUL"),
                    }
                }
                Self {
                    $($name: {
                        const NAME: &CStr = name(concat!(stringify!($name), "\0"));
                        // SAFETY: the caller guarantees a function of this type; function pointers
                        // have the size of data pointers.
                        unsafe { core::mem::transmute::<*mut c_void, $function>(find(NAME)) }
                    },)+
                }
            }
        }
    };
}

functions! {
    Real:
    socket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    bind: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    listen: unsafe extern "C" fn(c_int, c_int) -> c_int;
    accept4: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    connect: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    recv: unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom: unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg: unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
    recvmmsg: unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
    read: unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
    readv: unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    send: unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto: unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg: unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
    sendmmsg: unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    write: unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
    writev: unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    sendfile: unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    poll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll: unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    select: unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect: unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
    epoll_ctl: unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_pwait: unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    shutdown: unsafe extern "C" fn(c_int, c_int) -> c_int;
    close: unsafe extern "C" fn(c_int) -> c_int;
    getpeername: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getsockname: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    setsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    getsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    fcntl: unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
    ioctl: unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
    dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    dup2: unsafe extern "C" fn(c_int, c_int) -> c_int;
}

/// Returns the functions of libc.
pub(crate) fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    // SAFETY: `functions!` declares the functions with the types of their manual pages; `absent`
    // reads no arguments, so it can stand for each of them.
    REAL.get_or_init(|| unsafe { Real::load(next) })
}

/// Returns the function of this name in the libraries that the loader searches after this one.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() { absent() } else { found }
}

/// Returns a numeric option of a kernel socket; `default` if it has none.
pub(crate) fn number_option(fd: c_int, level: c_int, name: c_int, default: c_int) -> c_int {
    let (mut value, mut len) = (default, size_of::<c_int>() as socklen_t);
    // SAFETY: `value` is a local variable of this size.
    unsafe { (real().getsockopt)(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    value
}

pub(crate) fn domain(fd: c_int) -> c_int {
    number_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, libc::AF_INET)
}

/// Returns a function that stands for a missing one: it reads no arguments and fails with ENOSYS.
pub(crate) fn absent() -> *mut c_void {
    extern "C" fn no_such_call() -> c_long {
        c_long::from(fail(libc::ENOSYS))
    }
    no_such_call as extern "C" fn() -> c_long as *mut c_void
}

pub(crate) use functions;
