//! `roxe demo`: runs every service and operation between a server and a client process, checks
//! every byte and completion, and measures latency and bandwidth.
//!
//! The client is this process. It starts the server as a second process and sends the steps over a
//! pipe; the data goes over the device. The operations are those of `roxe_peer::plan`; they run
//! over the Rust API in this command, because lines of JSON would be too slow to measure.
//! `client::run` is the place to start reading.

mod case;
mod client;
mod connection;
mod failure;
mod server;

use crate::child::KillOnDrop;
use crate::devices::Netdev;
use case::Case;
use client::{Control, Outcome};
use connection::Resources;
use failure::Failure;
use roxe_peer::plan::Service;
use std::io::{Write, stdin, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of one measurement.
const MAX_MEASUREMENT: Duration = Duration::from_millis(80);
/// Time for all measurements together.
const BUDGET: Duration = Duration::from_secs(10);
/// Maximum number of repetitions of a UC or UD case that lost a message.
const MAX_LOSSES: u32 = 3;
/// Failures after which the demo ends.
const MAX_FAILURES: usize = 3;

/// The command line of `roxe demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this service (rc, uc, ud) or operation (send, write, read, fetch-add, ...).
    #[arg(value_name = "WORD")]
    only: Option<String>,
    #[command(flatten)]
    netdev: Netdev,
}

/// Runs the server process.
pub(crate) fn serve() -> crate::output::Result {
    Ok(server::serve(stdin().lock(), stdout().lock())?)
}

/// Runs the client process and prints the report.
pub(crate) fn run(args: &Args) -> crate::output::Result {
    let start = Instant::now();
    // Reports an unknown word before the device is opened.
    choose_cases(args.only.as_deref(), 0)?;
    args.netdev.apply()?;
    let resources = Resources::open()?;
    let mut server = start_server()?;
    let mut control = Control::new(&mut server.0)?;
    print_head(&resources, &control)?;
    let mtu = resources.context.port_attr()?.active_mtu.bytes() as usize;
    let cases = choose_cases(args.only.as_deref(), mtu)?;
    let (mut checks, mut failures) = (0, Vec::new());
    for (done, case) in cases.iter().enumerate() {
        let time = time_for_each(start.elapsed(), cases.len() - done);
        match run_case(&resources, &mut control, *case, done as u64, time) {
            Ok((outcome, losses)) => {
                checks += outcome.checks;
                print_case(case, &outcome, losses)?;
            }
            Err(failure) => {
                writeln!(stdout(), "{}  FAILED: {failure}", row_start(case))?;
                failures.push(*case);
                if failures.len() == MAX_FAILURES {
                    break;
                }
            }
        }
    }
    drop(control);
    wait_for_server(server)?;
    print_summary(checks, &failures, start.elapsed())
}

/// Runs a case, and repeats it if UC or UD lost a message, as happens on a busy host with a full
/// socket buffer. Returns the result and the number of repetitions.
fn run_case(
    resources: &Resources,
    control: &mut Control,
    case: Case,
    number: u64,
    time: Duration,
) -> Result<(Outcome, u32), Failure> {
    let mut losses = 0;
    loop {
        let seed = number * 1_000_000 + u64::from(losses) * 100_000;
        match client::run(resources, control, case, seed, time) {
            Ok(outcome) => return Ok((outcome, losses)),
            Err(failure) if failure.lost && case.service != Service::Rc && losses < MAX_LOSSES => losses += 1,
            Err(failure) => return Err(failure),
        }
    }
}

/// Returns the time of a measurement if `left` cases with two measurements each are left. On a busy
/// machine this shortens the measurements, never the checks.
fn time_for_each(elapsed: Duration, left: usize) -> Duration {
    let share = BUDGET.saturating_sub(elapsed) / (2 * left.max(1) as u32);
    share.min(MAX_MEASUREMENT)
}

/// Returns the cases whose service or operation is `word`, or all cases. `mtu` limits a datagram.
fn choose_cases(word: Option<&str>, mtu: usize) -> Result<Vec<Case>, Failure> {
    let cases = Case::all(mtu);
    let Some(word) = word else { return Ok(cases) };
    let names = |case: &Case| [case.service.name().to_lowercase(), case.op.to_string()];
    let mut known: Vec<_> = cases.iter().flat_map(names).collect();
    known.sort_unstable();
    known.dedup();
    let wanted = |case: &Case| names(case).iter().any(|name| name.eq_ignore_ascii_case(word));
    let chosen: Vec<_> = cases.into_iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Failure::new(format!(
            "no service or operation is called {word:?}; name one of {}, or none for all",
            known.join(", ")
        )));
    }
    Ok(chosen)
}

fn start_server() -> Result<KillOnDrop, Failure> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(own);
    command.arg("demo-server").stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map(KillOnDrop).map_err(|error| Failure::new(format!("cannot start the server process: {error}")))
}

/// Waits for the server, which ends when the pipe is closed.
fn wait_for_server(mut server: KillOnDrop) -> Result<(), Failure> {
    let status = server.0.wait()?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("the server process ended with {status}"))) }
}

fn print_head(resources: &Resources, control: &Control) -> crate::output::Result {
    let (device, port) = (resources.context.device(), resources.context.port_attr()?);
    let (own, server) = (std::process::id(), control.pid);
    let mut out = stdout();
    writeln!(
        out,
        "Device {} on {} ({}), path MTU {}. Client is process {own}, server is process {server}.\n",
        device.name(),
        device.netdev(),
        resources.context.gid(0)?.to_ip(),
        port.active_mtu.bytes(),
    )?;
    writeln!(
        out,
        "{:<3} {:<13}{:>9}{:>9}{:>13}{:>14}{:>14}",
        "", "operation", "size", "checks", "latency", "bandwidth", "messages"
    )?;
    Ok(())
}

fn row_start(case: &Case) -> String {
    format!("{:<3} {:<13}{:>9}", case.service.name(), case.op, format_size(case.size))
}

fn print_case(case: &Case, outcome: &Outcome, losses: u32) -> crate::output::Result {
    let bandwidth = outcome.rate * case.size as f64;
    let note = if losses == 0 { String::new() } else { format!("  (run {}: a message was lost)", losses + 1) };
    writeln!(
        stdout(),
        "{}{:>9}{:>10.1} µs{:>9.1} MB/s{:>10.1} k/s{note}",
        row_start(case),
        outcome.checks,
        outcome.latency.as_secs_f64() * 1e6,
        bandwidth / 1e6,
        outcome.rate / 1e3,
    )?;
    Ok(())
}

/// Formats a size, such as `64 B`, `4 KiB` or `1 MiB`.
fn format_size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

fn print_summary(checks: usize, failures: &[Case], time: Duration) -> crate::output::Result {
    let mut out = stdout();
    writeln!(
        out,
        "\nLatency: half a round trip; for read and atomics, from posting to completion. Median.\n\
         Bandwidth and messages: up to {} outstanding messages. MB are 10^6 bytes.",
        case::MAX_WINDOW
    )?;
    if failures.is_empty() {
        writeln!(out, "{checks} checks passed in {:.1} s.", time.as_secs_f64())?;
        return Ok(());
    }
    let names: Vec<String> = failures.iter().map(|case| format!("{} {}", case.service.name(), case.op)).collect();
    Err(format!(
        "{} cases failed: {} ({checks} checks passed); run one alone with `roxe demo WORD`, and see the settings in \
         force with `roxe config`",
        names.len(),
        names.join(", ")
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_in_binary_units() {
        assert_eq!(
            [8, 64, 4096, 65536, 1 << 20, 1500].map(format_size),
            ["8 B", "64 B", "4 KiB", "64 KiB", "1 MiB", "1500 B"]
        );
    }

    #[test]
    fn word_selects_cases_and_unknown_word_lists_them() {
        let all = choose_cases(None, 1024).unwrap().len();
        let (service, operation) =
            (choose_cases(Some("UD"), 1024).unwrap(), choose_cases(Some("fetch-add"), 1024).unwrap());
        assert!(service.len() < all && service.iter().all(|case| case.service == Service::Ud));
        assert!(operation.iter().all(|case| case.op == roxe_peer::plan::Op::FetchAdd) && !operation.is_empty());
        let text = choose_cases(Some("teleport"), 1024).unwrap_err().to_string();
        assert!(text.contains("\"teleport\"") && text.contains("rc, read") && text.contains("write-imm"), "{text}");
    }

    #[test]
    fn measurements_are_shortened_when_time_runs_out() {
        assert_eq!(time_for_each(Duration::ZERO, 40), MAX_MEASUREMENT);
        assert_eq!(time_for_each(Duration::from_secs(8), 40), Duration::from_millis(25));
        assert_eq!(time_for_each(Duration::from_secs(11), 40), Duration::ZERO);
    }
}
