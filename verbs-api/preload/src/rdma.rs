//! The rsocket functions, from the `librdmacm.so.1` that the loader finds.
//!
//! Sockets that a thread creates while it runs one of them belong to the library and stay ordinary,
//! as do those that the library creates on its own threads ([`is_caller`]).

use crate::config::options;
use crate::real::{absent, functions};
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use libc::{iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use std::sync::OnceLock;

/// Declares a table of functions with a method for each that runs it inside the library.
macro_rules! guarded {
    ($(#[$doc:meta])* $table:ident: $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        functions! {
            $(#[$doc])*
            $table:
            $($name: unsafe extern "C" fn($($type),*) -> $result;)+
        }

        impl $table {
            $(
                /// # Safety
                ///
                /// The arguments are as required by the manual page of the socket call.
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> $result {
                    let _inside = Inside::enter();
                    // SAFETY: the caller's promise.
                    unsafe { (self.$name)($($arg),*) }
                }
            )+
        }
    };
}

guarded! {
    /// `rsocket.h`. `rfcntl` is variadic; three register arguments are compatible with it on every
    /// Linux ABI with RDMA.
    Rdma:
    rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    rbind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    rlisten(fd: c_int, backlog: c_int) -> c_int;
    raccept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rconnect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    rshutdown(fd: c_int, how: c_int) -> c_int;
    rclose(fd: c_int) -> c_int;
    rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    rrecvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    rsend(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    rsendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    rpoll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    rgetpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rgetsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    rfcntl(fd: c_int, command: c_int, arg: c_long) -> c_int;
}

static RDMA: OnceLock<Option<Rdma>> = OnceLock::new();

/// Returns the functions; `None`, reported once, without a usable `librdmacm.so.1`.
pub(crate) fn rdma() -> Option<&'static Rdma> {
    RDMA.get_or_init(|| {
        let _inside = Inside::enter();
        let loaded = open();
        if loaded.is_none() {
            eprintln!("librspreload: librdmacm.so.1 cannot be loaded; sockets stay those of the kernel");
        }
        loaded
    })
    .as_ref()
}

fn open() -> Option<Rdma> {
    // SAFETY: a C string; the library is the one that every RDMA program loads.
    let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    let mut missing = false;
    let find = |name: &CStr| {
        // SAFETY: a loaded library and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        missing |= found.is_null();
        if found.is_null() { absent() } else { found }
    };
    // SAFETY: the types are those of `rsocket.h`; `absent` is compatible with all of them.
    let rdma = unsafe { Rdma::load(find) };
    (!missing).then_some(rdma)
}

impl Rdma {
    /// Creates an rsocket with the sizes of the environment, or the defaults if they are refused.
    pub(crate) fn create(&self, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: numbers only.
        let number = unsafe { self.rsocket(domain, kind, protocol) };
        for (name, size) in options().sizes().filter(|_| number >= 0) {
            self.set_number(number, SOL_RDMA, name, size);
        }
        number
    }

    /// Sets a numeric option; ignores failures.
    pub(crate) fn set_number(&self, number: c_int, level: c_int, name: c_int, value: c_int) {
        let value = &raw const value;
        // SAFETY: a variable of this size.
        unsafe { self.rsetsockopt(number, level, name, value.cast(), size_of::<c_int>() as socklen_t) };
    }
}

const SOL_RDMA: c_int = 0x10000;

thread_local! {
    /// Nesting depth of this thread's calls of the library.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks this thread as running code of the library.
struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Returns true if the library creates the socket: on this thread, or `from` returns into it.
pub(crate) fn is_caller(from: *const c_void) -> bool {
    DEPTH.get() > 0 || RDMA.get().and_then(Option::as_ref).is_some_and(|rdma| same_object(from, rdma.rsocket as _))
}

fn same_object(one: *const c_void, other: *const c_void) -> bool {
    let base = |address| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address is allowed; the structure is a variable, valid when all zero.
        let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        // SAFETY: zeroed, or filled in.
        (found != 0).then(|| unsafe { info.assume_init() }.dli_fbase)
    };
    base(one).is_some_and(|object| base(other) == Some(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_depth_is_per_thread() {
        let outer = Inside::enter();
        drop(Inside::enter());
        assert!(is_caller(core::ptr::null()));
        std::thread::spawn(|| assert!(!is_caller(core::ptr::null()))).join().unwrap();
        drop(outer);
        assert!(!is_caller(core::ptr::null()));
    }

    #[test]
    fn same_object_distinguishes_shared_objects() {
        let (ours, ours_too) = (open as fn() -> Option<Rdma> as *const c_void, rdma as fn() -> _ as *const c_void);
        let libcs = libc::dladdr as unsafe extern "C" fn(_, _) -> _ as *const c_void;
        assert!(same_object(ours, ours_too));
        assert!(!same_object(ours, core::ptr::null()) && !same_object(core::ptr::null(), core::ptr::null()));
        // SAFETY: a C string.
        let libcs = if libcs.is_null() { libcs } else { unsafe { libc::dlsym(libc::RTLD_NEXT, c"dladdr".as_ptr()) } };
        assert!(!same_object(ours, libcs));
    }
}
