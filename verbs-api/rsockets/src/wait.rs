//! Waiting. A thread that is about to sleep registers its [`Waker`] with the sockets, checks the
//! sockets once more, and then polls the descriptors of the sockets and of its waker.
//!
//! A socket's descriptors wake every thread that sleeps on it, but the first of these threads
//! consumes the event. The event may be the one that another thread waits for. So a thread that
//! changes a socket wakes all its [`Watchers`], which check the socket again.

use crate::config::Config;
use crate::errno::os;
use crate::sys;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// An eventfd that wakes a thread. Clones wake the same thread.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<File>);

thread_local! {
    /// Process id and waker of the thread. A forked child creates its own waker, because it must
    /// not consume its parent's wakes.
    static OWN: RefCell<Option<(u32, Waker)>> = const { RefCell::new(None) };
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(File::from(sys::eventfd()?))))
    }

    /// Returns the waker of this thread.
    pub(crate) fn current() -> io::Result<Self> {
        let process = std::process::id();
        let known = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
        if let Some((_, waker)) = known.filter(|(pid, _)| *pid == process) {
            return Ok(waker);
        }
        let waker = Self::new()?;
        // Fails in exit handlers, which run after the thread-local variable is destroyed.
        let _ = OWN.try_with(|own| own.replace(Some((process, waker.clone()))));
        Ok(waker)
    }

    /// Returns a descriptor that is readable after [`wake`](Self::wake).
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        // Fails if the counter is full; it is readable then.
        let _ = (&*self.0).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        // Fails if the counter is 0; there is nothing to clear then.
        let _ = (&*self.0).read(&mut [0; 8]);
    }
}

/// Threads that sleep until a socket changes.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Vec<Waker>);

impl Watchers {
    pub(crate) fn add(&mut self, waker: &Waker) {
        self.0.push(waker.clone());
    }

    pub(crate) fn remove(&mut self, waker: &Waker) {
        if let Some(at) = self.0.iter().position(|other| Arc::ptr_eq(&other.0, &waker.0)) {
            self.0.swap_remove(at);
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn wake(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}

/// A socket that threads can wait for.
pub(crate) trait Source {
    /// Processes events. Returns the `poll(2)` events that are true, of `events`, POLLERR, POLLHUP
    /// and POLLNVAL.
    fn ready(&self, events: i16) -> i16;

    /// Reports changes from now on: wakes `waker`, and adds descriptors to `fds` that become
    /// readable.
    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>);

    fn unwatch(&self, waker: &Waker);
}

/// Waits until `done` returns true: polls for a short time, then sleeps. `done` must process the
/// events of `source`.
///
/// # Errors
/// EINTR after a signal, ETIMEDOUT at the `deadline`.
pub(crate) fn until(source: &impl Source, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> io::Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() >= Config::get().polling_time {
            return sleep_until(source, deadline, done);
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// Repeats `attempt` until it returns a value. Waits for one of `events` between attempts.
///
/// # Errors
/// Errors of `attempt`; EAGAIN without `wait`; EINTR.
pub(crate) fn retry<T>(
    source: &impl Source,
    wait: bool,
    events: i16,
    mut attempt: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<T> {
    loop {
        match attempt()? {
            Some(done) => return Ok(done),
            None if wait => until(source, None, || source.ready(events) != 0)?,
            None => return Err(os(libc::EAGAIN)),
        }
    }
}

fn sleep_until(source: &impl Source, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> io::Result<()> {
    let waker = Waker::current()?;
    loop {
        let mut fds = vec![pollin_entry(waker.fd())];
        source.watch(&waker, &mut fds);
        let slept = if done() { Ok(true) } else { sys::poll(&mut fds, millis_left(deadline)).map(|_| false) };
        source.unwatch(&waker);
        waker.clear();
        match slept? {
            true => return Ok(()),
            false if done() => return Ok(()),
            false if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Err(os(libc::ETIMEDOUT));
            }
            false => {}
        }
    }
}

/// Returns an entry that polls `fd` for POLLIN.
pub(crate) const fn pollin_entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Returns the timeout for `poll(2)`: milliseconds, rounded up; -1 without a deadline.
pub(crate) fn millis_left(deadline: Option<Instant>) -> i32 {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000));
    left.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: RawFd) -> bool {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut fds, 0).unwrap() == 1
    }

    #[test]
    fn watchers_are_woken_until_removed() {
        let (waker, mut watchers) = (Waker::current().unwrap(), Watchers::default());
        watchers.add(&waker);
        watchers.wake();
        assert!(is_readable(waker.fd()));
        waker.clear();
        assert!(!is_readable(waker.fd()));
        watchers.remove(&Waker::current().unwrap());
        watchers.wake();
        assert!(!is_readable(waker.fd()));
        waker.clear();
    }
}
