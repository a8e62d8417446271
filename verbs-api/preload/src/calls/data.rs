//! Bytes in and out.

use super::behind_data;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use libc::{
    MSG_DONTWAIT, MSG_WAITFORONE, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

forwarded! {
    recv / rrecv by behind_data (buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t, uses libc::POLLIN;
    recvfrom / rrecvfrom by behind_data
        (buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t,
        uses libc::POLLIN;
    recvmsg / rrecvmsg by behind_data (message: *mut msghdr, flags: c_int) -> ssize_t, uses libc::POLLIN;
    read / rread by behind_data (buf: *mut c_void, len: size_t) -> ssize_t, uses libc::POLLIN;
    readv / rreadv by behind_data (parts: *const iovec, count: c_int) -> ssize_t, uses libc::POLLIN;
    send / rsend by behind_data (buf: *const c_void, len: size_t, flags: c_int) -> ssize_t, uses libc::POLLOUT;
    write / rwrite by behind_data (buf: *const c_void, len: size_t) -> ssize_t, uses libc::POLLOUT;
    writev / rwritev by behind_data (parts: *const iovec, count: c_int) -> ssize_t, uses libc::POLLOUT;
}

fortified! {
    __read_chk = read(fd: c_int, buf: *mut c_void, len: size_t; room) -> ssize_t, if |room| len <= room;
    __recv_chk = recv(fd: c_int, buf: *mut c_void, len: size_t; room, flags: c_int) -> ssize_t, if |room| len <= room;
    __recvfrom_chk = recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t; room, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t, if |room| len <= room;
}

/// `man 2 sendto`. A stream does not look at the address, as on Linux; `rsendto` says EISCONN.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let Some((rdma, number)) = behind_data(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().sendto)(fd, buf, len, flags, to, to_len) };
    };
    // SAFETY: the caller's own arguments.
    let mut done = unsafe { rdma.rsendto(number, buf, len, flags, to, to_len) };
    if done < 0 && !to.is_null() && is_stream(fd) {
        // SAFETY: the caller's own arguments.
        done = unsafe { rdma.rsend(number, buf, len, flags) };
    }
    crate::epoll::used(fd, libc::POLLOUT);
    done
}

/// `man 2 sendmsg`. A stream does not look at the address, as on Linux; `rsendmsg` says EISCONN.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some((rdma, number)) = behind_data(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().sendmsg)(fd, message, flags) };
    };
    // SAFETY: the caller's own arguments.
    let mut done = unsafe { rdma.rsendmsg(number, message, flags) };
    // SAFETY: NULL, or the caller's structure.
    let named = unsafe { message.as_ref() }.filter(|message| !message.msg_name.is_null());
    if let (true, Some(message)) = (done < 0 && is_stream(fd), named) {
        let nameless = msghdr { msg_name: core::ptr::null_mut(), msg_namelen: 0, ..*message };
        // SAFETY: the caller's own message but for its name.
        done = unsafe { rdma.rsendmsg(number, &raw const nameless, flags) };
    }
    crate::epoll::used(fd, libc::POLLOUT);
    done
}

/// True if this number, whose kernel socket is of the type that the program asked for, is a stream.
fn is_stream(fd: c_int) -> bool {
    let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
    // SAFETY: an integer and its size, which outlive the call.
    let rc = unsafe { (real().getsockopt)(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len) };
    rc == 0 && kind == libc::SOCK_STREAM
}

/// `man 2 recvmmsg`. From rsockets one after the other, without a look at `timeout`.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if behind_data(fd).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().recvmmsg)(fd, messages, count, flags, timeout) };
    }
    one_by_one(messages, count, |message, at| {
        let wait = if at > 0 && flags & MSG_WAITFORONE != 0 { MSG_DONTWAIT } else { 0 };
        // SAFETY: an entry of the caller's array.
        unsafe { recvmsg(fd, message, flags & !MSG_WAITFORONE | wait) }
    })
}

/// `man 2 sendmmsg`. To rsockets one after the other.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if behind_data(fd).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().sendmmsg)(fd, messages, count, flags) };
    }
    one_by_one(messages, count, |message, _| {
        // SAFETY: an entry of the caller's array.
        unsafe { sendmsg(fd, message, flags) }
    })
}

/// Runs `pass` on each message of an array until it fails, and says how many passed: -1 when the
/// first one failed.
fn one_by_one(messages: *mut mmsghdr, count: c_uint, mut pass: impl FnMut(*mut msghdr, usize) -> ssize_t) -> c_int {
    for at in 0..count as usize {
        // SAFETY: the caller's array has `count` entries.
        let entry = unsafe { messages.add(at) };
        // SAFETY: the caller's array has `count` entries.
        let done = pass(unsafe { &raw mut (*entry).msg_hdr }, at);
        if done < 0 {
            return if at == 0 { -1 } else { at as c_int };
        }
        // SAFETY: the caller's array has `count` entries.
        unsafe { (*entry).msg_len = done as c_uint };
    }
    count as c_int
}

/// `man 2 sendfile`. To rsockets through a buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if behind_data(out).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().sendfile)(out, file, offset, count) };
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

/// `sendfile` under its other name: on systems of 64 bits they are one function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's own arguments.
    unsafe { sendfile(out, file, offset, count) }
}

/// Sends `count` bytes of a file, or as many as there are. Returns how many, and whether a call
/// failed then.
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
