//! Alternate paths.

use super::*;
use roxe_wire::cm::{Apr, AprStatus, Lap};

fn other_route() -> Route {
    Route { local: address(11), remote: address(12) }
}

/// Returns a LAP of the peer for connection `ours`.
fn lap(ours: CommId) -> Lap {
    Lap {
        local_comm_id: PEER_ID,
        remote_comm_id: ours,
        remote_qpn: OUR_QPN,
        local_gid: other_route().remote,
        remote_gid: other_route().local,
        local_ack_timeout: TimeCode::new(17),
        ..Lap::default()
    }
}

fn apr(ours: CommId, status: AprStatus) -> Apr {
    messages::apr(PEER_ID, ours, &AlternateAnswer::new(status))
}

impl Node {
    /// Proposes a path, and returns the transaction.
    fn propose(&mut self, id: CommId) -> TransactionId {
        self.call(|cm, cx| cm.load_alternate(cx, id, &Alternate::new(other_route()))).unwrap();
        let sent = self.cm.poll_transmit().expect("poll the LAP");
        assert!(matches!(sent.mad.message, Message::Lap(_)));
        sent.mad.tid
    }

    fn deliver_with_tid(&mut self, tid: TransactionId, message: impl Into<Message>) -> Result<(), Ignored> {
        let mad = Mad { tid, modifier: 0, message: message.into() };
        self.call(|cm, cx| cm.handle_message(cx, route(), &mad))
    }

    fn alternate(&self, id: CommId) -> AlternateState {
        self.cm.alternate_state(id).unwrap()
    }

    /// Returns a connection whose program accepts alternate paths.
    fn accepting_alternates(reach: fn(&mut Self) -> CommId) -> (Self, CommId) {
        let mut node = Self::listening();
        let id = reach(&mut node);
        node.cm.enable_alternate_events(id, true).unwrap();
        (node, id)
    }
}

// clause: CM-LAP
#[test]
fn alternate_path_is_proposed_and_loaded() {
    for reach in [Node::establish_active, Node::establish_passive] {
        let mut node = Node::listening();
        let id = reach(&mut node);
        let alternate = Alternate { traffic_class: 5, ..Alternate::new(other_route()) };
        node.call(|cm, cx| cm.load_alternate(cx, id, &alternate)).unwrap();
        let Outgoing { route: used, mad: Mad { tid, message: Message::Lap(lap), .. } } =
            node.cm.poll_transmit().unwrap()
        else {
            panic!("no LAP")
        };
        assert_eq!((used, lap.local_comm_id, lap.remote_comm_id, lap.remote_qpn), (route(), id, PEER_ID, PEER_QPN));
        assert_eq!((lap.local_gid, lap.remote_gid, lap.traffic_class), (address(11), address(12), 5));
        assert_eq!(
            (lap.hop_limit, lap.subnet_local, lap.local_lid, lap.local_ack_timeout.get()),
            (64, false, 0xffff, 17)
        );
        assert_eq!(node.alternate(id), AlternateState::LapSent);
        let again = node.call(|cm, cx| cm.load_alternate(cx, id, &alternate));
        assert_eq!(again, Err(CmError::State), "one at a time");
        let stale = node.deliver_with_tid(TransactionId(tid.0 ^ 1), apr(id, AprStatus::Success));
        assert_eq!((stale, node.events()), (Err(Ignored::State), vec![]), "the answer to another LAP");
        let answer = apr(id, AprStatus::Success);
        assert_eq!(node.deliver_with_tid(tid, answer.clone()), Ok(()));
        assert_eq!(node.events(), [EventKind::AlternateReply(Box::new(answer.clone()))]);
        assert_eq!((node.alternate(id), node.cm.poll_timeout()), (AlternateState::Idle, None));
        assert_eq!(node.deliver_with_tid(tid, answer), Err(Ignored::State));
        node.propose(id);
    }
}

// clause: CM-LAP, CM-LAP-DUPLICATE, CM-MRA
#[test]
fn duplicate_lap_gets_the_same_apr() {
    for reach in [Node::establish_active, Node::establish_passive] {
        let (mut node, id) = Node::accepting_alternates(reach);
        assert_eq!(node.deliver_with_tid(TransactionId(1), lap(id)), Ok(()));
        assert_eq!(node.events(), [EventKind::AlternateRequest(Box::new(lap(id)))]);
        assert_eq!(node.alternate(id), AlternateState::LapRcvd);
        assert_eq!(node.deliver_with_tid(TransactionId(2), lap(id)), Err(Ignored::State), "one at a time");
        for _ in 0..2 {
            assert_eq!(node.deliver_with_tid(TransactionId(1), lap(id)), Err(Ignored::Duplicate));
            let Message::Mra(mra) = node.one_sent() else { panic!("no MRA") };
            assert_eq!((mra.answered, mra.service_timeout.get(), mra.remote_comm_id), (Answered::Neither, 24, PEER_ID));
            assert_eq!(node.alternate(id), AlternateState::MraLapSent);
        }
        node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Success)).unwrap();
        let expected = Mad {
            tid: TransactionId(1),
            modifier: 0,
            message: messages::apr(id, PEER_ID, &AlternateAnswer::new(AprStatus::Success)).into(),
        };
        assert_eq!(node.cm.poll_transmit(), Some(Outgoing { route: route(), mad: expected.clone() }));
        assert_eq!(node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Success)), Err(CmError::State));
        assert_eq!(node.deliver_with_tid(TransactionId(1), lap(id)), Err(Ignored::Duplicate));
        assert_eq!(node.cm.poll_transmit().map(|out| out.mad), Some(expected));
        assert_eq!(node.deliver_with_tid(TransactionId(2), lap(id)), Ok(()), "a new one");
        assert_eq!(node.events().len(), 1);
    }
}

// clause: CM-MRA
#[test]
fn program_may_delay_its_apr() {
    let (mut node, id) = Node::accepting_alternates(Node::establish_active);
    assert_eq!(node.cm.delay(id, TimeCode::new(20)), Err(CmError::State), "no request is pending");
    assert_eq!(node.deliver(lap(id)), Ok(()));
    node.cm.delay(id, TimeCode::new(20)).unwrap();
    let Message::Mra(mra) = node.one_sent() else { panic!("no MRA") };
    assert_eq!((mra.service_timeout.get(), node.state(id)), (20, State::Established));
}

// clause: CM-LAP
#[test]
fn invalid_alternate_paths_are_refused() {
    let refused = |lap: Lap, status| {
        let (mut node, _) = Node::accepting_alternates(Node::establish_active);
        assert_eq!(node.deliver(lap), Err(Ignored::Refused));
        let Message::Apr(apr) = node.one_sent() else { panic!("no APR") };
        assert_eq!((apr.status, node.events()), (status, vec![]));
    };
    let id = Node::accepting_alternates(Node::establish_active).1;
    let current = Lap { local_gid: route().remote, remote_gid: route().local, ..lap(id) };
    refused(current, AprStatus::IsCurrent);
    refused(Lap { remote_qpn: PEER_QPN, ..lap(id) }, AprStatus::InvalidQpn);
    refused(Lap { local_gid: Gid::default(), ..lap(id) }, AprStatus::InvalidGid);
    refused(Lap { local_gid: Ipv4Addr::new(224, 0, 0, 1).into(), ..lap(id) }, AprStatus::InvalidGid);
    let (mut node, id) = Node::accepting_alternates(Node::establish_active);
    node.cm.enable_alternate_events(id, false).unwrap();
    assert_eq!(node.deliver(lap(id)), Err(Ignored::Refused));
    assert_eq!(node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Success)), Err(CmError::State));
}

// clause: CM-LAP
#[test]
fn lap_requires_an_established_connection() {
    for reach in [Node::send_req, Node::receive_rep, Node::send_rep] {
        let (mut node, id) = Node::accepting_alternates(reach);
        let alternate = Alternate::new(other_route());
        assert_eq!(node.call(|cm, cx| cm.load_alternate(cx, id, &alternate)), Err(CmError::State));
        assert_eq!(
            (node.deliver(lap(id)), node.deliver(apr(id, AprStatus::Success))),
            (Err(Ignored::State), Err(Ignored::State))
        );
    }
    let (mut node, id) = Node::accepting_alternates(Node::establish_active);
    assert_eq!(node.deliver(lap(id)), Ok(()));
    assert_eq!(node.deliver(dreq(id)), Ok(()));
    assert_eq!(node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Success)), Err(CmError::State));
    assert_eq!((node.alternate(id), node.deliver(lap(id))), (AlternateState::Idle, Err(Ignored::State)));
    let (mut node, id) = Node::accepting_alternates(Node::establish_active);
    let tid = node.propose(id);
    node.disconnect(id).unwrap();
    assert_eq!(node.deliver_with_tid(tid, apr(id, AprStatus::Success)), Err(Ignored::State));
    assert_eq!(node.deliver(mra(id, Answered::Neither)), Err(Ignored::State));
    node.run_timers();
}

// clause: CM-RETRIES, CM-MRA
#[test]
fn unanswered_lap_is_retried_and_abandoned() {
    let mut node = Node::new();
    let id = node.establish_active();
    node.propose(id);
    let default_wait = node.wait();
    assert_eq!(node.sent_names(), ["LAP"]);
    assert_eq!(node.deliver(mra(id, Answered::Neither)), Ok(()));
    assert_eq!(node.alternate(id), AlternateState::MraLapRcvd);
    assert_eq!(node.deliver(mra(id, Answered::Neither)), Err(Ignored::State), "a second MRA is ignored");
    assert!(node.wait() > default_wait * 3, "the peer has requested 16 s");
    let mut laps = node.sent_names().len();
    while node.cm.poll_timeout().is_some() {
        assert_eq!(node.wait(), default_wait);
        laps += node.sent_names().len();
    }
    assert_eq!((laps, node.events()), (14, vec![EventKind::AlternateUnanswered]), "16 with the first two");
    assert_eq!((node.state(id), node.alternate(id)), (State::Established, AlternateState::Idle));
}

// clause: CM-LAP-CROSSING
#[test]
fn crossing_laps_keep_the_proposal_of_the_active_side() {
    let (mut active, id) = Node::accepting_alternates(Node::establish_active);
    active.propose(id);
    assert_eq!((active.deliver(lap(id)), active.events()), (Err(Ignored::State), vec![]));
    let (mut passive, id) = Node::accepting_alternates(Node::establish_passive);
    let tid = passive.propose(id);
    assert_eq!(passive.deliver(lap(id)), Ok(()));
    assert!(matches!(passive.events()[..], [EventKind::AlternateUnanswered, EventKind::AlternateRequest(_)]));
    assert_eq!(passive.deliver_with_tid(tid, apr(id, AprStatus::Success)), Err(Ignored::State));
    assert_eq!(passive.cm.poll_timeout(), None);
}

// clause: CM-MIGRATED, CM-MATCH
#[test]
fn messages_migrate_with_the_queue_pair() {
    let (mut node, id) = Node::accepting_alternates(Node::establish_passive);
    assert_eq!(node.cm.on_migrated(id), Err(CmError::State), "there is no other path");
    assert_eq!(node.deliver_from(other_route(), dreq(id)), Err(Ignored::Address));
    assert_eq!(node.deliver(lap(id)), Ok(()));
    node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Success)).unwrap();
    node.sent_names();
    assert_eq!(node.deliver_from(Route { local: address(1), ..other_route() }, dreq(id)), Err(Ignored::Address));
    node.cm.on_migrated(id).unwrap();
    node.disconnect(id).unwrap();
    assert_eq!(node.cm.poll_transmit().map(|out| (out.route, out.mad.message.name())), Some((other_route(), "DREQ")));
    assert_eq!(node.deliver(drep(id)), Ok(()), "the peer has not migrated yet");
    node.run_timers();
    let (mut node, id) = Node::accepting_alternates(Node::establish_active);
    let tid = node.propose(id);
    assert_eq!(node.deliver_with_tid(tid, apr(id, AprStatus::Success)), Ok(()));
    assert_eq!(node.deliver_from(other_route(), dreq(id)), Ok(()), "the peer has migrated");
    node.disconnect(id).unwrap();
    node.run_timers();
}

// clause: CM-FAILOVER
#[test]
fn alternate_path_of_a_req_is_not_loaded() {
    let mut node = Node::listening();
    let mut asks = req();
    asks.alternate.local_gid = address(12);
    assert_eq!(node.deliver(asks), Ok(()));
    let id = node.cm.poll_event().unwrap().id;
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    let Message::Rep(rep) = node.one_sent() else { panic!("no REP") };
    assert_eq!(rep.failover.get(), 1);
}
