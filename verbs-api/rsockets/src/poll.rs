//! `rpoll` and `rselect`: waiting for rsockets and ordinary descriptors together.

use crate::config::Config;
use crate::errno::os;
use crate::socket::{Socket, find};
use crate::sys;
use crate::wait::{Source, Waker, millis_left, pollin_entry};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requested and returned events of one descriptor: `struct pollfd`.
pub use libc::pollfd as PollFd;

/// Waits until one of `fds`, rsockets or other descriptors, is ready. Sets `revents` and returns
/// the number of ready entries. `timeout` is in milliseconds; a negative timeout waits forever.
/// Entries with a negative descriptor are ignored.
///
/// # Errors
/// Errors of `poll(2)`; EINTR after a signal.
pub fn poll(fds: &mut [PollFd], timeout: i32) -> io::Result<usize> {
    let start = Instant::now();
    let deadline = u64::try_from(timeout).ok().and_then(|ms| start.checked_add(Duration::from_millis(ms)));
    let mut set = PollSet::new(fds);
    loop {
        let ready = set.poll_now()?;
        if ready > 0 || timeout == 0 {
            return Ok(ready);
        }
        if start.elapsed() >= Config::get().polling_time {
            return set.sleep(deadline);
        }
    }
}

/// The descriptors of a call, divided into rsockets and others.
struct PollSet<'a> {
    fds: &'a mut [PollFd],
    /// Rsockets, with their indices in `fds`.
    sockets: Vec<(usize, Arc<Socket>)>,
    /// Entries that the kernel polls.
    others: Vec<PollFd>,
    /// Indices in `fds` of `others`.
    other_indices: Vec<usize>,
}

impl<'a> PollSet<'a> {
    fn new(fds: &'a mut [PollFd]) -> Self {
        let (mut sockets, mut others, mut other_indices) = (Vec::new(), Vec::new(), Vec::new());
        for (index, entry) in fds.iter().enumerate() {
            match find(entry.fd) {
                Some(socket) => sockets.push((index, socket)),
                None => {
                    others.push(*entry);
                    other_indices.push(index);
                }
            }
        }
        Self { fds, sockets, others, other_indices }
    }

    /// Updates `revents` without waiting; returns the number of ready entries.
    fn poll_now(&mut self) -> io::Result<usize> {
        for (index, socket) in &self.sockets {
            let entry = &mut self.fds[*index];
            entry.revents = socket.ready(entry.events);
        }
        if !self.others.is_empty() {
            sys::poll(&mut self.others, 0)?;
            for (index, other) in self.other_indices.iter().zip(&self.others) {
                self.fds[*index].revents = other.revents;
            }
        }
        Ok(self.fds.iter().filter(|entry| entry.revents != 0).count())
    }

    /// Sleeps until an entry is ready or the deadline has passed.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<usize> {
        let waker = Waker::current()?;
        loop {
            let mut fds = self.others.clone();
            fds.push(pollin_entry(waker.fd()));
            self.sockets.iter().for_each(|(_, socket)| socket.watch(&waker, &mut fds));
            let result = match self.poll_now() {
                Ok(0) => sleep_once(&mut fds, deadline).map(|()| 0),
                result => result,
            };
            self.sockets.iter().for_each(|(_, socket)| socket.unwatch(&waker));
            waker.clear();
            let ready = match result? {
                0 => self.poll_now()?,
                ready => ready,
            };
            if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ready);
            }
        }
    }
}

/// Sleeps until one of `fds` is ready, at most for [`Config::wake_up_interval`].
fn sleep_once(fds: &mut [PollFd], deadline: Option<Instant>) -> io::Result<()> {
    let max = i32::try_from(Config::get().wake_up_interval.as_millis()).unwrap_or(i32::MAX);
    let millis = match millis_left(deadline) {
        left if left < 0 => max,
        left => left.min(max),
    };
    sys::poll(fds, millis).map(drop)
}

/// Waits like `select(2)`, for rsockets and other descriptors. `sets` are the read, write and
/// exception sets, with the layout of `fd_set`; only their first `nfds` bits are used. Leaves the
/// ready descriptors in the sets and returns their number. `timeout` is in milliseconds; a negative
/// timeout waits forever.
///
/// # Errors
/// EBADF if a set contains a descriptor that is not open, EINVAL if `nfds` exceeds a set, EINTR.
pub fn select(nfds: RawFd, sets: [Option<&mut [u64]>; 3], timeout: i32) -> io::Result<usize> {
    let count = usize::try_from(nfds).map_err(|_| os(libc::EINVAL))?;
    if sets.iter().flatten().any(|set| set.len() * 64 < count) {
        return Err(os(libc::EINVAL));
    }
    let mut fds = requested(count, &sets);
    poll(&mut fds, timeout)?;
    if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(os(libc::EBADF));
    }
    Ok(write_ready(&fds, sets))
}

/// Events that the read, write and exception sets request.
const REQUESTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Events that make a descriptor ready in the read, write and exception sets.
const READY: [i16; 3] = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// Returns an entry for each of the first `count` descriptors that is in a set.
fn requested(count: usize, sets: &[Option<&mut [u64]>; 3]) -> Vec<PollFd> {
    let has = |set: &Option<&mut [u64]>, fd: usize| set.as_ref().is_some_and(|set| set[fd / 64] >> (fd % 64) & 1 == 1);
    let entry = |fd: usize| {
        let wanted = sets.iter().zip(REQUESTS).filter(|(set, _)| has(set, fd));
        let events = wanted.fold(0, |events, (_, event)| events | event);
        PollFd { fd: fd as RawFd, events, revents: 0 }
    };
    (0..count).map(entry).filter(|entry| entry.events != 0).collect()
}

/// Writes the ready descriptors to the sets; returns their number.
fn write_ready(fds: &[PollFd], sets: [Option<&mut [u64]>; 3]) -> usize {
    let mut bits = 0;
    for ((set, requested), ready) in sets.into_iter().zip(REQUESTS).zip(READY) {
        let Some(set) = set else { continue };
        set.fill(0);
        for entry in fds.iter().filter(|entry| entry.events & requested != 0 && entry.revents & ready != 0) {
            let fd = entry.fd as usize;
            set[fd / 64] |= 1 << (fd % 64);
            bits += 1;
        }
    }
    bits
}
