//! Reachability of peers: resolution of the next hop before a queue pair or an address handle gets
//! an address, as the kernel does for hardware, and reasons why a peer does not answer.
//!
//! None of this is on the data path. Waits only where stated, without a lock.

use crate::engine::Engine;
use crate::gsi::packet_of;
use roxe_base::error::Error;
use roxe_net::link::HOP_LIMIT;
use roxe_net::netlink::NextHop;
use roxe_net::probe::{Probe, is_broadcast, source_towards};
use roxe_observe::port::Netdev;
use roxe_transport::cm::Route;
use roxe_wire::cm::{CommId, Drep, Mad, PrivateData, TransactionId, gsi_header};
use roxe_wire::{NetHeader, Psn};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum wait for an ICMP answer; an answer from farther away is missed.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// Maximum wait for a neighbour before the verb fails.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a resolved next hop is trusted.
const FRESH: Duration = Duration::from_secs(1);
const CAPACITY: usize = 1024;

impl Engine {
    /// Waits up to a second until packets can leave on `route`. Fails with ENETUNREACH,
    /// EHOSTUNREACH or EACCES if there is no route; ETIMEDOUT if the neighbour does not answer.
    pub fn await_next_hop(&self, route: Route) -> Result<(), Error> {
        let Some(mut hop) = self.find_next_hop(route)? else { return Ok(()) };
        if !hop.wait(Instant::now() + NEIGHBOUR_TIMEOUT) {
            return Err(no_answer(route, &hop));
        }
        self.note_next_hop(route);
        Ok(())
    }

    /// Returns the next hop still to be resolved on `route`; `None` if packets can leave. Errors as
    /// [`Engine::await_next_hop`], except ETIMEDOUT.
    pub fn find_next_hop(&self, route: Route) -> Result<Option<NextHop>, Error> {
        let Route { local, remote } = route;
        let is_fresh = || self.links.next_hops.lock().get(&(local, remote)).is_some_and(|at| at.elapsed() < FRESH);
        if self.links.reaches_this_host(remote) || is_fresh() {
            return Ok(None);
        }
        let found = NextHop::find(local, remote, self.ifindex()).map_err(|e| no_route(route, &e))?;
        if found.is_none() {
            self.note_next_hop(route);
        }
        Ok(found)
    }

    /// Notes that packets can leave on `route`.
    pub fn note_next_hop(&self, route: Route) {
        let mut known = self.links.next_hops.lock();
        if known.len() >= CAPACITY {
            known.retain(|_, at| at.elapsed() < FRESH);
        }
        if known.len() < CAPACITY {
            known.insert((route.local, route.remote), Instant::now());
        }
    }

    /// Probes for a card at the end of `route` by a DREP that answers no request, so that no
    /// connection manager acts on it.
    pub fn probe(&self, route: Route) -> io::Result<Probe> {
        let id = CommId::default();
        let drep = Drep { local_comm_id: id, remote_comm_id: id, private_data: PrivateData::EMPTY };
        let mad = Mad { tid: TransactionId(0), modifier: 0, message: drep.into() }.to_bytes();
        let header = gsi_header(Psn::default());
        Probe::send(route.local, route.remote, self.ifindex(), |src_port| {
            let (src, dst) = (route.local, route.remote);
            let net = NetHeader { src, dst, src_port, traffic_class: 0, hop_limit: HOP_LIMIT, flow_label: 0, ident: 0 };
            packet_of(&header, &mad, &net)
        })
    }

    /// Returns in words why the far end of `route` is unreachable. `asked` is an earlier probe. May
    /// wait briefly, so call it only for explanations.
    pub fn why_unreachable(&self, route: Route, asked: Option<&Probe>) -> Option<String> {
        let name = self.adapter.netdev();
        match Netdev::find(self.ifindex()) {
            Ok(Some(netdev)) if !netdev.up => {
                return Some(format!("the interface {name} is down: `ip link set {name} up`"));
            }
            Ok(None) => return Some(format!("the interface {name} no longer exists")),
            _ => {}
        }
        self.wrong_interface(route)
            .or_else(|| self.network_answer(route, asked))
            .or_else(|| self.silent_neighbour(route))
    }

    /// Returns a text if packets to the peer leave through another interface.
    fn wrong_interface(&self, route: Route) -> Option<String> {
        let (source, peer) = (source_towards(route.remote).ok()?, route.remote.to_ip());
        let netdev = Netdev::all().into_iter().find(|netdev| netdev.addresses.contains(&source))?;
        let (other, own) = (netdev.name, self.adapter.netdev());
        (netdev.ifindex != self.ifindex()).then(|| {
            format!("packets to {peer} leave through {other}, and this device is {own}: set ROXE_NETDEV={other}")
        })
    }

    /// Returns a text if the peer, or the router to it, does not answer ARP.
    fn silent_neighbour(&self, route: Route) -> Option<String> {
        let (peer, own) = (route.remote.to_ip(), self.adapter.netdev());
        is_silent_neighbour(&std::fs::read_to_string("/proc/net/arp").ok()?, peer, own)
            .then(|| format!("no host on {own} answers that it has {peer} (ARP): the host is down or not on this link"))
    }

    fn network_answer(&self, route: Route, asked: Option<&Probe>) -> Option<String> {
        // Hosts limit the rate of ICMP messages, so an earlier answer is used.
        let answer = match asked.and_then(Probe::icmp_error) {
            Some(answer) => answer,
            None => match self.probe(route) {
                Ok(probe) => probe.wait_for_icmp_error(ANSWER_TIMEOUT)?,
                Err(e) => e,
            },
        };
        let peer = route.remote.to_ip();
        match answer.raw_os_error()? {
            libc::ECONNREFUSED => {
                Some(format!("{peer} reports that UDP port 4791 is closed: no RoCE device is open there"))
            }
            libc::EHOSTUNREACH | libc::ENETUNREACH => {
                Some(format!("the network answers that {peer} cannot be reached"))
            }
            libc::EACCES if is_broadcast(route.remote) => {
                Some(format!("{peer} is a broadcast address, which no queue pair can have as its GID"))
            }
            libc::EACCES | libc::EPERM => Some(format!("a firewall drops packets to UDP port 4791 of {peer}")),
            _ => None,
        }
    }
}

fn no_route(route: Route, error: &io::Error) -> Error {
    let (from, to) = (route.local.to_ip(), route.remote.to_ip());
    let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    Error::new(errno, format!("no route leads from {from} to {to}; see `ip route get {to} from {from}`"))
}

/// Returns the ETIMEDOUT error of a neighbour that has not told its link address.
pub fn no_answer(route: Route, hop: &NextHop) -> Error {
    let (peer, neighbour) = (route.remote.to_ip(), hop.neighbour());
    let protocol = if neighbour.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let whose = if neighbour == peer { String::new() } else { format!(", the next hop to {peer},") };
    let advice = "see that the host is up and on the same network";
    Error::new(libc::ETIMEDOUT, format!("{neighbour}{whose} does not answer {protocol}; {advice}"))
}

/// Returns true if `table` (`man 7 arp`) lists `peer` without a link address on this interface.
fn is_silent_neighbour(table: &str, peer: IpAddr, interface: &str) -> bool {
    table.lines().any(|line| {
        let columns: Vec<_> = line.split_ascii_whitespace().collect();
        matches!(columns[..], [ip, _, "0x0", _, _, on] if on == interface && ip.parse() == Ok(peer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_without_address_is_silent() {
        let table = "IP address HW type Flags HW address Mask Device\n\
                     192.0.2.2 0x1 0x2 02:00:00:00:00:02 * near\n\
                     192.0.2.3 0x1 0x0 00:00:00:00:00:00 * near\n";
        let is_silent = |last, interface| is_silent_neighbour(table, [192, 0, 2, last].into(), interface);
        assert!(is_silent(3, "near"));
        assert!(!is_silent(2, "near") && !is_silent(3, "far") && !is_silent(4, "near"));
    }
}
