//! The shared receive queues of an XRC domain, by number.
//!
//! The number of a queue begins with a slot of its process, as that of a queue pair does, and so
//! tells where the queue is. One lock per domain, taken under that of a queue pair. Holds the
//! queues weakly.

use crate::srq::Srq;
use roxe_base::error::Error;
use roxe_base::limits::MAX_XRC_SRQ;
use roxe_base::lock::{RwLock, rank};
use roxe_engine::engine::Engine;
use roxe_net::slot::Slot;
use roxe_wire::Qpn;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A card and a file on it: the index of the card, device and inode of the file.
pub(crate) type Name = (u32, u64, u64);

/// The queues that all openings of a domain share.
#[derive(Debug, Default)]
pub(crate) struct XrcDomain {
    name: Option<Name>,
    queues: RwLock<rank::XrcQueues, HashMap<u32, Weak<Srq>>>,
}

impl XrcDomain {
    /// A domain without queues. One without a name is shared with nobody.
    pub(crate) fn new(name: Option<Name>) -> Self {
        Self { name, ..Self::default() }
    }

    /// What names it.
    pub(crate) fn name(&self) -> Option<Name> {
        self.name
    }

    /// Device and inode of the file that names the domain.
    pub(crate) fn file(&self) -> Option<(u64, u64)> {
        self.name.map(|(_, device, inode)| (device, inode))
    }

    /// The queue that `make` makes with a free number of `slot`. ENOMEM: the domain has
    /// [`MAX_XRC_SRQ`].
    pub(crate) fn add(&self, slot: Slot, make: impl FnOnce(u32) -> Result<Arc<Srq>, Error>) -> Result<Arc<Srq>, Error> {
        let mut queues = self.queues.write();
        let number = free_number(&queues, slot)?;
        let srq = make(number)?;
        queues.insert(number, Arc::downgrade(&srq));
        Ok(srq)
    }

    /// The queue with this number, if it is of this process.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.queues.read().get(&number)?.upgrade()
    }

    /// The process that may have the queue `number`, if it is another one than that of `engine`.
    pub(crate) fn elsewhere(&self, number: u32, engine: &Engine) -> Option<Slot> {
        let (qpn, _) = (Qpn::new(number), self.name?);
        let slot = Slot::of(qpn);
        (slot.can_be_owned() && !engine.is_ours(qpn)).then_some(slot)
    }

    /// The queue with this number is destroyed.
    pub(crate) fn remove(&self, number: u32) {
        self.queues.write().remove(&number);
    }
}

/// A number of `slot` that no queue of the domain has. Numbers go round, so that a late message for
/// a queue that is gone does not reach the next one.
// clause: XRC-QUEUE-KNOWN
fn free_number(queues: &HashMap<u32, Weak<Srq>>, slot: Slot) -> Result<u32, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..MAX_XRC_SRQ)
        .map(|_| slot.qpn(NEXT.fetch_add(1, Ordering::Relaxed)).get())
        .find(|number| !queues.contains_key(number))
        .ok_or_else(|| Error::new(libc::ENOMEM, "the XRC domain has no number left for another shared receive queue"))
}
