//! `poll`, `select` and `epoll` of rsockets and other descriptors.

use super::rsocket_of;
use crate::rdma::{RdmaLibrary, rdma_library};
use crate::real::real;
use crate::{epoll, fail, table};
use core::ffi::{c_int, c_ulong};
use core::mem::MaybeUninit;
use core::{ptr, slice};
use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t,
    timespec, timeval,
};
use std::time::{Duration, Instant};

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program passes NULL or an array of `count` entries, which no other code uses
    // during the call.
    match unsafe { with_rsockets(entries, count) } {
        Some((rdma, entries)) => poll_translated(rdma, entries, timeout),
        None => call!(real.poll(entries, count, timeout)),
    }
}

/// `man 2 ppoll`. With rsockets the signal mask is not applied atomically with the wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program passes NULL or an array of `count` entries, which no other code uses
    // during the call.
    let Some((rdma, entries)) = (unsafe { with_rsockets(entries, count) }) else {
        return call!(real.ppoll(entries, count, timeout, mask));
    };
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    let Some(timeout) = milliseconds(unsafe { timeout.as_ref() }) else { return fail(libc::EINVAL) };
    with_mask(mask, || poll_translated(rdma, entries, timeout))
}

fortified! {
    __poll_chk = poll(entries: *mut pollfd, count: nfds_t, timeout: c_int; room) -> c_int, if |room| fits(room, count);
    __ppoll_chk = ppoll(
        entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t; room
    ) -> c_int, if |room| fits(room, count);
}

/// Returns true if `count` entries fit in `room` bytes.
fn fits(room: size_t, count: nfds_t) -> bool {
    room / size_of::<pollfd>() >= count as usize
}

/// Returns the entries and the RDMA library, if any entry is an rsocket.
///
/// # Safety
///
/// `entries` is NULL or points to `count` entries that are valid for `'a` and used by no other
/// code.
unsafe fn with_rsockets<'a>(entries: *mut pollfd, count: nfds_t) -> Option<(&'static RdmaLibrary, &'a mut [pollfd])> {
    if entries.is_null() {
        return None;
    }
    // SAFETY: not NULL; the caller guarantees `count` entries, valid and unshared for `'a`.
    let entries = unsafe { slice::from_raw_parts_mut(entries, count as usize) };
    if entries.iter().any(|entry| table::rsocket(entry.fd).is_some()) { Some((rdma_library()?, entries)) } else { None }
}

/// Calls `rpoll` with the program's descriptors replaced by their rsockets.
fn poll_translated(rdma: &RdmaLibrary, entries: &mut [pollfd], timeout: c_int) -> c_int {
    let translate = |entry: &pollfd| pollfd { fd: table::rsocket(entry.fd).unwrap_or(entry.fd), revents: 0, ..*entry };
    let mut translated: Vec<pollfd> = entries.iter().map(translate).collect();
    // SAFETY: pointer and length are those of a local vector.
    let ready = unsafe { rdma.rpoll(translated.as_mut_ptr(), translated.len() as nfds_t, timeout) };
    if ready >= 0 {
        entries.iter_mut().zip(translated).for_each(|(entry, polled)| entry.revents = polled.revents);
    }
    ready
}

/// Converts a timeout to milliseconds, rounded up and limited to an `int`; -1 without a timeout.
/// `None` for an invalid time.
fn milliseconds(time: Option<&timespec>) -> Option<c_int> {
    let Some(time) = time else { return Some(-1) };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return None;
    }
    let total = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    Some(c_int::try_from(total).unwrap_or(c_int::MAX))
}

/// Runs `wait` with the signal mask `mask`, unless it is NULL.
fn with_mask(mask: *const sigset_t, wait: impl FnOnce() -> c_int) -> c_int {
    if mask.is_null() {
        return wait();
    }
    let mut old = MaybeUninit::uninit();
    // SAFETY: not NULL; the program passes a mask that is valid during the call. `old` is a local
    // variable.
    let refused = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, old.as_mut_ptr()) };
    if refused != 0 {
        return fail(refused);
    }
    let ready = wait();
    // SAFETY: the first call has initialised `old`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut()) };
    ready
}

/// `man 2 select`. With rsockets, `timeout` is not changed.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [FdSet(read), FdSet(write), FdSet(except)];
    let Some(rdma) = library_if_needed(count, &sets) else {
        return call!(real.select(count, read, write, except, timeout));
    };
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    let time = unsafe { timeout.as_ref() };
    let time = time.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) });
    let Some(timeout) = milliseconds(time.as_ref()) else { return fail(libc::EINVAL) };
    select_by_poll(rdma, count, &sets, timeout)
}

/// `man 2 pselect`. With rsockets the signal mask is not applied atomically with the wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [FdSet(read), FdSet(write), FdSet(except)];
    let Some(rdma) = library_if_needed(count, &sets) else {
        return call!(real.pselect(count, read, write, except, timeout, mask));
    };
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    let Some(timeout) = milliseconds(unsafe { timeout.as_ref() }) else { return fail(libc::EINVAL) };
    with_mask(mask, || select_by_poll(rdma, count, &sets, timeout))
}

/// One of the program's sets, or NULL. It has at least as many bits as the call's `count`, which
/// may be more than an `fd_set` has.
struct FdSet(*mut fd_set);

/// Bits of a word of a set.
const BITS: usize = c_ulong::BITS as usize;

impl FdSet {
    /// Returns a pointer to the word with the bit of `fd`; NULL without a set.
    fn word(&self, fd: usize) -> *mut c_ulong {
        self.0.cast::<c_ulong>().wrapping_add(if self.0.is_null() { 0 } else { fd / BITS })
    }

    fn has(&self, fd: usize) -> bool {
        // SAFETY: NULL, or the program's set, which has a bit for every descriptor below the call's
        // `count` and is valid during the call.
        unsafe { self.word(fd).as_ref() }.is_some_and(|word| *word >> (fd % BITS) & 1 != 0)
    }

    fn set(&self, fd: usize, is_member: bool) {
        // SAFETY: NULL, or the program's set, which has a bit for every descriptor below the call's
        // `count` and is valid during the call.
        if let Some(word) = unsafe { self.word(fd).as_mut() } {
            *word = *word & !(1 << (fd % BITS)) | c_ulong::from(is_member) << (fd % BITS);
        }
    }
}

/// Returns the RDMA library, if any set contains an rsocket.
fn library_if_needed(count: c_int, sets: &[FdSet; 3]) -> Option<&'static RdmaLibrary> {
    (0..count).filter(|fd| sets.iter().any(|set| set.has(*fd as usize))).find_map(rsocket_of).map(|(rdma, _)| rdma)
}

/// Events that make a descriptor ready in the read, write and exception sets, as on Linux.
const READY: [i16; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];

/// Does `select` by `rpoll`.
fn select_by_poll(rdma: &RdmaLibrary, count: c_int, sets: &[FdSet; 3], timeout: c_int) -> c_int {
    let interest = |fd: &c_int| {
        let wanted = sets.iter().zip([POLLIN, POLLOUT, POLLPRI]).filter(|(set, _)| set.has(*fd as usize));
        let events = wanted.fold(0, |events, (_, event)| events | event);
        (events != 0).then_some(pollfd { fd: *fd, events, revents: 0 })
    };
    let mut entries: Vec<pollfd> = (0..count).filter_map(|fd| interest(&fd)).collect();
    if poll_translated(rdma, &mut entries, timeout) < 0 {
        return -1;
    }
    if entries.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        return fail(libc::EBADF);
    }
    let mut ready = 0;
    for entry in &entries {
        for ((set, mask), event) in sets.iter().zip(READY).zip([POLLIN, POLLOUT, POLLPRI]) {
            let is_ready = entry.events & event != 0 && entry.revents & mask != 0;
            set.set(entry.fd as usize, is_ready);
            ready += c_int::from(is_ready);
        }
    }
    ready
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(rsocket) = table::rsocket(fd) else { return call!(real.epoll_ctl(epfd, op, fd, event)) };
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    epoll::control(epfd, op, fd, rsocket, event)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epfd: c_int, out: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
    // SAFETY: these are the program's arguments, and no mask.
    unsafe { epoll_pwait(epfd, out, room, timeout, ptr::null()) }
}

/// `man 2 epoll_pwait2`, with the timeout rounded up to milliseconds.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    out: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program passes NULL or a variable that is valid during the call.
    let Some(timeout) = milliseconds(unsafe { timeout.as_ref() }) else { return fail(libc::EINVAL) };
    // SAFETY: these are the program's arguments, but for the timeout.
    unsafe { epoll_pwait(epfd, out, room, timeout, mask) }
}

/// `man 2 epoll_pwait`. With rsockets the signal mask is not applied atomically with the wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    out: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let kernel = |timeout| call!(real.epoll_pwait(epfd, out, room, timeout, mask));
    if room <= 0 || out.is_null() {
        return kernel(timeout);
    }
    let deadline = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
    loop {
        let left = deadline.map_or(-1, |deadline| millis_left(deadline).min(timeout));
        // SAFETY: not NULL; the program passes an array of `room` elements, valid during the call.
        let events = unsafe { slice::from_raw_parts_mut(out, room as usize) };
        let count = if epoll::in_use() { wait_with_rsockets(epfd, events, left, mask) } else { None };
        let got = count.unwrap_or_else(|| match kernel(left) {
            got if got > 0 && epoll::in_use() => epoll::remove_changed_event(epfd, events, got as usize) as c_int,
            got => got,
        });
        if got != 0 || left == 0 {
            return got;
        }
    }
}

/// Returns the milliseconds until `deadline`, rounded up.
fn millis_left(deadline: Instant) -> c_int {
    let left = deadline.saturating_duration_since(Instant::now());
    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

/// Waits once for a set with rsockets; returns `None` if the set never had one.
fn wait_with_rsockets(epfd: c_int, out: &mut [epoll_event], timeout: c_int, mask: *const sigset_t) -> Option<c_int> {
    let mut has_rsockets = true;
    let got = with_mask(mask, || {
        let got = epoll::wait(epfd, out, timeout);
        has_rsockets = got.is_some();
        got.unwrap_or(0)
    });
    has_rsockets.then_some(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up_and_clamped() {
        let time = |tv_sec, tv_nsec| milliseconds(Some(&timespec { tv_sec, tv_nsec }));
        assert_eq!(milliseconds(None), Some(-1));
        assert_eq!((time(0, 0), time(0, 1), time(2, 1_000_000)), (Some(0), Some(1), Some(2001)));
        assert_eq!(time(i64::MAX, 0), Some(c_int::MAX));
        assert_eq!((time(-1, 0), time(0, 1_000_000_000)), (None, None));
    }

    #[test]
    fn set_has_the_layout_of_fd_set() {
        let mut bits = MaybeUninit::<fd_set>::zeroed();
        let set = FdSet(bits.as_mut_ptr());
        for fd in [0, 63, 64, 1023] {
            set.set(fd, true);
            // SAFETY: `bits` was initialised with zeros, an empty set.
            assert!(set.has(fd) && unsafe { libc::FD_ISSET(fd as c_int, bits.as_ptr()) });
            set.set(fd, false);
            assert!(!set.has(fd));
        }
        assert!(!FdSet(ptr::null_mut()).has(3));
    }
}
