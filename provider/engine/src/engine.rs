//! An engine of a device in this process: sockets, rings, queue pairs by number, timers and a
//! background thread.
//!
//! The first engine of a device also runs the connection manager and watches the network interface.
//! Further threads may create their queue pairs on engines of their own, so that threads do not
//! contend for one receive side. Packets travel between engines of one process as between
//! processes.
//!
//! The background thread starts when the device is first opened, the sockets with the first queue
//! pair; the child of a fork starts both again.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

use crate::flow_control::Flows;
use crate::interceptor::Interceptor;
use crate::links::Links;
use crate::queue_pair::QueuePair;
use crate::rings::Rings;
use crate::rx_state::{Rx, RxState};
use crate::scheduler::{Ready, Scheduler};
use crate::table::{QpTable, Recent};
use roxe_base::config::{Config, config};
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::weakest::{self, Subject, Weakness};
use roxe_net::netlink::LinkEvents;
use roxe_net::raw::FrameSender;
use roxe_net::slot::Slot;
use roxe_net::status::{ObjectKind, StatusSocket};
use roxe_net::steer::Steering;
use roxe_observe::adapter::{Adapter, MAX_ENGINES};
use roxe_observe::counters::Counters;
use roxe_transport::cm::Route;
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use roxe_wire::{Gid, Qpn};
use std::fmt::{Arguments, Debug};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Number of registered queue pairs, from which the weakest card derives their numbers.
static REGISTERED_QPS: AtomicU64 = AtomicU64::new(0);

/// Callbacks into the crate that uses the engine: connection manager messages and interface
/// changes. Each gets the engine that calls.
pub trait Services: Debug + Send + Sync {
    /// Queues a message for queue pair 1. Called under the receive lock, so it is only processed in
    /// [`Services::run_connections`], which
    /// [`crate::scheduler::Scheduler::note_connection_work`] schedules.
    fn queue_message(&self, engine: &Engine, route: Route, mad: Mad);

    /// Queues the expiry of a timer added by [`crate::scheduler::Scheduler::add_cm_timer`]. Called
    /// under the receive lock.
    fn queue_deadline(&self, engine: &Engine, deadline: Instant);

    /// Processes queued messages and expired timers. Called without any lock.
    fn run_connections(&self, engine: &Engine);

    /// Notifies peers that the process ends. Gives up on locks not acquired within `limit`.
    fn end_connections(&self, engine: &Engine, limit: Duration);

    /// Called after the interface, and the port with it, has changed, without any lock.
    fn interface_changed(&self, engine: &Engine);

    /// Calls `line` with the text of each object of this kind on the device of `engine`: words
    /// `name=value`. Lists no queue pairs, which the engine lists itself. Called without any lock.
    fn list_objects(&self, engine: &Engine, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>));
}

/// Sockets of the background thread that carry no packets; `None` where the system refuses them.
#[derive(Debug)]
pub(crate) struct ControlSockets {
    pub link_events: Option<LinkEvents>,
    /// Queries of `roxe top` and `rdma`.
    pub status: Option<Arc<StatusSocket>>,
}

/// The data path of one device, or of one thread's part of it.
pub struct Engine {
    /// The adapter of the device.
    pub adapter: Arc<Adapter>,
    /// Index among the engines of the device; 0 is the first.
    number: usize,
    counters: Arc<Counters>,
    pub(crate) config: &'static Config,
    /// Timers, deadlines and wake-ups.
    pub scheduler: Scheduler,
    pub(crate) links: Links,
    /// Flow control state by destination.
    pub flows: Flows,
    pub(crate) rings: Rings,
    interceptor: Option<Interceptor>,
    /// True once the background thread and the sockets exist in this process.
    pub(crate) started: AtomicBool,
    /// The control sockets; `None` before they are opened. Locked while the engine starts, while
    /// links are added, and while the port adopts a change of its interface.
    pub(crate) starting: Mutex<rank::Starting, Option<ControlSockets>>,
    pub(crate) me: Weak<Self>,
    pub(crate) rx: Mutex<rank::Rx, Rx>,
    pub(crate) table: QpTable,
    pub(crate) services: Arc<dyn Services>,
    /// Further engines of the device; set in its first engine only.
    pub(crate) further: [OnceLock<Arc<Self>>; MAX_ENGINES - 1],
}

impl Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Engine");
        text.field("device", &self.adapter.name()).field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates the first engine for `adapter`.
    ///
    /// # Errors
    /// EINVAL if an environment variable is invalid; those of opening a capture file.
    pub fn create(adapter: &Arc<Adapter>, services: Arc<dyn Services>) -> Result<Arc<Self>, Error> {
        let config = config().map_err(|e| Error::invalid(e.to_string()))?;
        let interceptor = Interceptor::open(config, adapter.name())?;
        Ok(Self::new(Arc::clone(adapter), 0, config, interceptor, services))
    }

    pub(crate) fn new(
        adapter: Arc<Adapter>,
        number: usize,
        config: &'static Config,
        interceptor: Option<Interceptor>,
        services: Arc<dyn Services>,
    ) -> Arc<Self> {
        let scheduler = Scheduler::default();
        let flag = |service| scheduler.flag(service);
        let flows = Flows::new(flag(Ready::QUEUE_PAIRS), flag(Ready::CREDITS));
        let rings = [Ready::RINGS_WANTED, Ready::RINGS_FULL, Ready::RINGS_AWAITED].map(flag);
        Arc::new_cyclic(|me| Self {
            counters: adapter.counters_of(number),
            adapter,
            number,
            config,
            scheduler,
            links: Links::default(),
            flows,
            // Captures and fault rules apply only to packets in sockets, so an interceptor excludes
            // rings.
            rings: Rings::new(config.rings && interceptor.is_none(), rings),
            interceptor,
            started: AtomicBool::new(false),
            starting: Mutex::default(),
            me: Weak::clone(me),
            rx: Mutex::default(),
            table: QpTable::default(),
            services,
            further: Default::default(),
        })
    }

    /// Returns the index among the engines of the device; 0 is the first.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns true for the first engine of the device.
    pub fn is_first(&self) -> bool {
        self.number() == 0
    }

    /// Returns this engine's counters.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    pub(crate) fn interceptor(&self) -> Option<&Interceptor> {
        self.interceptor.as_ref()
    }

    /// Returns the line rate for DCQCN in bit/s; `None` if DCQCN is off.
    pub fn line_rate(&self) -> Option<NonZeroU64> {
        self.config.dcqcn.then(|| self.adapter.line_rate())
    }

    pub(crate) fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

    /// Clears the state inherited from the parent, in the child of a fork.
    pub(crate) fn clear(&self) {
        self.links.clear();
        self.flows.clear();
        if let Some(interceptor) = self.interceptor() {
            interceptor.delayed.clear();
        }
        self.rings.clear();
        self.scheduler.clear();
    }

    /// Opens the send side of a raw packet queue pair.
    ///
    /// # Errors
    /// Those of [`FrameSender::open`].
    pub fn open_frame_sender(&self) -> Result<Arc<FrameSender>, Error> {
        self.start()?;
        let sender = Arc::new(FrameSender::open(&self.adapter.interface(), self.scheduler.poller()?.send_room())?);
        self.links.add_frame_sender(&sender);
        Ok(sender)
    }

    /// Chooses a free number, and registers the queue pair that `make` creates for it. Starts the
    /// engine if needed.
    pub fn register_qp<Q: QueuePair + 'static>(
        &self,
        service: Service,
        make: impl Fn(Qpn) -> Arc<Q>,
    ) -> Result<Arc<Q>, Error> {
        // Raw packet queue pairs need no IP address.
        if service == Service::Raw {
            self.start()?
        } else {
            self.start_with_links()?
        }
        let random = weakest::number_for(Subject::Qpns, &REGISTERED_QPS);
        let random = random.map_err(|e| Error::os("cannot draw a random number", &e))?;
        loop {
            let mut created = None;
            let insert = |qpn| Arc::clone(created.insert(make(qpn))) as Arc<dyn QueuePair>;
            if self.table.insert(random, insert)
                && let Some(qp) = created
            {
                return Ok(qp);
            }
            let poller = self.scheduler.poller()?;
            self.claim_slot(&mut self.rx.lock(), &poller)?;
        }
    }

    /// Returns a slot of this process, a prefix of queue pair numbers that only this process uses.
    /// Starts the engine if needed.
    pub fn slot(&self) -> Result<Slot, Error> {
        self.start()?;
        self.table
            .first_slot()
            .ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device has no queue pair numbers yet"))
    }

    /// Removes a queue pair; later packets for it are dropped.
    pub fn unregister_qp(&self, qp: &dyn QueuePair) {
        self.table.remove(qp.qpn());
        // The cached entry would keep the queue pair alive until the next packet.
        self.rx.lock().state.recent = Recent::default();
        if qp.service() == Service::Ud {
            self.detach_from_all(qp);
        }
        self.forget_packets(qp);
    }

    /// Resets the packet counts of fault rules for a queue pair that was destroyed or moved to
    /// RESET.
    pub fn forget_packets(&self, qp: &dyn QueuePair) {
        if let Some(interceptor) = self.interceptor() {
            interceptor.forget(qp.ordinal());
        }
    }

    /// Completes deferred placement and sends pending packets of all queue pairs when the process
    /// ends.
    pub(crate) fn settle(&self, now: Instant) {
        if weakest::has(Weakness::all()) {
            for qp in self.table.list() {
                qp.settle_memory();
                qp.serve(now);
            }
        }
    }

    /// Completes the deferred placement of all queue pairs before a region is deregistered. No
    /// queue pair may be locked.
    pub fn settle_memory(&self) {
        if weakest::has(Weakness::PLACEMENT) {
            self.table.list().iter().for_each(|qp| qp.settle_memory());
        }
    }

    pub(crate) fn note_forwarded(&self, state: &mut RxState, dst: Gid, now: Instant) {
        let Some(steering) = state.steering_of(dst) else { return };
        if steering.note_forwarded(now) {
            self.publish_steering(state, now);
        }
    }

    pub(crate) fn publish_steering(&self, state: &RxState, now: Instant) {
        self.scheduler.publish_steering(state.steering.iter().filter_map(Steering::deadline).min(), now);
    }

    /// Returns the locks acquired before that of the table, for the fork handlers. The first engine
    /// includes those of the adapter.
    pub fn outer_locks(&self) -> impl Iterator<Item = &dyn Lockable> {
        let own: [&dyn Lockable; 2] = [&self.starting, &self.rx];
        own.into_iter().chain(self.is_first().then(|| self.adapter.observers_lock() as &dyn Lockable))
    }

    /// Returns the lock that [`Engine::lock_table`] acquires.
    pub fn table_lock(&self) -> &dyn Lockable {
        &self.table.slots
    }

    /// Locks the table and lists the queue pairs.
    pub fn lock_table(&self) -> Vec<Arc<dyn QueuePair>> {
        self.table.lock_and_list()
    }

    /// Returns the locks acquired after those of the queue pairs, for the fork handlers.
    pub fn inner_locks(&self) -> impl Iterator<Item = &dyn Lockable> {
        let [map, ready, credits] = self.flows.locks();
        let delayed = self.interceptor().map(|interceptor| interceptor.delayed.lockable() as &dyn Lockable);
        let port = self.is_first().then(|| self.adapter.port_lock() as &dyn Lockable);
        let files = self.adapter.files().filter(|_| self.is_first()).map(|files| files.lockable() as &dyn Lockable);
        let always: [&dyn Lockable; 13] = [
            &self.table.owned,
            &self.links.udp,
            &self.links.frame_senders,
            &self.links.host_addresses,
            &self.links.next_hops,
            map,
            // The locks of single rings are not listed: they are acquired only under locks of queue
            // pairs or of the receive side.
            &self.rings.out,
            &self.rings.inbound,
            &self.rings.full,
            ready,
            credits,
            self.scheduler.timers.lockable(),
            &self.scheduler.thread,
        ];
        always.into_iter().chain(delayed).chain(port).chain(files)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(files) = self.adapter.files() {
            files.publish(|| self.adapter.counters());
        }
        self.close_sockets();
        // The thread wakes, finds its weak reference dead, and ends.
        self.scheduler.kick();
    }
}
