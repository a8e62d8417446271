//! The system calls on sockets that no safe crate offers whole. **Unsafe room.**
//!
//! Each function is one call with its pointers made from slices that outlive it. Knows no packets
//! and no policy.
//!
//! Datagrams, wake-ups and looks for names do not go through the C library, whose functions let a
//! thread be cancelled inside of them (`man 7 pthreads`), where it may hold our locks, and take 70
//! instructions more.

use crate::cmsg::{CAPACITY, Control};
use libc::{c_int, c_void, socklen_t};
use roxe_wire::Gid;
use std::io;
use std::mem::{offset_of, size_of, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Watches full send buffers of sockets until they have room again: an epoll descriptor of its own,
/// which becomes readable then.
#[derive(Debug)]
pub struct SendRoom(OwnedFd);

impl SendRoom {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: just opened, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Tells once, as soon as `socket` has room.
    pub(super) fn watch(&self, socket: RawFd) -> io::Result<()> {
        let events = (libc::EPOLLOUT | libc::EPOLLONESHOT).cast_unsigned();
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: both calls only read `event`, which lives on this frame.
        let mut set = |how| check(unsafe { libc::epoll_ctl(self.fd(), how, socket, &raw mut event) });
        // Nearly always one that was watched before.
        set(libc::EPOLL_CTL_MOD).or_else(|_| set(libc::EPOLL_CTL_ADD)).map(drop)
    }

    /// Has told of what there is room for by now; sockets that are full once more are watched anew.
    pub fn clear(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event; the call does not wait.
        while unsafe { libc::epoll_wait(self.fd(), &raw mut event, 1, 0) } == 1 {}
    }
}

/// Which of several sockets have something to read.
#[derive(Debug, Default)]
pub struct Readiness(Vec<libc::pollfd>);

impl Readiness {
    /// Looks at sockets, all with one call that does not wait. Where that fails, each may have
    /// something.
    pub fn look(&mut self, fds: impl Iterator<Item = RawFd>) {
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

    /// Whether this one had something, or an error, at the last look. Nothing is known of others.
    pub fn has(&self, fd: RawFd) -> bool {
        self.0.iter().any(|entry| entry.fd == fd && entry.revents != 0)
    }
}

/// Sets an option of a socket to a value as the kernel wants it; what the value points to has to
/// outlive the call.
pub(super) fn set<T: 'static>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: as many bytes as the call is told, which only reads them and what they point to.
    let rc = unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), size_of::<T>() as socklen_t) };
    check(rc).map(drop)
}

/// Sets an `int` option of a socket.
pub(super) fn set_option(fd: RawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// The first bytes of an option of a socket.
fn get<const N: usize>(fd: RawFd, level: c_int, name: c_int) -> io::Result<[u8; N]> {
    let (mut value, mut len) = ([0; N], N as socklen_t);
    // SAFETY: the call writes at most `len` bytes to `value`, and how many they were to `len`; both
    // are on this frame.
    let rc = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    check(rc).map(|_| value)
}

/// How many datagrams the system has dropped before they reached the queue of a socket
/// (`SK_MEMINFO_DROPS`).
pub(super) fn drops(fd: RawFd) -> io::Result<u32> {
    /// Index of the number of drops among those of `SO_MEMINFO` (<linux/sock_diag.h>).
    const DROPS: usize = 8;
    let numbers = get::<{ 4 * (DROPS + 1) }>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(numbers.last_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
}

/// Sends multicast of an IPv4 socket out of the interface `ifindex`.
pub(super) fn set_multicast_if_v4(fd: RawFd, ifindex: u32) -> io::Result<()> {
    let any = libc::in_addr { s_addr: 0 };
    let choice = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: ifindex.cast_signed() };
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &choice)
}

/// Lets a netlink socket hear of the multicast groups in the mask `groups`.
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

/// `struct sock_fprog` without padding: the kernel copies all of it, and valgrind reports bytes
/// that nobody wrote.
#[repr(C)]
struct FilterProgram {
    len: u16,
    zero: [u16; size_of::<*mut libc::sock_filter>() / 2 - 1],
    filter: *mut libc::sock_filter,
}

const _: () = assert!(size_of::<FilterProgram>() == size_of::<libc::sock_fprog>());
const _: () = assert!(offset_of!(FilterProgram, filter) == offset_of!(libc::sock_fprog, filter));

/// Attaches a classic BPF program; the kernel copies it. What for is the socket option `name`.
pub(super) fn attach_filter(fd: RawFd, name: c_int, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    set(fd, libc::SOL_SOCKET, name, &FilterProgram { len, zero: Default::default(), filter: program.as_mut_ptr() })
}

/// Takes away what was attached with `SO_ATTACH_FILTER`.
pub(super) fn detach_filter(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}

/// Where a datagram goes.
pub(super) enum Name<'a> {
    /// To the peer of a connected socket.
    Peer,
    /// To any address.
    Any(&'a socket2::SockAddr),
    /// To one of IPv4.
    V4(libc::sockaddr_in),
    /// To one of IPv6.
    V6(libc::sockaddr_in6),
}

impl Name<'_> {
    /// The address as the system call takes it: pointer and length.
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

/// Receives one datagram without waiting: its length and the address of the sender (zero for Unix
/// sockets). `None`: nothing there.
#[inline]
pub(super) fn recv(fd: RawFd, buf: &mut [u8], control: &mut Control) -> io::Result<Option<(usize, Gid, u16)>> {
    // The longest of those that are looked at; of others the kernel writes the beginning.
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

/// Makes `name` the peer of a datagram socket. Does not wait.
pub(super) fn connect(fd: RawFd, name: &socket2::SockAddr) -> io::Result<()> {
    // SAFETY: the name is live and has this length, and the call only reads it.
    let rc = unsafe { libc::syscall(libc::SYS_connect, fd, name.as_ptr(), name.len()) };
    check(rc).map(drop)
}

/// Takes possession of the descriptors that came with a message. Ask once: whoever does not want
/// them drops them.
pub(super) fn take_descriptors(control: &Control) -> Vec<OwnedFd> {
    let messages = control.iter().filter(|(level, kind, _)| (*level, *kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS));
    let fds = messages.flat_map(|(_, _, data)| data.chunks_exact(size_of::<RawFd>()));
    // SAFETY: the kernel has just opened these descriptors for us, and nobody else knows of them.
    fds.filter_map(|fd| Some(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(fd.try_into().ok()?)) })).collect()
}

/// Another descriptor of the same file.
pub(super) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let new = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(new as RawFd) })
}

/// Adds one to an eventfd. Fails only near 2^64, and there is nobody to tell.
pub fn wake(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes are read from `one`.
    unsafe { libc::syscall(libc::SYS_write, fd, one.as_ptr(), one.len()) };
}

/// Whether reading and writing may wait.
pub(super) fn may_block(fd: RawFd) -> io::Result<bool> {
    // SAFETY: takes no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK as usize == 0)
}

/// IP address and UDP port of a sender; zero for other families.
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

/// The user that the kernel says sent a datagram (`SO_PASSCRED`).
pub(super) fn credentials(control: &Control) -> Option<libc::uid_t> {
    let is_ours = |&(level, kind, data): &(c_int, c_int, &[u8])| {
        level == libc::SOL_SOCKET && kind == libc::SCM_CREDENTIALS && data.len() == size_of::<libc::ucred>()
    };
    let (_, _, data) = control.iter().find(is_ours)?;
    // struct ucred: pid, uid, gid; 32 bits each.
    let uid = data.get(4..8)?;
    Some(libc::uid_t::from_ne_bytes(uid.try_into().ok()?))
}

/// The number of the network namespace of a socket, which no other one has until the system starts
/// again. ENOPROTOOPT: the kernel is older than Linux 5.14.
pub(super) fn namespace_cookie(fd: RawFd) -> io::Result<u64> {
    /// From `<asm-generic/socket.h>`.
    const SO_NETNS_COOKIE: c_int = 71;
    get(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// The MTU of the path of a connected socket, in bytes with the IP header.
pub(super) fn path_mtu(fd: RawFd, is_ipv4: bool) -> io::Result<u32> {
    let (level, name) = if is_ipv4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    get(fd, level, name).map(u32::from_ne_bytes)
}

/// Why the last call of this thread failed, without an [`io::Error`], which would have to be
/// dropped after every empty poll.
#[inline]
fn errno() -> c_int {
    // SAFETY: the address is valid for as long as this thread exists.
    unsafe { *libc::__errno_location() }
}

/// A system call's result: what it counted, or `errno`.
pub(super) fn check(rc: impl TryInto<usize>) -> io::Result<usize> {
    rc.try_into().map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn one_look_tells_which_of_several_sockets_have_something_to_read() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let fds = [a.as_raw_fd(), b.as_raw_fd(), udp.as_raw_fd()];
        let mut readiness = Readiness::default();
        let mut seen = || {
            readiness.look(fds.into_iter());
            fds.map(|fd| readiness.has(fd))
        };
        assert_eq!(seen(), [false; 3]);
        a.send(b"x").unwrap();
        assert_eq!(seen(), [false, true, false]);
        udp.send_to(b"x", udp.local_addr().unwrap()).unwrap();
        assert_eq!(seen(), [false, true, true]);
        b.recv(&mut [0; 8]).unwrap();
        udp.recv(&mut [0; 8]).unwrap();
        assert_eq!(seen(), [false; 3], "it is over with what was seen before");
    }
}
