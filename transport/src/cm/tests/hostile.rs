//! Hostile peers: messages of all kinds with forged ids, GUIDs and queue pairs, and with damaged
//! bytes.

use super::*;
use roxe_sim::Choices;
use roxe_wire::cm::{Apr, AprStatus, Lap, SidrRep, SidrReq, SidrStatus};

const BACKLOG: usize = 4;

/// Returns a forged message about connection `id`.
fn forged(rng: &mut Rng, id: CommId, from: Gid) -> Message {
    let ours = rng.pick(&[id, id, CommId::NONE, CommId(5)]);
    let theirs = rng.pick(&[PEER_ID, PEER_ID, CommId::NONE, CommId(6)]);
    let answered = rng.pick(&[Answered::Req, Answered::Rep, Answered::Neither]);
    let reason = rng.pick(&[RejReason::Timeout, RejReason::StaleConnection, RejReason::ConsumerDefined]);
    let info = Info::new(&PEER_GUID.0.to_be_bytes()).unwrap();
    let mut asks = Req { local_comm_id: theirs, local_qpn: rng.pick(&[PEER_QPN, Qpn::new(7), Qpn::new(8)]), ..req() };
    asks.primary.local_gid = from;
    let request = SidrReq { request_id: theirs, ..messages::sidr_req(id, &Resolve::new(route(), SERVICE)) };
    match rng.below(11) {
        0 => asks.into(),
        1 => Rep { local_comm_id: theirs, ..rep(ours) }.into(),
        2 => Rtu { local_comm_id: theirs, ..rtu(ours) }.into(),
        3 => Rej { local_comm_id: theirs, info, ..rej(ours, answered, reason) }.into(),
        4 => Mra { local_comm_id: theirs, ..mra(ours, answered) }.into(),
        5 => Dreq { local_comm_id: theirs, ..dreq(ours) }.into(),
        6 => Drep { local_comm_id: theirs, ..drep(ours) }.into(),
        7 => {
            SidrRep { request_id: ours, ..messages::sidr_rep(&request, &Resolution::refused(SidrStatus::NoQp)) }.into()
        }
        8 => request.into(),
        9 => Lap { local_comm_id: theirs, remote_comm_id: ours, ..Lap::default() }.into(),
        _ => {
            let (status, private_data) = (AprStatus::Success, PrivateData::EMPTY);
            Apr { local_comm_id: theirs, remote_comm_id: ours, info, status, private_data }.into()
        }
    }
}

/// Returns the forged message with some damaged bytes, if it still parses.
fn with_damage(rng: &mut Rng, message: Message) -> Option<Mad> {
    let mut bytes = Mad { tid: TransactionId(rng.next()), modifier: 0, message }.to_bytes();
    for _ in 0..rng.below(4) {
        let at = 24 + rng.below(232) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
    Mad::parse(&bytes).ok()
}

/// Delivers `count` forged messages from `from`, checks invariants, and discards the results.
fn deliver_forged(node: &mut Node, rng: &mut Rng, id: CommId, from: Gid, count: u32) {
    let route = Route { local: address(1), remote: from };
    for _ in 0..count {
        let message = forged(rng, id, from);
        let Some(mad) = with_damage(rng, message) else { continue };
        let _ = node.call(|cm, cx| cm.handle_message(cx, route, &mad));
        let answers = std::iter::from_fn(|| node.cm.poll_transmit()).count();
        assert!(answers <= 2, "{answers} answers to {mad}");
        assert!(node.cm.len() <= 2 + BACKLOG, "memory is held after {mad}");
        while let Some(event) = node.cm.poll_event() {
            if from != peer_address() {
                assert_ne!(event.id, id, "{mad}");
            }
            if rng.chance_per_mille(300) {
                let _ = node.destroy(event.id);
            }
        }
        while node.cm.poll_transmit().is_some() {}
    }
}

fn peer_address() -> Gid {
    route().remote
}

// clause: CM-MATCH, CM-BOUNDS, CM-BACKLOG
#[test]
fn forged_messages_of_third_parties_have_no_effect() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut node = Node::new();
        node.listen(BACKLOG);
        let established = node.establish_active();
        deliver_forged(&mut node, &mut rng, established, address(3), 300);
        assert_eq!(node.state(established), State::Established, "seed {seed}");
        let mut node = Node::new();
        node.listen(BACKLOG);
        let requested = node.send_req();
        deliver_forged(&mut node, &mut rng, requested, address(3), 300);
        assert_eq!(node.state(requested), State::ReqSent, "seed {seed}");
        assert_eq!(node.deliver(rep(requested)), Ok(()));
    }
}

// clause: CM-BOUNDS
#[test]
fn hostile_peer_affects_only_its_own_connection() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        for reach in
            [Node::send_req, Node::receive_rep, Node::establish_active, Node::send_rep, Node::establish_passive]
        {
            let mut node = Node::new();
            node.listen(BACKLOG);
            let id = reach(&mut node);
            deliver_forged(&mut node, &mut rng, id, route().remote, 60);
            let _ = node.destroy(id);
            assert!(node.cm.poll_timeout().is_none_or(|due| due < Instant(140_000_000_000)), "seed {seed}");
        }
    }
}

/// Returns the number of messages sent during `count` requests with forged sources that are never
/// confirmed.
fn answers_to_a_flood(count: u32) -> usize {
    let mut node = Node::new();
    node.listen(count as usize);
    for n in 0..count {
        let asks =
            Req { local_comm_id: CommId(n + 1), local_qpn: Qpn::new(n + 2), max_cm_retries: Uint::new(15), ..req() };
        assert_eq!(node.deliver(asks), Ok(()));
        let id = node.cm.poll_event().unwrap().id;
        node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    }
    let mut answers = node.sent().len();
    while !node.cm.is_empty() {
        node.wait();
        answers += node.sent().len();
        while node.cm.poll_event().is_some() {}
    }
    answers
}

// clause: CM-FLOOD
#[test]
fn request_flood_is_not_amplified() {
    let (few, count) = (10, 5000);
    assert_eq!(answers_to_a_flood(few), 17 * few as usize, "a REP, 15 more, and a REJ");
    // All timers are due at once; the last are few.
    let most = count as usize + 17 * table::MANY_HALF_OPEN;
    assert!(answers_to_a_flood(count) <= most);
}

// clause: CM-FLOOD
#[test]
fn duplicate_requests_are_answered_during_a_flood() {
    let mut node = Node::new();
    node.listen(1000);
    for n in 0..table::MANY_HALF_OPEN as u32 {
        let asks = Req { local_comm_id: CommId(n + 1), local_qpn: Qpn::new(n + 2), ..req() };
        assert_eq!(node.deliver(asks), Ok(()));
        let id = node.cm.poll_event().unwrap().id;
        node.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
    }
    node.sent_names();
    let again = Req { local_comm_id: CommId(1), local_qpn: Qpn::new(2), ..req() };
    assert_eq!((node.deliver(again), node.sent_names()), (Err(Ignored::Duplicate), vec!["REP"]));
}
