//! What two cards show of one case, made comparable, and the first difference.
//!
//! A card is free in some things, which are taken out: how many requests one acknowledgement
//! answers, so only one that nothing follows counts, and of those only one that was asked for; how
//! often a request is repeated; congestion notifications.

use crate::layout;
use crate::run::trace::Trace;
use crate::script::Case;
use crate::script::steps::Step;
use roxe_peer::protocol::to_hex;
use std::collections::BTreeMap;

/// A difference: what the model shows and what the card does, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Difference {
    /// Answers, completions, the state, memory, or the honest connection.
    pub(super) what: &'static str,
    pub(super) qp: String,
    pub(super) model: String,
    pub(super) card: String,
    /// Of memory: where the first byte that differs lies, and what the model has there.
    pub(super) byte: Option<(usize, u8)>,
}

impl Difference {
    /// That of a case which roxe's transport does not survive.
    pub(super) fn panic() -> Self {
        let nothing = String::new();
        Self { what: "panic", qp: nothing.clone(), model: nothing.clone(), card: nothing, byte: None }
    }

    /// The difference without its numbers: findings with one cause have the same.
    pub(super) fn cause(&self, service: &str) -> String {
        let words = |text: &str| {
            let keep = |word: &&str| !word.contains('=') || word.starts_with("status=") || word.starts_with("opcode=");
            text.split_whitespace().filter(keep).collect::<Vec<_>>().join(" ")
        };
        format!("{service} {}: model: {}; card: {}", self.what, words(&self.model), words(&self.card))
    }
}

/// The first difference, if there is one.
pub(super) fn compare(case: &Case, model: &Trace, card: &Trace) -> Option<Difference> {
    let difference = |what, qp: &str, model: &str, card: &str| {
        Some(Difference { what, qp: qp.to_owned(), model: model.to_owned(), card: card.to_owned(), byte: None })
    };
    if !card.is_alive {
        return difference("the honest connection", "h", "ACK", "nothing");
    }
    let (ours, theirs) = (answers(model), answers(card));
    let nothing = Vec::new();
    for qp in model.states.keys() {
        let of = |all: &BTreeMap<String, Vec<String>>| all.get(qp).unwrap_or(&nothing).clone();
        let (mut ours, mut theirs) = (of(&ours), of(&theirs));
        let asked = last_asked(case, qp);
        let is_free = |list: &[String]| {
            list.last().is_some_and(|last| last.starts_with("ACK ") && !last.contains(&format!("psn={asked} ")))
        };
        for list in [&mut ours, &mut theirs] {
            if is_free(list) {
                list.pop();
            }
        }
        if let Some((ours, theirs)) = first(&ours, &theirs) {
            return difference("answers", qp, &ours, &theirs);
        }
        if let Some((ours, theirs)) = first(&model.completions[qp], card.completions.get(qp).unwrap_or(&nothing)) {
            return difference("completions", qp, &ours, &theirs);
        }
        let (ours, theirs) = (&model.states[qp], card.states.get(qp).map_or("", String::as_str));
        if ours != theirs {
            return difference("state", qp, ours, theirs);
        }
    }
    for (name, ours) in &model.memory {
        let theirs = card.memory.get(name).map_or(&[][..], Vec::as_slice);
        if let Some(at) = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
            let (model, card) = (format!("byte at={at} value={}", ours[at]), format!("byte value={}", theirs[at]));
            return Some(Difference { what: "memory", qp: name.clone(), model, card, byte: Some((at, ours[at])) });
        }
    }
    None
}

/// The first place in which two lists differ.
fn first(ours: &[String], theirs: &[String]) -> Option<(String, String)> {
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let get = |list: &[String]| list.get(at).cloned().unwrap_or_else(|| "nothing".to_owned());
    Some((get(ours), get(theirs)))
}

/// The answers of each queue pair in words, without what a card is free in.
fn answers(trace: &Trace) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (qp, packet) in &trace.answers {
        let Some(text) = describe(packet) else { continue };
        let list = all.entry(qp.clone()).or_default();
        if list.last().is_some_and(|last| last.starts_with("ACK ")) {
            list.pop();
        }
        let is_request = packet[0] & 0x1f < 0x0d || packet[0] & 0x1f > 0x12;
        if !is_request || !list.contains(&text) {
            list.push(text);
        }
    }
    all
}

/// A packet as scripts expect it; nothing for a congestion notification.
pub(super) fn describe(packet: &[u8]) -> Option<String> {
    let opcode = *packet.first()?;
    if opcode == 0x81 {
        return None;
    }
    let get = |name| layout::get(packet, name).unwrap_or_default();
    let (_, len) = layout::fields(opcode);
    let payload = layout::payload(packet, len).unwrap_or_default();
    let name = roxe_wire::Opcode::from_u8(opcode)
        .map_or_else(|| format!("{opcode:#04x}"), |opcode| opcode.facts().name.to_owned());
    let (psn, syndrome, msn) = (get("psn"), get("syndrome"), get("msn"));
    Some(match (opcode & 0x1f, syndrome) {
        (0x11, 0..0x20) => format!("ACK psn={psn} msn={msn}"),
        (0x11, 0x20..0x40) => format!("RNR psn={psn} timer={} msn={msn}", syndrome & 0x1f),
        (0x11, 0x60..0x65) => format!("NAK {} psn={psn} msn={msn}", layout::NAKS[(syndrome & 7) as usize]),
        (0x11, _) => format!("ACK psn={psn} syndrome={syndrome:#x}"),
        (0x12, _) => format!("ATOMIC_ACK psn={psn} original={}", get("original")),
        (0x0d..=0x10, _) if payload.len() <= 64 && !payload.is_empty() => {
            format!("{name} psn={psn} hex={}", to_hex(payload))
        }
        _ => format!("{name} psn={psn}"),
    })
}

/// The PSN of the last packet to `qp`, if that asks for an acknowledgement.
fn last_asked(case: &Case, qp: &str) -> String {
    let sends = case.lines.iter().rev().filter_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some(qp) => Some(spec),
        _ => None,
    });
    let asked = sends.take(1).find_map(|spec| {
        let value = |name: &str| {
            let (_, number) = spec.fields.iter().find(|(known, _)| known == name)?;
            number.value(&case.names).ok()
        };
        value("ackreq").filter(|asks| *asks == 1).and_then(|_| value("psn"))
    });
    asked.map_or_else(|| "-".to_owned(), |psn| psn.to_string())
}
