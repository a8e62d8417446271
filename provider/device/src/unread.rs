//! Events that a program leaves unread, for the checker: which have lain there for a second, and
//! whether somebody sleeps who should have taken them.
//!
//! Only while the checker is on. Reads what the kernel says of this process's threads and
//! descriptors (`man proc_pid_syscall`, `man proc_pid_fdinfo`).

use crate::event::EventQueue;
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, tell};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use std::fmt;
use std::fs;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After so long the checker looks at what lies there.
const LONG: Duration = Duration::from_secs(1);

/// What to do about an event that has lain there for a second: `true` asks again a second later.
type Look = Box<dyn Fn(&Unread) -> bool + Send + Sync>;

/// Part of an event that waits for the program. Once the event is taken it is gone, and nobody
/// looks.
pub(crate) struct Unread {
    me: Weak<Self>,
    engine: Weak<Engine>,
    look: Look,
}

impl Unread {
    /// Looks every second from now on, until `look` says that it is enough.
    pub(crate) fn watch(engine: &Arc<Engine>, look: impl Fn(&Self) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let (ours, look) = (Arc::downgrade(engine), Box::new(look));
        let unread = Arc::new_cyclic(|me| Self { me: Weak::clone(me), engine: ours, look });
        unread.look_later(engine);
        unread
    }

    /// Whether this belongs to the event that has `of`.
    pub(crate) fn is_of(&self, of: Option<&Arc<Self>>) -> bool {
        of.is_some_and(|of| ptr::eq(Arc::as_ptr(of), self))
    }

    fn look_later(&self, engine: &Engine) {
        engine.add_deadline(clock::now().after(LONG), Weak::clone(&self.me) as _);
    }
}

impl Deadline for Unread {
    fn on_deadline(&self, _: Instant) {
        if (self.look)(self)
            && let Some(engine) = self.engine.upgrade()
        {
            self.look_later(&engine);
        }
    }
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread").finish_non_exhaustive()
    }
}

/// Tells of the events of `channel` if somebody sleeps in front of them. `of` says what the oldest
/// happened to, if it is the one that is looked at. `true`: look again.
pub(crate) fn look<T>(events: &EventQueue<T>, channel: ObjectId, of: impl Fn(&T) -> Option<ObjectId>) -> bool {
    let oldest = events.look(|event, count| of(event).map(|source| (source, count))).flatten();
    let Some((source, count)) = oldest.filter(|_| is_slept_on(events.fd())) else { return true };
    tell(|| Event::Unread { channel, source, count });
    false
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
