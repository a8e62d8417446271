//! Runs the catalogue of conformance cases against a target.
//!
//! A file of known deviations lists cases that may fail: `SCRIPT: REASON` or `SCRIPT [PARAMETERS]:
//! REASON`; `SCRIPT` may end in `*`, and `#` begins a comment.

use crate::clauses::{self, Class, Clause};
use crate::run::{self, Failure, Outcome, Verdict};
use crate::script::{Case, Script, ScriptError};
use crate::target::Target;
use std::fmt;
use std::time::{Duration, Instant};

/// Name and text of each script in `tests/conform`; the build script generates this list.
const CASES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cases.rs"));

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Name of the script, such as `responder/gap_nak`.
    pub script: String,
    /// Title of the script.
    pub title: String,
    /// Clauses that the script cites; the script judges the first.
    pub clauses: Vec<String>,
    /// Class of the first clause.
    pub class: Class,
    /// Sources of the first clause.
    pub sources: String,
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
    /// Returns the name of the case: its script, with the values of loops if it has any.
    pub fn name(&self) -> String {
        case_name(&self.script, &self.parameters)
    }
}

/// Returns the name of a case: its script, with the values of loops if it has any.
pub(crate) fn case_name(script: &str, parameters: &str) -> String {
    if parameters.is_empty() { script.to_owned() } else { format!("{script} [{parameters}]") }
}

/// The results of several cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the card.
    pub target: String,
    /// Names and values that describe the card and the run, such as the driver.
    pub run_info: Vec<(String, String)>,
    /// Cases, in the order in which they ran.
    pub tried: Vec<Tried>,
    /// Number of cases that failed and passed, because the path loses packets or the card behaves
    /// differently from run to run.
    pub unsteady: usize,
    /// Set if the connection to the agent was lost.
    pub lost: Option<Lost>,
}

/// The loss of the connection to the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Name of the case during which the connection was lost.
    pub case: String,
    /// Script of that case.
    pub script: String,
    /// Number of cases that did not run.
    pub not_run: usize,
}

impl Lost {
    fn during(tried: &Tried, not_run: usize) -> Self {
        Self { case: tried.name(), script: tried.script.clone(), not_run }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, script, not_run } = self;
        write!(
            f,
            "the agent has stopped answering in {case}: its host may have crashed, its console says so; {not_run} \
             more cases were not run (`--skip {script}` leaves this script out)"
        )
    }
}

impl Report {
    /// Returns the number of cases whose verdict has this word.
    pub fn count(&self, word: &str) -> usize {
        self.tried.iter().filter(|tried| tried.outcome.verdict.word() == word).count()
    }

    /// Returns the cases of this class that failed.
    pub fn failed(&self, class: Class) -> impl Iterator<Item = &Tried> {
        let has_failed =
            move |tried: &&Tried| tried.class == class && matches!(tried.outcome.verdict, Verdict::Fail(_));
        self.tried.iter().filter(has_failed)
    }

    /// Returns true if every case ran and none failed or was inconclusive.
    pub fn is_good(&self) -> bool {
        self.lost.is_none() && self.tried.iter().all(|tried| tried.outcome.verdict.is_good())
    }
}

/// Returns the scripts of the catalogue whose name contains one of `filters`, or all without
/// filters. Fails if a script of the catalogue is invalid, which a test excludes.
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
    /// A failed case was run again, because the path turned out to lose packets.
    Again(&'a Tried),
}

/// Tolerated delay of the judge, shorter than any timer of a case.
const MAX_LATENESS: Duration = Duration::from_millis(20);
/// Maximum number of runs of a case.
const MAX_TRIES: u32 = 10;
/// Maximum number of packets of a run that can convict a card behind a lossy path: in a longer run,
/// the path often loses a packet.
const MAX_LOSSY_PACKETS: usize = 40;
/// Number of failures that convict a card.
const FAILURES: usize = 2;
/// Number of failures that convict a card behind a path that loses packets, where a loss often
/// fails a case although the card is right.
pub(crate) const LOSSY_FAILURES: usize = 4;
/// Number of passes after a failure that acquit a card.
const PASSES: u32 = 2;

/// The result of the runs of a case.
#[derive(Clone, Debug)]
struct Judged {
    outcome: Outcome,
    tries: u32,
    /// True if the case failed and passed while the judge was on time.
    is_mixed: bool,
}

/// Runs a case until its verdict is certain. A failure that is a known deviation is tolerated.
fn try_case(
    script: &Script,
    case: &Case,
    target: &mut dyn Target,
    deviations: &Deviations,
    is_lossy: bool,
) -> (Judged, Duration) {
    let start = Instant::now();
    let mut judged = judge(is_lossy, || run::run(script.name(), case, target));
    if let Verdict::Fail(failure) = &judged.outcome.verdict
        && let Some(reason) = deviations.reason(script.name(), &case.to_string())
    {
        judged.outcome.verdict = Verdict::Tolerated(reason.to_owned(), failure.clone());
    }
    (judged, start.elapsed())
}

/// Place of a failure: its step, the number of packets so far, opcode and PSN of the last packet.
#[derive(Debug, PartialEq, Eq)]
struct Place(String, usize, Option<(u8, [u8; 3])>);

impl Place {
    fn of(failure: &Failure, outcome: &Outcome) -> Self {
        let packets = outcome.log.packets();
        let last = packets.last().and_then(|packet| packet.datagram.bytes.first_chunk::<12>());
        let last = last.map(|bytes| (bytes[0], [bytes[9], bytes[10], bytes[11]]));
        Self(failure.at.clone(), packets.len(), last)
    }
}

/// Returns the number of failures at the most frequent place.
fn agreeing(places: &[Place]) -> usize {
    places.iter().map(|place| places.iter().filter(|other| *other == place).count()).max().unwrap_or_default()
}

/// Calls `run` for a case until the verdict is certain: a card fails if it fails [`FAILURES`] or
/// [`LOSSY_FAILURES`] times before it passes twice. A failure does not count if the judge was late;
/// after a failure that counts, a late pass does not count either. The case is inconclusive if
/// [`MAX_TRIES`] runs do not decide. On a lossy path, a failing case is also inconclusive if it is
/// long, or fails at different places, as it does when packets are lost.
fn judge(is_lossy: bool, mut run: impl FnMut() -> Outcome) -> Judged {
    let (mut tries, mut passes) = (0, 0);
    let (mut failed, mut places) = (None, Vec::new());
    let convicts = if is_lossy { LOSSY_FAILURES } else { FAILURES };
    loop {
        tries += 1;
        let outcome = run();
        let is_late = outcome.late > MAX_LATENESS;
        match &outcome.verdict {
            Verdict::Fail(failure) if !is_late => {
                places.push(Place::of(failure, &outcome));
                if places.len() >= convicts {
                    let is_long = outcome.log.packets().len() > MAX_LOSSY_PACKETS;
                    let is_loss = is_lossy && (is_long || agreeing(&places) + 1 < places.len());
                    let why = "packets are lost on the way, not always the same";
                    let outcome = if is_loss { inconclusive(outcome, why) } else { outcome };
                    return Judged { outcome, tries, is_mixed: passes > 0 };
                }
                failed = Some(outcome.clone());
            }
            Verdict::Pass if places.is_empty() => return Judged { outcome, tries, is_mixed: false },
            Verdict::Pass if !is_late => {
                passes += 1;
                if passes == PASSES {
                    return Judged { outcome, tries, is_mixed: true };
                }
            }
            Verdict::Fail(_) | Verdict::Pass => {}
            // The target is lost, maybe by the failure before. On a lossy path, that failure may
            // have been a lost packet.
            Verdict::Inconclusive(_) => {
                let outcome = failed.filter(|_| !is_lossy).unwrap_or(outcome);
                return Judged { outcome, tries, is_mixed: passes > 0 };
            }
            Verdict::Tolerated(..) | Verdict::Unsupported(_) => {
                return Judged { outcome, tries, is_mixed: passes > 0 };
            }
        }
        if tries >= MAX_TRIES {
            let is_pass = matches!(outcome.verdict, Verdict::Pass);
            let outcome = if is_pass { failed.unwrap_or(outcome) } else { outcome };
            let why = if outcome.late > MAX_LATENESS {
                format!("the judge was late by {:.0?}", outcome.late)
            } else {
                format!("{} of {tries} runs failed while the judge was on time", places.len())
            };
            return Judged { outcome: inconclusive(outcome, &why), tries, is_mixed: passes > 0 };
        }
    }
}

/// Returns a failed outcome as an inconclusive one for this reason.
fn inconclusive(mut outcome: Outcome, why: &str) -> Outcome {
    if let Verdict::Fail(failure) = outcome.verdict {
        let received = format!("{}; {why}", failure.received);
        outcome.verdict = Verdict::Inconclusive(Failure { received, ..failure });
    }
    outcome
}

/// Runs all cases of `scripts`; calls `progress` at the begin and at the end of each case.
pub fn run(
    scripts: &[Script],
    target: &mut dyn Target,
    deviations: &Deviations,
    mut progress: impl FnMut(Progress<'_>),
) -> Report {
    let name = target.card(false).or_else(|| target.card(true)).map_or_else(String::new, |card| card.name);
    let mut report = Report { target: name, run_info: target.identity(), tried: Vec::new(), unsteady: 0, lost: None };
    let cases: Vec<_> =
        scripts.iter().flat_map(|script| script.cases().iter().map(move |case| (script, case))).collect();
    let (known, mut judged_as_lossy) = (clauses::all(), Vec::new());
    for (script, case) in &cases {
        let parameters = case.to_string();
        progress(Progress::Begins(script, &parameters));
        let is_lossy = report.unsteady > 0;
        let (Judged { outcome, tries, is_mixed }, took) = try_case(script, case, target, deviations, is_lossy);
        let clause = script.clauses().first().and_then(|judged| known.get(judged));
        let tried = Tried {
            script: script.name().into(),
            title: script.title().into(),
            clauses: script.clauses().to_vec(),
            class: clause.map_or(Class::Advisory, Clause::class),
            sources: clause.map_or_else(String::new, |clause| clause.sources.clone()),
            parameters,
            outcome,
            tries,
            took,
        };
        progress(Progress::Ended(&tried));
        report.unsteady += usize::from(is_mixed);
        judged_as_lossy.push(is_lossy);
        if target.is_lost() {
            report.lost = Some(Lost::during(&tried, cases.len() - report.tried.len() - 1));
        }
        report.tried.push(tried);
        if report.lost.is_some() {
            return report;
        }
    }
    if report.unsteady == 0 {
        return report;
    }
    // The path loses packets. Cases that failed before this was known run again.
    for (tried, ((script, case), is_lossy)) in report.tried.iter_mut().zip(cases.iter().zip(judged_as_lossy)) {
        if !matches!(tried.outcome.verdict, Verdict::Fail(_)) || is_lossy {
            continue;
        }
        let (again, took) = try_case(script, case, target, deviations, true);
        (tried.tries, tried.took) = (tried.tries + again.tries, tried.took + took);
        if target.is_lost() {
            // The earlier verdict stands: the loss of the agent does not acquit the card.
            report.lost = Some(Lost::during(tried, 0));
            break;
        }
        tried.outcome = again.outcome;
        progress(Progress::Again(tried));
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
    /// Parses a file. Fails if a line is invalid.
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
        let matches = |deviation: &&Deviation| {
            let named = match deviation.script.strip_suffix('*') {
                Some(start) => script.starts_with(start),
                None => script == deviation.script,
            };
            named && deviation.parameters.as_ref().is_none_or(|wanted| wanted == parameters)
        };
        self.0.iter().find(matches).map(|deviation| deviation.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;

    /// Returns word and number of runs of a case whose runs end like this: `F` fails, `P` passes,
    /// `l` and `p` do so while the judge is late, `i` finds no target.
    fn judged(ends: &str) -> (&'static str, u32) {
        judged_by(false, ends)
    }

    fn judged_by(is_lossy: bool, ends: &str) -> (&'static str, u32) {
        let (outcome, tries, _) = judgement(is_lossy, ends);
        (outcome.verdict.word(), tries)
    }

    /// Returns also true if the case failed and passed.
    fn judgement(is_lossy: bool, ends: &str) -> (Outcome, u32, bool) {
        let mut ends = ends.chars();
        let run = || {
            let (verdict, late) = match ends.next() {
                Some('P') => (Verdict::Pass, 0),
                Some('F') => (Verdict::Fail(Failure::default()), 0),
                Some('i') => (Verdict::Inconclusive(Failure::default()), 0),
                Some('l') => (Verdict::Fail(Failure::default()), 95),
                Some('p') => (Verdict::Pass, 95),
                other => panic!("run again: {other:?}"),
            };
            Outcome { verdict, log: Log::default(), late: Duration::from_millis(late), figures: Vec::new() }
        };
        let Judged { outcome, tries, is_mixed } = judge(is_lossy, run);
        (outcome, tries, is_mixed)
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
    fn lossy_path_fails_a_case_only_after_four_failures() {
        let lossy = |ends| judged_by(true, ends);
        assert_eq!(lossy("FFFF"), ("FAIL", 4));
        assert_eq!(lossy("FFPFF"), ("FAIL", 5));
        assert_eq!(lossy("FFFPP"), ("pass", 5));
        assert_eq!(lossy("FFlllllllF"), ("inconclusive", 10));
        assert_eq!(lossy("FFFllllllP"), ("inconclusive", 10));
        assert_eq!(lossy("Fi"), ("inconclusive", 2), "a loss may be the failure");
    }

    #[test]
    fn late_judge_retries_and_is_inconclusive() {
        assert_eq!(judged("lP"), ("pass", 2));
        assert_eq!(judged("llFF"), ("FAIL", 4));
        assert_eq!(judged("llllllllll"), ("inconclusive", 10));
        assert_eq!(judged("Flllllllll"), ("inconclusive", 10));
        assert_eq!(judged("lllllllllF"), ("inconclusive", 10));
        assert_eq!(judged("FllllllllP"), ("inconclusive", 10), "it passed once");
        let (outcome, ..) = judgement(false, "FllllllllP");
        let received = &outcome.verdict.failure().unwrap().received;
        assert_eq!(received, "; 1 of 10 runs failed while the judge was on time");
    }

    #[test]
    fn late_pass_after_a_failure_does_not_count() {
        assert_eq!(judged("p"), ("pass", 1));
        assert_eq!(judged("lp"), ("pass", 2), "no failure counts before it");
        assert_eq!(judged("FppPP"), ("pass", 5));
        assert_eq!(judged("FpF"), ("FAIL", 3));
        assert_eq!(judged("FPpppppppp"), ("inconclusive", 10));
        let is_mixed = ["FpF", "Fppppppppp", "FPF"].map(|ends| judgement(false, ends).2);
        assert_eq!(is_mixed, [false, false, true]);
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
