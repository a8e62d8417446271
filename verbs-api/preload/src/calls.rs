//! The functions of libc that programs call. They behave as their manual pages describe; comments
//! describe the differences on rsockets. `FILE` streams (`fdopen`) bypass these functions, so they
//! do not work on rsockets.
//!
//! `fd` is the program's descriptor, `rsocket` the descriptor that the RDMA library has for it.

use crate::config::{AF_IB, options};
use crate::rdma::{RdmaLibrary, rdma_library};
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

/// Calls a function of libc (`real.name`) or of the RDMA library. Every use passes pointers that
/// the program has passed to the function of the same contract, or only numbers.
macro_rules! call {
    (real.$name:ident($($argument:expr),*)) => {
        // SAFETY: the pointers come from the program, which keeps them valid during this call.
        unsafe { (real().$name)($($argument),*) }
    };
    ($rdma:ident.$name:ident($($argument:expr),*)) => {
        // SAFETY: the pointers come from the program, which keeps them valid during this call.
        unsafe { $rdma.$name($($argument),*) }
    };
}

/// Declares functions that pass their arguments to the rsocket function or to libc: `name / rsocket
/// function by lookup (arguments) -> result`, and after `uses` the event that a call consumes.
macro_rules! forwarded {
    ($($name:ident / $ours:ident by $find:ident ($($argument:ident: $type:ty),*) -> $result:ty
        $(, uses $event:expr)?;)+) => {
        $(
            #[doc = concat!("`man 2 ", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, $($argument: $type),*) -> $result {
                let Some((rdma, rsocket)) = $find(fd) else { return call!(real.$name(fd, $($argument),*)) };
                let done = call!(rdma.$ours(rsocket, $($argument),*));
                $(crate::epoll::rearm(fd, $event);)?
                done
            }
        )+
    };
}

/// Declares the `_FORTIFY_SOURCE` forms of functions, which get the size `room` of the buffer as an
/// additional argument and abort if it is too small: `name = function(arguments; room, more
/// arguments), if it fits`.
macro_rules! fortified {
    ($($name:ident = $plain:ident($($argument:ident: $type:ty),* ; room $(, $more:ident: $more_type:ty)*) -> $result:ty,
        if |$room:ident| $fits:expr;)+) => {
        $(
            #[doc = concat!("`", stringify!($plain), "`, as called by programs compiled with `_FORTIFY_SOURCE`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type,)* $room: size_t $(, $more: $more_type)*) -> $result {
                if !$fits {
                    std::process::abort();
                }
                // SAFETY: these are the program's arguments; the plain function has the same
                // contract.
                unsafe { $plain($($argument),* $(, $more)*) }
            }
        )+
    };
}

// Declared after the macros, which it uses.
mod wait;

/// Returns the rsocket of `fd`, with the RDMA library; `None` for other descriptors.
fn rsocket_of(fd: c_int) -> Option<(&'static RdmaLibrary, RawFd)> {
    Some((rdma_library()?, table::rsocket(fd)?))
}

/// Returns the rsocket of `fd` for a transfer of data. First moves a socket that began as TCP
/// ([`fork`]) to RDMA.
fn rsocket_for_data(fd: c_int) -> Option<(&'static RdmaLibrary, RawFd)> {
    match table::fd_kind(fd) {
        FdKind::Plain => None,
        FdKind::Rsocket(rsocket) => Some((rdma_library()?, rsocket)),
        FdKind::Fork(_) => fork::move_over(fd),
    }
}

/// `man 2 socket`. Passes its return address to [`socket_for`], which creates kernel sockets for
/// calls from the RDMA library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym socket_for);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x3, x30", "b {f}", f = sym socket_for);
}

extern "C" fn socket_for(domain: c_int, kind: c_int, protocol: c_int, caller: *const c_void) -> c_int {
    let kernel_socket = || call!(real.socket(domain, kind, protocol));
    let plain_kind = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    if rdma::is_call_from_rdma_library(caller) || !options().makes_rsocket(domain, plain_kind, protocol) {
        return kernel_socket();
    }
    if options().fork_safe && plain_kind == SOCK_STREAM && domain != AF_IB {
        let fd = kernel_socket();
        table::set_stage(fd, Stage::Fresh);
        return fd;
    }
    let Some(rdma) = rdma_library() else { return kernel_socket() };
    let rsocket = rdma.create(domain, plain_kind, protocol);
    if rsocket < 0 { kernel_socket() } else { assign_fd(rdma, rsocket, domain, kind) }
}

/// Creates a kernel socket, and assigns its descriptor to `rsocket`. `kind` contains the program's
/// flags. Closes both sockets on failure.
fn assign_fd(rdma: &RdmaLibrary, rsocket: RawFd, domain: c_int, kind: c_int) -> c_int {
    let domain = if domain == AF_IB { libc::AF_INET } else { domain };
    let fd = call!(real.socket(domain, kind, 0));
    let why = if fd < 0 {
        errno()
    } else if !table::open(fd, rsocket) {
        libc::EMFILE
    } else {
        let flags = if kind & SOCK_NONBLOCK == 0 { 0 } else { O_NONBLOCK };
        call!(rdma.rfcntl(rsocket, F_SETFL, c_long::from(flags)));
        return fd;
    };
    // SAFETY: the calls take no pointers; the program knows neither descriptor.
    unsafe {
        rdma.rclose(rsocket);
        if fd >= 0 {
            (real().close)(fd);
        }
    }
    fail(why)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some((rdma, rsocket)) = rsocket_of(fd) else { return call!(real.bind(fd, address, len)) };
    let status = call!(rdma.rbind(rsocket, address, len));
    if status == 0 {
        // SAFETY: the program passes an address of `len` bytes, valid during the call: `rbind`
        // accepted it.
        table::record_bind(rsocket, unsafe { slice::from_raw_parts(address.cast(), len as usize) });
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some((rdma, rsocket)) = rsocket_of(fd) {
        return call!(rdma.rlisten(rsocket, backlog));
    }
    let status = call!(real.listen(fd, backlog));
    if status == 0 && table::fd_kind(fd) == FdKind::Fork(Stage::Fresh) {
        table::set_stage(fd, Stage::Listening);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: these are the program's arguments; both functions have the same contract.
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if let Some((rdma, listener)) = rsocket_of(fd) {
        let rsocket = call!(rdma.raccept(listener, address, len));
        epoll::rearm(fd, libc::POLLIN);
        return if rsocket < 0 { rsocket } else { assign_fd(rdma, rsocket, domain(fd), SOCK_STREAM | flags) };
    }
    let new = call!(real.accept4(fd, address, len, flags));
    if new >= 0 && table::fd_kind(fd) == FdKind::Fork(Stage::Listening) {
        table::set_stage(new, Stage::Accepted);
    }
    new
}

/// `man 2 connect`. If the peer does not accept RDMA, connects the kernel socket instead, and the
/// descriptor becomes an ordinary one. A non-blocking connect fails without this fallback, because
/// its outcome is known only after the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if let Some((rdma, rsocket)) = rsocket_of(fd) {
        let status = call!(rdma.rconnect(rsocket, address, len));
        epoll::rearm(fd, libc::POLLOUT);
        if status == 0 || [libc::EINPROGRESS, libc::EALREADY, libc::EISCONN, libc::EINTR].contains(&errno()) {
            return status;
        }
        fall_back(rdma, fd, rsocket);
    }
    let is_fresh = table::fd_kind(fd) == FdKind::Fork(Stage::Fresh);
    let status = call!(real.connect(fd, address, len));
    if is_fresh && (status == 0 || errno() == libc::EINPROGRESS) {
        table::set_stage(fd, Stage::Connected);
    }
    status
}

/// Closes the rsocket of `fd` and makes `fd` an ordinary descriptor of its kernel socket, which
/// already has the options and flags.
fn fall_back(rdma: &RdmaLibrary, fd: c_int, rsocket: RawFd) {
    let bound = table::forget_rsocket(rsocket);
    epoll::move_to_kernel(fd);
    // SAFETY: `bound` is a local vector that holds an address of this length; the other arguments
    // are numbers.
    unsafe {
        rdma.rclose(rsocket);
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
    let Some((rdma, rsocket)) = rsocket_for_data(fd) else {
        return call!(real.sendto(fd, buf, len, flags, to, to_len));
    };
    let mut done = call!(rdma.rsendto(rsocket, buf, len, flags, to, to_len));
    if done < 0 && !to.is_null() && is_stream(fd) {
        done = call!(rdma.rsend(rsocket, buf, len, flags));
    }
    epoll::rearm(fd, libc::POLLOUT);
    done
}

/// `man 2 sendmsg`. A stream ignores the address, as on Linux; `rsendmsg` fails with EISCONN.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some((rdma, rsocket)) = rsocket_for_data(fd) else { return call!(real.sendmsg(fd, message, flags)) };
    let mut done = call!(rdma.rsendmsg(rsocket, message, flags));
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    let named = unsafe { message.as_ref() }.filter(|message| !message.msg_name.is_null());
    if let (true, Some(message)) = (done < 0 && is_stream(fd), named) {
        let nameless = msghdr { msg_name: core::ptr::null_mut(), msg_namelen: 0, ..*message };
        // SAFETY: a copy of the program's message, which is valid during the call, without its
        // name.
        done = unsafe { rdma.rsendmsg(rsocket, &raw const nameless, flags) };
    }
    epoll::rearm(fd, libc::POLLOUT);
    done
}

/// Returns true if the kernel socket, which has the type of the rsocket, is a stream.
fn is_stream(fd: c_int) -> bool {
    number_option(fd, libc::SOL_SOCKET, libc::SO_TYPE, 0) == SOCK_STREAM
}

/// `man 2 recvmmsg`. On rsockets, receives the messages one by one and ignores `timeout`.
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
        // SAFETY: an entry of the program's array, which is valid during the call.
        unsafe { recvmsg(fd, message, flags & !MSG_WAITFORONE | wait) }
    })
}

/// `man 2 sendmmsg`. On rsockets, sends the messages one by one.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if rsocket_for_data(fd).is_none() {
        return call!(real.sendmmsg(fd, messages, count, flags));
    }
    one_by_one(messages, count, |message, _| {
        // SAFETY: an entry of the program's array, which is valid during the call.
        unsafe { sendmsg(fd, message, flags) }
    })
}

/// Calls `pass` for each message until it fails. Returns the number of successes, or -1 if the
/// first message fails.
fn one_by_one(messages: *mut mmsghdr, count: c_uint, mut pass: impl FnMut(*mut msghdr, usize) -> ssize_t) -> c_int {
    for at in 0..count as usize {
        // SAFETY: the program passes an array of `count` entries, valid during the call.
        let entry = unsafe { &mut *messages.add(at) };
        let done = pass(&raw mut entry.msg_hdr, at);
        if done < 0 {
            return if at == 0 { -1 } else { at as c_int };
        }
        entry.msg_len = done as c_uint;
    }
    count as c_int
}

/// `man 2 sendfile`. On rsockets, copies the file through a buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if rsocket_for_data(out).is_none() {
        return call!(real.sendfile(out, file, offset, count));
    }
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    let start = match unsafe { offset.as_ref() } {
        Some(start) => *start,
        // SAFETY: the call takes no pointers.
        None => unsafe { libc::lseek(file, 0, libc::SEEK_CUR) },
    };
    if start < 0 {
        return -1;
    }
    let (done, failed) = copy_file(out, file, start, count);
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    unsafe {
        match offset.as_mut() {
            Some(offset) => *offset = start + done as off_t,
            None => _ = libc::lseek(file, start + done as off_t, libc::SEEK_SET),
        }
    }
    if failed && done == 0 { -1 } else { done as ssize_t }
}

/// Does the same as [`sendfile`], because all offsets have 64 bits here.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: these are the program's arguments; both functions have the same contract.
    unsafe { sendfile(out, file, offset, count) }
}

/// Sends at most `count` bytes of a file to `out`. Returns the number of sent bytes, and true if a
/// call failed.
fn copy_file(out: c_int, file: c_int, start: off_t, count: usize) -> (usize, bool) {
    let mut buffer = vec![0u8; count.min(1 << 16)];
    let mut done = 0;
    while done < count {
        let want = buffer.len().min(count - done);
        // SAFETY: `buffer` has at least `want` bytes.
        let got = unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), want, start + done as off_t) };
        let Ok(got) = usize::try_from(got) else { return (done, true) };
        if got == 0 {
            break;
        }
        // SAFETY: `buffer` has at least `got` bytes.
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

/// `man 2 close`. Closing the last descriptor of an rsocket closes the rsocket.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let special = table::fd_kind(fd) != FdKind::Plain || epoll::in_use();
    let unused = if special && table::is_ours() { forget(fd) } else { None };
    let status = call!(real.close(fd));
    close_rsocket(unused).unwrap_or(status)
}

/// Removes `fd` from the tables. Returns its rsocket if this was its last descriptor.
fn forget(fd: c_int) -> Option<c_int> {
    epoll::remove_closed(fd);
    table::forget(fd)
}

fn close_rsocket(unused: Option<c_int>) -> Option<c_int> {
    let (rsocket, rdma) = (unused?, rdma_library()?);
    Some(call!(rdma.rclose(rsocket)))
}

#[unsafe(no_mangle)]
extern "C" fn dup(old: c_int) -> c_int {
    fcntl(old, F_DUPFD, 0)
}

#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    duplicate(old, new, || call!(real.dup2(old, new)))
}

#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    duplicate(old, new, || call!(real.dup3(old, new, flags)))
}

/// Runs `dup`, which makes `new` a duplicate of `old` in the kernel, and updates the tables.
fn duplicate(old: c_int, new: c_int, dup: impl FnOnce() -> c_int) -> c_int {
    fork::move_over(old);
    let status = dup();
    if status < 0 || old == new || !table::is_ours() {
        return status;
    }
    let unused = forget(new);
    copy_entry(old, new);
    close_rsocket(unused);
    status
}

/// Copies the table entry of `old` to `new`, its duplicate in the kernel. A descriptor beyond the
/// table stays ordinary.
fn copy_entry(old: c_int, new: c_int) {
    match table::fd_kind(old) {
        FdKind::Plain => {}
        FdKind::Rsocket(rsocket) => _ = table::open(new, rsocket),
        FdKind::Fork(stage) => table::set_stage(new, stage),
    }
}

/// `man 2 fcntl`. The C declaration is variadic; a caller that passes no `arg` leaves an arbitrary
/// value in its register, which is not used then.
#[unsafe(no_mangle)]
extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    let duplicates = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC);
    if duplicates && table::is_ours() {
        fork::move_over(fd);
    }
    if command == F_SETFL && set_nonblocking(fd, arg as c_int & O_NONBLOCK != 0) < 0 {
        return -1;
    }
    let status = call!(real.fcntl(fd, command, arg));
    if duplicates && status >= 0 && table::is_ours() {
        copy_entry(fd, status);
    }
    status
}

/// Does the same as [`fcntl`], because all offsets have 64 bits here.
#[unsafe(no_mangle)]
extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
    fcntl(fd, command, arg)
}

/// Makes the rsocket of `fd`, if any, non-blocking or blocking. Returns -1 on failure.
fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    let flags = if on { O_NONBLOCK } else { 0 };
    rsocket_of(fd).map_or(0, |(rdma, rsocket)| call!(rdma.rfcntl(rsocket, F_SETFL, c_long::from(flags))))
}

/// `man 2 ioctl`. Rsockets have `FIONBIO` and `FIONREAD`, which counts at most 64 KiB; the kernel
/// socket handles other requests.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some((rdma, rsocket)) = rsocket_of(fd) {
        if request == libc::FIONBIO as c_ulong {
            // SAFETY: with this request the program passes an `int` that is valid during the call.
            if set_nonblocking(fd, unsafe { *arg.cast::<c_int>() } != 0) < 0 {
                return -1;
            }
        } else if request == libc::FIONREAD as c_ulong {
            let mut bytes = vec![0u8; 1 << 16];
            let peek = libc::MSG_PEEK | MSG_DONTWAIT;
            // SAFETY: `bytes` is a local vector of this length. With this request the program
            // passes an `int` that is valid during the call.
            unsafe {
                let ready = rdma.rrecv(rsocket, bytes.as_mut_ptr().cast(), bytes.len(), peek);
                *arg.cast::<c_int>() = ready.max(0) as c_int;
            }
            return 0;
        }
    }
    call!(real.ioctl(fd, request, arg))
}

/// `man 2 setsockopt`. Options of TCP and IP that an rsocket lacks succeed, because they are hints
/// for the network; the kernel socket stores them.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let set_on_kernel_socket = || call!(real.setsockopt(fd, level, name, value, len));
    let Some((rdma, rsocket)) = rsocket_of(fd) else { return set_on_kernel_socket() };
    let status = call!(rdma.rsetsockopt(rsocket, level, name, value, len));
    let why = errno();
    let kernel_status = set_on_kernel_socket();
    let is_hint = matches!(level, libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6);
    match status {
        0 => 0,
        _ if is_hint && is_unknown_option(why) => kernel_status,
        _ => fail(why),
    }
}

/// `man 2 getsockopt`. Reads options that an rsocket lacks from the kernel socket.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some((rdma, rsocket)) = rsocket_of(fd) {
        let status = call!(rdma.rgetsockopt(rsocket, level, name, value, len));
        if status == 0 || !is_unknown_option(errno()) {
            return status;
        }
    }
    call!(real.getsockopt(fd, level, name, value, len))
}

fn is_unknown_option(why: c_int) -> bool {
    matches!(why, libc::EOPNOTSUPP | libc::ENOPROTOOPT)
}
