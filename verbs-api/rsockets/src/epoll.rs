//! `repoll`: sets of rsockets and other descriptors, like `epoll(7)`.
//!
//! This module keeps the members of a set, and waits for them with [`poll`](crate::poll()). The
//! kernel knows only an empty epoll descriptor, which reserves the set's number and is never
//! readable or writable. Reports are level-triggered: an edge-triggered member may get extra
//! reports, as `epoll(7)` allows.

use crate::errno::os;
use crate::lock::{EpollMembers, EpollSets};
use crate::poll::{PollFd, poll};
use crate::wait::{Waker, Watchers, millis_left, pollin_entry};
use crate::{socket, sys};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLONESHOT, epoll_event};
use roxe_provider::lock::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

static SETS: LazyLock<RwLock<EpollSets, HashMap<RawFd, Arc<EpollSet>>>> = LazyLock::new(RwLock::default);

#[derive(Debug)]
struct EpollSet {
    /// An empty epoll descriptor, whose number identifies the set.
    fd: OwnedFd,
    members: Mutex<EpollMembers, Members>,
}

#[derive(Debug, Default)]
struct Members {
    by_fd: BTreeMap<RawFd, epoll_event>,
    /// Number of changes that the program made to `by_fd`.
    changes: u64,
    /// Descriptor with which the next report begins, so that ready members take turns.
    next: RawFd,
    watchers: Watchers,
}

/// Returns the requested `poll(2)` events: the lower 16 bits of an epoll event. The upper bits are
/// flags such as `EPOLLONESHOT`.
const fn requested(event: &epoll_event) -> i16 {
    (event.events as u16).cast_signed()
}

impl Members {
    /// Returns the entries to poll, beginning with the member whose turn it is.
    fn entries(&self) -> Vec<PollFd> {
        let from_next = self.by_fd.range(self.next..);
        let all = from_next.chain(self.by_fd.range(..self.next)).filter(|(_, member)| requested(member) != 0);
        all.map(|(&fd, member)| PollFd { fd, events: requested(member), revents: 0 }).collect()
    }

    /// Returns the events of at most `max` ready `entries`, which [`entries`](Self::entries)
    /// returned after `changes` changes. A closed descriptor leaves the set, unless the program has
    /// changed the set since: the number may be that of a new member.
    fn report(&mut self, entries: &[PollFd], changes: u64, max: usize) -> Vec<epoll_event> {
        let mut events = Vec::new();
        for entry in entries.iter().filter(|entry| entry.revents != 0) {
            if entry.revents & libc::POLLNVAL != 0 {
                if self.changes == changes {
                    self.by_fd.remove(&entry.fd);
                }
                continue;
            }
            if events.len() == max {
                break;
            }
            let Some(member) = self.by_fd.get_mut(&entry.fd) else { continue };
            events.push(epoll_event { events: entry.revents.cast_unsigned().into(), u64: member.u64 });
            if member.events & EPOLLONESHOT.cast_unsigned() != 0 {
                member.events &= !0xffff;
            }
            self.next = entry.fd.saturating_add(1);
        }
        events
    }
}

/// Creates a set and returns its number: `repoll_create`. `EPOLL_CLOEXEC` is always on.
///
/// # Errors
/// EINVAL for other flags; EMFILE.
pub fn epoll_create(flags: i32) -> io::Result<RawFd> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(os(libc::EINVAL));
    }
    let set = EpollSet { fd: sys::epoll()?, members: Mutex::default() };
    let number = set.fd.as_raw_fd();
    SETS.write().insert(number, Arc::new(set));
    Ok(number)
}

/// Closes a set or a socket: `rclose`. A connected stream first delivers its data. In a forked
/// child it only closes the descriptor, and the parent keeps the connection.
///
/// # Errors
/// EBADF.
pub fn close(fd: RawFd) -> io::Result<()> {
    if SETS.write().remove(&fd).is_some() {
        return Ok(());
    }
    socket::close(fd)
}

fn find(epfd: RawFd) -> io::Result<Arc<EpollSet>> {
    SETS.read().get(&epfd).cloned().ok_or_else(|| os(libc::EBADF))
}

/// Adds, changes or removes a member, as `repoll_ctl` does. `op` is `EPOLL_CTL_ADD`, `_MOD` or
/// `_DEL`; `event` has the requested events and the program's data.
///
/// # Errors
/// EBADF for a number that is not a set, EEXIST for an existing member, ENOENT for a missing one,
/// EINVAL for another `op`, EFAULT without a required event.
pub fn epoll_ctl(epfd: RawFd, op: i32, fd: RawFd, event: Option<epoll_event>) -> io::Result<()> {
    let set = find(epfd)?;
    let mut members = set.members.lock();
    let is_member = members.by_fd.contains_key(&fd);
    match op {
        EPOLL_CTL_ADD if is_member => return Err(os(libc::EEXIST)),
        EPOLL_CTL_MOD | EPOLL_CTL_DEL if !is_member => return Err(os(libc::ENOENT)),
        EPOLL_CTL_ADD | EPOLL_CTL_MOD => {
            members.by_fd.insert(fd, event.ok_or_else(|| os(libc::EFAULT))?);
        }
        EPOLL_CTL_DEL => {
            members.by_fd.remove(&fd);
        }
        _ => return Err(os(libc::EINVAL)),
    }
    members.changes += 1;
    members.watchers.wake();
    Ok(())
}

/// Waits until a member is ready: `repoll_wait`. Returns at most `max` events, and none after
/// `timeout` milliseconds; a negative timeout waits forever. If more members are ready, they take
/// turns in successive calls.
///
/// # Errors
/// EBADF for a number that is not a set; EINTR after a signal.
pub fn epoll_wait(epfd: RawFd, max: usize, timeout: i32) -> io::Result<Vec<epoll_event>> {
    let set = find(epfd)?;
    let events = set.poll_once(max, None, 0)?;
    if !events.is_empty() || timeout == 0 {
        return Ok(events);
    }
    let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    // A new waker: every `poll` clears the waker of its thread, and would lose a wake.
    let waker = Waker::new()?;
    set.members.lock().watchers.add(&waker);
    let result = set.sleep(max, &waker, deadline);
    set.members.lock().watchers.remove(&waker);
    result
}

impl EpollSet {
    /// Polls the members once, and returns their events. Waits for at most `timeout` milliseconds,
    /// and returns early when another thread wakes `waker`.
    fn poll_once(&self, max: usize, waker: Option<&Waker>, timeout: i32) -> io::Result<Vec<epoll_event>> {
        let (mut entries, changes) = {
            let members = self.members.lock();
            (members.entries(), members.changes)
        };
        entries.extend(waker.map(|waker| pollin_entry(waker.fd())));
        poll(&mut entries, timeout)?;
        if let Some(waker) = waker {
            entries.pop();
            waker.clear();
        }
        Ok(self.members.lock().report(&entries, changes, max))
    }

    fn sleep(&self, max: usize, waker: &Waker, deadline: Option<Instant>) -> io::Result<Vec<epoll_event>> {
        loop {
            let events = self.poll_once(max, Some(waker), millis_left(deadline))?;
            if !events.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_descriptor_is_neither_readable_nor_writable() {
        let set = epoll_create(0).unwrap();
        let mut fds = [libc::pollfd { fd: set, events: libc::POLLIN | libc::POLLOUT, revents: 0 }];
        assert_eq!((sys::poll(&mut fds, 0).unwrap(), fds[0].revents), (0, 0));
        close(set).unwrap();
    }

    #[test]
    fn closed_member_leaves_the_set_unless_the_set_changed() {
        let mut members = Members { changes: 2, ..Members::default() };
        members.by_fd.insert(7, epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 1 });
        let closed = [PollFd { fd: 7, events: libc::POLLIN, revents: libc::POLLNVAL }];
        assert!(members.report(&closed, 1, 10).is_empty() && members.by_fd.contains_key(&7));
        assert!(members.report(&closed, 2, 10).is_empty() && members.by_fd.is_empty());
    }
}
