//! Requests that targets of other processes have for a shared queue of this one.
//!
//! For each such target there stands a guest here, which executes its requests one by one, each exactly once: the answer
//! to the last one is kept, for it may be asked for again. Guests are bounded in number; one that has not been asked for
//! long, or whose process is gone, makes room. Lock: one for all guests of a queue, outside of those of the queue pairs.

use super::{Kind, Srq};
use crate::host::MAX_FETCH;
use crate::qp::QpCore;
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use roxe_memory::guard::own_cells;
use roxe_net::forward::ErrandId;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Packet, PathMtu, Qpn, RKey};
use std::collections::HashMap;
use std::time::Duration;

/// Targets of other processes that one queue remembers.
const MAX_GUESTS: usize = 1024;
/// A target that has not asked for so long has its answer; its errands are repeated much more often.
const IDLE: Duration = Duration::from_secs(10);

/// A target of another process.
#[derive(Debug)]
struct Guest {
    core: QpCore,
    epoch: u64,
    /// Of the last request, and what came of it.
    seq: u64,
    outcome: Outcome,
    used: Instant,
}

/// All of one queue.
#[derive(Debug, Default)]
pub(super) struct Guests(Mutex<rank::XrcGuests, HashMap<u32, Guest>>);

impl Guests {
    /// The queue is destroyed: receives in use go with it.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Srq {
    fn guests(&self) -> Option<&Mutex<rank::XrcGuests, HashMap<u32, Guest>>> {
        if let Kind::Xrc(xrc) = &self.kind { Some(&xrc.guests.0) } else { None }
    }

    /// Executes a request of a target of another process, or says what came of it before. `None`: it is an old one.
    // clause: XRC-PROCESSES
    pub(crate) fn execute(
        &self,
        id: ErrandId,
        mtu: PathMtu,
        (net, packet): (&NetHeader, &Packet<'_>),
        now: Instant,
    ) -> Option<Outcome> {
        let mut guests = self.guests()?.lock();
        if let Some(old) = guests.get(&id.target.get()).filter(|guest| guest.epoch != id.epoch) {
            old.core.flush_guest(now);
            guests.remove(&id.target.get());
        }
        if let Some(guest) = guests.get_mut(&id.target.get()) {
            return match id.seq.cmp(&guest.seq) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some(guest.outcome),
                std::cmp::Ordering::Greater => Some(guest.execute(id, net, packet, now)),
            };
        }
        make_room(&mut guests, self.pd.context().engine(), now);
        let Some(mut guest) = self.new_guest(id, mtu, net, now).filter(|_| guests.len() < MAX_GUESTS) else {
            return Some(Outcome::NO_QUEUE);
        };
        let outcome = guest.execute(id, net, packet, now);
        guests.insert(id.target.get(), guest);
        Some(outcome)
    }

    fn new_guest(&self, id: ErrandId, mtu: PathMtu, net: &NetHeader, now: Instant) -> Option<Guest> {
        let Kind::Xrc(xrc) = &self.kind else { return None };
        let core = xrc.xrcd.guest(id.target);
        let guest = Guest { core, epoch: id.epoch, seq: 0, outcome: Outcome::NO_QUEUE, used: now };
        guest.core.connect_guest(mtu, net, now).then_some(guest)
    }

    /// Reads memory that the queue gives peers access to: `len` bytes, of which more than a piece is never asked for.
    pub(crate) fn read_for_other(&self, rkey: RKey, va: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len.min(MAX_FETCH) as usize];
        self.pd.context().memory().hold().read_remote(self.pd.id(), rkey, va, own_cells(&mut bytes)).ok()?;
        Some(bytes)
    }

    /// A connection of a target of another process has ended.
    pub(crate) fn end_guest(&self, id: ErrandId, now: Instant) {
        let Some(guests) = self.guests() else { return };
        let mut guests = guests.lock();
        if let Some(guest) = guests.get(&id.target.get()).filter(|guest| guest.epoch == id.epoch) {
            guest.core.flush_guest(now);
            guests.remove(&id.target.get());
        }
    }
}

impl Guest {
    fn execute(&mut self, id: ErrandId, net: &NetHeader, packet: &Packet<'_>, now: Instant) -> Outcome {
        (self.seq, self.used) = (id.seq, now);
        self.outcome = self.core.execute_for_other(net, packet, now);
        self.outcome
    }
}

/// Sees off the guests whose process has ended in the middle of a message, so that the receives they use end; and those
/// that have not been asked for long, if there are too many.
fn make_room(guests: &mut HashMap<u32, Guest>, engine: &Engine, now: Instant) {
    let is_full = guests.len() >= MAX_GUESTS;
    guests.retain(|&target, guest| {
        if !guest.core.is_in_message() {
            return !is_full || now.since(guest.used) < IDLE;
        }
        let stays = engine.has_owner(Qpn::new(target));
        if !stays {
            guest.core.flush_guest(now);
        }
        stays
    });
}

#[cfg(test)]
mod tests;
