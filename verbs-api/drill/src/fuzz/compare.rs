//! Compares the behaviour of a card with the model's, and ignores differences that the standard
//! allows.

use super::title::{self, FIRST_SEND_ID};
use crate::layout;
use crate::run::trace::{FILL, GRH_LEN, Trace};
use crate::script::Case;
use crate::script::steps::Step;
use roxe_peer::protocol::to_hex;
use std::collections::BTreeMap;

/// Offset of the IPv4 header in a GRH.
const IPV4_AT: usize = GRH_LEN - 20;
/// Minimum length of equal bytes that a script writes as `len=` and `fill=`.
const MIN_RUN: usize = 9;

/// Kind of behaviour in which the card differs from the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DifferenceKind {
    Answers,
    Completions,
    State,
    Memory,
    /// The GRH of a received datagram.
    Header,
    /// Asynchronous events of a queue pair or its shared receive queue.
    Events,
    /// The honest connection was not served.
    Honest,
    /// roxe's transport panicked.
    Panic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) kind: DifferenceKind,
    pub(super) qp: String,
    /// Behaviours of model and card, in the notation of scripts.
    pub(super) model: String,
    pub(super) card: String,
    /// The line of a script that fails for the card's memory.
    pub(super) check: Option<String>,
}

impl Difference {
    fn new(kind: DifferenceKind, qp: &str, model: impl Into<String>, card: impl Into<String>) -> Self {
        Self { kind, qp: qp.to_owned(), model: model.into(), card: card.into(), check: None }
    }

    /// Returns the difference of a case in which roxe's transport panics.
    pub(super) fn panic() -> Self {
        Self::new(DifferenceKind::Panic, "", "", "")
    }

    /// Describes the difference without numbers, which vary between cases of one cause. `service`
    /// and `is_requester` are those of the case.
    pub(super) fn cause(&self, service: &str, is_requester: bool) -> String {
        let role = if is_requester { "requester" } else { "responder" };
        let (model, card) = (&*self.model, &*self.card);
        let text = match self.kind {
            DifferenceKind::Answers => title::packets(model, card, is_requester),
            DifferenceKind::Completions => title::completions(model, card),
            DifferenceKind::State => format!("the queue pair ends in {model} on the model, in {card} on the card"),
            DifferenceKind::Memory => title::memory(model, card),
            DifferenceKind::Header => title::grh(model, card),
            DifferenceKind::Events => title::events(model, card),
            DifferenceKind::Honest => return "the card no longer acknowledges an honest connection".to_owned(),
            DifferenceKind::Panic => return "roxe's transport panics".to_owned(),
        };
        format!("{service} {role}: {text}")
    }
}

/// Returns the first difference of each connection, and of memory that belongs to none.
pub(super) fn differences(case: &Case, model: &Trace, card: &Trace) -> Vec<Difference> {
    if !card.is_alive {
        return vec![Difference::new(DifferenceKind::Honest, "h", "ACK", "nothing")];
    }
    let all = [answers(model), answers(card)];
    let connections = model.states.keys().filter_map(|qp| connection_difference(case, qp, model, card, &all));
    let is_shared = |name: &str| name.strip_prefix('m').is_none_or(|qp| !model.states.contains_key(qp));
    let shared = model.memory.keys().filter(|name| is_shared(name)).filter_map(|name| memory("h", name, model, card));
    connections.chain(shared).collect()
}

fn connection_difference(
    case: &Case,
    qp: &str,
    model: &Trace,
    card: &Trace,
    [ours, theirs]: &[BTreeMap<String, Vec<String>>; 2],
) -> Option<Difference> {
    let nothing = Vec::new();
    let requested = format!("psn={} ", last_ack_request(case, qp));
    let settled = |all: &BTreeMap<String, Vec<String>>| {
        let mut list = all.get(qp).unwrap_or(&nothing).clone();
        if list.last().is_some_and(|last| last.starts_with("ACK ") && !last.contains(&requested)) {
            list.pop();
        }
        list
    };
    if let Some((ours, theirs)) = first(&settled(ours), &settled(theirs)) {
        return Some(Difference::new(DifferenceKind::Answers, qp, ours, theirs));
    }
    let done = [&model.completions[qp], card.completions.get(qp).unwrap_or(&nothing)];
    for are_requests in [true, false] {
        // A card may complete flushed send requests before or after flushed receives.
        let [ours, theirs] = done.map(|list| -> Vec<_> {
            list.iter().filter(|text| is_of_request(text) == are_requests).cloned().collect()
        });
        if let Some((ours, theirs)) = first(&ours, &theirs) {
            return Some(Difference::new(DifferenceKind::Completions, qp, ours, theirs));
        }
    }
    let (ours, theirs) = (&model.states[qp], card.states.get(qp).map_or("", String::as_str));
    if ours != theirs {
        return Some(Difference::new(DifferenceKind::State, qp, ours, theirs));
    }
    let region = format!("m{qp}");
    memory(qp, &region, model, card).or_else(|| header(qp, &region, model, card)).or_else(|| events(qp, model, card))
}

/// Returns true for the completion of a send work request.
fn is_of_request(completion: &str) -> bool {
    let id = completion.strip_prefix("id=").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    id.is_some_and(|id| id >= FIRST_SEND_ID)
}

fn memory(qp: &str, name: &str, model: &Trace, card: &Trace) -> Option<Difference> {
    let ours = model.memory.get(name)?;
    let theirs = card.memory.get(name).map_or(&[][..], Vec::as_slice);
    let both = ours.len().min(theirs.len());
    // The memory is nearly always equal, and a comparison of slices is fast in builds for tests,
    // too.
    if ours[..both] == theirs[..both] {
        return None;
    }
    let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)?;
    let describe = |byte: u8| format!("at={at} value={byte}{}", if byte == FILL { " untouched" } else { "" });
    let check = Some(format!("peer memory {name} at={at} hex={:02x}", ours[at]));
    Some(Difference { check, ..Difference::new(DifferenceKind::Memory, qp, describe(ours[at]), describe(theirs[at])) })
}

fn header(qp: &str, name: &str, model: &Trace, card: &Trace) -> Option<Difference> {
    let mine = model.grhs.iter().filter(|((region, _), _)| region == name);
    let mut pairs = mine.filter_map(|(place, ours)| Some((place, ours, card.grhs.get(place)?)));
    let ((_, at), ours, theirs) = pairs.find(|(_, ours, theirs)| ours != theirs)?;
    let field = title::differing_fields(ours, theirs).into_iter().next().unwrap_or_default();
    let value = ours.split(' ').find_map(|word| word.strip_prefix(&field)?.strip_prefix('=')).unwrap_or_default();
    let check = ipv4_check(name, *at, &field, value);
    Some(Difference { check: Some(check), ..Difference::new(DifferenceKind::Header, qp, ours, theirs) })
}

/// Returns the line of a script which checks that a field of the IPv4 header in the GRH at `at` has
/// this value.
fn ipv4_check(region: &str, at: usize, field: &str, value: &str) -> String {
    let number = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
    let number = number.unwrap_or_default();
    let (offset, content) = match field {
        "version" => (0, format!("hex={number:02x}")),
        "tos" => (1, format!("hex={number:02x}")),
        "length" => (2, format!("hex={number:04x}")),
        "fragment" => (6, format!("hex={number:04x}")),
        "ttl" => (8, format!("hex={number:02x}")),
        "protocol" => (9, format!("hex={number:02x}")),
        "source" if value == "near" => (12, "word=near.low".to_owned()),
        "destination" if value == "card" => (16, "word=card.low".to_owned()),
        "checksum" => return format!("peer checksum {region} at={} len=20", at + IPV4_AT),
        // The model wrote no header, or the script language has no name for the address.
        _ => return format!("peer memory {region} at={} hex={FILL:02x}", at + IPV4_AT),
    };
    format!("peer memory {region} at={} {content}", at + IPV4_AT + offset)
}

/// Compares events without regard to their order.
fn events(qp: &str, model: &Trace, card: &Trace) -> Option<Difference> {
    let nothing = Vec::new();
    let events_in = |trace: &'_ Trace| trace.events.get(qp).unwrap_or(&nothing).clone();
    let (mut ours, mut theirs) = (events_in(model), events_in(card));
    ours.retain(|event| match theirs.iter().position(|other| other == event) {
        Some(at) => {
            theirs.remove(at);
            false
        }
        None => true,
    });
    let name = |list: Vec<String>| list.into_iter().next().unwrap_or_else(|| "nothing".to_owned());
    let is_equal = ours.is_empty() && theirs.is_empty();
    (!is_equal).then(|| Difference::new(DifferenceKind::Events, qp, name(ours), name(theirs)))
}

/// Returns the first elements that differ.
fn first(ours: &[String], theirs: &[String]) -> Option<(String, String)> {
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let get = |list: &[String]| list.get(at).cloned().unwrap_or_else(|| "nothing".to_owned());
    Some((get(ours), get(theirs)))
}

/// Describes the answers by queue pair, without differences that the standard allows.
fn answers(trace: &Trace) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (qp, packet) in &trace.answers {
        let Some(text) = describe(packet) else { continue };
        let list = all.entry(qp.clone()).or_default();
        if list.last().is_some_and(|last| last.starts_with("ACK ")) {
            list.pop();
        }
        if !is_request(packet[0]) || !list.contains(&text) {
            list.push(text);
        }
    }
    all
}

const fn is_request(opcode: u8) -> bool {
    !matches!(opcode & 0x1f, 0x0d..=0x12)
}

/// Returns a packet in the notation of scripts; `None` for a CNP.
pub(super) fn describe(packet: &[u8]) -> Option<String> {
    let opcode = *packet.first()?;
    if opcode == 0x81 {
        return None;
    }
    let get = |name| layout::get(packet, name).unwrap_or_default();
    let (fields, len) = layout::fields(opcode);
    let content = content(layout::payload(packet, len).unwrap_or_default());
    let name = roxe_wire::Opcode::from_u8(opcode)
        .map_or_else(|| format!("{opcode:#04x}"), |opcode| opcode.properties().name.to_owned());
    let (psn, syndrome, msn) = (get("psn"), get("syndrome"), get("msn"));
    Some(match (opcode & 0x1f, syndrome) {
        (0x11, 0..0x20) => format!("ACK psn={psn} msn={msn}"),
        (0x11, 0x20..0x40) => format!("RNR psn={psn} timer={} msn={msn}", syndrome & 0x1f),
        (0x11, 0x60..0x65) => format!("NAK {} psn={psn} msn={msn}", layout::NAKS[(syndrome & 7) as usize]),
        (0x11, _) => format!("ACK psn={psn} syndrome={syndrome:#x}"),
        (0x12, _) => format!("ATOMIC_ACK psn={psn} original={}", get("original")),
        _ => {
            let own = ["va", "rkey", "dmalen", "imm", "compare", "swap"];
            let own = own.iter().filter(|name| fields.iter().any(|field| field.name == **name));
            let own: String = own.map(|name| format!(" {name}={:#x}", get(*name))).collect();
            format!("{name} psn={psn}{own}{content}")
        }
    })
}

/// Returns payload in the notation of scripts.
fn content(payload: &[u8]) -> String {
    match payload {
        [] => String::new(),
        [first, rest @ ..] if payload.len() >= MIN_RUN && rest.iter().all(|byte| byte == first) => {
            format!(" len={} fill={first}", payload.len())
        }
        _ => format!(" hex={}", to_hex(payload)),
    }
}

/// Returns the PSN of the last packet to `qp` if that packet requests an acknowledgement, otherwise
/// `-`.
fn last_ack_request(case: &Case, qp: &str) -> String {
    let sends = case.lines.iter().rev().filter_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some(qp) => Some(spec),
        _ => None,
    });
    let requested = sends.take(1).find_map(|spec| {
        let value = |name: &str| {
            let (_, number) = spec.fields.iter().find(|(known, _)| known == name)?;
            number.value(&case.names).ok()
        };
        value("ackreq").filter(|value| *value == 1).and_then(|_| value("psn"))
    });
    requested.map_or_else(|| "-".to_owned(), |psn| psn.to_string())
}
