//! Events that a program leaves unread, for the checker: which have lain there for a second, and
//! whether somebody sleeps who should have taken them.
//!
//! Only while the checker is on. Reads what the kernel says of this process's threads and
//! descriptors (`man proc_pid_syscall`, `man proc_pid_fdinfo`).

use crate::event::{AsyncEventKind, EventQueue};
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, is_checking, tell};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::fmt;
use std::fs;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long the checker looks at what lies there.
const LONG: Duration = Duration::from_secs(1);

/// Looks after an event that waits for the program. Once the event is taken it is gone, and nobody
/// looks.
#[derive(Debug)]
struct Unread<T> {
    me: Weak<Self>,
    engine: Weak<Engine>,
    /// Where it waits, and what names that for the checker.
    events: Weak<EventQueue<T>>,
    channel: ObjectId,
    /// What it is and happened to, if the object does not survive it, and whether that is told.
    fatal: Option<(ObjectId, AsyncEventKind)>,
    is_told: AtomicBool,
}

/// Tells the checker, while it is on, if an event that comes to `events` now lies there for long:
/// of one that an object does not survive, and if it is the oldest and a thread sleeps that should
/// have taken it. To be kept with the event.
pub(crate) fn watch<T: fmt::Debug + Send + 'static>(
    engine: &Arc<Engine>,
    (events, channel): (&Arc<EventQueue<T>>, ObjectId),
    fatal: Option<(ObjectId, AsyncEventKind)>,
) -> Option<Arc<dyn Deadline>> {
    is_checking().then(|| {
        let (ours, events, is_told) = (Arc::downgrade(engine), Arc::downgrade(events), AtomicBool::new(false));
        let unread = |me: &Weak<_>| Unread { me: Weak::clone(me), engine: ours, events, channel, fatal, is_told };
        let unread = Arc::new_cyclic(unread);
        unread.look_later(engine);
        unread as _
    })
}

impl<T: fmt::Debug + Send + 'static> Unread<T> {
    fn look_later(&self, engine: &Engine) {
        engine.add_deadline(clock::now().after(LONG), Weak::clone(&self.me) as _);
    }
}

impl<T: fmt::Debug + Send + 'static> Deadline for Unread<T> {
    fn on_deadline(&self, _: Instant) {
        if let Some((source, kind)) = self.fatal.filter(|_| !self.is_told.swap(true, Ordering::Relaxed)) {
            tell(|| Event::AsyncUnread { source, kind: &kind });
        }
        let Some((events, engine)) = self.events.upgrade().zip(self.engine.upgrade()) else { return };
        match events.oldest_of(self).filter(|_| is_slept_on(events.fd())) {
            Some((source, count)) => tell(|| Event::Unread { channel: self.channel, source, count }),
            None => self.look_later(&engine),
        }
    }
}

/// Whether a thread of the program sleeps in `epoll_wait` on a set that reports `fd` by edges. It
/// then sleeps on, however many events `fd` has, until another one comes.
fn is_slept_on(fd: RawFd) -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    let calls = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("syscall")).ok());
    let sets = calls.filter_map(|call| epoll_set(&call));
    sets.into_iter().any(|set| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap_or_default();
        info.lines().any(|line| reports_by_edges(line, fd))
    })
}

/// The set that a thread waits for, from what the kernel says of its system call: the number and
/// its arguments, or that there is none.
fn epoll_set(call: &str) -> Option<i64> {
    let mut words = call.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    #[cfg(target_arch = "x86_64")]
    let is_wait = number == libc::SYS_epoll_wait;
    #[cfg(not(target_arch = "x86_64"))]
    let is_wait = false;
    let is_wait = is_wait || [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2].contains(&number);
    let set = words.next()?.strip_prefix("0x")?;
    i64::from_str_radix(set, 16).ok().filter(|_| is_wait)
}

/// Whether this line of a set's description is `fd`, edge-triggered and for reading:
/// `tfd: 5 events: 80000001 data: 5`.
fn reports_by_edges(line: &str, fd: RawFd) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["tfd:", target, "events:", events, ..] = words[..] else { return false };
    let wanted = (libc::EPOLLET | libc::EPOLLIN) as u32;
    target.parse() == Ok(fd) && u32::from_str_radix(events, 16).is_ok_and(|events| events & wanted == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_that_a_thread_waits_for_is_read_from_its_system_call() {
        let wait = format!("{} 0x1f 0x7f4db4000ba0 0x3ff 0x3e8 0x0 0x0 0x7f4d 0x7f4e", libc::SYS_epoll_pwait);
        assert_eq!(epoll_set(&wait), Some(0x1f));
        let read = format!("{} 0x1f 0x7f4db4000ba0 0x8 0x0 0x0 0x0 0x7f4d 0x7f4e", libc::SYS_read);
        assert_eq!([read.as_str(), "running", "-1 0x7f4d 0x7f4e", ""].map(epoll_set), [None; 4]);
    }

    #[test]
    fn only_edges_of_the_same_descriptor_count() {
        let line = "tfd:        4 events: 80000019 data:                4  pos:0 ino:1a8ff9d sdev:f";
        assert!(reports_by_edges(line, 4) && !reports_by_edges(line, 5));
        let by_level = "tfd:        4 events:       19 data:                4  pos:0 ino:1a8ff9d sdev:f";
        let for_writing = "tfd:        4 events: 8000001c data:                4  pos:0 ino:1a8ff9d sdev:f";
        assert!(!reports_by_edges(by_level, 4) && !reports_by_edges(for_writing, 4));
        assert!(!reports_by_edges("flags:\t02000002", 4));
    }
}
