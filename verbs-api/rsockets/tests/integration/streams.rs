//! Stream sockets over the loopback device, with both ends in this process: results and errors of
//! each call.

use crate::common::{Sock, TIMEOUT_MS, errno, has_ipv6};
use libc::{
    AF_INET, AF_INET6, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, SHUT_RD,
    SHUT_RDWR, SHUT_WR, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET,
};
use roxe::Access;
use roxe_rsockets::{PollFd, RDMA_IOMAPSIZE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, accept, poll, select};
use std::fs;
use std::io::{IoSlice, IoSliceMut, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

/// Returns a listener on a free port.
fn listener(address: &str) -> (Sock, SocketAddr) {
    let address: SocketAddr = address.parse().unwrap();
    let sock = Sock::open(if address.is_ipv4() { AF_INET } else { AF_INET6 }, SOCK_STREAM);
    sock.bind(address).unwrap();
    sock.listen(16).unwrap();
    let address = sock.local_addr().unwrap();
    assert_ne!(address.port(), 0);
    (sock, address)
}

/// Returns two connected streams. `prepare` sets options of the listener and of the client before
/// they connect.
fn pair_with(address: &str, prepare: impl Fn(&Sock)) -> (Sock, Sock) {
    let (listener, at) = listener(address);
    prepare(&listener);
    let a = Sock::open(if at.is_ipv4() { AF_INET } else { AF_INET6 }, SOCK_STREAM);
    prepare(&a);
    a.connect(at).unwrap();
    let (b, peer) = listener.accept().unwrap();
    assert_eq!(peer, a.local_addr().unwrap());
    assert_eq!(a.peer_addr().unwrap(), at);
    assert_eq!(b.local_addr().unwrap(), at);
    (a, b)
}

fn pair() -> (Sock, Sock) {
    pair_with("127.0.0.1:0", |_| ())
}

fn set(sock: &Sock, level: i32, name: i32, value: i32) {
    sock.set_option(level, name, &value.to_ne_bytes()).unwrap();
}

fn get(sock: &Sock, level: i32, name: i32) -> i32 {
    i32::from_ne_bytes(sock.option(level, name, 4).unwrap().try_into().unwrap())
}

/// Returns bytes whose period, a prime, makes shifted data differ.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn send_all(sock: &Sock, bytes: &[u8]) {
    assert_eq!(sock.send(bytes, 0).unwrap(), bytes.len());
}

fn recv_all(sock: &Sock, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    assert_eq!(sock.recv(&mut buf, MSG_WAITALL).unwrap(), len);
    buf
}

/// Sends `len` bytes each way at the same time.
fn both_ways(a: &Sock, b: &Sock, len: usize) {
    let bytes = pattern(len);
    thread::scope(|scope| {
        scope.spawn(|| send_all(a, &bytes));
        scope.spawn(|| send_all(b, &bytes));
        scope.spawn(|| assert!(recv_all(a, len) == bytes));
        scope.spawn(|| assert!(recv_all(b, len) == bytes));
    });
}

#[test]
fn stream_carries_bytes_both_ways() {
    let (a, b) = pair();
    for len in [1, 64, 65, 4096, 70_000, 131_072, 1_000_000] {
        both_ways(&a, &b, len);
    }
}

#[test]
fn streams_work_over_ipv6() {
    if has_ipv6() {
        let (a, b) = pair_with("[::1]:0", |_| ());
        both_ways(&a, &b, 100_000);
    }
}

#[test]
fn small_buffers_and_queues_carry_all_bytes() {
    let (a, b) = pair_with("127.0.0.1:0", |sock| {
        set(sock, SOL_SOCKET, libc::SO_RCVBUF, 1001);
        set(sock, SOL_SOCKET, libc::SO_SNDBUF, 1);
        set(sock, SOL_RDMA, RDMA_SQSIZE, 1);
        set(sock, SOL_RDMA, RDMA_RQSIZE, 16);
    });
    both_ways(&a, &b, 300_000);
}

#[test]
fn many_small_messages_stay_within_credits() {
    let (a, b) = pair_with("127.0.0.1:0", |sock| set(sock, SOL_RDMA, RDMA_RQSIZE, 16));
    thread::scope(|scope| {
        scope.spawn(|| (0..20_000u32).for_each(|i| send_all(&a, &i.to_ne_bytes())));
        for i in 0..20_000u32 {
            assert_eq!(recv_all(&b, 4), i.to_ne_bytes());
        }
    });
}

#[test]
fn sleeping_reader_misses_no_message() {
    let (a, b) = pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..3000u32 {
                send_all(&a, &i.to_ne_bytes());
                assert_eq!(recv_all(&a, 4), i.to_ne_bytes());
            }
        });
        for i in 0..3000u32 {
            assert_eq!(b.poll(POLLIN), POLLIN);
            assert_eq!(recv_all(&b, 4), i.to_ne_bytes());
            send_all(&b, &i.to_ne_bytes());
        }
    });
}

#[test]
fn end_of_stream_follows_the_data() {
    let (a, b) = pair();
    send_all(&a, &pattern(60_000));
    drop(a);
    assert!(recv_all(&b, 60_000) == pattern(60_000));
    assert_eq!(b.recv(&mut [0; 10], 0).unwrap(), 0);
    assert_eq!(b.poll(POLLIN), POLLIN | POLLHUP);
    assert_eq!(errno(b.send(b"x", 0)), libc::ECONNRESET);
}

// clause: RSOCK-SHUTDOWN
#[test]
fn half_closed_stream_carries_the_other_direction() {
    let (a, b) = pair();
    send_all(&a, b"question");
    a.shutdown(SHUT_WR).unwrap();
    assert_eq!(recv_all(&b, 8), b"question");
    assert_eq!(b.recv(&mut [0; 10], 0).unwrap(), 0);
    assert_eq!(errno(a.send(b"more", 0)), libc::EPIPE);
    send_all(&b, b"answer");
    assert_eq!(recv_all(&a, 6), b"answer");
    send_all(&b, b"bye");
    b.shutdown(SHUT_RDWR).unwrap();
    // The data and the shutdown have arrived, but POLLHUP is reported only once the data is read.
    assert_eq!(a.poll(POLLIN), POLLIN);
    assert_eq!(recv_all(&a, 3), b"bye");
    assert_eq!(a.poll(POLLIN), POLLIN | POLLHUP);
    assert_eq!(a.recv(&mut [0; 10], 0).unwrap(), 0);
}

#[test]
fn shutdown_wakes_a_waiting_reader() {
    let (a, _b) = pair();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| a.recv(&mut [0; 10], 0).unwrap());
        a.shutdown(SHUT_RD).unwrap();
        assert_eq!(waiting.join().unwrap(), 0);
    });
}

/// Returns the result of the blocking `call` on a listener that this thread closes once the caller
/// sleeps.
fn closed_while_asleep<T: Send + 'static>(call: impl FnOnce(i32) -> T + Send + 'static) -> T {
    let ((listener, _), (sender, receiver)) = (listener("127.0.0.1:0"), mpsc::channel());
    let fd = listener.fd();
    let caller = thread::spawn(move || {
        sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
        call(fd)
    });
    let stat = Path::new("/proc").join(receiver.recv().unwrap()).join("stat");
    while !fs::read_to_string(&stat).unwrap().contains(") S ") {
        thread::yield_now();
    }
    drop(listener);
    caller.join().unwrap()
}

// clause: RSOCK-SHUTDOWN
#[test]
fn close_ends_accept_and_poll_of_other_threads() {
    // EBADF if the listener is closed before the thread enters accept.
    assert!([libc::EINVAL, libc::EBADF].contains(&errno(closed_while_asleep(accept))));
    let events = closed_while_asleep(|fd| {
        let mut fds = [PollFd { fd, events: POLLIN, revents: 0 }];
        (poll(&mut fds, TIMEOUT_MS).unwrap(), fds[0].revents)
    });
    assert_eq!(events, (1, POLLNVAL));
}

#[test]
fn nonblocking_connect_finishes_later() {
    let (listener, at) = listener("127.0.0.1:0");
    let a = Sock::open(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    assert_eq!(errno(a.connect(at)), libc::EINPROGRESS);
    assert_eq!(a.poll(POLLOUT), POLLOUT);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_ERROR), 0);
    assert_eq!(errno(a.connect(at)), libc::EISCONN);
    let (b, _) = listener.accept().unwrap();
    assert_eq!(errno(a.recv(&mut [0; 1], 0)), libc::EAGAIN);
    send_all(&b, b"!");
    assert_eq!(a.poll(POLLIN), POLLIN);
    assert_eq!(a.recv(&mut [0; 9], 0).unwrap(), 1);
}

#[test]
fn connect_without_listener_is_refused() {
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let a = Sock::open(AF_INET, SOCK_STREAM);
    assert_eq!(errno(a.connect(nowhere)), libc::ECONNREFUSED);
    let a = Sock::open(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    assert_eq!(errno(a.connect(nowhere)), libc::EINPROGRESS);
    assert_eq!(a.poll(POLLOUT), POLLOUT | POLLERR | POLLHUP);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_ERROR), libc::ECONNREFUSED);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_ERROR), 0);
}

#[test]
fn full_stream_blocks_until_read() {
    let (a, b) = pair();
    a.set_status_flags(libc::O_NONBLOCK);
    assert_eq!(a.status_flags() & libc::O_NONBLOCK, libc::O_NONBLOCK);
    let bytes = pattern(10_000_000);
    let mut sent = a.send(&bytes, 0).unwrap();
    // The peer grants credits until unread data fills its receive buffer and our send buffer.
    let full = loop {
        match a.send(&bytes[sent..], MSG_DONTWAIT) {
            Ok(more) => sent += more,
            refused => break errno(refused),
        }
    };
    assert_eq!(full, libc::EAGAIN);
    assert!(sent < bytes.len());
    thread::scope(|scope| {
        let received = scope.spawn(|| recv_all(&b, bytes.len()));
        while sent < bytes.len() {
            assert_eq!(a.poll(POLLOUT), POLLOUT);
            sent += a.send(&bytes[sent..], 0).unwrap();
        }
        assert!(received.join().unwrap() == bytes);
    });
}

#[test]
fn peek_keeps_data_and_waitall_waits() {
    let (a, b) = pair();
    send_all(&a, b"abc");
    let mut buf = [0; 8];
    assert_eq!(b.poll(POLLIN), POLLIN);
    assert_eq!(b.recv(&mut buf, MSG_PEEK).unwrap(), 3);
    assert_eq!(b.recv(&mut buf[..2], MSG_PEEK).unwrap(), 2);
    thread::scope(|scope| {
        let all = scope.spawn(|| recv_all(&b, 6));
        send_all(&a, b"def");
        assert_eq!(all.join().unwrap(), b"abcdef");
    });
    assert_eq!(errno(b.recv(&mut buf, MSG_DONTWAIT)), libc::EAGAIN);
    assert_eq!(b.recv(&mut [], 0).unwrap(), 0);
}

#[test]
fn vectored_io_joins_buffers() {
    let (a, b) = pair();
    let bufs = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(&[b'.'; 200]), IoSlice::new(b" two")];
    assert_eq!(a.send_vectored(&bufs, 0, None).unwrap(), 208);
    let (mut first, mut second) = ([0; 3], [0; 205]);
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(b.recv_vectored(&mut bufs, MSG_WAITALL).unwrap().0, 208);
    assert_eq!((&first, &second[..2], &second[201..]), (b"one", &b" ."[..], &b" two"[..]));
    let to = Some(a.local_addr().unwrap());
    assert_eq!(errno(a.send_to(b"x", 0, to)), libc::EISCONN);
}

#[test]
fn poll_and_select_mix_sockets_with_files() {
    let (a, b) = pair();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut fds = [
        PollFd { fd: b.fd(), events: POLLIN | POLLOUT, revents: 0 },
        PollFd { fd: reader.as_raw_fd(), events: POLLIN, revents: 0 },
        PollFd { fd: -1, events: POLLIN, revents: 0 },
    ];
    assert_eq!(b.poll(POLLOUT), POLLOUT);
    assert_eq!(poll(&mut fds, 0).unwrap(), 1);
    fds[0].events = POLLIN;
    assert_eq!(poll(&mut fds, 30).unwrap(), 0);
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(b"x").unwrap());
        assert_eq!(poll(&mut fds, TIMEOUT_MS).unwrap(), 1);
    });
    assert_eq!((fds[0].revents, fds[1].revents), (0, POLLIN));
    thread::scope(|scope| {
        scope.spawn(|| send_all(&a, b"y"));
        assert_eq!(poll(&mut fds[..1], TIMEOUT_MS).unwrap(), 1);
    });
    let nfds = b.fd().max(reader.as_raw_fd()) + 1;
    let bit = |fd: i32| (fd as usize / 64, 1u64 << (fd % 64));
    let (mut read, mut write) = ([0; 16], [0; 16]);
    for fd in [b.fd(), reader.as_raw_fd()] {
        read[bit(fd).0] |= bit(fd).1;
    }
    write[bit(b.fd()).0] |= bit(b.fd()).1;
    assert_eq!(select(nfds, [Some(&mut read), Some(&mut write), None], 0).unwrap(), 3);
    assert_ne!(write[bit(b.fd()).0] & bit(b.fd()).1, 0);
    assert_eq!(select(1025, [Some(&mut read), None, None], 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn many_streams_coexist() {
    let (listener, at) = listener("127.0.0.1:0");
    let clients: Vec<Sock> = (0..40).map(|_| Sock::open(AF_INET, SOCK_STREAM)).collect();
    let mut served = Vec::new();
    for client in &clients {
        client.connect(at).unwrap();
        served.push(listener.accept().unwrap());
    }
    for (i, client) in clients.iter().enumerate() {
        send_all(client, &[i as u8; 3000]);
    }
    let mut fds: Vec<PollFd> =
        served.iter().map(|(sock, _)| PollFd { fd: sock.fd(), events: POLLIN, revents: 0 }).collect();
    assert!(poll(&mut fds, TIMEOUT_MS).unwrap() > 0);
    for (server, peer) in &served {
        let i = clients.iter().position(|client| client.local_addr().unwrap() == *peer).unwrap();
        assert!(recv_all(server, 3000) == [i as u8; 3000]);
    }
}

#[test]
fn connections_wait_for_accept() {
    let (listener, at) = listener("127.0.0.1:0");
    assert_eq!(get(&listener, SOL_SOCKET, libc::SO_ACCEPTCONN), 1);
    listener.set_status_flags(libc::O_NONBLOCK);
    assert_eq!(listener.accept().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    let a = Sock::open(AF_INET, SOCK_STREAM);
    a.connect(at).unwrap();
    send_all(&a, b"early");
    assert_eq!(listener.poll(POLLIN), POLLIN);
    let (b, _) = listener.accept().unwrap();
    assert_eq!(b.status_flags() & libc::O_NONBLOCK, 0);
    assert_eq!(recv_all(&b, 5), b"early");
    assert_eq!(errno(b.accept()), libc::EINVAL);
}

// clause: RSOCK-IOMAP
#[test]
fn iowrite_reaches_the_mapped_memory() {
    let (a, b) = pair_with("127.0.0.1:0", |sock| set(sock, SOL_RDMA, RDMA_IOMAPSIZE, 2));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut memory = vec![0u8; 100_000];
    let start = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    let pd = b.protection_domain().unwrap();
    // SAFETY: `memory` outlives the mapping, and is read only after the peer reported the end.
    let region = unsafe { pd.register_raw(start, memory.len(), rights) }.unwrap();
    assert_eq!(b.iomap(region, true, 5000).unwrap(), 5000);
    send_all(&b, b"mapped");
    assert_eq!(recv_all(&a, 6), b"mapped");
    assert_eq!(a.iowrite(&pattern(90_000), 15_000, 0).unwrap(), 90_000);
    assert_eq!(a.iowrite(b"xyz", 104_998, 0).unwrap(), 2, "the mapping ends");
    assert_eq!(a.iowrite(b"xyz", 4999, 0).unwrap(), 0);
    send_all(&a, b"done");
    assert_eq!(recv_all(&b, 4), b"done");
    b.iounmap(memory.as_ptr().addr(), memory.len()).unwrap();
    assert_eq!(errno(b.iounmap(memory.as_ptr().addr(), memory.len())), libc::EINVAL);
    assert!(memory[10_000..99_998] == pattern(90_000)[..89_998]);
    assert_eq!((&memory[99_998..], memory[9_999]), (&b"xy"[..], 0));
}

#[test]
fn options_are_stored() {
    let a = Sock::open(AF_INET, SOCK_STREAM);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_RCVBUF), 1 << 17);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_TYPE), SOCK_STREAM);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_DOMAIN), AF_INET);
    for (level, name) in [
        (SOL_SOCKET, libc::SO_REUSEADDR),
        (SOL_SOCKET, libc::SO_KEEPALIVE),
        (SOL_SOCKET, libc::SO_OOBINLINE),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ] {
        assert_eq!(get(&a, level, name), 0);
        set(&a, level, name, 1);
        assert_eq!(get(&a, level, name), 1);
    }
    set(&a, SOL_SOCKET, libc::SO_SNDBUF, 50_000);
    assert_eq!(get(&a, SOL_SOCKET, libc::SO_SNDBUF), 100_000);
    set(&a, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77);
    assert_eq!(get(&a, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 77);
    assert_eq!(errno(a.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &0i32.to_ne_bytes())), libc::EINVAL);
    assert_eq!(errno(a.set_option(SOL_SOCKET, libc::SO_SNDBUF, &[1, 2, 3])), libc::EINVAL);
    assert_eq!(errno(a.set_option(SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 16])), libc::ENOTSUP);
    let linger = [1i32.to_ne_bytes(), 5i32.to_ne_bytes()].concat();
    a.set_option(SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    assert_eq!(a.option(SOL_SOCKET, libc::SO_LINGER, 8).unwrap(), linger);
    assert_eq!(errno(a.option(SOL_SOCKET, libc::SO_LINGER, 7)), libc::EINVAL);
    let (c, _d) = pair();
    assert_eq!(errno(c.set_option(SOL_RDMA, RDMA_SQSIZE, &64i32.to_ne_bytes())), libc::EINVAL);
    assert_eq!(get(&c, libc::IPPROTO_TCP, libc::TCP_MAXSEG), 4096);
    let path = c.option(SOL_RDMA, roxe_rsockets::RDMA_ROUTE, 200).unwrap();
    assert_eq!(path.len(), 72);
}

#[test]
fn misuse_has_the_errnos_of_sockets() {
    let a = Sock::open(AF_INET, SOCK_STREAM);
    assert_eq!(errno(a.send(b"x", 0)), libc::ENOTCONN);
    assert_eq!(errno(a.recv(&mut [0; 1], 0)), libc::ENOTCONN);
    assert_eq!(errno(a.shutdown(SHUT_WR)), libc::ENOTCONN);
    assert_eq!(errno(a.shutdown(9)), libc::EINVAL);
    assert_eq!(errno(a.peer_addr()), libc::ENOTCONN);
    assert!(a.local_addr().unwrap().ip().is_unspecified());
    assert_eq!(errno(a.bind("[::1]:0".parse().unwrap())), libc::EAFNOSUPPORT);
    assert_eq!(errno(a.protection_domain()), libc::EINVAL);
    for (domain, kind, protocol) in [
        (libc::AF_UNIX, SOCK_STREAM, 0),
        (AF_INET, libc::SOCK_RAW, 0),
        (AF_INET, SOCK_STREAM, libc::IPPROTO_UDP),
        (AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_TCP),
    ] {
        assert_eq!(errno(roxe_rsockets::open(domain, kind, protocol)), libc::ENOTSUP);
    }
    assert_eq!(errno(roxe_rsockets::close(-1)), libc::EBADF);
    assert_eq!(errno(accept(0)), libc::EBADF);
}

#[test]
fn port_is_bound_by_one_listener() {
    let (_listener, at) = listener("127.0.0.1:0");
    let other = Sock::open(AF_INET, SOCK_STREAM);
    let refused = other.bind(at).and_then(|()| other.listen(1));
    assert_eq!(errno(refused), libc::EADDRINUSE);
}
