//! `repoll`: epoll sets of rsockets and other descriptors.

use crate::common::{Sock, errno};
use libc::{AF_INET, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLONESHOT, EPOLLOUT, SOCK_STREAM};
use roxe_rsockets::{close, epoll_create, epoll_ctl, epoll_wait};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::{io, thread};

/// An epoll set, closed on drop.
struct Epoll(i32);

impl Epoll {
    fn new() -> Self {
        Self(epoll_create(libc::EPOLL_CLOEXEC).unwrap())
    }

    fn control(&self, op: i32, fd: i32, events: i32, data: u64) -> io::Result<()> {
        epoll_ctl(self.0, op, fd, Some(libc::epoll_event { events: events.cast_unsigned(), u64: data }))
    }

    /// Returns events and data of the ready members.
    fn wait(&self, room: usize, timeout: i32) -> Vec<(u32, u64)> {
        epoll_wait(self.0, room, timeout).unwrap().iter().map(|event| (event.events, event.u64)).collect()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.0).unwrap();
    }
}

/// Returns two connected streams.
fn pair() -> (Sock, Sock) {
    let listener = Sock::open(AF_INET, SOCK_STREAM);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let active = Sock::open(AF_INET, SOCK_STREAM);
    active.connect(listener.local_addr().unwrap()).unwrap();
    let (passive, _) = listener.accept().unwrap();
    (active, passive)
}

const READABLE: u32 = EPOLLIN.cast_unsigned();
const WRITABLE: u32 = EPOLLOUT.cast_unsigned();

#[test]
fn epoll_reports_rsockets_and_descriptors_with_data() {
    let ((a, b), (mut ours, theirs)) = (pair(), UnixStream::pair().unwrap());
    let set = Epoll::new();
    set.control(EPOLL_CTL_ADD, b.fd(), EPOLLIN, 7).unwrap();
    set.control(EPOLL_CTL_ADD, theirs.as_raw_fd(), EPOLLIN, u64::MAX).unwrap();
    assert_eq!(set.wait(8, 0), []);
    assert_eq!(a.send(b"x", 0).unwrap(), 1);
    assert_eq!(set.wait(8, -1), [(READABLE, 7)]);
    ours.write_all(b"x").unwrap();
    let mut both = set.wait(8, -1);
    both.sort_by_key(|event| event.1);
    assert_eq!(both, [(READABLE, 7), (READABLE, u64::MAX)]);
    set.control(EPOLL_CTL_MOD, b.fd(), EPOLLOUT, 8).unwrap();
    set.control(EPOLL_CTL_DEL, theirs.as_raw_fd(), 0, 0).unwrap();
    assert_eq!(set.wait(8, -1), [(WRITABLE, 8)]);
}

#[test]
fn ready_members_take_turns() {
    let ((a, b), (c, d)) = (pair(), pair());
    let set = Epoll::new();
    for (data, socket) in [(1, &b), (2, &d)] {
        set.control(EPOLL_CTL_ADD, socket.fd(), EPOLLIN, data).unwrap();
    }
    for socket in [&a, &c] {
        assert_eq!(socket.send(b"x", 0).unwrap(), 1);
    }
    while set.wait(2, -1).len() < 2 {}
    let [first, second] = [set.wait(1, -1), set.wait(1, -1)];
    assert_ne!(first, second);
}

#[test]
fn one_shot_member_is_reported_once_until_modified() {
    let (_a, b) = pair();
    let set = Epoll::new();
    set.control(EPOLL_CTL_ADD, b.fd(), EPOLLOUT | EPOLLONESHOT, 1).unwrap();
    assert_eq!(set.wait(8, -1), [(WRITABLE, 1)]);
    assert_eq!(set.wait(8, 0), []);
    set.control(EPOLL_CTL_MOD, b.fd(), EPOLLOUT | EPOLLONESHOT, 2).unwrap();
    assert_eq!(set.wait(8, -1), [(WRITABLE, 2)]);
}

#[test]
fn added_member_wakes_a_waiting_thread() {
    let (_a, b) = pair();
    let set = Epoll::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| set.wait(8, -1));
        set.control(EPOLL_CTL_ADD, b.fd(), EPOLLOUT, 3).unwrap();
        assert_eq!(waiting.join().unwrap(), [(WRITABLE, 3)]);
    });
}

#[test]
fn invalid_epoll_calls_are_refused() {
    let (a, _b) = pair();
    let set = Epoll::new();
    assert_eq!(errno(epoll_create(libc::EPOLL_CLOEXEC + 1)), libc::EINVAL);
    assert_eq!(errno(set.control(EPOLL_CTL_DEL, a.fd(), 0, 0)), libc::ENOENT);
    set.control(EPOLL_CTL_ADD, a.fd(), EPOLLIN, 0).unwrap();
    assert_eq!(errno(set.control(EPOLL_CTL_ADD, a.fd(), EPOLLIN, 0)), libc::EEXIST);
    assert_eq!(errno(epoll_ctl(set.0, EPOLL_CTL_MOD, a.fd(), None)), libc::EFAULT);
    assert_eq!(errno(set.control(0, a.fd(), EPOLLIN, 0)), libc::EINVAL);
    assert_eq!(errno(epoll_wait(a.fd(), 1, 0)), libc::EBADF);
}
