//! The functions that programs call, under their names in libc and as described in their manual
//! pages. Comments describe only differences on rsockets. Streams of the C library (`fdopen`)
//! bypass these functions, so they do not work on rsockets.

use crate::config::{AF_IB, options};
use crate::rdma::{Rdma, rdma};
use crate::real::{domain, number_option, real};
use crate::table::{FdKind, Stage};
use crate::{epoll, errno, fail, fork, rdma, table};
use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use core::slice;
use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, MSG_DONTWAIT, MSG_WAITFORONE, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK,
    SOCK_STREAM, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use std::os::fd::RawFd;

/// Calls a function of libc or of the RDMA library with arguments of the caller, or with numbers.
macro_rules! call {
    (real.$name:ident($($argument:expr),*)) => {
        // SAFETY: the caller's own arguments, or numbers only.
        unsafe { (real().$name)($($argument),*) }
    };
    ($rdma:ident.$name:ident($($argument:expr),*)) => {
        // SAFETY: the caller's own arguments, or numbers only.
        unsafe { $rdma.$name($($argument),*) }
    };
}

/// Declares functions that only pass their arguments on: `name / rsocket function by lookup
/// (arguments) -> result`, and after `uses` the event that a call consumes.
macro_rules! forwarded {
    ($($name:ident / $ours:ident by $find:ident ($($argument:ident: $type:ty),*) -> $result:ty
        $(, uses $event:expr)?;)+) => {
        $(
            #[doc = concat!("`man 2 ", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, $($argument: $type),*) -> $result {
                let Some((rdma, number)) = $find(fd) else { return call!(real.$name(fd, $($argument),*)) };
                let done = call!(rdma.$ours(number, $($argument),*));
                $(crate::epoll::used(fd, $event);)?
                done
            }
        )+
    };
}

/// Declares the `_FORTIFY_SOURCE` forms of calls: `name = call(arguments [, room: size] more
/// arguments) if it fits`. They abort if the buffer is too small.
macro_rules! fortified {
    ($($name:ident = $plain:ident($($argument:ident: $type:ty),* ; room $(, $more:ident: $more_type:ty)*) -> $result:ty,
        if |$room:ident| $fits:expr;)+) => {
        $(
            #[doc = concat!("`", stringify!($plain), "` of a program that was compiled with `_FORTIFY_SOURCE`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type,)* $room: size_t $(, $more: $more_type)*) -> $result {
                if !$fits {
                    std::process::abort();
                }
                // SAFETY: the caller's own arguments.
                unsafe { $plain($($argument),* $(, $more)*) }
            }
        )+
    };
}

// After the macro, which it uses.
mod wait;

fn rsocket_of(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    Some((rdma()?, table::rsocket(fd)?))
}

/// Returns the rsocket of `fd` for a transfer of data. A socket that began as TCP moves to RDMA
/// now.
fn rsocket_for_data(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    match table::fd_kind(fd) {
        FdKind::Plain => None,
        FdKind::Rsocket(number) => Some((rdma()?, number)),
        FdKind::Fork(_) => fork::move_over(fd),
    }
}

/// `man 2 socket`. Passes the return address on: sockets of the RDMA library itself stay ordinary.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym socket_for);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x3, x30", "b {f}", f = sym socket_for);
}

extern "C" fn socket_for(domain: c_int, kind: c_int, protocol: c_int, caller: *const c_void) -> c_int {
    let ordinary = || call!(real.socket(domain, kind, protocol));
    let plain_kind = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    if rdma::is_caller(caller) || !options().want(domain, plain_kind, protocol) {
        return ordinary();
    }
    if options().fork_safe && plain_kind == SOCK_STREAM && domain != AF_IB {
        let fd = ordinary();
        table::stage(fd, Stage::Fresh);
        return fd;
    }
    let Some(rdma) = rdma() else { return ordinary() };
    let number = rdma.create(domain, plain_kind, protocol);
    if number < 0 { ordinary() } else { behind_new(rdma, number, domain, kind) }
}

/// Creates the kernel socket whose number stands for an rsocket; `kind` has the program's flags.
fn behind_new(rdma: &Rdma, number: RawFd, domain: c_int, kind: c_int) -> c_int {
    let domain = if domain == AF_IB { libc::AF_INET } else { domain };
    let fd = call!(real.socket(domain, kind, 0));
    let why = if fd < 0 {
        errno()
    } else if !table::open(fd, number) {
        libc::EMFILE
    } else {
        let flags = if kind & SOCK_NONBLOCK == 0 { 0 } else { O_NONBLOCK };
        call!(rdma.rfcntl(number, F_SETFL, c_long::from(flags)));
        return fd;
    };
    // SAFETY: numbers only.
    unsafe {
        rdma.rclose(number);
        if fd >= 0 {
            (real().close)(fd);
        }
    }
    fail(why)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some((rdma, number)) = rsocket_of(fd) else { return call!(real.bind(fd, address, len)) };
    let status = call!(rdma.rbind(number, address, len));
    if status == 0 {
        // SAFETY: an address that bind accepted has this many bytes.
        table::bound(number, unsafe { slice::from_raw_parts(address.cast(), len as usize) });
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some((rdma, number)) = rsocket_of(fd) {
        return call!(rdma.rlisten(number, backlog));
    }
    let status = call!(real.listen(fd, backlog));
    if status == 0 && table::fd_kind(fd) == FdKind::Fork(Stage::Fresh) {
        table::stage(fd, Stage::Listening);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if let Some((rdma, listener)) = rsocket_of(fd) {
        let number = call!(rdma.raccept(listener, address, len));
        epoll::used(fd, libc::POLLIN);
        return if number < 0 { number } else { behind_new(rdma, number, domain(fd), SOCK_STREAM | flags) };
    }
    let new = call!(real.accept4(fd, address, len, flags));
    if new >= 0 && table::fd_kind(fd) == FdKind::Fork(Stage::Listening) {
        table::stage(new, Stage::Accepted);
    }
    new
}

/// `man 2 connect`. If the peer does not accept RDMA, the number becomes an ordinary socket. A
/// non-blocking connect has no second try: it fails when the program checks its outcome.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if let Some((rdma, number)) = rsocket_of(fd) {
        let status = call!(rdma.rconnect(number, address, len));
        epoll::used(fd, libc::POLLOUT);
        if status == 0 || [libc::EINPROGRESS, libc::EALREADY, libc::EISCONN, libc::EINTR].contains(&errno()) {
            return status;
        }
        fall_back(rdma, fd, number);
    }
    let first = table::fd_kind(fd) == FdKind::Fork(Stage::Fresh);
    let status = call!(real.connect(fd, address, len));
    if first && (status == 0 || errno() == libc::EINPROGRESS) {
        table::stage(fd, Stage::Connected);
    }
    status
}

/// Makes `fd` its kernel socket, which already has the options and flags.
fn fall_back(rdma: &Rdma, fd: c_int, number: RawFd) {
    let bound = table::give_up(number);
    epoll::move_to_kernel(fd);
    // SAFETY: numbers, and an address with its length.
    unsafe {
        rdma.rclose(number);
        if !bound.is_empty() {
            (real().bind)(fd, bound.as_ptr().cast(), bound.len() as socklen_t);
        }
    }
}

forwarded! {
    getpeername / rgetpeername by rsocket_of (address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname / rgetsockname by rsocket_of (address: *mut sockaddr, len: *mut socklen_t) -> c_int;
}

forwarded! {
    recv / rrecv by rsocket_for_data (buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t, uses libc::POLLIN;
    recvfrom / rrecvfrom by rsocket_for_data
        (buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t,
        uses libc::POLLIN;
    recvmsg / rrecvmsg by rsocket_for_data (message: *mut msghdr, flags: c_int) -> ssize_t, uses libc::POLLIN;
    read / rread by rsocket_for_data (buf: *mut c_void, len: size_t) -> ssize_t, uses libc::POLLIN;
    readv / rreadv by rsocket_for_data (parts: *const iovec, count: c_int) -> ssize_t, uses libc::POLLIN;
    send / rsend by rsocket_for_data (buf: *const c_void, len: size_t, flags: c_int) -> ssize_t, uses libc::POLLOUT;
    write / rwrite by rsocket_for_data (buf: *const c_void, len: size_t) -> ssize_t, uses libc::POLLOUT;
    writev / rwritev by rsocket_for_data (parts: *const iovec, count: c_int) -> ssize_t, uses libc::POLLOUT;
}

fortified! {
    __read_chk = read(fd: c_int, buf: *mut c_void, len: size_t; room) -> ssize_t, if |room| len <= room;
    __recv_chk = recv(fd: c_int, buf: *mut c_void, len: size_t; room, flags: c_int) -> ssize_t, if |room| len <= room;
    __recvfrom_chk = recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t; room, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t, if |room| len <= room;
}

/// `man 2 sendto`. A stream ignores the address, as on Linux; `rsendto` fails with EISCONN.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let Some((rdma, number)) = rsocket_for_data(fd) else { return call!(real.sendto(fd, buf, len, flags, to, to_len)) };
    let mut done = call!(rdma.rsendto(number, buf, len, flags, to, to_len));
    if done < 0 && !to.is_null() && is_stream(fd) {
        done = call!(rdma.rsend(number, buf, len, flags));
    }
    epoll::used(fd, libc::POLLOUT);
    done
}

/// `man 2 sendmsg`. A stream ignores the address, as on Linux; `rsendmsg` fails with EISCONN.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some((rdma, number)) = rsocket_for_data(fd) else { return call!(real.sendmsg(fd, message, flags)) };
    let mut done = call!(rdma.rsendmsg(number, message, flags));
    // SAFETY: NULL, or the caller's structure.
    let named = unsafe { message.as_ref() }.filter(|message| !message.msg_name.is_null());
    if let (true, Some(message)) = (done < 0 && is_stream(fd), named) {
        let nameless = msghdr { msg_name: core::ptr::null_mut(), msg_namelen: 0, ..*message };
        // SAFETY: the caller's own message but for its name.
        done = unsafe { rdma.rsendmsg(number, &raw const nameless, flags) };
    }
    epoll::used(fd, libc::POLLOUT);
    done
}

/// Returns true if the kernel socket, which has the type of the rsocket, is a stream.
fn is_stream(fd: c_int) -> bool {
    number_option(fd, libc::SOL_SOCKET, libc::SO_TYPE, 0) == SOCK_STREAM
}

/// `man 2 recvmmsg`. Receives from rsockets one by one and ignores `timeout`.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if rsocket_for_data(fd).is_none() {
        return call!(real.recvmmsg(fd, messages, count, flags, timeout));
    }
    one_by_one(messages, count, |message, at| {
        let wait = if at > 0 && flags & MSG_WAITFORONE != 0 { MSG_DONTWAIT } else { 0 };
        // SAFETY: an entry of the caller's array.
        unsafe { recvmsg(fd, message, flags & !MSG_WAITFORONE | wait) }
    })
}

/// `man 2 sendmmsg`. Sends to rsockets one by one.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if rsocket_for_data(fd).is_none() {
        return call!(real.sendmmsg(fd, messages, count, flags));
    }
    one_by_one(messages, count, |message, _| {
        // SAFETY: an entry of the caller's array.
        unsafe { sendmsg(fd, message, flags) }
    })
}

/// Calls `pass` for each message until it fails; returns the successes, or -1 without one.
fn one_by_one(messages: *mut mmsghdr, count: c_uint, mut pass: impl FnMut(*mut msghdr, usize) -> ssize_t) -> c_int {
    for at in 0..count as usize {
        // SAFETY: the caller's array has `count` entries.
        let entry = unsafe { &mut *messages.add(at) };
        let done = pass(&raw mut entry.msg_hdr, at);
        if done < 0 {
            return if at == 0 { -1 } else { at as c_int };
        }
        entry.msg_len = done as c_uint;
    }
    count as c_int
}

/// `man 2 sendfile`. Copies through a buffer to rsockets.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if rsocket_for_data(out).is_none() {
        return call!(real.sendfile(out, file, offset, count));
    }
    // SAFETY: NULL, or the caller's variable.
    let start = match unsafe { offset.as_ref() } {
        Some(start) => *start,
        // SAFETY: numbers only.
        None => unsafe { libc::lseek(file, 0, libc::SEEK_CUR) },
    };
    if start < 0 {
        return -1;
    }
    let (done, failed) = copy(out, file, start, count);
    // SAFETY: numbers, or the caller's variable.
    unsafe {
        match offset.as_mut() {
            Some(offset) => *offset = start + done as off_t,
            None => _ = libc::lseek(file, start + done as off_t, libc::SEEK_SET),
        }
    }
    if failed && done == 0 { -1 } else { done as ssize_t }
}

/// `sendfile` under its other name, on 64-bit systems the same function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's own arguments.
    unsafe { sendfile(out, file, offset, count) }
}

/// Sends at most `count` bytes of a file. Returns the sent bytes, and true after a failure.
fn copy(out: c_int, file: c_int, start: off_t, count: usize) -> (usize, bool) {
    let mut buffer = vec![0u8; count.min(1 << 16)];
    let mut done = 0;
    while done < count {
        let want = buffer.len().min(count - done);
        // SAFETY: a buffer of at least `want` bytes.
        let got = unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), want, start + done as off_t) };
        let Ok(got) = usize::try_from(got) else { return (done, true) };
        if got == 0 {
            break;
        }
        // SAFETY: `got` bytes of the buffer were filled.
        let sent = unsafe { write(out, buffer.as_ptr().cast(), got) };
        let Ok(sent) = usize::try_from(sent) else { return (done, true) };
        done += sent;
        if sent < got {
            break;
        }
    }
    (done, false)
}

forwarded! {
    shutdown / rshutdown by rsocket_of (how: c_int) -> c_int;
}

/// `man 2 close`. Closing the last number of an rsocket closes it.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let special = table::fd_kind(fd) != FdKind::Plain || epoll::in_use();
    let last = if special && table::is_ours() { forget(fd) } else { None };
    let status = call!(real.close(fd));
    end(last).unwrap_or(status)
}

/// Drops `fd` from the tables. Returns its rsocket if this was its last number.
fn forget(fd: c_int) -> Option<c_int> {
    epoll::closed(fd);
    table::forget(fd)
}

fn end(last: Option<c_int>) -> Option<c_int> {
    let (number, rdma) = (last?, rdma()?);
    Some(call!(rdma.rclose(number)))
}

#[unsafe(no_mangle)]
extern "C" fn dup(old: c_int) -> c_int {
    fcntl(old, F_DUPFD, 0)
}

#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    copied(old, new, || call!(real.dup2(old, new)))
}

#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    copied(old, new, || call!(real.dup3(old, new, flags)))
}

/// Runs `copy`, which makes `new` a duplicate of `old`, and updates the tables.
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

/// Gives `new`, a kernel duplicate, the meaning of `old`. Numbers beyond the table are ignored.
fn share(old: c_int, new: c_int) {
    match table::fd_kind(old) {
        FdKind::Plain => {}
        FdKind::Rsocket(number) => _ = table::open(new, number),
        FdKind::Fork(stage) => table::stage(new, stage),
    }
}

/// `man 2 fcntl`. Reading the argument is safe without one: it is in a register.
#[unsafe(no_mangle)]
extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    let copies = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC);
    if copies && table::is_ours() {
        fork::move_over(fd);
    }
    if command == F_SETFL && set_nonblocking(fd, arg as c_int & O_NONBLOCK != 0) < 0 {
        return -1;
    }
    let status = call!(real.fcntl(fd, command, arg));
    if copies && status >= 0 && table::is_ours() {
        share(fd, status);
    }
    status
}

/// `fcntl` under its other name, on 64-bit systems the same function.
#[unsafe(no_mangle)]
extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
    fcntl(fd, command, arg)
}

/// Sets if calls on the rsocket of `fd`, if any, block; -1 on failure.
fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    let flags = if on { O_NONBLOCK } else { 0 };
    rsocket_of(fd).map_or(0, |(rdma, number)| call!(rdma.rfcntl(number, F_SETFL, c_long::from(flags))))
}

/// `man 2 ioctl`: `FIONBIO` and `FIONREAD` (up to 64 KiB); the kernel socket handles the others.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some((rdma, number)) = rsocket_of(fd) {
        if request == libc::FIONBIO as c_ulong {
            // SAFETY: this request passes a variable.
            if set_nonblocking(fd, unsafe { *arg.cast::<c_int>() } != 0) < 0 {
                return -1;
            }
        } else if request == libc::FIONREAD as c_ulong {
            let mut bytes = vec![0u8; 1 << 16];
            let look = libc::MSG_PEEK | MSG_DONTWAIT;
            // SAFETY: a buffer and its size; this request passes a variable.
            unsafe {
                let ready = rdma.rrecv(number, bytes.as_mut_ptr().cast(), bytes.len(), look);
                *arg.cast::<c_int>() = ready.max(0) as c_int;
            }
            return 0;
        }
    }
    call!(real.ioctl(fd, request, arg))
}

/// `man 2 setsockopt`. The kernel socket stores options of TCP and IP that an rsocket lacks: they
/// are hints for the network.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let plain = || call!(real.setsockopt(fd, level, name, value, len));
    let Some((rdma, number)) = rsocket_of(fd) else { return plain() };
    let status = call!(rdma.rsetsockopt(number, level, name, value, len));
    let why = errno();
    let stored = plain();
    let advice = matches!(level, libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6);
    match status {
        0 => 0,
        _ if advice && is_unknown(why) => stored,
        _ => fail(why),
    }
}

/// `man 2 getsockopt`. The kernel socket answers for options that an rsocket lacks.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some((rdma, number)) = rsocket_of(fd) {
        let status = call!(rdma.rgetsockopt(number, level, name, value, len));
        if status == 0 || !is_unknown(errno()) {
            return status;
        }
    }
    call!(real.getsockopt(fd, level, name, value, len))
}

fn is_unknown(why: c_int) -> bool {
    matches!(why, libc::EOPNOTSUPP | libc::ENOPROTOOPT)
}
