//! Waiting. A thread that sleeps registers its [`Waker`] with the sockets, checks them once more,
//! and polls their descriptors and its own.
//!
//! A socket's descriptors wake every thread that sleeps on it, but the first of them consumes the
//! event, and with it perhaps the change that another one waits for. So a thread that changes a
//! socket wakes the others, which check again.

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
    /// With its process: a forked child must not consume its parent's wakes.
    static OWN: RefCell<Option<(u32, Waker)>> = const { RefCell::new(None) };
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(File::from(sys::eventfd()?))))
    }

    pub(crate) fn current() -> io::Result<Self> {
        let process = std::process::id();
        let known = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
        if let Some((_, waker)) = known.filter(|(of, _)| *of == process) {
            return Ok(waker);
        }
        let waker = Self::new()?;
        // Not kept in exit handlers, where the variable is gone.
        let _ = OWN.try_with(|own| own.replace(Some((process, waker.clone()))));
        Ok(waker)
    }

    /// Readable after [`wake`](Self::wake).
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        // A full counter is already readable.
        let _ = (&*self.0).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        // Empty if there were none.
        let _ = (&*self.0).read(&mut [0; 8]);
    }
}

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

pub(crate) trait Source {
    /// Processes events; returns those of `events`, POLLERR, POLLHUP and POLLNVAL that are true.
    fn ready(&self, events: i16) -> i16;

    /// Reports changes from now on, to `waker` and on descriptors that it adds to `fds`.
    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>);

    fn unwatch(&self, waker: &Waker);
}

/// Waits until `done`, which processes events, returns true: polls for a short time, then sleeps.
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

/// Repeats `attempt` until it returns a value, and waits for one of `events` in between.
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
        let mut fds = vec![waiting_for(waker.fd())];
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

pub(crate) const fn waiting_for(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Milliseconds for `poll(2)`, rounded up; -1 without a deadline.
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
