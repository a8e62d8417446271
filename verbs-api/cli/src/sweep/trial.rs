//! One run of the program, in process, network and mount namespaces of its own.
//!
//! ```text
//! roxe sweep ── roxe sweep-trial      creates the namespaces
//!                  └─ roxe sweep-trial --inner     their process 1: waits, collects stacks
//!                        └─ roxe run -- PROGRAM
//! ```
//!
//! When process 1 ends, the kernel ends every process of the run.

use super::plan::Fault;
use crate::child::{ip, own};
use crate::files;
use crate::output::Result;
use crate::status::{command_of, find_processes};
use crate::view::{mount_own_proc, unshare_as_root};
use nix::sched::CloneFlags;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use roxe_check::outcome::{append, ask_for_stacks};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Arguments of `roxe sweep-trial`.
#[derive(Debug, clap::Args)]
pub(crate) struct InnerArgs {
    /// True for process 1 of the namespaces.
    #[arg(long)]
    inner: bool,
    /// Milliseconds until the run hangs.
    #[arg(long)]
    limit: u64,
    /// File of the outcome.
    #[arg(long)]
    outcome: PathBuf,
    /// Arguments of `roxe run`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    run: Vec<OsString>,
}

/// Time limit and outputs of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Time after which the run hangs.
    pub(super) time: Duration,
    /// True if a census is written.
    pub(super) census: bool,
    /// True if the packets are captured.
    pub(super) capture: bool,
    /// True if the program's output goes to the terminal.
    pub(super) shows: bool,
}

/// The end of the process that the sweep started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    Exit(i32),
    Signal(i32),
    #[default]
    Hang,
}

/// A process that used roxe.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) pid: String,
    /// Calls after the first fault that destroyed an object.
    pub(super) destroyed: u64,
    /// Calls after the first fault that tried again.
    pub(super) tried: u64,
    /// Asynchronous events that the program has not read.
    pub(super) unread: u64,
    /// Failed completions that the program has polled.
    pub(super) polled: u64,
}

/// A fault that hit a process.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub(super) pid: String,
    pub(super) stack: String,
}

/// The stack of a thread, which the library in its process wrote.
#[derive(Clone, Debug)]
pub(super) struct ThreadStack {
    pub(super) pid: String,
    pub(super) thread: String,
    pub(super) signal: i32,
    pub(super) stack: String,
}

/// A report of the checker.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) rule: String,
    pub(super) severity: String,
    pub(super) message: String,
    pub(super) stack: String,
    pub(super) pid: String,
}

#[derive(Debug, Default)]
pub(super) struct Trial {
    pub(super) end: Ending,
    pub(super) time: Duration,
    pub(super) processes: Vec<Process>,
    pub(super) hits: Vec<Hit>,
    /// The stack of the first call that polled a failed completion.
    pub(super) polled_at: String,
    pub(super) stacks: Vec<ThreadStack>,
    pub(super) reports: Vec<Report>,
    /// If the run hung: the state of each queue pair, one per line.
    pub(super) waits: String,
    /// If the run hung: the name of a program that still ran, in case no thread is in a verb.
    pub(super) left: String,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Trial {
    /// Makes a run in the folder `folder/name`.
    pub(super) fn run(folder: &Path, name: &str, fault: &Fault, program: &[OsString], limits: Limits) -> Result<Self> {
        let folder = folder.join(name);
        _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let (outcome, checks) = (folder.join("outcome"), folder.join("checks"));
        let mut command = Command::new(own()?);
        command.arg("sweep-trial").arg(format!("--limit={}", limits.time.as_millis())).arg("--outcome").arg(&outcome);
        command.args(["--", "--explain", "--check"]).arg("--report").arg(&checks).args(fault.options());
        command.arg("--").args(program).stdin(Stdio::null()).env("ROXE_OUTCOME", &outcome);
        if limits.census {
            command.env("ROXE_CENSUS", folder.join("census"));
        }
        if limits.capture {
            command.env("ROXE_CAPTURE", folder.join("%p.pcapng"));
        }
        if !limits.shows {
            command.stdout(File::create(folder.join("stdout"))?).stderr(File::create(folder.join("stderr"))?);
        }
        let start = Instant::now();
        let status = command.status()?;
        let time = start.elapsed();
        let read = |name: &str| files::read(&folder.join(name)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let lines = read("outcome").unwrap_or_default();
        let mut trial = Self {
            time,
            reports: read("checks").unwrap_or_default().lines().filter_map(parse_report).collect(),
            stdout: read("stdout").unwrap_or_default(),
            stderr: read("stderr").unwrap_or_default(),
            ..Self::default()
        };
        lines.lines().for_each(|line| trial.read_line(line));
        if !lines.lines().any(|line| line.starts_with("over\t")) {
            let why = trial.stderr.lines().last().unwrap_or("no reason is known").to_owned();
            return Err(format!("a run could not be made ({status}): {why}").into());
        }
        Ok(trial)
    }

    /// Reads a line of the outcome.
    fn read_line(&mut self, line: &str) {
        let words: Vec<_> = line.split('\t').collect();
        match *words {
            ["begin", _, pid] => self.processes.push(Process { pid: pid.to_owned(), ..Process::default() }),
            ["polled", _, stack] => self.polled_at = stack.to_owned(),
            ["fault", pid, _, stack] => self.hits.push(Hit { pid: pid.to_owned(), stack: stack.to_owned() }),
            ["stack", pid, thread, signal, stack] => self.stacks.push(ThreadStack {
                pid: pid.to_owned(),
                thread: thread.to_owned(),
                signal: signal.parse().unwrap_or(0),
                stack: stack.to_owned(),
            }),
            ["end", pid, destroyed, tried, unread, polled] => {
                let number = |text: &str| text.parse().unwrap_or(0);
                if let Some(process) = self.processes.iter_mut().find(|process| process.pid == pid) {
                    (process.destroyed, process.tried) = (number(destroyed), number(tried));
                    (process.unread, process.polled) = (number(unread), number(polled));
                }
            }
            ["waits", text] => {
                self.waits += text;
                self.waits.push('\n');
            }
            ["left", program] => self.left = program.to_owned(),
            ["over", "exit", code] => self.end = Ending::Exit(code.parse().unwrap_or(1)),
            ["over", "signal", signal] => self.end = Ending::Signal(signal.parse().unwrap_or(0)),
            _ => {}
        }
    }

    /// Returns the process that the fault hit, otherwise the first one.
    pub(super) fn faulted_process(&self) -> Option<&str> {
        let hit = self.hits.first().map(|hit| &hit.pid);
        hit.or_else(|| self.processes.first().map(|process| &process.pid)).map(String::as_str)
    }

    /// Returns true for exit status 0, which the checker replaces by its own after an error.
    pub(super) fn succeeded(&self) -> bool {
        matches!(self.end, Ending::Exit(0 | roxe_check::EXIT_STATUS))
    }

    /// Returns the lines of standard error that are not roxe's.
    pub(super) fn output(&self) -> String {
        let own = |line: &&str| line.starts_with("roxe: ") || line.starts_with("    ");
        let lines = self.stderr.lines().filter(|line| !own(line));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the lines in which roxe explains failures.
    pub(super) fn explanations(&self) -> Vec<String> {
        let lines = self.stderr.lines().filter_map(|line| line.strip_prefix("roxe: "));
        lines.filter(|line| line.contains(" failed") || line.contains("wr_id")).map(str::to_owned).collect()
    }

    /// Describes the end of the run.
    pub(super) fn ending(&self) -> String {
        match self.end {
            Ending::Exit(code) => format!("exit status {code}"),
            Ending::Signal(signal) => signal_name(signal),
            Ending::Hang => format!("no end within {:.1} s", self.time.as_secs_f64()),
        }
    }
}

/// Returns the name of a signal, such as `SIGSEGV`.
pub(super) fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| format!("{signal:?}"))
}

/// Parses a line of the file of `--report`.
fn parse_report(line: &str) -> Option<Report> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let stacks = value.get("stacks")?.as_array()?;
    // The stacks of a leak begin with the device, which leaks only because of the objects on it.
    let stack = if text("rule") == "leak" { stacks.last() } else { stacks.first() };
    let calls = stack.and_then(|stack| stack.get("calls")?.as_array());
    let call = |call: &Value| {
        let function = call.get("function")?.as_str()?.to_owned();
        let place = call.get("file").and_then(Value::as_str).zip(call.get("line").and_then(Value::as_u64));
        Some(place.map_or_else(|| function.clone(), |(file, line)| format!("{function} ({file}:{line})")))
    };
    let stack: Vec<_> = calls.into_iter().flatten().filter_map(call).collect();
    let pid = value.get("process").map(ToString::to_string).unwrap_or_default();
    Some(Report {
        rule: text("rule"),
        severity: text("severity"),
        message: text("message"),
        stack: stack.join(" < "),
        pid,
    })
}

/// `roxe sweep-trial`: creates the namespaces, or runs as their process 1.
pub(crate) fn inner(args: &InnerArgs) -> Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL)?;
    if args.inner {
        return supervise(args);
    }
    let spaces =
        CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    unshare_as_root(spaces)?;
    let mut command = Command::new(own()?);
    command.arg("sweep-trial").arg("--inner").arg(format!("--limit={}", args.limit));
    command.arg("--outcome").arg(&args.outcome).arg("--").args(&args.run);
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the program and appends its end to the outcome.
fn supervise(args: &InnerArgs) -> Result<ExitCode> {
    mount_own_proc()?;
    ip("link set lo up\n")?;
    let mut child = Command::new(own()?).arg("run").args(&args.run).spawn()?;
    let (report, ended) = mpsc::channel();
    thread::Builder::new().spawn(move || report.send(child.wait()))?;
    let line = match ended.recv_timeout(Duration::from_millis(args.limit)) {
        Ok(status) => {
            let status = status?;
            match status.code() {
                Some(code) => format!("over\texit\t{code}\n"),
                None => format!("over\tsignal\t{}\n", status.signal().unwrap_or(0)),
            }
        }
        Err(_) => {
            record_hang(&args.outcome);
            "over\thang\t-\n".to_owned()
        }
    };
    append(&args.outcome, &line)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the newest process in these namespaces that has no child and is not roxe.
fn newest_childless() -> Option<String> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids: BTreeSet<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let parent = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let parents: BTreeSet<_> = pids.iter().filter_map(parent).collect();
    let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    // A zombie has no /proc/PID/exe.
    let is_foreign = |pid: &&u32| program(&pid.to_string()).is_some_and(|found| Some(found) != program("self"));
    Some(command_of(*pids.difference(&parents).filter(is_foreign).max()?))
}

/// Maximum wait for the stacks of a hanging run.
const STACKS_TIMEOUT: Duration = Duration::from_secs(2);

/// Appends the stacks of all threads that use roxe, and the state of their queue pairs, to the
/// outcome.
fn record_hang(outcome: &Path) {
    let text = || fs::read_to_string(outcome).unwrap_or_default();
    let words = text();
    let pids = words.lines().filter_map(|line| line.strip_prefix("begin\t")?.split('\t').nth(1)?.parse::<u32>().ok());
    let pids: BTreeSet<_> = pids.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
    let threads = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let expected: usize = pids.iter().map(threads).sum();
    // The request for stacks interrupts system calls, after which a program may exit.
    let left = newest_childless();
    pids.iter().for_each(|pid| ask_for_stacks(*pid));
    let start = Instant::now();
    // Threads that block the signal do not answer.
    while text().lines().filter(|line| line.starts_with("stack\t")).count() < expected
        && start.elapsed() < STACKS_TIMEOUT
    {
        thread::sleep(Duration::from_millis(10));
    }
    if let Some(program) = left {
        _ = append(outcome, &format!("left\t{program}\n"));
    }
    for process in find_processes(None).unwrap_or_default() {
        for qp in &process.qps {
            let state: Vec<_> = qp.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
            _ = append(outcome, &format!("waits\t{} {}: {}\n", process.command, process.pid, state.join(", ")));
        }
    }
}
