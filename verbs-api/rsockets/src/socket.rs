//! The calls of `rsocket.h` for both kinds of sockets, and the table of sockets by number.

use crate::addr::{to_fabric, to_program, unspecified};
use crate::datagram::Datagram;
use crate::errno::os;
use crate::lock::Table;
use crate::service::{self, ServiceDue, Serviced};
use crate::stream::{RecvCursor, RecvMode, SendCursor, Stream};
use crate::sys;
use crate::wait::{Source, Waker};
use roxe::{MemoryRegion, ProtectionDomain};
use roxe_provider::lock::RwLock;
use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// Calls a method that both kinds of sockets have.
macro_rules! of_kind {
    ($whole:ident, $socket:ident => $call:expr) => {
        match &$whole.kind {
            Kind::Stream($socket) => $call,
            Kind::Datagram($socket) => $call,
        }
    };
}

/// Sockets by number. The number is that of a descriptor which the socket owns, so it differs from
/// the numbers of all files.
static TABLE: LazyLock<RwLock<Table, HashMap<RawFd, Arc<Socket>>>> = LazyLock::new(RwLock::default);

/// Creates a socket and returns its number: `rsocket`. `domain` is AF_INET or AF_INET6; `kind` is
/// SOCK_STREAM or SOCK_DGRAM, optionally with SOCK_NONBLOCK and SOCK_CLOEXEC.
///
/// # Errors
/// ENOTSUP for other arguments; ENODEV if there is no device; EMFILE.
pub fn open(domain: i32, kind: i32, protocol: i32) -> io::Result<RawFd> {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (flags, kind) = (kind & FLAGS, kind & !FLAGS);
    let kind = match (domain, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Kind::Stream(Stream::new()?),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            Kind::Datagram(Datagram::new(domain)?)
        }
        _ => return Err(os(libc::ENOTSUP)),
    };
    Ok(insert(Socket::new(kind, domain, flags)?))
}

/// Returns the number and the peer of a listener's next connection: `raccept`.
///
/// # Errors
/// EBADF; EINVAL if the socket is not listening; EAGAIN if it is non-blocking and there is no
/// connection.
pub fn accept(fd: RawFd) -> io::Result<(RawFd, SocketAddr)> {
    let listener = find(fd).ok_or_else(|| os(libc::EBADF))?;
    let stream = listener.stream().ok_or_else(|| os(libc::EOPNOTSUPP))?.accept(listener.blocks(0))?;
    let socket = Socket::new(Kind::Stream(stream), listener.domain, 0)?;
    let peer = socket.peer_addr().unwrap_or_else(|_| unspecified(socket.domain));
    Ok((insert(socket), peer))
}

pub(crate) fn close(fd: RawFd) -> io::Result<()> {
    // Removed first: once the descriptor is closed, a new socket can get its number.
    let socket = TABLE.write().remove(&fd).ok_or_else(|| os(libc::EBADF))?;
    if socket.is_own() {
        of_kind!(socket, socket => socket.close());
    } else {
        // A forked child: the parent still uses the connection. Close only the descriptor, and do
        // not drop the socket, which would disconnect.
        sys::close(fd);
        std::mem::forget(socket);
    }
    Ok(())
}

/// Returns the socket with this number; `None` for other descriptors.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    TABLE.read().get(&fd).cloned()
}

fn insert(socket: Arc<Socket>) -> RawFd {
    let fd = socket.fd();
    TABLE.write().insert(fd, socket);
    fd
}

/// A socket, returned by [`find`]. It stays valid after its number is closed.
///
/// The methods that send and receive take `flags` as `send(2)` and `recv(2)` do. MSG_PEEK,
/// MSG_DONTWAIT and MSG_WAITALL have an effect; other flags are ignored.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    domain: i32,
    nonblocking: AtomicBool,
    descriptor_flags: AtomicI32,
    /// Id of the process that created the socket. In a forked child it differs from the own id.
    pid: u32,
}

#[derive(Debug)]
enum Kind {
    Stream(Stream),
    Datagram(Datagram),
}

impl Socket {
    /// Creates a socket, and registers it with the background thread if needed.
    fn new(kind: Kind, domain: i32, flags: i32) -> io::Result<Arc<Self>> {
        let close_on_exec = if flags & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        let socket = Arc::new(Self {
            kind,
            domain,
            nonblocking: AtomicBool::new(flags & libc::SOCK_NONBLOCK != 0),
            descriptor_flags: AtomicI32::new(close_on_exec),
            pid: std::process::id(),
        });
        if socket.service_due().is_some() {
            service::register(&socket)?;
        }
        Ok(socket)
    }

    /// Returns the socket's number.
    pub fn fd(&self) -> RawFd {
        of_kind!(self, socket => socket.fd())
    }

    const fn stream(&self) -> Option<&Stream> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream),
            Kind::Datagram(_) => None,
        }
    }

    /// Returns true if a call with these flags blocks.
    fn blocks(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking.load(Ordering::Relaxed)
    }

    /// Returns false in a forked child that inherited the socket.
    fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Binds to a local address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EINVAL if it is already bound, EAFNOSUPPORT.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = to_fabric(addr, self.domain)?;
        of_kind!(self, socket => socket.bind(addr))
    }

    /// Starts to accept connections. At most `backlog` wait for [`accept`].
    ///
    /// # Errors
    /// EOPNOTSUPP on a datagram socket, EINVAL if the socket is connected.
    pub fn listen(self: &Arc<Self>, backlog: i32) -> io::Result<()> {
        self.stream().ok_or_else(|| os(libc::EOPNOTSUPP))?.listen(backlog)?;
        service::register(self)
    }

    /// Connects a stream, or sets the default peer of a datagram socket.
    ///
    /// # Errors
    /// EINPROGRESS on a non-blocking socket, later EALREADY and EISCONN; ECONNREFUSED, ETIMEDOUT,
    /// EHOSTUNREACH, ENETUNREACH.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = to_fabric(addr, self.domain)?;
        match &self.kind {
            Kind::Stream(stream) => stream.connect(addr, self.blocks(0)),
            Kind::Datagram(datagram) => datagram.connect(addr),
        }
    }

    /// Ends receiving, sending or both: SHUT_RD, SHUT_WR, SHUT_RDWR.
    ///
    /// # Errors
    /// ENOTCONN, EINVAL for other values.
    pub fn shutdown(&self, how: i32) -> io::Result<()> {
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(os(libc::EINVAL)),
        };
        of_kind!(self, socket => socket.shut_down(read, write))
    }

    /// Receives into `buf`.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, ECONNRESET, EINTR.
    pub fn recv(&self, buf: &mut [u8], flags: i32) -> io::Result<usize> {
        self.recv_from(buf, flags).map(|(len, _)| len)
    }

    /// Receives into `buf`; also returns the sender.
    ///
    /// # Errors
    /// Errors of [`recv`](Self::recv).
    pub fn recv_from(&self, buf: &mut [u8], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
        self.recv_vectored(&mut [IoSliceMut::new(buf)], flags)
    }

    /// Receives into several buffers in order; also returns the sender.
    ///
    /// # Errors
    /// Errors of [`recv`](Self::recv).
    pub fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
        let wait = self.blocks(flags);
        let mut room = RecvCursor::new(bufs);
        let mode = RecvMode { wait, peek: flags & libc::MSG_PEEK != 0, all: flags & libc::MSG_WAITALL != 0 };
        match &self.kind {
            Kind::Stream(stream) => Ok((stream.recv(&mut room, mode)?, self.peer_addr().ok())),
            Kind::Datagram(datagram) => {
                let (len, from) = datagram.recv(&mut room, mode)?;
                Ok((len, from.map(|from| to_program(from, self.domain))))
            }
        }
    }

    /// Sends `buf`. On a blocking stream, returns after all bytes are posted.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, EPIPE after a shutdown of sending, ECONNRESET, EDESTADDRREQ, EMSGSIZE,
    /// EINTR.
    pub fn send(&self, buf: &[u8], flags: i32) -> io::Result<usize> {
        self.send_to(buf, flags, None)
    }

    /// Sends `buf`; a datagram socket sends it to `to`.
    ///
    /// # Errors
    /// Errors of [`send`](Self::send); EISCONN for a stream with an address.
    pub fn send_to(&self, buf: &[u8], flags: i32, to: Option<SocketAddr>) -> io::Result<usize> {
        self.send_vectored(&[IoSlice::new(buf)], flags, to)
    }

    /// Sends several buffers in order; a datagram socket sends them as one message to `to`.
    ///
    /// # Errors
    /// Errors of [`send_to`](Self::send_to).
    pub fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: i32, to: Option<SocketAddr>) -> io::Result<usize> {
        let wait = self.blocks(flags);
        let mut data = SendCursor::new(bufs);
        match &self.kind {
            Kind::Stream(_) if to.is_some() => Err(os(libc::EISCONN)),
            Kind::Stream(stream) => stream.send(&mut data, wait),
            Kind::Datagram(datagram) => {
                let to = to.map(|to| to_fabric(to, self.domain)).transpose()?;
                datagram.send(&mut data, to, wait)
            }
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = of_kind!(self, socket => socket.local_addr());
        Ok(addr.map_or_else(|| unspecified(self.domain), |addr| to_program(addr, self.domain)))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let addr = of_kind!(self, socket => socket.peer_addr()?);
        Ok(to_program(addr, self.domain))
    }

    /// Sets an option from the bytes of `setsockopt(2)`.
    ///
    /// # Errors
    /// EINVAL for too few bytes or in a wrong state; ENOTSUP for unknown options.
    pub fn set_option(self: &Arc<Self>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let needs_service = match &self.kind {
            Kind::Stream(stream) => stream.set_option(level, name, value)?,
            Kind::Datagram(datagram) => {
                datagram.set_option(level, name, value)?;
                false
            }
        };
        if needs_service { service::register(self) } else { Ok(()) }
    }

    /// Returns an option as the bytes of `getsockopt(2)`, at most `room`.
    ///
    /// # Errors
    /// EINVAL if `room` is too small, ENOTSUP.
    pub fn option(&self, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        let value = match (level, name, &self.kind) {
            (libc::SOL_SOCKET, libc::SO_DOMAIN, _) => self.domain.to_ne_bytes().to_vec(),
            (libc::SOL_SOCKET, libc::SO_TYPE, Kind::Stream(_)) => libc::SOCK_STREAM.to_ne_bytes().to_vec(),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL, Kind::Stream(_)) => libc::IPPROTO_TCP.to_ne_bytes().to_vec(),
            (_, _, Kind::Stream(stream)) => stream.option(level, name)?,
            (_, _, Kind::Datagram(datagram)) => datagram.option(level, name, room)?,
        };
        if value.len() > room { Err(os(libc::EINVAL)) } else { Ok(value) }
    }

    /// Returns the flags of F_GETFL: O_RDWR, and O_NONBLOCK on a non-blocking socket.
    pub fn status_flags(&self) -> i32 {
        libc::O_RDWR | if self.nonblocking.load(Ordering::Relaxed) { libc::O_NONBLOCK } else { 0 }
    }

    /// Sets the flags of F_SETFL. Only O_NONBLOCK has an effect.
    pub fn set_status_flags(&self, flags: i32) {
        self.nonblocking.store(flags & libc::O_NONBLOCK != 0, Ordering::Relaxed);
    }

    /// Returns the flags of F_GETFD.
    pub fn descriptor_flags(&self) -> i32 {
        self.descriptor_flags.load(Ordering::Relaxed)
    }

    /// Sets the flags of F_SETFD.
    pub fn set_descriptor_flags(&self, flags: i32) {
        self.descriptor_flags.store(flags & libc::FD_CLOEXEC, Ordering::Relaxed);
    }

    /// Returns the protection domain of a connected stream, for registering memory for
    /// [`iomap`](Self::iomap).
    ///
    /// # Errors
    /// EINVAL for a stream that is not connected and for a datagram socket.
    pub fn protection_domain(&self) -> io::Result<ProtectionDomain> {
        self.stream().ok_or_else(|| os(libc::EINVAL))?.protection_domain()
    }

    /// Maps registered memory at `offset`, or at its address for -1; returns the offset. If
    /// `shared`, the peer can write to it, and learns of the mapping before the next bytes of the
    /// stream. Otherwise the memory only stays registered.
    ///
    /// # Errors
    /// EINVAL if the socket is not connected; ENOMEM if the peer's table is full, whose length is
    /// its RDMA_IOMAPSIZE.
    pub fn iomap(&self, region: MemoryRegion, shared: bool, offset: i64) -> io::Result<i64> {
        self.stream().ok_or_else(|| os(libc::EINVAL))?.iomap(region, shared, offset)
    }

    /// Removes the mapping of this memory.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub fn iounmap(&self, addr: usize, len: usize) -> io::Result<()> {
        self.stream().ok_or_else(|| os(libc::EINVAL))?.iounmap(addr, len)
    }

    /// Writes `buf` to the peer's mapping at `offset`, in order with the bytes of the stream.
    /// Returns the number of posted bytes, which is less than `buf` has if no mapping covers the
    /// rest.
    ///
    /// # Errors
    /// Errors of [`send`](Self::send).
    pub fn iowrite(&self, buf: &[u8], offset: i64, flags: i32) -> io::Result<usize> {
        let stream = self.stream().ok_or_else(|| os(libc::EINVAL))?;
        let offset = u64::try_from(offset).map_err(|_| os(libc::EINVAL))?;
        let bufs = [IoSlice::new(buf)];
        stream.iowrite(&mut SendCursor::new(&bufs), offset, self.blocks(flags))
    }
}

impl Serviced for Socket {
    fn service_due(&self) -> Option<ServiceDue> {
        if self.is_own() { of_kind!(self, socket => socket.service_due()) } else { None }
    }

    fn serve(&self, now: Instant) {
        match &self.kind {
            Kind::Stream(stream) => stream.serve(now),
            Kind::Datagram(datagram) => datagram.serve(),
        }
    }
}

impl Source for Socket {
    fn ready(&self, events: i16) -> i16 {
        of_kind!(self, socket => socket.ready(events))
    }

    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>) {
        of_kind!(self, socket => socket.watch(waker, fds))
    }

    fn unwatch(&self, waker: &Waker) {
        of_kind!(self, socket => socket.unwatch(waker))
    }
}
