//! Delivers every message in every state and compares the reactions with `reactions.txt`, which is
//! reviewed. Also delivers duplicates, and messages from another address or with wrong ids.

use super::*;
use roxe_wire::cm::{Apr, AprStatus, Lap, MadError, SidrReq, SidrStatus};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Brings a node into a state; returns our id.
type Enter = fn(&mut Node) -> CommId;

/// Every state, for both sides where they differ.
const STATES: [(&str, Enter); 21] = [
    ("nothing", |_| CommId(0x4242)),
    ("ReqSent", Node::send_req),
    ("MraReqRcvd", |node| after_message(node, Node::send_req, |id| mra(id, Answered::Req).into())),
    ("RepRcvd", Node::receive_rep),
    ("MraRepSent", |node| after_delay(node, Node::receive_rep)),
    ("ReqRcvd", Node::receive_req),
    ("MraReqSent", |node| after_delay(node, Node::receive_req)),
    ("RepSent", Node::send_rep),
    ("MraRepRcvd", |node| after_message(node, Node::send_rep, |id| mra(id, Answered::Rep).into())),
    ("Established, active", Node::establish_active),
    ("Established, passive", Node::establish_passive),
    ("LapSent, active", |node| after_lap(node, Node::establish_active)),
    ("LapSent, passive", |node| after_lap(node, Node::establish_passive)),
    ("MraLapRcvd", |node| {
        after_message(node, |node| after_lap(node, Node::establish_active), |id| mra(id, Answered::Neither).into())
    }),
    ("LapRcvd", |node| after_message(node, Node::establish_passive, |id| lap(id).into())),
    ("MraLapSent", |node| after_delay(node, |node| after_message(node, Node::establish_passive, |id| lap(id).into()))),
    ("Established, a LAP answered", |node| {
        let id = after_message(node, Node::establish_passive, |id| lap(id).into());
        node.cm.answer_alternate(id, &AlternateAnswer::new(AprStatus::Reject)).unwrap();
        id
    }),
    ("DreqSent", |node| after_dreq(node, Node::establish_active)),
    ("DreqRcvd", |node| after_message(node, Node::establish_active, |id| dreq(id).into())),
    ("TimeWait", |node| after_message(node, |node| after_dreq(node, Node::establish_active), |id| drep(id).into())),
    ("lookup", lookup_sent),
];

/// Enters a state with `enter`, then delivers a message.
fn after_message(node: &mut Node, enter: Enter, message: fn(CommId) -> Message) -> CommId {
    let id = enter(node);
    let _ = node.cm.enable_alternate_events(id, true);
    assert_eq!(node.deliver(message(id)), Ok(()));
    id
}

fn after_delay(node: &mut Node, enter: Enter) -> CommId {
    let id = enter(node);
    node.cm.delay(id, TimeCode::new(20)).unwrap();
    id
}

fn after_lap(node: &mut Node, enter: Enter) -> CommId {
    let id = enter(node);
    let alternate = Alternate::new(Route { local: address(11), remote: address(12) });
    let Node { cm, now, .. } = node;
    // Transaction 9, which the messages of the tests carry.
    cm.load_alternate(&mut Cx { now: *now, random: &mut || 9 }, id, &alternate).unwrap();
    id
}

fn after_dreq(node: &mut Node, enter: Enter) -> CommId {
    let id = enter(node);
    node.disconnect(id).unwrap();
    id
}

fn lookup_sent(node: &mut Node) -> CommId {
    node.call(|cm, cx| cm.resolve(cx, &Resolve::new(route(), SERVICE))).unwrap()
}

fn lap(ours: CommId) -> Lap {
    let (local_gid, remote_gid) = (address(12), address(11));
    Lap { local_comm_id: PEER_ID, remote_comm_id: ours, remote_qpn: OUR_QPN, local_gid, remote_gid, ..Lap::default() }
}

fn apr(ours: CommId) -> Apr {
    messages::apr(PEER_ID, ours, &AlternateAnswer::new(AprStatus::Success))
}

/// Returns a REJ for timeout from a peer that does not know our id.
fn timed_out() -> Rej {
    let info = Info::new(&PEER_GUID.0.to_be_bytes()).unwrap();
    Rej { info, ..rej(CommId::NONE, Answered::Neither, RejReason::Timeout) }
}

fn sidr_req() -> SidrReq {
    messages::sidr_req(PEER_ID, &Resolve::new(route(), SERVICE))
}

/// Returns every message that a peer may send about connection `id`.
fn messages(id: CommId) -> Vec<(&'static str, Message)> {
    let reply = SidrReq { request_id: id, ..sidr_req() };
    vec![
        ("REQ", req().into()),
        ("REQ of the same queue pair", Req { local_comm_id: CommId(0x8888), ..req() }.into()),
        ("REP", rep(id).into()),
        ("RTU", rtu(id).into()),
        ("MRA(REQ)", mra(id, Answered::Req).into()),
        ("MRA(REP)", mra(id, Answered::Rep).into()),
        ("MRA(LAP)", mra(id, Answered::Neither).into()),
        ("REJ(REQ)", rej(id, Answered::Req, RejReason::ConsumerDefined).into()),
        ("REJ(REP)", rej(id, Answered::Rep, RejReason::ConsumerDefined).into()),
        ("REJ(stale)", rej(id, Answered::Req, RejReason::StaleConnection).into()),
        ("REJ(timeout)", timed_out().into()),
        ("DREQ", dreq(id).into()),
        ("DREP", drep(id).into()),
        ("LAP", lap(id).into()),
        ("APR", apr(id).into()),
        ("SIDR_REQ", sidr_req().into()),
        ("SIDR_REP", messages::sidr_rep(&reply, &Resolution::refused(SidrStatus::NoQp)).into()),
    ]
}

/// Returns a node in a state, without the messages and events that led to it, and our id.
fn node_in(enter: Enter) -> (Node, CommId) {
    let mut node = Node::new();
    node.listen(2);
    let id = enter(&mut node);
    let _ = node.cm.enable_alternate_events(id, true);
    drop((node.sent(), node.events()));
    (node, id)
}

/// Returns the name of the state of a connection.
fn state_name(node: &Node, id: CommId) -> String {
    match (node.cm.state(id), node.cm.alternate_state(id)) {
        (Some(state), None | Some(AlternateState::Idle)) => format!("{state:?}"),
        (Some(_), Some(alternate)) => format!("{alternate:?}"),
        (None, _) if node.cm.sidr.contains(id) => "lookup".into(),
        (None, _) => "nothing".into(),
    }
}

fn kind_of(event: &EventKind) -> String {
    let all = format!("{event:?}");
    match event {
        EventKind::Disconnected(_) => all,
        _ => all.split(['(', ' ']).next().unwrap_or_default().into(),
    }
}

/// Returns the reaction to a message as a line; the reason if the message had no effect.
fn reaction(node: &mut Node, id: CommId, before: &str, outcome: Result<(), Ignored>) -> Result<String, Ignored> {
    let mut line = String::new();
    let after = state_name(node, id);
    if after != before {
        write!(line, " -> {after}").unwrap();
    }
    for message in node.sent() {
        write!(line, ", sends {}", message.name()).unwrap();
        if let Message::Rej(rej) = message {
            write!(line, " ({})", rej.reason).unwrap();
        }
    }
    for event in node.events() {
        write!(line, ", raises {}", kind_of(&event)).unwrap();
    }
    match outcome {
        Err(why) if line.is_empty() => Err(why),
        Err(why) => Ok(format!("{line}, counted {}", why.name())),
        Ok(()) => Ok(line),
    }
}

fn render() -> String {
    let mut text = String::new();
    for (name, enter) in STATES {
        writeln!(text, "{name}").unwrap();
        let mut ignored = BTreeMap::<_, Vec<_>>::new();
        for (index, (message, _)) in messages(CommId::NONE).into_iter().enumerate() {
            let (mut node, id) = node_in(enter);
            let before = state_name(&node, id);
            let outcome = node.deliver(messages(id).remove(index).1);
            match reaction(&mut node, id, &before, outcome) {
                Ok(line) => writeln!(text, "    {message}:{}", line.trim_start_matches(',')).unwrap(),
                Err(why) => ignored.entry(why.name()).or_default().push(message),
            }
        }
        for (why, messages) in ignored {
            writeln!(text, "    ignored, {why}: {}", messages.join(", ")).unwrap();
        }
    }
    text
}

// clause: CM-MATCH, CM-UNKNOWN, CM-DREQ-UNKNOWN, CM-LAP, CM-STALE, CM-REQ-DUPLICATE
#[test]
fn reactions_equal_the_reviewed_table() {
    let (now, reviewed) = (render(), include_str!("reactions.txt"));
    assert!(now == reviewed, "the reactions changed; review them and update reactions.txt:\n{now}");
}

/// Calls `check` for every message in every state.
fn for_each_message_and_state(mut check: impl FnMut(&str, Node, CommId, Message)) {
    for (name, enter) in STATES {
        for index in 0..messages(CommId::NONE).len() {
            let (node, id) = node_in(enter);
            let (message_name, message) = messages(id).remove(index);
            check(&format!("{message_name} in {name}"), node, id, message);
        }
    }
}

/// Returns the state after a duplicate, which is answered with one MRA while our program decides.
fn after_duplicate(state: String) -> String {
    match state.as_str() {
        "ReqRcvd" | "RepRcvd" | "LapRcvd" => format!("Mra{}", state.replace("Rcvd", "Sent")),
        _ => state,
    }
}

// clause: CM-LAP-DUPLICATE, CM-REQ-DUPLICATE, CM-REP-DUPLICATE, CM-MRA, CM-TIMEWAIT
#[test]
fn duplicate_message_changes_no_state() {
    for_each_message_and_state(|name, mut node, id, message| {
        let _ = node.deliver(message.clone());
        let (after, held) = (after_duplicate(state_name(&node, id)), node.cm.len());
        drop((node.sent(), node.events()));
        for _ in 0..3 {
            let _ = node.deliver(message.clone());
            assert!(node.sent().len() <= 1, "{name}");
            let events: Vec<_> = node.events().iter().map(kind_of).collect();
            assert_eq!(
                (after_duplicate(state_name(&node, id)), node.cm.len(), events),
                (after.clone(), held, vec![]),
                "{name}"
            );
        }
    });
}

// clause: CM-MATCH
#[test]
fn message_with_wrong_address_changes_no_state() {
    let elsewhere = Route { local: address(1), remote: address(3) };
    let not_here = Route { local: address(4), remote: address(2) };
    for route in [elsewhere, not_here] {
        for_each_message_and_state(|name, mut node, id, message| {
            let (before, held) = (state_name(&node, id), node.cm.len());
            let is_request = matches!(message, Message::SidrReq(_));
            let outcome = node.deliver_from(route, message);
            assert_eq!(outcome.is_ok(), is_request, "{name}: a lookup of another peer is accepted");
            let answers: Vec<_> = std::iter::from_fn(|| node.cm.poll_transmit()).collect();
            assert!(answers.len() <= 1 && answers.iter().all(|answer| answer.route == route), "{name}: {answers:?}");
            assert_eq!((state_name(&node, id), node.cm.len()), (before, held + usize::from(is_request)), "{name}");
            assert!(node.cm.poll_event().is_none_or(|event| event.id != id), "{name}");
        });
    }
}

/// Returns the message with these ids; `None` if it carries no id of this end.
fn with_ids(message: &Message, ours: CommId, theirs: CommId) -> Option<Message> {
    let mut message = message.clone();
    let (local, remote) = match &mut message {
        Message::Rep(rep) => (&mut rep.local_comm_id, &mut rep.remote_comm_id),
        Message::Rtu(rtu) => (&mut rtu.local_comm_id, &mut rtu.remote_comm_id),
        Message::Mra(mra) => (&mut mra.local_comm_id, &mut mra.remote_comm_id),
        Message::Rej(rej) => (&mut rej.local_comm_id, &mut rej.remote_comm_id),
        Message::Dreq(dreq) => (&mut dreq.local_comm_id, &mut dreq.remote_comm_id),
        Message::Drep(drep) => (&mut drep.local_comm_id, &mut drep.remote_comm_id),
        Message::Lap(lap) => (&mut lap.local_comm_id, &mut lap.remote_comm_id),
        Message::Apr(apr) => (&mut apr.local_comm_id, &mut apr.remote_comm_id),
        Message::SidrRep(reply) => {
            reply.request_id = ours;
            return Some(message);
        }
        Message::Req(_) | Message::SidrReq(_) => return None,
    };
    (*local, *remote) = (theirs, ours);
    Some(message)
}

// clause: CM-MATCH, CM-UNKNOWN
#[test]
fn message_with_wrong_local_id_changes_no_state() {
    for wrong in [|id: CommId| CommId(id.0 ^ 1), |_| CommId::NONE, |_| PEER_ID] {
        for_each_message_and_state(|name, mut node, id, message| {
            // A peer that gives up may know only our GUID.
            let Some(message) = with_ids(&message, wrong(id), PEER_ID).filter(|_| !name.contains("timeout")) else {
                return;
            };
            let before = state_name(&node, id);
            assert_eq!(node.deliver(message), Err(Ignored::UnknownId), "{name}");
            assert!(node.sent().len() <= 1, "{name}");
            assert_eq!((state_name(&node, id), node.events()), (before, vec![]), "{name}");
        });
    }
}

// clause: CM-MATCH, CM-UNKNOWN
#[test]
fn message_with_wrong_peer_id_changes_no_state() {
    for theirs in [CommId(PEER_ID.0 ^ 1), CommId::NONE] {
        for_each_message_and_state(|name, mut node, id, message| {
            let Some(message) = with_ids(&message, id, theirs) else { return };
            // Before the REP, our side does not know the peer's id, so it accepts any.
            let is_unknown = matches!(node.cm.state(id), Some(State::ReqSent | State::MraReqRcvd));
            if is_unknown || matches!(message, Message::SidrRep(_)) {
                return;
            }
            let before = state_name(&node, id);
            assert!(node.deliver(message).is_err(), "{name}");
            assert!(node.sent().len() <= 1, "{name}");
            assert_eq!((state_name(&node, id), node.events()), (before, vec![]), "{name}");
        });
    }
}

// clause: CM-MAD
#[test]
fn message_of_wrong_length_does_not_parse() {
    for (name, message) in messages(CommId(0x4242)) {
        let bytes = Mad { tid: TransactionId(9), modifier: 0, message }.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Mad::parse(&bytes[..len]), Err(MadError::Length), "{name} of {len} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Mad::parse(&longer), Err(MadError::Length), "{name}");
    }
}

// clause: CM-BOUNDS, CM-TIMEWAIT, CM-DESTROY
#[test]
fn reactions_leave_no_state_after_destroy() {
    for_each_message_and_state(|name, mut node, id, message| {
        let _ = node.deliver(message);
        let _ = node.destroy(id);
        while let Some(event) = node.cm.poll_event() {
            let _ = node.destroy(event.id);
        }
        node.run_timers();
        assert!(node.cm.is_empty(), "{name}");
    });
}
