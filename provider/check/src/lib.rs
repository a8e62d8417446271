//! The checker: finds misuse of verbs from the calls of a program and from their results.
//!
//! ```text
//! device, capi  emit(|| Event)  ->  Program: objects, outstanding requests (program)
//!                                   rules: one state machine per subject   (rules/)
//!                                   Report -> text, JSON, exit status      (report, sink)
//! ```
//!
//! A rule is a pure function of the [`Event`]s, so its tests are lists of events. [`trace`] writes
//! the same events as a time line; [`explain`] says why a verb or a work request failed. While the
//! checker is off, an event costs one load and one branch. Begin reading at `observe`, then
//! `program`, then one of `rules/`.
#![deny(unsafe_code)]

mod event;
pub mod explain;
pub mod faults;
mod id_map;
mod listeners;
pub mod outcome;
mod program;
mod report;
mod rule;
mod rules;
mod sink;
mod stack;
mod suppressions;
#[cfg(test)]
mod testing;
pub mod trace;
mod tracked;

pub use event::{DroppedPacket, Event, MrInfo, Object, QpInfo};
pub use listeners::{is_checking, is_on};
pub use rule::{Halt, Rule, Selection, Severity};
pub use rules::note_fork_support;
pub use suppressions::Suppressions;
pub use tracked::{Tracked, for_library};

use program::Program;
use report::Report;
use report::file::ReportFile;
use roxe_base::config::{Config, ReportFormat, config, variable};
use roxe_base::error::Error;
use roxe_base::exit::{self, Signal, Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::standard_error;
use rules::Rules;
use sink::Sink;
use stack::Stack;
use std::path::Path;

/// The exit status of a program that exited with 0 and in which a rule of severity error fired.
pub const EXIT_STATUS: i32 = 66;

static CHECKER: Mutex<rank::Checker, Option<Checker>> = Mutex::new(None);
static SINK: Mutex<rank::CheckReports, Option<Sink>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Checker {
    program: Program,
    rules: Rules,
}

/// Reports an event to the checker and the trace, if one of them is on.
#[inline]
pub fn emit<'a>(event: impl FnOnce() -> Event<'a>) {
    if is_on() {
        handle(event);
    }
}

/// Out of line, so that callers neither reserve stack for an event nor inline this code.
#[cold]
#[inline(never)]
fn handle<'a>(event: impl FnOnce() -> Event<'a>) {
    let event = event();
    if trace::is_on() {
        trace::observe(&event);
    }
    if is_checking() {
        observe(&event);
    }
}

/// Settings that make roxe write to standard error while the program runs.
const STDERR_SETTINGS: [&str; 4] = ["ROXE_CHECK", "ROXE_TRACE", "ROXE_EXPLAIN", "ROXE_STATS"];

/// Prepares for the end of the process. Call it before `main` where possible: exit handlers of the
/// program then run before the checker looks at the remaining objects and decides on the exit
/// status.
pub fn on_load() {
    if variable("ROXE_CHECK").is_some() || variable("ROXE_TRACE").is_some() {
        exit::install();
    }
    faults::on_load();
    if variable("ROXE_OUTCOME").is_some() {
        exit::install();
        stack::fatal::install();
    }
    if STDERR_SETTINGS.iter().any(|name| variable(name).is_some()) {
        standard_error::save_copy();
    }
}

/// Turns on the checker and the trace as the settings request, once.
///
/// # Errors
/// EINVAL if a setting cannot be parsed or its file cannot be used.
pub fn start() -> Result<(), Error> {
    let config = config()?;
    faults::start()?;
    let checks = start_checker(config)?;
    let traces = trace::start(config)?;
    if checks || traces {
        at_exit(Stage::Report, end);
    }
    for (listens, listener) in [(checks, listeners::CHECK), (traces, listeners::TRACE)] {
        if listens {
            listeners::add(listener);
        }
    }
    Ok(())
}

fn start_checker(config: &Config) -> Result<bool, Error> {
    let Some(text) = &config.check else { return Ok(false) };
    let mut checker = CHECKER.lock();
    if checker.is_none() {
        *SINK.lock() = Some(open_sink(config, text)?);
        *checker = Some(Checker::default());
    }
    Ok(true)
}

fn open_sink(config: &Config, text: &str) -> Result<Sink, Error> {
    let selection = Selection::parse(text).map_err(|why| Error::invalid(format!("ROXE_CHECK={text}: {why}")))?;
    let unusable = |what: &str, path: &Path, why: &dyn std::fmt::Display| {
        Error::invalid(format!("{what}={}: {why}", path.display()))
    };
    let suppressions = match &config.check_suppressions {
        None => Suppressions::default(),
        Some(path) => {
            let unusable = |why: &dyn std::fmt::Display| unusable("ROXE_CHECK_SUPPRESSIONS", path, why);
            let text = std::fs::read_to_string(path).map_err(|why| unusable(&why))?;
            Suppressions::parse(&text).map_err(|why| unusable(&why))?
        }
    };
    let file = match &config.check_report {
        None => None,
        Some(path) => {
            let format = config.check_report_format.unwrap_or_else(|| ReportFormat::of(path));
            Some(ReportFile::open(path, format).map_err(|why| unusable("ROXE_CHECK_REPORT", path, &why))?)
        }
    };
    Ok(Sink::new(selection, suppressions, file))
}

#[cold]
#[inline(never)]
fn observe(event: &Event<'_>) {
    let stack = if event.is_call() { Stack::here() } else { Stack::unknown() };
    let mut reports = Vec::new();
    {
        let mut checker = CHECKER.lock();
        let Some(Checker { program, rules }) = &mut *checker else { return };
        program.begin(event, &stack);
        rules.observe(event, &stack, program, &mut reports);
        program.end(event, &stack);
    }
    if !reports.is_empty() {
        stop_at_error(print(reports));
    }
}

/// Prints reports, and returns how to halt the program.
fn print(reports: Vec<Report>) -> Halt {
    // Held during the write, so that reports of several threads do not interleave.
    let mut sink = SINK.lock();
    let Some(sink) = &mut *sink else { return Halt::No };
    reports.into_iter().for_each(|report| sink.add(report));
    if sink.fails() {
        exit::fail_with(EXIT_STATUS);
    }
    sink.take_halt()
}

/// Halts the calling thread, which must hold no lock of the checker.
fn stop_at_error(halt: Halt) {
    let process = std::process::id();
    let (signal, text) = match halt {
        Halt::No => return,
        Halt::Trap => (Signal::Trap, format!("roxe: process {process} stops at its first error (SIGTRAP)\n")),
        Halt::Wait => (
            Signal::Stop,
            format!(
                "roxe: process {process} waits at its first error: `gdb -p {process}`, or `kill -CONT {process}`\n"
            ),
        ),
    };
    standard_error::write(&text);
    exit::halt(signal);
}

fn end() {
    emit(|| Event::Exit);
    if let Some(text) = SINK.try_lock().and_then(|sink| sink.as_ref().and_then(Sink::summary)) {
        standard_error::write(&text);
    }
    trace::end();
}

/// Returns the locks that a fork has to take.
pub fn locks() -> impl Iterator<Item = &'static dyn Lockable> {
    [&CHECKER as &dyn Lockable, &SINK, explain::lock(), faults::lock()].into_iter().chain(trace::locks())
}

/// Clears the state in the child of a fork: all objects belong to the parent.
pub fn abandon() {
    if let Some(checker) = CHECKER.try_lock().as_deref_mut().and_then(Option::as_mut) {
        *checker = Checker::default();
    }
    trace::abandon();
    explain::abandon();
    faults::abandon();
}
