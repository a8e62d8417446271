//! `roxe check-peer`: do two cards understand each other? Every service, operation, size and path
//! MTU, in both directions, with compared data; each card is driven through its agent.
//!
//! Which checks there are comes first, then a connected pair of queue pairs with memory on both
//! sides, then one check. Touches the connections to the two agents.

use crate::client::{Client, ClientError};
use crate::protocol::{Command, from_hex, limits, to_hex};
use serde_json::{Value, json};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Path MTUs, in bytes.
const MTUS: [u32; 3] = [256, 1024, 4096];
/// Bytes of an atomic.
const ATOMIC: u32 = 8;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Service {
    /// Its name in verbs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// All three.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// The operations that it has.
    #[must_use]
    pub const fn ops(self) -> &'static [Op] {
        use Op::*;
        match self {
            Self::Rc => &[Send, SendImm, Write, WriteImm, Read, FetchAdd, CmpSwap],
            Self::Uc => &[Send, SendImm, Write, WriteImm],
            Self::Ud => &[Send, SendImm],
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// ATOMIC FETCH AND ADD.
    FetchAdd,
    /// ATOMIC COMPARE AND SWAP, one that swaps.
    CmpSwap,
}

impl Op {
    /// The names of its opcode in a request, and in the requester's completion.
    #[must_use]
    pub const fn opcodes(self) -> (&'static str, &'static str) {
        match self {
            Self::Send => ("SEND", "SEND"),
            Self::SendImm => ("SEND_WITH_IMM", "SEND"),
            Self::Write => ("RDMA_WRITE", "RDMA_WRITE"),
            Self::WriteImm => ("RDMA_WRITE_WITH_IMM", "RDMA_WRITE"),
            Self::Read => ("RDMA_READ", "RDMA_READ"),
            Self::FetchAdd => ("ATOMIC_FETCH_AND_ADD", "FETCH_ADD"),
            Self::CmpSwap => ("ATOMIC_CMP_AND_SWP", "COMP_SWAP"),
        }
    }

    /// Whether it is one of eight bytes that both sides change.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Whether bytes come to the requester.
    const fn is_pull(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }

    /// Whether it takes a receive from the responder.
    #[must_use]
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it carries immediate data.
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

/// The addresses that packets travel between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The service.
    pub service: Service,
    /// The path MTU.
    pub mtu: u32,
    /// The addresses.
    pub family: Family,
    /// The operation.
    pub op: Op,
    /// Bytes of the message.
    pub size: u32,
    /// Whether the far side is the requester.
    pub is_from_far: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.family == Family::V4 { "ipv4" } else { "ipv6" };
        let way = if self.is_from_far { "far->near" } else { "near->far" };
        let (service, op) = (self.service.name(), self.op.opcodes().0);
        write!(f, "{service} {op} size={} mtu={} {family} {way}", self.size, self.mtu)
    }
}

/// The services, path MTUs and addresses; a pair of queue pairs each.
pub fn pairs() -> impl Iterator<Item = (Service, u32, Family)> {
    Service::ALL.into_iter().flat_map(|service| {
        MTUS.into_iter().flat_map(move |mtu| [Family::V4, Family::V6].map(|family| (service, mtu, family)))
    })
}

/// The checks of a pair: sizes about its MTU, and, where messages are cut into packets, long ones.
pub fn checks((service, mtu, family): (Service, u32, Family)) -> impl Iterator<Item = Check> {
    const LONG: [u32; 2] = [64 << 10, 1 << 20];
    let sizes = [0, 1, mtu - 1, mtu].into_iter().chain([mtu + 1, LONG[0], LONG[1]]);
    service.ops().iter().flat_map(move |&op| {
        let fits = move |size: &u32| match (op.is_atomic(), service) {
            (true, _) => false,
            (false, Service::Ud) => *size <= mtu,
            _ => true,
        };
        let atomic = op.is_atomic().then_some(ATOMIC);
        sizes.clone().filter(fits).chain(atomic).flat_map(move |size| {
            [false, true].map(|is_from_far| Check { service, mtu, family, op, size, is_from_far })
        })
    })
}

/// Bytes of each region: the longest message twice, to be sent from and to be received in, and what
/// must not be touched around it.
const REGION: u64 = 4 << 20;
/// The Q_Key that datagrams bear, and queue pairs ask for.
pub(super) const QKEY: u32 = 0x1234_5678;
const RIGHTS: &str = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC";

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One of the cards has no such address, MTU or service.
    #[error("{0}")]
    Unsupported(String),
    /// An agent refused something that every card can do, or is gone.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// One side of a pair.
pub(super) struct End<'a> {
    pub(super) client: &'a mut Client,
    pub(super) qp: u64,
    pub(super) qpn: u64,
    pub(super) cq: u64,
    pub(super) mr: u64,
    pub(super) addr: u64,
    pub(super) rkey: u64,
    /// The way to the other side, if datagrams go it.
    pub(super) ah: Option<u64>,
    gid: String,
    gid_index: u64,
}

/// Both sides: near, far.
pub struct Pair<'a> {
    pub(super) ends: [End<'a>; 2],
}

/// A number of an answer.
pub(super) fn number(value: &Value, name: &str) -> Result<u64, ClientError> {
    value[name].as_u64().ok_or_else(|| ClientError::Protocol(format!("no number {name} in {value}")))
}

impl<'a> Pair<'a> {
    /// Connects a new queue pair of each card. What an earlier pair has left there goes.
    ///
    /// # Errors
    /// [`PairError::Unsupported`] if one of the cards cannot have such a pair.
    pub fn connect(
        near: &'a mut Client,
        far: &'a mut Client,
        (service, mtu, family): (Service, u32, Family),
    ) -> Result<Self, PairError> {
        let mut ends = [End::make(near, service, mtu, family)?, End::make(far, service, mtu, family)?];
        let dests = [1, 0].map(|other: usize| (ends[other].gid.clone(), ends[other].qpn));
        for (end, (gid, qpn)) in ends.iter_mut().zip(dests) {
            end.connect(service, mtu, &gid, qpn)?;
        }
        Ok(Self { ends })
    }
}

impl<'a> End<'a> {
    fn make(client: &'a mut Client, service: Service, mtu: u32, family: Family) -> Result<Self, PairError> {
        client.call(Command::Reset, Value::Null)?;
        let active_mtu = number(&client.card()["port"], "active_mtu")?;
        if u64::from(mtu) > active_mtu {
            return Err(PairError::Unsupported(format!("{} has an MTU of {active_mtu}", client.name())));
        }
        let no_gid = || PairError::Unsupported(format!("{} has no RoCE v2 GID of that family", client.name()));
        let (gid, gid_index) = gid(client.card(), family).ok_or_else(no_gid)?;
        let mr = client.call(Command::Reg, json!({"length": REGION, "access": RIGHTS}))?;
        let made =
            client.call(Command::CreateQp, json!({"type": service.name(), "max_send_wr": 16, "max_recv_wr": 16}));
        let qp = made.map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => PairError::Unsupported(error.to_string()),
            _ => error.into(),
        })?;
        Ok(Self {
            qp: number(&qp, "qp")?,
            qpn: number(&qp, "qpn")?,
            cq: number(&qp, "cq")?,
            mr: number(&mr, "mr")?,
            addr: number(&mr, "addr")?,
            rkey: number(&mr, "rkey")?,
            ah: None,
            client,
            gid,
            gid_index,
        })
    }

    fn connect(&mut self, service: Service, mtu: u32, gid: &str, qpn: u64) -> Result<(), ClientError> {
        let qp = self.qp;
        let init = match service {
            Service::Ud => json!({"qp": qp, "to": "INIT", "qkey": QKEY}),
            _ => json!({"qp": qp, "to": "INIT", "access": RIGHTS}),
        };
        self.client.call(Command::ModifyQp, init)?;
        let path = json!({"dgid": gid, "sgid_index": self.gid_index});
        if service == Service::Ud {
            self.client.call(Command::ModifyQp, json!({"qp": qp, "to": "RTR"}))?;
            self.ah = Some(number(&self.client.call(Command::CreateAh, path)?, "ah")?);
        } else {
            let mut rtr = json!({"qp": qp, "to": "RTR", "path_mtu": mtu, "dest_qpn": qpn, "rq_psn": 0xff_fff0});
            for name in ["dgid", "sgid_index"] {
                rtr[name] = path[name].clone();
            }
            self.client.call(Command::ModifyQp, rtr)?;
        }
        // The PSNs of every pair go through 0 soon.
        self.client.call(Command::ModifyQp, json!({"qp": qp, "to": "RTS", "sq_psn": 0xff_fff0}))?;
        Ok(())
    }
}

/// The first RoCE v2 GID of this family that another host can reach, and its index.
fn gid(card: &Value, family: Family) -> Option<(String, u64)> {
    card["gids"].as_array()?.iter().filter(|gid| gid["type"] == "RoCE v2").find_map(|gid| {
        let text = gid["gid"].as_str()?;
        let address: Ipv6Addr = text.parse().ok()?;
        let is_v4 = matches!(address.to_canonical(), IpAddr::V4(_));
        let fits = is_v4 == (family == Family::V4) && !address.is_unicast_link_local();
        fits.then_some((text.to_owned(), gid["index"].as_u64()?))
    })
}

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
const ATOMIC_WORDS: (u64, u64) = (0x0102_0304_0506_0708, 0x1111_2222_3333_4444);

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
            true => ATOMIC_WORDS.0.to_ne_bytes().to_vec(),
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
            Op::FetchAdd => request["compare_add"] = ATOMIC_WORDS.1.into(),
            Op::CmpSwap => {
                request["compare_add"] = ATOMIC_WORDS.0.into();
                request["swap"] = ATOMIC_WORDS.1.into();
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
            Op::FetchAdd => ATOMIC_WORDS.0.wrapping_add(ATOMIC_WORDS.1),
            Op::CmpSwap => ATOMIC_WORDS.1,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by hand, for one direction and family: RC 5 operations x 7 sizes x 3 MTUs + 2 x 3,
    /// UC 4 x 7 x 3, UD 2 x 4 x 3.
    #[test]
    fn every_check_is_there_once() {
        let names: std::collections::BTreeSet<_> = pairs().flat_map(checks).map(|check| check.to_string()).collect();
        assert_eq!(names.len(), 4 * (105 + 6 + 84 + 24));
        assert_eq!(pairs().flat_map(checks).count(), names.len());
    }
}
