//! A capture as a ladder: its ends, its packets, its messages, and the numbers at the top. Touches
//! what the analysis found.

use crate::analysis::{Analysis, Finding, Message, Outcome};
use crate::event::{Event, Tone};
use crate::fields::sections;
use crate::ladder::{Column, MessageRow, Page, Row};
use crate::reader::{Captured, Integrity};
use crate::words::words;
use roxe_wire::capture::Direction;
use roxe_wire::{Gid, Kind, NakCode, Psn, Qpn};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// RoCEv2 packets.
    pub packets: usize,
    /// Those that are not whole.
    pub bad: usize,
    /// Frames that are no such packets.
    pub skipped: usize,
    /// Requests that were sent again.
    pub retransmissions: usize,
    /// Refusals and PSN sequence errors.
    pub naks: usize,
    /// Requests that found no receive.
    pub rnrs: usize,
    /// Places where packets are missing.
    pub gaps: usize,
    /// Packets that a fault rule lost.
    pub lost: usize,
    /// When the last one came, nanoseconds from the first frame.
    pub span: u64,
}

impl Counts {
    /// One more packet.
    pub fn add(&mut self, captured: &Captured<'_>, finding: &Finding) {
        self.packets += 1;
        self.bad += usize::from(captured.integrity != Integrity::Good);
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

    /// What deserves a look, with its number.
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
        let Self { packets, bad, skipped, .. } = self;
        write!(f, "{packets} RoCEv2 packets, {bad} of them bad; {skipped} other frames skipped")?;
        let troubles = self.troubles().into_iter().filter(|(_, count, _)| *count > 0);
        troubles.into_iter().try_for_each(|(name, count, _)| write!(f, "; {name}: {count}"))
    }
}

/// The page of a capture.
///
/// `told` are the packets to show, `counts` those of all; `notes` say what is left out.
pub fn page(
    title: String,
    told: &[(Captured<'_>, Finding)],
    analysis: &Analysis,
    counts: &Counts,
    notes: Vec<String>,
) -> Page {
    let mut columns = Columns::default();
    let mut rows: Vec<Row> = told.iter().map(|told| row(told, analysis, &mut columns)).collect();
    let messages = analysis.messages();
    // Only those of which a packet is shown.
    let shown: BTreeSet<usize> = rows.iter().filter_map(|row| row.message).collect();
    let places: HashMap<usize, usize> = shown.iter().copied().zip(0..).collect();
    rows.iter_mut().for_each(|row| row.message = row.message.and_then(|message| places.get(&message).copied()));
    let message_rows = shown.iter().map(|message| message_row(&messages[*message], analysis, &mut columns)).collect();
    let ends = columns.list.iter().filter(|column| column.name != UNKNOWN).count();
    let number = |name, count: usize, tone| (name, count.to_string(), if count > 0 { tone } else { Tone::Good });
    let mut facts = vec![
        number("packets", counts.packets, Tone::Good),
        number("queue pairs", ends, Tone::Good),
        number("messages", messages.len(), Tone::Good),
    ];
    facts.extend(counts.troubles().map(|(name, count, tone)| number(name, count, tone)));
    facts.push(number("damaged", counts.bad, Tone::Bad));
    facts.push(("span", format!("{:.6} s", counts.span as f64 / 1e9), Tone::Good));
    Page { title, facts, notes, columns: columns.list, rows, messages: message_rows }
}

/// The name of a queue pair that is not known.
const UNKNOWN: &str = "?";

/// The ends, in the order in which they are met.
#[derive(Debug, Default)]
struct Columns {
    list: Vec<Column>,
    places: HashMap<(Gid, Option<Qpn>), usize>,
}

impl Columns {
    fn place(&mut self, host: Gid, qpn: Option<Qpn>) -> usize {
        *self.places.entry((host, qpn)).or_insert_with(|| {
            let name = qpn.map_or_else(|| UNKNOWN.to_owned(), |qpn| qpn.to_string());
            self.list.push(Column { host: host.to_ip().to_string(), name });
            self.list.len() - 1
        })
    }

    fn of_flow(&mut self, analysis: &Analysis, flow: usize) -> (usize, usize) {
        let flow = &analysis.flows()[flow];
        (self.place(flow.key.src, flow.source), self.place(flow.key.dst, Some(flow.key.qpn)))
    }
}

fn row((captured, finding): &(Captured<'_>, Finding), analysis: &Analysis, columns: &mut Columns) -> Row {
    let packet = captured.packet();
    let header = packet.map(|packet| packet.header);
    let ends = match (header.map(|header| header.kind), finding.flow) {
        (Some(Kind::Ud { deth, .. }), _) => {
            let to = header.map(|header| header.bth.dest_qpn);
            (columns.place(captured.net.src, Some(deth.src_qpn)), columns.place(captured.net.dst, to))
        }
        (_, Some(flow)) => columns.of_flow(analysis, flow),
        _ => (columns.place(captured.net.src, None), columns.place(captured.net.dst, None)),
    };
    Row {
        number: captured.frame,
        time: captured.time,
        ends,
        label: packet.map_or_else(|| format!("{} bytes", captured.bytes.len()), |packet| label(&packet)),
        verdict: finding.event.name(),
        tone: finding.event.tone(),
        words: words(captured, finding),
        remark: captured.remark.to_owned(),
        message: finding.message,
        is_response: header.is_some_and(|header| header.opcode().operation().is_response()),
        is_lost: captured.is_lost(),
        way: match captured.direction {
            Some(Direction::Outbound) => "sent",
            Some(Direction::Inbound) => "received",
            None => "",
        },
        sections: sections(captured),
    }
}

/// What stands on an arrow: opcode, PSN, and what the operation makes interesting.
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

fn message_row(message: &Message, analysis: &Analysis, columns: &mut Columns) -> MessageRow {
    let Message { flow, operation, psn, packets, bytes, repeats, begin, end, outcome, .. } = *message;
    let (text, tone) = match outcome {
        Outcome::Open => ("not complete in this capture".to_owned(), Tone::Note),
        Outcome::Done if repeats > 0 => ("complete, after retransmissions".to_owned(), Tone::Warning),
        Outcome::Done => ("complete".to_owned(), Tone::Good),
        Outcome::Sent => ("sent; nobody acknowledges".to_owned(), Tone::Good),
        Outcome::Refused(code) => (refusal(code, psn), Tone::Bad),
    };
    let name = operation.facts().name;
    let operation = ["_FIRST", "_MIDDLE", "_LAST", "_ONLY", "_REQUEST"]
        .iter()
        .fold(name.to_owned(), |name, ending| name.replace(ending, ""));
    let ends = columns.of_flow(analysis, flow);
    let (psn, outcome) = (psn.get(), text);
    MessageRow { operation, ends, psn, bytes, packets, repeats, begin, end, outcome, tone }
}

fn refusal(code: NakCode, psn: Psn) -> String {
    Event::Nak(code).words(psn).unwrap_or_default()
}
