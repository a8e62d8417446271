//! An engine of one device in this process: sockets, queue pairs by number, timers, and who does
//! the work when.
//!
//! A device has a first engine, which also has its connection manager, and follows the interface
//! for the program; queue pairs of further threads may have engines of their own, so that no two
//! threads wait for one receive side. Between them they are what processes are to each other: each
//! has sockets, slots, timers and a thread, and packets go from one to another as they go to
//! another process.
//!
//! Its thread begins with the first opening of the device and follows the interface; sockets are
//! opened by the first queue pair. Both happen again in the child of a fork. Threads of the program
//! come in through [`Engine::progress`] and through the verbs of a queue pair; the background
//! thread through its own loop.

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
use roxe_net::status::StatusSocket;
use roxe_net::steer::Steering;
use roxe_observe::adapter::{Adapter, MAX_ENGINES};
use roxe_observe::counters::Counters;
use roxe_transport::cm::Route;
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use roxe_wire::{Gid, Qpn};
use std::fmt::Debug;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Queue pairs made in this process.
static MADE: AtomicU64 = AtomicU64::new(0);

/// What the engine hands to the crate above: messages of connection managers, changes of the
/// interface. Every call gets the engine that it is about.
pub trait Services: Debug + Send + Sync {
    /// A message for queue pair 1 has come. Called under the lock of the receive side: it is left
    /// for [`Services::run_connections`], which
    /// [`crate::scheduler::Scheduler::note_connection_work`] asks for.
    fn leave_message(&self, engine: &Engine, route: Route, mad: Mad);

    /// The time has come that [`crate::scheduler::Scheduler::add_cm_timer`] was called for; left as
    /// a message is.
    fn leave_deadline(&self, engine: &Engine, deadline: Instant);

    /// Works off what was left. Called without any lock.
    fn run_connections(&self, engine: &Engine);

    /// The process ends: peers are told. Takes locks only if it gets them within `limit`.
    fn end_connections(&self, engine: &Engine, limit: Duration);

    /// The interface has changed, and the port with it. Called without any lock.
    fn interface_changed(&self, engine: &Engine);
}

/// What the background thread hears besides packets, as far as the system lets it.
#[derive(Debug)]
pub(crate) struct Ears {
    /// Changes of the interface.
    pub link_events: Option<LinkEvents>,
    /// Questions what the queue pairs do.
    pub status: Option<StatusSocket>,
}

/// What packets leave by, the receive side, and the queue pairs by number.
pub struct Engine {
    pub(crate) adapter: Arc<Adapter>,
    /// Which engine of its device it is of; 0 is the first one.
    number: usize,
    counters: Arc<Counters>,
    pub(crate) config: &'static Config,
    /// What is due, what is ready, and how the thread is woken.
    pub scheduler: Scheduler,
    pub(crate) links: Links,
    pub(crate) flows: Flows,
    /// Ways to other processes through shared memory.
    pub(crate) rings: Rings,
    /// What watches and spoils packets, if anything shall.
    interceptor: Option<Interceptor>,
    /// Whether the sockets exist in this process, and with them the thread.
    pub(crate) started: AtomicBool,
    /// Held while sockets and thread come to exist, while links are added, and while the port
    /// follows its interface. Guards what the thread hears; nothing before there is one.
    pub(crate) starting: Mutex<rank::Starting, Option<Ears>>,
    pub(crate) me: Weak<Self>,
    pub(crate) rx: Mutex<rank::Rx, Rx>,
    pub(crate) table: QpTable,
    /// The crate above.
    pub(crate) services: Arc<dyn Services>,
    /// The engines of the device beside its first one, which has them.
    pub(crate) further: [OnceLock<Arc<Self>>; MAX_ENGINES - 1],
}

impl Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Engine");
        text.field("device", &self.adapter.name()).field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Engine {
    /// The first engine for `adapter`, which hands to `services` what is not its own. EINVAL: an
    /// environment variable is not understood; the errors of a capture file that cannot be written.
    pub fn create(adapter: &Arc<Adapter>, services: Arc<dyn Services>) -> Result<Arc<Self>, Error> {
        let config = config().map_err(|e| Error::invalid(e.to_string()))?;
        let interceptor = Interceptor::open(config, adapter.name())?;
        Ok(Self::new(Arc::clone(adapter), 0, config, interceptor, services))
    }

    /// The engine with this number of the device.
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
            // Captures and fault rules are about packets on the wire.
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

    /// Which engine of its device it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it is the first one.
    pub fn is_first(&self) -> bool {
        self.number() == 0
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

    /// Forgets all that belongs to the parent of this process.
    pub(crate) fn clear(&self) {
        self.links.clear();
        self.flows.clear();
        self.interceptor().into_iter().for_each(|interceptor| interceptor.delayed.clear());
        self.rings.clear();
        self.scheduler.clear();
    }

    /// What a raw packet queue pair sends by. Errors as [`FrameSender::open`].
    pub fn open_frame_sender(&self) -> Result<Arc<FrameSender>, Error> {
        self.start()?;
        let sender = Arc::new(FrameSender::open(&self.adapter.interface(), self.scheduler.poller()?.send_room())?);
        self.links.add_frame_sender(&sender);
        Ok(sender)
    }

    /// Makes a queue pair: `make` is told its number. Starts the engine if need be.
    pub fn register_qp<Q: QueuePair + 'static>(
        &self,
        service: Service,
        make: impl Fn(Qpn) -> Arc<Q>,
    ) -> Result<Arc<Q>, Error> {
        // Raw packets need no address.
        if service == Service::Raw {
            self.start()?
        } else {
            self.start_with_links()?
        }
        let random = weakest::number_for(Subject::Qpns, &MADE);
        let random = random.map_err(|e| Error::os("cannot draw a random number", &e))?;
        loop {
            let mut made = None;
            let insert = |qpn| Arc::clone(made.insert(make(qpn))) as Arc<dyn QueuePair>;
            if self.table.insert(random, insert)
                && let Some(qp) = made
            {
                return Ok(qp);
            }
            let poller = self.scheduler.poller()?;
            self.claim_slot(&mut self.rx.lock(), &poller)?;
        }
    }

    /// A slot of this process: numbers that begin with it are ours alone. Starts the engine if need
    /// be.
    pub fn slot(&self) -> Result<Slot, Error> {
        self.start()?;
        self.table.first_slot().ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device has no numbers"))
    }

    /// Forgets a queue pair; packets for it are dropped from now on.
    pub fn unregister_qp(&self, qp: &dyn QueuePair) {
        self.table.remove(qp.qpn());
        // What was found last would keep it alive until the next packet comes.
        self.rx.lock().state.recent = Recent::default();
        if qp.service() == Service::Ud {
            self.detach_from_all(qp);
        }
        self.forget_packets(qp);
    }

    /// A queue pair is gone or in RESET: what fault rules counted for it has no meaning any more.
    pub fn forget_packets(&self, qp: &dyn QueuePair) {
        self.interceptor().into_iter().for_each(|interceptor| interceptor.forget(qp.ordinal()));
    }

    /// The process ends: nothing that it has taken in waits any more, and what it owes leaves.
    pub(crate) fn settle(&self, now: Instant) {
        if weakest::has(Weakness::all()) {
            for qp in self.table.list() {
                qp.settle_memory();
                qp.serve(now);
            }
        }
    }

    /// A region goes away: what queue pairs have taken in for it is in memory when this returns. No
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

    /// The locks outside of the one of the table, for the fork handlers; those of the adapter are
    /// the first engine's.
    pub fn outer_locks(&self) -> impl Iterator<Item = &dyn Lockable> {
        let own: [&dyn Lockable; 2] = [&self.starting, &self.rx];
        own.into_iter().chain(self.is_first().then(|| self.adapter.raw_observers() as &dyn Lockable))
    }

    /// The lock of the table, which is taken by [`Engine::lock_table`].
    pub fn raw_table(&self) -> &dyn Lockable {
        self.table.raw()
    }

    /// Takes the lock of the table and lists the queue pairs.
    pub fn lock_table(&self) -> Vec<Arc<dyn QueuePair>> {
        self.table.lock_and_list()
    }

    /// The locks inside of those of the queue pairs.
    pub fn inner_locks(&self) -> impl Iterator<Item = &dyn Lockable> {
        let [map, ready, credits] = self.flows.raw();
        let held = self.interceptor().map(|interceptor| interceptor.delayed.raw() as &dyn Lockable);
        let port = self.is_first().then(|| self.adapter.raw_port() as &dyn Lockable);
        let told = self.adapter.files().filter(|_| self.is_first()).map(|files| files.raw() as &dyn Lockable);
        let always: [&dyn Lockable; 13] = [
            self.table.raw_owned(),
            &self.links.udp,
            &self.links.frame_senders,
            &self.links.host_addresses,
            &self.links.next_hops,
            map,
            // Those of single rings are only taken under locks of queue pairs and of the receive
            // side.
            &self.rings.out,
            &self.rings.inbound,
            &self.rings.full,
            ready,
            credits,
            self.scheduler.timers.raw(),
            &self.scheduler.thread,
        ];
        always.into_iter().chain(held).chain(port).chain(told)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(live) = self.adapter.files() {
            live.publish(|| self.adapter.counters());
        }
        self.close_sockets();
        // The thread wakes, finds nobody, and ends.
        self.scheduler.kick();
    }
}
