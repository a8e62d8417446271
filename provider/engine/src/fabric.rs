//! What packets leave by and who their receivers are, without anything of queue pairs: links,
//! rings, windows, what is due.
//!
//! The transmit path of a queue pair needs this and nothing else of the engine.

use crate::adapter::Adapter;
use crate::counters::Counters;
use crate::flow_control::{Flows, Key, Receiver};
use crate::interceptor::{Held, Interceptor, MAX_HELD};
use crate::links::Links;
use crate::poller::Woken;
use crate::rings::{Rings, Route, size_of_next};
use crate::scheduler::{Ready, Scheduler, Task};
use roxe_base::cancel::uncancelled;
use roxe_base::config::Config;
use roxe_net::shm::OwnRing;
use roxe_net::slot::{self, Slot};
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::{Gid, Qpn};
use std::io;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Arc;

/// All of it.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) adapter: Arc<Adapter>,
    /// Which engine of its device it is of; 0 is the first one.
    pub(crate) number: usize,
    counters: Arc<Counters>,
    pub(crate) config: &'static Config,
    pub(crate) scheduler: Scheduler,
    pub(crate) links: Links,
    pub(crate) flows: Flows,
    /// Ways to other processes through shared memory.
    pub(crate) rings: Rings,
    /// What watches and spoils packets, if anything shall.
    pub(crate) interceptor: Option<Interceptor>,
}

impl Deref for Fabric {
    type Target = Scheduler;

    #[inline]
    fn deref(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl Fabric {
    /// That of the engine with this number.
    pub(crate) fn new(
        adapter: Arc<Adapter>,
        number: usize,
        config: &'static Config,
        interceptor: Option<Interceptor>,
    ) -> Self {
        let scheduler = Scheduler::default();
        let flag = |service| scheduler.flag(service);
        Self {
            counters: adapter.counters_of(number),
            adapter,
            number,
            config,
            links: Links::default(),
            flows: Flows::new(flag(Ready::QUEUE_PAIRS), flag(Ready::CREDITS)),
            rings: Rings::new(config.rings, [Ready::RINGS_WANTED, Ready::RINGS_FULL, Ready::RINGS_AWAITED].map(flag)),
            interceptor,
            scheduler,
        }
    }

    /// What the engine has counted.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What watches and spoils packets.
    #[inline]
    pub(crate) fn interceptor(&self) -> Option<&Interceptor> {
        self.interceptor.as_ref()
    }

    /// The windows of the destinations.
    #[inline]
    pub fn flows(&self) -> &Flows {
        &self.flows
    }

    /// The rate from which queue pairs slow down, bit/s; `None`: they do not.
    pub fn line_rate(&self) -> Option<NonZeroU64> {
        self.config.dcqcn.then(|| self.adapter.line_rate())
    }

    /// The interface as a card.
    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// The node GUID.
    pub fn node_guid(&self) -> u64 {
        self.adapter.node_guid()
    }

    /// Index of the network interface.
    pub(crate) fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

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
            let poller = self.poller().map_err(io::Error::other)?;
            let size = size_of_next().ok_or(io::ErrorKind::QuotaExceeded)?;
            OwnRing::new(size, poller.doorbell(), |line| poller.watch_for(Woken::Line, line))
        });
        if self.rings.is_ready(slot) {
            self.flows.set_receiver(slot, Receiver::Ring);
        }
        // If the background thread sleeps now, it does not know of the ring.
        self.kick();
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
            self.wake_for(Some(due));
        }
    }

    /// What a full mailbox refused is tried again then.
    pub(crate) fn set_retry(&self, at: Option<Instant>) {
        if at.is_some() || self.due(Task::Retry).is_some() {
            self.publish(Task::Retry, at);
        }
    }

    /// Forgets all that belongs to the parent of this process.
    pub(crate) fn clear(&self) {
        self.links.clear();
        self.flows.clear();
        self.interceptor().into_iter().for_each(|interceptor| interceptor.delayed.clear());
        self.rings.clear();
        self.scheduler.clear();
    }
}
