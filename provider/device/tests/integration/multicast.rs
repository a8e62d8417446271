//! Multicast over real sockets, within and between processes. Group addresses contain the process
//! ID, so that test processes that run at the same time use different groups.

use crate::common::namespace;
use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::*;
use roxe_provider::wire::{Gid, NetHeader, Qkey, Qpn};
use roxe_provider::{AttrMask, Cqe, Qp, QpAttr, Service, WcOpcode, WcStatus};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Length of the GRH before the data of a datagram, in bytes.
const GRH_LEN: usize = 40;
/// Distance between receive buffers, in bytes.
const STRIDE: usize = 4096;
/// Offset of the data to send, in bytes.
const OUTBOX: usize = 1 << 20;

/// Returns an IPv4 group of this process as an IPv4-mapped GID.
fn mapped(last_octet: u8) -> Gid {
    let [a, b, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(239, b, a, last_octet).into()
}

/// Returns the group of [`mapped`] as an InfiniBand multicast GID.
fn embedded(last_octet: u8) -> Gid {
    let mut gid = mapped(last_octet);
    gid.0[..2].copy_from_slice(&[0xff, 0x0e]);
    gid
}

/// Creates a UD queue pair and posts receives for the buffers `first..first + count`. The wr_id of
/// a receive is the number of its buffer.
fn ud_qp(node: &Node, first: u64, count: u64) -> Arc<Qp> {
    let qp = node.qp(Service::Ud);
    activate(&qp);
    (first..first + count).for_each(|n| post_recv(&qp, n, node.sge(n as usize * STRIDE, STRIDE)));
    qp
}

fn send(node: &Node, from: &Qp, group: Gid, qpn: Qpn, seed: u8) {
    node.fill(OUTBOX, 100, seed);
    from.post_send(&[datagram(1000, node.av(0, group), qpn, &[node.sge(OUTBOX, 100)])]).unwrap();
}

/// Waits for `count` receive and `sends` send completions. Returns the receive completions, sorted
/// by wr_id.
fn wait_receives(node: &Node, count: usize, sends: usize) -> Vec<Cqe> {
    let mut all = node.wait(count + sends);
    assert!(all.iter().all(|cqe| cqe.status == WcStatus::Success), "{all:?}");
    all.retain(|cqe| cqe.opcode == WcOpcode::Recv);
    all.sort_by_key(|cqe| cqe.wr_id);
    all
}

fn wr_ids(cqes: &[Cqe]) -> Vec<u64> {
    cqes.iter().map(|cqe| cqe.wr_id).collect()
}

// clause: UD-MULTICAST
#[test]
fn every_attached_qp_receives_a_copy_even_the_sender() {
    let node = Node::open();
    let (sender, other, outsider) = (ud_qp(&node, 0, 4), ud_qp(&node, 10, 4), ud_qp(&node, 20, 4));
    let group = mapped(1);
    for qp in [&sender, &other] {
        qp.attach_mcast(group).unwrap();
        qp.attach_mcast(group).unwrap();
    }
    send(&node, &sender, group, Qpn::MULTICAST, 5);
    let got = wait_receives(&node, 2, 1);
    assert_eq!(wr_ids(&got), [0, 10], "each queue pair receives one copy, however often it is attached");
    assert!(got.iter().all(|cqe| cqe.src_qpn == sender.qpn() && cqe.byte_len == 140 && cqe.grh));
    let src = node.context.gid(1, 0).unwrap();
    let net = NetHeader { src, dst: group, hop_limit: 64, ..NetHeader::default() };
    for buffer in [0, 10 * STRIDE] {
        assert_eq!(node.bytes(buffer + GRH_LEN, 100), pattern(100, 5));
        // 12 BTH, 8 DETH, 100 payload, 4 ICRC.
        assert_eq!(node.bytes(buffer, GRH_LEN), net.to_grh(124));
    }
    // The outsider received no copy: its first receive is still posted.
    send(&node, &sender, src, outsider.qpn(), 6);
    assert_eq!(wr_ids(&wait_receives(&node, 1, 1)), [20]);
}

// clause: UD-MULTICAST, UD-QKEY
#[test]
fn multicast_checks_qkey_and_qpn_per_member() {
    let node = Node::open();
    let (a, b) = (ud_qp(&node, 0, 4), ud_qp(&node, 10, 4));
    let group = mapped(3);
    a.attach_mcast(group).unwrap();
    b.attach_mcast(group).unwrap();
    b.modify(&QpAttr { qkey: Qkey(QKEY.0 + 1), ..QpAttr::default() }, AttrMask::QKEY).unwrap();
    let unknown_before = counter(&node.context, "unknown_qp");
    // A datagram to the group's address but to a member's QPN is not multicast.
    send(&node, &a, group, a.qpn(), 1);
    send(&node, &a, group, Qpn::MULTICAST, 2);
    assert_eq!(wr_ids(&wait_receives(&node, 1, 2)), [0]);
    assert_eq!(node.bytes(GRH_LEN, 100), pattern(100, 2));
    assert!(counter(&node.context, "unknown_qp") > unknown_before);
}

// clause: UD-MULTICAST
#[test]
fn both_gid_forms_of_ipv4_group_are_same_group() {
    let node = Node::open();
    let (a, b) = (ud_qp(&node, 0, 4), ud_qp(&node, 10, 4));
    a.attach_mcast(embedded(4)).unwrap();
    b.attach_mcast(mapped(4)).unwrap();
    for (n, form) in [embedded(4), mapped(4)].into_iter().enumerate() {
        assert_eq!(node.av(0, form).dgid, mapped(4));
        send(&node, &a, form, Qpn::MULTICAST, 7);
        assert_eq!(wr_ids(&wait_receives(&node, 2, 1)), [n as u64, 10 + n as u64]);
    }
}

#[test]
fn only_ud_qps_attach_and_only_to_groups() {
    let node = Node::open();
    let (ud, rc) = (node.qp(Service::Ud), node.qp(Service::Rc));
    let unicast = node.context.gid(1, 0).unwrap();
    for (qp, gid) in [(&ud, unicast), (&ud, Gid::default()), (&rc, mapped(5))] {
        assert_eq!(qp.attach_mcast(gid).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(qp.detach_mcast(gid).unwrap_err().errno(), libc::EINVAL);
    }
}

/// Peer process: joins the group in its role and prints a line per datagram.
#[test]
fn peer() {
    let Ok(group) = std::env::var(ROLE) else { return };
    let node = Node::open();
    let qp = ud_qp(&node, 0, 32);
    qp.attach_mcast(group.parse::<IpAddr>().unwrap().into()).unwrap();
    println!("\n{MARK}ready");
    for n in 0..32 {
        let got = wait_receives(&node, 1, 0);
        let intact = node.bytes(n * STRIDE + GRH_LEN, 100) == pattern(100, n as u8);
        println!("{MARK}{} {intact}", got[0].wr_id);
        std::io::stdout().flush().unwrap();
    }
}

// clause: UD-MULTICAST
#[test]
fn every_process_receives_a_copy_despite_steering() {
    namespace::inside("every_process_receives_a_copy_despite_steering", namespace::LOOPBACK_UP, "lo", || {
        let group = mapped(6);
        let mut peers = [(); 3].map(|()| Peer::start(&group.to_ip().to_string(), &[]));
        peers.iter_mut().for_each(|peer| assert_eq!(peer.read_line(), "ready"));
        let node = Node::open();
        let sender = ud_qp(&node, 0, 32);
        sender.attach_mcast(group).unwrap();
        for n in 0..32 {
            send(&node, &sender, group, Qpn::MULTICAST, n);
            assert_eq!(wr_ids(&wait_receives(&node, 1, 1)), [u64::from(n)]);
            for peer in &mut peers {
                assert_eq!(peer.read_line(), format!("{n} true"));
            }
        }
    });
}

// clause: UD-MULTICAST
#[test]
fn ipv6_groups_work_on_ethernet() {
    // Linux delivers no IPv6 multicast on loopback.
    let setup =
        "ip link set lo up && ip link add x0 type bridge && ip addr add fd77::1/64 dev x0 nodad && ip link set x0 up";
    namespace::inside("ipv6_groups_work_on_ethernet", setup, "x0", || {
        let node = Node::open();
        let own_gid = Gid::from(IpAddr::V6("fd77::1".parse::<Ipv6Addr>().unwrap()));
        let index = node.context.gid_entries().iter().find(|entry| entry.gid == own_gid).unwrap().index;
        let (a, b) = (ud_qp(&node, 0, 4), ud_qp(&node, 10, 4));
        let group = |text: &str| Gid::from(IpAddr::V6(text.parse::<Ipv6Addr>().unwrap()));
        for (n, group) in [group("ff0e::77"), group("ff02::77"), embedded(7)].into_iter().enumerate() {
            a.attach_mcast(group).unwrap();
            b.attach_mcast(group).unwrap();
            let av = node.av(index, group);
            assert_eq!(av.dgid, group);
            a.post_send(&[datagram(1000, av, Qpn::MULTICAST, &[node.sge(OUTBOX, 100)])]).unwrap();
            assert_eq!(wr_ids(&wait_receives(&node, 2, 1)), [n as u64, 10 + n as u64]);
        }
    });
}
