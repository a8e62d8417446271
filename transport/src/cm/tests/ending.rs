//! The end of connections.

use super::*;

// clause: CM-DISCONNECT, CM-TIMEWAIT
#[test]
fn disconnect_ends_in_time_wait() {
    let mut node = Node::new();
    let id = node.establish_active();
    node.disconnect(id).unwrap();
    let Message::Dreq(sent) = node.one_sent() else { panic!("no DREQ") };
    assert_eq!((sent.local_comm_id, sent.remote_comm_id, sent.remote_qpn), (id, PEER_ID, PEER_QPN));
    assert_eq!((node.disconnect(id), node.events()), (Err(CmError::State), vec![]));
    assert_eq!(node.deliver(drep(id)), Ok(()));
    assert_eq!((node.events(), node.state(id)), (vec![EventKind::Disconnected(Ending::Agreed)], State::TimeWait));
    assert_eq!(node.deliver(drep(id)), Err(Ignored::State));
    assert_eq!((node.wait().as_millis(), node.events()), (1 << 10, vec![EventKind::TimeWaitExit]), "code 18");
    assert!(node.cm.is_empty());
}

// clause: CM-PEER-GONE
#[test]
fn connection_ends_with_the_peer_process() {
    let mut node = Node::listening();
    let id = node.receive_req();
    let lose = |node: &mut Node| node.call(|cm, cx| cm.lose_peer(cx, id));
    assert_eq!((node.cm.peers().count(), lose(&mut node)), (0, Err(CmError::State)), "not accepted yet");
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    assert_eq!(node.sent_names(), ["REP"]);
    assert!(node.cm.peers().eq([Peer { id, route: route(), theirs: PEER_ID }]));
    assert_eq!((lose(&mut node), node.sent_names()), (Ok(()), vec![]));
    assert_eq!(node.events(), [EventKind::Disconnected(Ending::Requested)]);
    assert_eq!((node.cm.peers().count(), lose(&mut node)), (0, Err(CmError::State)), "the queue pair is known");
    node.disconnect(id).unwrap();
    node.run_timers();
    assert_eq!(lose(&mut node), Err(CmError::UnknownId));
    let mut node = Node::new();
    let id = node.establish_active();
    node.disconnect(id).unwrap();
    assert_eq!(node.call(|cm, cx| cm.lose_peer(cx, id)), Ok(()), "the peer will not answer");
    assert_eq!((node.events(), node.state(id)), (vec![EventKind::Disconnected(Ending::Agreed)], State::TimeWait));
}

// clause: CM-RETRIES, CM-TIMEWAIT
#[test]
fn unanswered_disconnect_ends_the_connection() {
    let mut node = Node::new();
    let id = node.establish_active();
    node.disconnect(id).unwrap();
    node.sent_names();
    for _ in 0..15 {
        assert_eq!((node.wait().as_millis(), node.sent_names()), (4608, vec!["DREQ"]));
    }
    node.wait();
    assert_eq!((node.events(), node.sent()), (vec![EventKind::Disconnected(Ending::TimedOut)], vec![]));
    assert_eq!(node.state(id), State::TimeWait);
    node.run_timers();
    assert_eq!(node.events(), [EventKind::TimeWaitExit]);
}

// clause: CM-DREQ, CM-DISCONNECT
#[test]
fn program_agrees_to_the_peers_disconnect() {
    for reach in [Node::send_rep, Node::establish_passive] {
        let mut node = Node::listening();
        let id = reach(&mut node);
        assert_eq!(node.deliver(Dreq { remote_qpn: Qpn::new(5), ..dreq(id) }), Err(Ignored::Qpn));
        assert_eq!(node.deliver(dreq(id)), Ok(()));
        assert_eq!((node.events(), node.sent()), (vec![EventKind::Disconnected(Ending::Requested)], vec![]));
        assert_eq!((node.deliver(dreq(id)), node.sent()), (Err(Ignored::Duplicate), vec![]));
        assert_eq!((node.state(id), node.cm.poll_timeout()), (State::DreqRcvd, None));
        node.disconnect(id).unwrap();
        assert_eq!(node.sent(), [Message::Drep(messages::drep(id, PEER_ID))]);
        assert_eq!((node.deliver(dreq(id)), node.sent_names()), (Ok(()), vec!["DREP"]), "the first DREP was lost");
        node.run_timers();
        assert_eq!(node.events(), [EventKind::TimeWaitExit]);
    }
    let mut node = Node::listening();
    let id = node.receive_req();
    assert_eq!(node.deliver(dreq(id)), Err(Ignored::Qpn), "there is no queue pair yet");
}

// clause: CM-DREQ-CROSSING
#[test]
fn crossing_disconnects_end_both_sides() {
    let mut node = Node::new();
    let id = node.establish_active();
    node.disconnect(id).unwrap();
    assert_eq!(node.sent_names(), ["DREQ"]);
    assert_eq!((node.deliver(dreq(id)), node.sent_names()), (Ok(()), vec!["DREP"]));
    assert_eq!((node.events(), node.state(id)), (vec![EventKind::Disconnected(Ending::Agreed)], State::TimeWait));
    assert_eq!((node.deliver(drep(id)), node.events()), (Err(Ignored::State), vec![]));
    assert_eq!((node.deliver(dreq(id)), node.sent_names()), (Ok(()), vec!["DREP"]));
}

/// A way into a state, and the messages sent when the connection is destroyed there.
type Reached = (fn(&mut Node) -> CommId, &'static str);

// clause: CM-DESTROY
#[test]
fn destroyed_connection_informs_the_peer_without_events() {
    let active: [Reached; 3] = [(Node::send_req, "REJ"), (Node::receive_rep, "REJ"), (Node::establish_active, "DREQ")];
    let passive: [Reached; 3] =
        [(Node::receive_req, "REJ"), (Node::send_rep, "REJ"), (Node::establish_passive, "DREQ")];
    for (reach, final_message) in active.into_iter().chain(passive) {
        let mut node = Node::listening();
        let id = reach(&mut node);
        node.destroy(id).unwrap();
        assert_eq!(node.sent_names(), [final_message]);
        assert_eq!((node.destroy(id), node.cm.is_empty()), (Err(CmError::UnknownId), final_message == "REJ"));
        if final_message == "DREQ" {
            assert_eq!((node.wait().as_millis() > 4000, node.sent_names()), (true, vec!["DREQ"]));
            assert_eq!(node.deliver(drep(id)), Ok(()));
        }
        node.run_timers();
        assert_eq!((node.events(), node.sent()), (vec![], vec![]));
    }
    let mut node = Node::listening();
    let id = node.establish_passive();
    assert_eq!(node.deliver(dreq(id)), Ok(()));
    node.events();
    node.destroy(id).unwrap();
    assert_eq!((node.sent_names(), node.state(id)), (vec!["DREP"], State::TimeWait));
}

// clause: CM-PARTING
#[test]
fn shut_down_retransmits_the_ending_message() {
    let agreed: Reached = (ended_by_peer, "DREP");
    let reached: [Reached; 4] =
        [(Node::establish_active, "DREQ"), (Node::establish_passive, "DREQ"), (disconnecting, "DREQ"), agreed];
    for (reach, final_message) in reached {
        let mut node = Node::listening();
        let id = reach(&mut node);
        assert!(node.cm.all().eq([(id, route())]));
        for _ in 0..3 {
            node.call(|cm, cx| cm.shut_down(cx, id));
            assert_eq!(node.sent_names(), [final_message]);
        }
        node.run_timers();
        assert_eq!(node.events(), []);
    }
}

fn disconnecting(node: &mut Node) -> CommId {
    let id = node.establish_active();
    node.disconnect(id).unwrap();
    node.sent_names();
    id
}

/// Returns a connection ended by the peer, with the consent of our program.
fn ended_by_peer(node: &mut Node) -> CommId {
    let id = node.establish_passive();
    assert_eq!(node.deliver(dreq(id)), Ok(()));
    node.disconnect(id).unwrap();
    assert_eq!((node.sent_names(), node.events().len(), node.state(id)), (vec!["DREP"], 1, State::TimeWait));
    id
}

// clause: CM-PARTING
#[test]
fn shut_down_sends_nothing_to_peers_that_know_the_end() {
    let mut node = Node::new();
    let id = disconnecting(&mut node);
    assert_eq!(node.deliver(drep(id)), Ok(()));
    node.events();
    node.listen(1);
    let again = Req { local_comm_id: CommId(0x8888), local_qpn: Qpn::new(0x33), ..req() };
    assert_eq!(node.deliver(again), Ok(()));
    let requested = node.cm.poll_event().expect("poll the request event").id;
    let lookup = node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    assert_eq!((node.sent_names(), node.cm.all().count()), (vec!["SIDR_REQ"], 3));
    for _ in 0..3 {
        [id, requested, lookup].into_iter().for_each(|id| node.call(|cm, cx| cm.shut_down(cx, id)));
    }
    assert_eq!(node.sent_names(), ["REJ"], "one REJ, to the sender of the request");
    assert_eq!((node.state(id), node.cm.len()), (State::TimeWait, 1));
}

// clause: CM-PARTING
#[test]
fn drep_is_sent_again_while_the_peer_may_retry_dreq() {
    let mut node = Node::listening();
    let id = ended_by_peer(&mut node);
    node.run_timers();
    assert_eq!(node.events(), [EventKind::TimeWaitExit]);
    for _ in 0..3 {
        assert!(node.cm.all().eq([(id, route())]), "forgotten before the peer was informed");
        node.call(|cm, cx| cm.shut_down(cx, id));
        assert_eq!(node.sent(), [Message::Drep(messages::drep(id, PEER_ID))]);
    }
    node.now = node.now.after(Duration::from_millis(4095));
    node.call(|cm, cx| cm.shut_down(cx, id));
    assert_eq!(node.sent_names(), ["DREP"]);
    node.now = node.now.after(Duration::from_millis(1));
    node.call(|cm, cx| cm.shut_down(cx, id));
    assert_eq!(node.sent_names(), [""; 0], "the peer has retried and was answered");
    let next = ended_by_peer(&mut node);
    node.run_timers();
    assert!(node.cm.all().eq([(next, route())]), "the older entry makes room");
}

// clause: CM-PARTING, CM-BOUNDS
#[test]
fn closed_connections_are_bounded() {
    let mut node = Node::listening();
    let ids: Vec<_> = (0..1030)
        .map(|_| {
            let id = ended_by_peer(&mut node);
            // Other connections ended before.
            node.cm.handle_timeout(node.cm.poll_timeout().expect("TimeWait"));
            assert!(node.cm.is_empty());
            node.events();
            id
        })
        .collect();
    assert!(node.cm.all().map(|(id, _)| id).eq(ids[6..].iter().copied()), "the last 1024");
}

// clause: CM-MATCH
#[test]
fn both_ends_may_share_one_cm() {
    let here = Route { local: address(1), remote: address(1) };
    let mut node = Node::listening();
    let connect = Connect { route: here, ..connect() };
    let active = node.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
    let deliver = |node: &mut Node| {
        while let Some(Outgoing { route, mad }) = node.cm.poll_transmit() {
            assert_eq!((route, node.call(|cm, cx| cm.handle_message(cx, here, &mad))), (here, Ok(())));
        }
        node.events()
    };
    let Outgoing { mad, .. } = node.cm.poll_transmit().unwrap();
    assert_eq!(node.call(|cm, cx| cm.handle_message(cx, here, &mad)), Ok(()));
    let passive = node.cm.poll_event().unwrap().id;
    assert_ne!(active, passive);
    let accept = Accept { qpn: PEER_QPN, ..accept() };
    node.call(|cm, cx| cm.accept(cx, passive, &accept)).unwrap();
    assert!(matches!(deliver(&mut node)[..], [EventKind::ConnectReply(..)]));
    node.cm.confirm(active, &PrivateData::EMPTY).unwrap();
    assert_eq!(deliver(&mut node), [EventKind::Established]);
    node.disconnect(active).unwrap();
    assert_eq!(deliver(&mut node), [EventKind::Disconnected(Ending::Requested)]);
    node.disconnect(passive).unwrap();
    assert_eq!(deliver(&mut node), [EventKind::Disconnected(Ending::Agreed)]);
    node.run_timers();
    assert_eq!(node.events(), [EventKind::TimeWaitExit, EventKind::TimeWaitExit]);
}
