//! `roxe replay FILE TARGET`: options and output; `roxe_drill::replay` sends the requests.

use crate::drill::{Common, open};
use crate::output::Result;
use crate::{files, output};
use roxe_dissect::{Item, items};
use roxe_drill::replay::Replay;
use roxe_wire::Packet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `roxe replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The capture (pcap or pcapng).
    file: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Send the requests of this host [default: the first requester in the file].
    #[arg(long, value_name = "ADDR")]
    from: Option<IpAddr>,
    /// Wait this number of milliseconds for a response.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    patience: u64,
    /// Write a script for `roxe drill` to this file instead of sending.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Print every packet, `>` to the card, `<` from it.
    #[arg(long)]
    verbose: bool,
}

/// Sends the requests. Prints how many responses of each kind are in the file, and how many the
/// card has sent.
pub(crate) fn run(args: &Args) -> Result {
    let name = args.file.display();
    let file = files::read(&args.file)?;
    let (mut recorded, mut truncated) = (Vec::new(), 0);
    for item in items(&file, roxe_provider::is_probe).map_err(|error| format!("{name}: {error}"))? {
        match item {
            Item::Packet(captured) => {
                truncated += usize::from(captured.is_truncated());
                recorded.push((captured.net, captured.bytes.to_vec()));
            }
            Item::Other(_) => {}
            Item::Broken(frame, error) => {
                return Err(format!("{name}: cannot read on after frame {frame}: {error}").into());
            }
        }
    }
    if truncated > 0 {
        let total = recorded.len();
        return Err(format!(
            "{name}: {truncated} of {total} packets are truncated and cannot be sent again; capture whole packets (`tcpdump -s 0`)"
        )
        .into());
    }
    let replay = Replay::of(&recorded, args.from.map(Into::into)).map_err(|error| format!("{name}: {error}"))?;
    let (from, to) = replay.endpoints;
    output::line(format_args!("{} requests that {} sent to {}", replay.packets, from.to_ip(), to.to_ip()));
    if replay.left_out > 0 {
        output::line(format_args!("{} more do not fit into a script and are left out", replay.left_out));
    }
    if let Some(path) = &args.script {
        return Ok(files::write(path, &replay.script)?);
    }
    let mut target = open(&args.common)?;
    let (log, states) = replay.run(&mut *target.card, Duration::from_millis(args.patience))?;
    // Numbers of responses by kind, in the file and from the card.
    let mut kinds: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (net, bytes) in &recorded {
        if (net.src, net.dst) == (to, from)
            && let Ok(packet) = Packet::parse(bytes)
            && packet.header.opcode().operation().is_response()
        {
            kinds.entry(kind(&packet.to_string())).or_default()[0] += 1;
        }
    }
    for seen in log.packets() {
        let text =
            Packet::parse(&seen.datagram.bytes).map_or_else(|error| error.to_string(), |packet| packet.to_string());
        if args.verbose {
            output::line(format_args!(
                "{:.6} {} {text}",
                seen.at.as_secs_f64(),
                if seen.from_card { '<' } else { '>' }
            ));
        }
        if seen.from_card {
            kinds.entry(kind(&text)).or_default()[1] += 1;
        }
    }
    output::line(format_args!("responses: in the file, now"));
    kinds.iter().for_each(|(kind, [before, now])| output::line(format_args!("{before:8} {now:8} {kind}")));
    states.iter().for_each(|(qp, state)| output::line(format_args!("queue pair {qp} is in {state}")));
    Ok(())
}

/// Returns the kind of a packet: its text without fields except the syndrome.
fn kind(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.contains('=') || word.starts_with("syndrome"));
    words.collect::<Vec<_>>().join(" ")
}
