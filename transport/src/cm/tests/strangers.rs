//! Messages that belong to no connection.

use super::*;
use roxe_wire::cm::{Apr, AprStatus, Lap, SidrReq, SidrStatus};

const UNKNOWN_ID: CommId = CommId(0x4242);

// clause: CM-UNKNOWN
#[test]
fn messages_for_unknown_connections_are_rejected() {
    for (message, answered) in
        [(Message::Rep(rep(UNKNOWN_ID)), Answered::Rep), (rtu(UNKNOWN_ID).into(), Answered::Neither)]
    {
        let mut node = Node::new();
        assert_eq!(node.deliver(message), Err(Ignored::UnknownId));
        let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (UNKNOWN_ID, PEER_ID));
        assert_eq!((rej.answered, rej.reason), (answered, RejReason::InvalidCommId));
    }
    let mut node = Node::new();
    assert_eq!(node.deliver(Rep { local_comm_id: CommId::NONE, ..rep(UNKNOWN_ID) }), Err(Ignored::Malformed));
    for message in [Message::Mra(mra(UNKNOWN_ID, Answered::Req)), drep(UNKNOWN_ID).into()] {
        assert_eq!(node.deliver(message), Err(Ignored::UnknownId));
    }
    assert_eq!(node.deliver(rej(UNKNOWN_ID, Answered::Req, RejReason::NoQp)), Err(Ignored::UnknownId));
    assert!(node.sent().is_empty(), "no peer waits for an answer to these");
}

// clause: CM-DREQ-UNKNOWN
#[test]
fn dreq_for_unknown_connection_gets_drep() {
    let mut node = Node::new();
    assert_eq!(node.deliver(dreq(UNKNOWN_ID)), Err(Ignored::UnknownId));
    assert_eq!(node.sent(), [Message::Drep(messages::drep(UNKNOWN_ID, PEER_ID))]);
    let id = node.establish_active();
    assert_eq!(node.deliver(Dreq { local_comm_id: CommId(1), ..dreq(id) }), Err(Ignored::UnknownId));
    assert_eq!((node.sent_names(), node.state(id)), (vec!["DREP"], State::Established));
}

// clause: CM-MATCH
#[test]
fn messages_from_other_hosts_change_no_connection() {
    let elsewhere = Route { local: address(1), remote: address(3) };
    let not_here = Route { local: address(4), remote: address(2) };
    for route in [elsewhere, not_here] {
        let mut node = Node::new();
        let id = node.send_req();
        let strange: [Message; 3] =
            [rep(id).into(), mra(id, Answered::Req).into(), rej(id, Answered::Req, RejReason::NoQp).into()];
        for message in strange {
            assert_eq!(node.deliver_from(route, message), Err(Ignored::Address));
        }
        assert_eq!((node.state(id), node.sent(), node.events()), (State::ReqSent, vec![], vec![]));
        let mut node = Node::new();
        let id = node.establish_active();
        let strange: [Message; 4] =
            [rtu(id).into(), dreq(id).into(), drep(id).into(), rej(id, Answered::Neither, RejReason::NoQp).into()];
        for message in strange {
            assert_eq!(node.deliver_from(route, message), Err(Ignored::Address));
        }
        let by_guid = Rej {
            info: Info::new(&PEER_GUID.0.to_be_bytes()).unwrap(),
            ..rej(CommId::NONE, Answered::Neither, RejReason::Timeout)
        };
        assert!(node.deliver_from(route, by_guid).is_err());
        assert_eq!((node.state(id), node.sent(), node.events()), (State::Established, vec![], vec![]));
        let wrong_name = Rej { local_comm_id: CommId(1), ..rej(id, Answered::Neither, RejReason::NoQp) };
        assert_eq!(node.deliver(wrong_name), Err(Ignored::UnknownId));
    }
}

fn with_header(version: u8, ip_version: u8, src: [u8; 4], dst: [u8; 4]) -> PrivateData<92> {
    let mut bytes = [0; 92];
    (bytes[0], bytes[1]) = (version, ip_version << 4);
    bytes[16..20].copy_from_slice(&src);
    bytes[32..36].copy_from_slice(&dst);
    PrivateData::new(&bytes).unwrap()
}

// clause: CM-IP-CHECKS
#[test]
fn request_with_foreign_addresses_is_refused() {
    const US: [u8; 4] = [10, 0, 0, 1];
    const PEER: [u8; 4] = [10, 0, 0, 2];
    let bad = [
        with_header(1, 4, PEER, US),
        with_header(0, 5, PEER, US),
        with_header(0, 6, PEER, US),
        with_header(0, 4, US, US),
        with_header(0, 4, PEER, PEER),
        with_header(0, 4, [0; 4], US),
        PrivateData::EMPTY,
    ];
    for addresses in [Addresses::Ip, Addresses::Ipv4] {
        let mut node = Node::new();
        node.cm.listen(Listen { addresses, ..Listen::new(SERVICE, Accepts::Both, 9) }).unwrap();
        for private_data in bad {
            assert_eq!(node.deliver(Req { private_data, ..req() }), Err(Ignored::Refused));
            let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
            assert_eq!((rej.answered, rej.reason), (Answered::Req, RejReason::ConsumerDefined));
            let private_data = PrivateData::new(private_data.as_bytes()).unwrap();
            let lookup = SidrReq { private_data, ..messages::sidr_req(PEER_ID, &Resolve::new(route(), SERVICE)) };
            assert_eq!(node.deliver(lookup), Err(Ignored::Refused));
            let Message::SidrRep(reply) = node.one_sent() else { panic!("no SIDR_REP") };
            assert_eq!(reply.status, SidrStatus::Reject);
        }
        assert!(node.cm.is_empty());
        assert_eq!(node.deliver(Req { private_data: with_header(0, 4, PEER, US), ..req() }), Ok(()));
    }
}

// clause: CM-IP-CHECKS
#[test]
fn requests_from_non_unicast_addresses_are_refused() {
    for remote in [[224, 0, 0, 1], [255, 255, 255, 255], [0, 0, 0, 0]] {
        let route = Route { local: address(1), remote: Ipv4Addr::from(remote).into() };
        let mut node = Node::new();
        node.cm.listen(Listen { addresses: Addresses::Ip, ..Listen::new(SERVICE, Accepts::Both, 9) }).unwrap();
        let mut asks = Req { private_data: with_header(0, 4, remote, [10, 0, 0, 1]), ..req() };
        asks.primary.local_gid = route.remote;
        assert_eq!(node.deliver_from(route, asks), Err(Ignored::Refused));
    }
}

// clause: CM-LISTEN, CM-IP-CHECKS
#[test]
fn ipv4_and_ipv6_listeners_share_a_service() {
    let mut node = Node::new();
    let listen = |addresses| Listen { addresses, ..Listen::new(SERVICE, Accepts::Both, 9) };
    let v6 = node.cm.listen(listen(Addresses::Ipv6)).unwrap();
    assert_eq!(node.deliver(req()), Err(Ignored::Refused));
    let v4 = node.cm.listen(listen(Addresses::Ipv4)).unwrap();
    assert_eq!(node.cm.listen(listen(Addresses::Ip)), Err(CmError::InUse));
    node.sent_names();
    let found = |node: &Node, local: Gid| node.cm.listeners.find(SERVICE, local, Accepts::Lookups).map(|(id, _)| id);
    assert_eq!(found(&node, address(1)), Some(v4));
    assert_eq!(found(&node, Gid([0xfd; 16])), Some(v6));
}

// clause: CM-LAP
#[test]
fn alternate_paths_are_refused() {
    let mut node = Node::new();
    let id = node.establish_active();
    let unknown = (UNKNOWN_ID, AprStatus::InvalidCommId, Ignored::UnknownId, Ignored::UnknownId);
    for (ours, status, why, unasked) in [(id, AprStatus::Unsupported, Ignored::Refused, Ignored::State), unknown] {
        let lap = Lap { local_comm_id: PEER_ID, remote_comm_id: ours, ..Lap::default() };
        assert_eq!(node.deliver(lap), Err(why));
        let Message::Apr(apr) = node.one_sent() else { panic!("no APR") };
        assert_eq!((apr.local_comm_id, apr.remote_comm_id, apr.status), (ours, PEER_ID, status));
        assert_eq!(node.deliver(apr.clone()), Err(Ignored::UnknownId));
        let back = Apr { local_comm_id: PEER_ID, remote_comm_id: ours, ..apr };
        assert_eq!(node.deliver(back), Err(unasked));
    }
    assert_eq!(node.state(id), State::Established);
}

// clause: CM-BOUNDS
#[test]
fn unsent_messages_are_bounded() {
    let mut node = Node::new();
    for _ in 0..10_000 {
        assert_eq!(node.deliver(dreq(UNKNOWN_ID)), Err(Ignored::UnknownId));
    }
    assert_eq!(node.sent().len(), terms::Outbox::MAX_MESSAGES);
}

#[test]
fn reason_names_are_unique() {
    let names: std::collections::BTreeSet<_> = Ignored::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Ignored::ALL.len());
}
