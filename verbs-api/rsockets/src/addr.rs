//! Conversion between addresses of programs and of the fabric. A program with an AF_INET6 socket
//! writes IPv4 addresses as IPv4-mapped IPv6 addresses; the fabric uses plain IPv4.

use crate::errno::os;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Converts a program's address for the fabric.
///
/// # Errors
/// EAFNOSUPPORT for an address outside the socket's family.
pub(crate) fn to_fabric(addr: SocketAddr, domain: i32) -> io::Result<SocketAddr> {
    match (domain, addr) {
        (libc::AF_INET, SocketAddr::V4(_)) => Ok(addr),
        (libc::AF_INET6, SocketAddr::V6(v6)) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => Ok(SocketAddr::new(ip.into(), addr.port())),
            None => Ok(addr),
        },
        _ => Err(os(libc::EAFNOSUPPORT)),
    }
}

/// Converts a fabric address for a socket of `domain`.
pub(crate) fn to_program(addr: SocketAddr, domain: i32) -> SocketAddr {
    match (domain, addr) {
        (libc::AF_INET6, SocketAddr::V4(v4)) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), addr.port()),
        _ => addr,
    }
}

pub(crate) fn unspecified(domain: i32) -> SocketAddr {
    let ip: IpAddr = if domain == libc::AF_INET6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_socket_maps_ipv4_addresses() {
        let (plain, as_v6): (SocketAddr, SocketAddr) =
            ("10.0.0.1:7".parse().unwrap(), "[::ffff:10.0.0.1]:7".parse().unwrap());
        assert_eq!(to_fabric(as_v6, libc::AF_INET6).unwrap(), plain);
        assert_eq!(to_program(plain, libc::AF_INET6), as_v6);
        assert_eq!(to_program(plain, libc::AF_INET), plain);
        let v6: SocketAddr = "[fd00::1]:7".parse().unwrap();
        assert_eq!(to_fabric(v6, libc::AF_INET6).unwrap(), v6);
        assert_eq!(to_fabric(v6, libc::AF_INET).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
        assert_eq!(to_fabric(plain, libc::AF_INET6).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
    }
}
