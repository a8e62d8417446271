//! For the checker: threads that sleep until a descriptor is readable, and events that have been
//! unread for a second although a thread sleeps that should have read them. Reads `/proc` of this
//! process (`man proc_pid_syscall`, `man proc_pid_fdinfo`, `man proc_pid_mem`).

use crate::event::{AsyncEventKind, EventQueue};
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, emit, is_checking};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_transport::time::Instant;
use std::fmt;
use std::fs::{self, File};
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time after which the checker examines unread events and waiting threads.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(1);

/// Watch of one event; dropped when the program reads the event.
#[derive(Debug)]
struct UnreadWatch<T> {
    me: Weak<Self>,
    engine: Weak<Engine>,
    /// Queue of the event, and its identity in checker events.
    events: Weak<EventQueue<T>>,
    channel: ObjectId,
    /// Source and kind, if the event is fatal.
    fatal: Option<(ObjectId, AsyncEventKind)>,
    is_reported: AtomicBool,
}

/// Returns a watch for an event that is about to enter `events`, if the checker is on. It reports
/// a fatal event that is unread after a second, and the oldest event if a thread sleeps that should
/// have read it.
pub(crate) fn watch_unread<T: fmt::Debug + Send + 'static>(
    engine: &Arc<Engine>,
    (events, channel): (&Arc<EventQueue<T>>, ObjectId),
    fatal: Option<(ObjectId, AsyncEventKind)>,
) -> Option<Arc<dyn DeadlineOwner>> {
    is_checking().then(|| {
        let (ours, events, is_reported) = (Arc::downgrade(engine), Arc::downgrade(events), AtomicBool::new(false));
        let unread =
            |me: &Weak<_>| UnreadWatch { me: Weak::clone(me), engine: ours, events, channel, fatal, is_reported };
        let unread = Arc::new_cyclic(unread);
        unread.look_later(engine);
        unread as _
    })
}

impl<T: fmt::Debug + Send + 'static> UnreadWatch<T> {
    fn look_later(&self, engine: &Engine) {
        engine.scheduler.add_deadline(clock::now().after(LONG_WAIT), Weak::clone(&self.me) as _);
    }
}

impl<T: fmt::Debug + Send + 'static> DeadlineOwner for UnreadWatch<T> {
    fn on_deadline(&self, _: Instant) {
        if let Some((source, kind)) = self.fatal.filter(|_| !self.is_reported.swap(true, Ordering::Relaxed)) {
            emit(|| Event::AsyncEventUnread { source, kind: &kind });
        }
        let Some((events, engine)) = self.events.upgrade().zip(self.engine.upgrade()) else { return };
        match events.oldest_of(self).filter(|_| sleepers(events.fd()).iter().any(|sleeper| sleeper.by_edges)) {
            Some((source, count)) => emit(|| Event::EventsUnread { channel: self.channel, source, count }),
            None => self.look_later(&engine),
        }
    }
}

/// Maximum number of descriptors examined per call.
const MAX_ENTRIES: u64 = 4096;

/// A thread that sleeps until a descriptor is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sleeper {
    pub(crate) thread: i32,
    pub(crate) call: &'static str,
    /// True if it waits for an edge, and so may sleep although the descriptor is readable.
    pub(crate) by_edges: bool,
}

/// Returns the threads that sleep until `fd` is readable.
pub(crate) fn sleepers(fd: RawFd) -> Vec<Sleeper> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let sleeper = |entry: fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let call = fs::read_to_string(entry.path().join("syscall")).ok()?;
        let (call, by_edges) = waits_for(Call::parse(&call)?, fd)?;
        Some(Sleeper { thread, call, by_edges })
    };
    threads.flatten().filter_map(sleeper).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// `epoll_wait` or a variant, with the descriptor of the set.
    Epoll(u64),
    /// `poll` or `ppoll`, with the address of the entries and their number.
    Poll(u64, u64),
    /// `select` or `pselect6`, with the limit of descriptors and the address of the read set.
    Select(u64, u64),
}

impl Call {
    fn parse(call: &str) -> Option<Self> {
        let mut words = call.split_ascii_whitespace();
        let number: i64 = words.next()?.parse().ok()?;
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, second) = (argument()?, argument()?);
        #[cfg(target_arch = "x86_64")]
        match number {
            libc::SYS_epoll_wait => return Some(Self::Epoll(first)),
            libc::SYS_poll => return Some(Self::Poll(first, second)),
            libc::SYS_select => return Some(Self::Select(first, second)),
            _ => {}
        }
        match number {
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(Self::Epoll(first)),
            libc::SYS_ppoll => Some(Self::Poll(first, second)),
            libc::SYS_pselect6 => Some(Self::Select(first, second)),
            _ => None,
        }
    }
}

/// Returns the name of the call and if it waits for edges, if it waits until `fd` is readable.
fn waits_for(call: Call, fd: RawFd) -> Option<(&'static str, bool)> {
    match call {
        Call::Epoll(set) => {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
            info.lines().find_map(|line| reported(line, fd)).map(|by_edges| ("epoll_wait", by_edges))
        }
        Call::Poll(address, count) => {
            let entries = memory(address, count.min(MAX_ENTRIES) * 8)?;
            let is_it = |entry: &[u8; 8]| {
                let [f0, f1, f2, f3, e0, e1, ..] = *entry;
                let events = i16::from_ne_bytes([e0, e1]);
                i32::from_ne_bytes([f0, f1, f2, f3]) == fd && events & libc::POLLIN != 0
            };
            entries.as_chunks::<8>().0.iter().any(is_it).then_some(("poll", false))
        }
        Call::Select(below, address) => {
            let bits = memory(address, below.min(MAX_ENTRIES).div_ceil(64) * 8)?;
            let (at, bit) = (usize::try_from(fd).ok()? / 8, fd % 8);
            bits.get(at).is_some_and(|byte| byte >> bit & 1 == 1).then_some(("select", false))
        }
    }
}

/// Parses a line such as `tfd: 5 events: 80000001 data: 5` from the fdinfo of an epoll set. Returns
/// true for edge triggering, `None` unless the set waits until `fd` is readable.
fn reported(line: &str, fd: RawFd) -> Option<bool> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["tfd:", target, "events:", events, ..] = words[..] else { return None };
    let events = u32::from_str_radix(events, 16).ok().filter(|_| target.parse() == Ok(fd))?;
    (events & libc::EPOLLIN as u32 != 0).then_some(events & libc::EPOLLET as u32 != 0)
}

/// Reads this process's memory, which another thread may have unmapped.
fn memory(address: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, address).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::io::{PipeWriter, Write, pipe};
    use std::os::fd::AsRawFd;
    use std::thread;

    #[test]
    fn syscall_line_is_parsed() {
        let line = |number| format!("{number} 0x1f 0x7f4db4000ba0 0x3ff 0x3e8 0x0 0x0 0x7f4d 0x7f4e");
        assert_eq!(Call::parse(&line(libc::SYS_epoll_pwait)), Some(Call::Epoll(0x1f)));
        assert_eq!(Call::parse(&line(libc::SYS_ppoll)), Some(Call::Poll(0x1f, 0x7f4d_b400_0ba0)));
        assert_eq!(Call::parse(&line(libc::SYS_pselect6)), Some(Call::Select(0x1f, 0x7f4d_b400_0ba0)));
        let read = line(libc::SYS_read);
        assert_eq!([read.as_str(), "running", "-1 0x7f4d 0x7f4e", ""].map(Call::parse), [None; 4]);
    }

    #[test]
    fn epoll_set_reports_readable_descriptors() {
        let edges = "tfd:        4 events: 80000019 data:                4  pos:0 ino:1a8ff9d sdev:f";
        let level = "tfd:        4 events:       19 data:                4  pos:0 ino:1a8ff9d sdev:f";
        let for_writing = "tfd:        4 events: 8000001c data:                4  pos:0 ino:1a8ff9d sdev:f";
        assert_eq!((reported(edges, 4), reported(level, 4)), (Some(true), Some(false)));
        assert_eq!((reported(edges, 5), reported(for_writing, 4), reported("flags:\t02000002", 4)), (None, None, None));
    }

    /// Checks that a thread in `wait` is found for its pipe and for no other descriptor.
    fn is_found(call: &'static str, wait: impl FnOnce(RawFd) + Send) {
        let (reader, mut writer): (_, PipeWriter) = pipe().unwrap();
        let fd = reader.as_raw_fd();
        thread::scope(|scope| {
            scope.spawn(move || wait(fd));
            let found = loop {
                match sleepers(fd)[..] {
                    [] => thread::yield_now(),
                    [only] => break only,
                    ref many => panic!("{many:?}"),
                }
            };
            assert_eq!((found.call, found.by_edges), (call, false));
            assert_eq!(sleepers(writer.as_raw_fd()), []);
            writer.write_all(b"x").unwrap();
        });
    }

    #[test]
    fn sleeping_thread_is_found_in_every_call() {
        is_found("poll", testing::sleep_in_poll);
        is_found("select", testing::sleep_in_select);
        is_found("epoll_wait", testing::sleep_in_epoll);
    }
}
