//! What the system drops at a socket, which it counts in one number whatever the reason. Touches
//! the socket.

use crate::sys;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Datagrams that the system has dropped at a socket.
#[derive(Debug, Default)]
pub(super) struct Drops {
    /// How many it had at the last look, in its 32 bits.
    seen: AtomicU32,
    /// Whether it runs a program that drops those of other users.
    are_filtered: AtomicBool,
    lost: AtomicU64,
    filtered: AtomicU64,
}

/// Datagrams that the system has dropped at a socket since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenDrops {
    /// Mostly because its buffer was full.
    pub lost: u64,
    /// While it dropped those of other users: the system has one number for all.
    pub filtered: u64,
}

impl Drops {
    /// Looks at how many there are by now.
    pub(super) fn look(&self, fd: RawFd) -> u32 {
        let now = sys::drops(fd).unwrap_or(0);
        // Another thread may have looked later, and noted it first.
        let is_newer = |seen| (1..1 << 31).contains(&now.wrapping_sub(seen)).then_some(now);
        if let Ok(seen) = self.seen.fetch_update(Relaxed, Relaxed, is_newer) {
            let count = if self.are_filtered.load(Relaxed) { &self.filtered } else { &self.lost };
            count.fetch_add(now.wrapping_sub(seen).into(), Relaxed);
        }
        now
    }

    pub(super) fn take(&self, fd: RawFd) -> TakenDrops {
        self.look(fd);
        let [lost, filtered] = [&self.lost, &self.filtered].map(|count| count.swap(0, Relaxed));
        TakenDrops { lost, filtered }
    }

    pub(super) fn are_filtered(&self) -> bool {
        self.are_filtered.load(Relaxed)
    }

    /// Look before it begins and after it has ended.
    pub(super) fn set_filtered(&self, are_filtered: bool) {
        self.are_filtered.store(are_filtered, Relaxed);
    }
}
