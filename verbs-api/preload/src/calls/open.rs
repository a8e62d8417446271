//! From nothing to a connection: `socket`, `bind`, `listen`, `accept`, `connect`, and the names of
//! both ends.

use super::behind;
use crate::config::{AF_IB, options};
use crate::rdma::{self, Rdma, rdma};
use crate::real::{domain, real};
use crate::table::{self, FdKind, Stage};
use crate::{epoll, errno, fail};
use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_void};
use core::slice;
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, sockaddr, socklen_t};
use std::os::fd::RawFd;

/// `man 2 socket`. Hands on where the caller goes on, because the RDMA library's own sockets are
/// none of our business.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym socket_for);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x3, x30", "b {f}", f = sym socket_for);
}

extern "C" fn socket_for(domain: c_int, kind: c_int, protocol: c_int, caller: *const c_void) -> c_int {
    let ordinary = || {
        // SAFETY: numbers only.
        unsafe { (real().socket)(domain, kind, protocol) }
    };
    let sort = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    if rdma::is_caller(caller) || !options().want(domain, sort, protocol) {
        return ordinary();
    }
    if options().fork_safe && sort == SOCK_STREAM && domain != AF_IB {
        let fd = ordinary();
        table::stage(fd, Stage::Fresh);
        return fd;
    }
    let Some(rdma) = rdma() else { return ordinary() };
    let number = rdma.create(domain, sort, protocol);
    if number < 0 { ordinary() } else { behind_new(rdma, number, domain, kind) }
}

/// A kernel socket whose number the program gets for this rsocket. `kind` has the flags that the
/// program asked for.
fn behind_new(rdma: &Rdma, number: RawFd, domain: c_int, kind: c_int) -> c_int {
    let domain = if domain == AF_IB { libc::AF_INET } else { domain };
    // SAFETY: numbers only.
    let fd = unsafe { (real().socket)(domain, kind, 0) };
    let why = if fd < 0 {
        errno()
    } else if !table::open(fd, number) {
        libc::EMFILE
    } else {
        let flags = if kind & SOCK_NONBLOCK == 0 { 0 } else { libc::O_NONBLOCK };
        // SAFETY: numbers only.
        unsafe { rdma.rfcntl(number, libc::F_SETFL, c_long::from(flags)) };
        return fd;
    };
    // SAFETY: numbers only; what failed must not be left behind.
    unsafe {
        rdma.rclose(number);
        if fd >= 0 {
            (real().close)(fd);
        }
    }
    fail(why)
}

/// `man 2 bind`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some((rdma, number)) = behind(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().bind)(fd, address, len) };
    };
    // SAFETY: the caller's own arguments.
    let status = unsafe { rdma.rbind(number, address, len) };
    if status == 0 {
        // SAFETY: an address that was just bound to has this many bytes.
        table::bound(number, unsafe { slice::from_raw_parts(address.cast(), len as usize) });
    }
    status
}

/// `man 2 listen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe {
        match (table::fd_kind(fd), behind(fd)) {
            (_, Some((rdma, number))) => rdma.rlisten(number, backlog),
            (FdKind::Fork(Stage::Fresh), _) => {
                let status = (real().listen)(fd, backlog);
                if status == 0 {
                    table::stage(fd, Stage::Listening);
                }
                status
            }
            _ => (real().listen)(fd, backlog),
        }
    }
}

/// `man 2 accept`.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { accept4(fd, address, len, 0) }
}

/// `man 2 accept4`.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if let Some((rdma, listener)) = behind(fd) {
        // SAFETY: the caller's own arguments.
        let number = unsafe { rdma.raccept(listener, address, len) };
        epoll::used(fd, libc::POLLIN);
        return if number < 0 { number } else { behind_new(rdma, number, domain(fd), SOCK_STREAM | flags) };
    }
    // SAFETY: the caller's own arguments.
    let new = unsafe { (real().accept4)(fd, address, len, flags) };
    if new >= 0 && table::fd_kind(fd) == FdKind::Fork(Stage::Listening) {
        table::stage(new, Stage::Accepted);
    }
    new
}

/// `man 2 connect`. When nobody at that address speaks RDMA, the number becomes an ordinary socket.
/// A connection that the program does not wait for has no second try: it fails where the program
/// looks for its outcome.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if let Some((rdma, number)) = behind(fd) {
        // SAFETY: the caller's own arguments.
        let status = unsafe { rdma.rconnect(number, address, len) };
        epoll::used(fd, libc::POLLOUT);
        if status == 0 || [libc::EINPROGRESS, libc::EALREADY, libc::EISCONN, libc::EINTR].contains(&errno()) {
            return status;
        }
        fall_back(rdma, fd, number);
    }
    let first = table::fd_kind(fd) == FdKind::Fork(Stage::Fresh);
    // SAFETY: the caller's own arguments.
    let status = unsafe { (real().connect)(fd, address, len) };
    if first && (status == 0 || errno() == libc::EINPROGRESS) {
        table::stage(fd, Stage::Connected);
    }
    status
}

/// From now on `fd` is its kernel socket, which has the options and flags already.
fn fall_back(rdma: &Rdma, fd: c_int, number: RawFd) {
    let bound = table::give_up(number);
    epoll::hand_over(fd);
    // SAFETY: numbers, and an address with its length.
    unsafe {
        rdma.rclose(number);
        if !bound.is_empty() {
            (real().bind)(fd, bound.as_ptr().cast(), bound.len() as socklen_t);
        }
    }
}

forwarded! {
    getpeername / rgetpeername by behind (address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname / rgetsockname by behind (address: *mut sockaddr, len: *mut socklen_t) -> c_int;
}
