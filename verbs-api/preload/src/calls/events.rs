//! `epoll_ctl` and `epoll_wait`; see [`crate::epoll`].

use super::wait::{milliseconds, with_mask};
use crate::real::real;
use crate::{epoll, fail, table};
use core::ffi::c_int;
use core::{ptr, slice};
use libc::{epoll_event, sigset_t, timespec};
use std::time::{Duration, Instant};

/// `man 2 epoll_ctl`.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(number) = table::rsocket(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { (real().epoll_ctl)(epfd, op, fd, event) };
    };
    // SAFETY: NULL, or the caller's variable.
    let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    epoll::control(epfd, op, fd, number, event)
}

/// `man 2 epoll_wait`.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epfd: c_int, out: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { epoll_pwait(epfd, out, room, timeout, ptr::null()) }
}

/// `man 2 epoll_pwait2`, rounded up to milliseconds.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    out: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: NULL, or the caller's variable.
    let Some(timeout) = milliseconds(unsafe { timeout.as_ref() }) else { return fail(libc::EINVAL) };
    // SAFETY: the caller's own arguments.
    unsafe { epoll_pwait(epfd, out, room, timeout, mask) }
}

/// `man 2 epoll_pwait`. With rsockets the signal mask is in force a moment before and after the
/// wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    out: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's own arguments.
    let kernel = |timeout| unsafe { (real().epoll_pwait)(epfd, out, room, timeout, mask) };
    if room <= 0 || out.is_null() {
        return kernel(timeout);
    }
    let deadline = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
    loop {
        let left = deadline.map_or(-1, |deadline| left(deadline).min(timeout));
        // SAFETY: the caller's array.
        let events = unsafe { slice::from_raw_parts_mut(out, room as usize) };
        let ours = if epoll::in_use() { wait_ours(epfd, events, left, mask) } else { None };
        let got = ours.unwrap_or_else(|| match kernel(left) {
            got if got > 0 && epoll::in_use() => epoll::without_mark(epfd, events, got as usize) as c_int,
            got => got,
        });
        if got != 0 || left == 0 {
            return got;
        }
    }
}

/// Milliseconds until then, rounded up.
fn left(deadline: Instant) -> c_int {
    let left = deadline.saturating_duration_since(Instant::now());
    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

/// `None` when no rsocket was ever put into this set.
fn wait_ours(epfd: c_int, out: &mut [epoll_event], timeout: c_int, mask: *const sigset_t) -> Option<c_int> {
    let mut known = true;
    let got = with_mask(mask, || {
        let got = epoll::wait(epfd, out, timeout);
        known = got.is_some();
        got.unwrap_or(0)
    });
    known.then_some(got)
}
