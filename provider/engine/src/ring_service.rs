//! How rings come to be, are read, and end: offers, acceptances, room that others wait for,
//! processes that died.
//!
//! What waits for a ring, and what does not: [`crate::rings`]. Rings end under the receive lock.

use crate::engine::Engine;
use crate::flow_control::Receiver;
use crate::poller::{Poller, Woken};
use crate::rings::{MAX_RINGS, Sender, SharedSender, size_of_next};
use crate::rx::YOUNG;
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
/// Queue pairs that are served at a time when a ring has room again. Thousands may wait, and if all
/// were served most would find it full once more.
const TURNS: usize = 64;

impl Engine {
    /// Offers the rings that somebody wants.
    pub(crate) fn offer_rings(&self, state: &RxState, now: Instant) {
        for slot in self.rings.wanted() {
            let offer = uncancelled(|| self.offer_ring(state, slot));
            self.flows.push_ready(self.rings.note_offer(slot, offer, now).into_iter());
        }
    }

    /// Looks whether rings that queue pairs wait for were accepted, and ends waits that are due.
    pub(crate) fn tend_awaited(&self, now: Instant) {
        self.tend_out();
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

    /// Another process offers a ring. Without it, it goes on using the socket.
    pub(crate) fn accept_ring(&self, size: u32, descriptors: Vec<OwnedFd>) {
        let size = size as usize;
        let is_wanted = self.rings.is_on && [shm::SIZE, shm::SMALL].contains(&size) && shm::read() < MAX_RINGS;
        if let (true, Ok(poller)) = (is_wanted, self.scheduler.poller()) {
            // What cannot be mapped or watched is let go of, which the other process notices.
            let _ = uncancelled(|| self.open_inbound(size, descriptors, &poller));
        }
    }

    fn open_inbound(&self, size: usize, descriptors: Vec<OwnedFd>, poller: &Poller) -> io::Result<()> {
        let ring = Inbound::accept(size, descriptors, poller.doorbell(), |line| poller.watch_for(Woken::Line, line))?;
        self.rings.inbound.write().push(Arc::new(ring));
        self.rings.inbound_version.fetch_add(1, Ordering::Release);
        // If the background thread sleeps now, the writer does not know that it has to wake it.
        poller.kick();
        Ok(())
    }

    /// Takes over the list of rings to read. New ones are young.
    pub(crate) fn refresh_rings(&self, sources: &mut Sources) {
        let version = self.rings.inbound_version.load(Ordering::Acquire);
        if version != sources.rings_version {
            self.take_over_rings(sources);
            (sources.rings_version, sources.young_visits) = (version, YOUNG);
        }
    }

    #[cold]
    fn take_over_rings(&self, sources: &mut Sources) {
        uncancelled(|| sources.rings.clone_from(&self.rings.inbound.read()));
    }

    /// Something was said on lines: rings were accepted or are gone. Background thread only.
    pub(crate) fn tend_rings(&self) {
        let mut rx = self.rx.lock();
        self.tend_out();
        self.tend_inbound(&mut rx);
        drop(rx);
        self.serve_ready(clock::now());
    }

    fn tend_out(&self) {
        let mut changed = Vec::new();
        let (mut ready, mut gone) = (Vec::new(), Vec::new());
        let mut out = self.rings.out.lock();
        for (slot, what) in out.iter_mut() {
            // One event may stand for both of what a line can say.
            changed.extend((0..2).map_while(|_| what.hear(&mut ready, &mut gone)).map(|receiver| (*slot, receiver)));
        }
        self.rings.note_answers(&out);
        if !changed.is_empty() {
            // Before anybody hears of a ring: who sends without end because there is one must know
            // that it has to use it.
            self.rings.version.fetch_add(2, Ordering::Release);
        }
        drop(out);
        // Without the list: who holds the lock of a ring, because it writes there, may look for
        // another one in the list.
        gone.iter().for_each(|ring| ring.lock().close());
        if changed.iter().any(|(_, receiver)| *receiver == Receiver::Absent) {
            self.scheduler.note_death(clock::now());
        }
        for (slot, receiver) in &changed {
            self.flows.set_receiver(*slot, *receiver);
        }
        self.flows.push_ready(ready.into_iter());
    }

    /// Reads what is left of rings whose writers are gone, and forgets them.
    fn tend_inbound(&self, rx: &mut crate::rx_state::Rx) {
        // A writer says nothing else.
        let is_gone = |ring: &Arc<Inbound>| !matches!(ring.control.poll(), PeerEvent::Nothing);
        let gone: Vec<_> = self.rings.inbound.read().iter().filter(|ring| is_gone(ring)).map(Arc::clone).collect();
        if gone.is_empty() {
            return;
        }
        // A broken writer may have left marks everywhere, and nobody takes them away any more.
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

    /// Does not read these rings any more.
    pub(crate) fn forget_inbound(&self, gone: &[Arc<Inbound>]) {
        let is_kept = |ring: &Arc<Inbound>| !gone.iter().any(|gone| Arc::ptr_eq(gone, ring));
        self.rings.inbound.write().retain(is_kept);
        self.rings.inbound_version.fetch_add(1, Ordering::Release);
    }

    /// Marks as ready who waited for room that there is now.
    #[inline]
    pub(crate) fn look_for_room(&self) {
        if self.scheduler.ready().contains(Ready::RINGS_FULL) {
            self.look_at_full_rings();
        }
    }

    fn look_at_full_rings(&self) {
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

    /// Lets some of those who wait for room in `ring` have it, if there is. Whether others go on
    /// waiting.
    fn offer_room(&self, ring: &SharedSender) -> bool {
        let mut sender = ring.lock();
        if !sender.is_half_free() {
            return true;
        }
        let Sender { starved, sated, is_listed, .. } = &mut *sender;
        let first = starved.len().min(TURNS);
        let then = sated.len().min((TURNS - first).max(TURNS / 4));
        self.flows.push_ready(starved.drain(..first).chain(sated.drain(..then)));
        *is_listed = !starved.is_empty() || !sated.is_empty();
        *is_listed
    }
}

#[cfg(test)]
mod tests;
