//! Queue pairs by number.
//!
//! A process owns one or more slots of 4096 numbers each ([`crate::net::slot`]). Within a slot numbers are drawn at random,
//! so that a peer cannot guess them and a number is not soon used again. Finding a QP is a scan over the few slots and one
//! index.

use crate::net::slot::{QPNS_PER_SLOT, Slot};
use crate::qp::QpCore;
use parking_lot::RwLock;
use roxe_wire::Qpn;
use std::sync::Arc;

/// A slot takes no more QPs than this, so that a random number is soon found to be free.
const MAX_PER_SLOT: usize = QPNS_PER_SLOT as usize * 3 / 4;

/// What a destination QPN means here.
#[derive(Debug)]
pub(super) enum Lookup {
    /// This queue pair.
    Found(Arc<QpCore>),
    /// A number of ours that no queue pair has.
    Unknown,
    /// A number of another process, or of nobody.
    NotOurs,
}

#[derive(Debug)]
struct Owned {
    slot: Slot,
    used: usize,
    qps: Vec<Option<Arc<QpCore>>>,
}

/// All queue pairs of an engine.
#[derive(Debug, Default)]
pub(super) struct QpTable {
    slots: RwLock<Vec<Owned>>,
}

impl QpTable {
    /// Who `qpn` is.
    #[inline]
    pub(super) fn find(&self, qpn: Qpn) -> Lookup {
        let slots = self.slots.read();
        let Some(owned) = slots.iter().find(|owned| owned.slot == Slot::of(qpn)) else { return Lookup::NotOurs };
        match owned.qps.get(index_of(qpn)) {
            Some(Some(qp)) => Lookup::Found(Arc::clone(qp)),
            _ => Lookup::Unknown,
        }
    }

    /// The queue pair `qpn`, if it is one of ours.
    pub(super) fn get(&self, qpn: Qpn) -> Option<Arc<QpCore>> {
        match self.find(qpn) {
            Lookup::Found(qp) => Some(qp),
            _ => None,
        }
    }

    /// The slot that was added first.
    pub(super) fn first_slot(&self) -> Option<Slot> {
        self.slots.read().first().map(|owned| owned.slot)
    }

    /// Gives the table a slot that this process has claimed.
    pub(super) fn add_slot(&self, slot: Slot) {
        let mut qps = Vec::new();
        qps.resize_with(QPNS_PER_SLOT as usize, || None);
        self.slots.write().push(Owned { slot, used: 0, qps });
    }

    /// Stores what `make` returns under a free number. `None`: all slots are full; add one.
    pub(super) fn insert(&self, random: u32, make: impl FnOnce(Qpn) -> Arc<QpCore>) -> Option<Arc<QpCore>> {
        let mut slots = self.slots.write();
        let owned = slots.iter_mut().find(|owned| owned.used < MAX_PER_SLOT)?;
        let index = (0..QPNS_PER_SLOT)
            .map(|step| random.wrapping_add(step) % QPNS_PER_SLOT)
            .find(|&index| owned.qps.get(index as usize).is_some_and(Option::is_none))?;
        let qp = make(owned.slot.qpn(index));
        *owned.qps.get_mut(index as usize)? = Some(Arc::clone(&qp));
        owned.used += 1;
        Some(qp)
    }

    /// Forgets `qpn`.
    pub(super) fn remove(&self, qpn: Qpn) {
        let mut slots = self.slots.write();
        let Some(owned) = slots.iter_mut().find(|owned| owned.slot == Slot::of(qpn)) else { return };
        if let Some(entry) = owned.qps.get_mut(index_of(qpn))
            && entry.take().is_some()
        {
            owned.used -= 1;
        }
    }

    /// Takes everything out, the slots too.
    pub(super) fn drain(&self) -> Vec<Arc<QpCore>> {
        let slots = std::mem::take(&mut *self.slots.write());
        slots.into_iter().flat_map(|owned| owned.qps.into_iter().flatten()).collect()
    }

    /// Takes the lock for the fork handlers, which release it through [`QpTable::raw`], and lists the queue pairs.
    pub(super) fn lock_and_list(&self) -> Vec<Arc<QpCore>> {
        let slots = self.slots.write();
        let qps = slots.iter().flat_map(|owned| owned.qps.iter().flatten().map(Arc::clone)).collect();
        std::mem::forget(slots);
        qps
    }

    /// The lock.
    pub(super) fn raw(&self) -> &impl crate::fork::Lockable {
        &self.slots
    }
}

fn index_of(qpn: Qpn) -> usize {
    (qpn.get() % QPNS_PER_SLOT) as usize
}
