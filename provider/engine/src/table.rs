//! Queue pairs by number.
//!
//! A process owns one or more slots of 4096 numbers each ([`roxe_net::slot`]). Within a slot
//! numbers are drawn at random, so that a peer cannot guess them. A freed number is not reused for
//! a while: peers may remember its connection and refuse a new one as stale. The weakest legal card
//! reuses the numbers of unconnected queue pairs at once.

use crate::queue_pair::{PREFETCH_LEN, QueuePair};
use roxe_base::lock::{RwLock, lock_raw_and_read, rank};
use roxe_base::weakest::{Weakness, has};
use roxe_memory::prefetch::prefetch_at;
use roxe_net::slot::{QPNS_PER_SLOT, Slot};
use roxe_transport::qp::Service;
use roxe_wire::Qpn;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of QPs of a slot, so that a random number is soon found to be free.
const MAX_PER_SLOT: usize = QPNS_PER_SLOT as usize * 3 / 4;

const RECENT: usize = 16;

#[derive(Debug)]
pub(crate) enum Lookup {
    Found(Arc<dyn QueuePair>),
    /// A number of this process without a queue pair.
    Unknown,
    /// A number of another process, or of none.
    NotOurs,
}

#[derive(Debug)]
pub(crate) struct Owned {
    slot: Slot,
    used: usize,
    numbers: Vec<Number>,
    /// Freed numbers that may not be reused yet, oldest first.
    resting: VecDeque<usize>,
    /// Freed numbers to be reused at once, on the weakest legal card.
    again: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Number {
    Free,
    Resting,
    Used(Arc<dyn QueuePair>),
}

impl Owned {
    fn new(slot: Slot) -> Self {
        Self {
            slot,
            used: 0,
            numbers: vec![Number::Free; QPNS_PER_SLOT as usize],
            resting: VecDeque::new(),
            again: Vec::new(),
        }
    }

    fn qps(&self) -> impl Iterator<Item = &Arc<dyn QueuePair>> {
        self.numbers.iter().filter_map(|number| match number {
            Number::Used(qp) => Some(qp),
            Number::Free | Number::Resting => None,
        })
    }

    /// Assigns a free number; the search begins at `random`, or at a number to be reused.
    fn take(&mut self, random: u32, make: impl FnOnce(Qpn) -> Arc<dyn QueuePair>) -> Option<()> {
        let random = self.again.pop().map_or(random, |index| index as u32);
        let index = (0..QPNS_PER_SLOT)
            .map(|step| random.wrapping_add(step) % QPNS_PER_SLOT)
            .find(|&index| matches!(self.numbers.get(index as usize), Some(Number::Free)))?;
        let qp = make(self.slot.qpn(index));
        *self.numbers.get_mut(index as usize)? = Number::Used(qp);
        self.used += 1;
        self.wake();
        Some(())
    }

    fn give_back(&mut self, index: usize) {
        if let Some(number @ Number::Used(_)) = self.numbers.get_mut(index) {
            let is_connected = !matches!(number, Number::Used(qp) if qp.service() == Service::Ud);
            self.used -= 1;
            if !is_connected && has(Weakness::REUSE) {
                *number = Number::Free;
                self.again.push(index);
            } else {
                *number = Number::Resting;
                self.resting.push_back(index);
            }
            self.wake();
        }
    }

    /// Limits freed numbers to three quarters of the unused ones, so that the others remain
    /// unpredictable.
    fn wake(&mut self) {
        let most = (self.numbers.len() - self.used) * 3 / 4;
        while self.resting.len() > most {
            let Some(index) = self.resting.pop_front() else { return };
            if let Some(number) = self.numbers.get_mut(index) {
                *number = Number::Free;
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct QpTable {
    /// The slots of `slots`, for callers that have a queue pair locked.
    pub(crate) owned: RwLock<rank::OwnedSlots, Vec<Slot>>,
    pub(crate) slots: RwLock<rank::QpTable, Vec<Owned>>,
    /// Incremented when a queue pair is removed.
    version: AtomicU32,
}

/// Cache of queue pairs looked up by the receive side, which needs neither lock nor reference
/// count.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    version: u32,
    qps: [Option<(Qpn, Arc<dyn QueuePair>)>; RECENT],
}

impl Recent {
    #[inline]
    pub(crate) fn put(&mut self, qpn: Qpn, qp: Arc<dyn QueuePair>) {
        if let Some(place) = self.qps.get_mut(qpn.get() as usize % RECENT) {
            *place = Some((qpn, qp));
        }
    }
}

impl QpTable {
    /// Like [`QpTable::find`], for the receive side, which returns the result by [`Recent::put`].
    // Inlined: a call would return the result through memory.
    #[inline(always)]
    pub(crate) fn find_recent(&self, qpn: Qpn, recent: &mut Recent) -> Lookup {
        let version = self.version.load(Ordering::Acquire);
        if version != recent.version {
            *recent = Recent { version, ..Recent::default() };
        }
        let place = recent.qps.get_mut(qpn.get() as usize % RECENT);
        match place.and_then(|place| place.take_if(|(known, _)| *known == qpn)) {
            Some((_, qp)) => {
                prefetch_at(Arc::as_ptr(&qp).addr(), PREFETCH_LEN);
                Lookup::Found(qp)
            }
            None => self.find(qpn),
        }
    }

    #[inline(never)]
    pub(crate) fn find(&self, qpn: Qpn) -> Lookup {
        let slots = self.slots.read();
        let Some(owned) = slots.iter().find(|owned| owned.slot == Slot::of(qpn)) else { return Lookup::NotOurs };
        match owned.numbers.get(index_of(qpn)) {
            Some(Number::Used(qp)) => {
                // Before changing the reference count, which stalls on the first cache line while
                // the others are loaded.
                prefetch_at(Arc::as_ptr(qp).addr(), PREFETCH_LEN);
                Lookup::Found(Arc::clone(qp))
            }
            _ => Lookup::Unknown,
        }
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<Arc<dyn QueuePair>> {
        match self.find(qpn) {
            Lookup::Found(qp) => Some(qp),
            _ => None,
        }
    }

    pub(crate) fn first_slot(&self) -> Option<Slot> {
        self.owned.read().first().copied()
    }

    pub(crate) fn add_slot(&self, slot: Slot) {
        let mut slots = self.slots.write();
        self.owned.write().push(slot);
        slots.push(Owned::new(slot));
    }

    /// Stores the result of `make` under a free number. Returns false if all slots are full.
    pub(crate) fn insert(&self, random: u32, make: impl FnOnce(Qpn) -> Arc<dyn QueuePair>) -> bool {
        let mut slots = self.slots.write();
        slots.iter_mut().find(|owned| owned.used < MAX_PER_SLOT).and_then(|owned| owned.take(random, make)).is_some()
    }

    pub(crate) fn remove(&self, qpn: Qpn) {
        let mut slots = self.slots.write();
        if let Some(owned) = slots.iter_mut().find(|owned| owned.slot == Slot::of(qpn)) {
            owned.give_back(index_of(qpn));
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes all queue pairs and slots.
    pub(crate) fn drain(&self) -> Vec<Arc<dyn QueuePair>> {
        let slots = std::mem::take(&mut *self.slots.write());
        self.owned.write().clear();
        self.version.fetch_add(1, Ordering::Release);
        slots.iter().flat_map(Owned::qps).map(Arc::clone).collect()
    }

    pub(crate) fn list(&self) -> Vec<Arc<dyn QueuePair>> {
        self.slots.read().iter().flat_map(Owned::qps).map(Arc::clone).collect()
    }

    /// Locks the table for the fork handlers, which unlock it through `QpTable::raw`, and lists
    /// the queue pairs.
    pub(crate) fn lock_and_list(&self) -> Vec<Arc<dyn QueuePair>> {
        lock_raw_and_read(&self.slots, |slots| slots.iter().flat_map(Owned::qps).map(Arc::clone).collect())
    }
}

fn index_of(qpn: Qpn) -> usize {
    (qpn.get() % QPNS_PER_SLOT) as usize
}
