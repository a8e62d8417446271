//! Queries of the kernel by rtnetlink: resolution of routes and neighbours ([`NextHop`]), and
//! changes of interfaces ([`LinkEvents`]).

use crate::sys;
use roxe_wire::Gid;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Length of `nlmsghdr` in bytes.
const HEADER_LEN: usize = 16;
/// Length of the `rtmsg` or `ndmsg` after the header in bytes.
const BODY_LEN: usize = 12;
/// Attributes of routes and of neighbours (<linux/rtnetlink.h>, <linux/neighbour.h>).
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
/// All states of a neighbour with a known link address, even if stale.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// State of a neighbour that does not answer.
const NUD_FAILED: u16 = 0x20;
/// The discard port (RFC 863).
const DISCARD: u16 = 9;
/// Size of the receive buffer in bytes; a message about one route or neighbour is shorter.
const BUFFER_LEN: usize = 4096;
/// Position of the interface index in both `ifinfomsg` and `ifaddrmsg`, after `nlmsghdr`.
const IFINDEX: std::ops::Range<usize> = 20..24;

/// A destination whose neighbour has not answered with its link address yet.
///
/// The kernel resolves the same for a RoCE queue pair or address handle. Where it gives no answer
/// (a sandbox without netlink, a kernel before 5.0, links without neighbours), an address counts as
/// reachable.
#[derive(Debug)]
pub struct NextHop {
    netlink: Netlink,
    source: Gid,
    /// The destination at the discard port, which never answers.
    to: SocketAddr,
    neighbour: IpAddr,
    ifindex: u32,
}

impl NextHop {
    /// Looks up the next hop from `source` to `destination`; link-local addresses are those of the
    /// interface `ifindex`. Starts resolving the neighbour, as a first packet would. `None` if
    /// packets can leave, or the kernel gives no answer.
    ///
    /// # Errors
    /// ENETUNREACH, EHOSTUNREACH or EACCES if there is no route.
    pub fn find(source: Gid, destination: Gid, ifindex: u32) -> io::Result<Option<Self>> {
        let Ok(mut netlink) = Netlink::open(0) else { return Ok(None) };
        let (from, to) = (source.to_ip(), destination.to_ip());
        let scope = if is_link_local(to) { ifindex } else { 0 };
        let route = match netlink.route(from, to, scope) {
            Ok(Some(route)) => route,
            Err(e) if no_route(&e) => return Err(e),
            _ => return Ok(None),
        };
        let to = match to {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, DISCARD, 0, scope).into(),
            IpAddr::V4(_) => SocketAddr::new(to, DISCARD),
        };
        let mut hop =
            Self { netlink, source, to, neighbour: route.gateway.unwrap_or_else(|| to.ip()), ifindex: route.ifindex };
        // Usually known.
        if hop.state().is_some_and(is_valid) {
            return Ok(None);
        }
        hop.solicit();
        Ok((!hop.is_resolved()).then_some(hop))
    }

    /// Returns true if packets can leave. Never blocks.
    pub fn is_resolved(&mut self) -> bool {
        let state = self.state();
        if state == Some(NUD_FAILED) {
            // The kernel has given up, but the neighbour may start just now.
            self.solicit();
        }
        state.is_none_or(is_valid)
    }

    /// Waits until packets can leave. Returns false at `deadline`.
    pub fn wait(&mut self, deadline: Instant) -> bool {
        let Ok(changes) = Netlink::open(libc::RTMGRP_NEIGH) else { return true };
        while !self.is_resolved() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Signals and lost messages end the wait, too.
            let _ = changes.wait(left);
        }
        true
    }

    /// Returns the neighbour whose link address is unknown.
    pub fn neighbour(&self) -> IpAddr {
        self.neighbour
    }

    /// Returns the state of the neighbour (`NUD_...`); `None` if the kernel gives no answer.
    fn state(&mut self) -> Option<u16> {
        self.netlink.neighbour_state(self.neighbour, self.ifindex).ok()
    }

    /// Makes the kernel resolve the neighbour, which only a packet does: an empty one to the
    /// discard port with a hop limit of 1.
    fn solicit(&self) {
        let send = || {
            let socket = Socket::new(Domain::for_address(self.to), Type::DGRAM, None)?;
            if self.to.is_ipv4() {
                socket.set_ttl_v4(1)?
            } else {
                socket.set_unicast_hops_v6(1)?
            }
            let mut from = SocketAddr::new(self.source.to_ip(), 0);
            if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (&mut from, self.to) {
                from.set_scope_id(to.scope_id());
            }
            socket.bind(&from.into())?;
            socket.send_to(&[], &SockAddr::from(self.to))
        };
        // Refused by a firewall, for example; then the neighbour stays unknown.
        let _ = send();
    }
}

/// A socket that becomes readable when a link or an address changes.
///
/// Only the interface index of a message is used; the state is then queried, so lost messages do no
/// harm.
#[derive(Debug)]
pub struct LinkEvents(Netlink);

impl LinkEvents {
    /// Subscribes to changes in this network namespace.
    pub fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Netlink::open(groups).map(Self)
    }

    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.socket.as_raw_fd()
    }

    /// Reads all pending events. Returns true if any may concern the interface `ifindex`.
    pub fn are_about(&self, ifindex: u32) -> bool {
        let mut found = false;
        loop {
            // The end of a message is truncated.
            let mut head = [0; IFINDEX.end];
            match (&self.0.socket).read(&mut head) {
                Ok(_) => found |= head[IFINDEX] == ifindex.to_ne_bytes(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return found,
                // Lost messages may have concerned any interface.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => found = true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return found,
            }
        }
    }
}

#[derive(Debug)]
struct Route {
    gateway: Option<IpAddr>,
    ifindex: u32,
}

#[derive(Debug)]
struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket that never blocks and receives changes of `groups`.
    fn open(groups: libc::c_int) -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::from(libc::SOCK_RAW), Some(protocol))?;
        socket.set_nonblocking(true)?;
        sys::bind_netlink(socket.as_raw_fd(), groups)?;
        Ok(Self { socket, sequence: 0 })
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_read_timeout(Some(limit))?;
        self.receive().map(drop)
    }

    /// Returns the route between two addresses, through the interface `scope` unless 0. `None` if
    /// it needs no neighbour: to this host, or to a group.
    fn route(&mut self, from: IpAddr, to: IpAddr, scope: u32) -> io::Result<Option<Route>> {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let mut body = [0; BODY_LEN];
        (body[0], body[1], body[2]) = (family(to), bits, bits);
        let mut attributes = vec![(RTA_DST, octets(to)), (RTA_SRC, octets(from))];
        if scope != 0 {
            attributes.push((RTA_OIF, scope.to_ne_bytes().to_vec()));
        }
        let answer = self.ask(libc::RTM_GETROUTE, body, &attributes)?;
        // At the offset of the route type in `rtmsg`.
        if answer.get(7) != Some(&libc::RTN_UNICAST) {
            return Ok(None);
        }
        let attribute = |wanted| attributes_of(&answer).find_map(|(name, value)| (name == wanted).then_some(value));
        // An IPv4 route by an IPv6 neighbour is prefixed by the family.
        let via = || attribute(RTA_VIA).and_then(|value| value.get(2..)).and_then(address);
        let ifindex = attribute(RTA_OIF).and_then(|value| word(value, 0)).unwrap_or_default();
        Ok(Some(Route { gateway: attribute(RTA_GATEWAY).and_then(address).or_else(via), ifindex }))
    }

    /// Returns the state (`NUD_...`) of a neighbour. Fails with ENOENT if the interface has no such
    /// entry.
    fn neighbour_state(&mut self, neighbour: IpAddr, ifindex: u32) -> io::Result<u16> {
        let mut body = [0; BODY_LEN];
        body[0] = family(neighbour);
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let answer = self.ask(libc::RTM_GETNEIGH, body, &[(NDA_DST, octets(neighbour))])?;
        let state = answer.get(8..).and_then(|rest| rest.first_chunk().copied());
        state.map(u16::from_ne_bytes).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Sends a query and returns the answer without its header. The kernel answers synchronously.
    fn ask(&mut self, kind: u16, body: [u8; BODY_LEN], attributes: &[(u16, Vec<u8>)]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        (&self.socket).write_all(&request(kind, self.sequence, body, attributes))?;
        loop {
            let answer = self.receive()?;
            if word(&answer, 8) != Some(self.sequence) {
                continue;
            }
            let kind = answer.get(4..).and_then(|rest| rest.first_chunk().copied()).map(u16::from_ne_bytes);
            return match (kind.map(libc::c_int::from), word(&answer, HEADER_LEN)) {
                (Some(libc::NLMSG_ERROR), Some(errno)) => Err(io::Error::from_raw_os_error(-errno.cast_signed())),
                _ => Ok(answer.get(HEADER_LEN..).unwrap_or_default().to_vec()),
            };
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut message = vec![0; BUFFER_LEN];
        let len = (&self.socket).read(&mut message)?;
        message.truncate(len);
        Ok(message)
    }
}

fn request(kind: u16, sequence: u32, body: [u8; BODY_LEN], attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut rest = body.to_vec();
    for (name, value) in attributes {
        // The length of every value is a multiple of four.
        rest.extend((value.len() as u16 + 4).to_ne_bytes());
        rest.extend(name.to_ne_bytes());
        rest.extend(value);
    }
    let mut message = ((HEADER_LEN + rest.len()) as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The kernel fills in the sender.
    message.extend([0; 4]);
    message.extend(rest);
    message
}

/// Returns the native 32-bit word at offset `at`.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn attributes_of(answer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = answer.get(BODY_LEN..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (head, _) = rest.split_first_chunk::<4>()?;
        let (len, name) = (u16::from_ne_bytes([head[0], head[1]]), u16::from_ne_bytes([head[2], head[3]]));
        let value = rest.get(4..len.into())?;
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        Some((name, value))
    })
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v6 = || <[u8; 16]>::try_from(octets).ok().map(IpAddr::from);
    <[u8; 4]>::try_from(octets).ok().map(|v4| Ipv4Addr::from(v4).into()).or_else(v6)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

const fn is_valid(state: u16) -> bool {
    state & NUD_VALID != 0
}

fn no_route(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_need_no_neighbour() {
        for ip in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 9, 8, 7])] {
            let here = Ipv4Addr::LOCALHOST.into();
            assert!(NextHop::find(here, ip.into(), 1).unwrap().is_none(), "{ip}");
        }
    }

    #[test]
    fn attributes_end_at_first_truncated_one() {
        let mut answer = vec![0; BODY_LEN];
        answer.extend([8, 0, 4, 0, 7, 0, 0, 0]);
        answer.extend([8, 0, 5, 0, 10, 0]);
        let found: Vec<_> = attributes_of(&answer).collect();
        assert_eq!(found, [(RTA_OIF, &[7, 0, 0, 0][..])]);
        assert_eq!(attributes_of(&[0; BODY_LEN + 4]).count(), 0);
    }

    #[test]
    fn no_changes_report_no_interface() {
        let link_events = LinkEvents::open().unwrap();
        assert!(!link_events.are_about(u32::MAX));
        assert!(!link_events.are_about(u32::MAX), "never waits");
    }
}
