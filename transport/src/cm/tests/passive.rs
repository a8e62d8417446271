//! The passive side.

use super::*;

// clause: CM-FIELDS-REP, CM-DEPTH
#[test]
fn req_becomes_connect_request_and_rep() {
    let mut node = Node::new();
    let listener = node.listen(1);
    assert_eq!(node.deliver(req()), Ok(()));
    let Event { id, kind: EventKind::ConnectRequest(origin, request, Ece::NONE) } = node.cm.poll_event().unwrap()
    else {
        panic!("no request")
    };
    assert_eq!(origin, Origin { listener, route: route() });
    assert_eq!((*request, node.sent(), node.cm.poll_timeout()), (req(), vec![], None));
    let offered = node.cm.qp_terms(id).unwrap();
    assert_eq!(
        (offered.max_dest_rd_atomic, offered.max_rd_atomic),
        (6, 5),
        "we serve as many READs as the peer issues"
    );
    assert_eq!(node.call(|cm, cx| cm.accept(cx, id, &accept())), Ok(()));
    let Message::Rep(rep) = node.one_sent() else { panic!("no REP") };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id, rep.local_ca_guid), (id, PEER_ID, OUR_GUID));
    assert_eq!((rep.local_qpn, rep.starting_psn, rep.target_ack_delay.get()), (OUR_QPN, Psn::new(300), 15));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 5), "2 and 9 requested, 6 and 5 offered");
    assert_eq!((rep.failover.get(), rep.rnr_retry_count.get(), rep.srq), (0, 7, false));
    let terms = node.cm.qp_terms(id).unwrap();
    assert_eq!((terms.route, terms.dest_qpn, terms.rq_psn, terms.sq_psn), {
        (route(), PEER_QPN, Psn::new(300), Psn::new(200))
    });
    assert_eq!((terms.max_dest_rd_atomic, terms.max_rd_atomic), (2, 5));
    assert_eq!((terms.retry_cnt.get(), terms.rnr_retry.get(), terms.timeout.get()), (3, 4, 17));
    assert_eq!(node.call(|cm, cx| cm.accept(cx, id, &accept())), Err(CmError::State));
}

// clause: CM-REP-TIMEOUT, CM-RETRIES
#[test]
fn unanswered_rep_is_retried_and_abandoned() {
    let mut node = Node::listening();
    let asks = Req { local_cm_response_timeout: TimeCode::new(18), max_cm_retries: Uint::new(2), ..req() };
    assert_eq!(node.deliver(asks), Ok(()));
    let id = node.cm.poll_event().unwrap().id;
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    node.sent_names();
    for _ in 0..2 {
        assert_eq!((node.wait().as_millis(), node.sent_names()), (1024, vec!["REP"]));
    }
    assert_eq!(node.wait().as_millis(), 1024);
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (id, PEER_ID));
    assert_eq!((rej.reason, rej.info.as_bytes()), (RejReason::Timeout, &OUR_GUID.0.to_be_bytes()[..]));
    assert_eq!((node.events(), node.cm.is_empty()), (vec![EventKind::Unreachable], true));
}

// clause: CM-ESTABLISH
#[test]
fn rtu_or_data_establish_the_connection_once() {
    let mut node = Node::listening();
    let id = node.establish_passive();
    assert_eq!((node.deliver(rtu(id)), node.cm.establish(id)), (Err(Ignored::State), Err(CmError::State)));
    assert_eq!((node.events(), node.cm.poll_timeout()), (vec![], None));
    let mut node = Node::listening();
    let id = node.send_rep();
    node.cm.establish(id).unwrap();
    assert_eq!((node.events(), node.state(id)), (vec![EventKind::Established], State::Established));
    assert_eq!((node.deliver(rtu(id)), node.events(), node.sent()), (Err(Ignored::State), vec![], vec![]));
    let mut node = Node::listening();
    let id = node.receive_req();
    assert_eq!((node.deliver(rtu(id)), node.cm.establish(id)), (Err(Ignored::State), Err(CmError::State)));
}

// clause: CM-REQ-DUPLICATE
#[test]
fn duplicate_req_is_one_connection() {
    let mut node = Node::listening();
    let id = node.receive_req();
    for _ in 0..2 {
        assert_eq!(node.deliver(req()), Err(Ignored::Duplicate));
        let Message::Mra(mra) = node.one_sent() else { panic!("no MRA") };
        assert_eq!((mra.local_comm_id, mra.remote_comm_id), (id, PEER_ID));
        assert_eq!((mra.answered, mra.service_timeout.get()), (Answered::Req, 24));
        assert_eq!(node.state(id), State::MraReqSent);
    }
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    assert_eq!(node.sent_names(), ["REP"]);
    assert_eq!((node.deliver(req()), node.sent()), (Err(Ignored::Duplicate), vec![]), "the REP has a timer");
    assert_eq!(node.deliver(rtu(id)), Ok(()));
    assert_eq!((node.deliver(req()), node.sent()), (Err(Ignored::Duplicate), vec![]));
    assert_eq!(node.deliver(dreq(id)), Ok(()));
    node.disconnect(id).unwrap();
    assert_eq!(node.sent_names(), ["DREP"]);
    assert_eq!((node.deliver(req()), node.state(id)), (Err(Ignored::Duplicate), State::TimeWait));
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.answered), (RejReason::StaleConnection, Answered::Req));
    node.run_timers();
    node.events();
    assert_eq!(node.deliver(req()), Ok(()), "the id is free again");
}

// clause: CM-TIMEWAIT
#[test]
fn peer_id_is_reusable_after_time_wait_before_the_timer() {
    let mut node = Node::listening();
    let old = node.establish_passive();
    assert_eq!(node.deliver(dreq(old)), Ok(()));
    node.disconnect(old).unwrap();
    assert_eq!((node.events().len(), node.sent_names()), (1, vec!["DREP"]));
    let due = node.cm.poll_timeout().unwrap();
    node.now = Instant(due.0 - 1);
    assert_eq!((node.deliver(req()), node.sent_names()), (Err(Ignored::Duplicate), vec!["REJ"]));
    node.now = due;
    assert_eq!((node.deliver(req()), node.sent_names()), (Ok(()), vec![]));
    assert_eq!(
        (node.cm.poll_event().unwrap().id, node.state(old)),
        (old, State::Idle),
        "the end of the old connection"
    );
    assert!(matches!(node.events()[..], [EventKind::ConnectRequest(..)]));
}

// clause: CM-STALE
#[test]
fn qp_of_a_closed_connection_may_connect_again() {
    let mut node = Node::listening();
    let old = node.establish_passive();
    assert_eq!(node.deliver(dreq(old)), Ok(()));
    node.disconnect(old).unwrap();
    assert_eq!((node.state(old), node.sent_names().len(), node.events().len()), (State::TimeWait, 1, 1));
    let again = Req { local_comm_id: CommId(0x8888), ..req() };
    assert_eq!((node.deliver(again.clone()), node.sent_names()), (Ok(()), vec![]));
    let new = node.cm.poll_event().unwrap().id;
    let other = Req { local_comm_id: CommId(0x9999), ..again };
    assert_eq!(node.deliver(other), Err(Ignored::Stale), "the previous connection is not over");
    node.destroy(new).unwrap();
    node.run_timers();
}

// clause: CM-MRA
#[test]
fn both_sides_may_send_mra() {
    let mut node = Node::listening();
    let id = node.receive_req();
    node.cm.delay(id, TimeCode::new(21)).unwrap();
    let Message::Mra(sent) = node.one_sent() else { panic!("no MRA") };
    assert_eq!((sent.service_timeout.get(), node.cm.delay(id, TimeCode::new(21))), (21, Err(CmError::State)));
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    node.sent_names();
    assert_eq!(node.deliver(mra(id, Answered::Req)), Err(Ignored::State));
    assert_eq!(node.deliver(mra(id, Answered::Rep)), Ok(()));
    assert_eq!(node.deliver(mra(id, Answered::Rep)), Err(Ignored::State));
    assert_eq!((node.state(id), node.wait().as_millis()), (State::MraRepRcvd, (1 << 14) + 512));
    assert_eq!((node.sent_names(), node.wait().as_millis()), (vec!["REP"], 4096));
    assert_eq!(node.deliver(rtu(id)), Ok(()));
    assert_eq!(node.state(id), State::Established);
}

// clause: CM-REJECT
#[test]
fn program_may_reject_req() {
    for has_sent_id in [false, true] {
        let mut node = Node::listening();
        let id = node.receive_req();
        if has_sent_id {
            node.cm.delay(id, TimeCode::new(21)).unwrap();
            node.sent_names();
        }
        node.cm.reject(id, &Refusal::new(PrivateData::new(b"no").unwrap())).unwrap();
        let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (if has_sent_id { id } else { CommId::NONE }, PEER_ID));
        assert_eq!((rej.answered, rej.reason), (Answered::Req, RejReason::ConsumerDefined));
        assert_eq!(&rej.private_data.as_bytes()[..3], b"no\0");
        assert!(node.cm.is_empty() && node.events().is_empty());
    }
}

// clause: CM-REJ-RECEIVED
#[test]
fn peer_may_give_up_in_any_state() {
    let by_id = |id| rej(id, Answered::Rep, RejReason::ConsumerDefined);
    let by_guid = |_| Rej {
        info: Info::new(&PEER_GUID.0.to_be_bytes()).unwrap(),
        ..rej(CommId::NONE, Answered::Neither, RejReason::Timeout)
    };
    for reject in [by_id, by_guid] {
        for reach in [Node::receive_req, Node::send_rep] {
            let mut node = Node::listening();
            let id = reach(&mut node);
            assert_eq!(node.deliver(reject(id)), Ok(()));
            assert_eq!(node.events(), [EventKind::Rejected(Box::new(reject(id)))]);
            assert!(node.cm.is_empty());
        }
        let mut node = Node::listening();
        let id = node.establish_passive();
        assert_eq!(node.deliver(reject(id)), Ok(()));
        assert_eq!((node.events(), node.state(id)), {
            (vec![EventKind::Disconnected(Ending::Rejected)], State::TimeWait)
        });
        assert_eq!(node.deliver(reject(id)), Err(Ignored::State));
    }
}

// clause: CM-REQ-CHECKS
#[test]
fn unservable_reqs_are_rejected_with_their_reason() {
    let changed_req = |change: fn(&mut Req)| {
        let mut req = req();
        change(&mut req);
        req
    };
    let cases = [
        (changed_req(|req| req.primary.local_gid = address(9)), RejReason::InvalidGid),
        (changed_req(|req| req.primary.remote_gid = address(9)), RejReason::InvalidGid),
        (changed_req(|req| req.transport = Transport::Rd), RejReason::InvalidTransportType),
        (changed_req(|req| req.transport = Transport::Extended(2)), RejReason::InvalidTransportType),
        (changed_req(|req| req.pkey = roxe_wire::Pkey(0x8001)), RejReason::Unsupported),
        (changed_req(|req| req.path_mtu = roxe_wire::cm::MtuCode::new(6)), RejReason::InvalidMtu),
        (changed_req(|req| req.service_id = ServiceId(1)), RejReason::InvalidServiceId),
    ];
    for (req, reason) in cases {
        let mut node = Node::listening();
        assert_eq!(node.deliver(req), Err(Ignored::Refused));
        let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
        assert_eq!((rej.reason, rej.answered, rej.local_comm_id), (reason, Answered::Req, CommId::NONE));
        assert_eq!(rej.info.as_bytes().len(), if reason == RejReason::InvalidGid { 16 } else { 0 });
        assert!(node.cm.is_empty() && node.events().is_empty());
    }
    for malformed in
        [changed_req(|req| req.local_comm_id = CommId::NONE), changed_req(|req| req.local_ca_guid = Guid(0))]
    {
        let mut node = Node::listening();
        assert_eq!((node.deliver(malformed), node.sent()), (Err(Ignored::Malformed), vec![]));
    }
}

// clause: CM-STALE
#[test]
fn req_from_a_connected_qp_ends_the_old_connection() {
    let mut node = Node::listening();
    let old = node.establish_passive();
    let again = Req { local_comm_id: CommId(0x8888), ..req() };
    assert_eq!(node.deliver(again.clone()), Err(Ignored::Stale));
    let mut names = node.sent_names();
    names.sort_unstable();
    assert_eq!((names, node.state(old)), (vec!["DREQ", "REJ"], State::DreqSent));
    assert_eq!((node.deliver(again.clone()), node.sent_names()), (Err(Ignored::Stale), vec!["REJ"]));
    assert_eq!(node.deliver(drep(old)), Ok(()));
    assert_eq!(node.events(), [EventKind::Disconnected(Ending::Agreed)]);
    node.run_timers();
    assert_eq!(node.deliver(again), Ok(()), "the queue pair has been forgotten");
    let elsewhere = Route { local: address(1), remote: address(3) };
    let mut liar = Req { local_comm_id: CommId(0x9999), ..req() };
    liar.primary.local_gid = address(3);
    node.listen_more();
    assert_eq!(
        node.deliver_from(elsewhere, liar),
        Ok(()),
        "the same numbers from another address are another queue pair"
    );
}

impl Node {
    /// Listens at our address for a second request.
    fn listen_more(&mut self) {
        let listen = Listen { local: Some(address(1)), ..Listen::new(SERVICE, Accepts::Connections, 1) };
        self.cm.listen(listen).unwrap();
    }
}

// clause: CM-BACKLOG
#[test]
fn pending_requests_are_limited_by_the_backlog() {
    let other = |n: u32| Req { local_comm_id: CommId(n), local_qpn: Qpn::new(n), ..req() };
    let mut node = Node::new();
    node.listen(2);
    assert_eq!([1, 2, 3].map(|n| node.deliver(other(n))), [Ok(()), Ok(()), Err(Ignored::Refused)]);
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.remote_comm_id, node.cm.len()), (RejReason::NoResources, CommId(3), 2));
    let first = node.cm.poll_event().unwrap().id;
    node.call(|cm, cx| cm.accept(cx, first, &accept())).unwrap();
    assert_eq!(node.deliver(other(4)), Ok(()), "an answered request waits no more");
    let second = node.cm.poll_event().unwrap().id;
    node.destroy(second).unwrap();
    assert_eq!(node.deliver(other(5)), Ok(()));
    assert_eq!(node.deliver(other(6)), Err(Ignored::Refused));
}

// clause: CM-BOUNDS
#[test]
fn connections_are_limited_by_max_connections() {
    let mut node = Node::with(Settings { max_connections: 1, ..Settings::new(OUR_GUID) });
    node.listen(9);
    let id = node.establish_passive();
    let other = Req { local_comm_id: CommId(1), local_qpn: Qpn::new(1), ..req() };
    assert_eq!((node.deliver(other.clone()), node.sent_names()), (Err(Ignored::Refused), vec!["REJ"]));
    assert_eq!(node.call(|cm, cx| cm.connect(cx, &connect())), Err(CmError::Full));
    assert_eq!(node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))), Err(CmError::Full));
    node.destroy(id).unwrap();
    node.run_timers();
    assert_eq!(node.deliver(other), Ok(()));
}

// clause: CM-LISTEN
#[test]
fn listener_at_one_address_precedes_wildcard() {
    let mut node = Node::new();
    let at = |local, takes| Listen { local, ..Listen::new(SERVICE, takes, 0) };
    let all = node.cm.listen(at(None, Accepts::Connections)).unwrap();
    assert_eq!(node.cm.listen(at(None, Accepts::Connections)), Err(CmError::InUse));
    assert_eq!(node.cm.listen(at(None, Accepts::Both)), Err(CmError::InUse));
    assert!(node.cm.listen(at(None, Accepts::Lookups)).is_ok());
    assert!(node.cm.listen(at(Some(address(7)), Accepts::Both)).is_ok());
    assert_eq!((node.deliver(req()), node.sent_names()), (Err(Ignored::Refused), vec!["REJ"]), "no backlog");
    let here = node.cm.listen(Listen { backlog: 1, ..at(Some(address(1)), Accepts::Both) }).unwrap();
    let id = node.receive_req();
    assert_eq!(node.cm.stop_listening(here), Ok(()));
    assert_eq!(node.cm.stop_listening(here), Err(CmError::UnknownId));
    assert_eq!(node.call(|cm, cx| cm.accept(cx, id, &accept())), Ok(()), "a waiting request can still be answered");
    node.cm.stop_listening(all).unwrap();
    node.sent_names();
    let other = Req { local_comm_id: CommId(1), local_qpn: Qpn::new(1), ..req() };
    assert_eq!(node.deliver(other), Err(Ignored::Refused));
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!(rej.reason, RejReason::InvalidServiceId);
}

// clause: CM-LISTEN-MASK
#[test]
fn listener_mask_matches_many_services() {
    let mut node = Node::new();
    let many = Listen { service_mask: !0xff, ..Listen::new(ServiceId(SERVICE.0 & !0xff), Accepts::Both, 9) };
    let id = node.cm.listen(many).unwrap();
    assert_eq!(node.cm.listen(Listen::new(SERVICE, Accepts::Lookups, 9)), Err(CmError::InUse), "one of them");
    let other = ServiceId(SERVICE.0 + 0x100);
    let one = node.cm.listen(Listen::new(other, Accepts::Both, 9)).unwrap();
    for (service_id, listener) in [(SERVICE, id), (ServiceId(SERVICE.0 ^ 1), id), (other, one)] {
        let qpn = Qpn::new(service_id.0 as u32 & 0xfff);
        assert_eq!(node.deliver(Req { service_id, local_qpn: qpn, local_comm_id: CommId(qpn.get()), ..req() }), Ok(()));
        let Some(Event { kind: EventKind::ConnectRequest(origin, ..), .. }) = node.cm.poll_event() else { panic!() };
        assert_eq!(origin.listener, listener);
    }
    node.cm.stop_listening(id).unwrap();
    assert_eq!(node.deliver(Req { local_comm_id: CommId(1), local_qpn: Qpn::new(1), ..req() }), Err(Ignored::Refused));
    assert!(node.cm.listen(Listen::new(SERVICE, Accepts::Both, 1)).is_ok());
}
