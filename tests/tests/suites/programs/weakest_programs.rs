//! Runs stock programs on the weakest card that the standard allows (`roxe run --weakest`).
//! Programs that rely only on guarantees of verbs pass with every seed. The others are listed with
//! their assumption, and pass without the weakness that breaks it.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- weakest_programs [--all] [--seed N] [WORD...]
//!   --all      every program with ten seeds, and rdma-core's own suite with three
//!   --seed N   the first seed, default 1
//!   WORD...    only checks with one of the WORDs in their name
//! ```

use roxe_tests::matrix::Ip;
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::pyverbs::{self, Run};
use roxe_tests::rdmacm::list::{self, Scale};
use roxe_tests::rdmacm::local::{self, Faults, Link};
use roxe_tests::rdmacm::{Ready, Transport};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::unittest::TestResult;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Time limit of a check, long enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);
const SUITE_LIMIT: Duration = Duration::from_secs(240);

/// Assumption of a program about the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReliesOn {
    /// No assumption beyond the standard's guarantees.
    Nothing,
    /// UD and UC lose no message: the program waits for all of them.
    EveryMessage,
    /// The card has more room for inline data than the program requested.
    InlineRoom,
}

impl ReliesOn {
    /// Returns the options that exclude the weaknesses which break the assumption.
    fn omitted_weaknesses(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::EveryMessage => ",-loss,-receives",
            Self::InlineRoom => ",-slots",
        }
    }
}

/// Programs that connect through a TCP port. docs/explanation/weakest.md lists those that rely on
/// more.
const PROGRAMS: [(&str, &str, ReliesOn); 22] = [
    ("ibv_rc_pingpong", "-g 0 -c", ReliesOn::Nothing),
    ("ibv_rc_pingpong", "-g 0 -c -e", ReliesOn::Nothing),
    ("ibv_rc_pingpong", "-g 0 -c -s 100000 -n 100", ReliesOn::Nothing),
    ("ibv_srq_pingpong", "-g 0 -c", ReliesOn::Nothing),
    ("ibv_srq_pingpong", "-g 0 -c -e", ReliesOn::Nothing),
    ("ib_send_bw", "-x 0 -n 1000", ReliesOn::Nothing),
    ("ib_send_bw", "-x 0 -n 1000 -e", ReliesOn::Nothing),
    ("ib_write_bw", "-x 0 -n 1000", ReliesOn::Nothing),
    ("ib_read_bw", "-x 0 -n 1000", ReliesOn::Nothing),
    ("ib_atomic_bw", "-x 0 -n 1000", ReliesOn::Nothing),
    ("ib_send_lat", "-x 0 -n 200", ReliesOn::Nothing),
    // It waits for one byte of memory and checks no other.
    ("ib_write_lat", "-x 0 -n 200", ReliesOn::Nothing),
    ("ib_read_lat", "-x 0 -n 200", ReliesOn::Nothing),
    ("ib_atomic_lat", "-x 0 -n 200", ReliesOn::Nothing),
    // Its messages may be lost, because it waits for none.
    ("ib_write_bw", "-x 0 -n 1000 -c UC", ReliesOn::Nothing),
    ("ibv_uc_pingpong", "-g 0 -c", ReliesOn::EveryMessage),
    ("ibv_ud_pingpong", "-g 0 -c", ReliesOn::EveryMessage),
    ("ib_send_bw", "-x 0 -n 1000 -c UD", ReliesOn::EveryMessage),
    ("ib_send_bw", "-x 0 -n 1000 -c UC", ReliesOn::EveryMessage),
    ("ib_send_lat", "-x 0 -n 200 -c UD", ReliesOn::EveryMessage),
    ("ib_send_lat", "-x 0 -n 200 -c UC", ReliesOn::EveryMessage),
    ("ib_write_lat", "-x 0 -n 200 -c UC", ReliesOn::EveryMessage),
];

/// The programs that run without `--all`.
const SLICE: [&str; 7] = [
    "ibv_rc_pingpong -g 0 -c -e",
    "ibv_srq_pingpong -g 0 -c",
    "ibv_ud_pingpong -g 0 -c",
    "ib_send_bw -x 0 -n 1000 -e",
    "ib_write_lat -x 0 -n 200",
    "ib_read_bw -x 0 -n 1000",
    "ib_atomic_bw -x 0 -n 1000",
];

/// The command line.
struct Options {
    all: bool,
    seed: u64,
    words: Vec<String>,
}

impl Options {
    fn read() -> Result<Self, String> {
        let mut options = Self { all: false, seed: 1, words: Vec::new() };
        let mut args = report::arguments();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--all" => options.all = true,
                "--seed" => {
                    let value = args.next().ok_or("--seed wants a value")?;
                    options.seed = value.parse().map_err(|e| format!("--seed: {e}"))?;
                }
                _ => options.words.push(arg),
            }
        }
        Ok(options)
    }

    fn seeds(&self, all: u64) -> std::ops::Range<u64> {
        self.seed..self.seed + if self.all { all } else { 1 }
    }
}

pub(crate) fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let mut checks = vec![Check::new("seed is printed, and random if none is given", seed_is_printed)];
    checks.push(Check::new("wrong seeds and names are explained", wrong_options_are_explained));
    for seed in options.seeds(10) {
        checks.extend(programs(&options, seed));
        checks.extend(librdmacm_programs(&options, seed));
    }
    if options.all {
        checks.extend(options.seeds(3).map(pyverbs));
    }
    report::run(checks, &options.words)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(19_800);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn programs(options: &Options, seed: u64) -> Vec<Check> {
    let mut checks = Vec::new();
    for (tool, args, relies) in PROGRAMS {
        let name = format!("{tool} {args}");
        if options.all || !options.words.is_empty() || SLICE.contains(&&*name) {
            let weakest = format!("{seed}{}", relies.omitted_weaknesses());
            checks.push(Check::new(format!("{name}, --weakest={weakest}"), move || run_pair(tool, args, &weakest)));
        }
    }
    checks
}

/// Runs server and client of one stock program.
fn run_pair(tool: &str, args: &str, weakest: &str) -> Verdict {
    if !pair::installed(tool) {
        return Verdict::not_installed(tool);
    }
    let port = port();
    let server = Program::parse(&format!("{tool} {args} -p {port}"));
    let client = Program::parse(&format!("{tool} {args} -p {port} 127.0.0.1"));
    let launch = Launch { options: vec![format!("--weakest={weakest}")], ..Launch::default() };
    let ready = || pair::listens(port);
    match pair::run_pair_with([(&server, &launch), (&client, &launch)], &port.to_string(), ready, TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok([s, c]) if s.ok && c.ok && !c.output.contains("invalid data") => Verdict::Passed,
        Ok([s, c]) => Verdict::Failed(format!("{}\n{}", s.transcript(), c.transcript())),
    }
}

/// Returns the checks of stock programs that connect through librdmacm.
fn librdmacm_programs(options: &Options, seed: u64) -> Vec<Check> {
    const SLICE: [&str; 3] = ["rping -c -a SERVER -p PORT -C", "ucmatose -s SERVER", "rdma_client"];
    let mut checks = Vec::new();
    for exchange in list::all(Scale::Small) {
        // Programs with datagrams wait for all of them.
        let relies = match exchange.transport {
            Transport::Reliable if exchange.to_string().contains("rdma_xclient") => ReliesOn::InlineRoom,
            Transport::Reliable => ReliesOn::Nothing,
            Transport::Datagrams | Transport::Multicast => ReliesOn::EveryMessage,
        };
        let is_here = exchange.ips.contains(&Ip::V4) && exchange.ready == Ready::Listens;
        let name = exchange.to_string();
        let chosen = options.all || !options.words.is_empty() || SLICE.iter().any(|part| name.contains(part));
        if is_here && chosen {
            let weakest = format!("{seed}{}", relies.omitted_weaknesses());
            let launch = Launch { options: vec![format!("--weakest={weakest}")], ..Launch::default() };
            let end = local::Host { launch, address: "127.0.0.1".to_owned(), namespace_pid: std::process::id() };
            let link = Link { name: "lo", ip: Ip::V4, server: end.clone(), client: end };
            let run = move || local::run(&link, Faults::Clean, &exchange);
            checks.push(Check::new(format!("{name}, --weakest={weakest}"), run));
        }
    }
    checks
}

/// Returns the check of rdma-core's own suite, without loss, because its tests wait for every
/// datagram.
fn pyverbs(seed: u64) -> Check {
    Check::new(format!("pyverbs, --weakest={seed},-loss"), move || {
        if !pyverbs::is_installed() {
            return Verdict::not_installed("python3-pyverbs");
        }
        if let Err(e) = pyverbs::unpack() {
            return Verdict::Failed(e.to_string());
        }
        let weakest = format!("{seed},-loss");
        let run = Run::new(&[], &[("ROXE_WEAKEST", weakest.as_str())], SUITE_LIMIT);
        let wrong =
            run.results().iter().filter(|(_, result)| matches!(result, TestResult::Failed(_) | TestResult::Unknown));
        let wrong: Vec<_> = wrong.map(|(test, result)| format!("{test}: {result:?}{}", run.traceback(test))).collect();
        match run.check_count() {
            Ok(()) if wrong.is_empty() => Verdict::Passed,
            Ok(()) => Verdict::Failed(wrong.join("\n")),
            Err(why) => Verdict::Failed(format!("{why}\n{}", wrong.join("\n"))),
        }
    })
}

/// Returns the output of `ibv_devinfo` with this option of `roxe run`.
fn devinfo(option: &str) -> Result<String, Verdict> {
    if !pair::installed("ibv_devinfo") {
        return Err(Verdict::not_installed("ibv_devinfo"));
    }
    let launch = Launch { options: vec![option.to_owned()], ..Launch::default() };
    let ran = pair::run_with(&Program::parse("ibv_devinfo -v"), &launch, TIME_LIMIT);
    ran.map(|outcome| outcome.output).map_err(|e| Verdict::Failed(e.to_string()))
}

fn seed_is_printed() -> Verdict {
    let judge = || {
        let (named, drawn) = (devinfo("--weakest=42")?, devinfo("--weakest")?);
        let seed_line =
            |output: &str| output.lines().find(|line| line.starts_with("roxe: weakest: seed")).map(str::to_owned);
        let is_small = named.contains("atomic_cap:\t\t\tATOMIC_HCA (1)") && named.contains("max_sge:\t\t\t6");
        let is_drawn = seed_line(&drawn).is_some_and(|line| line != "roxe: weakest: seed 42");
        match seed_line(&named).as_deref() {
            Some("roxe: weakest: seed 42") if is_small && is_drawn => Ok(Verdict::Passed),
            _ => Err(Verdict::Failed(format!("{named}\n{drawn}"))),
        }
    };
    judge().unwrap_or_else(|verdict| verdict)
}

fn wrong_options_are_explained() -> Verdict {
    for (option, word) in [("--weakest=42,-los", "placement, completions"), ("--weakest=4x", "4x is not a seed")] {
        match devinfo(option) {
            Ok(output) if output.contains("wrong --weakest") && output.contains(word) => {}
            Ok(output) => return Verdict::Failed(output),
            Err(verdict) => return verdict,
        }
    }
    Verdict::Passed
}
