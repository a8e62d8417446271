//! Compares roxe's links with their alternatives on this machine, interleaved in one run.
//!
//! ```text
//! cargo bench -p roxe-tests --bench compare [-- OPTION... WORD...]
//!   --quick       only lines for the promises of the README; takes two minutes, not fifteen
//!   --rxe         compare with the kernel's rxe, both in one guest
//!   --veth        compare with TCP between two network namespaces, over a veth pair and over a
//!                 bridge; needs root
//!   --against F   compare with another build of roxe, whose program has the absolute path F
//!   --free        do not pin servers to one processor and clients to another
//!   --seconds N   run for N seconds
//!   --rounds N    run at most N rounds
//!   WORD...       only lines with every WORD in their name: 'ib_write_bw' 'udp' '64 KB'
//! ```
//!
//! The lines are perftest over roxe's links, raw UDP and TCP, a ring in shared memory, a RoCE-like
//! yardstick (`yardstick.rs`), UCX and libfabric. The speed of machines varies within minutes, so
//! every line runs once in every round, and medians and ratios count. The load by other processes
//! is measured: a disturbed run is repeated, and a figure with only disturbed runs is marked. A
//! program that fails makes the benchmark fail. Servers run on one processor, clients on another,
//! each with all its threads. The results are printed and written to `target/bench/`.

mod line;
mod middleware;
mod network;
mod peer;
mod plan;
mod plot;
mod promises;
mod raw;
mod report;
mod ring;
mod rounds;
mod rxe;
mod sys;
mod transfer;
mod work;
mod yardstick;

use line::{Line, Link, Work};
use network::Namespaces;
use promises::Promise;
use rounds::{Measured, Rounds};
use roxe_tests::build;
use roxe_tests::cc;
use roxe_tests::guest::link;
use roxe_tests::measure::pin;
use roxe_tests::pair;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use work::OptionalParts;

/// Options of the command line.
#[derive(Default)]
struct Options {
    quick: bool,
    rxe: bool,
    veth: bool,
    against: Option<PathBuf>,
    rounds: Option<usize>,
    free: bool,
    time: Duration,
    words: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["udp-echo", at] => raw::udp_echo(at).map(|()| true),
        ["udp-sink"] => raw::udp_sink().map(|()| true),
        ["tcp-echo"] => raw::tcp_echo().map(|()| true),
        ["tcp-sink"] => raw::tcp_sink().map(|()| true),
        ["ring-sink", fd] => ring::sink(fd).map(|()| true),
        ["ring-small-sink", fd] => ring::small_sink(fd).map(|()| true),
        ["ring-echo", fd] => ring::echo(fd).map(|()| true),
        ["ring-source", size, written, fd] => transfer::ring_source([size, written], fd).map(|()| true),
        ["handed-source", size, written, fd] => transfer::source([size, written], fd).map(|()| true),
        ["write-sink", size, at] => yardstick::sink(size, at).map(|()| true),
        _ => options(&words).and_then(|options| compare(&options)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("compare: {e}");
            ExitCode::FAILURE
        }
    }
}

fn options(words: &[String]) -> io::Result<Options> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => options.quick = true,
            "--rxe" => options.rxe = true,
            "--veth" => options.veth = true,
            "--against" => {
                // Cargo changes the working folder, so a relative path would be ambiguous.
                let file = words.next().map(PathBuf::from).filter(|file| file.is_absolute() && file.is_file());
                let wanted = "--against wants the absolute path of a program `roxe`";
                options.against = Some(file.ok_or_else(|| io::Error::other(wanted))?);
            }
            "--rounds" => {
                let value = words.next().and_then(|word| word.parse().ok());
                options.rounds = Some(value.ok_or_else(|| io::Error::other("--rounds wants a number"))?);
            }
            "--free" => options.free = true,
            "--seconds" => {
                let value = words.next().and_then(|word| word.parse().ok());
                options.time = Duration::from_secs(value.ok_or_else(|| io::Error::other("--seconds wants a number"))?);
            }
            // `cargo bench` adds this option.
            "--bench" => {}
            flag if flag.starts_with('-') => return Err(io::Error::other(format!("{flag} is not an option"))),
            word => options.words.push(word.to_owned()),
        }
    }
    if options.time.is_zero() {
        options.time = Duration::from_secs(if options.quick || options.rxe { 120 } else { 900 });
    }
    Ok(options)
}

/// Measures and prints the figures. Returns true if nothing failed.
fn compare(options: &Options) -> io::Result<bool> {
    build::roxe();
    if options.rxe {
        return rxe::compare(options.time, &options.words)
            .and_then(|all| conclude("rxe", &all, &promises::against_rxe(&all), &[]));
    }
    link::isolate()?;
    let pinned = pin::begin(!options.free)?;
    println!("servers and clients are {}", if pinned { "pinned to a processor each" } else { "not pinned" });
    let (lines, skipped) = choose(options)?;
    skipped.iter().for_each(|name| println!("skipped  {name}"));
    let most = options.rounds.unwrap_or(if options.quick { 9 } else { 5 });
    let rounds = Rounds { time: options.time, each: work::MEASURE_TIME, least: most.min(3), most, server: None };
    let namespaces = options.veth.then(Namespaces::build).transpose()?;
    let parts = OptionalParts { before: options.against.clone(), namespaces };
    let all = rounds::run(lines, &rounds, &mut |line, messages| work::once(&parts, line, messages));
    match (&options.against, options.veth) {
        (Some(_), _) => conclude("against", &all, &promises::against(&all), &skipped),
        (None, true) => conclude("veth", &all, &promises::over_veth(&all), &skipped),
        (None, false) => conclude("compare", &all, &promises::judge(&all), &skipped),
    }
}

/// Prints the results and writes them to the file `name`. Returns true if nothing failed.
fn conclude(name: &str, all: &[Measured], promises: &[Promise], skipped: &[String]) -> io::Result<bool> {
    let text = report::text(all) + &report::verdicts(promises);
    print!("{text}");
    let folder = build::target_dir().join("bench");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("{name}.txt")), text)?;
    fs::write(folder.join(format!("{name}.json")), report::json(all, promises, skipped))?;
    fs::write(folder.join(format!("{name}.svg")), plot::svg(all))?;
    println!("\nresult: {}/{name}.txt, {name}.json, {name}.svg", folder.display());
    let failed = all.iter().filter(|measured| !measured.failures.is_empty()).count();
    println!("{} lines, {failed} failed, {} skipped", all.len(), skipped.len());
    Ok(failed == 0)
}

/// Returns the lines to measure, and the names of those that this machine does not support.
fn choose(options: &Options) -> io::Result<(Vec<Line>, Vec<String>)> {
    let mut lines = match (options.veth, options.quick) {
        (true, _) => plan::veth(),
        (false, true) => plan::quick(),
        (false, false) => plan::whole(),
    };
    if options.against.is_some() {
        lines = plan::against(lines);
    }
    lines.retain(|line| options.words.iter().all(|word| line.to_string().contains(word)));
    let has_links = has_links()?;
    let missing = |line: &Line| match &line.work {
        Work::Verbs(verbs) if verbs.is_own() => cc::missing().map(|why| format!("{}: {why}", verbs.tool)),
        Work::Verbs(verbs) if !pair::installed(verbs.tool) => {
            Some(format!("{}: perftest is not installed", verbs.tool))
        }
        Work::Verbs(verbs) if verbs.link == Link::Shm && !has_links => Some("roxe shm: not in this build".to_owned()),
        Work::Iperf if !pair::installed("iperf3") => Some("iperf3: not installed".to_owned()),
        Work::Mpi(_) if ![middleware::MPIRUN, middleware::MPICC].iter().all(|name| pair::installed(name)) => {
            Some("MPI_Isend: OpenMPI is not installed".to_owned())
        }
        Work::Fio(_) if !pair::installed("fio") => Some("fio: not installed".to_owned()),
        Work::Ucx(..) if !pair::installed("ucx_perftest") => Some("ucx_perftest: not installed".to_owned()),
        Work::Fabric(..) if !pair::installed("fi_pingpong") => Some("fi_pingpong: not installed".to_owned()),
        _ => None,
    };
    let mut skipped: Vec<String> = lines.iter().filter_map(missing).collect();
    skipped.sort_unstable();
    skipped.dedup();
    lines.retain(|line| missing(line).is_none());
    Ok((lines, skipped))
}

/// Returns true if this build of roxe has links other than UDP.
pub(crate) fn has_links() -> io::Result<bool> {
    let output = Command::new(build::roxe()).arg("config").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).contains("ROXE_LINK"))
}
