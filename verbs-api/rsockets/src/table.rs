//! Numbers to sockets. A socket's number is that of a descriptor it owns, so it never collides with a file.

use crate::Socket;
use crate::lock::Table;
use roxe_provider::lock::RwLock;
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, LazyLock};

static TABLE: LazyLock<RwLock<Table, HashMap<RawFd, Arc<Socket>>>> = LazyLock::new(RwLock::default);

/// The socket of this number; `None` if it is none of ours, for example a file.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    TABLE.read().get(&fd).cloned()
}

/// The socket of this number, or EBADF.
pub(crate) fn get(fd: RawFd) -> io::Result<Arc<Socket>> {
    find(fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}

/// Enters a new socket and returns its number.
pub(crate) fn insert(socket: Arc<Socket>) -> RawFd {
    let fd = socket.fd();
    TABLE.write().insert(fd, socket);
    fd
}

/// Takes a socket out, before its descriptor is closed and the number given to somebody else.
pub(crate) fn remove(fd: RawFd) -> io::Result<Arc<Socket>> {
    TABLE.write().remove(&fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}
