//! `epoll` sets with rsockets.
//!
//! The kernel keeps the other members; a wait is a `poll` of the rsockets and of the kernel's set.
//! Level-triggered, one-shot and edge-triggered members work. An edge is a state that was not
//! reported since the program last used the socket: it is reported whenever the kernel would, and
//! sometimes once more, as `man 7 epoll` allows. Sets inside sets or in `poll` show only the
//! kernel's members.

use crate::rdma::rdma;
use crate::real::real;
use crate::{errno, fail};
use core::ffi::{c_int, c_short};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT};
use libc::{POLLIN, epoll_event, nfds_t, pollfd};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

#[derive(Debug)]
struct Member {
    number: RawFd,
    events: u32,
    data: u64,
    /// Edge-triggered: events reported since the program last used the socket.
    seen: u32,
    /// Edge-triggered: true if there is nothing to report until the program uses the socket.
    parked: bool,
}

impl Member {
    fn is(&self, flag: c_int) -> bool {
        self.events & flag.cast_unsigned() != 0
    }

    /// Events to poll; `None` for none.
    fn interest(&self) -> Option<c_short> {
        let events = self.events as u16;
        (events != 0 && !self.parked).then_some((events & !self.seen as u16).cast_signed())
    }

    /// Returns the event to report for the state `now`, and records it.
    fn report(&mut self, now: u32) -> Option<epoll_event> {
        let wanted = now & (self.events | (EPOLLERR | EPOLLHUP).cast_unsigned());
        if self.is(EPOLLET) {
            self.parked = wanted & !self.seen == 0;
            self.seen |= wanted;
        }
        if wanted == 0 || self.parked {
            return None;
        }
        if self.is(EPOLLONESHOT) {
            self.events &= !0xffff;
        }
        Some(epoll_event { events: wanted, u64: self.data })
    }
}

#[derive(Debug)]
struct Set {
    members: BTreeMap<RawFd, Member>,
    /// An eventfd in the kernel's set, readable while a thread waits for an old list of members.
    changed: RawFd,
    generation: u64,
    /// Waiting threads, and those of them that began before the last change.
    waiting: usize,
    stale: usize,
    /// Last reported member; the next report begins after it.
    last: RawFd,
}

static SETS: Mutex<BTreeMap<RawFd, Set>> = Mutex::new(BTreeMap::new());

static IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns true if any set ever had an rsocket; until then the kernel handles everything.
pub(crate) fn in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Data of `changed` in the kernel's set: an address in this library, which no program uses.
fn mark() -> u64 {
    (&raw const SETS).addr() as u64
}

impl Set {
    /// Creates a set and adds `changed` to the kernel's. `None` with `errno` set on failure.
    fn new(epfd: RawFd) -> Option<Self> {
        // Readable at first: threads that already wait know only the kernel's set.
        // SAFETY: numbers only.
        let changed = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if changed < 0 {
            return None;
        }
        let mut event = epoll_event { events: EPOLLIN.cast_unsigned(), u64: mark() };
        // SAFETY: numbers and a variable.
        if unsafe { (real().epoll_ctl)(epfd, EPOLL_CTL_ADD, changed, &raw mut event) } < 0 {
            let why = errno();
            // SAFETY: a number of our own, closed once.
            unsafe { (real().close)(changed) };
            fail(why);
            return None;
        }
        Some(Self { members: BTreeMap::new(), changed, generation: 0, waiting: 0, stale: 0, last: -1 })
    }

    /// Makes waiting threads read the members again.
    fn change(&mut self) {
        self.generation += 1;
        self.stale = self.waiting;
        if self.waiting > 0 {
            let one = 1u64;
            // SAFETY: eight bytes, as an eventfd requires.
            unsafe { (real().write)(self.changed, (&raw const one).cast(), size_of::<u64>()) };
        }
    }

    /// Clears `changed` once no waiting thread is stale.
    fn settle(&self) {
        let mut count = 0u64;
        if self.stale == 0 {
            // SAFETY: eight bytes, as an eventfd requires.
            unsafe { (real().read)(self.changed, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }
}

/// Runs `body` and restores `errno`.
fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = body();
    fail(before);
    done
}

pub(crate) fn control(epfd: RawFd, op: c_int, fd: RawFd, number: RawFd, event: Option<(u32, u64)>) -> c_int {
    let mut sets = SETS.lock();
    if op == EPOLL_CTL_ADD && !sets.contains_key(&epfd) {
        IN_USE.store(true, Ordering::Relaxed);
        let Some(set) = Set::new(epfd) else { return -1 };
        sets.insert(epfd, set);
    }
    let Some(set) = sets.get_mut(&epfd) else { return fail(libc::ENOENT) };
    let known = set.members.contains_key(&fd);
    match (op, event) {
        (EPOLL_CTL_ADD, Some(_)) if known => return fail(libc::EEXIST),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, _) if !known => return fail(libc::ENOENT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some((events, data))) => {
            set.members.insert(fd, Member { number, events, data, seen: 0, parked: false });
        }
        (EPOLL_CTL_DEL, _) => _ = set.members.remove(&fd),
        _ => return fail(libc::EINVAL),
    }
    set.change();
    0
}

/// Makes `event` (`POLLIN` or `POLLOUT`) reportable again after the program used the socket.
pub(crate) fn used(fd: RawFd, event: c_short) {
    if !in_use() {
        return;
    }
    quietly(|| {
        for set in SETS.lock().values_mut() {
            let Some(member) = set.members.get_mut(&fd).filter(|member| member.is(EPOLLET)) else { continue };
            let event = u32::from(event.cast_unsigned());
            let news = member.parked || member.seen & event != 0;
            member.seen &= !event;
            member.parked = false;
            if news {
                set.change();
            }
        }
    });
}

pub(crate) fn closed(fd: RawFd) {
    if !in_use() {
        return;
    }
    quietly(|| {
        let mut sets = SETS.lock();
        if let Some(set) = sets.remove(&fd) {
            // SAFETY: a number of our own, closed once.
            unsafe { (real().close)(set.changed) };
        }
        for set in sets.values_mut() {
            if set.members.remove(&fd).is_some() {
                set.change();
            }
        }
    });
}

pub(crate) fn move_to_kernel(fd: RawFd) {
    if !in_use() {
        return;
    }
    for (epfd, set) in SETS.lock().iter_mut() {
        if let Some(Member { events, data, .. }) = set.members.remove(&fd) {
            let mut event = epoll_event { events, u64: data };
            // SAFETY: numbers and a variable.
            unsafe { (real().epoll_ctl)(*epfd, EPOLL_CTL_ADD, fd, &raw mut event) };
            set.change();
        }
    }
}

/// Locks the sets during a fork, so that no change is half done; both processes unlock.
pub(crate) fn hold() {
    core::mem::forget(SETS.lock());
}

/// # Safety
///
/// The calling thread has called `hold` before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { SETS.force_unlock() };
}

/// One wait for the kernel's set and the rsockets together.
struct Round {
    epfd: RawFd,
    generation: u64,
    /// The kernel's set, then the members by number.
    entries: Vec<pollfd>,
    /// Members by the program's number.
    numbers: Vec<RawFd>,
}

impl Round {
    /// `None` if the set never had an rsocket.
    fn begin(epfd: RawFd) -> Option<Self> {
        let mut sets = SETS.lock();
        let set = sets.get_mut(&epfd)?;
        set.waiting += 1;
        let mut entries = vec![pollfd { fd: epfd, events: POLLIN, revents: 0 }];
        let mut numbers = Vec::new();
        for (fd, member) in &set.members {
            if let Some(events) = member.interest() {
                entries.push(pollfd { fd: member.number, events, revents: 0 });
                numbers.push(*fd);
            }
        }
        Some(Self { epfd, generation: set.generation, entries, numbers })
    }

    /// Ends the wait and reports ready members, as many as fit.
    fn end(self, out: &mut [epoll_event]) -> usize {
        let (kernel, entries) =
            self.entries.split_first().map_or((false, &[][..]), |(set, rest)| (set.revents != 0, rest));
        let room = if kernel && out.len() > 1 { out.len() - 1 } else { out.len() };
        let ours = self.report(entries, &mut out[..room]);
        if kernel { ours + poll_kernel(self.epfd, &mut out[ours..]) } else { ours }
    }

    fn report(&self, entries: &[pollfd], out: &mut [epoll_event]) -> usize {
        let mut sets = SETS.lock();
        let Some(set) = sets.get_mut(&self.epfd) else { return 0 };
        set.waiting = set.waiting.saturating_sub(1);
        if set.generation != self.generation {
            set.stale = set.stale.saturating_sub(1);
            set.settle();
        }
        let mut count = 0;
        let first = self.numbers.partition_point(|fd| *fd <= set.last);
        for at in (first..self.numbers.len()).chain(0..first) {
            let (fd, entry) = (self.numbers[at], entries[at]);
            let Some(place) = out.get_mut(count) else { break };
            let member = set.members.get_mut(&fd).filter(|member| member.number == entry.fd && entry.revents != 0);
            let Some(event) = member.and_then(|member| member.report(u32::from(entry.revents.cast_unsigned()))) else {
                continue;
            };
            (*place, set.last) = (event, fd);
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
    // SAFETY: an array and its length.
    let got = unsafe { (real().epoll_pwait)(epfd, out.as_mut_ptr(), out.len() as c_int, 0, core::ptr::null()) };
    without_mark(epfd, out, usize::try_from(got).unwrap_or(0))
}

/// Removes the event of `changed` from the first `count`; returns the remaining count.
pub(crate) fn without_mark(epfd: RawFd, out: &mut [epoll_event], count: usize) -> usize {
    let Some(at) = out[..count].iter().position(|event| { event.u64 } == mark()) else { return count };
    out.copy_within(at + 1..count, at);
    if let Some(set) = SETS.lock().get(&epfd) {
        set.settle();
    }
    count - 1
}

/// Waits once for rsockets and other members; `None` if the set never had an rsocket. May return 0
/// when only the members have changed.
pub(crate) fn wait(epfd: RawFd, out: &mut [epoll_event], timeout: c_int) -> Option<c_int> {
    let rdma = rdma()?;
    let mut round = Round::begin(epfd)?;
    // SAFETY: an array and its length.
    let ready = unsafe { rdma.rpoll(round.entries.as_mut_ptr(), round.entries.len() as nfds_t, timeout) };
    let reported = quietly(|| round.end(if ready > 0 { out } else { &mut [] }));
    Some(if ready < 0 { ready } else { reported as c_int })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::EPOLLOUT;

    const IN: u32 = EPOLLIN as u32;
    const OUT: u32 = EPOLLOUT as u32;

    fn member(events: u32) -> Member {
        Member { number: 9, events, data: 7, seen: 0, parked: false }
    }

    fn reported(member: &mut Member, now: u32) -> Option<u32> {
        member.report(now).map(|event| event.events)
    }

    #[test]
    fn level_is_reported_as_long_as_it_lasts() {
        let mut level = member(IN);
        assert_eq!((reported(&mut level, IN), reported(&mut level, IN)), (Some(IN), Some(IN)));
        assert_eq!(reported(&mut level, OUT), None, "not requested");
        let hup = EPOLLHUP.cast_unsigned();
        assert_eq!(reported(&mut level, hup), Some(hup), "always reported");
    }

    #[test]
    fn edge_is_reported_once_until_the_socket_is_used() {
        let mut edge = member(IN | OUT | EPOLLET.cast_unsigned());
        assert_eq!(reported(&mut edge, OUT), Some(OUT));
        assert_eq!(edge.interest(), Some(EPOLLIN as c_short), "the other event is still waited for");
        assert_eq!(reported(&mut edge, IN | OUT), Some(IN | OUT), "a new event with the lasting one");
        assert_eq!((reported(&mut edge, IN | OUT), edge.interest()), (None, None));
        edge.seen &= !IN;
        edge.parked = false;
        assert_eq!(reported(&mut edge, IN), Some(IN));
    }

    #[test]
    fn one_shot_is_reported_once() {
        let mut once = member(IN | EPOLLONESHOT.cast_unsigned());
        assert_eq!((reported(&mut once, IN), once.interest()), (Some(IN), None));
    }

    #[test]
    fn control_reports_the_errors_of_epoll_ctl() {
        // SAFETY: numbers only; closed at the end.
        let epfd = unsafe { libc::epoll_create1(0) };
        assert_eq!((control(epfd, EPOLL_CTL_MOD, 700, 9, Some((IN, 1))), errno()), (-1, libc::ENOENT));
        assert_eq!(control(epfd, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), 0);
        assert_eq!((control(epfd, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), errno()), (-1, libc::EEXIST));
        assert_eq!((control(epfd, EPOLL_CTL_MOD, 700, 9, None), errno()), (-1, libc::EINVAL));
        assert_eq!(control(epfd, EPOLL_CTL_DEL, 700, 9, None), 0);
        assert_eq!((control(epfd, EPOLL_CTL_DEL, 700, 9, None), errno()), (-1, libc::ENOENT));
        assert_eq!((control(1 << 20, EPOLL_CTL_ADD, 700, 9, Some((IN, 1))), errno()), (-1, libc::EBADF));
        // The event of `changed` is removed.
        let mut out = [epoll_event { events: 0, u64: 0 }; 4];
        assert_eq!(poll_kernel(epfd, &mut out), 0);
        closed(epfd);
        // SAFETY: numbers only; closed at the end.
        unsafe { libc::close(epfd) };
    }
}
