//! Runs named checks one after the other, those that mostly wait beside each other, and prints a
//! line for each and a closing count.

use crate::junit::{self, Case};
use crate::{build, lanes};
use std::fs;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many checks that mostly wait run at once: their programs need some processor time each.
const LANES: usize = 8;

/// How long a check may take. The longest takes three minutes on a machine that does nothing else.
const LIMIT: Duration = Duration::from_secs(1200);

/// The option that ends a suite at its first failure.
pub const FAIL_FAST: &str = "--fail-fast";

/// How a check ended.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not; the text says what was seen.
    Failed(String),
    /// It could not be tried here; the text says why.
    Skipped(String),
}

impl From<Result<(), String>> for Verdict {
    /// An error says what was seen.
    fn from(judged: Result<(), String>) -> Self {
        judged.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

/// A named check.
pub struct Check {
    /// What a filter on the command line matches.
    pub name: String,
    /// Does the work.
    pub run: Box<dyn Fn() -> Verdict + Send + Sync>,
    /// Whether it mostly waits, and shares nothing with others that do.
    waits: bool,
}

impl Check {
    /// A check called `name`.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Verdict + Send + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run), waits: false }
    }

    /// One that mostly waits, if it `waits`, and shares nothing with others of that kind: it runs
    /// beside them, after all that do not.
    pub fn that_waits(self, waits: bool) -> Self {
        Self { waits, ..self }
    }
}

/// The options and words of a suite: the arguments behind its name.
pub fn words() -> impl Iterator<Item = String> {
    std::env::args().skip(2)
}

/// [`run`] with [`words`].
pub fn main(checks: Vec<Check>) -> ExitCode {
    run(checks, &words().collect::<Vec<_>>())
}

/// Runs the checks whose name contains one of `words` (all, without words).
///
/// `--list` prints the names; with [`FAIL_FAST`] no check begins after one has failed; other
/// options, which are for the suite, are ignored.
pub fn run(checks: Vec<Check>, words: &[String]) -> ExitCode {
    if words.iter().any(|w| w == "--list") {
        checks.iter().for_each(|c| println!("{}: test", c.name));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = words.iter().filter(|w| !w.starts_with('-')).collect();
    let chosen = checks.into_iter().filter(|c| filters.is_empty() || filters.iter().any(|f| c.name.contains(*f)));
    let (waiting, alone): (Vec<Check>, Vec<Check>) = chosen.partition(|check| check.waits);
    limit_checks();
    let (is_over, fail_fast) = (AtomicBool::new(false), std::env::args().any(|word| word == FAIL_FAST));
    let judge = |check: &Check| {
        if is_over.load(Ordering::Relaxed) {
            return None;
        }
        let ended = tell(check);
        if fail_fast && matches!(ended, (Verdict::Failed(_), _)) {
            is_over.store(true, Ordering::Relaxed);
        }
        Some(ended)
    };
    let mut verdicts: Vec<_> = alone.iter().map(judge).collect();
    verdicts.extend(lanes::run(&waiting, LANES, judge));
    let ended = alone.iter().chain(&waiting).zip(&verdicts);
    let cases = ended.filter_map(|(check, ended)| {
        let (verdict, seconds) = ended.as_ref()?;
        Some(Case { name: check.name.clone(), seconds: *seconds, verdict })
    });
    let cases: Vec<_> = cases.collect();
    if let Err(e) = write_junit(&cases) {
        println!("the results could not be written as JUnit: {e}");
    }
    let count = |of: fn(&Verdict) -> bool| cases.iter().filter(|case| of(case.verdict)).count();
    let passed = count(|v| matches!(v, Verdict::Passed));
    let failed = count(|v| matches!(v, Verdict::Failed(_)));
    let skipped = count(|v| matches!(v, Verdict::Skipped(_)));
    let left = verdicts.len() - passed - failed - skipped;
    let left = if left == 0 { String::new() } else { format!(", {left} not run") };
    println!("{passed} passed, {failed} failed, {skipped} skipped{left}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes `target/suites/SUITE.xml`.
fn write_junit(cases: &[Case<'_>]) -> io::Result<()> {
    let (suite, folder) = (suite(), build::target_dir().join("suites"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("{suite}.xml")), junit::document(&[junit::suite(&suite, cases, None)]))
}

/// The checks that run, and since when.
static RUNNING: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<(String, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when a check has taken longer than [`LIMIT`]. A thread of its own that
/// allocates nothing while it looks, as some checks count that.
fn limit_checks() {
    let started = Arc::new(Barrier::new(2));
    let starts = Arc::clone(&started);
    thread::spawn(move || {
        starts.wait();
        loop {
            thread::sleep(Duration::from_secs(1));
            if let Some((name, _)) = running().iter().find(|(_, since)| since.elapsed() > LIMIT) {
                println!("FAILED   {name}: not done after {LIMIT:?}\n         repeat: {}", repeat(name));
                std::process::exit(1);
            }
        }
    });
    started.wait();
}

/// Runs a check and says how it ended, in one piece, and after how many seconds.
fn tell(check: &Check) -> (Verdict, f32) {
    let start = Instant::now();
    running().push((check.name.clone(), start));
    let verdict = (check.run)();
    running().retain(|(name, _)| *name != check.name);
    let (name, seconds) = (&check.name, start.elapsed().as_secs_f32());
    match &verdict {
        Verdict::Passed => println!("ok       {name} ({seconds:.1} s)"),
        Verdict::Failed(why) => {
            println!("FAILED   {name} ({seconds:.1} s)\n{}         repeat: {}", indent(why), repeat(name));
        }
        Verdict::Skipped(why) => println!("skipped  {name}: {why}"),
    }
    (verdict, seconds)
}

/// The name of the suite that runs.
fn suite() -> String {
    std::env::args().nth(1).unwrap_or_default()
}

/// The command that runs one check again.
fn repeat(name: &str) -> String {
    let suite = suite();
    format!("cargo test -p roxe-tests --test suites -- {suite} '{}'", name.replace('\'', "'\\''"))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("         | {line}\n")).collect()
}
