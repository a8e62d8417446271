//! `rpoll` and `rselect`: waiting for rsockets and ordinary descriptors together.

use crate::config::Config;
use crate::errno::os;
use crate::socket::{Socket, find};
use crate::sys;
use crate::wait::{Source, Waker, millis_left, waiting_for};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requested and returned events of one descriptor: `struct pollfd`.
pub use libc::pollfd as PollFd;

/// Waits until one of `fds`, rsockets or other descriptors, is ready. Sets `revents` and returns
/// how many are not 0. `timeout` is in milliseconds; negative waits forever. Entries with a
/// negative descriptor are ignored.
///
/// # Errors
/// Errors of `poll(2)`; EINTR after a signal.
pub fn poll(fds: &mut [PollFd], timeout: i32) -> io::Result<usize> {
    let start = Instant::now();
    let deadline = u64::try_from(timeout).ok().and_then(|ms| start.checked_add(Duration::from_millis(ms)));
    let mut set = Set::new(fds);
    loop {
        let ready = set.look()?;
        if ready > 0 || timeout == 0 {
            return Ok(ready);
        }
        if start.elapsed() >= Config::get().polling_time {
            return set.sleep(deadline);
        }
    }
}

/// The descriptors of a call, divided into rsockets and others.
struct Set<'a> {
    fds: &'a mut [PollFd],
    sockets: Vec<(usize, Arc<Socket>)>,
    /// Entries that the system polls, and their indices in `fds`.
    others: Vec<PollFd>,
    places: Vec<usize>,
}

impl<'a> Set<'a> {
    fn new(fds: &'a mut [PollFd]) -> Self {
        let (mut sockets, mut others, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (place, entry) in fds.iter().enumerate() {
            match find(entry.fd) {
                Some(socket) => sockets.push((place, socket)),
                None => {
                    others.push(*entry);
                    places.push(place);
                }
            }
        }
        Self { fds, sockets, others, places }
    }

    /// Updates `revents` without waiting; returns how many are not 0.
    fn look(&mut self) -> io::Result<usize> {
        for (place, socket) in &self.sockets {
            let entry = &mut self.fds[*place];
            entry.revents = socket.ready(entry.events);
        }
        if !self.others.is_empty() {
            sys::poll(&mut self.others, 0)?;
            for (place, other) in self.places.iter().zip(&self.others) {
                self.fds[*place].revents = other.revents;
            }
        }
        Ok(self.fds.iter().filter(|entry| entry.revents != 0).count())
    }

    /// Sleeps until something is ready or the deadline has passed.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<usize> {
        let waker = Waker::current()?;
        loop {
            let mut asleep = self.others.clone();
            asleep.push(waiting_for(waker.fd()));
            self.sockets.iter().for_each(|(_, socket)| socket.watch(&waker, &mut asleep));
            let result = match self.look() {
                Ok(0) => nap(&mut asleep, deadline).map(|()| 0),
                result => result,
            };
            self.sockets.iter().for_each(|(_, socket)| socket.unwatch(&waker));
            waker.clear();
            let ready = match result? {
                0 => self.look()?,
                ready => ready,
            };
            if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ready);
            }
        }
    }
}

/// Sleeps, at most as long as the configuration allows.
fn nap(asleep: &mut [PollFd], deadline: Option<Instant>) -> io::Result<()> {
    let longest = i32::try_from(Config::get().wake_up.as_millis()).unwrap_or(i32::MAX);
    let millis = match millis_left(deadline) {
        left if left < 0 => longest,
        left => left.min(longest),
    };
    sys::poll(asleep, millis).map(drop)
}

/// `select(2)` with rsockets. `sets` are read, write and exception sets with a bit per descriptor,
/// lowest bit of the first word first, as in `fd_set`. Only the first `nfds` bits are used. The
/// sets return the ready descriptors. `timeout` is in milliseconds; negative waits forever.
/// Returns the number of set bits.
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
    Ok(found(&fds, sets))
}

/// Requested events of each set.
const REQUESTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Events that make a descriptor ready in each set.
const READY: [i16; 3] = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

fn requested(count: usize, sets: &[Option<&mut [u64]>; 3]) -> Vec<PollFd> {
    let has = |set: &Option<&mut [u64]>, fd: usize| set.as_ref().is_some_and(|set| set[fd / 64] >> (fd % 64) & 1 == 1);
    let entry = |fd: usize| {
        let wanted = sets.iter().zip(REQUESTS).filter(|(set, _)| has(set, fd));
        let events = wanted.fold(0, |events, (_, event)| events | event);
        PollFd { fd: fd as RawFd, events, revents: 0 }
    };
    (0..count).map(entry).filter(|entry| entry.events != 0).collect()
}

fn found(fds: &[PollFd], sets: [Option<&mut [u64]>; 3]) -> usize {
    let mut bits = 0;
    for ((set, ask), ready) in sets.into_iter().zip(REQUESTS).zip(READY) {
        let Some(set) = set else { continue };
        set.fill(0);
        for entry in fds.iter().filter(|entry| entry.events & ask != 0 && entry.revents & ready != 0) {
            let fd = entry.fd as usize;
            set[fd / 64] |= 1 << (fd % 64);
            bits += 1;
        }
    }
    bits
}
