//! System calls without a safe form in the standard library.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Waits until one of `fds` is ready. `timeout` is in milliseconds; negative waits forever.
///
/// # Errors
/// EINTR after a signal.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: i32) -> io::Result<usize> {
    // SAFETY: pointer and length are those of `fds`, which is borrowed during the call.
    let ready = check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) })?;
    Ok(ready.unsigned_abs() as usize)
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes a descriptor whose owner is never dropped.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: the call takes no pointers. The caller never drops the owner of the descriptor, so it
    // is closed once.
    unsafe { libc::close(fd) };
}

pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`, which is borrowed during the call; the
    // kernel only reads it.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) })?;
    Ok(())
}

pub(crate) fn option(fd: RawFd, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0; room];
    let mut len = libc::socklen_t::try_from(room).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: pointer and length are those of `value`, which lives longer than the call.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) })?;
    value.truncate(len as usize);
    Ok(value)
}
