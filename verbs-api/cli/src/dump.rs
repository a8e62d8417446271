//! `roxe dump FILE`: the RoCEv2 packets of a capture in the field's words, what the connection
//! manager says in them, whether each is whole, and what it means where it stands.
//!
//! Reads the file and writes text, or a page of HTML; what packets mean is the business of
//! `roxe_dissect`.

use clap::ArgAction;
use roxe_base::private_file;
use roxe_dissect::{Analysis, Captured, Counts, Finding, Integrity, Item, Tone, items, ladder, page};
use roxe_wire::cm::Mad;
use roxe_wire::{Kind, Packet, Qpn};
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Read as _, Write, stdin, stdout};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// What `roxe dump` was asked to do.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Stop at the first bad packet, and fail.
    #[arg(long)]
    check: bool,
    /// Write a page of HTML instead: a ladder of the packets, with filters and all their fields.
    #[arg(long, value_name = "OUT.html", conflicts_with = "check")]
    html: Option<PathBuf>,
    /// Packets that the page shows at most; the first ones.
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "html")]
    limit: usize,
    #[command(flatten)]
    filter: Filter,
    /// The capture, for example of `tcpdump -i lo -w FILE udp port 4791`.
    file: PathBuf,
}

/// Which packets are shown. All are counted and judged.
#[derive(Debug, Default, clap::Args)]
struct Filter {
    /// Only packets to or from this queue pair, as 17 or 0x11.
    #[arg(long, value_name = "QPN", value_parser = number)]
    qp: Option<u32>,
    /// Only this PSN, or those from A to B.
    #[arg(long, value_name = "PSN|A-B", value_parser = range)]
    psn: Option<RangeInclusive<u32>>,
    /// Only opcodes with this text in their name, such as `ack` or `read`; may be repeated.
    #[arg(long, value_name = "TEXT", action = ArgAction::Append)]
    opcode: Vec<String>,
    /// Only packets with a verdict other than ok.
    #[arg(long)]
    odd: bool,
}

impl Filter {
    fn passes(&self, captured: &Captured<'_>, finding: &Finding, analysis: &Analysis) -> bool {
        if self.odd && finding.event.tone() == Tone::Good && !captured.is_lost() {
            return false;
        }
        let Some(packet) = captured.packet() else {
            return self.qp.is_none() && self.psn.is_none() && self.opcode.is_empty();
        };
        let (opcode, bth) = (packet.header.opcode().to_string().to_lowercase(), packet.header.bth);
        self.qp.is_none_or(|qpn| is_of(Qpn::new(qpn), &packet, finding, analysis))
            && self.psn.as_ref().is_none_or(|range| range.contains(&bth.psn.get()))
            && (self.opcode.is_empty() || self.opcode.iter().any(|text| opcode.contains(&text.to_lowercase())))
    }
}

/// Whether a packet goes to this queue pair, or comes from it as far as is known by now.
fn is_of(qpn: Qpn, packet: &Packet<'_>, finding: &Finding, analysis: &Analysis) -> bool {
    let source = match packet.header.kind {
        Kind::Ud { deth, .. } => Some(deth.src_qpn),
        _ => finding.flow.and_then(|flow| analysis.flows()[flow].source),
    };
    packet.header.bth.dest_qpn == qpn || source == Some(qpn)
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number such as 17 or 0x11 is needed".to_owned())
}

fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(number(first)?..=number(last)?)
}

/// What a file that gzip has made begins with (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// All of a file; `-` is standard input.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path);
    }
    let mut bytes = Vec::new();
    stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Prints the file.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let name = args.file.display();
    let file = read(&args.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    if file.starts_with(&GZIP) {
        return Err(format!("{name} is compressed.\n  Read it with `gzip -dc {name} | roxe dump -`.").into());
    }
    let done = match &args.html {
        Some(out) => write_page(&file, args, out),
        None => {
            let has_colour =
                stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            dump(&file, args, has_colour, BufWriter::new(stdout().lock()))
        }
    };
    done.map_err(|error| match error {
        Stop::Output(error) => error.into(),
        other => format!("{name}: {other}").into(),
    })
}

/// Why the output ends early.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("{0}.\n  Record one with `tcpdump -i lo -w FILE udp port 4791`.")]
    NotACapture(roxe_wire::capture::CaptureError),
    #[error("cannot go on behind frame {0}: {1}")]
    Broken(usize, roxe_wire::capture::CaptureError),
    #[error("frame {0} is bad: {1}")]
    Bad(usize, Integrity),
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error("cannot write {}: {error}", file.display())]
    Page { file: PathBuf, error: io::Error },
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
    unseen(&counts).iter().for_each(|note| eprintln!("roxe dump: {note}"));
    Ok(())
}

/// Says in which frames packets may be that were not looked for.
fn unseen(counts: &Counts) -> Option<String> {
    let unseen = counts.others.unseen();
    (unseen.count() > 0)
        .then(|| format!("{} frames may have packets inside, which are not looked for: {unseen}", unseen.count()))
}

/// The colour of a line on a terminal; none if it deserves no attention (`man console_codes`).
fn colour(captured: &Captured<'_>, finding: &Finding) -> &'static str {
    match finding.event.tone() {
        Tone::Good if captured.is_lost() => "\x1b[33m",
        Tone::Good => "",
        Tone::Note => "\x1b[36m",
        Tone::Warning => "\x1b[33m",
        Tone::Bad => "\x1b[31m",
    }
}

/// Writes the page to `out`. A file that cannot be read to its end is shown as far as it goes.
fn write_page(file: &[u8], args: &Args, out: &Path) -> Result<(), Stop> {
    let (mut counts, mut analysis) = (Counts::default(), Analysis::default());
    let (mut told, mut notes, mut passed) = (Vec::new(), Vec::new(), 0);
    for item in items(file, roxe_provider::is_probe).map_err(Stop::NotACapture)? {
        match item {
            Item::Other(other) => counts.others.add(other),
            Item::Broken(frame, error) => notes.push(format!("The file cannot be read behind frame {frame}: {error}.")),
            Item::Packet(captured) => {
                let finding = analysis.take(&captured);
                counts.add(&captured, &finding);
                if args.filter.passes(&captured, &finding, &analysis) {
                    passed += 1;
                    told.extend((told.len() < args.limit).then_some((captured, finding)));
                }
            }
        }
    }
    if passed < counts.packets {
        let others = counts.packets - passed;
        notes.push(format!("{others} packets do not pass the filters of the command line and are left out."));
    }
    if told.len() < passed {
        let (shown, left) = (told.len(), passed - told.len());
        notes.push(format!(
            "The first {shown} packets are shown; {left} more are left out (--limit). The numbers above count all."
        ));
    }
    if counts.others.count() > 0 {
        let others = &counts.others;
        notes.push(format!("{} other frames of the file are no RoCEv2 packets ({others}).", others.count()));
    }
    notes.extend(unseen(&counts));
    if counts.cut > 0 {
        notes
            .push(format!("{} packets are cut: their headers are judged, their payload and ICRC are not.", counts.cut));
    }
    let title = args.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = page(title, &told, &analysis, &counts, notes);
    private_file::write(out, ladder::render(&page).as_bytes())
        .map_err(|error| Stop::Page { file: out.to_owned(), error })?;
    eprintln!("{counts}; written to {}", out.display());
    Ok(())
}

/// One packet, as it is printed.
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
                    && let Some(words) = self.finding.event.words(packet.header.bth.psn)
                {
                    write!(f, "{words}  ")?;
                }
                write!(f, "{integrity}")?;
            }
            None => write!(f, "{} bytes  {integrity}", bytes.len())?,
        }
        if remark.is_empty() { Ok(()) } else { write!(f, "  # {}", printable(remark)) }
    }
}

impl Line<'_> {
    /// What the connection manager says in this packet, unless the comment says it.
    fn fmt_mad(&self, packet: &Packet<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.captured.is_cut() {
            return Ok(());
        }
        match Mad::of_packet(packet).map(|mad| mad.map(|mad| mad.to_string())) {
            Some(Ok(text)) if !self.captured.remark.contains(&text) => write!(f, "{text}  "),
            Some(Err(error)) => write!(f, "{error}  "),
            _ => Ok(()),
        }
    }
}

/// A remark of a file from anywhere, without what a terminal would obey.
fn printable(remark: &str) -> String {
    remark.chars().map(|char| if char.is_control() { '.' } else { char }).collect()
}
