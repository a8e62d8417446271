//! The options and addresses of the sockets of a link through the network.

use crate::link::HOP_LIMIT;
use crate::sys::{self, Name};
use libc::c_int;
use roxe_wire::{Gid, ROCE_PORT};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;

/// Receive and send buffer asked for, bytes; the kernel gives what `net.core.[rw]mem_max` allows.
pub(super) const BUFFER: usize = 4 << 20;

/// Whether the system knows segmented sends at all. Kernels before 4.18 do not, and say so here.
pub(super) fn can_segment(socket: &Socket) -> bool {
    sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// A socket that will be bound to `address`, or to another port of it.
pub(crate) fn bare_socket(address: SocketAddr, ifindex: u32, rcvbuf: usize) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    // The kernel clamps both to its limits instead of refusing.
    socket.set_recv_buffer_size(rcvbuf)?;
    socket.set_send_buffer_size(BUFFER)?;
    if address.is_ipv4() {
        set_v4_options(&socket, ifindex)?;
    } else {
        set_v6_options(&socket, ifindex)?;
    }
    Ok(socket)
}

/// The socket address of `gid` at the RoCE port.
pub(crate) fn socket_addr(gid: Gid, scope: u32) -> SocketAddr {
    match gid.to_ip() {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, ROCE_PORT).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, ROCE_PORT, 0, scope_of(ip, scope)).into(),
    }
}

/// The address of `gid` at the RoCE port as the system call wants it. It is made for each send, and
/// through [`socket_addr`] that would cost 100 instructions.
#[inline]
pub(super) fn name_of(gid: Gid, scope: u32) -> Name<'static> {
    let port = ROCE_PORT.to_be();
    if gid.is_ipv4() {
        let [.., a, b, c, d] = gid.0;
        Name::V4(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([a, b, c, d]) },
            sin_zero: [0; 8],
        })
    } else {
        Name::V6(libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: port,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: gid.0 },
            sin6_scope_id: scope_of(gid.0.into(), scope),
        })
    }
}

/// `scope`, for those addresses of IPv6 that need it.
#[inline]
fn scope_of(ip: Ipv6Addr, scope: u32) -> u32 {
    if ip.is_unicast_link_local() || ip.is_multicast() { scope } else { 0 }
}

fn set_v4_options(socket: &Socket, ifindex: u32) -> io::Result<()> {
    let set = |name, value| sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IP, name, value);
    // clause: IP-DF
    set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    set(libc::IP_TTL, c_int::from(HOP_LIMIT))?;
    set(libc::IP_RECVTTL, 1)?;
    sys::set_multicast_if_v4(socket.as_raw_fd(), ifindex)?;
    set(libc::IP_MULTICAST_TTL, c_int::from(HOP_LIMIT))?;
    // Only what came by an interface on which this very socket has joined.
    set(libc::IP_MULTICAST_ALL, 0)?;
    set(libc::IP_RECVTOS, 1)
}

pub(super) fn set_v6_options(socket: &Socket, ifindex: u32) -> io::Result<()> {
    let set = |name, value| sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IPV6, name, value);
    socket.set_only_v6(true)?;
    set(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    set(libc::IPV6_UNICAST_HOPS, c_int::from(HOP_LIMIT))?;
    set(libc::IPV6_RECVHOPLIMIT, 1)?;
    socket.set_multicast_if_v6(ifindex)?;
    set(libc::IPV6_MULTICAST_HOPS, c_int::from(HOP_LIMIT))?;
    // Kernels before 4.20 do not know it; there the group of another interface is heard here, too.
    let _ = set(libc::IPV6_MULTICAST_ALL, 0);
    set(libc::IPV6_RECVTCLASS, 1)?;
    // Peers may send UDP checksum 0 over IPv6. Sending so ourselves would forbid segmented sends.
    // clause: UDP-CHECKSUM
    let _ = sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1);
    Ok(())
}
