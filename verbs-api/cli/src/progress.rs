//! Progress of long work: one line on standard error, if that is a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Minimum time between two updates.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Clears the line (`man console_codes`).
const CLEAR: &str = "\r\x1b[K";

#[derive(Debug)]
pub(crate) struct Progress {
    total: usize,
    done: usize,
    /// Time of the last update, if the line is visible.
    last: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: 0, last: None, is_terminal: stderr().is_terminal() }
    }

    /// Counts one more step with this name.
    pub(crate) fn step(&mut self, name: &str) {
        self.done += 1;
        let now = Instant::now();
        if self.is_terminal && self.last.is_none_or(|last| now.duration_since(last) >= MIN_INTERVAL) {
            self.last = Some(now);
            write(&line(self.done, self.total, name));
        }
    }

    /// Removes the line, for other output.
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
pub(crate) struct Seconds(Option<(Sender<()>, JoinHandle<()>)>);

impl Seconds {
    /// Starts the thread if standard error is a terminal; the work takes `total` seconds.
    pub(crate) fn count(total: u64) -> Self {
        let mut progress = Progress::new(usize::try_from(total).unwrap_or(usize::MAX));
        let (end, ended) = mpsc::channel::<()>();
        let count = move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                progress.step("seconds");
            }
        };
        let thread = stderr().is_terminal().then(|| thread::Builder::new().spawn(count).ok()).flatten();
        Self(thread.map(|thread| (end, thread)))
    }
}

impl Drop for Seconds {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            _ = thread.join();
        }
    }
}

/// Removes the line of [`Seconds`], for other output.
pub(crate) fn clear_line() {
    if stderr().is_terminal() {
        write(CLEAR);
    }
}

/// Returns the line. Shortens the name, because a wrapped line could not be cleared.
fn line(done: usize, total: usize, name: &str) -> String {
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
    fn progress_line_replaces_the_previous_one_without_wrapping() {
        assert_eq!(line(3, 640, "requests/send"), "\r\x1b[K3 of 640  requests/send");
        assert!(line(usize::MAX, usize::MAX, &"long ".repeat(100)).len() < 120);
    }
}
