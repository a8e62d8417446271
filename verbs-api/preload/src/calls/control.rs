//! Flags, options, copies and the end of a socket.
//!
//! Flags and options go to both, the rsocket and the kernel socket in whose place it stands: the
//! kernel socket remembers what it is asked, and has it all when it is connected after all.

use super::behind;
use crate::real::real;
use crate::table::{self, FdKind};
use crate::{epoll, errno, fail, fork, rdma};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use libc::{F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, O_NONBLOCK, socklen_t};

forwarded! {
    shutdown / rshutdown by behind (how: c_int) -> c_int;
}

/// `man 2 close`. The rsocket ends with the last number for it.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let special = table::fd_kind(fd) != FdKind::Plain || epoll::in_use();
    let last = if special && table::is_ours() { forget(fd) } else { None };
    // SAFETY: numbers only.
    let status = unsafe { (real().close)(fd) };
    end(last).unwrap_or(status)
}

/// `fd` stands for nothing any more. Returns the rsocket that has no number now.
fn forget(fd: c_int) -> Option<c_int> {
    epoll::closed(fd);
    table::forget(fd)
}

/// Closes an rsocket that no number is left for.
fn end(last: Option<c_int>) -> Option<c_int> {
    let (number, rdma) = (last?, rdma::rdma()?);
    // SAFETY: numbers only.
    Some(unsafe { rdma.rclose(number) })
}

/// `man 2 dup`.
#[unsafe(no_mangle)]
extern "C" fn dup(old: c_int) -> c_int {
    fcntl(old, F_DUPFD, 0)
}

/// `man 2 dup2`.
#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: numbers only.
    copied(old, new, || unsafe { (real().dup2)(old, new) })
}

/// `man 2 dup3`.
#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers only.
    copied(old, new, || unsafe { (real().dup3)(old, new, flags) })
}

/// `copy` makes `new` another number for `old`, whatever it was before.
fn copied(old: c_int, new: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    fork::move_over(old);
    let done = copy();
    if done < 0 || old == new || !table::is_ours() {
        return done;
    }
    let last = forget(new);
    share(old, new);
    end(last);
    done
}

/// `new` is a copy of `old` in the kernel; now also here. Numbers too high for the table are left
/// alone.
fn share(old: c_int, new: c_int) {
    match table::fd_kind(old) {
        FdKind::Plain => {}
        FdKind::Rsocket(number) => _ = table::open(new, number),
        FdKind::Fork(stage) => table::stage(new, stage),
    }
}

/// `man 2 fcntl`. The argument is in a register whether or not the command has one.
#[unsafe(no_mangle)]
extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    let copies = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC);
    if copies && table::is_ours() {
        fork::move_over(fd);
    }
    if command == F_SETFL && set_nonblocking(fd, arg as c_int & O_NONBLOCK != 0) < 0 {
        return -1;
    }
    // SAFETY: the caller's own arguments.
    let status = unsafe { (real().fcntl)(fd, command, arg) };
    if copies && status >= 0 && table::is_ours() {
        share(fd, status);
    }
    status
}

/// `fcntl` under its other name: on systems of 64 bits they are one function.
#[unsafe(no_mangle)]
extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
    fcntl(fd, command, arg)
}

/// Whether calls on the rsocket behind `fd`, if there is one, return at once; -1 when it refuses.
fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    let flags = if on { O_NONBLOCK } else { 0 };
    // SAFETY: numbers only.
    behind(fd).map_or(0, |(rdma, number)| unsafe { rdma.rfcntl(number, F_SETFL, c_long::from(flags)) })
}

/// `man 2 ioctl`: `FIONBIO` and `FIONREAD` (up to 64 KiB) of rsockets; the kernel socket answers
/// everything else.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some((rdma, number)) = behind(fd) {
        if request == libc::FIONBIO as c_ulong {
            // SAFETY: this request has a variable.
            if set_nonblocking(fd, unsafe { *arg.cast::<c_int>() } != 0) < 0 {
                return -1;
            }
        } else if request == libc::FIONREAD as c_ulong {
            let mut bytes = vec![0u8; 1 << 16];
            let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            // SAFETY: a buffer and its size; this request has a variable.
            unsafe {
                let ready = rdma.rrecv(number, bytes.as_mut_ptr().cast(), bytes.len(), look);
                *arg.cast::<c_int>() = ready.max(0) as c_int;
            }
            return 0;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { (real().ioctl)(fd, request, arg) }
}

/// `man 2 setsockopt`. What an rsocket does not know of TCP and IP is advice for the network, and
/// is only remembered.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    // SAFETY: the caller's own arguments, here and below.
    let plain = || unsafe { (real().setsockopt)(fd, level, name, value, len) };
    let Some((rdma, number)) = behind(fd) else { return plain() };
    // SAFETY: the caller's own arguments, here and below.
    let status = unsafe { rdma.rsetsockopt(number, level, name, value, len) };
    let why = errno();
    let remembered = plain();
    let advice = matches!(level, libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6);
    match status {
        0 => 0,
        _ if advice && is_unknown(why) => remembered,
        _ => fail(why),
    }
}

/// `man 2 getsockopt`. What an rsocket does not know is answered by the kernel socket.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some((rdma, number)) = behind(fd) {
        // SAFETY: the caller's own arguments.
        let status = unsafe { rdma.rgetsockopt(number, level, name, value, len) };
        if status == 0 || !is_unknown(errno()) {
            return status;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { (real().getsockopt)(fd, level, name, value, len) }
}

/// Whether an rsocket refused an option because it has no such option.
fn is_unknown(why: c_int) -> bool {
    matches!(why, libc::EOPNOTSUPP | libc::ENOPROTOOPT)
}
