//! A packet from a socket of its own, to hear what the network says of its destination (ICMP): that
//! nobody listens there, that the host cannot be reached.
//!
//! The sockets of the links do not ask for that: the system would tell any of the processes that
//! share the port, and an error would come out of the next call for whatever peer. Nothing here
//! waits, or runs while packets are answered. Touches a socket.

use crate::sys;
use crate::udp::{bare_socket, socket_addr};
use roxe_wire::{Gid, ROCE_PORT};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of receive buffer: nothing is received.
const RCVBUF: usize = 4096;

/// A packet that was sent, and its socket.
#[derive(Debug)]
pub struct Probe(Socket);

impl Probe {
    /// Sends what `packet` makes for its source port from `from` to the RoCE port of `to`. Leaves
    /// as packets of links do, but for the source port, so that whoever takes those takes this.
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

    /// What the network has said of it, if anything.
    pub fn answer(&self) -> Option<io::Error> {
        // A socket that cannot be asked says nothing.
        self.0.take_error().ok().flatten()
    }

    /// The same, for which it may take so long to come.
    pub fn wait_for_answer(&self, limit: Duration) -> Option<io::Error> {
        let wait = || {
            self.0.set_nonblocking(false)?;
            self.0.set_read_timeout(Some(limit))?;
            // Nobody answers with a packet; what ends this is an error of the network.
            self.0.peek_sender().map(drop)
        };
        wait().err().filter(|e| e.kind() != io::ErrorKind::WouldBlock)
    }
}

/// The address that packets to `to` leave from, as the system's routes say.
pub fn source_towards(to: Gid) -> io::Result<Gid> {
    let ip = to.to_ip();
    let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(ip, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip().into())
}

/// Returns true if `to` is the broadcast address of a link: the system refuses it to a socket that
/// has not asked for broadcasts, and to no other.
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

    /// An address of the loopback interface at which no test opens a card.
    const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 9, 8, 7);

    #[test]
    fn a_host_without_a_card_answers_that_nobody_listens() {
        let here = Ipv4Addr::LOCALHOST.into();
        let probe = Probe::send(here, NOBODY.into(), 1, |port| port.to_be_bytes().to_vec()).unwrap();
        let refused = probe.wait_for_answer(Duration::from_secs(10)).map(|e| e.kind());
        assert_eq!(refused, Some(io::ErrorKind::ConnectionRefused));
        assert!(probe.answer().is_none(), "it is told once");
    }

    #[test]
    fn broadcast_address_is_told_from_others() {
        let is_it = |ip: [u8; 4]| is_broadcast(Ipv4Addr::from(ip).into());
        assert!(is_it([127, 255, 255, 255]));
        assert!(!is_it([127, 0, 0, 1]) && !is_it([127, 9, 8, 7]));
    }

    #[test]
    fn the_way_to_the_loopback_interface_begins_there() {
        assert_eq!(source_towards(NOBODY.into()).unwrap(), Ipv4Addr::LOCALHOST.into());
    }
}
