//! Checks that roxe on this host and the Linux kernel's rxe in a QEMU guest interoperate: the
//! matrix of cells, and Debian's stock programs.
//!
//! Without arguments, as for every change, runs a few cells of every operation and condition, and a
//! few stock programs.
//!
//! ```text
//! kernel_rxe [--slice|--all] [--seed N] [--capture FOLDER] [WORD...]
//!   --slice            cells of every size and path MTU, and stock programs of every kind
//!   --all              every cell and every stock program
//!   --seed N           message bytes and fault rules of an earlier run (a run prints its seed)
//!   --capture FOLDER   capture every packet of roxe's side and let tshark check them
//!   WORD...            only cells and programs with every WORD in their name, such as 'roxe->rxe'
//!                      netem 'RC read' 'mtu=256'
//! ```
//!
//! Needs root, the packages that `tests/run` installs, and the network on first use to fetch a
//! kernel.

use roxe_tests::build;
use roxe_tests::guest::{Guest, kernel::Kernel, link};
use roxe_tests::matrix::agents::{self, Agents};
use roxe_tests::matrix::rdmacm::{self, InteropExchange};
use roxe_tests::matrix::report::{self, Count, Results};
use roxe_tests::matrix::run::Runner;
use roxe_tests::matrix::stock::{self, ProgramResult, Stock};
use roxe_tests::matrix::{Ending, GroupResult, capture, plan};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// The command line.
#[derive(Default)]
struct Options {
    all: bool,
    slice: bool,
    list: bool,
    seed: Option<u64>,
    capture: Option<PathBuf>,
    words: Vec<String>,
}

impl Options {
    fn read() -> Result<Self, String> {
        let (mut options, mut args) = (Self::default(), roxe_tests::report::arguments());
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
            match arg.as_str() {
                "--all" => options.all = true,
                "--slice" => options.slice = true,
                "--list" => options.list = true,
                "--seed" => options.seed = Some(value()?.parse().map_err(|e| format!("--seed: {e}"))?),
                "--capture" => options.capture = Some(value()?.into()),
                // Options of the usual test harness that runners pass along.
                flag if flag.starts_with('-') => {}
                _ => options.words.push(arg),
            }
        }
        Ok(options)
    }
}

/// The cells and programs of this run.
struct Plan {
    groups: Vec<plan::PlannedGroup>,
    stock: Vec<Stock>,
    agents: Vec<Agents>,
    rdmacm: Vec<InteropExchange>,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let (groups, mut stock, mut agents, mut rdmacm) = if options.all || !options.words.is_empty() {
            (plan::all(), stock::all(), agents::all(), rdmacm::all())
        } else if options.slice {
            (plan::slice(), stock::slice(), agents::slice(), rdmacm::slice())
        } else {
            (plan::few(), stock::few(), Vec::new(), rdmacm::few())
        };
        let wanted = |name: &str| options.words.iter().all(|word| name.contains(word));
        stock.retain(|s| wanted(&s.name()));
        agents.retain(|a| wanted(&a.name()));
        rdmacm.retain(|m| wanted(&m.name()));
        Self { groups: plan::only(groups, &options.words), stock, agents, rdmacm }
    }

    /// Returns the names of all programs.
    fn programs(&self) -> impl Iterator<Item = String> {
        let agents = self.agents.iter().map(Agents::name);
        self.stock.iter().map(Stock::name).chain(agents).chain(self.rdmacm.iter().map(InteropExchange::name))
    }

    fn list(&self) {
        for (group, cells) in &self.groups {
            cells.iter().for_each(|cell| println!("{group} {cell}: test"));
        }
        self.programs().for_each(|name| println!("{name}: test"));
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
    let plan = Plan::new(&options);
    if options.list {
        plan.list();
        return ExitCode::SUCCESS;
    }
    if options.capture.is_some()
        && let Err(why) = capture::available()
    {
        eprintln!("{why}");
        return ExitCode::from(2);
    }
    // Prepare the kernel and the product before entering the namespace, which has no network.
    let kernel = match Kernel::prepare() {
        Ok(kernel) => kernel,
        Err(why) => return skipped(&plan, &why.0),
    };
    build::roxe();
    match link::enter().and_then(|()| run(&options, &plan, &kernel)) {
        Ok(results) => conclude(&results),
        Err(e) => {
            println!("FAILED   {e}\n0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

fn skipped(plan: &Plan, why: &str) -> ExitCode {
    let mut count = plan.programs().count();
    for (group, cells) in &plan.groups {
        println!("skipped  {group} ({} cells): {why}", cells.len());
        count += cells.len();
    }
    plan.programs().for_each(|name| println!("skipped  {name}: {why}"));
    println!("0 passed, 0 failed, {count} skipped");
    ExitCode::SUCCESS
}

fn run(options: &Options, plan: &Plan, kernel: &Kernel) -> io::Result<Results> {
    let start = Instant::now();
    let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    println!("seed {seed} (--seed {seed} repeats it)");
    let guest = Guest::boot(kernel)?;
    println!("guest with Linux {} up after {:.1} s", kernel.version, start.elapsed().as_secs_f32());
    let mut runner = Runner::new(guest, seed, options.capture.clone());
    let mut results = Results { seed, kernel: kernel.version.clone(), ..Results::default() };
    for (group, cells) in &plan.groups {
        let judged = runner.group(*group, cells);
        print_group(&judged);
        results.groups.push(judged);
    }
    for stock in &plan.stock {
        let shown = stock.run(&mut runner);
        print_result(&shown);
        results.stock.push(shown);
    }
    for agents in &plan.agents {
        let shown = agents.run(&mut runner);
        print_result(&shown);
        results.stock.push(shown);
    }
    results.stock.extend(rdmacm::run(&plan.rdmacm, &mut runner, print_result)?);
    println!("took {:.0} s", start.elapsed().as_secs_f32());
    Ok(results)
}

fn print_group(judged: &GroupResult) {
    let count = Count::of(judged.cells.iter().map(|t| &t.ending));
    let cells = judged.cells.len();
    println!("{}: {} of {cells} cells passed in {:.1} s", judged.group, count.passed, judged.seconds);
    for t in &judged.cells {
        print!("{}", report::exception(&format!("{} {}", judged.group, t.cell), &t.ending));
    }
    print!("{}", capture_lines(judged.capture.as_ref()));
}

/// Prints the result of a program in one call, because programs may end at the same time.
fn print_result(result: &ProgramResult) {
    let ending = match result.ending {
        Ending::Passed if result.tries == 1 => format!("ok       {} ({:.1} s)\n", result.name, result.seconds),
        Ending::Passed => format!("ok       {} ({:.1} s, {} tries)\n", result.name, result.seconds, result.tries),
        _ => report::exception(&result.name, &result.ending),
    };
    print!("{ending}{}", capture_lines(result.capture.as_ref()));
}

fn capture_lines(capture: Option<&capture::Verdict>) -> String {
    let Some(v) = capture else { return String::new() };
    let head = format!("         {} packets, {} bad by tshark's judgement\n", v.packets, v.bad);
    v.examples.lines().fold(head, |text, line| format!("{text}         | {line}\n"))
}

fn conclude(results: &Results) -> ExitCode {
    println!("{}", results.table());
    let folder = build::target_dir().join("interop");
    match results.write(&folder) {
        Ok(()) => println!("result: {}/matrix.txt, matrix.json, matrix.xml (JUnit)", folder.display()),
        Err(e) => println!("cannot write {}: {e}", folder.display()),
    }
    print!("{}", results.summary());
    if results.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
