//! Datagram sockets over the loopback device, in one process: moving from UDP to queue pairs, and
//! the promises of the calls.

use crate::common::{Sock, TIMEOUT_MS, errno, has_ipv6};
use libc::{AF_INET, AF_INET6, MSG_DONTWAIT, MSG_PEEK, POLLIN, POLLOUT, SOCK_DGRAM, SOCK_NONBLOCK};
use roxe_rsockets::{PollFd, poll};
use std::net::SocketAddr;

/// Returns a datagram socket on a free port.
fn bound(address: &str) -> (Sock, SocketAddr) {
    let address: SocketAddr = address.parse().unwrap();
    let sock = Sock::open(if address.is_ipv4() { AF_INET } else { AF_INET6 }, SOCK_DGRAM);
    sock.bind(address).unwrap();
    let address = sock.local_addr().unwrap();
    (sock, address)
}

fn receive(sock: &Sock) -> (Vec<u8>, SocketAddr) {
    assert_eq!(sock.poll(POLLIN), POLLIN);
    let mut buf = [0; 4096];
    let (len, from) = sock.recv_from(&mut buf, 0).unwrap();
    (buf[..len].to_vec(), from.unwrap())
}

/// Exchanges enough datagrams to use both UDP and queue pairs.
fn ping_pong(address: &str) {
    let ((a, at_a), (b, at_b)) = (bound(address), bound(address));
    for round in 0..20u8 {
        let message = vec![round; 1 + usize::from(round) * 50];
        assert_eq!(a.send_to(&message, 0, Some(at_b)).unwrap(), message.len());
        assert_eq!(receive(&b), (message.clone(), at_a));
        assert_eq!(b.send_to(&message, 0, Some(at_a)).unwrap(), message.len());
        assert_eq!(receive(&a), (message, at_b));
    }
}

// clause: RSOCK-UDP-ANSWER
#[test]
fn datagrams_move_from_udp_to_queue_pairs() {
    ping_pong("127.0.0.1:0");
}

#[test]
fn datagrams_work_over_ipv6() {
    if has_ipv6() {
        ping_pong("[::1]:0");
    }
}

#[test]
fn ipv6_socket_exchanges_with_ipv4_socket() {
    let (a, _) = bound("[::]:0");
    let (b, at_b) = bound("127.0.0.1:0");
    let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", at_b.port()).parse().unwrap();
    for _ in 0..3 {
        a.send_to(b"six", 0, Some(mapped)).unwrap();
        let (bytes, from) = receive(&b);
        assert_eq!(bytes, b"six");
        b.send_to(b"four", 0, Some(from)).unwrap();
        assert_eq!(receive(&a), (b"four".to_vec(), mapped));
    }
}

#[test]
fn connected_socket_receives_from_its_peer_only() {
    let ((a, at_a), (b, at_b), (stranger, _)) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"), bound("127.0.0.1:0"));
    assert_eq!(errno(a.peer_addr()), libc::ENOTCONN);
    assert_eq!(errno(a.send(b"x", 0)), libc::EDESTADDRREQ);
    a.connect(at_b).unwrap();
    b.connect(at_a).unwrap();
    assert_eq!(a.peer_addr().unwrap(), at_b);
    for _ in 0..3 {
        let _ = stranger.send_to(b"psst", 0, Some(at_b));
        a.send(b"hello", 0).unwrap();
        assert_eq!(receive(&b), (b"hello".to_vec(), at_a));
    }
}

#[test]
fn datagram_is_truncated_and_oversize_refused() {
    let ((a, _), (b, at_b)) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
    assert_eq!(errno(a.send_to(&[0; 4096], 0, Some(at_b))), libc::EMSGSIZE);
    for _ in 0..3 {
        a.send_to(b"0123456789", 0, Some(at_b)).unwrap();
        assert_eq!(b.poll(POLLIN), POLLIN);
        let mut few = [0; 4];
        assert_eq!(b.recv(&mut few, MSG_PEEK).unwrap(), 4);
        assert_eq!(b.recv(&mut few, 0).unwrap(), 4);
        assert_eq!(&few, b"0123");
        assert_eq!(errno(b.recv(&mut few, MSG_DONTWAIT)), libc::EAGAIN);
    }
}

#[test]
fn poll_reports_and_waits_for_datagrams() {
    let ((a, _), (b, at_b)) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
    let mut fds = [
        PollFd { fd: b.fd(), events: POLLIN, revents: 0 },
        PollFd { fd: a.fd(), events: POLLIN | POLLOUT, revents: 0 },
    ];
    assert_eq!(poll(&mut fds, 0).unwrap(), 1);
    assert_eq!((fds[0].revents, fds[1].revents), (0, POLLOUT));
    assert_eq!(poll(&mut fds[..1], 20).unwrap(), 0);
    let late = std::thread::scope(|scope| {
        scope.spawn(|| a.send_to(b"late", 0, Some(at_b)).unwrap());
        poll(&mut fds[..1], TIMEOUT_MS).unwrap()
    });
    assert_eq!((late, fds[0].revents), (1, POLLIN));
}

#[test]
fn nonblocking_socket_does_not_wait() {
    let sock = Sock::open(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK);
    assert_eq!(errno(sock.recv(&mut [0; 1], 0)), libc::EAGAIN);
    sock.set_status_flags(0);
    assert_eq!(sock.status_flags(), libc::O_RDWR);
}

#[test]
fn foreign_packets_on_the_udp_port_are_ignored() {
    let ((a, _), (b, at_b)) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
    let outsider = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for junk in [&b""[..], b"UUUU", &[0x55; 40], &[0; 16]] {
        outsider.send_to(junk, at_b).unwrap();
    }
    a.send_to(b"real", 0, Some(at_b)).unwrap();
    assert_eq!(receive(&b).0, b"real");
}
