//! The RDMA library: the rsocket functions of the `librdmacm.so.1` that the loader finds.
//!
//! Sockets that the RDMA library itself creates must stay in the kernel.
//! [`is_call_from_rdma_library`] recognises them: the thread is inside one of the rsocket
//! functions, or the RDMA library calls `socket` on one of its own threads.

use crate::config::options;
use crate::real::{absent, functions};
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use libc::{iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use std::sync::OnceLock;

/// Declares a table of functions, and for each a method that calls it and marks the thread as
/// inside the RDMA library.
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
                /// The arguments are valid as the manual page of the socket call demands.
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> $result {
                    let _inside = Inside::enter();
                    // SAFETY: the caller guarantees valid arguments.
                    unsafe { (self.$name)($($arg),*) }
                }
            )+
        }
    };
}

guarded! {
    /// The functions of `rsocket.h`. `rfcntl` is variadic; on every Linux ABI that has RDMA, its
    /// third argument is passed like the `arg` of this type.
    RdmaLibrary:
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

static LIBRARY: OnceLock<Option<RdmaLibrary>> = OnceLock::new();

/// Returns the RDMA library; `None` if there is no usable `librdmacm.so.1`, which the first call
/// reports on standard error.
pub(crate) fn rdma_library() -> Option<&'static RdmaLibrary> {
    LIBRARY
        .get_or_init(|| {
            let _inside = Inside::enter();
            let loaded = open();
            if loaded.is_none() {
                eprintln!(
                    "librspreload: cannot load librdmacm.so.1: sockets stay in the kernel; \
                 add the library's directory to LD_LIBRARY_PATH"
                );
            }
            loaded
        })
        .as_ref()
}

fn open() -> Option<RdmaLibrary> {
    // SAFETY: the name is a C string; librdmacm's initialisers have no preconditions.
    let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    let mut missing = false;
    let find = |name: &CStr| {
        // SAFETY: `library` is loaded and never unloaded; `name` is a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        missing |= found.is_null();
        if found.is_null() { absent() } else { found }
    };
    // SAFETY: `guarded!` declares the functions with the types of `rsocket.h`; `absent` reads no
    // arguments, so it can stand for each of them.
    let rdma = unsafe { RdmaLibrary::load(find) };
    (!missing).then_some(rdma)
}

impl RdmaLibrary {
    /// Creates an rsocket, with the queue and inline sizes that the environment sets. Ignores sizes
    /// that the RDMA library refuses.
    pub(crate) fn create(&self, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the call takes no pointers.
        let rsocket = unsafe { self.rsocket(domain, kind, protocol) };
        for (name, size) in options().sizes().filter(|_| rsocket >= 0) {
            self.set_number(rsocket, SOL_RDMA, name, size);
        }
        rsocket
    }

    /// Sets a numeric option; ignores failures.
    pub(crate) fn set_number(&self, rsocket: c_int, level: c_int, name: c_int, value: c_int) {
        let value = &raw const value;
        // SAFETY: `value` is a local variable of this size.
        unsafe { self.rsetsockopt(rsocket, level, name, value.cast(), size_of::<c_int>() as socklen_t) };
    }
}

const SOL_RDMA: c_int = 0x10000;

thread_local! {
    /// Number of nested calls to the RDMA library on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks this thread as inside the RDMA library until dropped.
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

/// Returns true if the RDMA library called `socket`: this thread is inside the RDMA library, or
/// `return_address` is in its code.
pub(crate) fn is_call_from_rdma_library(return_address: *const c_void) -> bool {
    let is_in_library = |library: &RdmaLibrary| same_object(return_address, library.rsocket as _);
    DEPTH.get() > 0 || LIBRARY.get().and_then(Option::as_ref).is_some_and(is_in_library)
}

/// Returns true if both addresses are in the same shared object.
fn same_object(one: *const c_void, other: *const c_void) -> bool {
    let base = |address| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `dladdr` accepts any address; `info` is a local variable.
        let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        // SAFETY: all fields are initialised: zeroed above, and set by `dladdr`.
        (found != 0).then(|| unsafe { info.assume_init() }.dli_fbase)
    };
    base(one).is_some_and(|object| base(other) == Some(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_inside_library_are_recognised_on_their_thread_only() {
        let is_inside = || is_call_from_rdma_library(core::ptr::null());
        let outer = Inside::enter();
        drop(Inside::enter());
        assert!(is_inside());
        std::thread::spawn(move || assert!(!is_inside())).join().unwrap();
        drop(outer);
        assert!(!is_inside());
    }

    #[test]
    fn same_object_distinguishes_shared_objects() {
        let own = open as fn() -> Option<RdmaLibrary> as *const c_void;
        let other_own = rdma_library as fn() -> _ as *const c_void;
        assert!(same_object(own, other_own));
        assert!(!same_object(own, core::ptr::null()) && !same_object(core::ptr::null(), core::ptr::null()));
        // SAFETY: the name is a C string.
        let in_libc = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dladdr".as_ptr()) };
        assert!(!in_libc.is_null() && !same_object(own, in_libc));
    }
}
