//! System calls on sockets that no safe crate offers completely. Unsafe code: these system calls.
//!
//! Sends, receives, wake-ups and name lookups bypass the C library: its functions are cancellation
//! points (`man 7 pthreads`), at which a thread may hold our locks.

use crate::cmsg::{CAPACITY, Control};
use libc::{c_int, c_void, socklen_t};
use roxe_wire::Gid;
use std::io;
use std::mem::{offset_of, size_of, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An epoll instance of sockets with full send buffers; it becomes readable when one has room.
#[derive(Debug)]
pub struct SendRoom(OwnedFd);

impl SendRoom {
    /// Watches no socket yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: just opened, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Returns the descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reports once when `socket` has room.
    pub(super) fn watch(&self, socket: RawFd) -> io::Result<()> {
        let events = (libc::EPOLLOUT | libc::EPOLLONESHOT).cast_unsigned();
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: both calls only read `event`, which lives on this frame.
        let mut set = |how| check(unsafe { libc::epoll_ctl(self.fd(), how, socket, &raw mut event) });
        // Usually watched before.
        set(libc::EPOLL_CTL_MOD).or_else(|_| set(libc::EPOLL_CTL_ADD)).map(drop)
    }

    /// Clears reported events. Sockets that are full again have to be watched again.
    pub fn clear(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event; the call does not wait.
        while unsafe { libc::epoll_wait(self.fd(), &raw mut event, 1, 0) } == 1 {}
    }
}

/// Readability of several sockets.
#[derive(Debug, Default)]
pub struct Readiness(Vec<libc::pollfd>);

impl Readiness {
    /// Polls sockets with one call that does not block. If that fails, each counts as readable.
    pub fn poll(&mut self, fds: impl Iterator<Item = RawFd>) {
        self.0.clear();
        self.0.extend(fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (mask, mask_len) = (std::ptr::null::<libc::sigset_t>(), 0_usize);
        // SAFETY: there are as many entries as the call is told; it reads and writes them, and
        // reads `now`, which is on this frame. It gets no signal mask.
        let rc = unsafe {
            libc::syscall(libc::SYS_ppoll, self.0.as_mut_ptr(), self.0.len(), &raw const now, mask, mask_len)
        };
        if rc < 0 {
            self.0.iter_mut().for_each(|entry| entry.revents = libc::POLLIN);
        }
    }

    /// Returns true if `fd` was readable or had an error at the last poll.
    pub fn has(&self, fd: RawFd) -> bool {
        self.0.iter().any(|entry| entry.fd == fd && entry.revents != 0)
    }
}

/// Sets a socket option; memory that `value` points to has to outlive the call.
pub(super) fn set<T: 'static>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` has the size that the call gets. The kernel only reads it and what it points
    // to.
    let rc = unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), size_of::<T>() as socklen_t) };
    check(rc).map(drop)
}

pub(super) fn set_option(fd: RawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set(fd, level, name, &value)
}

fn get<const N: usize>(fd: RawFd, level: c_int, name: c_int) -> io::Result<[u8; N]> {
    let (mut value, mut len) = ([0; N], N as socklen_t);
    // SAFETY: the call writes at most `len` bytes to `value`, and how many they were to `len`; both
    // are on this frame.
    let rc = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    check(rc).map(|_| value)
}

/// Returns the number of datagrams that the kernel has dropped before a socket's queue
/// (`SK_MEMINFO_DROPS`).
pub(super) fn drops(fd: RawFd) -> io::Result<u32> {
    /// Index of the drops in `SO_MEMINFO` (<linux/sock_diag.h>).
    const DROPS: usize = 8;
    let numbers = get::<{ 4 * (DROPS + 1) }>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(numbers.last_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
}

/// Sends multicast of an IPv4 socket through the interface `ifindex`.
pub(super) fn set_multicast_if_v4(fd: RawFd, ifindex: u32) -> io::Result<()> {
    let any = libc::in_addr { s_addr: 0 };
    let choice = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: ifindex.cast_signed() };
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &choice)
}

/// Subscribes a netlink socket to the multicast groups in the mask `groups`.
pub(super) fn bind_netlink(fd: RawFd, groups: c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sockaddr_nl`: the kernel chooses the number of the socket.
    let mut name: libc::sockaddr_nl = unsafe { zeroed() };
    name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    name.nl_groups = groups.cast_unsigned();
    let size = size_of_val(&name) as socklen_t;
    // SAFETY: `name` lives on this frame, and the call only reads it.
    let rc = unsafe { libc::bind(fd, (&raw const name).cast(), size) };
    check(rc).map(drop)
}

/// `struct sock_fprog` with explicit padding: the kernel copies the padding too, and valgrind
/// reports uninitialized bytes.
#[repr(C)]
struct FilterProgram {
    len: u16,
    zero: [u16; size_of::<*mut libc::sock_filter>() / 2 - 1],
    filter: *mut libc::sock_filter,
}

const _: () = assert!(size_of::<FilterProgram>() == size_of::<libc::sock_fprog>());
const _: () = assert!(offset_of!(FilterProgram, filter) == offset_of!(libc::sock_fprog, filter));

/// Attaches a classic BPF program for the socket option `name`; the kernel copies it.
pub(super) fn attach_filter(fd: RawFd, name: c_int, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    set(fd, libc::SOL_SOCKET, name, &FilterProgram { len, zero: Default::default(), filter: program.as_mut_ptr() })
}

pub(super) enum Name<'a> {
    /// The peer of a connected socket.
    Peer,
    Any(&'a socket2::SockAddr),
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Name<'_> {
    /// Returns pointer and length for the system call.
    fn raw(&self) -> (*const c_void, socklen_t) {
        match self {
            Self::Peer => (std::ptr::null(), 0),
            Self::Any(name) => (name.as_ptr().cast(), name.len()),
            Self::V4(name) => ((&raw const *name).cast(), size_of_val(name) as socklen_t),
            Self::V6(name) => ((&raw const *name).cast(), size_of_val(name) as socklen_t),
        }
    }
}

/// Sends the concatenation of `parts` as one datagram to `name`.
#[inline]
pub(super) fn send(
    fd: RawFd,
    name: &Name<'_>,
    parts: [&[u8]; 2],
    control: &Control,
    flags: c_int,
) -> io::Result<usize> {
    let mut iov = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: an all-zero msghdr is valid: no name, no data, no control messages.
    let mut header: libc::msghdr = unsafe { zeroed() };
    let (bytes, len) = name.raw();
    (header.msg_name, header.msg_namelen) = (bytes.cast_mut(), len);
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = iov.len() as _;
    if !control.as_bytes().is_empty() {
        header.msg_control = control.as_bytes().as_ptr().cast_mut().cast();
        header.msg_controllen = control.as_bytes().len() as _;
    }
    // SAFETY: name, data and control are live slices with their true lengths; sendmsg only reads
    // them.
    let rc = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, flags | libc::MSG_NOSIGNAL) };
    check(rc)
}

/// Receives one datagram without blocking: its length and the sender's address (zero for Unix
/// sockets). `None` if there is none.
#[inline]
pub(super) fn recv(fd: RawFd, buf: &mut [u8], control: &mut Control) -> io::Result<Option<(usize, Gid, u16)>> {
    // Large enough for the families that are parsed; longer addresses are truncated.
    // SAFETY: all-zero is valid for both: an address of no family, and a msghdr without anything.
    let (mut name, mut header): (libc::sockaddr_in6, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of_val(&name) as socklen_t;
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_buffer().as_mut_ptr().cast();
    header.msg_controllen = CAPACITY as _;
    loop {
        // SAFETY: name, data and control are live buffers with their true lengths.
        let rc = unsafe {
            libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
        };
        if let Ok(len) = usize::try_from(rc) {
            control.set_len(header.msg_controllen as _);
            let (src, port) = parse_name(&name);
            return Ok(Some((len, src, port)));
        }
        match errno() {
            libc::EAGAIN => return Ok(None),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

pub(super) fn connect(fd: RawFd, name: &socket2::SockAddr) -> io::Result<()> {
    // SAFETY: the name is live and has this length, and the call only reads it.
    let rc = unsafe { libc::syscall(libc::SYS_connect, fd, name.as_ptr(), name.len()) };
    check(rc).map(drop)
}

/// Takes ownership of the descriptors in a message. Call once per message; dropping closes them.
pub(super) fn take_descriptors(control: &Control) -> Vec<OwnedFd> {
    let messages = control.iter().filter(|(level, kind, _)| (*level, *kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS));
    let fds = messages.flat_map(|(_, _, data)| data.chunks_exact(size_of::<RawFd>()));
    // SAFETY: the kernel has just opened these descriptors for us; they have no other owner.
    fds.filter_map(|fd| Some(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(fd.try_into().ok()?)) })).collect()
}

pub(super) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let new = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(new as RawFd) })
}

/// Adds one to an eventfd. Errors, near 2^64 only, are ignored.
pub fn wake(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes are read from `one`.
    unsafe { libc::syscall(libc::SYS_write, fd, one.as_ptr(), one.len()) };
}

/// Returns true if reads and writes may block.
pub(super) fn may_block(fd: RawFd) -> io::Result<bool> {
    // SAFETY: takes no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK as usize == 0)
}

fn parse_name(name: &libc::sockaddr_in6) -> (Gid, u16) {
    match c_int::from(name.sin6_family) {
        libc::AF_INET => {
            // SAFETY: a sockaddr_in6 is larger than a sockaddr_in, and as aligned; all fields of
            // that may hold any bits.
            let v4 = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            (Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), u16::from_be(v4.sin_port))
        }
        libc::AF_INET6 => (IpAddr::V6(Ipv6Addr::from(name.sin6_addr.s6_addr)).into(), u16::from_be(name.sin6_port)),
        _ => (Gid::default(), 0),
    }
}

/// Returns the sender's user as reported by the kernel (`SO_PASSCRED`).
pub(super) fn credentials(control: &Control) -> Option<libc::uid_t> {
    let is_ours = |&(level, kind, data): &(c_int, c_int, &[u8])| {
        level == libc::SOL_SOCKET && kind == libc::SCM_CREDENTIALS && data.len() == size_of::<libc::ucred>()
    };
    let (_, _, data) = control.iter().find(is_ours)?;
    // struct ucred: pid, uid, gid; 32 bits each.
    let uid = data.get(4..8)?;
    Some(libc::uid_t::from_ne_bytes(uid.try_into().ok()?))
}

/// Returns the network namespace cookie of a socket, unique until reboot. Fails with ENOPROTOOPT
/// before Linux 5.14.
pub(super) fn namespace_cookie(fd: RawFd) -> io::Result<u64> {
    /// From `<asm-generic/socket.h>`.
    const SO_NETNS_COOKIE: c_int = 71;
    get(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// Returns the path MTU of a connected socket in bytes, with the IP header.
pub(super) fn path_mtu(fd: RawFd, is_ipv4: bool) -> io::Result<u32> {
    let (level, name) = if is_ipv4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    get(fd, level, name).map(u32::from_ne_bytes)
}

/// Returns the errno of the last call of this thread, without an [`io::Error`] to be dropped after
/// each empty poll.
#[inline]
fn errno() -> c_int {
    // SAFETY: the address is valid for as long as this thread exists.
    unsafe { *libc::__errno_location() }
}

/// Converts the result of a system call: a count, or `errno`.
pub(super) fn check(rc: impl TryInto<usize>) -> io::Result<usize> {
    rc.try_into().map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn poll_reports_readable_sockets() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let fds = [a.as_raw_fd(), b.as_raw_fd(), udp.as_raw_fd()];
        let mut readiness = Readiness::default();
        let mut seen = || {
            readiness.poll(fds.into_iter());
            fds.map(|fd| readiness.has(fd))
        };
        assert_eq!(seen(), [false; 3]);
        a.send(b"x").unwrap();
        assert_eq!(seen(), [false, true, false]);
        udp.send_to(b"x", udp.local_addr().unwrap()).unwrap();
        assert_eq!(seen(), [false, true, true]);
        b.recv(&mut [0; 8]).unwrap();
        udp.recv(&mut [0; 8]).unwrap();
        assert_eq!(seen(), [false; 3], "emptied sockets are no longer ready");
    }
}
