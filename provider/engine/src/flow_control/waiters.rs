//! Queue pairs that wait for room in a window.
//!
//! Served in order of arrival, each with room granted to it, so that even among thousands of
//! waiters a turn costs one visit.

use crate::sync::{AtomicBool, Mutex, Ordering, rank};
use roxe_wire::Qpn;
use std::collections::VecDeque;

/// The two windows of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Needed bytes of RC.
    Stream,
    /// Needed bytes of UC and UD.
    Datagrams,
}

/// Queue pairs that wait for one window.
#[derive(Debug, Default)]
pub(crate) struct RoomQueue {
    /// With the bytes that each was refused.
    queue: Mutex<rank::FlowWaiters, VecDeque<(Qpn, u32)>>,
    has_waiters: AtomicBool,
}

impl RoomQueue {
    pub(crate) fn push(&self, qpn: Qpn, bytes: u32) {
        let mut queue = self.queue.lock();
        queue.push_back((qpn, bytes));
        self.has_waiters.store(true, Ordering::SeqCst);
    }

    /// Removes the first queue pair if `room` returns what it is granted.
    pub(crate) fn pop_if(&self, room: impl FnOnce(u32) -> Option<u32>) -> Option<(Qpn, u32)> {
        let mut queue = self.queue.lock();
        let &(qpn, bytes) = queue.front()?;
        let granted = room(bytes)?;
        queue.pop_front();
        self.has_waiters.store(!queue.is_empty(), Ordering::SeqCst);
        Some((qpn, granted))
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.has_waiters.load(Ordering::SeqCst)
    }
}
