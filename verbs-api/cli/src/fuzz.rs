//! `roxe fuzz TARGET`: options and output; `roxe_drill::fuzz` compares the card with roxe's
//! transport.

use crate::drill::{Common, open};
use crate::output::Result;
use crate::{files, output, progress};
use roxe_drill::fuzz::{Finding, Options, fuzz};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `roxe fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// End after this many seconds.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Seed of the cases; case N of a run is the first case of `--seed SEED+N`.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// End after this many cases [default: no limit].
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// End a case after this many milliseconds without a packet; increase it for a slow card.
    #[arg(long, value_name = "MS", default_value_t = 5)]
    settle: u64,
    /// Leave out the packet that crashes Linux 6.1 if the card is its rxe.
    #[arg(long)]
    spare: bool,
    /// Write each finding to this folder, as a script for `roxe drill`.
    #[arg(long, value_name = "DIR")]
    findings: Option<PathBuf>,
}

/// Runs the cases and prints the findings. Fails if there is a finding.
pub(crate) fn run(args: &Args) -> Result {
    args.findings.as_deref().map(files::create_folder).transpose()?;
    let mut target = open(&args.common)?;
    let (time, settle) = (Duration::from_secs(args.seconds), Duration::from_millis(args.settle));
    let options = Options { seed: args.seed, time, cases: args.cases.unwrap_or(u64::MAX), settle, spares: args.spare };
    let mut written = Ok(());
    let seconds = progress::ElapsedSeconds::show(args.seconds);
    let summary = fuzz(&mut *target.card, &options, |finding| {
        progress::clear_line();
        let [model, card] = &finding.example;
        output::line(format_args!("{}", finding.cause));
        if !model.is_empty() {
            output::line(format_args!("    model: {}\n    card: {}", shortened(model), shortened(card)));
        }
        output::line(format_args!("    case: --seed {} --cases 1", finding.seed));
        if let (Some(folder), Ok(())) = (&args.findings, &written) {
            written = write(folder, finding);
        }
    })?;
    drop(seconds);
    written?;
    let seconds = (summary.took - summary.shortening).as_secs_f64().max(f64::MIN_POSITIVE);
    let packets = summary.packets - summary.shortening_packets;
    output::line(format_args!(
        "{} cases, {packets} packets in {seconds:.1} s: {:.0} packets a second; {} findings, reproduced and shortened \
         in {:.1} s; {} cases that differ once ({:.1} %); {} in which the card was late; {} that the card refuses \
         (seed {})",
        summary.cases,
        packets as f64 / seconds,
        summary.findings.len(),
        summary.shortening.as_secs_f64(),
        summary.passing,
        100.0 * summary.passing as f64 / (summary.cases as f64).max(1.0),
        summary.late,
        summary.refused,
        args.seed
    ));
    for finding in &summary.findings {
        output::line(format_args!("{:6} cases: {}", finding.count, finding.cause));
    }
    for (cause, once) in &summary.once {
        let [model, card] = &once.example;
        output::line(format_args!(
            "{:6} once:  {cause} (--seed {}: {} / {})",
            once.count,
            once.seed,
            shortened(model),
            shortened(card)
        ));
    }
    if summary.findings.is_empty() {
        return Ok(());
    }
    Err(format!("the card differs from roxe's transport in {} ways", summary.findings.len()).into())
}

/// Returns the beginning of a text, because its payload may be long.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 100;
    let shown: String = text.chars().take(MAX_CHARS).collect();
    if shown.len() < text.len() { shown + ".." } else { shown }
}

/// Writes the script to a file named after the cause.
fn write(folder: &Path, finding: &Finding) -> Result<(), String> {
    let letters = finding.cause.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = letters.collect::<Vec<_>>().join("-").to_ascii_lowercase().chars().take(100).collect();
    files::write(&folder.join(format!("{name}.drill")), &finding.script)
}
