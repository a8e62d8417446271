//! Which addresses the near side has. Touches sockets, to learn the way to a card.

use roxe_wire::{Gid, ROCE_PORT};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

pub(super) fn is_link_local(gid: Gid) -> bool {
    matches!(gid.to_ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The addresses of near side and stranger towards `card`: those that were given, neighbours on the
/// loopback interface, or where a packet to the card would leave.
pub(super) fn near_addresses(card: Gid, given: &[IpAddr]) -> io::Result<[Gid; 2]> {
    let mut given = given.iter().filter(|ip| ip.is_ipv4() == card.is_ipv4()).map(|ip| Gid::from(*ip));
    if let Some(near) = given.next() {
        return Ok([near, given.next().unwrap_or_default()]);
    }
    match card.to_ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let [a, b, c, d] = ip.octets();
            let neighbour = |by: u8| Gid::from(Ipv4Addr::new(a, b, c, d.wrapping_add(by)));
            Ok([neighbour(1), neighbour(2)])
        }
        ip => {
            let any: SocketAddr =
                if ip.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
            let socket = UdpSocket::bind(any)?;
            socket.connect((ip, ROCE_PORT))?;
            let near = socket.local_addr()?.ip();
            if near == ip {
                return Err(io::Error::other("it is an address of this host; name another one for the near side"));
            }
            Ok([near.into(), Gid::default()])
        }
    }
}
