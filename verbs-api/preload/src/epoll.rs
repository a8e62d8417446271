//! `epoll` sets with rsockets.
//!
//! This module keeps the rsockets of a set, and the kernel keeps the other members. A wait polls
//! both. Members may be level-triggered, one-shot or edge-triggered. An
//! edge is an event that is true and was not reported since the program last used the socket. It is
//! reported whenever the kernel would report it, and sometimes once more, as `man 7 epoll` allows.
//!
//! A set that is a member of another set, or that a program passes to `poll`, reports only the
//! kernel's members.

use crate::rdma::rdma_library;
use crate::real::real;
use crate::{errno, fail, set_errno};
use core::ffi::{c_int, c_short};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT};
use libc::{POLLIN, epoll_event, nfds_t, pollfd};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

#[derive(Debug)]
struct Member {
    /// Descriptor number of the rsocket.
    rsocket: RawFd,
    /// Requested events and flags.
    events: u32,
    /// The program's data.
    data: u64,
    /// If edge-triggered, events reported since the program last used the socket.
    reported: u32,
    /// True if the member is edge-triggered and has nothing to report until the program uses the
    /// socket.
    parked: bool,
}

impl Member {
    fn has_flag(&self, flag: c_int) -> bool {
        self.events & flag.cast_unsigned() != 0
    }

    /// Returns the events to poll; `None` if the member is not to be polled.
    fn events_to_poll(&self) -> Option<c_short> {
        let events = self.events as u16;
        (events != 0 && !self.parked).then_some((events & !self.reported as u16).cast_signed())
    }

    /// Returns the event to report if the events `now` are true, and records it; `None` if there is
    /// nothing to report.
    fn report(&mut self, now: u32) -> Option<epoll_event> {
        let wanted = now & (self.events | (EPOLLERR | EPOLLHUP).cast_unsigned());
        if self.has_flag(EPOLLET) {
            self.parked = wanted & !self.reported == 0;
            self.reported |= wanted;
        }
        if wanted == 0 || self.parked {
            return None;
        }
        if self.has_flag(EPOLLONESHOT) {
            self.events &= !0xffff;
        }
        Some(epoll_event { events: wanted, u64: self.data })
    }
}

/// The rsockets of an epoll set.
#[derive(Debug)]
struct EpollSet {
    /// Members by the program's descriptor.
    members: BTreeMap<RawFd, Member>,
    /// An eventfd in the kernel's set. It is readable while a thread waits with an outdated list of
    /// members.
    changed: RawFd,
    /// Number of changes of `members`.
    generation: u64,
    /// Number of waiting threads.
    waiting: usize,
    /// Number of waiting threads whose list of members is outdated.
    stale: usize,
    /// Last reported member. The next report begins after it, so that members take turns.
    last: RawFd,
}

/// Sets that have had an rsocket, by the program's descriptor.
static SETS: Mutex<BTreeMap<RawFd, EpollSet>> = Mutex::new(BTreeMap::new());

/// True once any set has had an rsocket.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns true once any set has had an rsocket. Until then the kernel handles all sets alone.
pub(crate) fn in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Returns the data of `changed` in the kernel's set: an address in this library, which no program
/// uses as data.
fn changed_data() -> u64 {
    (&raw const SETS).addr() as u64
}

impl EpollSet {
    /// Creates a set, and adds `changed` to the kernel's set. On failure sets `errno` and returns
    /// `None`.
    fn new(epfd: RawFd) -> Option<Self> {
        // The initial value 1 makes it readable: threads that wait already must learn that the set
        // has rsockets.
        // SAFETY: the call takes no pointers.
        let changed = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if changed < 0 {
            return None;
        }
        let mut event = epoll_event { events: EPOLLIN.cast_unsigned(), u64: changed_data() };
        // SAFETY: `event` is a local variable.
        if unsafe { (real().epoll_ctl)(epfd, EPOLL_CTL_ADD, changed, &raw mut event) } < 0 {
            let why = errno();
            // SAFETY: this function created the descriptor, and closes it once.
            unsafe { (real().close)(changed) };
            fail(why);
            return None;
        }
        Some(Self { members: BTreeMap::new(), changed, generation: 0, waiting: 0, stale: 0, last: -1 })
    }

    /// Makes waiting threads read the members again, after a change.
    fn wake_waiting(&mut self) {
        self.generation += 1;
        self.stale = self.waiting;
        if self.waiting > 0 {
            let one = 1u64;
            // SAFETY: a local variable of eight bytes, as an eventfd requires.
            unsafe { (real().write)(self.changed, (&raw const one).cast(), size_of::<u64>()) };
        }
    }

    /// Clears `changed` if no waiting thread is stale.
    fn clear_if_current(&self) {
        let mut count = 0u64;
        if self.stale == 0 {
            // SAFETY: a local variable of eight bytes, as an eventfd requires.
            unsafe { (real().read)(self.changed, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }
}

/// Runs `body`, and restores `errno`.
fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = body();
    set_errno(before);
    done
}

/// Does `epoll_ctl` for `rsocket`, behind the program's descriptor `fd`. `event` has the requested
/// events and the program's data.
pub(crate) fn control(epfd: RawFd, op: c_int, fd: RawFd, rsocket: RawFd, event: Option<(u32, u64)>) -> c_int {
    let mut sets = SETS.lock();
    if op == EPOLL_CTL_ADD && !sets.contains_key(&epfd) {
        IN_USE.store(true, Ordering::Relaxed);
        let Some(set) = EpollSet::new(epfd) else { return -1 };
        sets.insert(epfd, set);
    }
    let Some(set) = sets.get_mut(&epfd) else { return fail(libc::ENOENT) };
    let known = set.members.contains_key(&fd);
    match (op, event) {
        (EPOLL_CTL_ADD, Some(_)) if known => return fail(libc::EEXIST),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, _) if !known => return fail(libc::ENOENT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some((events, data))) => {
            set.members.insert(fd, Member { rsocket, events, data, reported: 0, parked: false });
        }
        (EPOLL_CTL_DEL, _) => _ = set.members.remove(&fd),
        _ => return fail(libc::EINVAL),
    }
    set.wake_waiting();
    0
}

/// Makes `event` (`POLLIN` or `POLLOUT`) of an edge-triggered member reportable again, after the
/// program used the socket.
pub(crate) fn rearm(fd: RawFd, event: c_short) {
    if !in_use() {
        return;
    }
    keeping_errno(|| {
        for set in SETS.lock().values_mut() {
            let Some(member) = set.members.get_mut(&fd).filter(|member| member.has_flag(EPOLLET)) else { continue };
            let event = u32::from(event.cast_unsigned());
            let changes_interest = member.parked || member.reported & event != 0;
            member.reported &= !event;
            member.parked = false;
            if changes_interest {
                set.wake_waiting();
            }
        }
    });
}

/// Removes a descriptor that the program closes: a set, or a member of sets.
pub(crate) fn remove_closed(fd: RawFd) {
    if !in_use() {
        return;
    }
    keeping_errno(|| {
        let mut sets = SETS.lock();
        if let Some(set) = sets.remove(&fd) {
            // SAFETY: `Set::new` created the descriptor, and the set that owned it is gone.
            unsafe { (real().close)(set.changed) };
        }
        for set in sets.values_mut() {
            if set.members.remove(&fd).is_some() {
                set.wake_waiting();
            }
        }
    });
}

/// Moves a member to the kernel's sets, because its descriptor becomes an ordinary one.
pub(crate) fn move_to_kernel(fd: RawFd) {
    if !in_use() {
        return;
    }
    for (epfd, set) in SETS.lock().iter_mut() {
        if let Some(Member { events, data, .. }) = set.members.remove(&fd) {
            let mut event = epoll_event { events, u64: data };
            // SAFETY: `event` is a local variable.
            unsafe { (real().epoll_ctl)(*epfd, EPOLL_CTL_ADD, fd, &raw mut event) };
            set.wake_waiting();
        }
    }
}

/// Locks the sets before a fork, so that the child's copy is consistent. Parent and child then call
/// [`unlock_after_fork`].
pub(crate) fn lock_for_fork() {
    core::mem::forget(SETS.lock());
}

/// Unlocks the sets after a fork.
///
/// # Safety
///
/// The calling thread, or its parent in the child, has called [`lock_for_fork`].
pub(crate) unsafe fn unlock_after_fork() {
    // SAFETY: the caller guarantees that this thread holds the lock.
    unsafe { SETS.force_unlock() };
}

/// One wait for the kernel's set and the rsockets together.
struct Round {
    epfd: RawFd,
    /// Generation of the set when the wait began.
    generation: u64,
    /// Entry of the kernel's set, then entries of the rsockets.
    entries: Vec<pollfd>,
    /// The program's descriptors of the rsockets in `entries`, in the same order.
    fds: Vec<RawFd>,
}

impl Round {
    /// Begins a wait; returns `None` if the set never had an rsocket.
    fn begin(epfd: RawFd) -> Option<Self> {
        let mut sets = SETS.lock();
        let set = sets.get_mut(&epfd)?;
        set.waiting += 1;
        let mut entries = vec![pollfd { fd: epfd, events: POLLIN, revents: 0 }];
        let mut fds = Vec::new();
        for (fd, member) in &set.members {
            if let Some(events) = member.events_to_poll() {
                entries.push(pollfd { fd: member.rsocket, events, revents: 0 });
                fds.push(*fd);
            }
        }
        Some(Self { epfd, generation: set.generation, entries, fds })
    }

    /// Ends the wait. Reports as many ready members as `out` holds; returns their number.
    fn end(self, out: &mut [epoll_event]) -> usize {
        let (kernel_ready, entries) =
            self.entries.split_first().map_or((false, &[][..]), |(set, rest)| (set.revents != 0, rest));
        // Rsockets leave space for one event of the kernel, so that its members are not starved.
        let room = if kernel_ready && out.len() > 1 { out.len() - 1 } else { out.len() };
        let count = self.report_rsockets(entries, &mut out[..room]);
        if kernel_ready { count + poll_kernel(self.epfd, &mut out[count..]) } else { count }
    }

    fn report_rsockets(&self, entries: &[pollfd], out: &mut [epoll_event]) -> usize {
        let mut sets = SETS.lock();
        let Some(set) = sets.get_mut(&self.epfd) else { return 0 };
        set.waiting = set.waiting.saturating_sub(1);
        if set.generation != self.generation {
            set.stale = set.stale.saturating_sub(1);
            set.clear_if_current();
        }
        let mut count = 0;
        let first = self.fds.partition_point(|fd| *fd <= set.last);
        for at in (first..self.fds.len()).chain(0..first) {
            let (fd, entry) = (self.fds[at], entries[at]);
            let Some(slot) = out.get_mut(count) else { break };
            let member = set.members.get_mut(&fd).filter(|member| member.rsocket == entry.fd && entry.revents != 0);
            let Some(event) = member.and_then(|member| member.report(u32::from(entry.revents.cast_unsigned()))) else {
                continue;
            };
            (*slot, set.last) = (event, fd);
            count += 1;
        }
        count
    }
}

/// Reads the events of the kernel's set without waiting.
fn poll_kernel(epfd: RawFd, out: &mut [epoll_event]) -> usize {
    if out.is_empty() {
        return 0;
    }
    // SAFETY: pointer and length are those of `out`, which is borrowed during the call.
    let got = unsafe { (real().epoll_pwait)(epfd, out.as_mut_ptr(), out.len() as c_int, 0, core::ptr::null()) };
    remove_changed_event(epfd, out, usize::try_from(got).unwrap_or(0))
}

/// Removes the event of `changed` from the first `count` events; returns the number of the others.
pub(crate) fn remove_changed_event(epfd: RawFd, out: &mut [epoll_event], count: usize) -> usize {
    let Some(at) = out[..count].iter().position(|event| { event.u64 } == changed_data()) else { return count };
    out.copy_within(at + 1..count, at);
    if let Some(set) = SETS.lock().get(&epfd) {
        set.clear_if_current();
    }
    count - 1
}

/// Waits once for rsockets and other members, and returns the number of events. Returns `None` if
/// the set never had an rsocket. May return 0 before the timeout, when the members have changed.
pub(crate) fn wait(epfd: RawFd, out: &mut [epoll_event], timeout: c_int) -> Option<c_int> {
    let rdma = rdma_library()?;
    let mut round = Round::begin(epfd)?;
    // SAFETY: pointer and length are those of `entries`, which `round` owns.
    let ready = unsafe { rdma.rpoll(round.entries.as_mut_ptr(), round.entries.len() as nfds_t, timeout) };
    let reported = keeping_errno(|| round.end(if ready > 0 { out } else { &mut [] }));
    Some(if ready < 0 { ready } else { reported as c_int })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::EPOLLOUT;

    const IN: u32 = EPOLLIN as u32;
    const OUT: u32 = EPOLLOUT as u32;

    fn member(events: u32) -> Member {
        Member { rsocket: 9, events, data: 7, reported: 0, parked: false }
    }

    fn reported(member: &mut Member, now: u32) -> Option<u32> {
        member.report(now).map(|event| event.events)
    }

    #[test]
    fn level_triggered_event_is_reported_while_true() {
        let mut level = member(IN);
        assert_eq!((reported(&mut level, IN), reported(&mut level, IN)), (Some(IN), Some(IN)));
        assert_eq!(reported(&mut level, OUT), None, "not requested");
        let hup = EPOLLHUP.cast_unsigned();
        assert_eq!(reported(&mut level, hup), Some(hup), "reported without a request");
    }

    #[test]
    fn edge_triggered_event_is_reported_once_per_use() {
        let mut edge = member(IN | OUT | EPOLLET.cast_unsigned());
        assert_eq!(reported(&mut edge, OUT), Some(OUT));
        assert_eq!(edge.events_to_poll(), Some(EPOLLIN as c_short), "the other event is still polled");
        assert_eq!(reported(&mut edge, IN | OUT), Some(IN | OUT), "a new event is reported with the old one");
        assert_eq!((reported(&mut edge, IN | OUT), edge.events_to_poll()), (None, None));
        edge.reported &= !IN;
        edge.parked = false;
        assert_eq!(reported(&mut edge, IN), Some(IN));
    }

    #[test]
    fn one_shot_event_is_reported_once() {
        let mut once = member(IN | EPOLLONESHOT.cast_unsigned());
        assert_eq!((reported(&mut once, IN), once.events_to_poll()), (Some(IN), None));
    }

    #[test]
    fn control_reports_the_errors_of_epoll_ctl() {
        // SAFETY: the call takes no pointers.
        let epfd = unsafe { libc::epoll_create1(0) };
        assert_eq!((control(epfd, EPOLL_CTL_MOD, 700, 9, Some((IN, 1))), errno()), (-1, libc::ENOENT));
        assert_eq!(control(epfd, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), 0);
        assert_eq!((control(epfd, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), errno()), (-1, libc::EEXIST));
        assert_eq!((control(epfd, EPOLL_CTL_MOD, 700, 9, None), errno()), (-1, libc::EINVAL));
        assert_eq!(control(epfd, EPOLL_CTL_DEL, 700, 9, None), 0);
        assert_eq!((control(epfd, EPOLL_CTL_DEL, 700, 9, None), errno()), (-1, libc::ENOENT));
        assert_eq!((control(1 << 20, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), errno()), (-1, libc::EBADF));
        // `poll_kernel` removes the event of `changed`, which is the only one.
        let mut out = [epoll_event { events: 0, u64: 0 }; 4];
        assert_eq!(poll_kernel(epfd, &mut out), 0);
        remove_closed(epfd);
        // SAFETY: this test created the descriptor, and closes it once.
        unsafe { libc::close(epfd) };
    }
}
