//! Runs named checks: first those that use the processors, in sequence, then those that mostly
//! wait, in parallel. Prints a line for each and a summary.

use crate::junit::{self, Case};
use crate::{build, parallel};
use std::fmt::Display;
use std::fs;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of waiting checks that run at once. More would overload the processors.
const PARALLEL_CHECKS: usize = 8;

/// Time limit of a check: several times the duration of the slowest check on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(1200);

/// Option that stops a suite at its first failure.
pub const FAIL_FAST: &str = "--fail-fast";

/// Returns the last `count` lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Result of a check.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The check passed.
    Passed,
    /// The check failed with this observation.
    Failed(String),
    /// The check cannot run on this host, for this reason.
    Skipped(String),
}

impl Verdict {
    /// Returns the verdict of a check that needs the missing program or package `name`.
    pub fn not_installed(name: impl Display) -> Self {
        Self::Skipped(format!("{name} is not installed (tests/run installs it)"))
    }
}

impl From<Result<(), String>> for Verdict {
    /// Returns a failure with the text of the error.
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

/// A named check.
pub struct Check {
    /// Name; the command line selects checks by parts of it.
    pub name: String,
    /// Runs the check.
    pub run: Box<dyn Fn() -> Verdict + Send + Sync>,
    /// True if the check mostly waits, and may run in parallel with other such checks.
    is_waiting: bool,
}

impl Check {
    /// Creates a check called `name`.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Verdict + Send + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run), is_waiting: false }
    }

    /// Marks this check, if `is_waiting`, as one that mostly waits. It may run in parallel with
    /// other such checks, because it shares nothing with them.
    pub fn waiting_if(self, is_waiting: bool) -> Self {
        Self { is_waiting, ..self }
    }
}

/// Returns the arguments after the suite's name.
pub fn arguments() -> impl Iterator<Item = String> {
    std::env::args().skip(2)
}

/// Calls [`run`] with the [`arguments`].
pub fn main(checks: Vec<Check>) -> ExitCode {
    run(checks, &arguments().collect::<Vec<_>>())
}

/// Runs the checks whose name contains one of `words`, or all checks if there are no words.
///
/// `--list` prints the names instead. With [`FAIL_FAST`] no check starts after a failure. Other
/// options belong to the suite and are ignored.
pub fn run(checks: Vec<Check>, words: &[String]) -> ExitCode {
    if words.iter().any(|w| w == "--list") {
        checks.iter().for_each(|c| println!("{}: test", c.name));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = words.iter().filter(|w| !w.starts_with('-')).collect();
    let selected = checks.into_iter().filter(|c| filters.is_empty() || filters.iter().any(|f| c.name.contains(*f)));
    let (waiting, sequential): (Vec<Check>, Vec<Check>) = selected.partition(|check| check.is_waiting);
    start_watchdog();
    let (is_stopped, fail_fast) = (AtomicBool::new(false), std::env::args().any(|word| word == FAIL_FAST));
    let run_check = |check: &Check| {
        if is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        let result = run_and_print(check);
        if fail_fast && matches!(result, (Verdict::Failed(_), _)) {
            is_stopped.store(true, Ordering::Relaxed);
        }
        Some(result)
    };
    let mut results: Vec<_> = sequential.iter().map(run_check).collect();
    results.extend(parallel::run(&waiting, PARALLEL_CHECKS, run_check));
    let outcomes = sequential.iter().chain(&waiting).zip(&results);
    let cases = outcomes.filter_map(|(check, result)| {
        let (verdict, seconds) = result.as_ref()?;
        Some(Case { name: check.name.clone(), seconds: *seconds, verdict })
    });
    let cases: Vec<_> = cases.collect();
    if let Err(e) = write_junit(&cases) {
        println!("the results could not be written as JUnit: {e}");
    }
    let count = |is_counted: fn(&Verdict) -> bool| cases.iter().filter(|case| is_counted(case.verdict)).count();
    let passed = count(|v| matches!(v, Verdict::Passed));
    let failed = count(|v| matches!(v, Verdict::Failed(_)));
    let skipped = count(|v| matches!(v, Verdict::Skipped(_)));
    let not_run = match results.len() - passed - failed - skipped {
        0 => String::new(),
        count => format!(", {count} not run"),
    };
    println!("{passed} passed, {failed} failed, {skipped} skipped{not_run}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes `target/suites/SUITE.xml`.
fn write_junit(cases: &[Case<'_>]) -> io::Result<()> {
    let (suite, folder) = (suite_name(), build::target_dir().join("suites"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("{suite}.xml")), junit::document(&[junit::suite(&suite, cases, None)]))
}

/// Running checks with their start times.
static RUNNING: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<(String, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that ends the process when a check exceeds [`TIME_LIMIT`]. The thread does not
/// allocate while it waits, because some checks count allocations.
fn start_watchdog() {
    let started = Arc::new(Barrier::new(2));
    let in_thread = Arc::clone(&started);
    thread::spawn(move || {
        in_thread.wait();
        loop {
            thread::sleep(Duration::from_secs(1));
            if let Some((name, _)) = running().iter().find(|(_, since)| since.elapsed() > TIME_LIMIT) {
                println!("FAILED   {name}: not done after {TIME_LIMIT:?}\n         repeat: {}", repeat_command(name));
                std::process::exit(1);
            }
        }
    });
    started.wait();
}

/// Runs a check, prints its result, and returns it with its duration in seconds.
fn run_and_print(check: &Check) -> (Verdict, f32) {
    let start = Instant::now();
    running().push((check.name.clone(), start));
    let verdict = (check.run)();
    running().retain(|(name, _)| *name != check.name);
    let (name, seconds) = (&check.name, start.elapsed().as_secs_f32());
    match &verdict {
        Verdict::Passed => println!("ok       {name} ({seconds:.1} s)"),
        Verdict::Failed(why) => {
            println!("FAILED   {name} ({seconds:.1} s)\n{}         repeat: {}", indent(why), repeat_command(name));
        }
        Verdict::Skipped(why) => println!("skipped  {name}: {why}"),
    }
    (verdict, seconds)
}

/// Returns the name of the running suite.
fn suite_name() -> String {
    std::env::args().nth(1).unwrap_or_default()
}

/// Returns the command that repeats one check.
fn repeat_command(name: &str) -> String {
    let suite = suite_name();
    format!("cargo test -p roxe-tests --test suites -- {suite} '{}'", name.replace('\'', "'\\''"))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("         | {line}\n")).collect()
}
