//! How far long work is, on standard error while that is a terminal: one line, which goes away.
//!
//! Touches standard error only.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The line is not written more often than this.
const PACE: Duration = Duration::from_millis(100);
/// Goes to the first column and clears the line (`man console_codes`).
const CLEAR: &str = "\r\x1b[K";

/// The line.
#[derive(Debug)]
pub(crate) struct Progress {
    total: usize,
    done: usize,
    last: Option<Instant>,
    is_seen: bool,
}

impl Progress {
    /// Nothing of `total` is done.
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: 0, last: None, is_seen: stderr().is_terminal() }
    }

    /// One more is done; `name` is what that was.
    pub(crate) fn step(&mut self, name: &str) {
        self.done += 1;
        let now = Instant::now();
        if self.is_seen && self.last.is_none_or(|last| now.duration_since(last) >= PACE) {
            self.last = Some(now);
            tell(&line(self.done, self.total, name));
        }
    }

    /// Makes room for other output.
    pub(crate) fn clear(&mut self) {
        if self.last.take().is_some() {
            tell(CLEAR);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A thread that counts seconds, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seconds(Option<(Sender<()>, JoinHandle<()>)>);

impl Seconds {
    /// Counts the seconds of work that ends by itself after `total` of them; not where nobody sees
    /// it.
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
            // It has nothing to say but that it panicked.
            let _ = thread.join();
        }
    }
}

/// Makes room for other output beside a line that another thread writes.
pub(crate) fn make_room() {
    if stderr().is_terminal() {
        tell(CLEAR);
    }
}

/// What is written for it. A long name would wrap, and stay.
fn line(done: usize, total: usize, name: &str) -> String {
    let name: String = name.chars().take(50).collect();
    format!("{CLEAR}{done} of {total}  {name}")
}

/// A terminal that is gone is no reason to end.
fn tell(text: &str) {
    let _ = write!(stderr(), "{text}").and_then(|()| stderr().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_the_place_of_the_one_before_and_never_wraps() {
        assert_eq!(line(3, 640, "requests/send"), "\r\x1b[K3 of 640  requests/send");
        assert!(line(usize::MAX, usize::MAX, &"long ".repeat(100)).len() < 120);
    }
}
