//! The catalogue of conformance cases, run against a target.
//!
//! A file of known deviations lists cases that may fail: `SCRIPT: REASON` or `SCRIPT [PARAMETERS]:
//! REASON`; `SCRIPT` may end in `*`, and `#` begins a comment.

use crate::run::{self, Failure, Outcome, Verdict};
use crate::script::{Script, ScriptError};
use crate::target::Target;
use std::time::{Duration, Instant};

/// Name and text of each script of `tests/conform`, which the build script lists.
const CASES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cases.rs"));

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Name of the script, such as `responder/gap_nak`.
    pub script: String,
    /// Title of the script.
    pub title: String,
    /// Clauses that the script cites.
    pub clauses: Vec<String>,
    /// Values of loops.
    pub parameters: String,
    /// Outcome of the last run.
    pub outcome: Outcome,
    /// Number of runs.
    pub tries: u32,
    /// Time of all runs.
    pub took: Duration,
}

impl Tried {
    /// Returns the script with the values of loops.
    pub fn name(&self) -> String {
        if self.parameters.is_empty() { self.script.clone() } else { format!("{} [{}]", self.script, self.parameters) }
    }
}

/// The results of several cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the card.
    pub target: String,
    /// Facts about the run, such as the driver of the card: names and values.
    pub facts: Vec<(String, String)>,
    /// Cases, in the order they ran.
    pub tried: Vec<Tried>,
    /// Number of cases that did not run because the agent was lost.
    pub not_run: Option<usize>,
}

impl Report {
    /// Returns the number of cases whose verdict has this word.
    pub fn count(&self, word: &str) -> usize {
        self.tried.iter().filter(|tried| tried.outcome.verdict.word() == word).count()
    }

    /// Returns true if every case ran and none failed or was inconclusive.
    pub fn is_good(&self) -> bool {
        self.not_run.is_none() && self.tried.iter().all(|tried| tried.outcome.verdict.is_good())
    }

    /// Returns an explanation if the agent was lost.
    pub fn lost(&self) -> Option<String> {
        let (last, not_run) = (self.tried.last()?, self.not_run?);
        Some(format!(
            "the agent has stopped answering in {}: its host may have crashed, its console says so; {not_run} more \
             cases were not run (`--skip {}` leaves this script out)",
            last.name(),
            last.script
        ))
    }
}

/// Returns the scripts of the catalogue whose name contains one of `filters`; without filters, all.
///
/// # Errors
/// If a script of the catalogue is invalid, which a test excludes.
pub fn catalogue(filters: &[String]) -> Result<Vec<Script>, ScriptError> {
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let cases = CASES.iter().filter(|(name, _)| wanted(name));
    cases.map(|(name, text)| Script::parse(name, text)).collect()
}

/// Progress of [`run()`].
#[derive(Debug)]
pub enum Progress<'a> {
    /// A case begins: its script, and values of loops.
    Begins(&'a Script, &'a str),
    /// A case has ended.
    Ended(&'a Tried),
}

/// Tolerated delay of the judge, shorter than any timer of a case.
const ON_TIME: Duration = Duration::from_millis(20);
/// Most tries of a case.
const TRIES: u32 = 6;

/// Calls `run` for a case until the verdict is certain: a card fails if it fails twice while the
/// judge is on time, before it passes twice. If the judge is late too often, the case is
/// inconclusive. Returns the outcome and the number of runs.
fn judge(mut run: impl FnMut() -> Outcome) -> (Outcome, u32) {
    let (mut failed, mut passed) = (None, false);
    let mut tries = 0;
    loop {
        tries += 1;
        let mut outcome = run();
        let is_late = outcome.late > ON_TIME;
        match &outcome.verdict {
            Verdict::Fail(_) if !is_late && failed.is_some() => return (outcome, tries),
            Verdict::Fail(_) if !is_late && tries < TRIES => failed = Some(outcome),
            Verdict::Fail(failure) if tries >= TRIES => {
                let failure = failure.clone();
                if is_late {
                    let received = format!("{}; the judge was late by {:.0?}", failure.received, outcome.late);
                    outcome.verdict = Verdict::Inconclusive(Failure { received, ..failure });
                }
                return (outcome, tries);
            }
            Verdict::Fail(_) => {}
            Verdict::Pass if failed.is_some() && !std::mem::replace(&mut passed, true) && tries < TRIES => {}
            // The target is lost, maybe because of the failure.
            Verdict::Inconclusive(_) => return (failed.unwrap_or(outcome), tries),
            _ => return (outcome, tries),
        }
    }
}

/// Runs all cases of `scripts`; calls `progress` at begin and end of each.
pub fn run(
    scripts: &[Script],
    target: &mut dyn Target,
    deviations: &Deviations,
    mut progress: impl FnMut(Progress<'_>),
) -> Report {
    let name = target.card(false).or_else(|| target.card(true)).map_or_else(String::new, |card| card.name);
    let mut report = Report { target: name, facts: target.identity(), tried: Vec::new(), not_run: None };
    let all: usize = scripts.iter().map(|script| script.cases().len()).sum();
    for script in scripts {
        for case in script.cases() {
            let (start, parameters) = (Instant::now(), case.to_string());
            progress(Progress::Begins(script, &parameters));
            let (mut outcome, tries) = judge(|| run::run(script.name(), case, target));
            if let (Verdict::Fail(failure), Some(reason)) =
                (&outcome.verdict, deviations.reason(script.name(), &parameters))
            {
                outcome.verdict = Verdict::Tolerated(reason.to_owned(), failure.clone());
            }
            let tried = Tried {
                script: script.name().into(),
                title: script.title().into(),
                clauses: script.clauses().to_vec(),
                parameters,
                outcome,
                tries,
                took: start.elapsed(),
            };
            progress(Progress::Ended(&tried));
            report.tried.push(tried);
            if target.is_lost() {
                report.not_run = Some(all - report.tried.len());
                return report;
            }
        }
    }
    report
}

/// Known deviations of a card.
#[derive(Clone, Debug, Default)]
pub struct Deviations(Vec<Deviation>);

#[derive(Clone, Debug)]
struct Deviation {
    script: String,
    parameters: Option<String>,
    reason: String,
}

impl Deviations {
    /// Parses a file.
    ///
    /// # Errors
    /// If a line is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
        let read = lines.filter(|(_, line)| !line.starts_with('#')).map(|(number, line)| {
            let wrong = || format!("line {number} is not `SCRIPT: REASON`: {line}");
            let (case, reason) = line.split_once(": ").ok_or_else(wrong)?;
            let (script, parameters) = match case.split_once(" [") {
                Some((script, rest)) => (script, Some(rest.strip_suffix(']').ok_or_else(wrong)?.to_owned())),
                None => (case, None),
            };
            Ok(Deviation { script: script.into(), parameters, reason: reason.trim().into() })
        });
        read.collect::<Result<_, String>>().map(Self)
    }

    /// Returns the reason why this case may fail.
    pub(crate) fn reason(&self, script: &str, parameters: &str) -> Option<&str> {
        let is_it = |deviation: &&Deviation| {
            let named = match deviation.script.strip_suffix('*') {
                Some(start) => script.starts_with(start),
                None => script == deviation.script,
            };
            named && deviation.parameters.as_ref().is_none_or(|wanted| wanted == parameters)
        };
        self.0.iter().find(is_it).map(|deviation| deviation.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;

    /// Returns word and number of runs of a case whose runs end like this: `F` fails, `P` passes,
    /// `l` fails while the judge is late, `i` finds no target.
    fn judged(ends: &str) -> (&'static str, u32) {
        let mut ends = ends.chars();
        let run = || {
            let (verdict, late) = match ends.next() {
                Some('P') => (Verdict::Pass, 0),
                Some('F') => (Verdict::Fail(Failure::default()), 0),
                Some('i') => (Verdict::Inconclusive(Failure::default()), 0),
                Some('l') => (Verdict::Fail(Failure::default()), 95),
                other => panic!("run again: {other:?}"),
            };
            Outcome { verdict, log: Log::default(), late: Duration::from_millis(late) }
        };
        let (outcome, tries) = judge(run);
        (outcome.verdict.word(), tries)
    }

    #[test]
    fn case_fails_only_twice_on_time() {
        assert_eq!(judged("P"), ("pass", 1));
        assert_eq!(judged("FF"), ("FAIL", 2));
        assert_eq!(judged("FPF"), ("FAIL", 3));
        assert_eq!(judged("FPP"), ("pass", 3));
        assert_eq!(judged("Fi"), ("FAIL", 2), "the failure crashed the card");
    }

    #[test]
    fn late_judge_retries_and_is_inconclusive() {
        assert_eq!(judged("lP"), ("pass", 2));
        assert_eq!(judged("llFF"), ("FAIL", 4));
        assert_eq!(judged("llllll"), ("inconclusive", 6));
        assert_eq!(judged("Flllll"), ("inconclusive", 6));
    }

    #[test]
    fn deviation_matches_script_prefix_or_case() {
        let text = "# rxe\nud/*: no groups\n\nresponder/rnr [timer=0]: rounds up\nresponder/gap: never\n";
        let deviations = Deviations::parse(text).unwrap();
        assert_eq!(deviations.reason("ud/group", "a=1"), Some("no groups"));
        assert_eq!(deviations.reason("responder/rnr", "timer=0"), Some("rounds up"));
        assert_eq!(deviations.reason("responder/rnr", "timer=1"), None);
        assert_eq!(deviations.reason("responder/gap", "psn=3"), Some("never"));
        assert_eq!(deviations.reason("responder/gap_nak", ""), None);
    }

    #[test]
    fn deviation_without_reason_is_refused() {
        let error = Deviations::parse("\nresponder/rnr\n").unwrap_err();
        assert_eq!(error, "line 2 is not `SCRIPT: REASON`: responder/rnr");
    }
}
