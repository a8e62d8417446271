//! `roxe judge CAPTURE...`: prints charges against the cards of a capture, as text or JSON.
//! `roxe_dissect::judge` judges the packets.

use crate::dump;
use crate::output::{self, Result};
use roxe_dissect::judge::{Charge, Class, Judgement, Rule, Vantage, judge};
use roxe_dissect::{Captured, Item, Others, items};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `roxe judge`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Captures (pcap, pcapng); - is standard input.
    #[arg(required_unless_present = "rules")]
    captures: Vec<PathBuf>,
    /// Assume that no packet was lost, reordered or marked between the capture and the cards, nor
    /// by the capture: report faults that loss would excuse.
    #[arg(long)]
    complete: bool,
    /// Also print advice: deviations of known cards on purpose, or that an event outside the
    /// capture may explain.
    #[arg(long)]
    advice: bool,
    /// Print this number of packets of the connection before and after the packets of a charge.
    #[arg(long, value_name = "N", default_value_t = 3)]
    context: usize,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// List the rules and their clauses instead of judging files.
    #[arg(long)]
    rules: bool,
}

/// Exit status for a file that cannot be judged.
const UNUSABLE: u8 = 2;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.rules {
        let mut table = output::Table::new(["rule", "clause", "holds"]);
        Rule::ALL.iter().for_each(|rule| table.row([rule.name(), rule.clause(), rule.text()].map(str::to_owned)));
        output::line(table.to_string().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let (mut faults, mut is_unusable, mut reports) = (0, false, Vec::new());
    for path in &args.captures {
        let with_path = |error: Box<dyn Error>| format!("{}: {error}", path.display()).into();
        match dump::read(path, "judge").and_then(|file| judge_file(path, &file, args).map_err(with_path)) {
            Ok(judged) => {
                faults += judged.faults;
                reports.extend(judged.value);
                if let Some(broken) = judged.broken {
                    eprintln!("roxe judge: {}: {broken}", path.display());
                    is_unusable = true;
                }
            }
            Err(error) => {
                eprintln!("roxe judge: {error}");
                is_unusable = true;
            }
        }
    }
    if args.json {
        output::line(format_args!("{:#}", Value::Array(reports)));
    }
    Ok(match (is_unusable, faults) {
        (true, _) => ExitCode::from(UNUSABLE),
        (false, 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The result of a file.
struct FileResult {
    faults: usize,
    /// The charges in JSON, if they are not printed as text.
    value: Option<Value>,
    /// The reason why the rest of the file is unreadable.
    broken: Option<String>,
}

/// Prints the charges of a file, or returns them.
fn judge_file(path: &Path, file: &[u8], args: &Args) -> Result<FileResult> {
    let (mut captured, mut others, mut broken) = (Vec::new(), Others::default(), None);
    for item in items(file, roxe_provider::is_probe)? {
        match item {
            Item::Packet(packet) => captured.push(packet),
            Item::Other(other) => others.add(other),
            Item::Broken(frame, error) => broken = Some(format!("cannot read on after frame {frame}: {error}")),
        }
    }
    if captured.is_empty() {
        let hidden = others.unseen();
        let why = if hidden.count() > 0 { format!("; not decoded: {hidden}") } else { String::new() };
        return Err(broken.unwrap_or_else(|| format!("it has no RoCEv2 packets{why}")).into());
    }
    // Frames of several interfaces may be out of order.
    if captured.iter().any(|packet| packet.interface != captured[0].interface) {
        captured.sort_by_key(|packet| packet.time);
    }
    let judgement = judge(&captured, Vantage { is_complete: args.complete });
    let faults = judgement.faults();
    let judged = JudgedFile { path, captured: &captured, judgement: &judgement, args };
    if args.json {
        let mut value = judged.json();
        if let Some(broken) = &broken {
            value["broken"] = broken.as_str().into();
        }
        return Ok(FileResult { faults, value: Some(value), broken });
    }
    output::line(judged.text().trim_end());
    dump::undecoded_note(&others).iter().for_each(|note| eprintln!("roxe judge: {}: {note}", path.display()));
    Ok(FileResult { faults, value: None, broken })
}

/// A judgement with its file.
struct JudgedFile<'a> {
    path: &'a Path,
    captured: &'a [Captured<'a>],
    judgement: &'a Judgement,
    args: &'a Args,
}

impl JudgedFile<'_> {
    fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.judgement.charges.iter().filter(|charge| self.args.advice || charge.class == Class::Fault)
    }

    fn frames(&self, packets: &[usize]) -> Vec<usize> {
        packets.iter().map(|packet| self.captured[*packet].frame).collect()
    }

    fn text(&self) -> String {
        let Judgement { connections, repeated, truncated, datagrams, charges, .. } = self.judgement;
        let mut out = String::new();
        for charge in self.charges() {
            self.charge(charge, &mut out);
        }
        let lost: u64 = connections.iter().map(|connection| connection.lost).sum();
        let half = connections.iter().filter(|connection| connection.is_half()).count();
        let advice = charges.iter().filter(|charge| charge.class == Class::Advice).count();
        _ = write!(
            out,
            "{}: {} packets, {} connections, {datagrams} datagrams: {} faults, {advice} pieces of advice",
            self.path.display(),
            self.captured.len(),
            connections.len(),
            self.judgement.faults()
        );
        let notes = [
            (half as u64, "connections in one direction only"),
            (lost, "packets lost by the capture"),
            (*repeated as u64, "packets captured twice"),
            (*truncated as u64, "packets truncated, their ICRC not judged"),
        ];
        for (count, what) in notes.into_iter().filter(|(count, _)| *count > 0) {
            _ = write!(out, "; {count} {what}");
        }
        out
    }

    /// Writes a charge and the packets around it.
    fn charge(&self, charge: &Charge, out: &mut String) {
        let frames: Vec<_> = self.frames(&charge.packets).iter().take(8).map(ToString::to_string).collect();
        let text = dump::printable(&charge.to_string());
        _ = writeln!(out, "{}: frame {}: {text}", self.path.display(), frames.join(", "));
        if charge.count > 1 {
            _ = writeln!(out, "    {} times; this is the first", charge.count);
        }
        let ends = charge.connection.map(|index| self.judgement.connections[index].ends);
        if let Some([left, right]) = ends {
            _ = writeln!(out, "    {left}  <->  {right}");
        }
        for index in self.judgement.ladder(charge, self.args.context, self.args.context) {
            let captured = &self.captured[index];
            let mark = if charge.packets.contains(&index) { '>' } else { ' ' };
            let arrow = match ends {
                Some([left, right]) if left.address == right.address => {
                    let to = captured.packet().map(|packet| packet.header.bth.dest_qpn);
                    if to == right.qpn { "-->" } else { "<--" }
                }
                Some([left, _]) if left.address != captured.net.src => "<--",
                _ => "-->",
            };
            let (seconds, micros) = (captured.time / 1_000_000_000, captured.time % 1_000_000_000 / 1000);
            let text = match captured.packet() {
                Some(packet) => packet.to_string(),
                None => format!("{} bytes, {}", captured.bytes.len(), captured.integrity),
            };
            _ = writeln!(out, "  {mark} {:>6} {seconds:>4}.{micros:06} {arrow} {text}", captured.frame);
        }
        out.push('\n');
    }

    fn json(&self) -> Value {
        let Judgement { connections, repeated, truncated, datagrams, .. } = self.judgement;
        let connections = connections.iter().map(|connection| {
            json!({
                "ends": connection.ends.map(|end| end.to_string()), "service": connection.service.name(),
                "packets": connection.packets, "mtu": connection.mtu, "lost_by_capture": connection.lost,
            })
        });
        let charges = self.judgement.charges.iter().map(|charge| {
            json!({
                "class": charge.class.name().to_lowercase(), "rule": charge.rule.name(),
                "clause": charge.rule.clause(), "address": charge.card.address.to_ip().to_string(),
                "qp": charge.card.qpn.map(|qpn| qpn.get()), "role": charge.role.name(),
                "or_network": charge.or_network, "connection": charge.connection,
                "frames": self.frames(&charge.packets), "count": charge.count, "text": charge.text,
            })
        });
        json!({
            "file": self.path.display().to_string(), "packets": self.captured.len(), "datagrams": datagrams,
            "faults": self.judgement.faults(), "captured_twice": repeated, "cut": truncated,
            "connections": connections.collect::<Value>(), "charges": charges.collect::<Value>(),
        })
    }
}
