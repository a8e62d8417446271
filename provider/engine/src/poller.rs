//! Epoll instances of the background thread. Unsafe code: epoll, eventfd, timerfd.
//!
//! There are two: one with all descriptors, and a quiet one without sockets, used while threads of
//! the program receive, so that packets do not wake the background thread.

use libc::c_int;
use roxe_base::clock::timespec;
use roxe_base::own_threads::Wake;
use roxe_net::SendRoom;
use roxe_transport::time::Instant;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Descriptors that may wake the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Packets, frames, kicks and the timer.
    All,
    /// Kicks and the timer.
    Quiet,
}

/// The cause of a wake-up. Descriptors of [`Poller::watch_for`] are registered under these numbers,
/// all others under their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Woken {
    LinkEvents = u64::MAX,
    /// A peer process used or closed its control socket.
    Line = u64::MAX - 1,
    /// A full send buffer has room.
    Room = u64::MAX - 2,
    /// `roxe top` requests the state of queue pairs.
    Status = u64::MAX - 3,
    Other = 0,
}

#[derive(Debug)]
pub(crate) struct Poller {
    all: RawFd,
    quiet: RawFd,
    kick: RawFd,
    timer: RawFd,
    /// Epoll instance of sockets that wait for room in their send buffers.
    room: Arc<SendRoom>,
    /// Expiry time of the timer in nanoseconds; 0 if not set, or read since it expired.
    timer_at: AtomicU64,
    closed: AtomicBool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // Dropping the value after a failure closes the descriptors opened so far; -1 stands for
        // none.
        let mut poller = Self {
            all: -1,
            quiet: -1,
            kick: -1,
            timer: -1,
            room: Arc::new(SendRoom::new()?),
            timer_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        };
        // SAFETY: these calls take no pointers.
        unsafe {
            poller.all = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            poller.quiet = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            poller.kick = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            poller.timer = check(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?;
        }
        poller.watch(poller.kick, Watch::Quiet)?;
        poller.watch(poller.timer, Watch::Quiet)?;
        poller.watch_for(Woken::Room, poller.room.fd())?;
        Ok(poller)
    }

    /// Ends sleeps when `fd` is readable: with [`Watch::All`] only those that watch all, with
    /// [`Watch::Quiet`] every sleep. Closing `fd` ends the watch.
    pub(crate) fn watch(&self, fd: RawFd, watch: Watch) -> io::Result<()> {
        add(self.all, fd, fd as u64, READABLE)?;
        match watch {
            Watch::All => Ok(()),
            Watch::Quiet => add(self.quiet, fd, fd as u64, READABLE),
        }
    }

    /// Lets `fd` wake every sleep and report `woken`. A control socket is edge-triggered, because
    /// it may stay readable.
    pub(crate) fn watch_for(&self, woken: Woken, fd: RawFd) -> io::Result<()> {
        let events = if woken == Woken::Line { READABLE | libc::EPOLLRDHUP | libc::EPOLLET } else { READABLE };
        [self.all, self.quiet].into_iter().try_for_each(|epoll| add(epoll, fd, woken as u64, events))
    }

    /// Signals room in send buffers; wakes every sleep.
    pub(crate) fn send_room(&self) -> &Arc<SendRoom> {
        &self.room
    }

    /// Wakes the thread, or ends its next sleep at once.
    pub(crate) fn kick(&self) {
        // A closed descriptor's number may since have been reused by a file of the program.
        if !self.closed.load(Ordering::Relaxed) {
            roxe_net::wake(self.kick);
        }
    }

    /// Returns the descriptor that peer processes write to in order to wake the thread.
    pub(crate) fn doorbell(&self) -> RawFd {
        self.kick
    }

    /// Sleeps until a descriptor of `watch` is ready or `until` is reached; may return earlier.
    /// Returns the cause.
    pub(crate) fn sleep(&self, watch: Watch, until: Option<Instant>, now: Instant) -> Woken {
        self.set_timer(until, now);
        let epoll = if watch == Watch::All { self.all } else { self.quiet };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `event` has room for one event during the call. A signal ends the sleep early,
        // which callers allow.
        let count = unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) };
        let woken_by = event.u64;
        if count == 1 && (woken_by == self.kick as u64 || woken_by == self.timer as u64) {
            self.drain();
        }
        let causes = [Woken::LinkEvents, Woken::Line, Woken::Room, Woken::Status];
        causes.into_iter().find(|cause| count == 1 && woken_by == *cause as u64).unwrap_or(Woken::Other)
    }

    /// Closes the descriptors although the value is still shared: in the child of a fork, the copy
    /// of the thread that owns it does not exist.
    pub(crate) fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            for fd in [self.all, self.quiet, self.kick, self.timer] {
                // SAFETY: this value owns the descriptors, and `closed` lets one call close them;
                // the kernel refuses -1.
                unsafe { libc::close(fd) };
            }
        }
    }

    fn drain(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` has room for eight bytes during the call; the descriptors do not block.
        let mut read = |fd| unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
        read(self.kick);
        if read(self.timer) > 0 {
            self.timer_at.store(0, Ordering::Relaxed);
        }
    }

    fn set_timer(&self, until: Option<Instant>, now: Instant) {
        let at = until.map_or(0, |until| until.0.max(1));
        if self.timer_at.swap(at, Ordering::Relaxed) == at {
            return;
        }
        // Zero would disarm the timer, so a deadline in the past becomes one nanosecond.
        let left = until.map_or(Duration::ZERO, |until| until.since(now).max(Duration::from_nanos(1)));
        let spec = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
        // SAFETY: the call reads `spec`, which outlives it, and writes no old value to null.
        unsafe { libc::timerfd_settime(self.timer, 0, &raw const spec, std::ptr::null_mut()) };
    }
}

impl Wake for Poller {
    fn wake(&self) {
        self.kick();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.close();
    }
}

const READABLE: c_int = libc::EPOLLIN;

/// Watches `fd` for `events`, which are reported as `mark`.
fn add(epoll: RawFd, fd: RawFd, mark: u64, events: c_int) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: mark };
    // SAFETY: the call reads `event`, which outlives it.
    check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
}

fn check(rc: c_int) -> io::Result<c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// Upper bound of sleeps; a passing test never reaches it.
    const MAX_SLEEP: Option<Instant> = Some(Instant(10_000_000_000));

    #[test]
    fn kick_before_sleep_is_not_lost() {
        let poller = Poller::new().unwrap();
        for watch in [Watch::All, Watch::Quiet] {
            poller.kick();
            poller.sleep(watch, MAX_SLEEP, Instant(0));
        }
    }

    #[test]
    fn deadline_ends_sleep() {
        let poller = Poller::new().unwrap();
        poller.sleep(Watch::All, Some(Instant(1_000_000)), Instant(0));
        // A deadline in the past.
        poller.sleep(Watch::Quiet, Some(Instant(5)), Instant(10));
    }

    #[test]
    fn deadline_that_has_passed_can_be_set_again() {
        let poller = Poller::new().unwrap();
        let deadline = Some(Instant(1_000_000));
        for watch in [Watch::All, Watch::Quiet, Watch::All] {
            poller.sleep(watch, deadline, Instant(0));
        }
        poller.kick();
        poller.sleep(Watch::All, deadline, Instant(0));
        poller.sleep(Watch::All, deadline, Instant(0));
    }

    #[test]
    fn control_events_wake_every_sleep_with_their_cause() {
        let poller = Poller::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        poller.watch_for(Woken::LinkEvents, b.as_raw_fd()).unwrap();
        poller.kick();
        assert_eq!(
            poller.sleep(Watch::All, MAX_SLEEP, Instant(0)),
            Woken::Other,
            "a kick does not mean that packets arrived"
        );
        a.write_all(b"x").unwrap();
        assert_eq!(poller.sleep(Watch::All, MAX_SLEEP, Instant(0)), Woken::LinkEvents);
        assert_eq!(poller.sleep(Watch::Quiet, MAX_SLEEP, Instant(0)), Woken::LinkEvents);
    }

    #[test]
    fn sockets_wake_only_full_watch() {
        let poller = Poller::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        poller.watch(b.as_raw_fd(), Watch::All).unwrap();
        a.write_all(b"x").unwrap();
        poller.sleep(Watch::All, MAX_SLEEP, Instant(0));
        let before = std::time::Instant::now();
        poller.sleep(Watch::Quiet, Some(Instant(2_000_000)), Instant(0));
        assert!(before.elapsed() >= Duration::from_millis(1));
    }
}
