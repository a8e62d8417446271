//! `roxe sweep -- PROGRAM`: tries every error path of a verbs program, one fault in each run.
//!
//! ```text
//! plan.rs     the faults to try, from the census of a first run: its calls, completions, packets
//! trial.rs    one run in its own namespaces, with a time limit and the reports of its processes
//! verdict.rs  the class of a run, and findings grouped by the place where the program broke
//! report.rs   text, HTML, JUnit XML, SARIF and JSON
//! ```

mod plan;
mod report;
mod trial;
mod verdict;

use crate::output::{self, Result};
use crate::progress::Progress;
use crate::{dump, files};
use plan::{Classes, Fault};
use roxe_base::weakest::Weakness;
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use trial::{Limits, Trial};
use verdict::{Finding, Judged, group, judge};

pub(crate) use trial::{InnerArgs, inner};

/// Arguments of `roxe sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail each call once. Without any of --verbs, --completions, --events, --packets and
    /// --seeds, all but the seeds are tried.
    #[arg(long)]
    verbs: bool,
    /// Fail each completion once.
    #[arg(long)]
    completions: bool,
    /// Raise each event: port, device, queues, connections.
    #[arg(long)]
    events: bool,
    /// Drop packets: the first, a middle and the last of each queue pair and opcode.
    #[arg(long)]
    packets: bool,
    /// Also run on the weakest legal card, with the seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seeds: u64,
    /// Run once with this fault, print the program's output, and judge the run: fault rules, or
    /// weakest=SEED with names of weaknesses.
    #[arg(long, value_name = "RULES", conflicts_with_all = ["verbs", "completions", "events", "packets", "seeds"])]
    fault: Option<String>,
    /// Number of parallel runs [default: one for each processor].
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Time after which a run hangs [default: five times the first run, and 3 s].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
    /// Start no further runs after this time; the most different faults are tried first.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    budget: Option<Duration>,
    /// Write the findings to this file: .html, .xml (JUnit), .sarif or .json; may be repeated. For
    /// .html each finding is run once more to capture its packets.
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Do not fail for the findings in this file.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write all findings to the file of --baseline.
    #[arg(long, requires = "baseline")]
    update_baseline: bool,
    /// Keep the results in this folder, and continue an earlier sweep in it.
    #[arg(long, value_name = "FOLDER")]
    resume: Option<PathBuf>,
    /// The program, or a script that starts several processes, and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]",
          value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Parses a time such as `500ms`, `30s` or `10m`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is not a time; write 500ms, 30s or 10m");
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let value: u32 = number.parse().map_err(|_| wrong())?;
    let unit = match &text[number.len()..] {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(wrong()),
    };
    Some(unit * value).filter(|time| !time.is_zero()).ok_or_else(wrong)
}

/// Without --timeout, a run hangs after this factor times the first run's time, plus
/// [`HANG_MARGIN`].
const HANG_FACTOR: u32 = 5;
const HANG_MARGIN: Duration = Duration::from_secs(3);

/// Maximum time of a run for which pairs of weaknesses are tried one by one.
const MAX_RUN_FOR_PAIRS: Duration = Duration::from_secs(1);

/// Maximum time of a run for which a weakness is narrowed to the occasions that matter.
const MAX_RUN_TO_NARROW: Duration = Duration::from_secs(5);

/// Maximum number of packets that a report shows for a finding.
const MAX_PACKETS: usize = 2000;

/// Runs the sweep; the exit status is 0 without findings and 1 with some.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::open(args.resume.as_deref(), &args.command)?;
    if let Some(fault) = &args.fault {
        return run_fault(args, &folder, &Fault::parse(fault)?);
    }
    let limits = Limits { time: args.timeout.unwrap_or(Duration::from_secs(600)), census: true, ..Limits::default() };
    let first = Trial::run(&folder.path, "first", &Fault::none(), &args.command, limits)?;
    if !first.succeeded() {
        let output = first.output();
        return Err(format!("the program fails without any fault: {}\n{output}", first.ending()).into());
    }
    let census = files::read_text(&folder.path.join("first/census")).map_err(|_| {
        "the program called no verbs; does it load roxe? Try `roxe run --explain -- PROGRAM`".to_owned()
    })?;
    let faults = plan::faults(&census, args.classes(), args.seeds);
    let bench = Bench::make(args, &folder, args.limit_after(&first))?;
    if !bench.plain.succeeded() {
        return Err(format!("the program failed in its second run without any fault: {}", bench.plain.ending()).into());
    }
    let judged = bench.try_all(&faults)?;
    let mut findings = bench.reduced(group(&judged))?;
    if args.report.iter().any(|path| report::is_page(path)) {
        bench.add_packets(&mut findings)?;
    }
    finish(args, &faults, &judged, &findings)
}

impl Args {
    fn classes(&self) -> Classes {
        let all = !(self.verbs || self.completions || self.events || self.packets) && self.seeds == 0;
        Classes {
            verbs: all || self.verbs,
            completions: all || self.completions,
            events: all || self.events,
            packets: all || self.packets,
        }
    }

    fn jobs(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(processors, usize::from)
    }

    /// Returns the time after which a run hangs, from the run without faults.
    fn limit_after(&self, plain: &Trial) -> Duration {
        self.timeout.unwrap_or(plain.time * HANG_FACTOR + HANG_MARGIN)
    }
}

/// The folder of a sweep.
struct Folder {
    path: PathBuf,
    /// True if the folder is removed at the end; the folder of `--resume` stays.
    is_temporary: bool,
}

impl Folder {
    /// Opens the folder of `--resume`, or creates a temporary one. Fails if the folder has results
    /// of another command.
    fn open(resume: Option<&Path>, command: &[OsString]) -> Result<Self> {
        if let Some(path) = resume {
            files::create_folder(path)?;
            let (file, words) = (path.join("command"), command.join(OsStr::new("\0")));
            if fs::read(&file).is_ok_and(|known| known != words.as_bytes()) {
                return Err(
                    format!("{} has the results of another program; choose another folder", path.display()).into()
                );
            }
            files::write(&file, words.as_bytes())?;
            return Ok(Self { path: fs::canonicalize(path)?, is_temporary: false });
        }
        let base = files::private_folder(&files::base_folder()?.join("sweep"))?;
        let path = base.join(std::process::id().to_string());
        _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Self { path, is_temporary: true })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes the run of `--fault`, which prints the program's output, and prints its verdict.
fn run_fault(args: &Args, folder: &Folder, fault: &Fault) -> Result<ExitCode> {
    let bench = Bench::make(args, folder, args.timeout.unwrap_or(Duration::from_secs(60)))?;
    let limits = Limits { time: args.limit_after(&bench.plain), shows: true, ..Limits::default() };
    let trial = Trial::run(&folder.path, "fault", fault, &args.command, limits)?;
    let judged = judge(fault, &trial, &bench.plain);
    output::line(report::run_text(&judged));
    Ok(if judged.class.is_finding() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Makes runs and compares each with a run without faults.
struct Bench<'a> {
    args: &'a Args,
    folder: &'a Folder,
    /// Time after which a run hangs.
    limit: Duration,
    /// The run without faults.
    plain: Trial,
    start: Instant,
}

impl<'a> Bench<'a> {
    fn make(args: &'a Args, folder: &'a Folder, limit: Duration) -> Result<Self> {
        let limits = Limits { time: limit, ..Limits::default() };
        let plain = Trial::run(&folder.path, "plain", &Fault::none(), &args.command, limits)?;
        Ok(Self { args, folder, limit, plain, start: Instant::now() })
    }

    /// Returns true once the time of `--for` has passed.
    fn is_out_of_time(&self) -> bool {
        self.args.budget.is_some_and(|budget| self.start.elapsed() > budget)
    }

    /// Makes a run with a fault in the folder `name`, and judges it.
    fn judge(&self, name: &str, fault: &Fault) -> Result<Judged> {
        let limits = Limits { time: self.limit, ..Limits::default() };
        let trial = Trial::run(&self.folder.path, name, fault, &self.args.command, limits)?;
        Ok(judge(fault, &trial, &self.plain))
    }

    /// Makes the runs that have no result yet, several at a time; returns the results in the order
    /// of the faults.
    fn try_all(&self, faults: &[Fault]) -> Result<Vec<Judged>> {
        let file = self.folder.path.join("results.jsonl");
        let known = verdict::load(&file);
        let todo: Vec<_> = faults.iter().filter(|fault| known.iter().all(|known| known.fault != fault.text)).collect();
        let next = AtomicUsize::new(0);
        let shared = Mutex::new((known, Progress::new(todo.len())));
        let work = |job: usize| -> Result<(), String> {
            // The first fault is tried even if `--for` is shorter than the runs without faults.
            let is_due = |at: &usize| *at == 0 || !self.is_out_of_time();
            let next_fault = || todo.get(Some(next.fetch_add(1, Ordering::Relaxed)).filter(is_due)?);
            while let Some(fault) = next_fault() {
                let judged = self.judge(&format!("run{job}"), fault).map_err(|error| {
                    // Stops the other jobs after their current run.
                    next.store(todo.len(), Ordering::Relaxed);
                    error.to_string()
                })?;
                let (results, progress) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
                verdict::append(&file, &judged.line());
                results.push(judged);
                let findings = results.iter().filter(|judged| judged.class.is_finding()).count();
                progress.step(&status(self.start, next.load(Ordering::Relaxed), todo.len(), findings));
            }
            Ok(())
        };
        thread::scope(|scope| {
            let jobs = 0..self.args.jobs().min(todo.len());
            let jobs: Vec<_> = jobs.map(|job| thread::Builder::new().spawn_scoped(scope, move || work(job))).collect();
            jobs.into_iter().try_for_each(|job| {
                job?.join()
                    .unwrap_or_else(|_| Err("the thread of a run panicked".to_owned()))
                    .map_err(Box::<dyn Error>::from)
            })
        })?;
        let (results, _) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        let result = |fault: &Fault| results.iter().find(|judged| judged.fault == fault.text).cloned();
        Ok(faults.iter().filter_map(result).collect())
    }

    /// Reduces the faults of findings on the weakest card to the weaknesses that matter, until the
    /// time of `--for` has passed.
    fn reduced(&self, mut findings: Vec<Finding>) -> Result<Vec<Finding>> {
        for finding in findings.iter_mut().take_while(|_| !self.is_out_of_time()) {
            let Some(seed) = plan::seed_of(&finding.fault) else { continue };
            let breaks = |names: &[String]| {
                Ok(!self.is_out_of_time() && self.judge("reduce", &Fault::weakest(seed, names))?.class == finding.class)
            };
            let mut names = fewest(breaks, self.plain.time < MAX_RUN_FOR_PAIRS)?;
            if self.plain.time < MAX_RUN_TO_NARROW {
                names = narrowed(breaks, names)?;
            }
            finding.fault = Fault::weakest(seed, &names).text;
            finding.cause = plan::describe_weaknesses(&names);
        }
        Ok(findings)
    }

    /// Repeats the run of each finding with a capture, and adds its packets to the finding.
    fn add_packets(&self, findings: &mut [Finding]) -> Result<()> {
        for finding in findings.iter_mut().take_while(|_| !self.is_out_of_time()) {
            let limits = Limits { time: self.limit, capture: true, ..Limits::default() };
            let fault = Fault::parse(&finding.fault)?;
            let trial = Trial::run(&self.folder.path, "packets", &fault, &self.args.command, limits)?;
            // With a capture, packets take another path, on which the fault may not occur.
            if judge(&fault, &trial, &self.plain).class == finding.class
                && let Some(pid) = trial.faulted_process()
                && let Ok(capture) = files::read(&self.folder.path.join(format!("packets/{pid}.pcapng")))
                && let Ok(page) = dump::ladder_of(&capture, finding.fault.clone(), MAX_PACKETS)
            {
                finding.packets = page;
            }
        }
        Ok(())
    }
}

/// Returns the progress line: findings, and an estimate of the remaining time.
fn status(start: Instant, started: usize, total: usize, findings: usize) -> String {
    let done = started.clamp(1, total);
    let left = start.elapsed().as_secs() * (total - done) as u64 / done as u64;
    format!("failing runs {findings}, about {}:{:02} left", left / 60, left % 60)
}

/// Returns the fewest weaknesses with which the program `breaks`: one, or two if `pairs` are tried,
/// or the remaining ones after removing one weakness at a time.
fn fewest(breaks: impl Fn(&[String]) -> Result<bool>, pairs: bool) -> Result<Vec<String>> {
    let all: Vec<String> = Weakness::all().iter_names().map(|(name, _)| name.to_lowercase()).collect();
    let mut sets: Vec<Vec<String>> = all.iter().map(|name| vec![name.clone()]).collect();
    for (index, name) in all.iter().enumerate().filter(|_| pairs) {
        sets.extend(all[index + 1..].iter().map(|other| vec![name.clone(), other.clone()]));
    }
    for set in sets {
        if breaks(&set)? {
            return Ok(set);
        }
    }
    let (mut names, mut at) = (all, 0);
    while at < names.len() && names.len() > 1 {
        let mut fewer = names.clone();
        fewer.remove(at);
        if breaks(&fewer)? { names = fewer } else { at += 1 }
    }
    Ok(names)
}

/// Maximum number of occasions of a weakness that are searched.
const MAX_OCCASIONS: u32 = 1 << 16;

/// Limits each weakness to the fewest occasions in a row with which the program still `breaks`.
/// Halves the range, and keeps a half only if the program broke with it. If the failure depends
/// on timing, the range may stay too wide.
fn narrowed(breaks: impl Fn(&[String]) -> Result<bool>, mut names: Vec<String>) -> Result<Vec<String>> {
    for at in 0..names.len() {
        let name = names[at].clone();
        if !plan::is_occasional(&name) {
            continue;
        }
        let with = |first: u32, last: u32| {
            let range = if first == last { format!("{name}={first}") } else { format!("{name}={first}..{last}") };
            [&names[..at], &[range], &names[at + 1..]].concat()
        };
        let breaks_with = |first, last| breaks(&with(first, last));
        let mut last = 1;
        while last <= MAX_OCCASIONS && !breaks_with(1, last)? {
            last *= 2;
        }
        if last > MAX_OCCASIONS {
            continue;
        }
        let mut too_few = last / 2;
        while last - too_few > 1 {
            let middle = too_few.midpoint(last);
            if breaks_with(1, middle)? { last = middle } else { too_few = middle }
        }
        let (mut first, mut too_late) = (1, last + 1);
        while too_late - first > 1 {
            let middle = first.midpoint(too_late);
            if breaks_with(middle, last)? { first = middle } else { too_late = middle }
        }
        names = with(first, last);
    }
    Ok(names)
}

/// Prints the table, writes the reports and returns the exit status.
fn finish(args: &Args, faults: &[Fault], judged: &[Judged], findings: &[Finding]) -> Result<ExitCode> {
    let known: BTreeSet<String> = match &args.baseline {
        Some(path) if path.exists() => files::read_text(path)?.lines().map(str::to_owned).collect(),
        _ => BTreeSet::new(),
    };
    let sweep = report::Sweep { command: &args.command, planned: faults.len(), judged, findings, known: &known };
    output::line(sweep.text());
    for path in &args.report {
        files::write(path, sweep.document(path)?)?;
    }
    if let Some(path) = args.baseline.as_ref().filter(|_| args.update_baseline) {
        let lines: String = findings.iter().map(|finding| finding.key() + "\n").collect();
        files::write(path, lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_new = |finding: &&Finding| !known.contains(&finding.key());
    Ok(if findings.iter().any(|finding| is_new(&finding)) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduction_finds_the_fewest_weaknesses() {
        let breaks = |needed: &'static [&'static str]| {
            move |names: &[String]| Ok(needed.iter().all(|need| names.iter().any(|name| name == need)))
        };
        assert_eq!(fewest(breaks(&["placement"]), true).unwrap(), ["placement"]);
        assert_eq!(fewest(breaks(&["completions", "loss"]), true).unwrap(), ["completions", "loss"]);
        assert_eq!(fewest(breaks(&["completions", "loss"]), false).unwrap(), ["completions", "loss"]);
        assert_eq!(fewest(breaks(&["limits", "acks", "reuse"]), true).unwrap(), ["limits", "acks", "reuse"]);
    }

    #[test]
    fn occasions_are_narrowed_to_those_that_matter() {
        let narrow = |needed: std::ops::RangeInclusive<u32>| {
            let breaks = |names: &[String]| {
                let range = names[0].strip_prefix("placement=").unwrap();
                let (first, last) = range.split_once("..").unwrap_or((range, range));
                let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
                Ok(first <= *needed.start() && *needed.end() <= last)
            };
            narrowed(breaks, vec!["placement".to_owned(), "loss".to_owned()]).unwrap()
        };
        assert_eq!(narrow(1..=1), ["placement=1", "loss"]);
        assert_eq!(narrow(17..=17), ["placement=17", "loss"]);
        assert_eq!(narrow(9..=300), ["placement=9..300", "loss"]);
        assert_eq!(narrow(1 << 20..=1 << 20), ["placement", "loss"]);
    }

    #[test]
    fn time_without_unit_is_refused() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!((parse_time("30s"), parse_time("10m")), (Ok(Duration::from_secs(30)), Ok(Duration::from_secs(600))));
        for text in ["", "s", "30", "0s", "1h", "-1s"] {
            assert!(parse_time(text).unwrap_err().contains("is not a time"), "{text}");
        }
    }
}
