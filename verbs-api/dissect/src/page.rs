//! Converts an analysed capture to a ladder page.

use crate::analysis::{Analysis, Finding, Message, Outcome};
use crate::event::{Event, Tone};
use crate::fields::sections;
use crate::ladder::{Page, Shapes};
use crate::reader::{Captured, Others};
use crate::words::words;
use roxe_wire::capture::Direction;
use roxe_wire::{Gid, Header, Kind, Qpn};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// Counts of a capture.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// RoCEv2 packets.
    pub packets: usize,
    /// Damaged packets.
    pub bad: usize,
    /// Packets that the capture cut.
    pub cut: usize,
    /// Other frames.
    pub others: Others,
    /// Retransmitted requests.
    pub retransmissions: usize,
    /// NAKs, PSN sequence errors included.
    pub naks: usize,
    /// RNR NAKs.
    pub rnrs: usize,
    /// Gaps in PSNs of requests or responses.
    pub gaps: usize,
    /// Packets dropped by fault rules.
    pub lost: usize,
    /// Nanoseconds from the first frame to the last packet.
    pub span: u64,
}

impl Counts {
    /// Counts a packet.
    pub fn add(&mut self, captured: &Captured<'_>, finding: &Finding) {
        self.packets += 1;
        self.bad += usize::from(captured.integrity.is_bad());
        self.cut += usize::from(captured.is_cut());
        self.lost += usize::from(captured.is_lost());
        self.span = self.span.max(captured.time);
        match finding.event {
            Event::Retransmission { .. } => self.retransmissions += 1,
            Event::Nak(_) => self.naks += 1,
            Event::Rnr { .. } => self.rnrs += 1,
            Event::Gap { .. } | Event::ResponseGap { .. } => self.gaps += 1,
            _ => {}
        }
    }

    fn troubles(&self) -> [(&'static str, usize, Tone); 5] {
        [
            ("retransmissions", self.retransmissions, Tone::Warning),
            ("RNR NAKs", self.rnrs, Tone::Warning),
            ("NAKs", self.naks, Tone::Bad),
            ("PSN gaps", self.gaps, Tone::Warning),
            ("lost by rules", self.lost, Tone::Warning),
        ]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, bad, cut, others, .. } = self;
        write!(f, "{packets} RoCEv2 packets, {bad} of them bad")?;
        if *cut > 0 {
            write!(f, ", {cut} of them cut")?;
        }
        write!(f, "; {} other frames skipped", others.count())?;
        if others.count() > 0 {
            write!(f, " ({others})")?;
        }
        let troubles = self.troubles().into_iter().filter(|(_, count, _)| *count > 0);
        troubles.into_iter().try_for_each(|(name, count, _)| write!(f, "; {name}: {count}"))
    }
}

/// Returns the page of a capture with the packets of `found` and the counts of all packets.
pub fn page(
    title: String,
    found: &[(Captured<'_>, Finding)],
    analysis: &Analysis,
    counts: &Counts,
    notes: Vec<String>,
) -> Page {
    let (mut columns, mut shapes) = (Columns::default(), Shapes::default());
    // Messages without a shown packet are omitted.
    let shown: BTreeSet<usize> = found.iter().filter_map(|(_, finding)| finding.message).collect();
    let places: HashMap<usize, usize> = shown.iter().copied().zip(0..).collect();
    let rows = found.iter().map(|packet| row(packet, analysis, &places, &mut columns, &mut shapes)).collect();
    let all = analysis.messages();
    let messages = shown.iter().map(|message| message_row(&all[*message], analysis, &mut columns)).collect();
    let ends = columns.list.iter().filter(|(_, name)| name != UNKNOWN).count();
    let number = |name, count: usize, tone: Tone| {
        let tone = if count > 0 { tone } else { Tone::Good };
        (name, count.to_string(), tone.name())
    };
    let mut facts = vec![
        number("packets", counts.packets, Tone::Good),
        number("queue pairs", ends, Tone::Good),
        number("messages", all.len(), Tone::Good),
    ];
    facts.extend(counts.troubles().map(|(name, count, tone)| number(name, count, tone)));
    facts.push(number("damaged", counts.bad, Tone::Bad));
    facts.push(number("cut", counts.cut, Tone::Warning));
    facts.push(("span", format!("{:.6} s", counts.span as f64 / 1e9), Tone::Good.name()));
    Page { title, facts, notes, columns: columns.list, rows, messages, shapes }
}

/// Name of an unknown queue pair.
const UNKNOWN: &str = "?";

/// Columns in the order of their first packets.
#[derive(Debug, Default)]
struct Columns {
    list: Vec<(String, String)>,
    places: HashMap<(Gid, Option<Qpn>), usize>,
}

impl Columns {
    fn place(&mut self, host: Gid, qpn: Option<Qpn>) -> usize {
        *self.places.entry((host, qpn)).or_insert_with(|| {
            let name = qpn.map_or_else(|| UNKNOWN.to_owned(), |qpn| qpn.to_string());
            self.list.push((host.to_ip().to_string(), name));
            self.list.len() - 1
        })
    }

    fn of_flow(&mut self, analysis: &Analysis, flow: usize) -> (usize, usize) {
        let flow = &analysis.flows()[flow];
        (self.place(flow.key.src, flow.source), self.place(flow.key.dst, Some(flow.key.qpn)))
    }
}

/// Returns a packet: number, time, columns, texts, message, flags (1 response, 2 lost), direction,
/// headers.
fn row(
    (captured, finding): &(Captured<'_>, Finding),
    analysis: &Analysis,
    places: &HashMap<usize, usize>,
    columns: &mut Columns,
    shapes: &mut Shapes,
) -> Value {
    let Captured { frame, time, net, bytes, remark, .. } = captured;
    let packet = captured.packet();
    let header = packet.map(|packet| packet.header);
    let (from, to) = match (header, finding.flow) {
        (Some(Header { bth, kind: Kind::Ud { deth, .. } }), _) => {
            (columns.place(net.src, Some(deth.src_qpn)), columns.place(net.dst, Some(bth.dest_qpn)))
        }
        (_, Some(flow)) => columns.of_flow(analysis, flow),
        _ => (columns.place(net.src, None), columns.place(net.dst, None)),
    };
    let label = packet.map_or_else(|| format!("{} bytes", bytes.len()), |packet| label(&packet));
    let (verdict, tone) = (finding.event.name(), finding.event.tone().name());
    let message = finding.message.and_then(|message| places.get(&message)).map_or(-1, |place| *place as i64);
    let is_response = header.is_some_and(|header| header.opcode().operation().is_response());
    let flags = u8::from(is_response) | u8::from(captured.is_lost()) << 1;
    let way = match captured.direction {
        Some(Direction::Outbound) => "sent",
        Some(Direction::Inbound) => "received",
        None => "",
    };
    let sections: Vec<Value> = sections(captured).iter().map(|section| shapes.value(section)).collect();
    let words = words(captured, finding);
    json!([frame, time, from, to, label, verdict, tone, words, remark, message, flags, way, sections])
}

/// Returns the label of an arrow: opcode, PSN, MSN, length.
fn label(packet: &roxe_wire::Packet<'_>) -> String {
    let (opcode, psn) = (packet.header.opcode(), packet.header.bth.psn);
    let name = match packet.header.kind {
        Kind::RcResponse(response) | Kind::XrcResponse(response) => crate::analysis::aeth(response).map(|aeth| {
            let (name, msn) = (opcode.facts().name, aeth.msn.get());
            match aeth.syndrome {
                roxe_wire::Syndrome::Ack { .. } => format!("{name} psn={psn} msn={msn}"),
                syndrome => format!("{} psn={psn} msn={msn}", syndrome.to_string().to_uppercase()),
            }
        }),
        _ => None,
    };
    let mut text = name.unwrap_or_else(|| format!("{} psn={psn}", opcode.facts().name));
    if !packet.payload.is_empty() {
        text.push_str(&format!(" len={}", packet.payload.len()));
    }
    text
}

/// Returns a row of the table of messages.
fn message_row(message: &Message, analysis: &Analysis, columns: &mut Columns) -> Value {
    let Message { flow, operation, psn, packets, bytes, repeats, begin, end, outcome, .. } = *message;
    let (outcome, tone) = match outcome {
        Outcome::Open => ("not complete in this capture".to_owned(), Tone::Note),
        Outcome::Done if repeats > 0 => ("complete, after retransmissions".to_owned(), Tone::Warning),
        Outcome::Done => ("complete".to_owned(), Tone::Good),
        Outcome::Sent => ("sent; not acknowledged by this service".to_owned(), Tone::Good),
        Outcome::Refused(code) => (Event::Nak(code).words(psn).unwrap_or_default(), Tone::Bad),
    };
    let name = operation.facts().name;
    let operation = ["_FIRST", "_MIDDLE", "_LAST", "_ONLY", "_REQUEST"]
        .iter()
        .fold(name.to_owned(), |name, ending| name.replace(ending, ""));
    let (from, to) = columns.of_flow(analysis, flow);
    json!([operation, from, to, psn.get(), bytes, packets, repeats, begin, end, outcome, tone.name()])
}
