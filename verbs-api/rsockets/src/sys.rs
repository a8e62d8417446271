//! System calls that have no safe form in the standard library. Touches descriptors, nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The errno of a call that returned -1.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Waits until one of `fds` has what it asks for. `timeout` in milliseconds, negative for ever.
///
/// # Errors
/// EINTR when a signal came.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: i32) -> io::Result<usize> {
    // SAFETY: pointer and length are those of a slice that is ours for the call.
    let ready = check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) })?;
    Ok(ready.unsigned_abs() as usize)
}

/// A non-blocking event counter that closes on exec.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An empty epoll set that closes on exec.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives up a descriptor number whose owner is never dropped.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: no memory is passed; the caller forgets who owns it.
    unsafe { libc::close(fd) };
}

/// Sets an option of an ordinary socket.
pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of a slice; the system only reads it.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) })?;
    Ok(())
}

/// An option of an ordinary socket, at most `room` bytes.
pub(crate) fn option(fd: RawFd, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0; room];
    let mut len = libc::socklen_t::try_from(room).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: pointer and length are those of the vector; the system writes at most so many bytes.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) })?;
    value.truncate(len as usize);
    Ok(value)
}
