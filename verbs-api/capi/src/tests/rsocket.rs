//! Calls of `rsocket.h` with foreign descriptors and invalid pointers and lengths.

use super::*;
use crate::rsocket::*;
use libc::{iovec, msghdr, pollfd, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::os::fd::AsRawFd;

/// Returns true if a call returned -1 with this errno.
fn fails(rc: impl Into<i64>, with: c_int) -> bool {
    (rc.into(), errno()) == (-1, with)
}

/// A socket, closed on drop.
struct Rsocket(c_int);

impl Rsocket {
    fn new(kind: c_int) -> Self {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { rsocket(libc::AF_INET, kind, 0) };
        assert!(fd >= 0, "errno {}", errno());
        Self(fd)
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        // SAFETY: the call takes a number only.
        assert_eq!(unsafe { rclose(self.0) }, 0);
    }
}

/// Returns `127.0.0.1:port` and its length.
fn loopback(port: u16) -> (sockaddr_in, socklen_t) {
    // SAFETY: all zeros are a valid `sockaddr_in`: numbers only.
    let mut addr: sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_port = port.to_be();
    addr.sin_addr.s_addr = 0x7f00_0001u32.to_be();
    (addr, size_of::<sockaddr_in>() as socklen_t)
}

#[test]
fn foreign_descriptor_is_ebadf() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut byte = 0u8;
    let buf = (&raw mut byte).cast::<c_void>();
    let (addr, len) = loopback(9);
    let addr = (&raw const addr).cast::<sockaddr>();
    // SAFETY: the calls look the descriptor up before they follow any pointer.
    unsafe {
        let mut message: msghdr = MaybeUninit::zeroed().assume_init();
        for fd in [-1, file.as_raw_fd(), c_int::MAX] {
            let calls = [
                i64::from(rbind(fd, addr, len)),
                i64::from(rlisten(fd, 1)),
                i64::from(raccept(fd, null_mut(), null_mut())),
                i64::from(rconnect(fd, addr, len)),
                i64::from(rshutdown(fd, 2)),
                i64::from(rclose(fd)),
                rrecv(fd, buf, 1, 0) as i64,
                rrecvfrom(fd, buf, 1, 0, null_mut(), null_mut()) as i64,
                rrecvmsg(fd, &raw mut message, 0) as i64,
                rread(fd, buf, 1) as i64,
                rreadv(fd, ptr::null(), 0) as i64,
                rsend(fd, buf, 1, 0) as i64,
                rsendto(fd, buf, 1, 0, addr, len) as i64,
                rsendmsg(fd, &raw const message, 0) as i64,
                rwrite(fd, buf, 1) as i64,
                rwritev(fd, ptr::null(), 0) as i64,
                i64::from(rgetpeername(fd, null_mut(), null_mut())),
                i64::from(rgetsockname(fd, null_mut(), null_mut())),
                i64::from(rsetsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, buf, 1)),
                i64::from(rgetsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, buf, null_mut())),
                i64::from(rfcntl(fd, libc::F_GETFL, 0)),
                riomap(fd, buf, 1, libc::PROT_WRITE, 0, -1),
                i64::from(riounmap(fd, buf, 1)),
                riowrite(fd, buf, 1, 0, 0) as i64,
            ];
            assert!(calls.iter().all(|&rc| fails(rc, libc::EBADF)), "{fd}: {calls:?}, errno {}", errno());
        }
    }
}

#[test]
fn unsupported_socket_types_are_refused() {
    let refused = [
        (libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0),
        (libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0),
        (libc::AF_INET, libc::SOCK_RAW, 0),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP),
        (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_TCP),
        (libc::AF_UNIX, libc::SOCK_STREAM, 0),
    ];
    for (domain, kind, protocol) in refused {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { rsocket(domain, kind, protocol) };
        assert!(fails(fd, libc::EOPNOTSUPP), "{domain} {kind} {protocol}: {fd}, errno {}", errno());
    }
}

#[test]
fn address_shorter_than_its_family_is_refused() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let (addr, len) = loopback(0);
    let addr = (&raw const addr).cast::<sockaddr>();
    // SAFETY: the addresses are local variables, and no passed length is longer.
    unsafe {
        for call in [rbind, rconnect] {
            assert!(fails(call(stream.0, ptr::null(), len), libc::EFAULT));
            assert!(fails(call(stream.0, addr, 0), libc::EINVAL));
            assert!(fails(call(stream.0, addr, len - 1), libc::EINVAL));
        }
        let mut other: sockaddr_in6 = MaybeUninit::zeroed().assume_init();
        for (family, len, answer) in [
            (libc::AF_UNIX, size_of::<sockaddr_in6>(), libc::EAFNOSUPPORT),
            (libc::AF_INET6, size_of::<sockaddr_in6>() - 1, libc::EINVAL),
        ] {
            other.sin6_family = family as u16;
            assert!(fails(rbind(stream.0, (&raw const other).cast(), len as socklen_t), answer));
        }
        assert!(fails(rgetsockname(stream.0, null_mut(), null_mut()), libc::EFAULT));
    }
}

#[test]
fn getsockname_truncates_to_the_buffer() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let (addr, len) = loopback(0);
    // SAFETY: the pointers are to local variables of the passed sizes.
    unsafe {
        assert_eq!(rbind(stream.0, (&raw const addr).cast(), len), 0, "errno {}", errno());
        let mut found: sockaddr_in = MaybeUninit::zeroed().assume_init();
        let mut addr_len = 4;
        assert_eq!(rgetsockname(stream.0, (&raw mut found).cast(), &raw mut addr_len), 0);
        assert_eq!(addr_len as usize, size_of::<sockaddr_in>(), "the full length");
        assert_eq!(
            (found.sin_family, found.sin_addr.s_addr),
            (libc::AF_INET as u16, 0),
            "4 bytes hold the family and the port only"
        );
        assert_ne!(found.sin_port, 0, "a port was chosen");
        addr_len = 0;
        assert_eq!(rgetsockname(stream.0, null_mut(), &raw mut addr_len), 0);
        assert_eq!(addr_len as usize, size_of::<sockaddr_in>());
        assert_eq!(rgetsockname(stream.0, (&raw mut found).cast(), &raw mut addr_len), 0);
        assert_eq!(found.sin_addr.s_addr, addr.sin_addr.s_addr);
    }
}

#[test]
fn null_buffer_is_efault() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let hole = iovec { iov_base: null_mut(), iov_len: 1 };
    // SAFETY: the calls check for NULL before they follow any pointer; the list has one entry.
    unsafe {
        let mut message: msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = (&raw const hole).cast_mut();
        message.msg_iovlen = 1;
        let calls = [
            rrecv(stream.0, null_mut(), 1, 0),
            rsend(stream.0, ptr::null(), 1, 0),
            rread(stream.0, null_mut(), 1),
            rwrite(stream.0, ptr::null(), 1),
            rreadv(stream.0, ptr::null(), 1),
            rwritev(stream.0, ptr::null(), 1),
            rreadv(stream.0, &raw const hole, 1),
            rwritev(stream.0, &raw const hole, 1),
            rrecvmsg(stream.0, null_mut(), 0),
            rsendmsg(stream.0, ptr::null(), 0),
            rrecvmsg(stream.0, &raw mut message, 0),
            rsendmsg(stream.0, &raw const message, 0),
            riowrite(stream.0, ptr::null(), 1, 0, 0),
        ];
        assert!(calls.iter().all(|&rc| fails(rc as i64, libc::EFAULT)), "{calls:?}, errno {}", errno());
        assert!(fails(rsetsockopt(stream.0, libc::SOL_SOCKET, libc::SO_REUSEADDR, ptr::null(), 4), libc::EFAULT));
        assert!(fails(
            rgetsockopt(stream.0, libc::SOL_SOCKET, libc::SO_REUSEADDR, null_mut(), null_mut()),
            libc::EFAULT
        ));
        assert!(fails(rpoll(null_mut(), 1, 0), libc::EFAULT));
        assert_eq!(rpoll(null_mut(), 0, 0), 0);
    }
}

#[test]
fn too_long_buffer_lists_are_refused() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let mut byte = 0u8;
    let part = |len| iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: len };
    let (long, huge) = (vec![part(1); 1025], [part(usize::MAX), part(2)]);
    // SAFETY: the lists have the passed lengths, and the calls refuse them before they read a
    // buffer.
    unsafe {
        for call in [rreadv, rwritev] {
            assert!(fails(call(stream.0, long.as_ptr(), 1025) as i64, libc::EINVAL));
            assert!(fails(call(stream.0, long.as_ptr(), -1) as i64, libc::EINVAL));
            assert!(fails(call(stream.0, huge.as_ptr(), 2) as i64, libc::EINVAL));
        }
        let mut message: msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = long.as_ptr().cast_mut();
        message.msg_iovlen = long.len();
        assert!(fails(rrecvmsg(stream.0, &raw mut message, 0) as i64, libc::EMSGSIZE));
        assert!(fails(rsendmsg(stream.0, &raw const message, 0) as i64, libc::EMSGSIZE));
        message.msg_control = (&raw mut byte).cast();
        message.msg_controllen = 1;
        assert!(fails(rsendmsg(stream.0, &raw const message, 0) as i64, libc::EOPNOTSUPP));
    }
}

#[test]
fn fcntl_keeps_flags_and_refuses_other_commands() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    // SAFETY: the call takes numbers only.
    unsafe {
        assert_eq!(rfcntl(stream.0, libc::F_GETFL, 0), libc::O_RDWR);
        assert_eq!(rfcntl(stream.0, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        assert_eq!(rfcntl(stream.0, libc::F_GETFL, 0), libc::O_RDWR | libc::O_NONBLOCK);
        assert_eq!(rfcntl(stream.0, libc::F_SETFD, libc::FD_CLOEXEC.into()), 0);
        assert_eq!(rfcntl(stream.0, libc::F_GETFD, 0), libc::FD_CLOEXEC);
        assert!(fails(rfcntl(stream.0, libc::F_DUPFD, 0), libc::EOPNOTSUPP));
        assert!(fails(riomap(stream.0, null_mut(), 1, libc::PROT_READ, 0, -1), libc::EINVAL));
        assert!(fails(riomap(stream.0, null_mut(), 1, libc::PROT_WRITE, 0, -1), libc::EFAULT));
    }
}

#[test]
fn getsockopt_checks_the_buffer_size() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let (mut value, mut len) = (1, size_of::<c_int>() as socklen_t);
    // SAFETY: the pointers are to local variables; no passed length is longer.
    unsafe {
        let set = |level, name, value: *const c_int, len| rsetsockopt(stream.0, level, name, value.cast(), len);
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const value, len), 0);
        assert!(fails(set(libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const value, 3), libc::EINVAL));
        assert!(fails(set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &raw const value, len), libc::EOPNOTSUPP));
        value = 0;
        let get = |name, value: *mut c_int, len| rgetsockopt(stream.0, libc::SOL_SOCKET, name, value.cast(), len);
        assert_eq!(get(libc::SO_REUSEADDR, &raw mut value, &raw mut len), 0);
        assert_eq!((value, len as usize), (1, size_of::<c_int>()));
        assert!(fails(get(libc::SO_RCVTIMEO, &raw mut value, &raw mut len), libc::EOPNOTSUPP));
    }
}

#[test]
fn poll_and_select_accept_ordinary_descriptors() {
    let (reader, writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut &writer, b"x").unwrap();
    let entry = |fd, events| pollfd { fd, events, revents: 0 };
    let mut entries =
        [entry(reader.as_raw_fd(), libc::POLLIN), entry(-1, libc::POLLIN), entry(writer.as_raw_fd(), libc::POLLOUT)];
    // SAFETY: the array has the passed length; the set and the time are local variables.
    unsafe {
        assert_eq!(rpoll(entries.as_mut_ptr(), 3, -1), 2);
        assert_eq!(entries.map(|entry| entry.revents), [libc::POLLIN, 0, libc::POLLOUT]);
        let mut set: libc::fd_set = MaybeUninit::zeroed().assume_init();
        libc::FD_SET(reader.as_raw_fd(), &raw mut set);
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 1 };
        let (nfds, both) = (reader.as_raw_fd() + 1, &raw mut set);
        assert_eq!(rselect(nfds, both, null_mut(), both, &raw mut time), 1);
        time.tv_sec = -1;
        assert!(fails(rselect(0, null_mut(), null_mut(), null_mut(), &raw mut time), libc::EINVAL));
        assert!(fails(rselect(1025, both, null_mut(), null_mut(), null_mut()), libc::EINVAL));
    }
}
