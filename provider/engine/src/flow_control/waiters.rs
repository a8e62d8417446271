//! Queue pairs that wait for room in a window.
//!
//! Waiters are served in order of arrival, each with room granted to it, so that even among
//! thousands of waiters a turn costs one visit.

use crate::sync::{AtomicBool, Mutex, Ordering, rank};
use roxe_wire::Qpn;
use std::collections::VecDeque;

/// The two windows of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The window of RC.
    Stream,
    /// The window of UC and UD.
    Datagrams,
}

/// Queue pairs that wait for one window.
#[derive(Debug, Default)]
pub(crate) struct RoomQueue {
    /// The queue pairs, each with the number of bytes that it was refused.
    queue: Mutex<rank::FlowWaiters, VecDeque<(Qpn, u32)>>,
    has_waiters: AtomicBool,
}

impl RoomQueue {
    pub(crate) fn push(&self, qpn: Qpn, bytes: u32) {
        let mut queue = self.queue.lock();
        queue.push_back((qpn, bytes));
        self.has_waiters.store(true, Ordering::SeqCst);
    }

    /// Removes the first queue pair if `room` grants bytes for those that it was refused. Returns
    /// the queue pair and the granted bytes.
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
