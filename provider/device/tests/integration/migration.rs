//! Path migration of a connection between the IPv4 and IPv6 addresses of the loopback interface.

use crate::common::*;
use roxe_provider::wire::PathMtu;
use roxe_provider::{AsyncEventKind, AttrMask, MigState, Qp, QpAttr, Service, WcStatus};

/// Loads and arms an alternate path between the GIDs with index `index` of both nodes.
fn rearm(qp: &Qp, node: &Node, peer: &Node, index: u8) {
    let alt_av = node.av(index, peer.context.gid(1, index.into()).unwrap());
    let attr = QpAttr { alt_av, alt_port: 1, alt_timeout: 14, path_mig_state: MigState::Rearm, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE).unwrap();
}

fn write(from: (&Node, &Qp), to: &Node, seed: u8) {
    from.0.fill(0, 5000, seed);
    post(from.1, seed.into(), write_to(to, 8192), from.0.sge(0, 5000));
    assert_eq!(from.0.wait(1)[0].status, WcStatus::Success);
    assert_eq!(to.bytes(8192, 5000), pattern(5000, seed));
}

// clause: APM-ARM, APM-FORCED, APM-FOLLOW
#[test]
fn connection_migrates_to_alternate_addresses() {
    let (a, b) = (Node::open(), Node::open());
    let is_v6 = |entry: &&roxe_provider::GidEntry| !entry.gid.is_ipv4();
    let Some(index) = a.context.gid_entries().iter().find(is_v6).map(|entry| entry.index) else { return no_ipv6() };
    let (qa, qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    rearm(&qa, &a, &b, index);
    rearm(&qb, &b, &a, index);
    write((&a, &qa), &b, 1);
    write((&b, &qb), &a, 2);
    let states = || [&qa, &qb].map(|qp| qp.query().0.path_mig_state);
    assert_eq!(states(), [MigState::Armed; 2]);

    qa.modify(&QpAttr::default(), AttrMask::PATH_MIG_STATE).unwrap();
    write((&a, &qa), &b, 3);
    write((&b, &qb), &a, 4);
    assert_eq!(states(), [MigState::Migrated; 2]);
    for (node, qp) in [(&a, &qa), (&b, &qb)] {
        let event = node.context.next_async_event().unwrap();
        assert_eq!((event.kind, event.user_context), (AsyncEventKind::PathMig, 7));
        assert_eq!(qp.query().0.av.sgid, node.context.gid(1, index.into()).unwrap());
    }
}
