//! Sockets by number. A socket's number is a descriptor that it owns, so it never equals that of a
//! file.

use crate::errno::os;
use crate::lock::Table;
use crate::socket::Socket;
use crate::sys;
use roxe_provider::lock::RwLock;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, LazyLock};

static TABLE: LazyLock<RwLock<Table, HashMap<RawFd, Arc<Socket>>>> = LazyLock::new(RwLock::default);

/// Creates a socket and returns its number: `rsocket`. `domain` is AF_INET or AF_INET6; `kind` is
/// SOCK_STREAM or SOCK_DGRAM, optionally with SOCK_NONBLOCK and SOCK_CLOEXEC.
///
/// # Errors
/// ENOTSUP for everything else; ENODEV if there is no device; EMFILE.
pub fn open(domain: i32, kind: i32, protocol: i32) -> io::Result<RawFd> {
    Ok(insert(Socket::open(domain, kind, protocol)?))
}

/// Returns the number and the peer of a listener's next connection: `raccept`.
///
/// # Errors
/// EBADF, EINVAL if it is not listening, EAGAIN if it is non-blocking and no connection waits.
pub fn accept(fd: RawFd) -> io::Result<(RawFd, SocketAddr)> {
    let (socket, peer) = find(fd).ok_or_else(|| os(libc::EBADF))?.accept()?;
    Ok((insert(socket), peer))
}

pub(crate) fn close(fd: RawFd) -> io::Result<()> {
    // Removed before the descriptor is closed and its number reused.
    let socket = TABLE.write().remove(&fd).ok_or_else(|| os(libc::EBADF))?;
    if !socket.is_own() {
        // The parent still uses the connection: close only the descriptor, and leave the rest as the
        // fork found it.
        sys::close(fd);
        std::mem::forget(socket);
        return Ok(());
    }
    socket.close();
    Ok(())
}

/// The socket with this number; `None` for other descriptors.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    TABLE.read().get(&fd).cloned()
}

fn insert(socket: Arc<Socket>) -> RawFd {
    let fd = socket.fd();
    TABLE.write().insert(fd, socket);
    fd
}
