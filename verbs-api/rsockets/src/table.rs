//! Numbers to sockets: the calls that make and end them. A socket's number is that of a descriptor
//! it owns, so it never collides with a file.

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

/// Makes a socket and returns its number: `rsocket`. `domain` is AF_INET or AF_INET6, `kind`
/// SOCK_STREAM or SOCK_DGRAM with SOCK_NONBLOCK and SOCK_CLOEXEC at will.
///
/// # Errors
/// ENOTSUP for everything else; ENODEV if there is no device; EMFILE.
pub fn open(domain: i32, kind: i32, protocol: i32) -> io::Result<RawFd> {
    Ok(insert(Socket::open(domain, kind, protocol)?))
}

/// Takes the next connection of a listening socket: its number, and who it is. `raccept`.
///
/// # Errors
/// EBADF, EINVAL if it does not listen, EAGAIN if it is non-blocking and there is none.
pub fn accept(fd: RawFd) -> io::Result<(RawFd, SocketAddr)> {
    let (socket, peer) = find(fd).ok_or_else(|| os(libc::EBADF))?.accept()?;
    Ok((insert(socket), peer))
}

/// Closes a socket: `rclose`. A connected stream delivers first what was sent. In a forked child
/// only the number is given up, and the connection goes on in the parent.
///
/// # Errors
/// EBADF.
pub(crate) fn close(fd: RawFd) -> io::Result<()> {
    // Before its descriptor is closed and the number given to somebody else.
    let socket = TABLE.write().remove(&fd).ok_or_else(|| os(libc::EBADF))?;
    if !socket.is_own() {
        // Of the parent, who goes on using it: here only the number is given up. The rest stays as
        // the fork found it.
        sys::close(fd);
        std::mem::forget(socket);
        return Ok(());
    }
    socket.close();
    Ok(())
}

/// The socket of this number; `None` if it is none of ours, for example a file.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    TABLE.read().get(&fd).cloned()
}

/// Enters a new socket and returns its number.
fn insert(socket: Arc<Socket>) -> RawFd {
    let fd = socket.fd();
    TABLE.write().insert(fd, socket);
    fd
}
