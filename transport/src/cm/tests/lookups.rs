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
fn a_client_asks_until_it_is_answered() {
    let mut node = Node::new();
    let id = node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    let Message::SidrReq(asked) = node.one_sent() else { panic!("no SIDR_REQ") };
    assert_eq!((asked.request_id, asked.service_id, asked.pkey.0), (id, SERVICE, 0xffff));
    assert_eq!((node.wait().as_millis(), node.names()), (4096, vec!["SIDR_REQ"]));
    assert_eq!(node.takes(reply(CommId(id.0 ^ 1))), Err(Ignored::UnknownId));
    let elsewhere = Route { local: address(1), remote: address(3) };
    assert_eq!(node.takes_from(elsewhere, reply(id)), Err(Ignored::Address));
    assert_eq!(node.takes(reply(id)), Ok(()));
    assert_eq!(node.events(), [EventKind::LookupReply(Box::new(reply(id)), Ece::NONE)]);
    assert!(node.cm.is_empty() && node.takes(reply(id)) == Err(Ignored::UnknownId));
}

// clause: CM-SIDR, CM-RETRIES
#[test]
fn a_client_gives_up() {
    let mut node = Node::new();
    node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    node.run_out();
    assert_eq!((node.names(), node.events()), (vec!["SIDR_REQ"; 16], vec![EventKind::Unreachable]));
    assert_eq!(node.now, Instant(16 * 4096 * 1_000_000));
    let id = node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap();
    node.destroy(id).unwrap();
    assert!(node.cm.is_empty() && node.events().is_empty());
}

// clause: CM-SIDR, CM-REQ-AGAIN
#[test]
fn a_client_that_finds_nobody_asks_again_for_a_while() {
    let mut node = Node::new();
    let resolve = Resolve { retry_for: Duration::from_millis(500), ..Resolve::new(route(), SERVICE) };
    let id = node.call(|cm, cx| cm.resolve(cx, &resolve)).unwrap();
    let nobody = SidrRep { status: SidrStatus::Unsupported, ..reply(id) };
    assert_eq!((node.names(), node.wait().as_millis(), node.names()), (vec!["SIDR_REQ"], 4096, vec!["SIDR_REQ"]));
    for pause in [10, 20, 40, 80, 160, 160] {
        assert_eq!(node.takes(nobody.clone()), Ok(()));
        assert_eq!(node.takes(nobody.clone()), Err(Ignored::Duplicate), "the network repeated it");
        assert_eq!((node.sent(), node.events()), (vec![], vec![]));
        assert_eq!((node.wait().as_millis(), node.names()), (pause, vec!["SIDR_REQ"]));
    }
    assert_eq!((node.wait().as_millis(), node.names()), (4096, vec!["SIDR_REQ"]), "nobody answers");
    assert_eq!(node.takes(nobody.clone()), Ok(()));
    assert_eq!(node.events(), [EventKind::LookupReply(Box::new(nobody), Ece::NONE)]);
    assert!(node.cm.is_empty());
}

// clause: CM-SIDR
#[test]
fn a_service_is_asked_once_and_answers_every_time() {
    let mut node = Node::new();
    let listener = node.listen(1);
    for _ in 0..2 {
        assert_eq!(node.takes(request()), Ok(()));
        let event = node.cm.poll_event().unwrap();
        assert_eq!(event.kind, EventKind::LookupRequest(Origin { listener, route: route() }, Box::new(request())));
        assert_eq!((node.takes(request()), node.sent()), (Err(Ignored::Duplicate), vec![]));
        node.cm.answer(event.id, &found()).unwrap();
        assert_eq!(node.sent(), [Message::SidrRep(reply(REQUEST))]);
        assert_eq!((node.cm.answer(event.id, &found()), node.cm.is_empty()), (Err(CmError::UnknownId), true));
    }
}

// clause: CM-SIDR, CM-BACKLOG
#[test]
fn lookups_that_no_service_answers_are_refused() {
    let status = |node: &mut Node| match node.one_sent() {
        Message::SidrRep(rep) => rep.status,
        other => panic!("{other:?}"),
    };
    let mut node = Node::new();
    assert_eq!((node.takes(request()), status(&mut node)), (Err(Ignored::Refused), SidrStatus::Unsupported));
    node.listen(1);
    assert_eq!(node.takes(SidrReq { request_id: CommId::NONE, ..request() }), Err(Ignored::Malformed));
    assert_eq!(node.takes(request()), Ok(()));
    let more = SidrReq { request_id: CommId(0x6666), ..request() };
    assert_eq!((node.takes(more.clone()), status(&mut node)), (Err(Ignored::Refused), SidrStatus::Reject));
    let id = node.cm.poll_event().unwrap().id;
    node.destroy(id).unwrap();
    assert_eq!(status(&mut node), SidrStatus::Reject);
    assert_eq!(node.takes(more), Ok(()));
}
