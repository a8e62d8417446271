//! Receives the guest's messages: it is ready, or a command has ended. A thread reads its port.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// The messages received so far. Several threads may wait for more.
pub(super) struct Messages(Arc<Shared>);

#[derive(Default)]
struct Shared {
    received: Mutex<Received>,
    changed: Condvar,
}

#[derive(Default)]
struct Received {
    ready: bool,
    /// Exit statuses of ended commands by command id.
    statuses: HashMap<u32, i32>,
    /// Reason for reading no more messages: the port was closed, or a message was malformed.
    closed: Option<String>,
}

impl From<ChildStdout> for Messages {
    /// Reads `port` in a thread until it closes.
    fn from(port: ChildStdout) -> Self {
        let shared = Arc::new(Shared::default());
        let listener = Arc::clone(&shared);
        thread::spawn(move || {
            let lines = BufReader::new(port).lines().map_while(Result::ok);
            lines.for_each(|line| listener.update(|received| received.parse(&line)));
            listener.update(|received| received.closed = Some("the guest is gone".to_owned()));
        });
        Self(shared)
    }
}

impl Messages {
    /// Waits until the guest is ready. Returns false if it is not ready at the deadline. Fails if
    /// the port has closed.
    pub(super) fn wait_ready(&self, deadline: Instant) -> io::Result<bool> {
        Ok(self.0.find(deadline, |received| received.ready.then_some(()))?.is_some())
    }

    /// Waits for the end of command `id` and returns its exit status; `None` if it still runs at
    /// the deadline. Fails if the port has closed.
    pub(super) fn status(&self, id: u32, deadline: Instant) -> io::Result<Option<i32>> {
        self.0.find(deadline, |received| received.statuses.get(&id).copied())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `wanted` returns a value. Returns `None` at the deadline, and fails once no more
    /// messages are read.
    fn find<T>(&self, deadline: Instant, wanted: impl Fn(&Received) -> Option<T>) -> io::Result<Option<T>> {
        let mut received = self.lock();
        loop {
            if let Some(found) = wanted(&received) {
                return Ok(Some(found));
            }
            if let Some(why) = &received.closed {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, why.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            received = self.changed.wait_timeout(received, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Received {
    /// Parses one line: `ready`, or `done ID STATUS`.
    fn parse(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["ready"] => self.ready = true,
            ["done", id, status] if let (Ok(id), Ok(status)) = (id.parse(), status.parse()) => {
                self.statuses.insert(id, status);
            }
            _ => self.closed = Some(format!("malformed message from the guest: {line:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ended_command_has_status_after_malformed_message() {
        let (shared, now) = (Shared::default(), Instant::now());
        let status = |id: u32| shared.find(now, |received| received.statuses.get(&id).copied());
        shared.update(|received| received.parse("ready"));
        shared.update(|received| received.parse("done 7 3"));
        assert!(shared.lock().ready);
        assert_eq!((status(7).unwrap(), status(8).unwrap()), (Some(3), None));
        shared.update(|received| received.parse("done with it"));
        assert_eq!(status(7).unwrap(), Some(3));
        let far = now + Duration::from_secs(3600);
        assert!(shared.find(far, |received| received.statuses.get(&8).copied()).is_err());
    }
}
