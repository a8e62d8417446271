//! Tests of the active side, which sends the REQ.

use super::*;

// clause: CM-FIELDS-REQ, CM-ID
#[test]
fn req_fields_equal_those_of_rdma_cm() {
    let mut node = Node::new();
    let connect = Connect { private_data: PrivateData::new(b"hello").unwrap(), ..connect() };
    let id = node.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
    let Message::Req(req) = node.one_sent() else { panic!("no REQ") };
    assert_ne!(id, CommId::NONE);
    assert_eq!((req.local_comm_id, req.service_id, req.local_ca_guid), (id, SERVICE, OUR_GUID));
    assert_eq!((req.local_qpn, req.starting_psn), (OUR_QPN, Psn::new(100)));
    assert_eq!((req.remote_cm_response_timeout.get(), req.local_cm_response_timeout.get()), (20, 20));
    assert_eq!((req.retry_count.get(), req.rnr_retry_count.get(), req.max_cm_retries.get()), (7, 7, 15));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (address(1), address(2)));
    assert_eq!((req.primary.local_lid, req.primary.hop_limit, req.primary.subnet_local), (0xffff, 64, false));
    assert_eq!((req.primary.local_ack_timeout.get(), req.path_mtu.get(), req.has_alternate()), (17, 3, false));
    assert_eq!(&req.private_data.as_bytes()[..6], b"hello\0");
    node.call(|cm, cx| cm.connect(cx, &Connect { hop_limit: 1, ..connect })).unwrap();
    let Message::Req(on_subnet) = node.one_sent() else { panic!("no REQ") };
    assert_eq!((on_subnet.primary.local_lid, on_subnet.primary.subnet_local), (0, true));
    assert_ne!(on_subnet.local_comm_id, id);
}

// clause: CM-REQ-TIMEOUT, CM-RETRIES
#[test]
fn unanswered_req_is_sent_sixteen_times() {
    let mut node = Node::new();
    let id = node.send_req();
    for _ in 0..15 {
        assert_eq!((node.wait().as_millis(), node.sent_names()), (4608, vec!["REQ"]));
    }
    assert!(node.events().is_empty());
    assert_eq!(node.wait().as_millis(), 4608);
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (id, CommId::NONE));
    assert_eq!((rej.answered, rej.reason), (Answered::Neither, RejReason::Timeout));
    assert_eq!(rej.info.as_bytes(), OUR_GUID.0.to_be_bytes());
    assert_eq!(node.events(), [EventKind::Unreachable]);
    assert!(node.cm.is_empty() && node.destroy(id) == Err(CmError::UnknownId));
}

// clause: CM-REP, CM-DEPTH
#[test]
fn rep_sets_the_qp_terms() {
    let mut node = Node::new();
    let id = node.send_req();
    assert_eq!(node.cm.qp_terms(id), None);
    assert_eq!(node.cm.confirm(id, &PrivateData::EMPTY), Err(CmError::State));
    assert_eq!(node.deliver(rep(id)), Ok(()));
    let [EventKind::ConnectReply(reply, Ece::NONE)] = &node.events()[..] else { panic!("no reply") };
    assert_eq!(**reply, rep(id));
    let terms = node.cm.qp_terms(id).unwrap();
    assert_eq!((terms.route, terms.dest_qpn, terms.rq_psn, terms.sq_psn), {
        (route(), PEER_QPN, Psn::new(100), Psn::new(200))
    });
    assert_eq!(
        (terms.max_rd_atomic, terms.max_dest_rd_atomic),
        (5, 3),
        "the peer serves 5 of our 8 and requests 3 of our 4"
    );
    assert_eq!((terms.retry_cnt.get(), terms.rnr_retry.get(), terms.timeout.get()), (7, 2, 18));
    assert_eq!((node.sent(), node.state(id), node.cm.poll_timeout()), (vec![], State::RepRcvd, None));
    node.cm.confirm(id, &PrivateData::new(b"go").unwrap()).unwrap();
    let Message::Rtu(rtu) = node.one_sent() else { panic!("no RTU") };
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id, &rtu.private_data.as_bytes()[..3]), (id, PEER_ID, &b"go\0"[..]));
    assert_eq!(node.state(id), State::Established);
}

// clause: CM-REP-DUPLICATE, CM-MRA
#[test]
fn duplicate_rep_is_answered_by_mra_or_rtu() {
    let mut node = Node::new();
    let id = node.receive_rep();
    for _ in 0..2 {
        assert_eq!(node.deliver(rep(id)), Ok(()));
        let Message::Mra(mra) = node.one_sent() else { panic!("no MRA") };
        assert_eq!((mra.answered, mra.service_timeout.get(), mra.remote_comm_id), (Answered::Rep, 24, PEER_ID));
        assert_eq!(node.state(id), State::MraRepSent);
    }
    node.cm.confirm(id, &PrivateData::EMPTY).unwrap();
    assert_eq!(node.sent_names(), ["RTU"]);
    assert_eq!((node.deliver(rep(id)), node.sent_names()), (Ok(()), vec!["RTU"]));
    assert!(node.events().is_empty());
    node.disconnect(id).unwrap();
    node.sent_names();
    assert_eq!((node.deliver(rep(id)), node.sent()), (Err(Ignored::State), vec![]));
}

// clause: CM-MRA
#[test]
fn mra_extends_the_wait_once() {
    let mut node = Node::new();
    let id = node.send_req();
    node.now = node.now.after(Duration::from_secs(4));
    assert_eq!(node.deliver(mra(id, Answered::Rep)), Err(Ignored::State));
    assert_eq!(node.deliver(mra(id, Answered::Req)), Ok(()));
    assert_eq!(node.state(id), State::MraReqRcvd);
    assert_eq!(node.deliver(mra(id, Answered::Req)), Err(Ignored::State));
    assert_eq!(
        (node.wait().as_millis(), node.sent_names()),
        ((1 << 14) + 512, vec!["REQ"]),
        "the service timeout of the MRA and the ACK timeout"
    );
    assert_eq!(node.wait().as_millis(), 4608);
    assert_eq!(node.deliver(rep(id)), Ok(()));
    assert_eq!(node.state(id), State::RepRcvd);
}

// clause: CM-REJ-RECEIVED
#[test]
fn rej_ends_the_request() {
    for reject in [rej_without_listener, |id| rej(id, Answered::Req, RejReason::ConsumerDefined)] {
        let mut node = Node::new();
        let id = node.send_req();
        assert_eq!(node.deliver(reject(id)), Ok(()));
        assert_eq!(node.events(), [EventKind::Rejected(Box::new(reject(id)))]);
        assert!(node.cm.is_empty());
    }
    let mut node = Node::new();
    let id = node.send_req();
    assert_eq!(node.deliver(rej(id, Answered::Req, RejReason::StaleConnection)), Ok(()));
    assert_eq!(node.state(id), State::TimeWait);
    assert!(matches!(node.events()[..], [EventKind::Rejected(_)]));
    assert_eq!(node.disconnect(id), Err(CmError::UnknownId), "the program has received the end of the connection");
    node.run_timers();
    assert!(node.events().is_empty());
    let id = node.receive_rep();
    assert_eq!(
        node.deliver(rej_without_listener(id)),
        Err(Ignored::UnknownId),
        "a REJ after the REP needs the peer's id"
    );
}

/// Returns the REJ of a peer without a listener.
fn rej_without_listener(id: CommId) -> Rej {
    Rej { local_comm_id: CommId::NONE, ..rej(id, Answered::Req, RejReason::InvalidServiceId) }
}

/// Sends a REQ that is retried for half a second.
fn send_req_with_retries(node: &mut Node) -> CommId {
    let connect = Connect { retry_for: Duration::from_millis(500), ..connect() };
    let id = node.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
    assert_eq!(node.sent_names(), ["REQ"]);
    id
}

// clause: CM-REQ-AGAIN
#[test]
fn req_without_listener_is_retried() {
    let mut node = Node::new();
    let id = send_req_with_retries(&mut node);
    let state = node.cm.state(id);
    for pause in [10, 20, 40, 80, 160, 160] {
        assert_eq!((node.deliver(rej_without_listener(id)), node.cm.state(id)), (Ok(()), state));
        assert_eq!(node.deliver(rej_without_listener(id)), Err(Ignored::Duplicate), "the network duplicated it");
        assert_eq!((node.sent(), node.events()), (vec![], vec![]));
        assert_eq!((node.wait().as_millis(), node.sent_names()), (pause, vec!["REQ"]));
    }
    assert_eq!(node.deliver(rej_without_listener(id)), Ok(()));
    assert_eq!(node.events(), [EventKind::Rejected(Box::new(rej_without_listener(id)))]);
    assert!(node.cm.is_empty());
}

// clause: CM-REQ-AGAIN, CM-RETRIES
#[test]
fn retried_req_equals_the_first() {
    let mut node = Node::new();
    let id = send_req_with_retries(&mut node);
    assert_eq!(node.deliver(rej_without_listener(id)), Ok(()));
    node.wait();
    assert_eq!(node.sent_names(), ["REQ"]);
    for _ in 0..15 {
        assert_eq!((node.wait().as_millis(), node.sent_names()), (4608, vec!["REQ"]), "the peer does not answer");
    }
    assert_eq!(node.deliver(rep(id)), Ok(()));
    assert!(matches!(node.events()[..], [EventKind::ConnectReply(..)]));
}

// clause: CM-REQ-AGAIN
#[test]
fn other_answers_end_the_retry_pause() {
    let mut node = Node::new();
    let id = send_req_with_retries(&mut node);
    assert_eq!(node.deliver(rej_without_listener(id)), Ok(()));
    assert_eq!((node.deliver(rep(id)), node.state(id), node.cm.poll_timeout()), (Ok(()), State::RepRcvd, None));
    let mut node = Node::new();
    let id = send_req_with_retries(&mut node);
    assert_eq!(node.deliver(rej_without_listener(id)), Ok(()));
    assert_eq!(node.deliver(rej(id, Answered::Req, RejReason::ConsumerDefined)), Ok(()));
    assert!(matches!(node.events()[..], [EventKind::Rejected(_)]) && node.cm.is_empty());
    let mut node = Node::new();
    let id = send_req_with_retries(&mut node);
    assert_eq!(
        (node.deliver(rej_without_listener(id)), node.destroy(id), node.sent_names()),
        (Ok(()), Ok(()), vec!["REJ"])
    );
    assert!(node.cm.is_empty());
}

// clause: CM-REJECT
#[test]
fn rejecting_the_rep_sends_rej() {
    let mut node = Node::new();
    let id = node.receive_rep();
    node.cm.reject(id, &Refusal::new(PrivateData::new(b"no").unwrap())).unwrap();
    let Message::Rej(rej) = node.one_sent() else { panic!("no REJ") };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.answered), (id, PEER_ID, Answered::Rep));
    assert_eq!((rej.reason, &rej.private_data.as_bytes()[..3]), (RejReason::ConsumerDefined, &b"no\0"[..]));
    assert!(node.cm.is_empty());
}

// clause: CM-STALE
#[test]
fn rep_with_qp_in_use_is_rejected_and_ends_both() {
    let mut node = Node::new();
    let old = node.establish_active();
    let new = node.send_req();
    let rep_of_same_qp = Rep { local_comm_id: CommId(0x8888), ..rep(new) };
    assert_eq!(node.deliver(rep_of_same_qp), Err(Ignored::Stale));
    let sent = node.sent();
    let [Message::Rej(rej), Message::Dreq(dreq)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.answered, rej.reason, rej.remote_comm_id), {
        (Answered::Rep, RejReason::StaleConnection, CommId(0x8888))
    });
    assert_eq!((dreq.local_comm_id, node.state(old), node.state(new)), (old, State::DreqSent, State::Idle));
    assert_eq!(node.events(), [EventKind::Stale]);
}

// clause: CM-XRC
#[test]
fn xrc_target_qpn_is_in_the_eecn_field() {
    let mut node = Node::new();
    let connect = Connect { transport: Transport::Xrc, ..connect() };
    let id = node.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
    assert_eq!(node.sent_names(), ["REQ"]);
    assert_eq!(node.deliver(Rep { local_qpn: Qpn::default(), local_eecn: PEER_QPN, ..rep(id) }), Ok(()));
    assert_eq!(node.cm.qp_terms(id).unwrap().dest_qpn, PEER_QPN);
    let mut node = Node::listening();
    assert_eq!(node.deliver(Req { transport: Transport::Xrc, ..req() }), Ok(()));
    let id = node.cm.poll_event().unwrap().id;
    node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    let Message::Rep(rep) = node.one_sent() else { panic!("no REP") };
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (Qpn::default(), OUR_QPN, true));
}

// clause: CM-ID
#[test]
fn ids_carry_the_process_prefix() {
    let mut node = Node::with(Settings { prefix: 0xabc, ..Settings::new(OUR_GUID) });
    let ids = [node.send_req(), node.send_req()];
    assert_eq!(ids.map(CommId::prefix), [0xabc; 2]);
    assert_ne!(ids[0], ids[1]);
    assert_eq!(addressee(&rep(ids[0]).into()), Addressee::Id(ids[0]));
    assert_eq!(addressee(&req().into()), Addressee::Service(SERVICE));
    assert_eq!(addressee(&rej(CommId::NONE, Answered::Neither, RejReason::Timeout).into()), Addressee::Anyone);
}

// clause: CM-ID, CM-BOUNDS
#[test]
fn ids_differ_with_constant_random_numbers() {
    let settings = Settings { prefix: 0xfff, max_connections: 3, ..Settings::new(OUR_GUID) };
    let mut cm = Cm::new(settings);
    let mut ids =
        [(); 3].map(|()| cm.connect(&mut Cx { now: Instant(0), random: &mut || 0xf_ffff }, &connect()).unwrap());
    ids.sort();
    assert_eq!(ids.map(|id| id.0), [0xfff0_0000, 0xfff0_0001, 0xffff_ffff]);
    assert_eq!(cm.connect(&mut Cx { now: Instant(0), random: &mut || 0 }, &connect()), Err(CmError::Full));
}
