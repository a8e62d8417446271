//! Addresses without a route, or with a neighbour that does not answer.

use crate::common::Node;
use crate::common::ends::*;
use crate::common::namespace::{self, VETH_UP};
use roxe_provider::cm::{EventKind, PortSpace};
use roxe_provider::wire::{Gid, PathMtu, Psn, Qpn};
use roxe_provider::{AhAttr, AttrMask, Error, QpAttr, QpState, Service};
use std::net::IpAddr;
use std::process::Command;

/// Runs `ip` and returns its output.
fn ip(args: &str) -> String {
    let output = Command::new("ip").args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {args}");
    String::from_utf8(output.stdout).unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse::<IpAddr>().unwrap().into()
}

/// Returns the index of the address of `node` in the family of `peer`.
fn index_towards(node: &Node, peer: Gid) -> u8 {
    let entries = node.context.gid_entries();
    let is_it = |gid: Gid| {
        gid.is_ipv4() == peer.is_ipv4() && !matches!(gid.to_ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
    };
    entries.iter().find(|entry| is_it(entry.gid)).unwrap().index
}

/// Moves a new queue pair to RTR towards `peer`.
fn to_rtr(node: &Node, peer: &str) -> Result<(), Error> {
    let qp = node.qp(Service::Rc);
    let init = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
    let port = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&init, AttrMask::STATE | port).unwrap();
    let attr = QpAttr {
        state: QpState::Rtr,
        av: node.av(index_towards(node, gid(peer)), gid(peer)),
        path_mtu: PathMtu::Mtu1024,
        dest_qpn: Qpn::new(17),
        rq_psn: Psn::new(1),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..QpAttr::default()
    };
    let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let result = qp.modify(&attr, AttrMask::STATE | path | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER);
    assert_eq!(qp.state(), if result.is_ok() { QpState::Rtr } else { QpState::Init });
    result
}

fn create_ah(node: &Node, peer: &str) -> Result<(), Error> {
    let (dgid, sgid_index) = (gid(peer), index_towards(node, gid(peer)));
    let attr = AhAttr { dgid, sgid_index, hop_limit: 64, port: 1, has_grh: true, ..AhAttr::default() };
    node.pd.create_ah(&attr).map(drop)
}

/// Resolves an address; returns kind and status of the event.
fn resolve(peer: &str) -> (EventKind, i32) {
    let end = End::new(PortSpace::Tcp);
    end.id.resolve_addr(None, &address(peer), 300).unwrap();
    let event = end.next();
    end.id.destroy();
    (event.kind, event.status)
}

/// Checks neighbours that answer while the program waits.
fn late_answers(node: &Node) {
    let answer_once_asked = |neighbour: &'static str| {
        std::thread::spawn(move || {
            while !ip(&format!("neigh show {neighbour} dev x0")).contains("INCOMPLETE") {}
            ip(&format!("neigh replace {neighbour} lladdr 02:00:00:00:00:07 nud reachable dev x0"));
        })
    };
    let answer = answer_once_asked("10.77.0.10");
    to_rtr(node, "10.77.0.10").unwrap();
    answer.join().unwrap();
    let end = End::new(PortSpace::Tcp);
    let answer = answer_once_asked("10.77.0.11");
    end.id.resolve_addr(None, &address("10.77.0.11:7471"), 20_000).unwrap();
    assert_eq!(end.id.resolve_addr(None, &address("10.77.0.11:7471"), 1).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(end.expect(EventKind::AddrResolved).status, 0);
    answer.join().unwrap();
    end.id.destroy();
    // The verb returns before the result is known.
    let end = End::new(PortSpace::Tcp);
    end.id.resolve_addr(None, &address("10.77.0.12:7471"), 20_000).unwrap();
    end.id.destroy();
    assert!(end.has_no_event());
}

// clause: AV-NEXT-HOP
#[test]
fn unreachable_peers_are_refused() {
    let make = "ip link set lo up && ip link add x0 type veth peer name x1 && ip addr add 10.77.0.1/24 dev x0 && \
                ip addr add 10.78.0.1/24 dev x1 && ip addr add fd77::1/64 dev x0 nodad && \
                ip link set x1 addrgenmode none && ip link set x1 up && ip link set x0 up && \
                ip neigh add 10.77.0.8 lladdr 02:00:00:00:00:08 nud permanent dev x0 && \
                ip neigh add fd77::8 lladdr 02:00:00:00:00:08 nud permanent dev x0 && \
                ip route add 198.51.100.0/24 via 10.77.0.8 && ip route add 203.0.114.0/24 via 10.77.0.9";
    namespace::inside("unreachable_peers_are_refused", &format!("{make} && {VETH_UP}"), "x0,x1", || {
        let node = Node::open();
        let errno = |result: Result<(), Error>| result.map_err(|e| e.errno());
        // Peers that need no neighbour, are a known neighbour, or are reached through one.
        for peer in ["10.77.0.1", "10.78.0.1", "10.77.0.8", "198.51.100.1", "fd77::1", "fd77::8"] {
            let outcomes = [to_rtr(&node, peer), create_ah(&node, peer)].map(errno);
            assert_eq!(outcomes, [Ok(()); 2], "{peer}");
        }
        for (peer, wanted) in [
            ("203.0.113.5", libc::ENETUNREACH),
            ("2001:db8::5", libc::ENETUNREACH),
            ("10.77.0.9", libc::ETIMEDOUT),
            ("203.0.114.1", libc::ETIMEDOUT),
            ("fd77::9", libc::ETIMEDOUT),
        ] {
            let outcomes = [to_rtr(&node, peer), create_ah(&node, peer)].map(errno);
            assert_eq!(outcomes, [Err(wanted); 2], "{peer}");
            let with_port = if peer.contains(':') { format!("[{peer}]:7471") } else { format!("{peer}:7471") };
            assert_eq!(resolve(&with_port), (EventKind::AddrError, -wanted), "{peer}");
        }
        assert_eq!(resolve("10.77.0.8:7471"), (EventKind::AddrResolved, 0));
        late_answers(&node);
    });
}
