//! Reasons for which a peer does not answer, as far as the network and this host know them.
//!
//! Used after a request failed or was not answered for a second, never on the data path.

use crate::engine::Engine;
use crate::gsi::packet_of;
use roxe_net::link::HOP_LIMIT;
use roxe_net::probe::{Probe, is_broadcast, source_towards};
use roxe_observe::port::Netdev;
use roxe_transport::cm::Route;
use roxe_wire::cm::{CommId, Drep, Mad, PrivateData, TransactionId, gsi_header};
use roxe_wire::{NetHeader, Psn};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Longest wait for an answer of the network; a more distant one is missed.
const PATIENCE: Duration = Duration::from_millis(50);

impl Engine {
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

    /// The reason why the end of `route` is unreachable, in words. `asked` is an earlier probe. May
    /// wait briefly, so call it only for explanations.
    pub fn why_unreachable(&self, route: Route, asked: Option<&Probe>) -> Option<String> {
        let name = self.adapter().netdev();
        match Netdev::find(self.ifindex()) {
            Ok(Some(netdev)) if !netdev.up => {
                return Some(format!("the interface {name} is down: `ip link set {name} up`"));
            }
            Ok(None) => return Some(format!("the interface {name} is gone")),
            _ => {}
        }
        self.wrong_interface(route)
            .or_else(|| self.network_answer(route, asked))
            .or_else(|| self.silent_neighbour(route))
    }

    /// Checks whether the peer is reached by another interface.
    fn wrong_interface(&self, route: Route) -> Option<String> {
        let (source, peer) = (source_towards(route.remote).ok()?, route.remote.to_ip());
        let netdev = Netdev::all().into_iter().find(|netdev| netdev.addresses.contains(&source))?;
        let (other, own) = (netdev.name, self.adapter().netdev());
        (netdev.ifindex != self.ifindex())
            .then(|| format!("the way to {peer} leads over {other}, and this device is {own}: set ROXE_NETDEV={other}"))
    }

    /// Checks whether the peer, or the router to it, does not answer ARP.
    fn silent_neighbour(&self, route: Route) -> Option<String> {
        let (peer, own) = (route.remote.to_ip(), self.adapter().netdev());
        is_silent_neighbour(&std::fs::read_to_string("/proc/net/arp").ok()?, peer, own)
            .then(|| format!("no host on {own} answers that it has {peer} (ARP): the host is down or not on this link"))
    }

    fn network_answer(&self, route: Route, asked: Option<&Probe>) -> Option<String> {
        // Hosts limit the rate of ICMP messages, so an earlier answer is used.
        let answer = match asked.and_then(Probe::answer) {
            Some(answer) => answer,
            None => match self.probe(route) {
                Ok(probe) => probe.wait_for_answer(PATIENCE)?,
                Err(e) => e,
            },
        };
        let peer = route.remote.to_ip();
        match answer.raw_os_error()? {
            libc::ECONNREFUSED => {
                Some(format!("{peer} answers that nobody listens on UDP port 4791: no RoCE card is open there"))
            }
            libc::EHOSTUNREACH | libc::ENETUNREACH => {
                Some(format!("the network answers that {peer} cannot be reached"))
            }
            libc::EACCES if is_broadcast(route.remote) => {
                Some(format!("{peer} is a broadcast address, which no queue pair can have as its GID"))
            }
            libc::EACCES | libc::EPERM => {
                Some(format!("a firewall does not let packets to UDP port 4791 of {peer} pass"))
            }
            _ => None,
        }
    }
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
