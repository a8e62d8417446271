//! `roxe replay`: converts the requests of a capture to a script for another card.
//!
//! The script creates a queue pair for each destination in the capture, and a region for each
//! R_Key. The numbers, keys and addresses of these objects replace the recorded ones; all other
//! fields stay.

use crate::layout;
use crate::run::trace::record;
use crate::script::Script;
use crate::target::Target;
use crate::{Log, ScriptError};
use roxe_peer::protocol::to_hex;
use roxe_wire::{Gid, NetHeader};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum length of a script, in bytes; later packets are left out.
const MAX_TEXT: usize = 900_000;
/// Maximum length of a region, in bytes.
const MAX_REGION: u64 = 64 << 20;
/// Regions begin at a page, so that addresses keep their alignment.
const PAGE: u64 = 4096;
/// Bytes of the GRH in UD receives.
const GRH_LEN: u64 = 40;

/// A packet of a capture.
pub type Recorded = (NetHeader, Vec<u8>);

/// A reason why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The capture has no request of this direction.
    #[error("there is no RC, UC or UD request {0}")]
    Nothing(String),
    /// A region would be too large.
    #[error("requests with key {0:#x} use {1} bytes of memory; the limit is {MAX_REGION} per region")]
    TooLarge(u64, u64),
    /// A packet has no notation in scripts.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// The requests of a capture, as a script.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The script, without expectations.
    pub script: String,
    /// Source and destination of the requests.
    pub endpoints: (Gid, Gid),
    /// Number of packets that the script sends.
    pub packets: usize,
    /// Number of packets that did not fit into the script.
    pub left_out: usize,
}

/// Requirements of a queue pair in the capture.
#[derive(Default)]
struct Connection {
    service: u8,
    first_psn: u64,
    mtu: u64,
    qkey: u64,
    /// Bytes of the longest message so far.
    longest: u64,
    /// Bytes of the current message so far.
    current: u64,
    /// Number of messages that consume a receive.
    receives: u64,
}

impl Replay {
    /// Converts the requests of the sender `from`, by default those of the first requester. Fails
    /// if there are no such requests, or no script can express them.
    pub fn of(packets: &[Recorded], from: Option<Gid>) -> Result<Self, ReplayError> {
        let is_wanted = |(net, bytes): &&Recorded| from.is_none_or(|from| from == net.src) && is_request(bytes);
        let place =
            || from.map_or_else(|| "in the capture".to_owned(), |from| format!("from {} in the capture", from.to_ip()));
        let first = packets.iter().find(is_wanted).ok_or_else(|| ReplayError::Nothing(place()))?;
        let endpoints = (first.0.src, first.0.dst);
        let requests: Vec<_> =
            packets.iter().filter(|(net, bytes)| (net.src, net.dst) == endpoints && is_request(bytes)).collect();
        let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
        let mut regions: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (_, bytes) in &requests {
            record_needs(bytes, &mut connections, &mut regions);
        }
        let mut text = setup(&connections, &regions)?;
        let (mut sent, mut service) = (0, u8::MAX);
        for (_, bytes) in &requests {
            if text.len() > MAX_TEXT {
                break;
            }
            if bytes[0] >> 5 != service {
                service = bytes[0] >> 5;
                _ = writeln!(text, "service {}", layout::service_name(service).unwrap_or_default());
            }
            _ = writeln!(text, "{}", line(bytes, &regions));
            sent += 1;
        }
        Script::parse("replay", &text)?;
        Ok(Self { script: text, endpoints, packets: sent, left_out: requests.len() - sent })
    }

    /// Sends the requests and waits up to `limit` for each response. Returns all packets, and the
    /// final states of the queue pairs. Fails if a verb fails, or the connection to the card's
    /// agent is lost.
    pub fn run(&self, target: &mut dyn Target, limit: Duration) -> Result<(Log, BTreeMap<String, String>), String> {
        let script = Script::parse("replay", &self.script).map_err(|error| error.to_string())?;
        let case = script.cases().first().ok_or("the script is empty")?;
        record(case, target, limit)
    }
}

/// Returns true for a request of RC, UC or UD that does not go to the GSI.
fn is_request(bytes: &[u8]) -> bool {
    let Some(opcode) = bytes.first().copied().and_then(roxe_wire::Opcode::from_u8) else { return false };
    let is_known = matches!(bytes[0] >> 5, 0b000 | 0b001 | 0b011) && !opcode.operation().is_response();
    is_known && layout::payload(bytes, layout::fields(bytes[0]).1).is_some() && field(bytes, "dqpn") > 1
}

fn field(bytes: &[u8], name: &str) -> u64 {
    layout::get(bytes, name).unwrap_or_default()
}

/// Records which connection and region a packet requires.
fn record_needs(bytes: &[u8], connections: &mut BTreeMap<u64, Connection>, regions: &mut BTreeMap<u64, (u64, u64)>) {
    let (_, len) = layout::fields(bytes[0]);
    let payload = layout::payload(bytes, len).unwrap_or_default().len() as u64;
    let connection = connections.entry(field(bytes, "dqpn")).or_insert_with(|| Connection {
        service: bytes[0] >> 5,
        first_psn: field(bytes, "psn"),
        qkey: field(bytes, "qkey"),
        ..Connection::default()
    });
    connection.mtu = connection.mtu.max(payload);
    let name = roxe_wire::Opcode::from_u8(bytes[0]).map_or("", |opcode| opcode.properties().name);
    if name.ends_with("_FIRST") || name.contains("_ONLY") {
        connection.current = 0;
    }
    connection.current += payload;
    connection.longest = connection.longest.max(connection.current);
    let is_end = name.contains("_LAST") || name.contains("_ONLY");
    connection.receives += u64::from(is_end && (name.starts_with("SEND") || name.ends_with("_IMM")));
    if let Some(rkey) = layout::get(bytes, "rkey") {
        // Atomics have no length field and access eight bytes.
        let (va, span) = (field(bytes, "va"), layout::get(bytes, "dmalen").unwrap_or(8));
        let (begin, end) = regions.entry(rkey).or_insert((va, va));
        (*begin, *end) = ((*begin).min(va), (*end).max(va.saturating_add(span)));
    }
}

/// Returns lines that create queue pairs, receives and regions.
fn setup(connections: &BTreeMap<u64, Connection>, regions: &BTreeMap<u64, (u64, u64)>) -> Result<String, ReplayError> {
    let mut text = "title The requests of a capture\n".to_owned();
    for (key, (begin, end)) in regions {
        let length = end - begin / PAGE * PAGE;
        if length > MAX_REGION {
            return Err(ReplayError::TooLarge(*key, length));
        }
        _ = writeln!(text, "peer reg k{key:x} length={}", length.max(1));
    }
    for (qpn, connection) in connections {
        let Connection { service, first_psn, mtu, qkey, longest, receives, .. } = connection;
        let is_ud = *service == 0b011;
        let mtu = [256, 512, 1024, 2048, 4096].into_iter().find(|known| known >= mtu).unwrap_or(4096);
        let room = longest + if is_ud { GRH_LEN } else { 0 };
        let depth = (*receives).clamp(1, 4096);
        _ = writeln!(text, "service {}", layout::service_name(*service).unwrap_or_default());
        _ = write!(text, "peer qp q{qpn:x} mtu={mtu} rq_psn={first_psn} receives={depth} cqe={}", depth + 64);
        match (is_ud, *service == 0) {
            (true, _) => writeln!(text, " qkey={qkey}"),
            (_, true) => writeln!(text, " dest_rd_atomic=16"),
            _ => writeln!(text),
        }
        .unwrap_or_default();
        if *receives > 0 {
            _ = writeln!(text, "peer reg r{qpn:x} length={}", room.max(1));
            _ = writeln!(text, "repeat {depth}\npeer recv q{qpn:x} id=i sge=r{qpn:x}:0:{room}\nend");
        }
    }
    Ok(text)
}

/// Returns the script line that sends a packet of the capture.
fn line(bytes: &[u8], regions: &BTreeMap<u64, (u64, u64)>) -> String {
    let (fields, len) = layout::fields(bytes[0]);
    let payload = layout::payload(bytes, len).unwrap_or_default();
    let (rkey, qpn) = (field(bytes, "rkey"), field(bytes, "dqpn"));
    let mut text = format!("send {:#04x} of=q{qpn:x}", bytes[0]);
    let pad = (4 - payload.len() % 4) % 4;
    let default: BTreeMap<_, _> =
        [("migreq", 1), ("pkey", 0xffff), ("pad", pad as u64), ("dmalen", payload.len() as u64)].into();
    let mut written = BTreeSet::from(["opcode", "dqpn", "sqpn"]);
    for field in fields.iter().filter(|field| !written.contains(field.name)).collect::<Vec<_>>() {
        let value = field.get(bytes).unwrap_or_default();
        match field.name {
            "va" => {
                let (begin, _) = regions[&rkey];
                _ = write!(text, " va=k{rkey:x}.addr+{}", value - begin / PAGE * PAGE);
            }
            "rkey" => {
                _ = write!(text, " rkey=k{rkey:x}.rkey");
            }
            name if value != default.get(name).copied().unwrap_or_default() && written.insert(name) => {
                _ = write!(text, " {name}={value}");
            }
            _ => {}
        }
    }
    if !payload.is_empty() {
        text += " hex=";
        text += &to_hex(payload);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtualCard;
    use crate::craft::describe;
    use roxe_wire::capture::{frames, ip_packet};

    fn recorded(file: &[u8]) -> Vec<Recorded> {
        let packet = |frame: roxe_wire::capture::Frame<'_>| {
            let (net, bytes) = NetHeader::parse_ip(ip_packet(frame.link, frame.data)?).ok()?;
            Some((net, bytes.to_vec()))
        };
        frames(file).unwrap().filter_map(|frame| packet(frame.unwrap())).collect()
    }

    fn answers(file: &[u8]) -> (Replay, Vec<String>) {
        let replay = Replay::of(&recorded(file), None).unwrap();
        let (log, _) = replay.run(&mut VirtualCard::default(), Duration::from_millis(5)).unwrap();
        let answers =
            log.packets().iter().filter(|packet| packet.from_card).map(|packet| describe(&packet.datagram.bytes));
        (replay, answers.collect())
    }

    #[test]
    fn captures_of_rxe_are_accepted_on_replay() {
        let files: [&[u8]; 4] = [
            include_bytes!("../../../tests/captures/rc_send_pingpong.pcap"),
            include_bytes!("../../../tests/captures/pt_write_bw.pcap"),
            include_bytes!("../../../tests/captures/pt_read_bw.pcap"),
            include_bytes!("../../../tests/captures/pt_atomic_fa.pcap"),
        ];
        for file in files {
            let (replay, answers) = answers(file);
            assert!(replay.packets > 0 && !answers.is_empty(), "{}", replay.script);
            assert!(answers.iter().all(|answer| !answer.contains("NAK")), "{answers:?}\n{}", replay.script);
        }
    }

    #[test]
    fn capture_without_requests_is_an_error() {
        assert!(matches!(Replay::of(&[], None), Err(ReplayError::Nothing(_))));
    }
}
