//! Messages of the guest over its port: that it is ready, and which commands have ended. Touches
//! the port and a thread.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// Messages received so far; any thread may wait for more.
pub(super) struct News(Arc<Shared>);

#[derive(Default)]
struct Shared {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    ready: bool,
    /// Exit status by the number of the command.
    ended: HashMap<u32, i32>,
    /// Why no more will be understood.
    over: Option<String>,
}

impl From<ChildStdout> for News {
    /// Listens on `port` until it closes.
    fn from(port: ChildStdout) -> Self {
        let shared = Arc::new(Shared::default());
        let listener = Arc::clone(&shared);
        thread::spawn(move || {
            let lines = BufReader::new(port).lines().map_while(Result::ok);
            lines.for_each(|line| listener.update(|told| told.note(&line)));
            listener.update(|told| told.over = Some("the guest is gone".to_owned()));
        });
        Self(shared)
    }
}

impl News {
    /// Returns true if the guest is ready before the deadline.
    pub(super) fn is_ready(&self, deadline: Instant) -> io::Result<bool> {
        Ok(self.0.find(deadline, |told| told.ready.then_some(()))?.is_some())
    }

    /// Exit status of command `id`; `None` if it still runs at the deadline.
    pub(super) fn status(&self, id: u32, deadline: Instant) -> io::Result<Option<i32>> {
        self.0.find(deadline, |told| told.ended.get(&id).copied())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for a `wanted` message until the deadline; fails at once if the port has closed.
    fn find<T>(&self, deadline: Instant, wanted: impl Fn(&Told) -> Option<T>) -> io::Result<Option<T>> {
        let mut told = self.lock();
        loop {
            if let Some(found) = wanted(&told) {
                return Ok(Some(found));
            }
            if let Some(why) = &told.over {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, why.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            told = self.changed.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Told {
    /// `ready`, or `done ID STATUS`.
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["ready"] => self.ready = true,
            ["done", id, status] if let (Ok(id), Ok(status)) = (id.parse(), status.parse()) => {
                self.ended.insert(id, status);
            }
            _ => self.over = Some(format!("the guest said {line:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_ending_is_found_and_missing_one_is_an_error() {
        let (shared, now) = (Shared::default(), Instant::now());
        let status = |id: u32| shared.find(now, |told| told.ended.get(&id).copied());
        shared.update(|told| told.note("ready"));
        shared.update(|told| told.note("done 7 3"));
        assert!(shared.lock().ready);
        assert_eq!((status(7).unwrap(), status(8).unwrap()), (Some(3), None));
        shared.update(|told| told.note("done with it"));
        assert_eq!(status(7).unwrap(), Some(3));
        let far = now + Duration::from_secs(3600);
        assert!(shared.find(far, |told| told.ended.get(&8).copied()).is_err());
    }
}
