//! Runs named checks one after the other and prints a line for each and a closing count.

use std::process::ExitCode;
use std::time::Instant;

/// How a check ended.
#[derive(Debug)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not; the text says what was seen.
    Failed(String),
    /// It could not be tried here; the text says why.
    Skipped(String),
}

/// A named check.
pub struct Check {
    /// What a filter on the command line matches.
    pub name: String,
    /// Does the work.
    pub run: Box<dyn Fn() -> Verdict>,
}

impl Check {
    /// A check called `name`.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Verdict + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// [`run`] with the words on the command line.
pub fn main(checks: Vec<Check>) -> ExitCode {
    run(checks, &std::env::args().skip(1).collect::<Vec<_>>())
}

/// Runs the checks whose name contains one of `words` (all, without words).
///
/// `--list` prints the names; other options, which test runners pass along, are ignored.
pub fn run(checks: Vec<Check>, words: &[String]) -> ExitCode {
    if words.iter().any(|w| w == "--list") {
        checks.iter().for_each(|c| println!("{}: test", c.name));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = words.iter().filter(|w| !w.starts_with('-')).collect();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for check in checks.iter().filter(|c| filters.is_empty() || filters.iter().any(|f| c.name.contains(*f))) {
        let start = Instant::now();
        let verdict = (check.run)();
        let seconds = start.elapsed().as_secs_f32();
        match verdict {
            Verdict::Passed => {
                passed += 1;
                println!("ok       {} ({seconds:.1} s)", check.name);
            }
            Verdict::Failed(why) => {
                failed += 1;
                println!("FAILED   {} ({seconds:.1} s)\n{}", check.name, indent(&why));
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                println!("skipped  {}: {why}", check.name);
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("         | {line}\n")).collect()
}
