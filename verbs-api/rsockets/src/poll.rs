//! `rpoll` and `rselect`: waiting for rsockets and ordinary descriptors together.

use std::io;
use std::os::fd::RawFd;

/// What to wait for on one descriptor, and what was found: `struct pollfd`.
pub use libc::pollfd as PollFd;

/// Waits until one of `fds`, each an rsocket or any other descriptor, has what it asks for; fills in `revents` and returns
/// how many are not 0. `timeout` in milliseconds, negative for ever. Entries with a negative number are passed over.
///
/// # Errors
/// As `poll(2)`; EINTR when a signal came.
pub fn poll(fds: &mut [PollFd], timeout: i32) -> io::Result<usize> {
    let _ = (fds, timeout);
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// `select(2)` with rsockets: `sets` are those to read, to write, and with exceptions, each a bit for every descriptor,
/// lowest bit of the first word first, as in `fd_set`. Only the first `nfds` bits count; the sets come back with those that
/// are ready, all others cleared. `timeout` in milliseconds, negative for ever. Returns how many bits are set.
///
/// # Errors
/// EBADF if a set names a descriptor that is not open, EINVAL if `nfds` does not fit into a set, EINTR.
pub fn select(nfds: RawFd, sets: [Option<&mut [u64]>; 3], timeout: i32) -> io::Result<usize> {
    let _ = (nfds, sets, timeout);
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}
