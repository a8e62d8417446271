//! A probe is a packet from a socket of its own. ICMP errors for it show that its destination has
//! no listener or is unreachable.
//!
//! The sockets of links do not enable `IP_RECVERR`: processes share their port, and the kernel
//! would return an ICMP error from the next call of any of these processes.

use crate::sys;
use crate::udp::{bare_socket, socket_addr};
use roxe_wire::{Gid, ROCE_PORT};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of the receive buffer: the socket receives no packets.
const RCVBUF: usize = 4096;

/// The socket of a sent probe, which receives the ICMP errors.
#[derive(Debug)]
pub struct Probe(Socket);

impl Probe {
    /// Sends a packet from `from` to the RoCE port of `to`. `packet` builds it for a source port,
    /// which the kernel chooses; the other options of the socket are those of links.
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

    /// Returns the ICMP error received, if any.
    pub fn icmp_error(&self) -> Option<io::Error> {
        self.0.take_error().ok().flatten()
    }

    /// Waits for an ICMP error for at most `limit`.
    pub fn wait_for_icmp_error(&self, limit: Duration) -> Option<io::Error> {
        let wait = || {
            self.0.set_nonblocking(false)?;
            self.0.set_read_timeout(Some(limit))?;
            // The receive call only returns the error: no packet arrives at this socket.
            self.0.peek_sender().map(drop)
        };
        wait().err().filter(|e| e.kind() != io::ErrorKind::WouldBlock)
    }
}

/// Returns the source address of packets to `to` according to the routing table.
pub fn source_towards(to: Gid) -> io::Result<Gid> {
    let ip = to.to_ip();
    let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(ip, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip().into())
}

/// Returns true if `to` is the broadcast address of an interface. Only to such addresses does the
/// kernel refuse a connect without SO_BROADCAST and permit one with it.
pub fn is_broadcast(to: Gid) -> bool {
    let IpAddr::V4(ip) = to.to_ip() else { return false };
    let connect = |broadcast| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_broadcast(broadcast)?;
        socket.connect((ip, ROCE_PORT))
    };
    connect(false).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) && connect(true).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loopback address at which no test opens a card.
    const NO_CARD: Ipv4Addr = Ipv4Addr::new(127, 9, 8, 7);

    #[test]
    fn host_without_card_is_port_unreachable() {
        let here = Ipv4Addr::LOCALHOST.into();
        let probe = Probe::send(here, NO_CARD.into(), 1, |port| port.to_be_bytes().to_vec()).unwrap();
        let error = probe.wait_for_icmp_error(Duration::from_secs(10)).map(|e| e.kind());
        assert_eq!(error, Some(io::ErrorKind::ConnectionRefused));
        assert!(probe.icmp_error().is_none(), "the error is reported once");
    }

    #[test]
    fn broadcast_address_is_detected() {
        let is_broadcast = |ip: [u8; 4]| is_broadcast(Ipv4Addr::from(ip).into());
        assert!(is_broadcast([127, 255, 255, 255]));
        assert!(!is_broadcast([127, 0, 0, 1]) && !is_broadcast([127, 9, 8, 7]));
    }

    #[test]
    fn source_towards_loopback_is_loopback() {
        assert_eq!(source_towards(NO_CARD.into()).unwrap(), Ipv4Addr::LOCALHOST.into());
    }
}
