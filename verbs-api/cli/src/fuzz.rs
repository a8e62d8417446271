//! `roxe fuzz TARGET`: cases out of a seed against a card, compared with roxe's transport.
//!
//! Here: its options, and what is printed and written; what it does is `roxe_drill::fuzz`.

use crate::drill::{Common, open};
use crate::{output, progress};
use roxe_base::private_file;
use roxe_drill::fuzz::{Finding, Options, fuzz};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `roxe fuzz` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// How long to look.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// What the cases are made from; case number N of a run is the first of `--seed SEED+N`.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// End after so many cases [default: as many as there is time for].
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// For how long nothing must have come before a case is over; more for a slow card.
    #[arg(long, value_name = "MS", default_value_t = 5)]
    settle: u64,
    /// Leave out the packet that ends the kernel of Linux 6.1 if the card is its rxe.
    #[arg(long)]
    spare: bool,
    /// Write each finding as a script into this folder (`roxe drill` runs it again).
    #[arg(long, value_name = "DIR")]
    findings: Option<PathBuf>,
}

/// Looks, and tells what it finds; an error if it finds something.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = &args.findings {
        fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    let mut target = open(&args.common)?;
    let (time, settle) = (Duration::from_secs(args.seconds), Duration::from_millis(args.settle));
    let options = Options { seed: args.seed, time, cases: args.cases.unwrap_or(u64::MAX), settle, spares: args.spare };
    let mut written = Ok(());
    let seconds = progress::Seconds::count(args.seconds);
    let summary = fuzz(&mut *target.card, &options, |finding| {
        progress::make_room();
        output::line(format_args!("{}\n    case: --seed {} --cases 1", finding.cause, finding.seed));
        if let (Some(folder), Ok(())) = (&args.findings, &written) {
            written = write(folder, finding);
        }
    })?;
    drop(seconds);
    written?;
    let seconds = (summary.took - summary.shortening).as_secs_f64().max(f64::MIN_POSITIVE);
    let packets = summary.packets - summary.shortening_packets;
    output::line(format_args!(
        "{} cases, {packets} packets in {seconds:.1} s: {:.0} packets a second; {} findings, seen again and made short \
         in {:.1} s; {} differences did not show again; {} cases that the card refuses (seed {})",
        summary.cases,
        packets as f64 / seconds,
        summary.findings.len(),
        summary.shortening.as_secs_f64(),
        summary.passing,
        summary.refused,
        args.seed
    ));
    for finding in &summary.findings {
        output::line(format_args!("{:6} cases: {}", finding.count, finding.cause));
    }
    if summary.findings.is_empty() {
        return Ok(());
    }
    Err(format!("the card differs from roxe's transport in {} ways", summary.findings.len()).into())
}

/// A file named after the cause.
fn write(folder: &Path, finding: &Finding) -> Result<(), String> {
    let letters = finding.cause.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = letters.collect::<Vec<_>>().join("-").to_ascii_lowercase().chars().take(100).collect();
    let path = folder.join(format!("{name}.drill"));
    private_file::write(&path, finding.script.as_bytes())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
