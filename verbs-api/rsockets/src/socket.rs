//! The calls of `rsocket.h`, for both kinds of sockets.

use crate::{sys, table};
use roxe::{MemoryRegion, ProtectionDomain};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Makes a socket and returns its number: `rsocket`. `domain` is AF_INET or AF_INET6, `kind` SOCK_STREAM or SOCK_DGRAM with
/// SOCK_NONBLOCK and SOCK_CLOEXEC at will.
///
/// # Errors
/// ENOTSUP for everything else; ENODEV if there is no device; EMFILE.
pub fn open(domain: i32, kind: i32, protocol: i32) -> io::Result<RawFd> {
    let _ = (domain, kind, protocol);
    Ok(table::insert(Arc::new(Socket { fd: sys::eventfd()? })))
}

/// Takes the next connection of a listening socket: its number, and who it is. `raccept`.
///
/// # Errors
/// EBADF, EINVAL if it does not listen, EAGAIN if it is non-blocking and there is none.
pub fn accept(fd: RawFd) -> io::Result<(RawFd, SocketAddr)> {
    let _ = table::get(fd)?;
    Err(unsupported())
}

/// Closes a socket: `rclose`. A connected stream delivers first what was sent.
///
/// # Errors
/// EBADF.
pub fn close(fd: RawFd) -> io::Result<()> {
    let _ = table::remove(fd)?;
    Ok(())
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// A socket. [`find`](crate::find) gives it for its number; it stays valid when the number is closed meanwhile. `flags` are
/// those of `recv(2)` and `send(2)`: MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL; others are ignored.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Its number.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Gives it a local address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EINVAL if it has one, EAFNOSUPPORT.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let _ = addr;
        Err(unsupported())
    }

    /// Waits for connections.
    ///
    /// # Errors
    /// EOPNOTSUPP on a datagram socket, EINVAL if it is connected.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        let _ = backlog;
        Err(unsupported())
    }

    /// Connects a stream, or names the usual peer of a datagram socket.
    ///
    /// # Errors
    /// EINPROGRESS if it is non-blocking, later EALREADY and EISCONN; ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        let _ = addr;
        Err(unsupported())
    }

    /// Ends one direction or both: SHUT_RD, SHUT_WR, SHUT_RDWR.
    ///
    /// # Errors
    /// ENOTCONN, EINVAL for other values.
    pub fn shutdown(&self, how: i32) -> io::Result<()> {
        let _ = how;
        Err(unsupported())
    }

    /// Receives into `buf`.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, ECONNRESET, EINTR.
    pub fn recv(&self, buf: &mut [u8], flags: i32) -> io::Result<usize> {
        self.recv_from(buf, flags).map(|(len, _)| len)
    }

    /// Receives into `buf` and says from whom.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_from(&self, buf: &mut [u8], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
        self.recv_vectored(&mut [IoSliceMut::new(buf)], flags)
    }

    /// Receives into several buffers, one after the other, and says from whom.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
        let _ = (bufs, flags);
        Err(unsupported())
    }

    /// Sends `buf`. A blocking stream returns when all of it is under way.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, EPIPE after the own end of sending, ECONNRESET, EDESTADDRREQ, EMSGSIZE, EINTR.
    pub fn send(&self, buf: &[u8], flags: i32) -> io::Result<usize> {
        self.send_to(buf, flags, None)
    }

    /// Sends `buf`, on a datagram socket to `to`.
    ///
    /// # Errors
    /// As [`send`](Self::send); EISCONN if a stream is given an address.
    pub fn send_to(&self, buf: &[u8], flags: i32, to: Option<SocketAddr>) -> io::Result<usize> {
        self.send_vectored(&[IoSlice::new(buf)], flags, to)
    }

    /// Sends several buffers, one after the other, on a datagram socket as one message to `to`.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: i32, to: Option<SocketAddr>) -> io::Result<usize> {
        let _ = (bufs, flags, to);
        Err(unsupported())
    }

    /// The own address.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(unsupported())
    }

    /// The peer's address.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Err(unsupported())
    }

    /// Sets an option; `value` holds the bytes that `setsockopt(2)` is given.
    ///
    /// # Errors
    /// EINVAL if there are too few, or it comes too late; ENOTSUP for options that rsockets do not have.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let _ = (level, name, value);
        Err(unsupported())
    }

    /// An option, as the bytes that `getsockopt(2)` stores; at most `room` of them.
    ///
    /// # Errors
    /// EINVAL if `room` is too small, ENOTSUP.
    pub fn option(&self, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        let _ = (level, name, room);
        Err(unsupported())
    }

    /// What F_GETFL returns: O_RDWR, and O_NONBLOCK if it is.
    pub fn status_flags(&self) -> i32 {
        libc::O_RDWR
    }

    /// F_SETFL; only O_NONBLOCK has an effect.
    pub fn set_status_flags(&self, flags: i32) {
        let _ = flags;
    }

    /// What F_GETFD returns.
    pub fn descriptor_flags(&self) -> i32 {
        0
    }

    /// F_SETFD.
    pub fn set_descriptor_flags(&self, flags: i32) {
        let _ = flags;
    }

    /// The protection domain of a connected stream, to register memory for [`iomap`](Self::iomap) in.
    ///
    /// # Errors
    /// EINVAL if it is not connected or a datagram socket.
    pub fn protection_domain(&self) -> io::Result<ProtectionDomain> {
        Err(unsupported())
    }

    /// Maps registered memory: with `shared` the peer may write to it by `offset` (-1: its address), which it learns before the next
    /// bytes of the stream; otherwise it is only registered. Returns the offset.
    ///
    /// # Errors
    /// EINVAL if it is not connected, ENOMEM if the peer has no room for one more (its RDMA_IOMAPSIZE).
    pub fn iomap(&self, region: MemoryRegion, shared: bool, offset: i64) -> io::Result<i64> {
        let _ = (region, shared, offset);
        Err(unsupported())
    }

    /// Ends a mapping, named by address and length of its memory.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub fn iounmap(&self, addr: usize, len: usize) -> io::Result<()> {
        let _ = (addr, len);
        Err(unsupported())
    }

    /// Writes `buf` into what the peer has mapped at `offset`, in order with the bytes of the stream. Returns how much of it is
    /// under way: less than all if no mapping covers the rest.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn iowrite(&self, buf: &[u8], offset: i64, flags: i32) -> io::Result<usize> {
        let _ = (buf, offset, flags);
        Err(unsupported())
    }
}
