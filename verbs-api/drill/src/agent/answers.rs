//! What an agent answers, as plain data, and pieces of memory as it wants them. Pure.

use crate::target::{Answer, Completed, ConnectionEvent, Piece, Refused};
use roxe_peer::protocol::{from_hex, from_runs};
use serde_json::{Value, json};

pub(super) fn number(answer: &Value, name: &str) -> Answer<u64> {
    answer[name].as_u64().ok_or_else(|| Refused::broken(format!("the agent does not say {name}: {answer}")))
}

pub(super) fn segments(pieces: &[Piece]) -> Value {
    pieces.iter().map(|piece| json!({"addr": piece.addr, "length": piece.len, "lkey": piece.lkey})).collect()
}

pub(super) fn state(answer: &Value) -> String {
    answer["state"].as_str().unwrap_or_default().into()
}

pub(super) fn hex(answer: &Value) -> Answer<Vec<u8>> {
    let bytes = answer["hex"].as_str().and_then(from_hex);
    bytes.ok_or_else(|| Refused::broken("the agent does not say the bytes"))
}

pub(super) fn runs(answer: &Value, len: usize) -> Answer<Vec<u8>> {
    from_runs(&answer["runs"], len).ok_or_else(|| Refused::broken("the agent does not say the bytes"))
}

pub(super) fn all_completed(answer: &Value) -> Vec<Completed> {
    answer["completions"].as_array().into_iter().flatten().map(completed).collect()
}

fn completed(value: &Value) -> Completed {
    let word = |name: &str| value[name].as_u64().map(|word| word as u32);
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Completed {
        wr_id: value["wr_id"].as_u64().unwrap_or_default(),
        status: text("status"),
        opcode: text("opcode"),
        byte_len: word("byte_len").unwrap_or_default(),
        imm: word("imm"),
        invalidated: word("invalidated_rkey"),
        src_qp: word("src_qp").unwrap_or_default(),
        qpn: word("qpn").unwrap_or_default(),
    }
}

pub(super) fn connection_event(value: &Value) -> ConnectionEvent {
    ConnectionEvent {
        name: value["type"].as_str().unwrap_or_default().to_owned(),
        status: value["status"].as_i64().unwrap_or_default(),
        id: value["cm"].as_u64().unwrap_or_default(),
        listener: value["listener"].as_u64(),
        private_data: hex(value).unwrap_or_default(),
    }
}
