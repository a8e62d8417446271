//! Draws a ladder diagram of an analysed capture as one self-contained HTML page. Columns are queue
//! pairs; rows are packets in order of time, each with a verdict and an explanation.
//!
//! All text of a [`Page`] is JSON data for the script of the page, which shows it as text, never as
//! markup.

use crate::analysis::{Analysis, Finding, Message, Outcome};
use crate::describe::describe;
use crate::event::{Event, Tone};
use crate::fields::{Section, sections};
use crate::reader::{Captured, Others};
use roxe_wire::capture::Direction;
use roxe_wire::{Gid, Header, Kind, Packet, Qpn, Syndrome};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

const STYLE: &str = include_str!("ladder/ladder.css");
const SCRIPT: &str = include_str!("ladder/ladder.js");
const BODY: &str = include_str!("ladder/body.html");

/// Numbers of packets and events in a capture, and its duration.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// RoCEv2 packets.
    pub packets: usize,
    /// Damaged packets.
    pub bad: usize,
    /// Packets that the capture has truncated.
    pub truncated: usize,
    /// Frames that are not RoCEv2 packets.
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
    /// Time from the first frame to the last packet, in nanoseconds.
    pub span: u64,
}

impl Counts {
    /// Counts a packet.
    pub fn add(&mut self, captured: &Captured<'_>, finding: &Finding) {
        self.packets += 1;
        self.bad += usize::from(captured.integrity.is_bad());
        self.truncated += usize::from(captured.is_truncated());
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

    fn problem_counts(&self) -> [(&'static str, usize, Tone); 5] {
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
        let Self { packets, bad, truncated, others, .. } = self;
        write!(f, "{packets} RoCEv2 packets, {bad} of them bad")?;
        if *truncated > 0 {
            write!(f, ", {truncated} of them truncated")?;
        }
        write!(f, "; {} other frames skipped", others.count())?;
        if others.count() > 0 {
            write!(f, " ({others})")?;
        }
        let mut problems = self.problem_counts().into_iter().filter(|(_, count, _)| *count > 0);
        problems.try_for_each(|(name, count, _)| write!(f, "; {name}: {count}"))
    }
}

/// Content of a page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Title at the top of the page.
    pub title: String,
    /// Counts and duration at the top: name, value, and tone of the value.
    pub summary: Vec<(&'static str, String, &'static str)>,
    /// Notes below the summary, such as on omitted packets.
    pub notes: Vec<String>,
    /// Columns from left to right: host and queue pair.
    pub columns: Vec<(String, String)>,
    /// Packets from top to bottom, in the format of the page's script.
    pub rows: Vec<Value>,
    /// Rows of the table of messages. A packet's row has the index of its message in this table.
    pub messages: Vec<Value>,
    /// Names of the headers in the rows, and of their fields.
    pub shapes: Shapes,
}

/// Returns the page of a capture: the packets in `found`, and `counts` of all packets in the
/// capture.
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
    let message_rows: HashMap<usize, usize> = shown.iter().copied().zip(0..).collect();
    let rows = found.iter().map(|packet| row(packet, analysis, &message_rows, &mut columns, &mut shapes)).collect();
    let all = analysis.messages();
    let messages = shown.iter().map(|message| message_row(&all[*message], analysis, &mut columns)).collect();
    let queue_pairs = columns.list.iter().filter(|(_, name)| name != UNKNOWN).count();
    let entry = |name, count: usize, tone: Tone| {
        let tone = if count > 0 { tone } else { Tone::Good };
        (name, count.to_string(), tone.name())
    };
    let mut summary = vec![
        entry("packets", counts.packets, Tone::Good),
        entry("queue pairs", queue_pairs, Tone::Good),
        entry("messages", all.len(), Tone::Good),
    ];
    summary.extend(counts.problem_counts().map(|(name, count, tone)| entry(name, count, tone)));
    summary.push(entry("damaged", counts.bad, Tone::Bad));
    summary.push(entry("truncated", counts.truncated, Tone::Warning));
    summary.push(("span", format!("{:.6} s", counts.span as f64 / 1e9), Tone::Good.name()));
    Page { title, summary, notes, columns: columns.list, rows, messages, shapes }
}

/// Name of an unknown queue pair.
const UNKNOWN: &str = "?";

/// Columns in the order of their first packets.
#[derive(Debug, Default)]
struct Columns {
    list: Vec<(String, String)>,
    indexes: HashMap<(Gid, Option<Qpn>), usize>,
}

impl Columns {
    fn index(&mut self, host: Gid, qpn: Option<Qpn>) -> usize {
        *self.indexes.entry((host, qpn)).or_insert_with(|| {
            let name = qpn.map_or_else(|| UNKNOWN.to_owned(), |qpn| qpn.to_string());
            self.list.push((host.to_ip().to_string(), name));
            self.list.len() - 1
        })
    }

    fn flow_ends(&mut self, analysis: &Analysis, flow: usize) -> (usize, usize) {
        let flow = &analysis.flows()[flow];
        (self.index(flow.key.src, flow.source), self.index(flow.key.dst, Some(flow.key.qpn)))
    }
}

/// Returns the row of a packet: number, time, columns, texts, index of its message, flags (1 for a
/// response, 2 for a lost packet), direction, headers.
fn row(
    (captured, finding): &(Captured<'_>, Finding),
    analysis: &Analysis,
    message_rows: &HashMap<usize, usize>,
    columns: &mut Columns,
    shapes: &mut Shapes,
) -> Value {
    let Captured { frame, time, net, bytes, remark, .. } = captured;
    let packet = captured.packet();
    let header = packet.map(|packet| packet.header);
    let (from, to) = match (header, finding.flow) {
        (Some(Header { bth, kind: Kind::Ud { deth, .. } }), _) => {
            (columns.index(net.src, Some(deth.src_qpn)), columns.index(net.dst, Some(bth.dest_qpn)))
        }
        (_, Some(flow)) => columns.flow_ends(analysis, flow),
        _ => (columns.index(net.src, None), columns.index(net.dst, None)),
    };
    let label = packet.map_or_else(|| format!("{} bytes", bytes.len()), |packet| label(&packet));
    let (verdict, tone) = (finding.event.name(), finding.event.tone().name());
    let message = finding.message.and_then(|message| message_rows.get(&message)).map_or(-1, |row| *row as i64);
    let is_response = header.is_some_and(|header| header.opcode().operation().is_response());
    let flags = u8::from(is_response) | u8::from(captured.is_lost()) << 1;
    let direction = match captured.direction {
        Some(Direction::Outbound) => "sent",
        Some(Direction::Inbound) => "received",
        None => "",
    };
    let sections: Vec<Value> = sections(captured).iter().map(|section| shapes.value(section)).collect();
    let description = describe(captured, finding);
    json!([frame, time, from, to, label, verdict, tone, description, remark, message, flags, direction, sections])
}

/// Returns the label of an arrow: opcode, PSN, MSN, length.
fn label(packet: &Packet<'_>) -> String {
    let (opcode, psn) = (packet.header.opcode(), packet.header.bth.psn);
    let name = match packet.header.kind {
        Kind::RcResponse(response) | Kind::XrcResponse(response) => response.aeth().map(|aeth| {
            let (name, msn) = (opcode.properties().name, aeth.msn.get());
            match aeth.syndrome {
                Syndrome::Ack { .. } => format!("{name} psn={psn} msn={msn}"),
                syndrome => format!("{} psn={psn} msn={msn}", syndrome.to_string().to_uppercase()),
            }
        }),
        _ => None,
    };
    let mut text = name.unwrap_or_else(|| format!("{} psn={psn}", opcode.properties().name));
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
        Outcome::Refused(code) => (Event::Nak(code).describe(psn).unwrap_or_default(), Tone::Bad),
    };
    let name = operation.properties().name;
    let operation = ["_FIRST", "_MIDDLE", "_LAST", "_ONLY", "_REQUEST"]
        .iter()
        .fold(name.to_owned(), |name, ending| name.replace(ending, ""));
    let (from, to) = columns.flow_ends(analysis, flow);
    json!([operation, from, to, psn.get(), bytes, packets, repeats, begin, end, outcome, tone.name()])
}

/// Renders the page as HTML. The HTML loads no other file, whatever the packets contain.
pub fn render(page: &Page) -> String {
    let Page { title, summary, notes, columns, rows, messages, shapes } = page;
    let lines = |list: &[Value]| list.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n");
    let (rows, messages, shapes) = (lines(rows), lines(messages), &shapes.list);
    let page = json!({ "title": title, "facts": summary, "notes": notes, "columns": columns, "shapes": shapes });
    let data = format!("{{\"rows\":[\n{rows}],\n\"messages\":[\n{messages}],\n\"page\":{page}}}");
    // In JSON, `<` occurs only in strings. Without it, the data neither ends the script nor begins
    // a comment.
    let data = data.replace('<', "\\u003c");
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{BODY}<script type=\"application/json\" id=\"data\">\n{data}\n</script>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// Escapes text for elements and attributes of XML and HTML. Replaces control characters except
/// tabs and newlines, which XML does not allow.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Shapes of headers: the names of a header and its fields. Each shape is stored once.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    list: Vec<Value>,
    indexes: HashMap<(&'static str, Vec<&'static str>), usize>,
}

impl Shapes {
    /// Returns a header as the index of its shape, followed by its values.
    pub(crate) fn value(&mut self, section: &Section) -> Value {
        let names: Vec<&'static str> = section.fields.iter().map(|(name, _)| *name).collect();
        let next = self.list.len();
        let index = *self.indexes.entry((section.name, names)).or_insert_with_key(|(name, names)| {
            self.list.push(json!([name, names]));
            next
        });
        let values = section.fields.iter().map(|(_, value)| Value::from(value.as_str()));
        Value::Array(std::iter::once(Value::from(index)).chain(values).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that would break out of its page if it became markup.
    const HOSTILE: &str = "</script><script>alert(1)</script><!-- \"&'\u{2028}\0";

    fn hostile_page() -> Page {
        let mut shapes = Shapes::default();
        let section = shapes.value(&Section { name: "BTH", fields: vec![("PSN", HOSTILE.into())] });
        let row = json!([1, 0, 0, 1, HOSTILE, "ok", "good", HOSTILE, HOSTILE, 0, 0, "sent", [section]]);
        let columns = vec![(HOSTILE.to_owned(), HOSTILE.to_owned()); 2];
        let (title, summary) = (HOSTILE.to_owned(), vec![("packets", HOSTILE.into(), "good")]);
        Page { title, summary, notes: vec![HOSTILE.to_owned()], columns, rows: vec![row], messages: vec![], shapes }
    }

    #[test]
    fn text_of_a_page_never_becomes_markup() {
        let html = render(&hostile_page());
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("<!--") && !html.contains("\0"));
        assert!(html.contains("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn page_data_roundtrips() {
        let html = render(&hostile_page());
        let (_, data) = html.split_once("id=\"data\">").unwrap();
        let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(data["rows"][0][7], HOSTILE);
        assert_eq!(data["page"]["columns"][1][0], HOSTILE);
        assert_eq!(data["page"]["shapes"][0], json!(["BTH", ["PSN"]]));
        assert_eq!(data["rows"][0][12][0], json!([0, HOSTILE]));
    }

    #[test]
    fn ladder_page_loads_no_other_file() {
        let html = render(&Page::default());
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("src="));
    }
}
