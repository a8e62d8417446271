//! Unix datagram sockets that are bound to files of a folder.
//!
//! What [`crate::runtime_dir`] (which folder, and what may be removed from it) and [`crate::named`]
//! (which names there are) share. Touches the file system.

use roxe_base::random;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of the path of a Unix socket, without the zero at its end (`man 7 unix`).
pub(super) const MAX_PATH: usize = 107;
/// Bytes of the longest file name of a socket: `2-`, a network namespace of 32 bits (the kernel
/// counts them), `-`, and the longest name, which is that of a service at an address of IPv6
/// (`svc`, interface, service, address).
pub(super) const MAX_FILE_NAME: usize = 2 + 8 + 1 + 4 + 9 + 17 + 32;

/// A path whose file is removed when this is dropped.
pub(super) struct RemovedOnDrop(pub(super) PathBuf);

impl RemovedOnDrop {
    /// An unused path in `dir`.
    pub(super) fn random(dir: &Path) -> io::Result<Self> {
        Ok(Self(dir.join(format!("new-{:016x}", random::number()?))))
    }
}

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Binds `socket` to a path in `dir` that nobody looks for.
pub(super) fn bind_at_random(socket: Socket, dir: &Path) -> io::Result<(Socket, RemovedOnDrop)> {
    let path = RemovedOnDrop::random(dir)?;
    socket.bind(&SockAddr::unix(&path.0)?)?;
    Ok((socket, path))
}

/// A Unix datagram socket without a name.
pub(super) fn datagram_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::DGRAM, None)
}

/// Whether the socket file at `path` is one of a process that has died, or a link to none; `probe`
/// is any unbound datagram socket.
pub(super) fn is_dead(probe: &Socket, path: &Path) -> bool {
    let connected = SockAddr::unix(path).and_then(|address| probe.connect(&address));
    connected.is_err_and(|e| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

/// Makes sure that sockets can be bound, named and found in `dir`.
pub(super) fn try_folder(dir: &Path) -> io::Result<()> {
    let (_socket, bound) = bind_at_random(datagram_socket()?, dir)?;
    let named = RemovedOnDrop::random(dir)?;
    fs::hard_link(&bound.0, &named.0)?;
    datagram_socket()?.connect(&SockAddr::unix(&named.0)?)
}
