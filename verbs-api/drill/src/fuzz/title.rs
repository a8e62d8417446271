//! Titles of differences. A title describes two behaviours, given in the notation of scripts,
//! without the numbers that vary between cases of one cause.

use std::collections::BTreeMap;

/// First id of a send work request; receives have lower ones.
pub(super) const FIRST_SEND_ID: u64 = 100;
/// Behaviour of a card that sends, completes, writes or raises nothing.
const NOTHING: &str = "nothing";

/// Describes packets of the model and the card that differ.
pub(super) fn packets(model: &str, card: &str, is_requester: bool) -> String {
    let verb = if is_requester { "sends" } else { "answers" };
    let (ours, theirs) = (packet_kind(model), packet_kind(card));
    if ours == theirs {
        return format!(
            "the card {verb} {ours} with another {} than the model",
            join_names(&differing_fields(model, card))
        );
    }
    let act = |what: &str| match (what, is_requester) {
        (NOTHING, true) => "sends nothing".to_owned(),
        (NOTHING, false) => "does not answer".to_owned(),
        _ => format!("{verb} {what}"),
    };
    format!("the model {}, the card {}", act(&ours), act(&theirs))
}

/// Describes completions that differ, both of requests or both of receives.
pub(super) fn completions(model: &str, card: &str) -> String {
    let (ours, theirs) = (fields(model), fields(card));
    let request = |fields: &BTreeMap<&str, &str>| {
        let id = fields.get("id").and_then(|id| id.parse().ok()).unwrap_or(0);
        if id >= FIRST_SEND_ID { "a request" } else { "a receive" }
    };
    let status = |fields: &BTreeMap<&str, &str>| fields.get("status").copied().unwrap_or_default().to_owned();
    match (model, card) {
        (NOTHING, _) => format!("the model completes nothing, the card {} with {}", request(&theirs), status(&theirs)),
        (_, NOTHING) => format!("the model completes {} with {}, the card nothing", request(&ours), status(&ours)),
        _ if status(&ours) != status(&theirs) => {
            format!("the model completes {} with {}, the card with {}", request(&ours), status(&ours), status(&theirs))
        }
        _ => {
            let what = join_names(&differing_fields(model, card));
            format!("the card completes {} with another {what} than the model", request(&ours))
        }
    }
}

/// Describes bytes of memory that differ.
pub(super) fn memory(model: &str, card: &str) -> String {
    let is_untouched = |text: &str| text.ends_with(" untouched");
    match (is_untouched(model), is_untouched(card)) {
        (true, false) => "the card changes memory that the model leaves alone",
        (false, true) => "the card leaves memory alone that the model changes",
        _ => "the card writes other bytes to memory than the model",
    }
    .to_owned()
}

/// Describes the two GRHs of a received datagram, which differ.
pub(super) fn grh(model: &str, card: &str) -> String {
    match (model, card) {
        (NOTHING, _) => "the card writes a GRH that the model does not write".to_owned(),
        (_, NOTHING) => "the card does not write the GRH of a datagram".to_owned(),
        _ => {
            format!("the card writes a GRH with another {} than the model", join_names(&differing_fields(model, card)))
        }
    }
}

/// Describes asynchronous events that only the model or only the card raises.
pub(super) fn events(model: &str, card: &str) -> String {
    match (model, card) {
        (NOTHING, card) => format!("the card raises {card} and the model does not"),
        (model, NOTHING) => format!("the model raises {model} and the card does not"),
        (model, card) => format!("the model raises {model}, the card {card}"),
    }
}

/// Describes the kind of a packet.
fn packet_kind(text: &str) -> String {
    let mut words = text.split(' ');
    let name = words.next().unwrap_or_default();
    let operation = name.split('_').next().unwrap_or_default();
    match (name, operation) {
        ("NAK", _) => format!("NAK {}", words.next().unwrap_or_default().replace('_', " ")),
        ("RNR", _) => "RNR NAK".to_owned(),
        ("ACK", _) if text.contains(" syndrome=") => "ACK with a reserved syndrome".to_owned(),
        ("ACK" | "ATOMIC_ACK" | NOTHING, _) => name.to_owned(),
        ("READ_REQUEST", _) => "a READ request".to_owned(),
        ("FETCH_ADD" | "COMPARE_SWAP", _) => "an atomic request".to_owned(),
        (_, "READ") => "a READ response".to_owned(),
        (_, "SEND" | "WRITE") => format!("a {operation} request"),
        _ => format!("opcode {name}"),
    }
}

/// Returns the fields `NAME=VALUE` of a text.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.split(' ').filter_map(|word| word.split_once('=')).collect()
}

/// Returns the names of fields that differ; the first word is the field `opcode`.
pub(super) fn differing_fields(model: &str, card: &str) -> Vec<String> {
    let (ours, theirs) = (fields(model), fields(card));
    let name = |text: &str| text.split(' ').next().filter(|word| !word.contains('=')).map(str::to_owned);
    let is_other = name(model) != name(card);
    let names = ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name)));
    let names = names.filter(|name| ours.get(*name) != theirs.get(*name)).map(|name| (*name).to_owned());
    is_other.then(|| "opcode".to_owned()).into_iter().chain(names).collect()
}

/// Joins names of fields as a reader knows them.
fn join_names(names: &[String]) -> String {
    let word = |name: &String| match name.as_str() {
        "psn" | "msn" | "ttl" | "tos" => name.to_uppercase(),
        "hex" | "fill" | "len" => "payload".to_owned(),
        "id" => "wr_id".to_owned(),
        "bytes" => "length".to_owned(),
        "imm" => "immediate data".to_owned(),
        "src_qp" => "source queue pair".to_owned(),
        "original" => "original value".to_owned(),
        "va" => "address".to_owned(),
        "dmalen" => "DMA length".to_owned(),
        "source" | "destination" => format!("{name} address"),
        _ => name.clone(),
    };
    let mut words: Vec<_> = names.iter().map(word).collect();
    words.dedup();
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_two_kinds_are_named() {
        let title = packets("ATOMIC_ACK psn=5 original=7", "NAK invalid_request psn=5 msn=0", false);
        assert_eq!(title, "the model answers ATOMIC_ACK, the card answers NAK invalid request");
        let title = packets("READ_RESPONSE_ONLY psn=5 hex=07", NOTHING, false);
        assert_eq!(title, "the model answers a READ response, the card does not answer");
        let title = packets(NOTHING, "SEND_FIRST psn=5 len=256 fill=7", true);
        assert_eq!(title, "the model sends nothing, the card sends a SEND request");
    }

    #[test]
    fn answers_of_one_kind_differ_in_named_fields() {
        let title = packets("ATOMIC_ACK psn=5 original=7", "ATOMIC_ACK psn=5 original=8", false);
        assert_eq!(title, "the card answers ATOMIC_ACK with another original value than the model");
        let title = packets("READ_RESPONSE_ONLY psn=5 hex=07", "READ_RESPONSE_LAST psn=6 hex=07", false);
        assert_eq!(title, "the card answers a READ response with another opcode and PSN than the model");
        let title = packets("ACK psn=5 msn=1", "ACK psn=5 msn=2", false);
        assert_eq!(title, "the card answers ACK with another MSN than the model");
    }

    #[test]
    fn completions_name_request_and_status() {
        let success = "id=3 status=SUCCESS opcode=RECV bytes=16 src_qp=q.near";
        let title = completions(success, "id=3 status=LOC_LEN_ERR");
        assert_eq!(title, "the model completes a receive with SUCCESS, the card with LOC_LEN_ERR");
        let title = completions(NOTHING, "id=101 status=FATAL_ERR");
        assert_eq!(title, "the model completes nothing, the card a request with FATAL_ERR");
        let title = completions(success, "id=3 status=SUCCESS opcode=RECV bytes=16 src_qp=0x7");
        assert_eq!(title, "the card completes a receive with another source queue pair than the model");
    }

    #[test]
    fn memory_and_events_name_the_side_that_acts() {
        assert_eq!(
            memory("at=4 value=7 untouched", "at=4 value=1"),
            "the card changes memory that the model leaves alone"
        );
        assert_eq!(events("QP_REQ_ERR", NOTHING), "the model raises QP_REQ_ERR and the card does not");
        assert_eq!(events("QP_REQ_ERR", "QP_FATAL"), "the model raises QP_REQ_ERR, the card QP_FATAL");
        assert_eq!(
            grh("GRH tos=0x0 ttl=64", "GRH tos=0x0 ttl=63"),
            "the card writes a GRH with another TTL than the model"
        );
    }
}
