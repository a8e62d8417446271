//! Connections and lookups between ids of one process.

use crate::common::ends::*;
use crate::common::*;
use roxe_provider::cm::{
    Address, Channel, ConnParam, Ece, EventData, EventKind, IbAddress, Id, IdOption, Path, PortSpace, RejReason,
    UDP_QKEY,
};
use roxe_provider::wire::cm::VendorId;
use roxe_provider::wire::{PathMtu, Qpn};
use roxe_provider::{AsyncEventKind, AttrMask, Error, QpAttr, QpState, Service, XrcdInit};
use std::sync::Arc;

/// Maximum private data by verb and kind of id, which is also its length in the peer's event.
mod private_data {
    /// `connect` of an id with IP addresses, which take a part of 92 bytes.
    pub(super) const CONNECT: usize = 56;
    /// `connect` of an id with an `AF_IB` address.
    pub(super) const CONNECT_IB: usize = 92;
    /// `connect` of a datagram id with IP addresses.
    pub(super) const LOOKUP: usize = 180;
    /// `accept`.
    pub(super) const ACCEPT: usize = 196;
    /// `accept` and `reject` of a datagram id.
    pub(super) const LOOKUP_REPLY: usize = 136;
    /// `reject`.
    pub(super) const REJECT: usize = 148;
}

fn errno(result: Result<(), Error>) -> i32 {
    result.unwrap_err().errno()
}

// clause: CM-IP-HEADER, CM-DEPTH, CM-PATH, CM-QP-INIT, CM-QP-RTR, CM-QP-RTS
#[test]
fn ids_connect_exchange_and_disconnect() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    listener.id.set_user_context(77);
    let active = End::resolved(PortSpace::Tcp, &listener.address()).with_qp(&node);
    assert_eq!(active.qp().state(), QpState::Init);
    active.id.connect(&conn_param(b"hello")).unwrap();

    let (passive, request) = listener.next_request();
    assert_eq!(
        (request.listener.as_ref().unwrap().user_context(), passive.id.user_context(), request.status),
        (77, 0, 0)
    );
    let requested = conn_param_of(&request);
    assert_eq!(requested.private_data, padded(b"hello", private_data::CONNECT));
    assert_eq!((requested.responder_resources, requested.initiator_depth), (3, 4), "seen from this side");
    assert_eq!((requested.retry_count, requested.rnr_retry_count, requested.qp_num), (7, 7, active.qp().qpn().get()));
    assert_eq!((passive.id.local_addr(), passive.id.peer_addr()), (active.id.peer_addr(), active.id.local_addr()));
    let (out, back) = (active.id.path().unwrap(), passive.id.path().unwrap());
    assert_eq!((out.sgid, out.dgid, out.mtu, out.flow_label), (back.dgid, back.sgid, back.mtu, back.flow_label));

    let passive = passive.with_qp(&node);
    passive.id.accept(&ConnParam { initiator_depth: 2, ..conn_param(b"welcome") }).unwrap();
    let established = active.expect(EventKind::Established);
    let granted = conn_param_of(&established);
    assert_eq!(granted.private_data, padded(b"welcome", private_data::ACCEPT));
    assert_eq!((granted.responder_resources, granted.initiator_depth), (2, 3), "not above the requested depths");
    assert_eq!(granted.qp_num, passive.qp().qpn().get());
    passive.expect(EventKind::Established);
    let ((a, _), (b, _)) = (active.qp().query(), passive.qp().query());
    assert_eq!((a.state, b.state, a.sq_psn, a.rq_psn), (QpState::Rts, QpState::Rts, b.rq_psn, b.sq_psn));
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic, b.max_rd_atomic, b.max_dest_rd_atomic), (3, 2, 2, 3));
    assert_eq!((a.timeout, b.timeout, a.path_mtu), (17, 17, out.mtu));
    send_message(&node, active.qp(), passive.qp());
    send_message(&node, passive.qp(), active.qp());

    active.id.disconnect().unwrap();
    assert_eq!(active.qp().state(), QpState::Err);
    assert_eq!(passive.expect(EventKind::Disconnected).status, 0);
    assert_eq!(passive.qp().state(), QpState::Rts, "queued completions can still be polled");
    passive.id.disconnect().unwrap();
    assert_eq!(active.expect(EventKind::Disconnected).status, 0);
    active.expect(EventKind::TimewaitExit);
    passive.expect(EventKind::TimewaitExit);
    active.id.disconnect().unwrap();
    for end in [active, passive, listener] {
        end.id.destroy();
    }
}

// clause: CM-ESTABLISH
#[test]
fn program_that_moves_its_qp_calls_establish() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::resolved(PortSpace::Tcp, &listener.address());
    let qp = node.qp(Service::Rc);
    let give = |id: &Id, state| {
        let (attr, mask) = id.init_qp_attr(state).unwrap();
        assert_eq!(attr.state, state);
        qp.modify(&attr, mask).unwrap();
    };
    give(&active.id, QpState::Init);
    assert_eq!(active.id.init_qp_attr(QpState::Rtr).unwrap_err().errno(), libc::EINVAL);
    active.id.connect(&ConnParam { qp_num: qp.qpn().get(), ..conn_param(b"") }).unwrap();
    assert_eq!(active.id.init_qp_attr(QpState::Rtr).unwrap_err().errno(), libc::EINVAL, "the peer has not replied");
    let (passive, request) = listener.next_request();
    assert_eq!(conn_param_of(&request).qp_num, qp.qpn().get());
    let passive = passive.with_qp(&node);
    passive.id.accept(&conn_param(b"")).unwrap();
    assert_eq!(conn_param_of(&active.expect(EventKind::ConnectResponse)).qp_num, passive.qp().qpn().get());
    [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().for_each(|state| give(&active.id, state));
    assert_eq!(active.id.init_qp_attr(QpState::Err).unwrap_err().errno(), libc::EINVAL);
    active.id.establish().unwrap();
    passive.expect(EventKind::Established);
    assert_eq!(errno(active.id.establish()), libc::EINVAL, "once");
    send_message(&node, &qp, passive.qp());
}

// clause: CM-ESTABLISH
#[test]
fn comm_est_event_establishes_connection() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::resolved(PortSpace::Tcp, &listener.address());
    active.id.connect(&conn_param(b"")).unwrap();
    let passive = listener.next_request().0.with_qp(&node);
    assert_eq!(errno(passive.id.notify(AsyncEventKind::CommEst)), libc::EINVAL, "too early");
    passive.id.accept(&conn_param(b"")).unwrap();
    active.expect(EventKind::ConnectResponse);
    assert_eq!(errno(passive.id.notify(AsyncEventKind::SqDrained)), libc::EINVAL);
    passive.id.notify(AsyncEventKind::CommEst).unwrap();
    passive.expect(EventKind::Established);
    assert_eq!(errno(passive.id.notify(AsyncEventKind::CommEst)), libc::EISCONN);
}

// clause: CM-REJECT
#[test]
fn rejection_carries_reason_and_data() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::resolved(PortSpace::Tcp, &listener.address()).with_qp(&node);
    active.id.connect(&conn_param(b"")).unwrap();
    let (passive, _) = listener.next_request();
    assert_eq!(errno(passive.id.reject(&[0; 149], RejReason::ConsumerDefined)), libc::EINVAL);
    passive.id.reject(b"no", RejReason::ConsumerDefined).unwrap();
    assert_eq!(errno(passive.id.accept(&conn_param(b""))), libc::EINVAL);
    let event = active.expect(EventKind::Rejected);
    assert_eq!((event.status, &conn_param_of(&event).private_data), (28, &padded(b"no", private_data::REJECT)));
    assert_eq!(active.qp().state(), QpState::Err);
    assert_eq!(errno(active.id.connect(&conn_param(b""))), libc::EINVAL, "an id connects once");
    assert_eq!(active.id.disconnect(), Ok(()));

    let other = End::resolved(PortSpace::Tcp, &listener.address());
    other.id.connect(&conn_param(b"")).unwrap();
    let passive = listener.next_request().0.with_qp(&node);
    passive.id.accept(&conn_param(b"")).unwrap();
    other.expect(EventKind::ConnectResponse);
    other.id.reject(b"changed my mind", RejReason::ConsumerDefined).unwrap();
    let event = passive.expect(EventKind::Rejected);
    assert_eq!(conn_param_of(&event).private_data, padded(b"changed my mind", private_data::REJECT));
}

#[test]
fn connect_request_waits_for_listener() {
    assert!((0..20).any(|_| a_late_listener_is_heard()), "no request waits");
}

/// Returns true if a listener that comes late gets the request; false if this machine stalls.
fn a_late_listener_is_heard() -> bool {
    let (late, other) = (End::new(PortSpace::Tcp), End::listening(PortSpace::Tcp, LOOPBACK));
    late.id.bind(&address(LOOPBACK)).unwrap();
    let [active, second] = [&late, &other].map(|to| End::resolved(PortSpace::Tcp, &to.address()));
    active.id.connect(&conn_param(b"early")).unwrap();
    // Once a later request has arrived, the first has found no listener.
    second.id.connect(&conn_param(b"")).unwrap();
    other.next_request();
    late.id.listen(1).unwrap();
    if wait_any(&[&late.channel, &active.channel]) == 1 {
        assert_eq!(active.expect(EventKind::Rejected).status, 8);
        return false;
    }
    late.next_request().0.id.accept(&conn_param(b"")).unwrap();
    active.expect(EventKind::ConnectResponse);
    true
}

// clause: CM-LISTEN
#[test]
fn connect_without_listener_is_rejected() {
    let refusals = [(PortSpace::Tcp, EventKind::Rejected, 8), (PortSpace::Udp, EventKind::Unreachable, 1)];
    for (space, kind, status) in refusals {
        // The bound port keeps other tests from listening there.
        let holder = End::new(space);
        holder.id.bind(&address(LOOPBACK)).unwrap();
        let active = End::resolved(space, &holder.address());
        active.id.connect(&conn_param(b"")).unwrap();
        assert_eq!(active.expect(kind).status, status);
    }
}

// clause: CM-SIDR
#[test]
fn lookup_finds_datagram_service() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Udp, LOOPBACK);
    let client = End::resolved(PortSpace::Udp, &listener.address()).with_qp(&node);
    assert_eq!(client.qp().state(), QpState::Rts);
    client.id.connect(&conn_param(b"who are you")).unwrap();
    let (server, request) = listener.next_request();
    let EventData::Ud(param) = request.data else { panic!("{:?}", request.data) };
    assert_eq!(param.private_data, padded(b"who are you", private_data::LOOKUP));
    assert_eq!(server.id.service(), Service::Ud);
    let server = server.with_qp(&node);
    server.id.accept(&conn_param(b"me")).unwrap();
    assert_eq!(errno(server.id.accept(&conn_param(b"me"))), libc::EINVAL, "once");
    let event = client.expect(EventKind::Established);
    let EventData::Ud(found) = event.data else { panic!("{:?}", event.data) };
    assert_eq!(found.private_data, padded(b"me", private_data::LOOKUP_REPLY));
    assert_eq!((found.qp_num, found.qkey), (server.qp().qpn().get(), UDP_QKEY.0));
    let av = node.context.resolve_av(&found.ah_attr).unwrap();
    post_recv(server.qp(), 1, node.sge(0, 104));
    let sges = [node.sge(128, 64)];
    let mut request = datagram(2, av, Qpn::new(found.qp_num), &sges);
    request.ud.as_mut().unwrap().qkey = UDP_QKEY;
    client.qp().post_send(&[request]).unwrap();
    node.wait(2);
}

// clause: CM-SIDR
#[test]
fn lookup_can_be_rejected() {
    let listener = End::listening(PortSpace::Udp, LOOPBACK);
    let client = End::resolved(PortSpace::Udp, &listener.address());
    client.id.connect(&conn_param(b"")).unwrap();
    let (server, _) = listener.next_request();
    assert_eq!(errno(server.id.reject(&[0; 137], RejReason::ConsumerDefined)), libc::EINVAL);
    server.id.reject(b"busy", RejReason::ConsumerDefined).unwrap();
    let event = client.expect(EventKind::Unreachable);
    let EventData::Ud(reply) = event.data else { panic!("{:?}", event.data) };
    assert_eq!((event.status, reply.private_data), (2, padded(b"busy", private_data::LOOKUP_REPLY)));
}

#[test]
fn verbs_in_wrong_state_are_refused() {
    let node = Node::open();
    let to = address("127.0.0.1:9");
    let all = |id: &Id| {
        let attr = |state| id.init_qp_attr(state).map(|_| ());
        [
            id.resolve_route(1),
            id.connect(&conn_param(b"")),
            id.accept(&conn_param(b"")),
            id.reject(b"", RejReason::ConsumerDefined),
            id.establish(),
            id.disconnect(),
            id.notify(AsyncEventKind::CommEst),
            attr(QpState::Rtr),
        ]
        .map(errno)
    };
    let end = End::new(PortSpace::Tcp);
    assert_eq!(all(&end.id), [libc::EINVAL; 8]);
    assert_eq!(errno(end.id.attach_qp(&node.qp(Service::Rc))), libc::EINVAL, "no device");
    assert_eq!((end.id.device().is_none(), end.id.port(), end.id.local_addr()), (true, 0, None));
    end.id.bind(&address(LOOPBACK)).unwrap();
    assert_eq!(all(&end.id), [libc::EINVAL; 8]);
    assert_eq!(errno(end.id.bind(&address(LOOPBACK))), libc::EINVAL, "it has an address");
    assert_eq!(errno(end.id.resolve_addr(None, &address("[::1]:9"), 1)), libc::EINVAL, "of another family");
    end.id.resolve_addr(None, &to, 1).unwrap();
    end.expect(EventKind::AddrResolved);
    assert_eq!(errno(end.id.resolve_addr(None, &to, 1)), libc::EINVAL, "it is resolved");
    assert_eq!(errno(end.id.listen(1)), libc::EINVAL);
    assert_eq!(errno(end.id.connect(&conn_param(b""))), libc::EINVAL, "no route");
    end.id.resolve_route(1).unwrap();
    end.expect(EventKind::RouteResolved);
    assert_eq!(errno(end.id.resolve_route(1)), libc::EINVAL);
    end.id.attach_qp(&node.qp(Service::Rc)).unwrap();
    assert_eq!(errno(end.id.attach_qp(&node.qp(Service::Rc))), libc::EINVAL, "it has one");
    end.id.detach_qp();
    assert!(end.id.qp().is_none());

    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    assert_eq!(errno(listener.id.listen(1)), libc::EINVAL);
    assert_eq!(errno(listener.id.resolve_addr(None, &to, 1)), libc::EINVAL);
    assert_eq!(all(&listener.id), [libc::EINVAL; 8]);
    end.id.destroy();
    end.id.destroy();
    assert_eq!(errno(end.id.connect(&conn_param(b""))), libc::EINVAL);
}

#[test]
fn too_long_private_data_is_refused() {
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::resolved(PortSpace::Tcp, &listener.address());
    assert_eq!(errno(active.id.connect(&conn_param(&[1; private_data::CONNECT + 1]))), libc::EINVAL);
    active.id.connect(&conn_param(&[1; private_data::CONNECT])).unwrap();
    let (passive, request) = listener.next_request();
    assert_eq!(conn_param_of(&request).private_data, [1; private_data::CONNECT]);
    assert_eq!(errno(passive.id.accept(&conn_param(&[1; private_data::ACCEPT + 1]))), libc::EINVAL);
    passive.id.accept(&conn_param(&[2; private_data::ACCEPT])).unwrap();
    assert_eq!(conn_param_of(&active.expect(EventKind::ConnectResponse)).private_data, [2; private_data::ACCEPT]);

    let listener = End::listening(PortSpace::Udp, LOOPBACK);
    let client = End::resolved(PortSpace::Udp, &listener.address());
    assert_eq!(errno(client.id.connect(&conn_param(&[1; private_data::LOOKUP + 1]))), libc::EINVAL);
    client.id.connect(&conn_param(&[1; private_data::LOOKUP])).unwrap();
    let (server, _) = listener.next_request();
    assert_eq!(errno(server.id.accept(&conn_param(&[1; private_data::LOOKUP_REPLY + 1]))), libc::EINVAL);
    server.id.accept(&conn_param(&[1; private_data::LOOKUP_REPLY])).unwrap();
    client.expect(EventKind::Established);
}

// clause: CM-BACKLOG
#[test]
fn backlog_bounds_pending_requests() {
    let listener = End::new(PortSpace::Tcp);
    listener.id.bind(&address(LOOPBACK)).unwrap();
    listener.id.listen(2).unwrap();
    let ask = || {
        let end = End::resolved(PortSpace::Tcp, &listener.address());
        end.id.connect(&conn_param(b"")).unwrap();
        end
    };
    let asking = [ask(), ask(), ask()];
    assert_eq!(asking[2].expect(EventKind::Rejected).status, 28);
    let (first, _) = listener.next_request();
    let fourth = ask();
    listener.next_request();
    listener.next_request();
    assert!(listener.has_no_event() && fourth.has_no_event() && asking[1].has_no_event());
    drop(first);
}

#[test]
fn destroyed_listener_rejects_pending_requests() {
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let (accepted, pending) =
        (End::resolved(PortSpace::Tcp, &listener.address()), End::resolved(PortSpace::Tcp, &listener.address()));
    accepted.id.connect(&conn_param(b"1")).unwrap();
    let (passive, _) = listener.next_request();
    pending.id.connect(&conn_param(b"2")).unwrap();
    // Wait until the request has arrived.
    wait_any(&[&listener.channel]);
    listener.id.destroy();
    assert_eq!(pending.expect(EventKind::Rejected).status, 28);
    assert!(listener.has_no_event());
    passive.id.accept(&conn_param(b"")).unwrap();
    accepted.expect(EventKind::ConnectResponse);
}

#[test]
fn id_destroyed_in_any_state_notifies_peer() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let (active, passive) = connected(&node, &listener);
    active.id.destroy();
    passive.expect(EventKind::Disconnected);
    passive.id.disconnect().unwrap();
    passive.expect(EventKind::TimewaitExit);

    let asking = End::resolved(PortSpace::Tcp, &listener.address());
    asking.id.connect(&conn_param(b"")).unwrap();
    let (passive, _) = listener.next_request();
    passive.id.destroy();
    assert_eq!(asking.expect(EventKind::Rejected).status, 28);

    let (active, passive) = connected(&node, &listener);
    passive.id.disconnect().unwrap();
    active.expect(EventKind::Disconnected);
    active.id.destroy();
    passive.expect(EventKind::Disconnected);
    assert!(active.has_no_event());
}

#[test]
fn migrated_id_keeps_its_events() {
    let (listener, other) = (End::listening(PortSpace::Tcp, LOOPBACK), Channel::create().unwrap());
    let active = End::new(PortSpace::Tcp);
    active.id.resolve_addr(None, &listener.address(), 1).unwrap();
    active.id.migrate(&other).unwrap();
    assert!(active.has_no_event());
    assert_eq!(next(&other).kind, EventKind::AddrResolved);
    active.id.resolve_route(1).unwrap();
    assert_eq!(next(&other).kind, EventKind::RouteResolved);
    active.id.connect(&conn_param(b"")).unwrap();
    let new_home = Channel::create().unwrap();
    wait_any(&[&listener.channel]);
    listener.id.migrate(&new_home).unwrap();
    assert!(listener.has_no_event());
    let request = next(&new_home);
    assert_eq!(request.kind, EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(&request.id.channel(), &new_home), "later events of the request arrive there, too");
    assert!(Arc::ptr_eq(&listener.id.channel(), &new_home));
}

// clause: CM-LISTEN
#[test]
fn port_is_shared_with_reuse_addr_only() {
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let taken = listener.address();
    let other = End::new(PortSpace::Tcp);
    assert_eq!(errno(other.id.bind(&taken)), libc::EADDRINUSE);
    other.id.bind(&address(LOOPBACK)).unwrap();
    // Another test's datagram service may have this port number.
    let binds_in_both_spaces = || {
        let (stream, datagrams) = (End::listening(PortSpace::Tcp, LOOPBACK), End::new(PortSpace::Udp));
        datagrams.id.bind(&stream.address()).is_ok()
    };
    assert!((0..5).any(|_| binds_in_both_spaces()), "the port spaces are not apart");

    let [a, b] = [(); 2].map(|()| End::new(PortSpace::Tcp));
    a.id.set_option(IdOption::ReuseAddr(true)).unwrap();
    a.id.bind(&address("127.0.0.1:0")).unwrap();
    b.id.set_option(IdOption::ReuseAddr(true)).unwrap();
    b.id.bind(&address("127.0.0.1:0")).unwrap();
    assert_ne!(a.address(), b.address(), "each got a port of its own");
    a.id.listen(1).unwrap();
    assert_eq!(errno(a.id.set_option(IdOption::ReuseAddr(true))), libc::EINVAL);
    assert_eq!(errno(b.id.set_option(IdOption::ReuseAddr(false))), libc::EINVAL);
}

// clause: CM-LOOPBACK
#[test]
fn unreachable_addresses_are_errors() {
    let end = End::new(PortSpace::Tcp);
    assert_eq!(errno(end.id.bind(&address("192.0.2.1:7"))), libc::EADDRNOTAVAIL);
    end.id.bind(&address("127.0.0.1:0")).unwrap();
    assert!(end.address().port() != 0);
    assert_eq!(end.id.device().unwrap().name(), "roxe0");

    let elsewhere = End::new(PortSpace::Tcp);
    elsewhere.id.bind(&address("127.0.0.77:0")).unwrap();
    assert!(elsewhere.id.local_addr().unwrap().is_any(), "no device has it");

    let end = End::new(PortSpace::Tcp);
    assert_eq!(
        errno(end.id.resolve_addr(Some(&address("192.0.2.1:0")), &address("127.0.0.1:1"), 1)),
        libc::EADDRNOTAVAIL
    );
    end.id.resolve_addr(Some(&address("0.0.0.0:0")), &address("255.255.255.255:1"), 1).unwrap();
    let failed = end.expect(EventKind::AddrError);
    assert!(failed.status < 0, "{failed:?}");
    end.id.resolve_addr(None, &address("0.0.0.0:4"), 1).unwrap();
    end.expect(EventKind::AddrResolved);
    assert_eq!(end.id.peer_addr(), Some(address("127.0.0.1:4")), "all addresses stand for this host");
}

// clause: CM-PATH, CM-FLOW-LABEL
#[test]
fn options_reach_path_and_queue_pair() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::new(PortSpace::Tcp);
    active.id.set_option(IdOption::Tos(0x20)).unwrap();
    active.id.set_option(IdOption::AckTimeout(14)).unwrap();
    assert_eq!(errno(active.id.set_option(IdOption::AckTimeout(32))), libc::EINVAL);
    active.id.set_option(IdOption::AfOnly(true)).unwrap();
    active.resolve(&listener.address());
    assert_eq!(errno(active.id.set_option(IdOption::AfOnly(true))), libc::EINVAL);
    let (path, local) = (active.id.path().unwrap(), active.id.local_addr().unwrap());
    assert_eq!((path.traffic_class, path.packet_life_time, path.hop_limit), (0x20, 13, 64));
    let label = (u32::from(local.port()) * 31 + u32::from(listener.address().port())) & 0xf_ffff;
    assert_eq!(path.flow_label, label);
    let active = active.with_qp(&node);
    active.id.set_local_ece(Ece { vendor_id: VendorId::new(0x1234), options: 5 }).unwrap();
    active.id.connect(&conn_param(b"")).unwrap();
    let passive = listener.next_request().0.with_qp(&node);
    assert_eq!(passive.id.remote_ece(), Ece { vendor_id: VendorId::new(0x1234), options: 5 });
    assert_eq!(passive.id.path().unwrap().traffic_class, 0x20);
    passive.id.set_local_ece(Ece { vendor_id: VendorId::new(0x1234), options: 1 }).unwrap();
    passive.id.set_option(IdOption::AckTimeout(13)).unwrap();
    passive.id.accept(&conn_param(b"")).unwrap();
    active.expect(EventKind::Established);
    assert_eq!(active.id.remote_ece().options, 1);
    let ((a, _), (b, _)) = (active.qp().query(), passive.qp().query());
    assert_eq!((a.timeout, b.timeout, a.av.traffic_class, b.av.traffic_class), (14, 13, 0x20, 0x20));
    let datagrams = End::new(PortSpace::Udp);
    assert_eq!(errno(datagrams.id.set_option(IdOption::AckTimeout(14))), libc::EINVAL);
}

#[test]
fn path_option_replaces_resolve_route() {
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::new(PortSpace::Tcp);
    active.id.resolve_addr(None, &listener.address(), 1).unwrap();
    active.expect(EventKind::AddrResolved);
    let here = listener.address().gid();
    let path = Path {
        sgid: here,
        dgid: here,
        flow_label: 9,
        hop_limit: 3,
        traffic_class: 0,
        sl: 0,
        pkey: 0xffff,
        mtu: PathMtu::Mtu512,
        rate: 0,
        packet_life_time: 16,
    };
    let strange = Path { sgid: address("192.0.2.1:0").gid(), ..path };
    assert_eq!(errno(active.id.set_option(IdOption::Path(strange))), libc::EINVAL);
    active.id.set_option(IdOption::Path(path)).unwrap();
    active.expect(EventKind::RouteResolved);
    assert_eq!(active.id.path(), Some(path));
    active.id.connect(&conn_param(b"")).unwrap();
    let found = listener.next_request().0.id.path().unwrap();
    assert_eq!((found.mtu, found.hop_limit, found.flow_label), (PathMtu::Mtu512, 3, 9));
}

#[test]
fn ipv6_and_wildcard_addresses_connect() {
    let node = Node::open();
    if node.context.gid_entries().iter().all(|entry| entry.gid.is_ipv4()) {
        return no_ipv6();
    }
    let listener = End::listening(PortSpace::Tcp, "[::]:0");
    let port = listener.address().port();
    for (to, is_ipv4) in [("[::1]:0", false), ("127.0.0.1:0", true)] {
        let active = End::resolved(PortSpace::Tcp, &address(to).with_port(port));
        active.id.connect(&conn_param(b"")).unwrap();
        let (passive, _) = listener.next_request();
        assert_eq!(passive.id.local_addr().unwrap().gid().is_ipv4(), is_ipv4);
        assert_eq!(passive.id.peer_addr(), active.id.local_addr());
    }
    let (narrow, beside) = narrow_and_beside();
    narrow.id.listen(1).unwrap();
    let asks = || {
        let at = narrow.id.local_addr().unwrap().port();
        let active = End::resolved(PortSpace::Tcp, &address("127.0.0.1:0").with_port(at));
        active.id.connect(&conn_param(b"")).unwrap();
        active
    };
    assert_eq!(asks().expect(EventKind::Rejected).status, 8);
    beside.id.listen(1).unwrap();
    let _active = asks();
    beside.next_request();
}

/// Returns two ids bound to one port, one for all IPv6 and one for all IPv4 addresses.
fn narrow_and_beside() -> (End, End) {
    loop {
        let (narrow, beside) = (End::new(PortSpace::Tcp), End::new(PortSpace::Tcp));
        [&narrow, &beside].iter().for_each(|end| end.id.set_option(IdOption::AfOnly(true)).unwrap());
        narrow.id.bind(&address("[::]:0")).unwrap();
        match beside.id.bind(&address("0.0.0.0:0").with_port(narrow.address().port())) {
            Ok(()) => return (narrow, beside),
            // Another test has the IPv4 port: try the next one.
            Err(e) => assert_eq!(e.errno(), libc::EADDRNOTAVAIL),
        }
    }
}

fn ib(gid_of: &str, sid: u64, sid_mask: u64) -> Address {
    Address::Ib(IbAddress { pkey: 0xffff, gid: address(gid_of).gid(), sid, sid_mask, ..IbAddress::default() })
}

// clause: CM-IB-SERVICE
#[test]
fn ib_addresses_name_services() {
    // Differs from that of another process that runs these tests.
    let sid = 0x013f_4000 | u64::from(std::process::id() & 0x3fff);
    let wrong = End::new(PortSpace::Tcp);
    assert_eq!(errno(wrong.id.bind(&ib(LOOPBACK, 0x0111_0007, !0))), libc::EPROTONOSUPPORT);
    let listener = End::new(PortSpace::Ib);
    listener.id.bind(&ib(LOOPBACK, sid, !0)).unwrap();
    listener.id.listen(1).unwrap();
    let active = End::new(PortSpace::Ib);
    active.resolve(&ib(LOOPBACK, sid, !0));
    assert_eq!(active.id.path().unwrap().hop_limit, 1);
    assert_eq!(errno(active.id.connect(&conn_param(&[3; 93]))), libc::EINVAL);
    active.id.connect(&conn_param(&[3; 92])).unwrap();
    let (passive, request) = listener.next_request();
    assert_eq!(conn_param_of(&request).private_data, [3; private_data::CONNECT_IB]);
    let Some(Address::Ib(local)) = passive.id.local_addr() else { panic!("{:?}", passive.id.local_addr()) };
    assert_eq!(local.sid, sid);
}

// clause: CM-IB-SERVICE
#[test]
fn ib_service_without_port_gets_one() {
    let listener = End::new(PortSpace::Ib);
    listener.id.bind(&ib(LOOPBACK, 0x013f_0000, !0xffff)).unwrap();
    listener.id.listen(1).unwrap();
    let Some(Address::Ib(local)) = listener.id.local_addr() else { panic!("{:?}", listener.id.local_addr()) };
    assert_eq!((local.sid >> 16, local.sid_mask), (0x013f, !0), "the kernel makes it one service");
    assert_ne!(local.sid & 0xffff, 0);
    let asks = |sid| {
        let active = End::new(PortSpace::Ib);
        active.resolve(&ib(LOOPBACK, sid, !0));
        active.id.connect(&ConnParam { qp_num: sid as u32, ..conn_param(b"") }).unwrap();
        active
    };
    assert_eq!(asks(local.sid ^ 1).expect(EventKind::Rejected).status, 8);
    let _active = asks(local.sid);
    listener.next_request();
}

#[test]
fn uc_id_connects_and_xrc_id_is_rejected() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let channel = Channel::create().unwrap();
    let id = Id::create_for(&channel, PortSpace::Tcp, Service::Uc, 0).unwrap();
    let active = End { channel, id, qp: None };
    active.resolve(&listener.address());
    let active = active.with_qp(&node);
    active.id.connect(&conn_param(b"")).unwrap();
    let (passive, _) = listener.next_request();
    assert_eq!(passive.id.service(), Service::Uc);
    let passive = passive.with_qp(&node);
    passive.id.accept(&conn_param(b"")).unwrap();
    active.expect(EventKind::Established);
    passive.expect(EventKind::Established);
    send_message(&node, active.qp(), passive.qp());

    let channel = Channel::create().unwrap();
    let id = Id::create_for(&channel, PortSpace::Ib, Service::XrcIni, 0).unwrap();
    let sender = End { channel, id, qp: None };
    sender.resolve(&listener.address());
    sender.id.connect(&conn_param(b"")).unwrap();
    assert_eq!(sender.expect(EventKind::Rejected).status, 8, "of another port space");
    assert_eq!(Id::create_for(&active.channel, PortSpace::Ib, Service::Raw, 0).unwrap_err().errno(), libc::EINVAL);
}

// clause: CM-XRC
#[test]
fn xrc_initiator_connects_to_target() {
    let node = Node::open();
    let xrcd = node.context.open_xrcd(XrcdInit { file: None, create: true, exclusive: false }).unwrap();
    let new = |service| {
        let channel = Channel::create().unwrap();
        let id = Id::create_for(&channel, PortSpace::Ib, service, 0).unwrap();
        End { channel, id, qp: None }
    };
    let listener = new(Service::XrcTgt);
    listener.id.bind(&address(LOOPBACK)).unwrap();
    listener.id.listen(1).unwrap();
    let sender = new(Service::XrcIni);
    sender.resolve(&listener.address());
    let sender = sender.with_qp(&node);
    sender.id.connect(&conn_param(b"")).unwrap();
    let (receiver, _) = listener.next_request();
    assert_eq!(receiver.id.service(), Service::XrcTgt);
    let target = xrcd.create_target(0).unwrap();
    receiver.id.attach_qp(&target).unwrap();
    receiver.id.accept(&conn_param(b"")).unwrap();
    assert_eq!(conn_param_of(&sender.expect(EventKind::Established)).qp_num, target.qpn().get());
    receiver.expect(EventKind::Established);
    let ((ini, _), (tgt, _)) = (sender.qp().query(), target.query());
    assert_eq!((ini.state, ini.dest_qpn, ini.sq_psn), (QpState::Rts, target.qpn(), tgt.rq_psn));
    assert_eq!((tgt.state, tgt.dest_qpn, tgt.sq_psn), (QpState::Rts, sender.qp().qpn(), ini.rq_psn));

    let plain = new(Service::Rc);
    plain.resolve(&listener.address());
    plain.id.connect(&conn_param(b"")).unwrap();
    assert_eq!(plain.expect(EventKind::Rejected).status, 28, "an XRC listener accepts XRC only");
}

#[test]
fn connection_of_failed_qp_ends_in_connect_error() {
    let node = Node::open();
    let listener = End::listening(PortSpace::Tcp, LOOPBACK);
    let active = End::resolved(PortSpace::Tcp, &listener.address()).with_qp(&node);
    active.id.connect(&conn_param(b"")).unwrap();
    let passive = listener.next_request().0.with_qp(&node);
    let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
    active.qp().modify(&failed, AttrMask::STATE).unwrap();
    passive.id.accept(&conn_param(b"")).unwrap();
    let event = active.expect(EventKind::ConnectError);
    assert_eq!(event.status, -libc::EINVAL);
    assert_eq!(passive.expect(EventKind::Rejected).status, 28);

    let active = End::resolved(PortSpace::Tcp, &listener.address());
    active.id.connect(&conn_param(b"")).unwrap();
    let passive = listener.next_request().0.with_qp(&node);
    passive.qp().modify(&failed, AttrMask::STATE).unwrap();
    assert_eq!(errno(passive.id.accept(&conn_param(b""))), libc::EINVAL);
    assert_eq!(active.expect(EventKind::Rejected).status, 28);
}
