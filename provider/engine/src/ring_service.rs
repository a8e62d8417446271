//! Life of rings: offers, acceptance, room, and the death of peer processes. See [`crate::rings`].

use crate::engine::Engine;
use crate::flow_control::Receiver;
use crate::poller::Woken;
use crate::rings::{MAX_RINGS, Sender, SharedSender, size_of_next};
use crate::rx::NEW_RING_POLLS;
use crate::rx_state::{RxState, Sources};
use crate::scheduler::Ready;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_net::forward::Frame;
use roxe_net::shm::{self, Inbound, Offer, PeerEvent};
use roxe_net::slot::Slot;
use roxe_transport::time::Instant;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
/// Queue pairs served at a time when a ring has room again. If thousands were, most would find it
/// full.
const TURNS: usize = 64;

impl Engine {
    pub(crate) fn offer_rings(&self, state: &RxState, now: Instant) {
        for slot in self.rings.wanted() {
            let offer = uncancelled(|| self.offer_ring(state, slot));
            self.flows.push_ready(self.rings.note_offer(slot, offer, now).into_iter());
        }
    }

    /// Checks for acceptance of offered rings, and ends waits that are due.
    pub(crate) fn poll_awaited(&self, now: Instant) {
        self.poll_out_controls();
        self.flows.push_ready(self.rings.end_awaiting(now).into_iter());
    }

    fn offer_ring(&self, state: &RxState, slot: Slot) -> io::Result<Offer> {
        let size = size_of_next().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (offer, poller) = (Offer::new(size)?, self.scheduler.poller().map_err(io::Error::other)?);
        let from = state.slots.first().ok_or(io::ErrorKind::NotConnected)?;
        poller.watch_for(Woken::Line, offer.control.fd())?;
        let header = Frame::Ring { size: size as u32 }.header();
        from.send_descriptors(slot, &header, &offer.descriptors(poller.doorbell()))?;
        Ok(offer)
    }

    /// Accepts a ring offered by another process, which otherwise continues to use the socket.
    pub(crate) fn accept_ring(&self, size: u32, descriptors: Vec<OwnedFd>) {
        let size = size as usize;
        let is_wanted = self.rings.is_on && [shm::SIZE, shm::SMALL].contains(&size) && shm::read() < MAX_RINGS;
        if let (true, Ok(poller)) = (is_wanted, self.scheduler.poller()) {
            let watch = |control| poller.watch_for(Woken::Line, control);
            // On failure the descriptors are closed, which the other process notices.
            let Ok(ring) = uncancelled(|| Inbound::accept(size, descriptors, poller.doorbell(), watch)) else { return };
            self.rings.inbound.write().push(Arc::new(ring));
            self.rings.inbound_version.fetch_add(1, Ordering::Release);
            // A sleeping background thread has not told the writer of this ring to wake it.
            poller.kick();
        }
    }

    #[inline]
    pub(crate) fn refresh_rings(&self, sources: &mut Sources) {
        let version = self.rings.inbound_version.load(Ordering::Acquire);
        if version != sources.rings_version {
            self.copy_rings(sources, version);
        }
    }

    #[cold]
    fn copy_rings(&self, sources: &mut Sources, version: u32) {
        uncancelled(|| sources.rings.clone_from(&self.rings.inbound.read()));
        (sources.rings_version, sources.new_ring_polls) = (version, NEW_RING_POLLS);
    }

    /// Handles events of control sockets: acceptance, or death of a peer. Background thread only.
    pub(crate) fn poll_ring_controls(&self) {
        let mut rx = self.rx.lock();
        self.poll_out_controls();
        self.close_dead_inbound(&mut rx);
        drop(rx);
        self.serve_ready(clock::now());
    }

    fn poll_out_controls(&self) {
        let mut changed = Vec::new();
        let (mut ready, mut gone) = (Vec::new(), Vec::new());
        let mut out = self.rings.out.lock();
        for (slot, state) in out.iter_mut() {
            // One edge may stand for both messages of a control socket.
            changed.extend(
                (0..2).map_while(|_| state.poll_control(&mut ready, &mut gone)).map(|receiver| (*slot, receiver)),
            );
        }
        self.rings.note_answers(&out);
        if !changed.is_empty() {
            // Before `set_receiver`: a sender without a window because of a ring must use that
            // ring.
            self.rings.version.fetch_add(2, Ordering::Release);
        }
        drop(out);
        // After unlocking the list: a writer that holds the lock of a ring may look up another.
        gone.iter().for_each(|ring| ring.lock().close());
        if changed.iter().any(|(_, receiver)| *receiver == Receiver::Absent) {
            self.scheduler.note_death(clock::now());
        }
        for (slot, receiver) in &changed {
            self.flows.set_receiver(*slot, *receiver);
        }
        self.flows.push_ready(ready.into_iter());
    }

    /// Reads the remaining records of rings whose writers have died, then closes the rings.
    fn close_dead_inbound(&self, rx: &mut crate::rx_state::Rx) {
        // A writer's control socket has no other event.
        let is_gone = |ring: &Arc<Inbound>| !matches!(ring.control.poll(), PeerEvent::Nothing);
        let gone: Vec<_> = self.rings.inbound.read().iter().filter(|ring| is_gone(ring)).map(Arc::clone).collect();
        if gone.is_empty() {
            return;
        }
        // A corrupt ring may appear to be never empty.
        let end = |ring: &Arc<Inbound>| ring.reader.read_so_far().saturating_add(ring.reader.size());
        let ends: Vec<_> = gone.iter().map(end).collect();
        let is_left = |(ring, end): (&Arc<Inbound>, &u64)| {
            !ring.reader.is_empty() && ring.reader.read_so_far() < *end && self.rings.reads(ring)
        };
        while gone.iter().zip(&ends).any(is_left) && self.receive(rx, true, clock::now()) {}
        self.forget_inbound(&gone);
        self.refresh_rings(&mut rx.sources);
        self.scheduler.note_death(clock::now());
    }

    pub(crate) fn forget_inbound(&self, gone: &[Arc<Inbound>]) {
        let is_kept = |ring: &Arc<Inbound>| !gone.iter().any(|gone| Arc::ptr_eq(gone, ring));
        self.rings.inbound.write().retain(is_kept);
        self.rings.inbound_version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn serve_room_waiters(&self) {
        if self.scheduler.ready().contains(Ready::RINGS_FULL) {
            self.serve_full_rings();
        }
    }

    fn serve_full_rings(&self) {
        let mut full = std::mem::take(&mut *self.rings.full.lock());
        full.retain(|ring| self.offer_room(ring));
        let mut list = self.rings.full.lock();
        list.extend(full);
        self.rings.has_full.set_to(!list.is_empty());
        drop(list);
        if self.rings.is_asleep() && self.rings.has_room_again() {
            self.scheduler.kick();
        }
    }

    /// Makes some queue pairs ready that wait for room in `ring`, if there is. Returns true if
    /// others remain.
    fn offer_room(&self, ring: &SharedSender) -> bool {
        let mut sender = ring.lock();
        if !sender.is_half_free() {
            return true;
        }
        let Sender { blocked, partial, is_listed, .. } = &mut *sender;
        let first = blocked.len().min(TURNS);
        let then = partial.len().min((TURNS - first).max(TURNS / 4));
        self.flows.push_ready(blocked.drain(..first).chain(partial.drain(..then)));
        *is_listed = !blocked.is_empty() || !partial.is_empty();
        *is_listed
    }
}

#[cfg(test)]
mod tests;
