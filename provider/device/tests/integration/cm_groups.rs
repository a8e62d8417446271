//! Multicast groups of datagram ids. Group addresses contain the process ID, because other test
//! processes run on this machine.

use crate::common::ends::*;
use crate::common::peer::{ROLE, program};
use crate::common::*;
use roxe_provider::cm::{
    Address, Event, EventData, EventKind, IbAddress, Id, IdOption, JoinFlags, PortSpace, UDP_QKEY, UdParam,
};
use roxe_provider::wire::{Gid, Qpn};
use roxe_provider::{Error, RecvRequest, SendOp, SendRequest, Service, UdDest, WcOpcode, WcStatus};
use std::net::Ipv4Addr;

const SEND_ONLY: JoinFlags = JoinFlags { send_only: true };
const FULL: JoinFlags = JoinFlags { send_only: false };

fn group(last: u8) -> Ipv4Addr {
    let [a, b, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(239, b, a, last)
}

fn group_address(group: Ipv4Addr) -> Address {
    Address::Ip((group, 0).into())
}

fn errno(result: Result<(), Error>) -> i32 {
    result.unwrap_err().errno()
}

/// Returns a datagram id with a queue pair.
fn end(node: &Node) -> End {
    let end = End::new(PortSpace::Udp);
    end.id.bind(&address(LOOPBACK)).unwrap();
    end.with_qp(node)
}

fn way(event: &Event) -> (u64, &UdParam) {
    match &event.data {
        EventData::Group { user_context, ud } => (*user_context, ud),
        other => panic!("{:?} says {other:?}", event.kind),
    }
}

fn join(end: &End, group: Ipv4Addr, flags: JoinFlags) -> UdParam {
    end.id.join_multicast(&group_address(group), flags, 5).unwrap();
    let event = end.expect(EventKind::MulticastJoin);
    assert_eq!((event.status, way(&event).0), (0, 5));
    way(&event).1.clone()
}

/// Sends to the group of an event and returns the members that received, by `wr_id`.
fn received_by(node: &Node, from: &End, to: &UdParam, members: &[(u64, &End)]) -> Vec<u64> {
    for (wr_id, member) in members {
        member.qp().post_recv(&RecvRequest { wr_id: *wr_id, sges: &[node.sge(4096 * *wr_id as usize, 200)] }).unwrap();
    }
    let av = node.av(to.ah_attr.sgid_index, to.ah_attr.dgid);
    let ud = Some(UdDest { av, qpn: Qpn::new(to.qp_num), qkey: roxe_provider::wire::Qkey(to.qkey) });
    from.qp().post_send(&[SendRequest { ud, ..request(1000, SendOp::Send, &[node.sge(0, 64)]) }]).unwrap();
    let mut got: Vec<_> =
        node.wait(1 + members.len()).into_iter().inspect(|cqe| assert_eq!(cqe.status, WcStatus::Success)).collect();
    got.retain(|cqe| cqe.opcode == WcOpcode::Recv);
    let mut numbers: Vec<_> = got.iter().map(|cqe| cqe.wr_id).collect();
    numbers.sort_unstable();
    numbers
}

// clause: CM-MULTICAST, UD-MULTICAST
#[test]
fn group_member_receives_datagrams() {
    let node = Node::open();
    let (a, b, sender) = (end(&node), end(&node), end(&node));
    let way = join(&a, group(1), FULL);
    assert_eq!((way.ah_attr.dgid, way.ah_attr.hop_limit, way.ah_attr.has_grh), (group(1).into(), 64, true));
    assert_eq!(node.context.gid(1, way.ah_attr.sgid_index.into()).unwrap(), Gid::from(Ipv4Addr::LOCALHOST));
    assert_eq!((way.qp_num, way.qkey, way.private_data.len()), (0xff_ffff, UDP_QKEY.0, 0));
    join(&b, group(1), FULL);
    let way = join(&sender, group(1), SEND_ONLY);
    assert_eq!(received_by(&node, &sender, &way, &[(1, &a), (2, &b)]), [1, 2]);
    b.id.leave_multicast(&group_address(group(1))).unwrap();
    assert_eq!(received_by(&node, &sender, &way, &[(3, &a)]), [3]);
    assert_eq!(errno(b.id.leave_multicast(&group_address(group(1)))), libc::EADDRNOTAVAIL, "once");
    for end in [&a, &b, &sender] {
        end.id.destroy();
        end.qp().check_detached().unwrap();
    }
}

// clause: CM-MULTICAST
#[test]
fn id_joins_several_groups_and_one_repeatedly() {
    let node = Node::open();
    let (member, sender) = (end(&node), end(&node));
    for last in [2, 3, 3] {
        join(&member, group(last), FULL);
    }
    let [second, third] = [2, 3].map(|last| join(&sender, group(last), SEND_ONLY));
    assert_eq!(received_by(&node, &sender, &second, &[(1, &member)]), [1]);
    member.id.leave_multicast(&group_address(group(3))).unwrap();
    assert_eq!(received_by(&node, &sender, &third, &[(2, &member)]), [2], "it joined twice");
    member.id.leave_multicast(&group_address(group(2))).unwrap();
    member.id.leave_multicast(&group_address(group(3))).unwrap();
    member.qp().check_detached().unwrap();
}

// clause: CM-MULTICAST
#[test]
fn queue_pair_joins_and_leaves_groups_with_its_id() {
    let node = Node::open();
    let (mut member, sender) = (End::new(PortSpace::Udp), end(&node));
    member.id.bind(&address(LOOPBACK)).unwrap();
    join(&member, group(4), FULL);
    member = member.with_qp(&node);
    let way = join(&sender, group(4), SEND_ONLY);
    assert_eq!(received_by(&node, &sender, &way, &[(1, &member)]), [1]);
    member.id.detach_qp();
    member.qp().check_detached().unwrap();
    assert_eq!(errno(member.id.leave_multicast(&group_address(group(5)))), libc::EADDRNOTAVAIL);
    member.id.leave_multicast(&group_address(group(4))).unwrap();
}

// clause: CM-MULTICAST
#[test]
fn invalid_group_membership_is_refused() {
    let node = Node::open();
    let unbound = End::new(PortSpace::Udp);
    assert_eq!(errno(unbound.id.join_multicast(&group_address(group(6)), FULL, 0)), libc::EINVAL);
    unbound.id.bind(&address("0.0.0.0:0")).unwrap();
    assert_eq!(errno(unbound.id.join_multicast(&group_address(group(6)), FULL, 0)), libc::EINVAL, "of no device");
    let reliable = End::new(PortSpace::Tcp);
    reliable.id.bind(&address(LOOPBACK)).unwrap();
    assert_eq!(errno(reliable.id.join_multicast(&group_address(group(6)), FULL, 0)), libc::EINVAL);
    let member = end(&node);
    for no_group in [address("127.0.0.1:0"), address("0.0.0.0:0"), address("[ff0e::6]:0")] {
        assert_eq!(errno(member.id.join_multicast(&no_group, FULL, 0)), libc::EINVAL, "{no_group:?}");
    }
    assert!(member.has_no_event());
    let gid = Gid::from(group(6));
    member.id.join_multicast(&IbAddress { gid, ..IbAddress::default() }.into(), FULL, 9).unwrap();
    assert_eq!(way(&member.expect(EventKind::MulticastJoin)).1.ah_attr.dgid, gid, "named by its GID");
}

// clause: CM-MULTICAST
#[test]
fn group_path_has_traffic_class_of_id() {
    let node = Node::open();
    let member = end(&node);
    member.id.set_option(IdOption::Tos(0x28)).unwrap();
    assert_eq!(join(&member, group(7), SEND_ONLY).ah_attr.traffic_class, 0x28);
    assert_eq!(member.id.service(), Service::Ud);
}

// clause: CM-MULTICAST
#[test]
fn group_beyond_device_limit_is_error_event() {
    let output = program("joins_all_groups").env(ROLE, "joins all").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Joins all groups of the device, in a process started by the test above.
#[test]
fn joins_all_groups() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let node = Node::open();
    let member = end(&node);
    let max = usize::try_from(node.context.device().attr().max_mcast_grp).unwrap();
    let name = |n: usize| Ipv4Addr::new(239, 255, (n >> 8) as u8, n as u8);
    (0..max).for_each(|n| drop(join(&member, name(n), FULL)));
    member.id.join_multicast(&group_address(name(max)), FULL, 8).unwrap();
    let event = member.expect(EventKind::MulticastError);
    assert_eq!((event.status, way(&event).0), (-libc::ENOMEM, 8));
    member.id.leave_multicast(&group_address(name(max))).unwrap();
    let id: &Id = &member.id;
    id.destroy();
    member.qp().check_detached().unwrap();
}
