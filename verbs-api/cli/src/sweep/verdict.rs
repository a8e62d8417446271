//! The class of a run. A finding groups the runs of one class that broke at the same place.

use super::plan::{Duty, Fault, seed_of};
use super::trial::{Ending, Process, Report, Trial, signal_name};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Class of a run, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Crash,
    Sanitizer,
    Hang,
    Misuse,
    Fails,
    Unnoticed,
    Leak,
    Unread,
    Silent,
    Clean,
    Passes,
    Unreached,
}

const CLASSES: [(Class, &str, &str); 12] = [
    (Class::Crash, "crash", "a process ended by a signal"),
    (Class::Sanitizer, "sanitizer", "a sanitizer reported an error"),
    (Class::Hang, "hang", "the program did not end"),
    (Class::Misuse, "misuse", "the checker reported an error"),
    (Class::Fails, "fails", "the program failed although the network or the card did only what it may"),
    (Class::Unnoticed, "unnoticed", "the program exited with 0 although a call or completion that it needs had failed"),
    (Class::Leak, "leak", "the program cleaned up and left something"),
    (Class::Unread, "unread", "an asynchronous event was never read"),
    (Class::Silent, "silent", "the program failed without a message"),
    (Class::Clean, "fails cleanly", "the program failed with a message"),
    (Class::Passes, "passes", "the program ended as if nothing had happened"),
    (Class::Unreached, "not reached", "the fault did not happen in this run"),
];

impl Class {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        CLASSES.iter().map(|(class, ..)| *class)
    }

    pub(super) fn name(self) -> &'static str {
        CLASSES.iter().find(|(class, ..)| *class == self).map_or("", |(_, name, _)| name)
    }

    pub(super) fn meaning(self) -> &'static str {
        CLASSES.iter().find(|(class, ..)| *class == self).map_or("", |(_, _, meaning)| meaning)
    }

    /// Returns true for classes that are errors of the program.
    pub(super) fn is_finding(self) -> bool {
        self < Self::Clean
    }

    fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(_, known, _)| *known == name).map(|(class, ..)| *class)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) fault: String,
    pub(super) class: Class,
    /// One line: the ending, the signal, or the report of the checker or a sanitizer.
    pub(super) what: String,
    /// The stack where the program broke, innermost call first; empty if unknown.
    pub(super) place: String,
    /// The stack of the call that the fault hit; empty if it hit none.
    pub(super) site: String,
    /// Further stacks, queue pairs, and explanations.
    pub(super) details: Vec<String>,
}

/// Judges a run by comparison with `plain`, a run without faults.
pub(super) fn judge(fault: &Fault, trial: &Trial, plain: &Trial) -> Judged {
    let stacks = trial.hits.iter().map(|hit| &*hit.stack).chain([&*trial.polled_at]);
    let site = stacks.into_iter().find(|stack| !["-", ""].contains(stack)).unwrap_or_default();
    let (class, what, place) = class_of(fault, trial, plain, site);
    let mut details = trial.explanations();
    details.truncate(8);
    if class == Class::Hang {
        let stacks = trial.stacks.iter().filter(|written| written.stack != "-");
        details
            .extend(stacks.map(|written| format!("thread {} of {}: {}", written.thread, written.pid, written.stack)));
        details.extend(trial.waits.lines().map(str::to_owned));
    }
    let site = if site.is_empty() && fault.site != "-" { &fault.site } else { site };
    Judged { fault: fault.text.clone(), class, what, place, site: site.to_owned(), details }
}

fn class_of(fault: &Fault, trial: &Trial, plain: &Trial, site: &str) -> (Class, String, String) {
    let is_weakest = seed_of(&fault.text).is_some();
    let is_hit = |pid: &str| is_weakest || trial.hits.iter().any(|hit| hit.pid == pid);
    let fatal = trial.stacks.iter().find(|written| written.signal <= 31);
    if let Some(written) = fatal {
        return (Class::Crash, signal_name(written.signal), known_stack(&written.stack));
    }
    if let Ending::Signal(_) = trial.end {
        return (Class::Crash, trial.ending(), String::new());
    }
    if let Some(line) = sanitizer(&trial.stderr) {
        return (Class::Sanitizer, line, String::new());
    }
    if trial.end == Ending::Hang {
        // Prefers a process that the fault hit to one that waits for it, and the first thread of
        // a process to its other threads.
        let stacks = trial.stacks.iter().filter(|written| written.stack != "-");
        let main = stacks.min_by_key(|written| (!is_hit(&written.pid), written.pid != written.thread));
        let Some(main) = main else {
            let left = format!("{}, outside of calls of verbs", trial.left);
            return (Class::Hang, trial.ending(), left);
        };
        let whose =
            if is_hit(&main.pid) { "" } else { "; the process that the fault hit has ended, another one waits" };
        return (Class::Hang, format!("{}{whose}", trial.ending()), main.stack.clone());
    }
    if trial.hits.is_empty() && !is_weakest {
        return (Class::Unreached, trial.ending(), String::new());
    }
    let is_new = |report: &&Report| {
        plain.reports.iter().all(|known| (&known.rule, &known.stack) != (&report.rule, &report.stack))
    };
    let new: Vec<_> = trial.reports.iter().filter(is_new).collect();
    if let Some(report) = new.iter().find(|report| report.severity == "error") {
        return (Class::Misuse, format!("[{}] {}", report.rule, report.message), report.stack.clone());
    }
    let failed = !trial.succeeded();
    if failed && fault.duty == Duty::MustPass {
        return (Class::Fails, format!("{}: {}", trial.ending(), last_line(trial)), String::new());
    }
    let hit = |process: &&Process| is_hit(&process.pid);
    let processes: Vec<_> = trial.processes.iter().filter(hit).collect();
    let is_completion = fault.text.starts_with("complete");
    let was_seen = |process: &&&Process| !is_completion || process.polled > 0;
    let ignores = |process: &&Process| process.tried == 0;
    if !failed && fault.duty == Duty::MustNotice && processes.iter().filter(was_seen).any(ignores) {
        return (Class::Unnoticed, trial.ending(), known_stack(site));
    }
    let cleans = |pid: &str| processes.iter().any(|process| process.pid == pid && process.destroyed > 0);
    if let Some(report) = new.iter().find(|report| report.rule == "leak" && cleans(&report.pid)) {
        return (Class::Leak, report.message.clone(), report.stack.clone());
    }
    let unread: u64 = processes.iter().map(|process| process.unread).sum();
    if unread > plain.processes.iter().map(|process| process.unread).sum() && fault.text.starts_with("event") {
        return (Class::Unread, "the program took none of them".to_owned(), String::new());
    }
    if !failed {
        return (Class::Passes, String::new(), String::new());
    }
    if trial.output() == plain.output() && trial.stdout == plain.stdout {
        return (Class::Silent, trial.ending(), known_stack(site));
    }
    (Class::Clean, format!("{}: {}", trial.ending(), last_line(trial)), String::new())
}

/// Returns the stack; empty if it is unknown.
fn known_stack(stack: &str) -> String {
    if stack == "-" { String::new() } else { stack.to_owned() }
}

fn last_line(trial: &Trial) -> String {
    let output = trial.output();
    output
        .lines()
        .chain(trial.stdout.lines())
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no message")
        .trim()
        .to_owned()
}

/// Returns the first line of a sanitizer's report.
fn sanitizer(stderr: &str) -> Option<String> {
    const MARKS: [&str; 5] = [
        "ERROR: AddressSanitizer",
        "ERROR: LeakSanitizer",
        "WARNING: ThreadSanitizer",
        "runtime error:",
        "== Invalid ",
    ];
    stderr.lines().find(|line| MARKS.iter().any(|mark| line.contains(mark))).map(|line| line.trim().to_owned())
}

impl Judged {
    /// Returns the result as a line of JSON.
    pub(super) fn line(&self) -> String {
        let Self { fault, class, what, place, site, details } = self;
        json!({"fault": fault, "class": class.name(), "what": what, "place": place, "site": site, "details": details})
            .to_string()
    }

    fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let details = value.get("details")?.as_array()?.iter().filter_map(|detail| Some(detail.as_str()?.to_owned()));
        Some(Self {
            fault: text("fault")?,
            class: Class::named(&text("class")?)?,
            what: text("what")?,
            place: text("place")?,
            site: text("site")?,
            details: details.collect(),
        })
    }

    /// Returns the innermost call where the program broke; otherwise the innermost call that the
    /// fault hit; otherwise the kind of fault.
    fn place_key(&self) -> String {
        let innermost = |stack: &str| stack.split(" < ").next().filter(|call| !call.is_empty()).map(str::to_owned);
        let kind = || {
            if self.class == Class::Unread {
                return "asynchronous events".to_owned();
            }
            let is_of_run =
                |word: &&str| ["process=", "nth=", "qp=#", "seed="].iter().all(|prefix| !word.starts_with(prefix));
            self.fault.split_whitespace().filter(is_of_run).collect::<Vec<_>>().join(" ")
        };
        let known = innermost(&self.place).or_else(|| innermost(&self.site));
        let place = known.filter(|_| self.class != Class::Unread).unwrap_or_else(kind);
        // The time limit stops a looping program at any line of the loop.
        match place.rsplit_once(':').filter(|_| self.class == Class::Hang) {
            Some((function, line)) if line.trim_end_matches(')').parse::<u64>().is_ok() => format!("{function})"),
            _ => place,
        }
    }
}

/// Reads the results of an earlier sweep.
pub(super) fn load(path: &Path) -> Vec<Judged> {
    std::fs::read_to_string(path).unwrap_or_default().lines().filter_map(Judged::from_line).collect()
}

/// Appends a result to the file.
pub(super) fn append(path: &Path, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    // If the result cannot be stored, a resumed sweep repeats the run.
    _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}

/// The runs of one class that broke at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) class: Class,
    /// Innermost call in the program, or the kind of fault.
    pub(super) place: String,
    /// The fault of the first run.
    pub(super) fault: String,
    /// The weaknesses that matter, as a sentence; empty for other faults.
    pub(super) cause: String,
    /// HTML page with the packets of the process that the fault hit; empty without a capture.
    pub(super) packets: String,
    pub(super) runs: Vec<Judged>,
}

impl Finding {
    /// Returns the line that identifies the finding in a baseline. It has no folders and line
    /// numbers, so that the finding is recognized after edits elsewhere.
    pub(super) fn key(&self) -> String {
        let place = match self.place.strip_suffix(')').and_then(|place| place.split_once(" (")) {
            Some((function, file)) => {
                let (path, line) = file.rsplit_once(':').unwrap_or((file, "0"));
                let path = if line.parse::<u64>().is_ok() { path } else { file };
                format!("{function} ({})", path.rsplit('/').next().unwrap_or(path))
            }
            None => self.place.clone(),
        };
        format!("{} {place}", self.class.name())
    }
}

/// Groups the runs that are findings, the worst first.
pub(super) fn group(judged: &[Judged]) -> Vec<Finding> {
    let mut groups = BTreeMap::<(Class, String), Vec<Judged>>::new();
    for run in judged.iter().filter(|run| run.class.is_finding()) {
        let place = if seed_of(&run.fault).is_some() && run.place.is_empty() {
            "weakest legal card".to_owned()
        } else {
            run.place_key()
        };
        groups.entry((run.class, place)).or_default().push(run.clone());
    }
    let finding = |((class, place), runs): ((Class, String), Vec<Judged>)| Finding {
        class,
        place,
        fault: runs.first().map(|run| run.fault.clone()).unwrap_or_default(),
        cause: String::new(),
        packets: String::new(),
        runs,
    };
    groups.into_iter().map(finding).collect()
}
