//! Messages that fit nothing.

use super::*;
use roxe_wire::cm::{Apr, AprStatus, Lap};

const NOBODY: CommId = CommId(0x4242);

// clause: CM-UNKNOWN
#[test]
fn who_thinks_to_be_connected_learns_that_it_is_not() {
    for (message, answered) in [(Message::Rep(rep(NOBODY)), Answered::Rep), (rtu(NOBODY).into(), Answered::Neither)] {
        let mut node = Node::new();
        assert_eq!(node.takes(message), Err(Ignored::UnknownId));
        let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (NOBODY, PEER_ID));
        assert_eq!((rej.answered, rej.reason), (answered, RejReason::InvalidCommId));
    }
    let mut node = Node::new();
    assert_eq!(node.takes(Rep { local_comm_id: CommId::NONE, ..rep(NOBODY) }), Err(Ignored::Malformed));
    for message in [Message::Mra(mra(NOBODY, Answered::Req)), drep(NOBODY).into()] {
        assert_eq!(node.takes(message), Err(Ignored::UnknownId));
    }
    assert_eq!(node.takes(rej(NOBODY, Answered::Req, RejReason::NoQp)), Err(Ignored::UnknownId));
    assert!(node.sent().is_empty(), "nobody waits for an answer to these");
}

// clause: CM-DREQ-UNKNOWN
#[test]
fn a_disconnect_of_nothing_is_agreed_with() {
    let mut node = Node::new();
    assert_eq!(node.takes(dreq(NOBODY)), Err(Ignored::UnknownId));
    assert_eq!(node.sent(), [Message::Drep(fields::drep(NOBODY, PEER_ID))]);
    let id = node.connected();
    assert_eq!(node.takes(Dreq { local_comm_id: CommId(1), ..dreq(id) }), Err(Ignored::UnknownId));
    assert_eq!((node.names(), node.state(id)), (vec!["DREP"], State::Established));
}

// clause: CM-MATCH
#[test]
fn nobody_speaks_of_anothers_connection() {
    let elsewhere = Route { local: address(1), remote: address(3) };
    let not_here = Route { local: address(4), remote: address(2) };
    for route in [elsewhere, not_here] {
        let mut node = Node::new();
        let id = node.connects();
        let strange: [Message; 3] =
            [rep(id).into(), mra(id, Answered::Req).into(), rej(id, Answered::Req, RejReason::NoQp).into()];
        for message in strange {
            assert_eq!(node.takes_from(route, message), Err(Ignored::Address));
        }
        assert_eq!((node.state(id), node.sent(), node.events()), (State::ReqSent, vec![], vec![]));
        let mut node = Node::new();
        let id = node.connected();
        let strange: [Message; 4] =
            [rtu(id).into(), dreq(id).into(), drep(id).into(), rej(id, Answered::Neither, RejReason::NoQp).into()];
        for message in strange {
            assert_eq!(node.takes_from(route, message), Err(Ignored::Address));
        }
        let by_guid = Rej {
            info: Info::new(&PEER_GUID.0.to_be_bytes()).unwrap(),
            ..rej(CommId::NONE, Answered::Neither, RejReason::Timeout)
        };
        assert!(node.takes_from(route, by_guid).is_err());
        assert_eq!((node.state(id), node.sent(), node.events()), (State::Established, vec![], vec![]));
        let wrong_name = Rej { local_comm_id: CommId(1), ..rej(id, Answered::Neither, RejReason::NoQp) };
        assert_eq!(node.takes(wrong_name), Err(Ignored::UnknownId));
    }
}

// clause: CM-LAP
#[test]
fn alternate_paths_are_refused() {
    let mut node = Node::new();
    let id = node.connected();
    for (ours, status, why) in
        [(id, AprStatus::Unsupported, Ignored::Refused), (NOBODY, AprStatus::InvalidCommId, Ignored::UnknownId)]
    {
        let lap = Lap { local_comm_id: PEER_ID, remote_comm_id: ours, ..Lap::default() };
        assert_eq!(node.takes(lap), Err(why));
        let Message::Apr(apr) = node.one_sent() else { panic!("no APR") };
        assert_eq!((apr.local_comm_id, apr.remote_comm_id, apr.status), (ours, PEER_ID, status));
        assert_eq!(node.takes(Apr { status, ..apr }), Err(Ignored::State));
    }
    assert_eq!(node.state(id), State::Established);
}

// clause: CM-BOUNDS
#[test]
fn answers_that_nobody_fetches_do_not_pile_up() {
    let mut node = Node::new();
    for _ in 0..10_000 {
        assert_eq!(node.takes(dreq(NOBODY)), Err(Ignored::UnknownId));
    }
    assert_eq!(node.sent().len(), outbox::Outbox::MOST);
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = Ignored::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Ignored::ALL.len());
}
