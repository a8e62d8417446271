//! `roxe dump FILE`: prints the RoCEv2 packets of a capture, or writes them as a page of HTML.
//! `roxe_dissect` explains them.

use crate::files;
use crate::output::Result;
use clap::ArgAction;
use roxe_dissect::{Analysis, Captured, Counts, Finding, Integrity, Item, Others, Tone, items, page, render};
use roxe_wire::cm::Mad;
use roxe_wire::{Kind, Packet, Qpn};
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Read as _, Write, stdin, stdout};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Arguments of `roxe dump`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Fail at the first damaged packet.
    #[arg(long)]
    check: bool,
    /// Write a page of HTML instead: a ladder of the packets, with filters and all their fields.
    #[arg(long, value_name = "OUT.html", conflicts_with = "check")]
    html: Option<PathBuf>,
    /// Show at most this number of packets on the page.
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "html")]
    limit: usize,
    #[command(flatten)]
    filter: PacketFilter,
    /// The capture, such as one of `tcpdump -i lo -w FILE udp port 4791`; - is standard input.
    file: PathBuf,
}

/// The packets to show; all are counted and analysed.
#[derive(Debug, Default, clap::Args)]
struct PacketFilter {
    /// Print only packets to or from this queue pair, as 17 or 0x11.
    #[arg(long, value_name = "QPN", value_parser = parse_number)]
    qp: Option<u32>,
    /// Print only this PSN, or PSNs from A to B.
    #[arg(long, value_name = "PSN|A-B", value_parser = parse_range)]
    psn: Option<RangeInclusive<u32>>,
    /// Print only opcodes with this text in their name, such as `ack` or `read`; may be repeated.
    #[arg(long, value_name = "TEXT", action = ArgAction::Append)]
    opcode: Vec<String>,
    /// Print only packets with a verdict other than ok.
    #[arg(long)]
    odd: bool,
}

impl PacketFilter {
    fn passes(&self, captured: &Captured<'_>, finding: &Finding, analysis: &Analysis) -> bool {
        if self.odd && finding.event.tone() == Tone::Good && !captured.is_lost() {
            return false;
        }
        let Some(packet) = captured.packet() else {
            return self.qp.is_none() && self.psn.is_none() && self.opcode.is_empty();
        };
        let (opcode, bth) = (packet.header.opcode().to_string().to_lowercase(), packet.header.bth);
        let source = match packet.header.kind {
            Kind::Ud { deth, .. } => Some(deth.src_qpn),
            _ => finding.flow.and_then(|flow| analysis.flows()[flow].source),
        };
        self.qp.is_none_or(|qpn| [Some(bth.dest_qpn), source].contains(&Some(Qpn::new(qpn))))
            && self.psn.as_ref().is_none_or(|range| range.contains(&bth.psn.get()))
            && (self.opcode.is_empty() || self.opcode.iter().any(|text| opcode.contains(&text.to_lowercase())))
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number such as 17 or 0x11 is needed".to_owned())
}

fn parse_range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(parse_number(first)?..=parse_number(last)?)
}

/// First bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a capture file, or standard input if `path` is `-`, for the command `roxe NAME`.
pub(crate) fn read(path: &Path, command: &str) -> Result<Vec<u8>> {
    let file = if path == Path::new("-") {
        let mut bytes = Vec::new();
        stdin().lock().read_to_end(&mut bytes)?;
        bytes
    } else {
        files::read(path)?
    };
    if file.starts_with(&GZIP) {
        let name = path.display();
        return Err(format!("{name}: it is compressed; `gzip -dc {name} | roxe {command} -`").into());
    }
    Ok(file)
}

pub(crate) fn run(args: &Args) -> Result {
    let name = args.file.display();
    let file = read(&args.file, "dump")?;
    let result = match &args.html {
        Some(out) => write_page(&file, args, out),
        None => {
            let has_colour =
                stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            dump(&file, args, has_colour, BufWriter::new(stdout().lock()))
        }
    };
    result.map_err(|error| match error {
        Stop::Output(error) => error.into(),
        other => format!("{name}: {other}").into(),
    })
}

/// A reason why the output ends early.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("{0}; record one with `tcpdump -i lo -w FILE udp port 4791`")]
    NotACapture(roxe_wire::capture::CaptureError),
    #[error("cannot read on after frame {0}: {1}")]
    Broken(usize, roxe_wire::capture::CaptureError),
    #[error("frame {0} is bad: {1}")]
    Bad(usize, Integrity),
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error("{0}")]
    Page(String),
}

fn dump(file: &[u8], args: &Args, has_colour: bool, mut out: impl Write) -> Result<(), Stop> {
    let (mut counts, mut analysis) = (Counts::default(), Analysis::default());
    for item in items(file, roxe_provider::is_probe).map_err(Stop::NotACapture)? {
        match item {
            Item::Other(other) => counts.others.add(other),
            Item::Broken(frame, error) => {
                writeln!(out, "{counts}")?;
                out.flush()?;
                return Err(Stop::Broken(frame, error));
            }
            Item::Packet(captured) => {
                let finding = analysis.take(&captured);
                counts.add(&captured, &finding);
                if args.filter.passes(&captured, &finding, &analysis) {
                    let colour = if has_colour { colour(&captured, &finding) } else { "" };
                    let end = if colour.is_empty() { "" } else { "\x1b[0m" };
                    writeln!(out, "{colour}{}{end}", Line { captured, finding })?;
                }
                if args.check && captured.integrity.is_bad() {
                    out.flush()?;
                    return Err(Stop::Bad(captured.frame, captured.integrity));
                }
            }
        }
    }
    writeln!(out, "{counts}")?;
    out.flush()?;
    undecoded_note(&counts.others).iter().for_each(|note| eprintln!("roxe dump: {note}"));
    Ok(())
}

/// Returns a note about frames that may contain packets but are not decoded.
pub(crate) fn undecoded_note(others: &Others) -> Option<String> {
    let unseen = others.unseen();
    (unseen.count() > 0).then(|| format!("{} frames that may hold packets are not decoded: {unseen}", unseen.count()))
}

/// Returns the colour of a line on a terminal; none for expected packets (`man console_codes`).
fn colour(captured: &Captured<'_>, finding: &Finding) -> &'static str {
    match finding.event.tone() {
        Tone::Good if captured.is_lost() => "\x1b[33m",
        Tone::Good => "",
        Tone::Note => "\x1b[36m",
        Tone::Warning => "\x1b[33m",
        Tone::Bad => "\x1b[31m",
    }
}

fn write_page(file: &[u8], args: &Args, out: &Path) -> Result<(), Stop> {
    let title = args.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (page, counts) = ladder_page(file, title, args)?;
    files::write(out, page).map_err(Stop::Page)?;
    eprintln!("{counts}; written to {}", out.display());
    Ok(())
}

/// Returns a page with the first packets of a capture.
pub(crate) fn ladder_of(file: &[u8], title: String, limit: usize) -> Result<String> {
    Ok(ladder_page(file, title, &Args { limit, ..Args::default() })?.0)
}

/// Returns the page of a capture. The page shows a damaged file up to the damage.
fn ladder_page(file: &[u8], title: String, args: &Args) -> Result<(String, Counts), Stop> {
    let (mut counts, mut analysis) = (Counts::default(), Analysis::default());
    let (mut found, mut notes, mut passed) = (Vec::new(), Vec::new(), 0);
    for item in items(file, roxe_provider::is_probe).map_err(Stop::NotACapture)? {
        match item {
            Item::Other(other) => counts.others.add(other),
            Item::Broken(frame, error) => notes.push(format!("The file cannot be read after frame {frame}: {error}.")),
            Item::Packet(captured) => {
                let finding = analysis.take(&captured);
                counts.add(&captured, &finding);
                if args.filter.passes(&captured, &finding, &analysis) {
                    passed += 1;
                    found.extend((found.len() < args.limit).then_some((captured, finding)));
                }
            }
        }
    }
    if passed < counts.packets {
        let others = counts.packets - passed;
        notes.push(format!("{others} packets do not pass the filters of the command line and are left out."));
    }
    if found.len() < passed {
        let (shown, left) = (found.len(), passed - found.len());
        notes.push(format!(
            "The first {shown} packets are shown; {left} more are left out (--limit). The numbers above count all."
        ));
    }
    if counts.others.count() > 0 {
        let others = &counts.others;
        notes.push(format!("{} other frames of the file are no RoCEv2 packets ({others}).", others.count()));
    }
    notes.extend(undecoded_note(&counts.others));
    if counts.truncated > 0 {
        notes.push(format!(
            "{} packets are truncated: their headers are checked, not payload and ICRC.",
            counts.truncated
        ));
    }
    let page = page(title, &found, &analysis, &counts, notes);
    Ok((render(&page), counts))
}

/// A packet as it is printed.
struct Line<'a> {
    captured: Captured<'a>,
    finding: Finding,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Captured { time, net, bytes, integrity, remark, .. } = self.captured;
        let (seconds, micros) = (time / 1_000_000_000, time % 1_000_000_000 / 1000);
        write!(f, "{seconds:>3}.{micros:06} {} > {}  ", net.src.to_ip(), net.dst.to_ip())?;
        match self.captured.packet() {
            Some(packet) => {
                write!(f, "{packet}  ")?;
                self.fmt_mad(&packet, f)?;
                if !integrity.is_bad()
                    && let Some(explanation) = self.finding.event.describe(packet.header.bth.psn)
                {
                    write!(f, "{explanation}  ")?;
                }
                write!(f, "{integrity}")?;
            }
            None => write!(f, "{} bytes  {integrity}", bytes.len())?,
        }
        if remark.is_empty() { Ok(()) } else { write!(f, "  # {}", printable(remark)) }
    }
}

impl Line<'_> {
    /// Writes the packet's message of the connection manager, unless the comment contains it.
    fn fmt_mad(&self, packet: &Packet<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.captured.is_truncated() {
            return Ok(());
        }
        match Mad::of_packet(packet).map(|mad| mad.map(|mad| mad.to_string())) {
            Some(Ok(text)) if !self.captured.remark.contains(&text) => write!(f, "{text}  "),
            Some(Err(error)) => write!(f, "{error}  "),
            _ => Ok(()),
        }
    }
}

/// Replaces control characters of an untrusted remark.
pub(crate) fn printable(remark: &str) -> String {
    remark.chars().map(|char| if char.is_control() { '.' } else { char }).collect()
}
