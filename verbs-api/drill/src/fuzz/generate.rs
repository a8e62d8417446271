//! Generates cases from a seed, as lines of a script. Equal seeds make equal cases.
//!
//! The generator tracks the state of each connection as an honest peer would, so that most packets
//! are valid and pass the card's first checks. It mutates one of every few packets.

use super::title::FIRST_SEND_ID;
use crate::layout;
use crate::run::trace::shared_queue;
use std::fmt::Write as _;

/// Bytes of the region of a connection; its second half is for receives.
const REGION_LEN: u64 = 8192;
/// Bytes from one receive of a datagram to the next. Receives of datagrams do not overlap, because
/// their GRHs are compared.
const DATAGRAM_STRIDE: u64 = 2304;
/// Maximum number of receives of a connection.
const MAX_RECEIVES: u64 = 48;
/// Maximum message length of a case with long messages, in bytes.
const LONG_MESSAGE_LEN: u64 = 64 << 10;
/// Maximum message length of a case with few, even longer messages, in bytes.
const LONGEST: u64 = 1 << 20;

/// Bytes in front of a datagram in its receive.
const GRH_LEN: u64 = 40;

/// The connections that misbehave.
pub(super) const NAMES: [&str; 16] = ["q", "r", "s", "t", "u", "v", "w", "x", "y", "z", "a", "b", "c", "d", "e", "f"];

/// A random number generator (xorshift64*).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        // A state of zero would stay zero. The factor separates neighbouring seeds.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`, which must not be 0.
    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
struct PacketLine {
    opcode: &'static str,
    psn: u64,
    fields: Vec<(&'static str, String)>,
    flags: Vec<&'static str>,
}

impl PacketLine {
    fn new(opcode: &'static str, psn: u64) -> Self {
        Self { opcode, psn, fields: Vec::new(), flags: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.set(name, value);
        self
    }

    fn set(&mut self, name: &'static str, value: impl ToString) {
        self.fields.retain(|(known, _)| *known != name);
        self.fields.push((name, value.to_string()));
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.fields.iter().find(|(known, _)| *known == name)?.1.parse().ok()
    }

    /// Removes fields that the line's opcode does not have.
    fn remove_foreign_fields(&mut self, service: &str) {
        let bits = layout::service_bits(service).unwrap_or_default();
        let hex = self.opcode.strip_prefix("0x").and_then(|hex| u8::from_str_radix(hex, 16).ok());
        // NAK and RNR are acknowledgements.
        let byte = hex.or_else(|| layout::opcode(bits, self.opcode)).unwrap_or(0x11);
        let (fields, _) = layout::fields(byte);
        self.fields.retain(|(name, _)| {
            let name = if *name == "add" { "swap" } else { name };
            !layout::is_field(name) || fields.iter().any(|field| field.name == name)
        });
    }

    fn text(&self, qp: &str) -> String {
        let mut text = format!("send {} psn={} of={qp}", self.opcode, self.psn & 0xff_ffff);
        for (name, value) in &self.fields {
            // `@` stands for the region of the connection.
            _ = write!(text, " {name}={}", value.replace('@', &format!("m{qp}")));
        }
        self.flags.iter().fold(text, |text, flag| text + " " + flag)
    }
}

/// A message of several packets that is not complete.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    is_write: bool,
    /// Bytes that remain to be sent.
    left: u64,
}

/// Properties of a case.
#[derive(Clone, Copy)]
struct Shape {
    service: &'static str,
    /// Number of connections.
    connections: usize,
    /// Percentage of mutated packets.
    wrong: u64,
    /// Number of packets to each connection.
    rounds: u64,
    /// Maximum message length in bytes; 0 for messages of a few packets.
    longest: u64,
    /// True if each connection has a shared receive queue.
    is_shared: bool,
}

impl Shape {
    fn new(random: &mut Random, service: &'static str, is_requester: bool) -> Self {
        let connections = 1 + random.below(NAMES.len() as u64) as usize;
        let wrong = random.pick(&MUTATION_PERCENTAGES);
        let common =
            Self { service, connections, wrong, rounds: 4 + random.below(700 / wrong), longest: 0, is_shared: false };
        if service == "UD" || is_requester {
            return common;
        }
        match random.below(200) {
            0 => Self { connections: 1, wrong: 0, rounds: 1100 + random.below(100), longest: LONGEST, ..common },
            1..20 => Self {
                connections: connections.min(4),
                wrong: random.below(3),
                rounds: 80 + random.below(120),
                longest: LONG_MESSAGE_LEN,
                ..common
            },
            20..28 => Self { connections: connections.min(4), is_shared: true, ..common },
            _ => common,
        }
    }

    /// Returns the bytes of the region of a connection.
    const fn region(&self) -> u64 {
        match self.longest {
            0 => REGION_LEN,
            LONGEST => LONGEST,
            longest => 2 * longest,
        }
    }
}

/// The peer's state of a connection to the card.
struct Stream {
    name: &'static str,
    service: &'static str,
    mtu: u64,
    longest: u64,
    psn: u64,
    begun: Option<OpenMessage>,
    /// PSN of the next answer, if the card is the requester.
    answer: u64,
    /// Percentage of mutated packets.
    wrong: u64,
    sent: Vec<String>,
}

/// Percentages of mutated packets. With fewer mutated packets, connections live longer and cases
/// are longer.
const MUTATION_PERCENTAGES: [u64; 3] = [25, 8, 8];

/// Returns the lines of a case.
pub(super) fn case(random: &mut Random) -> Vec<String> {
    let service = random.pick(&["RC", "RC", "RC", "RC", "UC", "UD"]);
    let is_requester = service == "RC" && random.percent(25);
    let shape = Shape::new(random, service, is_requester);
    let mut lines = vec![
        "title What the card answers differs from the model".to_owned(),
        "peer reg ro length=4096 fill=9 access=local,read".to_owned(),
        "peer reg hm length=64".to_owned(),
        "service RC".to_owned(),
        "peer qp h".to_owned(),
        "let beat = 0".to_owned(),
        format!("service {service}"),
    ];
    let names = &NAMES[..shape.connections];
    let mut streams: Vec<_> = names.iter().map(|name| Stream::open(random, name, shape, &mut lines)).collect();
    for stream in &mut streams {
        if is_requester {
            stream.post(random, &mut lines);
        }
    }
    for _ in 0..shape.rounds {
        for stream in &mut streams {
            lines.push(if is_requester { stream.answer(random) } else { stream.request(random) });
        }
    }
    for stream in &mut streams {
        if !is_requester {
            lines.push(stream.last(random));
        }
    }
    lines.push("service RC".to_owned());
    // The judge repeats this line after every few packets, with the next `beat`.
    lines.push("send WRITE_ONLY psn=100+beat of=h ackreq va=hm.addr rkey=hm.rkey len=8".to_owned());
    lines
}

/// Changes the packet that crashes rxe of Linux 6.1: a WRITE with a DMA length of zero that has
/// payload.
pub(super) fn spare(lines: &mut [String]) {
    for line in lines.iter_mut().filter(|line| line.starts_with("send WRITE_")) {
        let has = |word: &str| line.split_whitespace().any(|other| other.starts_with(word));
        if has("dmalen=0") && (!has("len=0") || ["extra=", "pad=", "cut="].into_iter().any(has)) {
            *line = line.replace(" dmalen=0", " dmalen=1");
        }
    }
}

/// Removes packets from the stranger's address.
pub(super) fn without_stranger(lines: &mut [String]) {
    for line in lines.iter_mut().filter(|line| line.ends_with(" stranger")) {
        line.truncate(line.len() - " stranger".len());
    }
}

/// Shortens datagrams to `max` bytes, which is more than the longest path MTU of a case: packets
/// that are too long for their connection stay too long.
pub(super) fn shorten_datagrams(lines: &mut [String], max: usize) {
    // BTH, the longest other headers, padding and ICRC.
    const MAX_OVERHEAD: usize = 12 + 28 + 4 + 3 + 4;
    const MIN_EXTRA: usize = 8;
    let room = max.saturating_sub(MAX_OVERHEAD);
    for line in lines.iter_mut().filter(|line| line.starts_with("send ")) {
        let (len, extra) = (number(line, " len="), number(line, " extra="));
        if len + extra <= room {
            continue;
        }
        let extra_now = extra.min(MIN_EXTRA);
        *line = line.replace(&format!(" extra={extra}"), &format!(" extra={extra_now}"));
        *line = line.replace(&format!(" len={len}"), &format!(" len={}", len.min(room - extra_now)));
    }
}

/// Returns the number after `name`; 0 without one.
fn number(line: &str, name: &str) -> usize {
    let rest = line.split_once(name).map_or("", |(_, rest)| rest);
    rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

impl Stream {
    fn open(random: &mut Random, name: &'static str, shape: Shape, lines: &mut Vec<String>) -> Self {
        let Shape { service, wrong, longest, is_shared, .. } = shape;
        let mtu = if longest > 0 { 1024 } else { random.pick(&[256, 512, 1024]) };
        let psn = random.pick(&[100, 0, 0xff_fffe, 0x7f_fffe, 0x80_0001]);
        let mut line = format!("peer qp {name} mtu={mtu} rq_psn={psn} sq_psn=500");
        if service == "RC" {
            _ = write!(line, " timeout=0 dest_rd_atomic=16 rnr_timer=1");
        }
        if service != "UD" && random.percent(10) {
            line += random.pick(&[" access=none", " access=write", " access=read,atomic"]);
        }
        let queue = if is_shared { shared_queue(name) } else { name.to_owned() };
        // Each connection has its own region, because cards may execute connections in any order.
        lines.push(format!("peer reg m{name} length={} fill=7", shape.region()));
        if is_shared {
            lines.push(format!("peer srq {queue}"));
            _ = write!(line, " srq={queue}");
        }
        lines.push(line);
        let receives = random.below(MAX_RECEIVES.min(200 / wrong.max(1)));
        for id in 0..receives {
            let (at, len) = match (longest, service) {
                (0, "UD") => (id % 3 * DATAGRAM_STRIDE, random.pick(&[0, 16, 200, mtu, 2048]) + GRH_LEN),
                (0, _) => (REGION_LEN / 2 + id % 8 * 256, random.pick(&[0, 16, 200, mtu, 2048])),
                _ => (shape.region() - longest, random.pick(&[longest, longest, longest - 1, 2048])),
            };
            lines.push(format!("peer recv {queue} id={id} sge=m{name}:{at}:{}", len.min(shape.region() - at)));
        }
        if is_shared && random.percent(75) {
            lines.push(format!("peer limit {queue} {}", 1 + random.below(receives.max(1))));
        }
        Self { name, service, mtu, longest, psn, begun: None, answer: 500, wrong, sent: Vec::new() }
    }

    /// Posts a few work requests on the card, which the peer will answer.
    fn post(&self, random: &mut Random, lines: &mut Vec<String>) {
        let qp = self.name;
        for id in FIRST_SEND_ID..FIRST_SEND_ID + 2 + random.below(4) {
            let len = random.pick(&[0, 1, 64, self.mtu + 1, 2 * self.mtu + 5]);
            let (operation, rest) = match random.below(5) {
                0 => ("SEND", format!("sge=m{qp}:0:{len}")),
                1 => ("RDMA_WRITE", format!("sge=m{qp}:0:{len} remote=4096 rkey=1")),
                2 => ("RDMA_READ", format!("sge=m{qp}:0:{len} remote=4096 rkey=1")),
                3 => ("ATOMIC_FETCH_AND_ADD", format!("sge=m{qp}:0:8 remote=4096 rkey=1 add=1")),
                _ => ("SEND_WITH_IMM", format!("sge=m{qp}:0:{len} imm=5")),
            };
            lines.push(format!("peer post {qp} {operation} id={id} {rest}"));
        }
    }

    /// Returns the next request of the peer, which may be mutated.
    fn request(&mut self, random: &mut Random) -> String {
        // A UC responder may drop a retransmitted packet or take it for a new one.
        if self.service != "UC" && random.percent(8) && !self.sent.is_empty() {
            // Retransmits the newest packet, or any earlier one.
            let back = if random.percent(50) { 1 } else { 1 + random.below(self.sent.len() as u64) as usize };
            return self.sent[self.sent.len() - back].clone();
        }
        let mut line = self.next(random);
        if random.percent(60) {
            line.flags.push("ackreq");
        }
        if random.percent(self.wrong) {
            let span = line.number("dmalen").filter(|_| line.opcode == "READ_REQUEST");
            self.mutate(&mut line, random);
            line.remove_foreign_fields(self.service);
            // In half of the cases, the peer sends a valid packet with the PSN of the mutated one.
            if self.service != "UC" && random.percent(50) {
                self.psn = self.psn.wrapping_sub(span.map_or(1, |len| len.div_ceil(self.mtu).max(1)));
            }
        }
        let text = line.text(self.name);
        self.sent.push(text.clone());
        text
    }

    /// Returns a valid request and advances the connection.
    fn next(&mut self, random: &mut Random) -> PacketLine {
        let psn = self.psn;
        self.psn = self.psn.wrapping_add(1);
        if self.service == "UD" {
            let opcode = random.pick(&["SEND_ONLY", "SEND_ONLY_IMM"]);
            let mut line = with_imm(PacketLine::new(opcode, psn), random).with("len", random.below(self.mtu + 1));
            // The receiver copies these fields into the completion and the GRH.
            if random.percent(10) {
                line.set("sqpn", random.pick(&[0_u64, 1, 5, 0xff_ffff]));
            }
            if random.percent(10) {
                line.set("tos", random.pick(&[1_u64, 2, 0x20, 0xb8]));
            }
            if random.percent(10) {
                line.set("ttl", random.pick(&[1_u64, 17, 255]));
            }
            return line;
        }
        if let Some(begun) = self.begun {
            let middle = begun.left > self.mtu;
            let len = begun.left.min(self.mtu);
            self.begun = middle.then_some(OpenMessage { left: begun.left - len, ..begun });
            let opcode = match (begun.is_write, middle, random.percent(20)) {
                (true, true, _) => "WRITE_MIDDLE",
                (true, false, false) => "WRITE_LAST",
                (true, false, true) => "WRITE_LAST_IMM",
                (false, true, _) => "SEND_MIDDLE",
                (false, false, false) => "SEND_LAST",
                (false, false, true) => "SEND_LAST_IMM",
            };
            return self.with_payload(with_imm(PacketLine::new(opcode, psn), random), len);
        }
        let all = if self.service == "RC" { 9 } else { 6 };
        let len = random.pick(&[0, 1, 3, 64, self.mtu]);
        let few = self.mtu * random.pick(&[1, 2]) + 1 + random.below(self.mtu);
        let long = match self.longest {
            0 => few,
            longest => random.pick(&[few, longest, longest, longest - 1, longest / 2 + 1, 8 * self.mtu]),
        };
        let place =
            |line: PacketLine, dmalen: u64| line.with("va", "@.addr").with("rkey", "@.rkey").with("dmalen", dmalen);
        match random.below(all) {
            0 => PacketLine::new("SEND_ONLY", psn).with("len", len),
            1 => with_imm(PacketLine::new("SEND_ONLY_IMM", psn), random).with("len", len),
            2 => place(PacketLine::new("WRITE_ONLY", psn), len).with("len", len),
            3 => with_imm(place(PacketLine::new("WRITE_ONLY_IMM", psn), len), random).with("len", len),
            4 | 5 => {
                let is_write = random.percent(50);
                self.begun = Some(OpenMessage { is_write, left: long - self.mtu });
                let line = PacketLine::new(if is_write { "WRITE_FIRST" } else { "SEND_FIRST" }, psn);
                let line = if is_write { place(line, long) } else { line };
                self.with_payload(line, self.mtu)
            }
            6 => {
                let dmalen = random.pick(&[0, 1, self.mtu, long.min(LONG_MESSAGE_LEN)]);
                self.psn = psn.wrapping_add(dmalen.div_ceil(self.mtu).max(1));
                place(PacketLine::new("READ_REQUEST", psn), dmalen)
            }
            7 => PacketLine::new("FETCH_ADD", psn).with("va", "@.addr+8").with("rkey", "@.rkey").with("add", 3),
            _ => {
                let line = PacketLine::new("COMPARE_SWAP", psn).with("va", "@.addr+16").with("rkey", "@.rkey");
                line.with("compare", "0x0707070707070707").with("swap", 1)
            }
        }
    }

    /// Adds payload. In a case with long messages, all bytes of a packet are equal, so that an
    /// agent can report memory as few runs.
    fn with_payload(&self, line: PacketLine, len: u64) -> PacketLine {
        let fill = 8 + line.psn % 240;
        let line = line.with("len", len);
        if self.longest > 0 { line.with("fill", fill) } else { line }
    }

    /// Mutates one property of a packet.
    fn mutate(&mut self, line: &mut PacketLine, random: &mut Random) {
        let has = |name: &str| line.fields.iter().any(|(known, _)| *known == name);
        match random.below(16) {
            0..3 if self.service == "UC" => {
                line.psn = line.psn.wrapping_add(random.pick(&[1, 2, 100]));
                self.psn = line.psn.wrapping_add(1);
            }
            0..3 => {
                let by = random.pick(&[1, 2, 100, 0x7f_ffff, 0x80_0000, 0xff_ffff, 0xff_fffe, 0xff_ff00]);
                line.psn = line.psn.wrapping_add(by);
            }
            3 => line.opcode = random.pick(opcodes(self.service)),
            4 if has("va") => {
                let va = random.pick(&["@.addr-1", "@.addr+1", "@.addr+8191", "@.addr+8192", "0xffffffffffffffff"]);
                line.set("va", va);
            }
            5 if has("rkey") => line.set("rkey", random.pick(&["@.rkey+1", "0", "ro.rkey", "@.rkey-256"])),
            6 if has("dmalen") => line.set("dmalen", random.pick(&[0, 1, self.mtu + 1, 0x8000_0001, 0xffff_ffff])),
            7 if has("len") => {
                line.set("len", random.pick(&[0, 1, self.mtu - 1, self.mtu + 1, self.mtu + 4, 3000]));
            }
            8 => line.set("pad", random.below(4)),
            9 => line.set("icrc", 1 + random.below(1 << 31)),
            10 => line.set("cut", random.pick(&[4, 11, 12, 16, 20, 27, 28, 31, 32, 44])),
            11 => line.set("extra", random.pick(&[1, 3, 4, 8, 1024])),
            12 => line.set("tver", 1 + random.below(15)),
            13 => line.set("pkey", random.pick(&[0, 0x7fff, 0x8001, 0x1234])),
            14 if self.service == "UD" => line.set("qkey", random.pick(&[0_u64, 0x8000_0000, 0xffff_ffff])),
            14 => line.set("migreq", 0),
            _ => line.flags.push(random.pick(&["solicited", "fecn", "becn", "stranger"])),
        }
    }

    /// Returns the last request, which demands an acknowledgement.
    fn last(&mut self, random: &mut Random) -> String {
        let mut line = self.next(random);
        line.flags.push("ackreq");
        line.text(self.name)
    }

    /// Returns an answer to a request of the card, which may be mutated.
    fn answer(&mut self, random: &mut Random) -> String {
        let psn = self.answer;
        if random.percent(50) {
            self.answer += 1;
        }
        let mut line = match random.below(10) {
            0..4 => PacketLine::new("ACK", psn).with("msn", psn - 499),
            4 => PacketLine::new("NAK psn_sequence", psn),
            5 => PacketLine::new("RNR timer=1", psn),
            6 => {
                PacketLine::new(random.pick(&["NAK invalid_request", "NAK remote_access", "NAK remote_operation"]), psn)
            }
            7 => PacketLine::new("ATOMIC_ACK", psn).with("original", random.below(1 << 40)),
            _ => {
                let opcodes =
                    ["READ_RESPONSE_ONLY", "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE", "READ_RESPONSE_LAST"];
                PacketLine::new(random.pick(&opcodes), psn).with("len", random.pick(&[0, 1, 64, self.mtu]))
            }
        };
        if random.percent(self.wrong) {
            match random.below(5) {
                0 => line.psn = line.psn.wrapping_add(random.pick(&[1, 7, 0x7f_ffff, 0xff_ffff, 0xff_fff0])),
                1 if line.opcode == "ACK" => line.set("syndrome", random.pick(&[0x00, 0x40, 0x65, 0x7f, 0xa0])),
                2 => line.set("icrc", 1),
                3 => line.set("cut", random.pick(&[12, 15, 16, 19])),
                _ => line.set("msn", random.pick(&[0, 1, 0xff_ffff])),
            }
            line.remove_foreign_fields(self.service);
        }
        line.text(self.name)
    }
}

/// Adds immediate data, if the opcode has it.
fn with_imm(line: PacketLine, random: &mut Random) -> PacketLine {
    if line.opcode.ends_with("_IMM") { line.with("imm", random.below(1 << 32)) } else { line }
}

/// Returns opcodes of requests, and some that are invalid for this service.
const fn opcodes(service: &str) -> &'static [&'static str] {
    match service.as_bytes() {
        b"UD" => &["SEND_ONLY", "SEND_ONLY_IMM", "0x00", "0x60", "0x04"],
        b"UC" => {
            &["SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_ONLY", "WRITE_ONLY", "WRITE_LAST", "0x2c", "0x04", "0x3f"]
        }
        _ => &[
            "SEND_FIRST",
            "SEND_MIDDLE",
            "SEND_LAST",
            "SEND_ONLY",
            "SEND_ONLY_INV",
            "SEND_LAST_INV",
            "WRITE_FIRST",
            "WRITE_MIDDLE",
            "WRITE_LAST",
            "WRITE_ONLY",
            "READ_REQUEST",
            "FETCH_ADD",
            "COMPARE_SWAP",
            "ACK",
            "READ_RESPONSE_ONLY",
            "0x15",
            "0x1f",
            "0x24",
            "0x64",
            "0xc4",
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::trace::trace;
    use crate::{Script, VirtualCard};
    use std::time::Duration;

    #[test]
    fn seed_generates_one_valid_case() {
        for seed in 0..500 {
            let lines = case(&mut Random::new(seed));
            let script = Script::parse("made", &lines.join("\n"));
            let script = script.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let trace = trace(&script.cases()[0], &mut VirtualCard::default(), Duration::from_millis(5), None);
            let sends = lines.iter().filter(|line| line.starts_with("send ")).count();
            let Ok(Some(trace)) = trace else { panic!("seed {seed} cannot be traced: {trace:?}") };
            assert!(trace.sent >= sends, "seed {seed} ends after {} of {sends}", trace.sent);
            assert_eq!(lines, case(&mut Random::new(seed)));
        }
    }
}
