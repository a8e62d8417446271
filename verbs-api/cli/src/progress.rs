//! Shows the progress of a long command: one line on standard error, if that is a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Minimum time between two updates.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Text that clears the terminal's current line (`man console_codes`).
const CLEAR: &str = "\r\x1b[K";

#[derive(Debug)]
pub(crate) struct Progress {
    total: usize,
    done: usize,
    /// Time of the last update; `None` if the line is cleared.
    last: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: 0, last: None, is_terminal: stderr().is_terminal() }
    }

    /// Counts a completed step, and shows its name at most every [`MIN_INTERVAL`].
    pub(crate) fn step(&mut self, name: &str) {
        self.done += 1;
        let now = Instant::now();
        if self.is_terminal && self.last.is_none_or(|last| now.duration_since(last) >= MIN_INTERVAL) {
            self.last = Some(now);
            write(&progress_line(self.done, self.total, name));
        }
    }

    /// Clears the line, so that other output can be printed.
    pub(crate) fn clear(&mut self) {
        if self.last.take().is_some() {
            write(CLEAR);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A thread that shows the elapsed seconds until this value is dropped.
#[derive(Debug)]
pub(crate) struct ElapsedSeconds(Option<(Sender<()>, JoinHandle<()>)>);

impl ElapsedSeconds {
    /// Starts the thread if standard error is a terminal; the work takes `total` seconds.
    pub(crate) fn show(total: u64) -> Self {
        let mut progress = Progress::new(usize::try_from(total).unwrap_or(usize::MAX));
        let (end, ended) = mpsc::channel::<()>();
        let show = move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                progress.step("seconds");
            }
        };
        let thread = stderr().is_terminal().then(|| thread::Builder::new().spawn(show).ok()).flatten();
        Self(thread.map(|thread| (end, thread)))
    }
}

impl Drop for ElapsedSeconds {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            _ = thread.join();
        }
    }
}

/// Clears the line of [`ElapsedSeconds`], so that other output can be printed.
pub(crate) fn clear_line() {
    if stderr().is_terminal() {
        write(CLEAR);
    }
}

/// Returns the text of the line. Shortens the name, because a wrapped line could not be cleared.
fn progress_line(done: usize, total: usize, name: &str) -> String {
    let name: String = name.chars().take(50).collect();
    format!("{CLEAR}{done} of {total}  {name}")
}

/// Writes to standard error. Ignores errors, because the terminal may be closed.
fn write(text: &str) {
    _ = write!(stderr(), "{text}").and_then(|()| stderr().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_replaces_previous_line_and_never_wraps() {
        assert_eq!(progress_line(3, 640, "requests/send"), "\r\x1b[K3 of 640  requests/send");
        assert!(progress_line(usize::MAX, usize::MAX, &"long ".repeat(100)).len() < 120);
    }
}
