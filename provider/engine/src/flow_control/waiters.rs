//! Queue pairs that wait for room in a window.
//!
//! First come, first served, and served with room of their own: thousands may wait for a window of
//! some hundred packets, and each gets its turn at the cost of one visit. Touches nothing.

use crate::sync::{AtomicBool, Mutex, Ordering, rank};
use roxe_wire::Qpn;
use std::collections::VecDeque;

/// The two windows of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// RC.
    Stream,
    /// UC and UD.
    Datagrams,
}

/// Who waits for one of them.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// With the bytes that they were refused.
    queue: Mutex<rank::FlowWaiters, VecDeque<(Qpn, u32)>>,
    are_there: AtomicBool,
}

impl Waiters {
    pub(crate) fn push(&self, qpn: Qpn, bytes: u32) {
        let mut queue = self.queue.lock();
        queue.push_back((qpn, bytes));
        self.are_there.store(true, Ordering::SeqCst);
    }

    /// Takes whoever waited longest if `room` says what it gets.
    pub(crate) fn pop_if(&self, room: impl FnOnce(u32) -> Option<u32>) -> Option<(Qpn, u32)> {
        let mut queue = self.queue.lock();
        let &(qpn, bytes) = queue.front()?;
        let gets = room(bytes)?;
        queue.pop_front();
        self.are_there.store(!queue.is_empty(), Ordering::SeqCst);
        Some((qpn, gets))
    }

    /// Whether anybody waits.
    pub(crate) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::SeqCst)
    }
}
