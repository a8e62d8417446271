//! Lookups of datagram services.

use super::*;
use roxe_wire::Qkey;
use roxe_wire::cm::{SidrRep, SidrReq, SidrStatus};

const REQUEST: CommId = CommId(0x5555);

fn request() -> SidrReq {
    let back = Route { local: address(2), remote: address(1) };
    messages::sidr_req(REQUEST, &Resolve::new(back, SERVICE))
}

fn found() -> Resolution {
    let service = Ok((OUR_QPN, Qkey(0x0123_4567)));
    Resolution { service, ece: Ece::NONE, private_data: PrivateData::new(b"here").unwrap() }
}

fn reply(id: CommId) -> SidrRep {
    messages::sidr_rep(&SidrReq { request_id: id, ..request() }, &found())
}

// clause: CM-SIDR
#[test]
fn lookup_is_repeated_until_answered() {
    let mut node = Node::new();
    let id = node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    let Message::SidrReq(sent) = node.one_sent() else { panic!("no SIDR_REQ") };
    assert_eq!((sent.request_id, sent.service_id, sent.pkey.0), (id, SERVICE, 0xffff));
    assert_eq!((node.wait().as_millis(), node.sent_names()), (4096, vec!["SIDR_REQ"]));
    assert_eq!(node.deliver(reply(CommId(id.0 ^ 1))), Err(Ignored::UnknownId));
    let elsewhere = Route { local: address(1), remote: address(3) };
    assert_eq!(node.deliver_from(elsewhere, reply(id)), Err(Ignored::Address));
    assert_eq!(node.deliver(reply(id)), Ok(()));
    assert_eq!(node.events(), [EventKind::LookupReply(Box::new(reply(id)), Ece::NONE)]);
    assert!(node.cm.is_empty() && node.deliver(reply(id)) == Err(Ignored::UnknownId));
}

// clause: CM-SIDR, CM-RETRIES
#[test]
fn unanswered_lookup_is_abandoned() {
    let mut node = Node::new();
    node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    node.run_timers();
    assert_eq!((node.sent_names(), node.events()), (vec!["SIDR_REQ"; 16], vec![EventKind::Unreachable]));
    assert_eq!(node.now, Instant(16 * 4096 * 1_000_000));
    let id = node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    node.destroy(id).unwrap();
    assert!(node.cm.is_empty() && node.events().is_empty());
}

// clause: CM-SIDR, CM-REQ-AGAIN
#[test]
fn lookup_without_listener_is_retried() {
    let mut node = Node::new();
    let resolve = Resolve { retry_for: Duration::from_millis(500), ..Resolve::new(route(), SERVICE) };
    let id = node.call(|cm, cx| cm.resolve(cx, &resolve)).unwrap();
    let unsupported = SidrRep { status: SidrStatus::Unsupported, ..reply(id) };
    assert_eq!(
        (node.sent_names(), node.wait().as_millis(), node.sent_names()),
        (vec!["SIDR_REQ"], 4096, vec!["SIDR_REQ"])
    );
    for pause in [10, 20, 40, 80, 160, 160] {
        assert_eq!(node.deliver(unsupported.clone()), Ok(()));
        assert_eq!(node.deliver(unsupported.clone()), Err(Ignored::Duplicate), "the network duplicated it");
        assert_eq!((node.sent(), node.events()), (vec![], vec![]));
        assert_eq!((node.wait().as_millis(), node.sent_names()), (pause, vec!["SIDR_REQ"]));
    }
    assert_eq!((node.wait().as_millis(), node.sent_names()), (4096, vec!["SIDR_REQ"]), "the peer does not answer");
    assert_eq!(node.deliver(unsupported.clone()), Ok(()));
    assert_eq!(node.events(), [EventKind::LookupReply(Box::new(unsupported), Ece::NONE)]);
    assert!(node.cm.is_empty());
}

// clause: CM-SIDR
#[test]
fn duplicate_lookup_is_one_event() {
    let mut node = Node::new();
    let listener = node.listen(1);
    for _ in 0..2 {
        assert_eq!(node.deliver(request()), Ok(()));
        let event = node.cm.poll_event().unwrap();
        assert_eq!(event.kind, EventKind::LookupRequest(Origin { listener, route: route() }, Box::new(request())));
        assert_eq!((node.deliver(request()), node.sent()), (Err(Ignored::Duplicate), vec![]));
        node.cm.answer(event.id, &found()).unwrap();
        assert_eq!(node.sent(), [Message::SidrRep(reply(REQUEST))]);
        assert_eq!((node.cm.answer(event.id, &found()), node.cm.is_empty()), (Err(CmError::UnknownId), true));
    }
}

// clause: CM-SIDR, CM-BACKLOG
#[test]
fn lookup_of_unknown_service_is_refused() {
    let status = |node: &mut Node| match node.one_sent() {
        Message::SidrRep(rep) => rep.status,
        other => panic!("{other:?}"),
    };
    let mut node = Node::new();
    assert_eq!((node.deliver(request()), status(&mut node)), (Err(Ignored::Refused), SidrStatus::Unsupported));
    node.listen(1);
    assert_eq!(node.deliver(SidrReq { request_id: CommId::NONE, ..request() }), Err(Ignored::Malformed));
    assert_eq!(node.deliver(request()), Ok(()));
    let more = SidrReq { request_id: CommId(0x6666), ..request() };
    assert_eq!((node.deliver(more.clone()), status(&mut node)), (Err(Ignored::Refused), SidrStatus::Reject));
    let id = node.cm.poll_event().unwrap().id;
    node.destroy(id).unwrap();
    assert_eq!(status(&mut node), SidrStatus::Reject);
    assert_eq!(node.deliver(more), Ok(()));
}
