//! By which way packets of an engine leave: the link of an address, the ring to a process; who
//! receives there; and packets that fault rules hold back.

use crate::engine::Engine;
use crate::flow_control::{Key, Receiver};
use crate::interceptor::{Held, Interceptor, MAX_HELD};
use crate::poller::Woken;
use crate::rings::{Route, size_of_next};
use crate::scheduler::Task;
use roxe_base::cancel::uncancelled;
use roxe_net::shm::OwnRing;
use roxe_net::slot::{self, Slot};
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::{Gid, Qpn};
use std::io;
use std::sync::Arc;

impl Engine {
    /// Whether some process owns `slot`.
    pub fn is_owned(&self, slot: Slot) -> bool {
        uncancelled(|| slot::is_owned(self.ifindex(), slot))
    }

    /// The link with the local address `gid`.
    pub fn link(&self, gid: Gid) -> Option<Arc<UdpLink>> {
        self.links.get(gid)
    }

    /// Who receives at `key`.
    pub fn look_at(&self, key: Key) -> Receiver {
        if self.link(key.dst).is_none() {
            Receiver::Remote
        } else if self.rings.is_ready(key.slot) {
            Receiver::Ring
        } else if self.is_owned(key.slot) {
            Receiver::Credits
        } else {
            Receiver::Absent
        }
    }

    /// How packets to `to` behind `av` go: through rings only between addresses of this device.
    // clause: PATH-SOURCE
    pub(crate) fn find_ring(&self, av: &Av, to: Qpn) -> Route {
        let slot = Slot::of(to);
        let is_local = slot.can_be_owned() && self.link(av.dgid).is_some() && self.link(av.sgid).is_some();
        if !is_local {
            return Route::Socket;
        }
        match self.rings.find(slot) {
            Route::Own => {
                uncancelled(|| self.open_own_ring(slot));
                self.rings.find(slot)
            }
            route => route,
        }
    }

    /// The ring of this engine to itself.
    #[cold]
    fn open_own_ring(&self, slot: Slot) {
        self.rings.open_own(slot, || {
            let poller = self.scheduler.poller().map_err(io::Error::other)?;
            let size = size_of_next().ok_or(io::ErrorKind::QuotaExceeded)?;
            OwnRing::new(size, poller.doorbell(), |line| poller.watch_for(Woken::Line, line))
        });
        if self.rings.is_ready(slot) {
            self.flows.set_receiver(slot, Receiver::Ring);
        }
        // If the background thread sleeps now, it does not know of the ring.
        self.scheduler.kick();
    }

    /// Whether who looked for rings at `version` knows all there are, and uses them.
    pub fn knows_rings(&self, version: u32) -> bool {
        self.rings.version() == version
    }

    /// Sends what waits for room in send buffers, as far as there is some. Whether something still
    /// waits.
    pub(crate) fn send_all_queued(&self) -> bool {
        self.links.send_queued(self.counters(), |ready| self.flows.push_ready(ready.into_iter()))
    }

    /// When the first of all that waits is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let held = self.interceptor().and_then(|interceptor| interceptor.delayed.next());
        self.scheduler.next_deadline().into_iter().chain(held).min()
    }

    /// Holds a packet until `due`. If too many are held already, it is lost.
    pub(crate) fn hold(&self, interceptor: &Interceptor, due: Instant, packet: Held) {
        if !interceptor.delayed.add_up_to(MAX_HELD, due, packet) {
            self.counters().fault_dropped.add(1);
        } else {
            self.scheduler.wake_for(Some(due));
        }
    }

    /// What a full mailbox refused is tried again then.
    pub(crate) fn set_retry(&self, at: Option<Instant>) {
        if at.is_some() || self.scheduler.due(Task::Retry).is_some() {
            self.scheduler.publish(Task::Retry, at);
        }
    }
}
