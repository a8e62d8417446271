//! A process of a pair: a new instance of this program. It executes one command per line of its
//! standard input, answers each with one line, and exits at the end of its input. [`Peer`] is the
//! test's side of the pipes.

use super::load::{End, Load, Phase, Progress};
use roxe::Context;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Argument that makes a process a peer.
pub(crate) const ROLE: &str = "--peer";
/// Time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two checks of the load.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs a peer: executes the commands of the standard input.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let context = Context::open_first()?;
    let mut peer = Executor { context, end: None, load: None };
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = peer.execute(&words).unwrap_or_else(|e| format!("error: {e}"));
        println!("{answer}");
    }
    Ok(())
}

struct Executor {
    context: Context,
    end: Option<End>,
    load: Option<Load>,
}

impl Executor {
    fn execute(&mut self, words: &[&str]) -> Result<String, Box<dyn Error>> {
        let (command, words) = words.split_first().ok_or("no command")?;
        match (*command, self.load.as_ref()) {
            ("open", _) => Ok(self.end.insert(End::new(&self.context)?).describe()),
            ("start", _) => {
                self.load = Some(self.end.take().ok_or("not open")?.start(words)?);
                Ok("started".to_owned())
            }
            ("quiet", Some(load)) => {
                load.enter(Phase::Quiet);
                Ok(wait_until(load, words, Progress::is_drained)?.to_string())
            }
            ("working", Some(load)) => Ok(wait_until(load, words, |progress| progress.completed > 0)?.to_string()),
            ("failed", Some(load)) => Ok(wait_until(load, words, |_| false)?.to_string()),
            ("close", Some(_)) => Ok(self.load.take().ok_or("no load")?.close().to_string()),
            ("census", _) => Ok(census()?),
            (other, _) => Err(format!("cannot {other} now").into()),
        }
    }
}

/// Returns the progress once it is `wanted` or broken, or after the milliseconds in `words`.
fn wait_until(load: &Load, words: &[&str], wanted: impl Fn(&Progress) -> bool) -> Result<Progress, Box<dyn Error>> {
    let limit = Duration::from_millis(words.first().ok_or("no limit")?.parse()?);
    let start = Instant::now();
    loop {
        let progress = load.progress();
        if wanted(&progress) || progress.is_broken() || start.elapsed() > limit {
            return Ok(progress);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the numbers of descriptors, rings and threads of this process.
fn census() -> std::io::Result<String> {
    let count = |folder: &str| Ok::<_, std::io::Error>(fs::read_dir(folder)?.count());
    let rings = fs::read_to_string("/proc/self/maps")?.lines().filter(|line| line.contains("memfd:roxe")).count();
    Ok(format!("{} {rings} {}", count("/proc/self/fd")?, count("/proc/self/task")?))
}

/// A peer, seen from the test.
pub(crate) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    /// Starts a peer with the runtime folder `runtime`.
    pub(crate) fn start(link: &str, runtime: &Path) -> Result<Self, String> {
        let start = || {
            Command::new(std::env::current_exe()?)
                .args(["kills", ROLE])
                .envs([("ROXE_LINK", link), ("ROXE_NETDEV", "lo")])
                .env("XDG_RUNTIME_DIR", runtime)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        };
        let mut child = start().map_err(|e| format!("cannot start a peer: {e}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().ok_or("a peer has no output")?);
        let (sender, answers) = mpsc::channel();
        // Ends with the peer's output.
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, input, answers })
    }

    /// Sends `line` and returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String, String> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        writeln!(input, "{line}").map_err(|e| format!("{line}: {e}"))?;
        let word = line.split(' ').next().unwrap_or_default();
        match self.answers.recv_timeout(ANSWER_LIMIT) {
            Ok(answer) if answer.starts_with("error: ") => Err(format!("{word}: {answer}")),
            Ok(answer) => Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("no answer to {word} in {ANSWER_LIMIT:?}")),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(format!("{word}: the process has ended")),
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that is not reaped yet.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Stops the process and waits until all its threads are stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the process is a child; waiting for its stop does not reap it.
        unsafe { libc::waitpid(self.child.id().cast_signed(), &raw mut status, libc::WUNTRACED) };
    }

    /// Kills the process and waits until it has left the process table.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        self.signal(libc::SIGKILL);
        self.child.wait().map(drop).map_err(|e| e.to_string())
    }

    /// Closes the process's input, and checks that it exits with 0.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.input = None;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("a peer ended with {}", other.map_or_else(|e| e.to_string(), describe))),
        }
    }

    /// Returns the time that all threads together waited for a processor.
    pub(crate) fn waited(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let waited = |file: String| fs::read_to_string(file).ok()?.split(' ').nth(1)?.parse::<u64>().ok();
        let each = tasks.filter_map(|task| waited(format!("{}/schedstat", task.path().display())));
        Duration::from_nanos(each.sum())
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
