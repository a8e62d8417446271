//! A packet from a socket of its own, to learn by ICMP that its destination has no listener or is
//! unreachable.
//!
//! The sockets of links do not request ICMP errors: the kernel would report them to any process
//! that shares the port, at its next call.

use crate::sys;
use crate::udp::{bare_socket, socket_addr};
use roxe_wire::{Gid, ROCE_PORT};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of the receive buffer, which stays unused.
const RCVBUF: usize = 4096;

/// A sent packet's socket.
#[derive(Debug)]
pub struct Probe(Socket);

impl Probe {
    /// Sends the result of `packet` for its source port from `from` to the RoCE port of `to`, as
    /// links do except for the source port.
    pub fn send(from: Gid, to: Gid, ifindex: u32, packet: impl FnOnce(u16) -> Vec<u8>) -> io::Result<Self> {
        let mut local = socket_addr(from, ifindex);
        local.set_port(0);
        let socket = bare_socket(local, ifindex, RCVBUF)?;
        let (level, option) = if local.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_RECVERR)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        };
        sys::set_option(socket.as_raw_fd(), level, option, 1)?;
        socket.bind(&local.into())?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.as_socket().map_or(0, |local| local.port());
        socket.send_to(&packet(port), &socket_addr(to, ifindex).into())?;
        Ok(Self(socket))
    }

    /// The ICMP error received, if any.
    pub fn answer(&self) -> Option<io::Error> {
        // Ignores errors of the query.
        self.0.take_error().ok().flatten()
    }

    /// Waits for an ICMP error for at most `limit`.
    pub fn wait_for_answer(&self, limit: Duration) -> Option<io::Error> {
        let wait = || {
            self.0.set_nonblocking(false)?;
            self.0.set_read_timeout(Some(limit))?;
            // No packet is expected, only an error.
            self.0.peek_sender().map(drop)
        };
        wait().err().filter(|e| e.kind() != io::ErrorKind::WouldBlock)
    }
}

/// The source address of packets to `to` according to the routing table.
pub fn source_towards(to: Gid) -> io::Result<Gid> {
    let ip = to.to_ip();
    let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(ip, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip().into())
}

/// Returns true if `to` is the broadcast address of a link: the kernel refuses it only to sockets
/// without SO_BROADCAST.
pub fn is_broadcast(to: Gid) -> bool {
    let IpAddr::V4(ip) = to.to_ip() else { return false };
    let connects = |broadcasts| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_broadcast(broadcasts)?;
        socket.connect((ip, ROCE_PORT))
    };
    connects(false).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) && connects(true).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loopback address at which no test opens a card.
    const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 9, 8, 7);

    #[test]
    fn host_without_card_is_port_unreachable() {
        let here = Ipv4Addr::LOCALHOST.into();
        let probe = Probe::send(here, NOBODY.into(), 1, |port| port.to_be_bytes().to_vec()).unwrap();
        let refused = probe.wait_for_answer(Duration::from_secs(10)).map(|e| e.kind());
        assert_eq!(refused, Some(io::ErrorKind::ConnectionRefused));
        assert!(probe.answer().is_none(), "the error is reported once");
    }

    #[test]
    fn broadcast_address_is_detected() {
        let is_it = |ip: [u8; 4]| is_broadcast(Ipv4Addr::from(ip).into());
        assert!(is_it([127, 255, 255, 255]));
        assert!(!is_it([127, 0, 0, 1]) && !is_it([127, 9, 8, 7]));
    }

    #[test]
    fn source_towards_loopback_is_loopback() {
        assert_eq!(source_towards(NOBODY.into()).unwrap(), Ipv4Addr::LOCALHOST.into());
    }
}
