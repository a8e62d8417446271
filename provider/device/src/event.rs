//! Event queues with a file descriptor to wait on, and the kinds of asynchronous events.
//!
//! The number of queued events is the count of an eventfd in semaphore mode. An eventfd polls as
//! writable, which an event file of the kernel never does. So programs get an epoll set that holds
//! the eventfd: readable while there are events, also with edge triggering, and never writable. The
//! mode of the epoll set's descriptor determines if a wait blocks; threads always sleep in a `read`
//! of the eventfd, which `SA_RESTART` handlers do not end.

use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::ObjectId;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_net::wake;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

/// Kind of an asynchronous event (values of `enum ibv_event_type`). Kinds that have no cause on
/// Ethernet (LIDs, the subnet manager, changes of the P_Key table) are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AsyncEventKind {
    /// A CQ overran; it accepts no more entries.
    CqErr = 0,
    /// A QP cannot report its completions any more and is in the error state.
    QpFatal = 1,
    /// A peer's request was illegal.
    QpReqErr = 2,
    /// A peer violated memory protection.
    QpAccessErr = 3,
    /// The first packet arrived on a QP in RTR.
    CommEst = 4,
    /// The send queue of a QP in SQD is empty.
    SqDrained = 5,
    /// A QP migrated to its alternate path.
    PathMig = 6,
    /// The peer requested another path for a QP than the alternate one.
    PathMigErr = 7,
    /// The device is unusable: its network interface was removed.
    DeviceFatal = 8,
    /// The port came up: its interface is switched on and has a carrier.
    PortActive = 9,
    /// The port went down.
    PortErr = 10,
    /// An SRQ is unusable. Never raised: nothing in it can fail.
    SrqErr = 14,
    /// An SRQ has fewer requests than its armed limit.
    SrqLimitReached = 15,
    /// A QP in the error state took its last shared receive request.
    QpLastWqeReached = 16,
    /// The GID table changed.
    GidChange = 18,
    /// A work queue cannot report its completions any more and is in the error state.
    WqFatal = 19,
}

impl AsyncEventKind {
    /// Returns true if the object or the device is unusable afterwards.
    pub(crate) const fn is_fatal(self) -> bool {
        use AsyncEventKind::{CqErr, DeviceFatal, QpAccessErr, QpFatal, QpReqErr, SrqErr, WqFatal};
        matches!(self, CqErr | QpFatal | QpReqErr | QpAccessErr | DeviceFatal | SrqErr | WqFatal)
    }
}

/// One asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Kind of the event.
    pub kind: AsyncEventKind,
    /// User context of the source, or the port number.
    pub user_context: u64,
}

#[derive(Debug)]
struct PendingEvent<T> {
    event: T,
    source: ObjectId,
    /// Watch of the checker for events left unread, which ends with the event.
    watch: Option<Arc<dyn DeadlineOwner>>,
}

/// A queue of events with a descriptor that is readable while it has any.
///
/// Invariant while the lock is free: count of `units` plus readers that took a unit and wait for
/// the lock is the number of events, or more after [`EventQueue::forget`] or
/// [`EventQueue::take_next`] overtook such a reader, which then waits again.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    /// Descriptor for the program: an epoll set that holds `units`.
    fd: OwnedFd,
    /// The eventfd. Blocking, except within [`EventQueue::take_unit_by_mode`].
    units: File,
    events: Mutex<rank::Events, VecDeque<PendingEvent<T>>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self, Error> {
        let units = eventfd().map_err(|e| Error::os("cannot create an eventfd", &e))?;
        let fd = epoll_of(&units).map_err(|e| Error::os("cannot create an epoll set", &e))?;
        Ok(Self { fd, units, events: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn push(&self, source: ObjectId, event: T, watch: Option<Arc<dyn DeadlineOwner>>) {
        let mut events = self.events.lock();
        events.push_back(PendingEvent { event, source, watch });
        wake(self.units.as_raw_fd());
    }

    pub(crate) fn next(&self) -> Result<T, Error> {
        loop {
            let sleeps = self.sleep_on().map_err(|_| Error::new(libc::EAGAIN, "no event is pending"))?;
            if sleeps.is_some() {
                match (&self.units).read(&mut [0; 8]) {
                    // `take_unit_by_mode` had made the eventfd non-blocking.
                    Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                    read => read.map_err(|e| Error::os("cannot wait for an event", &e))?,
                };
            }
            if let Some(event) = self.take_next(sleeps.is_some()) {
                return Ok(event);
            }
        }
    }

    /// Returns the descriptor to `read` a unit from before taking an event; `None` if an event is
    /// pending. Fails with EAGAIN if the program has made its descriptor non-blocking.
    pub(crate) fn sleep_on(&self) -> io::Result<Option<RawFd>> {
        if !self.is_empty() {
            return Ok(None);
        }
        // SAFETY: takes no pointers.
        match unsafe { libc::fcntl(self.fd(), libc::F_GETFL) } & libc::O_NONBLOCK {
            0 => Ok(Some(self.units.as_raw_fd())),
            _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        }
    }

    /// Takes the oldest event without waiting; `slept` is true if the caller has read its unit.
    pub(crate) fn take_next(&self, slept: bool) -> Option<T> {
        let mut events = self.events.lock();
        let pending = events.pop_front()?;
        if !slept {
            self.take_unit();
        }
        drop(events);
        Some(pending.event)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }

    /// Returns the source of the oldest event and the number of events, if that event has this
    /// `watch`.
    pub(crate) fn oldest_of(&self, watch: &dyn DeadlineOwner) -> Option<(ObjectId, usize)> {
        let events = self.events.lock();
        let is_watch = |own: &Arc<dyn DeadlineOwner>| ptr::addr_eq(Arc::as_ptr(own), watch);
        let oldest = events.front().filter(|oldest| oldest.watch.as_ref().is_some_and(is_watch))?;
        Some((oldest.source, events.len()))
    }

    pub(crate) fn forget(&self, source: ObjectId) {
        drop(self.take_of(source));
    }

    /// Removes and returns the events of `source`, in order.
    pub(crate) fn take_of(&self, source: ObjectId) -> Vec<T> {
        let mut events = self.events.lock();
        let (taken, kept): (VecDeque<_>, _) = events.drain(..).partition(|pending| pending.source == source);
        *events = kept;
        taken.iter().for_each(|_| self.take_unit());
        drop(events);
        taken.into_iter().map(|pending| pending.event).collect()
    }

    /// Takes one unit, if there is one, without waiting. The caller holds the lock.
    fn take_unit(&self) {
        let mut unit = [0u8; 8];
        let iov = libc::iovec { iov_base: unit.as_mut_ptr().cast(), iov_len: unit.len() };
        // SAFETY: `iov` describes `unit`, which outlives the call; the descriptor is open as long
        // as `self.units`.
        let n = unsafe { libc::preadv2(self.units.as_raw_fd(), &raw const iov, 1, -1, libc::RWF_NOWAIT) };
        if n < 0 && io::Error::last_os_error().kind() != ErrorKind::WouldBlock {
            self.take_unit_by_mode();
        }
    }

    /// Reads a unit like [`EventQueue::take_unit`], for kernels before 5.8, which cannot read an
    /// eventfd with RWF_NOWAIT. Threads that begin to sleep meanwhile get EAGAIN and retry.
    fn take_unit_by_mode(&self) {
        let set_mode = |mode: libc::c_int| {
            // SAFETY: takes no pointers.
            let _ = unsafe { libc::fcntl(self.units.as_raw_fd(), libc::F_SETFL, mode) };
        };
        set_mode(libc::O_NONBLOCK);
        // The eventfd is empty if a woken reader was faster.
        let _ = (&self.units).read(&mut [0; 8]);
        set_mode(0);
    }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    owned_fd(fd).map(File::from)
}

/// Creates an epoll set that is readable while `units` is.
fn epoll_of(units: &File) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let set = owned_fd(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    let mut readable = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
    // SAFETY: `readable` is one event that outlives the call.
    match unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, units.as_raw_fd(), &raw mut readable) } {
        0 => Ok(set),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owned_fd(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &EventQueue<u8>, event: u8) {
        queue.push(ObjectId::next(), event, None);
    }

    fn set_nonblocking(fd: RawFd) {
        // SAFETY: plain fcntl on an open descriptor.
        let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(rc, 0);
    }

    fn revents(fd: RawFd) -> i16 {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: `poll` is one pollfd that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) };
        poll.revents
    }

    fn is_readable(fd: RawFd) -> bool {
        revents(fd) == libc::POLLIN
    }

    #[test]
    fn event_descriptor_polls_readable_and_never_writable() {
        let queue = EventQueue::new().unwrap();
        assert_eq!(revents(queue.fd()), 0);
        push(&queue, 1);
        assert_eq!(revents(queue.fd()), libc::POLLIN);
        set_nonblocking(queue.fd());
        assert_eq!(revents(queue.fd()), libc::POLLIN);
        assert_eq!(queue.next().unwrap(), 1);
        assert_eq!(revents(queue.fd()), 0);
    }

    fn reported(set: &OwnedFd) -> Vec<u32> {
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: `found` has room for four events and outlives the call.
        let n = unsafe { libc::epoll_wait(set.as_raw_fd(), found.as_mut_ptr(), 4, 0) };
        found.iter().take(usize::try_from(n).unwrap()).map(|event| event.events).collect()
    }

    #[test]
    fn edge_triggered_epoll_reports_every_event_once() {
        let queue = EventQueue::new().unwrap();
        // SAFETY: takes no pointers.
        let set = owned_fd(unsafe { libc::epoll_create1(0) }).unwrap();
        let requested = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        let mut entry = libc::epoll_event { events: requested.cast_unsigned(), u64: 0 };
        // SAFETY: `entry` is one event that outlives the call.
        let rc = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, queue.fd(), &raw mut entry) };
        assert_eq!((rc, reported(&set)), (0, vec![]));
        for event in 0..3 {
            push(&queue, event);
            assert_eq!(reported(&set), [libc::EPOLLIN.cast_unsigned()], "event {event}, with those before it unread");
            assert_eq!(reported(&set), [0; 0]);
        }
        for event in 0..3 {
            assert_eq!((queue.take_next(false), reported(&set)), (Some(event), vec![]));
        }
    }

    #[test]
    fn take_unit_by_mode_keeps_sleeping_readers_intact() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let reader = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.next().unwrap()
        });
        for _ in 0..1000 {
            queue.take_unit_by_mode();
        }
        push(&queue, 7);
        assert_eq!(reader.join().unwrap(), 7);
        push(&queue, 8);
        queue.take_unit_by_mode();
        assert!(!is_readable(queue.fd()));
    }

    #[test]
    fn one_event_is_one_readable_unit() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(queue.fd()));
        push(&queue, 1);
        push(&queue, 2);
        assert_eq!(queue.next().unwrap(), 1);
        assert!(is_readable(queue.fd()));
        assert_eq!(queue.next().unwrap(), 2);
        assert!(!is_readable(queue.fd()));
    }

    #[test]
    fn non_blocking_descriptor_gives_eagain() {
        let queue: EventQueue<u8> = EventQueue::new().unwrap();
        set_nonblocking(queue.fd());
        assert_eq!(queue.next().unwrap_err().errno(), libc::EAGAIN);
    }

    #[test]
    fn waiting_reader_is_woken() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let reader = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.next().unwrap()
        });
        push(&queue, 7);
        assert_eq!(reader.join().unwrap(), 7);
    }

    #[test]
    fn taking_without_waiting_leaves_no_unit() {
        let queue = EventQueue::new().unwrap();
        assert_eq!(queue.take_next(false), None, "returns without waiting");
        push(&queue, 1);
        push(&queue, 2);
        assert_eq!((queue.take_next(false), is_readable(queue.fd())), (Some(1), true));
        assert_eq!((queue.take_next(false), is_readable(queue.fd())), (Some(2), false));
        assert_eq!(queue.take_next(false), None);
    }

    #[test]
    fn forgotten_events_leave_no_unit() {
        let queue = EventQueue::new().unwrap();
        let [gone, stays] = [ObjectId::next(), ObjectId::next()];
        for (source, event) in [(gone, 1), (stays, 2), (gone, 1), (stays, 3)] {
            queue.push(source, event, None);
        }
        queue.forget(gone);
        assert_eq!(queue.next().unwrap(), 2);
        assert_eq!(queue.next().unwrap(), 3);
        assert!(!is_readable(queue.fd()));
    }

    #[test]
    fn forget_leaves_waiting_reader_asleep() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let reader = std::thread::spawn({
            let queue = Arc::clone(&queue);
            // A reader that does not sleep yet may take an event before it is forgotten.
            move || while queue.next().unwrap() != 2 {}
        });
        let gone = ObjectId::next();
        for _ in 0..1000 {
            // The unit of this event is the one that a sleeping reader has just read.
            queue.events.lock().push_back(PendingEvent { event: 1, source: gone, watch: None });
            queue.forget(gone);
            assert!(queue.is_empty());
        }
        push(&queue, 2);
        reader.join().unwrap();
    }
}
