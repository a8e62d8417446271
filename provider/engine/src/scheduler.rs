//! Deadlines, readiness of services, presence of threads, and waking the background thread.
//!
//! An idle poll reads only the next deadline (`Scheduler::next_deadline`) and the word of ready
//! services (`Ready`).

use crate::poll_policy::idle;
use crate::poller::Poller;
use crate::presence::Presence;
use crate::queue_pair::DeadlineOwner;
use crate::thread::Thread;
use bitflags::bitflags;
use roxe_base::error::Error;
use roxe_base::lock::{RwLock, rank};
use roxe_base::ready::{ReadyFlag, ReadyMask};
use roxe_base::timers::Timers;
use roxe_transport::time::Instant;
use roxe_wire::Qpn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time the kernel is given to close the sockets of a killed process.
const CLOSING: Duration = Duration::from_millis(100);
/// Stored for an unset deadline.
const NEVER: u64 = u64::MAX;

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Ready: u32 {
        /// Queue pairs with room or more to send.
        const QUEUE_PAIRS = 1 << 0;
        /// Messages or timers for connection managers.
        const CONNECTIONS = 1 << 1;
        const CREDITS = 1 << 2;
        const RINGS_WANTED = 1 << 3;
        /// Queue pairs that wait for room in a ring.
        const RINGS_FULL = 1 << 4;
        /// Queue pairs that wait for a ring agreement.
        const RINGS_AWAITED = 1 << 5;
    }
}

impl Ready {
    /// Services served by the holder of the receive lock.
    pub(crate) const FOR_PROCESSES: Self = Self::CREDITS.union(Self::RINGS_WANTED).union(Self::RINGS_AWAITED);
}

#[derive(Debug)]
pub(crate) enum TimerOwner {
    /// Retransmission, or timeout of early packets.
    Qp(Qpn),
    Other(Weak<dyn DeadlineOwner>),
    Cm,
    /// CM requests without a listener.
    Requests,
    /// Names of a killed process, to be removed.
    DeadNames,
}

/// Recurring work with one deadline each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Steering,
    /// Retry of sends refused by a full mailbox; renewal of filters.
    Retry,
    CounterFiles,
    /// Sending of an acknowledgement that waited for the program's next packet until its limit.
    DelayedAck,
}

/// Timers, deadlines and wake-ups of an engine.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) timers: Timers<rank::Timers, TimerOwner>,
    tasks: [AtomicU64; 4],
    ready: ReadyMask,
    connections: ReadyFlag,
    pub(crate) presence: Presence,
    /// Set when packets were not answered in time, until steering has been informed.
    unanswered: AtomicBool,
    idle_visits: AtomicU32,
    /// Time of the first of `idle_visits` in nanoseconds.
    idle_since: AtomicU64,
    /// May be locked under any other lock, so that any thread can wake the background thread.
    pub(crate) thread: RwLock<rank::Thread, Option<Arc<Thread>>>,
}

impl Default for Scheduler {
    fn default() -> Self {
        let ready = ReadyMask::default();
        Self {
            timers: Timers::default(),
            tasks: [const { AtomicU64::new(NEVER) }; 4],
            connections: ready.flag(Ready::CONNECTIONS.bits().ilog2()),
            ready,
            presence: Presence::default(),
            unanswered: AtomicBool::new(false),
            idle_visits: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
            thread: RwLock::default(),
        }
    }
}

impl Scheduler {
    pub(crate) fn flag(&self, service: Ready) -> ReadyFlag {
        self.ready.flag(service.bits().ilog2())
    }

    #[inline]
    pub(crate) fn ready(&self) -> Ready {
        Ready::from_bits_retain(self.ready.get())
    }

    /// Schedules [`crate::engine::Services::run_connections`].
    pub fn note_connection_work(&self) {
        self.connections.set();
    }

    /// Returns true if connection work is pending, and clears that: the caller must process it.
    pub fn take_connection_work(&self) -> bool {
        self.connections.clear()
    }

    /// Returns true if connection work is pending.
    pub fn has_connection_work(&self) -> bool {
        self.connections.is_set()
    }

    /// Adds a timer for `qpn`.
    #[inline]
    pub fn add_timer(&self, deadline: Instant, qpn: Qpn) {
        self.add(deadline, TimerOwner::Qp(qpn));
    }

    /// Adds a timer for an object of the crate above.
    pub fn add_deadline(&self, deadline: Instant, owner: Weak<dyn DeadlineOwner>) {
        self.add(deadline, TimerOwner::Other(owner));
    }

    /// Adds a timer for connection management.
    pub fn add_cm_timer(&self, deadline: Instant) {
        self.add(deadline, TimerOwner::Cm);
    }

    /// Schedules removal of the names of a killed process, once the kernel has closed its sockets.
    pub fn note_death(&self, now: Instant) {
        self.add(now.after(CLOSING), TimerOwner::DeadNames);
    }

    pub(crate) fn add(&self, deadline: Instant, owner: TimerOwner) {
        self.timers.add(deadline, owner);
        self.wake_for(Some(deadline));
    }

    #[inline]
    pub(crate) fn due(&self, task: Task) -> Option<Instant> {
        Some(self.tasks[task as usize].load(Ordering::SeqCst)).filter(|&at| at != NEVER).map(Instant)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let task = self.tasks.iter().map(|at| at.load(Ordering::SeqCst)).min().filter(|&at| at != NEVER);
        self.timers.next().into_iter().chain(task.map(Instant)).min()
    }

    pub(crate) fn set(&self, task: Task, at: Option<Instant>) {
        self.tasks[task as usize].store(at.map_or(NEVER, |at| at.0), Ordering::SeqCst);
    }

    /// Sets the deadline of `task` and wakes the background thread if it would oversleep it.
    pub(crate) fn publish(&self, task: Task, at: Option<Instant>) {
        self.set(task, at);
        self.wake_for(at);
    }

    /// Notes that packets were not answered in time: steering checks whether they reach their
    /// destination.
    pub fn note_unanswered(&self, now: Instant) {
        self.unanswered.store(true, Ordering::SeqCst);
        self.publish(Task::Steering, Some(now));
    }

    pub(crate) fn take_unanswered(&self) -> bool {
        self.unanswered.swap(false, Ordering::SeqCst)
    }

    /// Publishes the deadline of steering; at once if unanswered packets were noted meanwhile.
    pub(crate) fn publish_steering(&self, at: Option<Instant>, now: Instant) {
        self.publish(Task::Steering, at);
        if self.unanswered.load(Ordering::SeqCst) {
            self.publish(Task::Steering, Some(now));
        }
    }

    /// Wakes the background thread if it would oversleep the deadline `at`, published before.
    pub(crate) fn wake_for(&self, at: Option<Instant>) {
        if at.is_some_and(|at| self.presence.oversleeps(at)) {
            self.kick();
        }
    }

    #[inline]
    pub(crate) fn note_found(&self) {
        self.idle_visits.store(0, Ordering::Relaxed);
    }

    /// Yields after long empty polling of the program: the peer may need this CPU to respond.
    pub(crate) fn yield_when_idle(&self, now: Instant) {
        let visits = self.idle_visits.load(Ordering::Relaxed);
        if visits == 0 {
            self.idle_since.store(now.0, Ordering::Relaxed);
        }
        if idle::is_below_idle_limit(visits) {
            self.idle_visits.store(visits + 1, Ordering::Relaxed);
        } else if idle::yields(now.since(Instant(self.idle_since.load(Ordering::Relaxed)))) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn kick(&self) {
        if let Some(thread) = self.thread.read().as_ref() {
            thread.poller().kick();
        }
    }

    /// Returns the poller of the background thread. Fails with ENODEV if the thread does not run.
    pub(crate) fn poller(&self) -> Result<Arc<Poller>, Error> {
        let poller = self.thread.read().as_ref().map(|thread| Arc::clone(thread.poller()));
        poller.ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device is not running"))
    }

    pub(crate) fn clear(&self) {
        self.timers.clear();
        self.unanswered.store(false, Ordering::SeqCst);
        self.tasks.iter().for_each(|at| at.store(NEVER, Ordering::SeqCst));
    }
}
