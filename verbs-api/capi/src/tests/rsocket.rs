//! What the calls of `rsocket.h` answer to numbers that are no rsockets, and to pointers and lengths that make no sense.

use super::*;
use crate::rsocket::*;
use libc::{iovec, msghdr, sockaddr, sockaddr_in, socklen_t};
use std::os::fd::AsRawFd;

/// Whether a call answered -1 with this errno.
fn fails(rc: impl Into<i64>, with: c_int) -> bool {
    (rc.into(), errno()) == (-1, with)
}

/// A number, closed when dropped.
struct Rsocket(c_int);

impl Rsocket {
    fn new(kind: c_int) -> Self {
        // SAFETY: numbers only.
        let fd = unsafe { rsocket(libc::AF_INET, kind, 0) };
        assert!(fd >= 0, "errno {}", errno());
        Self(fd)
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        // SAFETY: a number of our own, closed once.
        assert_eq!(unsafe { rclose(self.0) }, 0);
    }
}

/// `127.0.0.1:port`, with its length.
fn loopback(port: u16) -> (sockaddr_in, socklen_t) {
    // SAFETY: all zero is an address of no family.
    let mut addr: sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_port = port.to_be();
    addr.sin_addr.s_addr = 0x7f00_0001u32.to_be();
    (addr, size_of::<sockaddr_in>() as socklen_t)
}

#[test]
fn a_number_that_is_no_rsocket_is_ebadf() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut byte = 0u8;
    let buf = (&raw mut byte).cast::<c_void>();
    let (addr, len) = loopback(9);
    let addr = (&raw const addr).cast::<sockaddr>();
    // SAFETY: variables of the right sizes; the number is looked up first.
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
fn lists_are_bounded() {
    let stream = Rsocket::new(libc::SOCK_STREAM);
    let mut byte = 0u8;
    let part = |len| iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: len };
    let (long, huge) = (vec![part(1); 1025], [part(usize::MAX), part(2)]);
    // SAFETY: lists of these lengths; too long ones are refused before their buffers are looked at.
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
