//! Routes of outgoing packets: links by address, rings by process; and packets delayed by faults.

use crate::engine::Engine;
use crate::flow_control::{Key, Receiver};
use crate::interceptor::{Held, Interceptor, MAX_HELD};
use crate::poller::Woken;
use crate::rings::{RingRoute, size_of_next};
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
use std::time::Duration;

/// Time by which the background thread wakes before a delayed packet is due, to spin until then.
pub(crate) const BEFORE_HELD: Duration = Duration::from_micros(80);

fn before_held(due: Instant) -> Instant {
    Instant(due.0.saturating_sub(BEFORE_HELD.as_nanos() as u64))
}

impl Engine {
    /// Returns true if a process owns `slot`.
    pub fn is_owned(&self, slot: Slot) -> bool {
        uncancelled(|| slot::is_owned(self.ifindex(), slot))
    }

    /// Returns the link with the local address `gid`.
    pub fn link(&self, gid: Gid) -> Option<Arc<UdpLink>> {
        self.links.get(gid)
    }

    /// Determines the kind of receiver at `key`.
    pub fn receiver_at(&self, key: Key) -> Receiver {
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

    /// Returns the route of packets to `to` along `av`; rings serve only addresses of this device.
    // clause: PATH-SOURCE
    pub(crate) fn find_ring(&self, av: &Av, to: Qpn) -> RingRoute {
        let slot = Slot::of(to);
        let is_local = slot.can_be_owned() && self.link(av.dgid).is_some() && self.link(av.sgid).is_some();
        if !is_local {
            return RingRoute::Socket;
        }
        match self.rings.find(slot) {
            RingRoute::Own => {
                uncancelled(|| self.open_own_ring(slot));
                self.rings.find(slot)
            }
            route => route,
        }
    }

    #[cold]
    fn open_own_ring(&self, slot: Slot) {
        self.rings.open_own(slot, || {
            let poller = self.scheduler.poller().map_err(io::Error::other)?;
            let size = size_of_next().ok_or(io::ErrorKind::QuotaExceeded)?;
            OwnRing::new(size, poller.doorbell(), |control| poller.watch_for(Woken::Line, control))
        });
        if self.rings.is_ready(slot) {
            self.flows.set_receiver(slot, Receiver::Ring);
        }
        // A sleeping background thread does not watch the ring yet.
        self.scheduler.kick();
    }

    /// Returns true if `version` is still that of the rings.
    pub fn knows_rings(&self, version: u32) -> bool {
        self.rings.version() == version
    }

    /// Sends queued packets as far as send buffers have room. Returns true if packets remain.
    pub(crate) fn send_all_queued(&self) -> bool {
        self.links.send_queued(self.counters(), |ready| self.flows.push_ready(ready.into_iter()))
    }

    /// Returns the time at which the first packet that a fault rule delays is due.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.interceptor()?.delayed.next()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.scheduler.next_deadline().into_iter().chain(self.held_until()).min()
    }

    /// Returns the time at which the background thread shall wake: early for a delayed packet,
    /// because the kernel's timer may be late.
    pub(crate) fn wake_deadline(&self) -> Option<Instant> {
        self.scheduler.next_deadline().into_iter().chain(self.held_until().map(before_held)).min()
    }

    /// Delays a packet until `due`; beyond [`MAX_HELD`] packets it is lost.
    pub(crate) fn hold(&self, interceptor: &Interceptor, due: Instant, packet: Held) {
        if !interceptor.delayed.add_up_to(MAX_HELD, due, packet) {
            self.counters().fault_dropped.add(1);
        } else {
            self.scheduler.wake_for(Some(before_held(due)));
        }
    }

    /// Schedules the retry of sends that a full mailbox refused.
    pub(crate) fn set_retry(&self, at: Option<Instant>) {
        if at.is_some() || self.scheduler.due(Task::Retry).is_some() {
            self.scheduler.publish(Task::Retry, at);
        }
    }
}
