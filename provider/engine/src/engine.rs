//! The engine of one device in this process: sockets, queue pairs by number, timers, and who does the work when.
//!
//! Its thread begins with the first opening of the device and follows the interface; sockets are opened by the first queue
//! pair. Both happen again in the child of a fork. Threads of the program come in through [`Engine::progress`] and through the verbs of a queue pair; the background thread through its own loop.

use crate::adapter::Adapter;
use crate::background::Presence;
use crate::counter_files::CounterFiles;
use crate::counters::Counters;
use crate::flow_control::{Flows, Key, Ready, Receiver};
use crate::interceptor::{Held, Interceptor, MAX_HELD};
use crate::poller::{Poller, Watch};
use crate::queue_pair::{Deadline, QueuePair};
use crate::rings::Rings;
use crate::rx::{Rx, RxState, Visitor};
use crate::services::Services;
use crate::table::QpTable;
use crate::thread::Thread;
use crate::xrc_remote::XrcMessages;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::config::{Config, config};
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, RwLock, rank};
use roxe_base::timers::Timers;
use roxe_net::drops::TakenDrops;
use roxe_net::frames::FrameSender;
use roxe_net::link_events::LinkEvents;
use roxe_net::runtime_dir;
use roxe_net::slot::{self, Slot};
use roxe_net::steer::Steering;
use roxe_net::udp::UdpLink;
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Qpn};
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Visits in a row that find nothing before a poller starts to offer its processor to others.
const IDLE_VISITS_BEFORE_YIELD: u32 = 24;
/// And so long it waits at least: where packets come by rings, visits are short.
const PATIENCE: Duration = Duration::from_micros(10);
/// Visits to the sockets before a queue pair goes away; a peer that never stops sending must not hold it up.
pub(crate) const DRAIN_ROUNDS: u32 = 16;
/// Visits to all sources after which each has been read once over, whoever goes on sending: one takes eight datagrams from each
/// socket and mailbox and 32 runs from each ring, which is more than a 2,048th of what fits in there.
const ROUNDS_OF_ALL: u32 = 2048;
/// How long the kernel takes to close what a process had that has died.
const CLOSING: Duration = Duration::from_millis(100);
/// What `steer_at` and `retry_at` hold when nothing is due.
const NEVER: u64 = u64::MAX;

/// The engine.
pub struct Engine {
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) config: &'static Config,
    /// Whether the sockets exist in this process, and with them the thread.
    pub(crate) started: AtomicBool,
    /// Held while sockets and thread come to exist, while links are added, and while the port follows its interface.
    /// Guards what the system tells of the interfaces; nothing, where it does not.
    pub(crate) starting: Mutex<rank::Starting, Option<LinkEvents>>,
    /// Whoever holds any lock may wake it.
    pub(crate) thread: RwLock<rank::Thread, Option<Arc<Thread>>>,
    pub(crate) me: Weak<Self>,
    pub(crate) rx: Mutex<rank::Rx, Rx>,
    pub(crate) links: RwLock<rank::Links, Vec<Arc<UdpLink>>>,
    pub(crate) links_version: AtomicU32,
    /// What raw packet queue pairs send by.
    pub(crate) frame_senders: Mutex<rank::FrameSenders, Vec<Weak<FrameSender>>>,
    /// The addresses of all interfaces of this host.
    pub(crate) host_addresses: RwLock<rank::HostAddresses, Vec<Gid>>,
    pub(crate) table: QpTable,
    pub(crate) flows: Flows,
    pub(crate) timers: Timers<rank::Timers, Due>,
    pub(crate) presence: Presence,
    /// Visits of pollers in a row that found nothing.
    pub(crate) idle_visits: AtomicU32,
    /// When the first of them was, nanoseconds.
    pub(crate) idle_since: AtomicU64,
    /// When steering wants to work, nanoseconds.
    pub(crate) steer_at: AtomicU64,
    /// What watches and spoils packets, if anything shall.
    pub(crate) interceptor: Option<Interceptor>,
    /// When to try again what a full mailbox refused, nanoseconds.
    pub(crate) retry_at: AtomicU64,
    /// When to write the counters to their files, nanoseconds.
    pub(crate) tell_at: AtomicU64,
    /// When an acknowledgement that waits for the program's next packet leaves without it, nanoseconds.
    pub(crate) ack_at: AtomicU64,
    /// For other processes, to be sent by whoever receives next.
    pub(crate) xrc_messages: XrcMessages,
    /// Ways to them through shared memory.
    pub(crate) rings: Rings,
    /// The crate above.
    pub(crate) services: Arc<dyn Services>,
    /// Something was left for its connection managers.
    pub(crate) has_connection_work: AtomicBool,
}

/// Who is waiting for a time to come.
#[derive(Debug)]
pub(crate) enum Due {
    /// A queue pair: retransmission, patience with packets that come early.
    Qp(Qpn),
    /// Something of the crate above.
    Other(Weak<dyn Deadline>),
    /// Connection management.
    Cm,
    /// Requests that nobody listens for yet.
    Requests,
    /// The names of a process that has died.
    DeadNames,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", &self.adapter.name()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for `adapter`, which hands to `services` what is not its own. EINVAL: an environment variable is not
    /// understood; the errors of a capture file that cannot be written.
    pub fn create(adapter: &Arc<Adapter>, services: Arc<dyn Services>) -> Result<Arc<Self>, Error> {
        let config = config().map_err(|e| Error::invalid(e.to_string()))?;
        let interceptor = Interceptor::open(config, adapter.name())?;
        Ok(Arc::new_cyclic(|me| Self::new(Arc::clone(adapter), services, config, interceptor, Weak::clone(me))))
    }

    pub(crate) fn new(
        adapter: Arc<Adapter>,
        services: Arc<dyn Services>,
        config: &'static Config,
        interceptor: Option<Interceptor>,
        me: Weak<Self>,
    ) -> Self {
        Self {
            adapter,
            config,
            started: AtomicBool::new(false),
            starting: Mutex::default(),
            thread: RwLock::default(),
            me,
            rx: Mutex::default(),
            links: RwLock::default(),
            links_version: AtomicU32::new(0),
            frame_senders: Mutex::default(),
            host_addresses: RwLock::default(),
            table: QpTable::default(),
            flows: Flows::default(),
            timers: Timers::default(),
            presence: Presence::default(),
            idle_visits: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
            steer_at: AtomicU64::new(NEVER),
            interceptor,
            retry_at: AtomicU64::new(NEVER),
            tell_at: AtomicU64::new(NEVER),
            ack_at: AtomicU64::new(NEVER),
            xrc_messages: XrcMessages::default(),
            rings: Rings::new(config.rings),
            services,
            has_connection_work: AtomicBool::new(false),
        }
    }

    /// What the device has counted.
    #[inline]
    pub fn counters(&self) -> &Counters {
        self.adapter.counters()
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

    /// Something was left for connection managers: the next thread that holds no lock works it off.
    pub fn note_connection_work(&self) {
        self.has_connection_work.store(true, Ordering::SeqCst);
    }

    /// Whether something was left, from now on no more: whoever asks works it off, all of it.
    pub fn take_connection_work(&self) -> bool {
        self.has_connection_work.swap(false, Ordering::SeqCst)
    }

    /// Whether something is left.
    pub fn has_connection_work(&self) -> bool {
        self.has_connection_work.load(Ordering::SeqCst)
    }

    /// Works off what was left for connection managers, if anything was. Call without any lock.
    #[inline]
    pub fn run_cm(&self) {
        if self.has_connection_work.load(Ordering::Relaxed) {
            self.services.run_connections(self);
        }
    }

    /// The node GUID.
    pub fn node_guid(&self) -> u64 {
        self.adapter.node_guid()
    }

    pub(crate) fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

    /// Does what is due on the thread of a poller: receives, runs timers, sends. Never waits.
    pub fn progress(&self) {
        if !self.is_started() {
            return;
        }
        let now = self.enter();
        if self.work(now) {
            self.idle_visits.store(0, Ordering::Relaxed);
        } else {
            self.yield_when_idle(now);
        }
        self.presence.leave();
    }

    /// A thread of the program comes in to receive. When that is.
    pub(crate) fn enter(&self) -> Instant {
        // First: what interrupts a program that polls does so in a system call, and on some machines the clock is one.
        self.presence.enter();
        let now = clock::now();
        self.presence.note_poll(now);
        now
    }

    /// Does all that for a thread of the program that has come in. Whether anything had arrived.
    pub(crate) fn work(&self, now: Instant) -> bool {
        let found = self.rx.try_lock().is_some_and(|rx| self.visit(rx, Visitor::Program, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// Receives, then runs the timers that were due before, if nothing is left: what they wait for may have been in a socket
    /// all the time, when the machine is overloaded. Who does not get the lock of the receive side leaves them to its holder.
    /// Whether anything was there.
    pub(crate) fn visit(&self, mut rx: MutexGuard<'_, rank::Rx, Rx>, visitor: Visitor, now: Instant) -> bool {
        let due = self.timers.is_due(now).then(|| self.timers.added());
        rx.state().visitor = visitor;
        let all = visitor == Visitor::Woken || rx.state().takes_turn_of_sockets(due.is_some(), now);
        let found = self.receive(&mut rx, all, now);
        let due = due.filter(|_| rx.state().ends_overdue(found || !all));
        drop(rx);
        if let Some(added) = due {
            self.run_timers(added, now);
        }
        found
    }

    /// A program that polls in vain for long lets others run: the peer it waits for may need this very processor.
    pub(crate) fn yield_when_idle(&self, now: Instant) {
        let visits = self.idle_visits.load(Ordering::Relaxed);
        if visits == 0 {
            self.idle_since.store(now.0, Ordering::Relaxed);
        }
        if visits < IDLE_VISITS_BEFORE_YIELD {
            self.idle_visits.store(visits + 1, Ordering::Relaxed);
        } else if now.since(Instant(self.idle_since.load(Ordering::Relaxed))) >= PATIENCE {
            std::thread::yield_now();
        }
    }

    /// Receives until the sockets are empty. Called before something goes away: an answer of ours to another process may
    /// have come to our own socket, and nobody would forward it once the process has ended.
    pub fn drain(&self) {
        if !self.is_started() {
            return;
        }
        let mut rx = self.rx.lock();
        if let Some(interceptor) = self.interceptor() {
            self.release_held(interceptor, rx.state(), Instant(u64::MAX), clock::now());
        }
        self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
        self.end_waiting(rx.state(), Instant(u64::MAX), clock::now());
        drop(rx);
        self.run_cm();
    }

    /// Visits all sources until none of them has anything, at most `rounds` times.
    pub(crate) fn receive_until_empty(&self, rx: &mut Rx, rounds: u32) {
        let mut rounds = 0..rounds;
        while rounds.next().is_some() && self.receive(rx, true, clock::now()) {}
    }

    /// Receives everything that has arrived before the call, by whatever way: rings, sockets and mailboxes are empty when it
    /// returns, or as much was taken from each as it can hold. Waits for the receive side; take only locks that are outside of
    /// that around this.
    pub fn receive_all_arrived(&self) {
        if self.is_started() {
            self.receive_until_empty(&mut self.rx.lock(), ROUNDS_OF_ALL);
        }
    }

    /// The program is about to wait for an event: the background thread takes over.
    pub fn arm(&self) {
        self.serve_ready(clock::now());
        if self.presence.arm() {
            self.kick();
        }
    }

    /// A thread of the program is going to send.
    #[inline]
    pub fn enter_to_send(&self) {
        self.presence.enter();
    }

    /// It has left its requests for later.
    #[inline]
    pub fn leave(&self) {
        self.presence.leave();
    }

    /// It has sent; serves queue pairs that got room by it.
    #[inline]
    pub fn leave_after_send(&self, now: Instant) {
        self.serve_ready(now);
        self.presence.leave();
        if let Some(live) = self.adapter.files().filter(|_| instant(&self.tell_at).is_none()) {
            self.publish(&self.tell_at, Some(now.after(live.pause())));
        }
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
        let random = getrandom::u32().map_err(|e| Error::os("cannot draw a random number", &io::Error::other(e)))?;
        loop {
            let mut made = None;
            let insert = |qpn| Arc::clone(made.insert(make(qpn))) as Arc<dyn QueuePair>;
            if self.table.insert(random, insert)
                && let Some(qp) = made
            {
                return Ok(qp);
            }
            let poller = self.poller()?;
            self.claim_slot(&mut self.rx.lock(), &poller)?;
        }
    }

    /// A slot of this process: numbers that begin with it are ours alone. Starts the engine if need be.
    pub fn slot(&self) -> Result<Slot, Error> {
        self.start()?;
        self.table.first_slot().ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device has no numbers"))
    }

    /// Whether `qpn` is a number of this process.
    pub fn is_ours(&self, qpn: Qpn) -> bool {
        self.table.owns(Slot::of(qpn))
    }

    /// Whether some process owns the number `qpn`.
    pub fn has_owner(&self, qpn: Qpn) -> bool {
        self.is_owned(Slot::of(qpn))
    }

    /// Whether some process owns `slot`.
    pub fn is_owned(&self, slot: Slot) -> bool {
        uncancelled(|| slot::is_owned(self.ifindex(), slot))
    }

    /// Whether another process of this interface owns the number `qpn`.
    pub fn is_foreign(&self, qpn: Qpn) -> bool {
        !self.is_ours(qpn) && self.is_owned(Slot::of(qpn))
    }

    /// Forgets a queue pair; packets for it are dropped from now on.
    pub fn unregister_qp(&self, qp: &dyn QueuePair) {
        self.table.remove(qp.qpn());
        if qp.service() == Service::Ud {
            self.detach_from_all(qp);
        }
        self.forget_packets(qp);
    }

    /// A queue pair is gone or in RESET: what fault rules counted for it has no meaning any more.
    pub fn forget_packets(&self, qp: &dyn QueuePair) {
        self.interceptor().into_iter().for_each(|interceptor| interceptor.forget(qp.ordinal()));
    }

    /// The link with the local address `gid`.
    pub fn link(&self, gid: Gid) -> Option<Arc<UdpLink>> {
        self.links.read().iter().find(|link| link.gid() == gid).map(Arc::clone)
    }

    /// Who receives at `key`.
    pub fn look_at(&self, key: Key) -> Receiver {
        if self.link(key.dst).is_none() {
            Receiver::Remote
        } else if self.has_ring(key.slot) {
            Receiver::Ring
        } else if self.is_owned(key.slot) {
            Receiver::Credits
        } else {
            Receiver::Absent
        }
    }

    /// Registers `qpn` for a timer.
    #[inline]
    pub fn add_timer(&self, deadline: Instant, qpn: Qpn) {
        self.wait_for(deadline, Due::Qp(qpn));
    }

    /// Registers something of the crate above for a time.
    pub fn add_deadline(&self, deadline: Instant, whose: Weak<dyn Deadline>) {
        self.wait_for(deadline, Due::Other(whose));
    }

    /// Registers connection management for a timer.
    pub fn add_cm_timer(&self, deadline: Instant) {
        self.wait_for(deadline, Due::Cm);
    }

    /// Registers the requests that nobody listens for yet for another look.
    pub(crate) fn look_for_listeners_at(&self, deadline: Instant) {
        self.wait_for(deadline, Due::Requests);
    }

    /// A process of this host has died: its names are taken away, once the kernel has closed all that it had.
    pub fn note_death(&self, now: Instant) {
        self.wait_for(now.after(CLOSING), Due::DeadNames);
    }

    pub(crate) fn wait_for(&self, deadline: Instant, who: Due) {
        self.timers.add(deadline, who);
        if self.presence.oversleeps(deadline) {
            self.kick();
        }
    }

    /// Runs what is due of the first `added` timers: a thread that stood still before it sent sets one that is due at once, and
    /// nobody has looked for an answer yet.
    pub(crate) fn run_timers(&self, added: u64, now: Instant) {
        while let Some((deadline, who)) = self.timers.pop_due_before(added, now) {
            match who {
                Due::Qp(qpn) => self.table.get(qpn).into_iter().for_each(|qp| qp.on_timer(deadline, now)),
                Due::Other(whose) => whose.upgrade().into_iter().for_each(|whose| whose.on_deadline(deadline)),
                Due::Cm => self.services.leave_deadline(self, deadline),
                Due::DeadNames => {
                    runtime_dir::note_death();
                    self.kick();
                }
                Due::Requests => self.look_for_listeners(now),
            }
        }
    }

    /// Serves the queue pairs that were refused and have room now.
    pub(crate) fn serve_ready(&self, now: Instant) {
        while let Some(Ready { qpn, grant }) = self.flows.pop_ready() {
            let flow = grant.as_ref().map(|grant| Arc::clone(grant.flow()));
            match self.table.get(qpn) {
                Some(qp) => qp.serve_waiter(grant, now),
                None => drop(grant),
            }
            // What it did not need is for the next.
            flow.into_iter().for_each(|flow| self.flows.wake(&flow));
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let held = self.interceptor().and_then(|interceptor| interceptor.delayed.next());
        let others = self.steering_deadline().into_iter().chain(instant(&self.retry_at)).chain(held);
        let others = others.chain(instant(&self.tell_at)).chain(instant(&self.ack_at));
        self.timers.next().into_iter().chain(others).min()
    }

    /// Holds a packet until `due`. If too many are held already, it is lost.
    pub(crate) fn hold(&self, interceptor: &Interceptor, due: Instant, packet: Held) {
        if !interceptor.delayed.add_up_to(MAX_HELD, due, packet) {
            self.counters().fault_dropped.add(1);
        } else if self.presence.oversleeps(due) {
            self.kick();
        }
    }

    pub(crate) fn steering_deadline(&self) -> Option<Instant> {
        instant(&self.steer_at)
    }

    pub(crate) fn set_retry(&self, at: Option<Instant>) {
        if at.is_some() || instant(&self.retry_at).is_some() {
            self.publish(&self.retry_at, at);
        }
    }

    /// Counts what the system has dropped at the sockets. Those of groups are left for the next time if somebody receives.
    pub fn count_socket_drops(&self) {
        let sum = |links: &mut dyn Iterator<Item = &Arc<UdpLink>>| {
            links.map(|link| link.take_drops()).fold(TakenDrops::default(), |sum, more| sum + more)
        };
        let of_groups =
            self.rx.try_lock().map(|mut rx| sum(&mut rx.state().groups.iter().flat_map(|group| &group.links)));
        let drops = sum(&mut self.links.read().iter()) + of_groups.unwrap_or_default();
        self.counters().rcvbuf_errors.add(drops.lost);
        self.counters().foreign_source_port.add(drops.filtered);
    }

    /// Writes the counters to their files if it is time, and sees to it that it will be if they have moved. Background
    /// thread only.
    #[inline]
    pub(crate) fn tell_counters(&self, now: Instant) {
        if let Some(live) = self.adapter.files() {
            self.tell_counters_to(live, now);
        }
    }

    pub(crate) fn tell_counters_to(&self, live: &CounterFiles, now: Instant) {
        match instant(&self.tell_at) {
            Some(due) if due > now => return,
            Some(_) => {
                self.tell_at.store(NEVER, Ordering::SeqCst);
                self.count_socket_drops();
                live.publish(self.counters());
            }
            None => {}
        }
        if live.is_behind(self.counters()) {
            self.tell_at.store(now.after(live.pause()).0, Ordering::SeqCst);
        }
    }

    /// Stores a deadline where the background thread looks, and wakes the thread if it would oversleep it.
    pub(crate) fn publish(&self, deadline: &AtomicU64, at: Option<Instant>) {
        deadline.store(at.map_or(NEVER, |at| at.0), Ordering::SeqCst);
        if at.is_some_and(|at| self.presence.oversleeps(at)) {
            self.kick();
        }
    }

    /// Lets steering work if it is due or waits for answers. Background thread only.
    pub(crate) fn steer(&self, now: Instant) {
        if self.steering_deadline().is_none() {
            return;
        }
        let mut rx = self.rx.lock();
        let state = rx.state();
        for steering in &mut state.steering {
            steering.step(now);
            if let (Some(fd), Ok(poller)) = (steering.fd(), self.poller()) {
                // Known already, most of the time.
                let _ = poller.watch(fd, Watch::Quiet);
            }
        }
        self.publish_steering(state);
    }

    pub(crate) fn note_forwarded(&self, state: &mut RxState, dst: Gid, now: Instant) {
        let Some(steering) = state.steering.iter_mut().find(|steering| steering.gid() == dst) else { return };
        if steering.note_forwarded(now) {
            self.publish_steering(state);
        }
    }

    pub(crate) fn publish_steering(&self, state: &RxState) {
        self.publish(&self.steer_at, state.steering.iter().filter_map(Steering::deadline).min());
    }

    pub(crate) fn kick(&self) {
        if let Some(thread) = self.thread.read().as_ref() {
            thread.poller().kick();
        }
    }

    pub(crate) fn poller(&self) -> Result<Arc<Poller>, Error> {
        let poller = self.thread.read().as_ref().map(|thread| Arc::clone(thread.poller()));
        poller.ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device is not running"))
    }

    /// The locks outside of the one of the table, for the fork handlers.
    pub fn outer_locks(&self) -> [&dyn Lockable; 3] {
        [&self.starting, self.adapter.raw_observers(), &self.rx]
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
        let port = self.adapter.raw_port();
        let told = self.adapter.files().map(|live| live.raw() as &dyn Lockable);
        let timers = self.timers.raw();
        let [out, inbound, full] = self.rings.raw();
        let always: [&dyn Lockable; 14] = [
            self.table.raw_owned(),
            port,
            &self.links,
            &self.frame_senders,
            &self.host_addresses,
            map,
            out,
            inbound,
            full,
            ready,
            credits,
            timers,
            self.xrc_messages.raw(),
            &self.thread,
        ];
        always.into_iter().chain(held).chain(told)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(live) = self.adapter.files() {
            live.publish(self.counters());
        }
        // The thread wakes, finds nobody, and ends.
        self.kick();
    }
}

fn instant(deadline: &AtomicU64) -> Option<Instant> {
    Some(deadline.load(Ordering::SeqCst)).filter(|&at| at != NEVER).map(Instant)
}

/// The receive side by hand, for tests of the crate above.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    use super::*;

    /// The receive side, which nobody else gets meanwhile.
    pub struct Held<'a>(&'a Engine, MutexGuard<'a, rank::Rx, Rx>);

    impl Engine {
        /// Takes the receive side.
        pub fn hold_receive_side(&self) -> Held<'_> {
            Held(self, self.rx.lock())
        }

        /// Runs the timers that were added so far and are due.
        pub fn run_due_timers(&self) {
            self.run_timers(self.timers.added(), clock::now());
        }
    }

    impl Held<'_> {
        /// Receives what has arrived.
        pub fn receive(&mut self) {
            self.0.receive(&mut self.1, true, clock::now());
        }
    }
}
