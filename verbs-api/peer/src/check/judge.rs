//! One check: bytes are written on one side, an operation moves them, both sides' completions and
//! all bytes around the target are compared.

use super::pair::{End, Pair, QKEY, REGION};
use super::plan::{Check, Op, Service};
use crate::client::ClientError;
use crate::protocol::{Command, from_hex, limits, to_hex};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Bytes before and behind a message that nobody may touch, and what they are.
const GUARD: u64 = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Where messages come from, and where they go to.
const SOURCE: u64 = 4096;
const TARGET: u64 = REGION / 2;
/// What precedes a datagram in its receive.
const GRH: u64 = 40;
/// How long a completion may take: a long message to an emulated processor takes seconds.
const PATIENCE_MS: u64 = 30_000;
/// The operands of atomics: what is there, what is added or swapped in.
const ATOMIC: (u64, u64) = (0x0102_0304_0506_0708, 0x1111_2222_3333_4444);

/// What a check found.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The cards do not understand each other.
    #[error("{0}")]
    Wrong(String),
    /// An agent refused something, or is gone.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// Does a check on a pair made for it. After one that failed the pair is of no use.
///
/// # Errors
/// What is wrong.
pub fn check(pair: &mut Pair<'_>, check: &Check, seed: u64) -> Result<(), Failed> {
    let [near, far] = &mut pair.ends;
    let (from, to) = if check.is_from_far { (far, near) } else { (near, far) };
    let moved = Moved::prepare(check, seed, from, to)?;
    if check.op.takes_receive() {
        let extra = if check.service == Service::Ud { GRH } else { 0 };
        let sge = json!([{"mr": to.mr, "offset": TARGET - extra, "length": u64::from(check.size) + extra}]);
        to.client.call(Command::PostRecv, json!({"qp": to.qp, "wr_id": 2, "sge": sge}))?;
    }
    from.client.call(Command::PostSend, moved.request(check, from, to))?;
    let sent = completion(from, "the requester")?;
    expect(&sent, "the requester's completion", &[("wr_id", 1.into()), ("opcode", check.op.opcodes().1.into())])?;
    if check.op.takes_receive() {
        let received = completion(to, "the responder")?;
        let is_write = check.op == Op::WriteImm;
        let mut wanted = vec![
            ("wr_id", 2.into()),
            ("opcode", if is_write { "RECV_RDMA_WITH_IMM" } else { "RECV" }.into()),
            ("byte_len", (u64::from(check.size) + if check.service == Service::Ud { GRH } else { 0 }).into()),
        ];
        if check.op.has_imm() {
            wanted.push(("imm", moved.imm.into()));
        }
        if check.service == Service::Ud {
            wanted.push(("src_qp", from.qpn.into()));
        }
        expect(&received, "the responder's completion", &wanted)?;
    }
    moved.compare(check, from, to)
}

/// The bytes of a check, those of an atomic as they are before it.
struct Moved {
    bytes: Vec<u8>,
    imm: u32,
}

impl Moved {
    /// Writes the bytes where they come from, and what stands around them where they go to.
    fn prepare<'a>(check: &Check, seed: u64, from: &mut End<'a>, to: &mut End<'a>) -> Result<Self, Failed> {
        let mut state = seed | 1;
        let mut next = || {
            // Xorshift: any bytes that do not repeat with a packet's length do.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let bytes = match check.op.is_atomic() {
            true => ATOMIC.0.to_ne_bytes().to_vec(),
            false => (0..check.size).map(|_| next().to_le_bytes()[3]).collect(),
        };
        let imm = (next() >> 32) as u32;
        let (source, target) = if check.op.is_pull() { (to, from) } else { (from, to) };
        write(source, SOURCE, &bytes)?;
        write(target, TARGET - GUARD, &vec![GUARD_BYTE; bytes.len() + 2 * GUARD as usize])?;
        Ok(Self { bytes, imm })
    }

    fn request(&self, check: &Check, from: &End<'_>, to: &End<'_>) -> Value {
        let (local, remote) = if check.op.is_pull() { (TARGET, SOURCE) } else { (SOURCE, TARGET) };
        let mut request = json!({
            "qp": from.qp, "wr_id": 1, "opcode": check.op.opcodes().0,
            "sge": [{"mr": from.mr, "offset": local, "length": check.size}],
        });
        if check.op.has_imm() {
            request["imm"] = self.imm.into();
        }
        if let Some(ah) = from.ah {
            request["ah"] = ah.into();
            request["remote_qpn"] = to.qpn.into();
            request["remote_qkey"] = QKEY.into();
        } else if !matches!(check.op, Op::Send | Op::SendImm) {
            request["remote_addr"] = (to.addr + remote).into();
            request["rkey"] = to.rkey.into();
        }
        match check.op {
            Op::FetchAdd => request["compare_add"] = ATOMIC.1.into(),
            Op::CmpSwap => {
                request["compare_add"] = ATOMIC.0.into();
                request["swap"] = ATOMIC.1.into();
            }
            _ => {}
        }
        request
    }

    /// Compares what is there with what should be. Only a WRITE without acknowledgement may still
    /// be under way.
    fn compare<'a>(&self, check: &Check, from: &mut End<'a>, to: &mut End<'a>) -> Result<(), Failed> {
        let guard = vec![GUARD_BYTE; GUARD as usize];
        // In front of a datagram is the GRH, or on RoCE v2 over IPv4 half of it and bytes that
        // nobody defines.
        let before = if check.service == Service::Ud { &[] } else { &guard[..] };
        let (wanted, begin) = ([before, &self.bytes, &guard].concat(), TARGET - before.len() as u64);
        let until = Instant::now() + Duration::from_millis(PATIENCE_MS);
        let target = if check.op.is_pull() { &mut *from } else { &mut *to };
        loop {
            let found = read(target, begin, wanted.len())?;
            if found == wanted {
                break;
            }
            let is_late = check.service == Service::Uc && check.op == Op::Write && Instant::now() < until;
            if !is_late {
                return Err(Failed::Wrong(difference(&wanted, &found, begin)));
            }
        }
        let new = match check.op {
            Op::FetchAdd => ATOMIC.0.wrapping_add(ATOMIC.1),
            Op::CmpSwap => ATOMIC.1,
            _ => return Ok(()),
        };
        let found = read(to, SOURCE, 8)?;
        if found == new.to_ne_bytes() {
            return Ok(());
        }
        Err(Failed::Wrong(format!("the word is {} after it, not {}", to_hex(&found), to_hex(&new.to_ne_bytes()))))
    }
}

fn difference(wanted: &[u8], found: &[u8], begin: u64) -> String {
    let at = wanted.iter().zip(found).position(|(wanted, found)| wanted != found).unwrap_or(0);
    let part = |bytes: &[u8]| to_hex(&bytes[at..bytes.len().min(at + 16)]);
    let count = wanted.iter().zip(found).filter(|(wanted, found)| wanted != found).count();
    let place = begin as i64 + at as i64 - TARGET as i64;
    format!("{count} bytes differ, the first at {place} of the message: {} instead of {}", part(found), part(wanted))
}

fn completion(end: &mut End<'_>, who: &str) -> Result<Value, Failed> {
    let mut answer = end.client.call(Command::Poll, json!({"cq": end.cq, "max": 2, "timeout_ms": PATIENCE_MS}))?;
    let list = answer["completions"].as_array_mut();
    let [one] = &mut list.map_or_else(Vec::new, std::mem::take)[..] else {
        return Err(Failed::Wrong(format!("{who} has got no completion, or several: {answer}")));
    };
    if one["status"] != "SUCCESS" {
        return Err(Failed::Wrong(format!("the completion of {who} says {}", one["status"])));
    }
    Ok(one.take())
}

fn expect(completion: &Value, what: &str, wanted: &[(&str, Value)]) -> Result<(), Failed> {
    match wanted.iter().find(|(name, value)| completion[*name] != *value) {
        None => Ok(()),
        Some((name, value)) => Err(Failed::Wrong(format!("{name} of {what} is {}, not {value}", completion[*name]))),
    }
}

fn write(end: &mut End<'_>, offset: u64, bytes: &[u8]) -> Result<(), ClientError> {
    for (offset, part) in (offset..).step_by(limits::TRANSFER).zip(bytes.chunks(limits::TRANSFER)) {
        end.client.call(Command::Write, json!({"mr": end.mr, "offset": offset, "hex": to_hex(part)}))?;
    }
    Ok(())
}

fn read(end: &mut End<'_>, offset: u64, len: usize) -> Result<Vec<u8>, Failed> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let part = (len - bytes.len()).min(limits::TRANSFER);
        let place = offset + bytes.len() as u64;
        let answer = end.client.call(Command::Read, json!({"mr": end.mr, "offset": place, "length": part}))?;
        let part = answer["hex"].as_str().and_then(from_hex).filter(|bytes| bytes.len() == part);
        bytes.extend(part.ok_or_else(|| ClientError::Protocol("not the bytes that were asked for".to_owned()))?);
    }
    Ok(bytes)
}
