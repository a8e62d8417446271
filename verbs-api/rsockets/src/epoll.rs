//! `repoll`: sets of rsockets and other descriptors, like `epoll(7)`.
//!
//! A set exists here, not in the kernel; a wait is a [`poll`](crate::poll()) of its members. Its
//! number is an empty epoll descriptor, which no file shares and which never polls as writable.
//! Reports are level-triggered: an edge-triggered member may get extra reports, as `epoll(7)`
//! allows.

use crate::errno::os;
use crate::lock::{EpollMembers, EpollSets};
use crate::poll::{PollFd, poll};
use crate::wait::{Waker, Watchers, millis_left, waiting_for};
use crate::{socket, sys};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLONESHOT, epoll_event};
use roxe_provider::lock::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

static SETS: LazyLock<RwLock<EpollSets, HashMap<RawFd, Arc<Set>>>> = LazyLock::new(RwLock::default);

#[derive(Debug)]
struct Set {
    /// An empty epoll descriptor, whose number is the set's.
    number: OwnedFd,
    members: Mutex<EpollMembers, Members>,
}

#[derive(Debug, Default)]
struct Members {
    by_fd: BTreeMap<RawFd, epoll_event>,
    /// Number of changes by the program.
    changes: u64,
    /// First descriptor of the next report, for fairness.
    next: RawFd,
    watchers: Watchers,
}

/// Requested `poll(2)` events, the lower bits of an epoll event; the bits above modify reports.
const fn requested(event: &epoll_event) -> i16 {
    (event.events as u16).cast_signed()
}

impl Members {
    /// Entries to poll, beginning with the member whose turn it is.
    fn entries(&self) -> Vec<PollFd> {
        let later = self.by_fd.range(self.next..);
        let all = later.chain(self.by_fd.range(..self.next)).filter(|(_, member)| requested(member) != 0);
        all.map(|(&fd, member)| PollFd { fd, events: requested(member), revents: 0 }).collect()
    }

    /// Reports at most `room` ready `entries`, which were read after `changes` changes. A closed
    /// descriptor leaves the set, unless a member with the same number was added meanwhile.
    fn report(&mut self, entries: &[PollFd], changes: u64, room: usize) -> Vec<epoll_event> {
        let mut found = Vec::new();
        for entry in entries.iter().filter(|entry| entry.revents != 0) {
            if entry.revents & libc::POLLNVAL != 0 {
                if self.changes == changes {
                    self.by_fd.remove(&entry.fd);
                }
                continue;
            }
            if found.len() == room {
                break;
            }
            let Some(member) = self.by_fd.get_mut(&entry.fd) else { continue };
            found.push(epoll_event { events: entry.revents.cast_unsigned().into(), u64: member.u64 });
            if member.events & EPOLLONESHOT.cast_unsigned() != 0 {
                member.events &= !0xffff;
            }
            self.next = entry.fd.saturating_add(1);
        }
        found
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
    let set = Set { number: sys::epoll()?, members: Mutex::default() };
    let number = set.number.as_raw_fd();
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

fn find(epfd: RawFd) -> io::Result<Arc<Set>> {
    SETS.read().get(&epfd).cloned().ok_or_else(|| os(libc::EBADF))
}

/// Adds, changes or removes a member: `repoll_ctl`. `op` is `EPOLL_CTL_ADD`, `_MOD` or `_DEL`;
/// `event` has the requested events and the program's data.
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

/// Waits until a member is ready: `repoll_wait`. Returns at most `room` events, and none after
/// `timeout` milliseconds; negative waits forever. Members take turns.
///
/// # Errors
/// EBADF for a number that is not a set; EINTR after a signal.
pub fn epoll_wait(epfd: RawFd, room: usize, timeout: i32) -> io::Result<Vec<epoll_event>> {
    let set = find(epfd)?;
    let found = set.look(room, None, 0)?;
    if !found.is_empty() || timeout == 0 {
        return Ok(found);
    }
    let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    // Not the waker of the thread, which every poll clears.
    let waker = Waker::new()?;
    set.members.lock().watchers.add(&waker);
    let result = set.sleep(room, &waker, deadline);
    set.members.lock().watchers.remove(&waker);
    result
}

impl Set {
    /// Returns events within `timeout` milliseconds, or until the waker is woken.
    fn look(&self, room: usize, waker: Option<&Waker>, timeout: i32) -> io::Result<Vec<epoll_event>> {
        let (mut entries, changes) = {
            let members = self.members.lock();
            (members.entries(), members.changes)
        };
        entries.extend(waker.map(|waker| waiting_for(waker.fd())));
        poll(&mut entries, timeout)?;
        if let Some(waker) = waker {
            entries.pop();
            waker.clear();
        }
        Ok(self.members.lock().report(&entries, changes, room))
    }

    fn sleep(&self, room: usize, waker: &Waker, deadline: Option<Instant>) -> io::Result<Vec<epoll_event>> {
        loop {
            let found = self.look(room, Some(waker), millis_left(deadline))?;
            if !found.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_set_is_neither_readable_nor_writable() {
        let set = epoll_create(0).unwrap();
        let mut fds = [libc::pollfd { fd: set, events: libc::POLLIN | libc::POLLOUT, revents: 0 }];
        assert_eq!((sys::poll(&mut fds, 0).unwrap(), fds[0].revents), (0, 0));
        close(set).unwrap();
    }

    #[test]
    fn closed_member_leaves_the_set_unless_changed_meanwhile() {
        let mut members = Members { changes: 2, ..Members::default() };
        members.by_fd.insert(7, epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 1 });
        let closed = [PollFd { fd: 7, events: libc::POLLIN, revents: libc::POLLNVAL }];
        assert!(members.report(&closed, 1, 10).is_empty() && members.by_fd.contains_key(&7));
        assert!(members.report(&closed, 2, 10).is_empty() && members.by_fd.is_empty());
    }
}
