//! Alternate paths of connections: from one IP version of the loopback interface to the other.

use crate::common::ends::*;
use crate::common::*;
use roxe_provider::cm::{EventKind, Path, PortSpace};
use roxe_provider::wire::Gid;
use roxe_provider::{AsyncEventKind, AttrMask, MigState, Qp, QpAttr};
use std::net::{IpAddr, Ipv6Addr};

/// Returns the path over IPv6, if this machine has it.
fn other_way(node: &Node, path: &Path) -> Option<Path> {
    let here = Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
    let has = node.context.gid_entries().iter().any(|entry| entry.gid == here);
    has.then_some(Path { sgid: here, dgid: here, ..*path })
}

fn state(qp: &Qp) -> MigState {
    qp.query().0.path_mig_state
}

// clause: CM-LAP, CM-QP-ALTERNATE, CM-MIGRATED
#[test]
fn both_queue_pairs_load_alternate_path_and_migrate() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let (active, passive) = connected(&node, &listener);
    let Some(path) = other_way(&node, &active.id.path().unwrap()) else { return no_ipv6() };
    migrate_connection(&node, &path, &active, &passive);
    // The passive side may propose the path, too.
    let (active, passive) = connected(&node, &listener);
    migrate_connection(&node, &path, &passive, &active);
}

/// Moves a connection to an alternate path. `active` proposes the path and migrates first.
fn migrate_connection(node: &Node, path: &Path, active: &End, passive: &End) {
    passive.id.allow_alternates(true).unwrap();
    active.id.load_alternate(path).unwrap();
    assert_eq!(active.expect(EventKind::RouteResolved).status, 0);
    assert_eq!(passive.qp().query().0.alt_av.dgid, path.sgid);
    send_message(node, active.qp(), passive.qp());
    send_message(node, passive.qp(), active.qp());
    assert_eq!([active, passive].map(|end| state(end.qp())), [MigState::Armed; 2]);
    active.id.load_alternate(path).unwrap();
    assert_eq!(active.expect(EventKind::RouteError).status, 3, "one is armed already");
    active.qp().modify(&QpAttr::default(), AttrMask::PATH_MIG_STATE).unwrap();
    send_message(node, active.qp(), passive.qp());
    for end in [active, passive] {
        assert_eq!((state(end.qp()), end.qp().query().0.av.sgid), (MigState::Migrated, path.sgid));
        end.id.notify(AsyncEventKind::PathMig).unwrap();
        assert_eq!(end.id.path().unwrap().sgid, path.sgid);
    }
    // Messages travel over IPv6 from now on.
    active.id.disconnect().unwrap();
    passive.expect(EventKind::Disconnected);
    passive.id.disconnect().unwrap();
    assert_eq!(active.expect(EventKind::Disconnected).status, 0);
}

// clause: CM-LAP
#[test]
fn alternate_path_needs_consent_of_program() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let (active, passive) = connected(&node, &listener);
    let Some(path) = other_way(&node, &active.id.path().unwrap()) else { return no_ipv6() };
    active.id.load_alternate(&path).unwrap();
    assert_eq!(active.expect(EventKind::RouteError).status, -libc::EOPNOTSUPP);
    assert_eq!([&active, &passive].map(|end| state(end.qp())), [MigState::Migrated; 2]);
    assert_eq!(active.id.notify(AsyncEventKind::PathMig).unwrap_err().errno(), libc::EINVAL);

    passive.id.allow_alternates(true).unwrap();
    let nowhere = Gid([0xfd; 16]);
    active.id.load_alternate(&Path { dgid: nowhere, ..path }).unwrap();
    assert_eq!(active.expect(EventKind::RouteError).status, 8, "no address of the peer's");
    assert_eq!(active.id.load_alternate(&Path { sgid: nowhere, ..path }).unwrap_err().errno(), libc::EINVAL);
    let own = active.id.path().unwrap();
    active.id.load_alternate(&own).unwrap();
    assert_eq!(active.expect(EventKind::RouteError).status, 5, "it is the path in use");
    assert_eq!(listener.id.allow_alternates(true).unwrap_err().errno(), libc::EINVAL);
}
