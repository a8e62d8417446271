//! What is due when, what waits to be done, who is there to do it, and how the background thread is
//! woken.
//!
//! One place says when the next thing is due (`Scheduler::next_deadline`), and one word which
//! services have something to do (`Ready`): a poll that finds nothing asks these two and no
//! service. Touches the thread's doorbell.

use crate::poll_policy::idle;
use crate::poller::Poller;
use crate::presence::Presence;
use crate::queue_pair::Deadline;
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

/// How long the kernel takes to close what a process had that has died.
const CLOSING: Duration = Duration::from_millis(100);
/// What a deadline holds that is not set.
const NEVER: u64 = u64::MAX;

bitflags! {
    /// Which services have something to do. A bit stays set for as long as something waits there.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Ready: u32 {
        /// Queue pairs have room again, or more to send.
        const QUEUE_PAIRS = 1 << 0;
        /// Something was left for connection managers.
        const CONNECTIONS = 1 << 1;
        /// Credits are owed to senders of this host.
        const CREDITS = 1 << 2;
        /// Somebody wants a ring.
        const RINGS_WANTED = 1 << 3;
        /// Somebody waits for room in a ring.
        const RINGS_FULL = 1 << 4;
        /// Queue pairs wait until a ring is agreed.
        const RINGS_AWAITED = 1 << 5;
    }
}

impl Ready {
    /// What is sent to other processes by whoever has the receive side.
    pub(crate) const FOR_PROCESSES: Self = Self::CREDITS.union(Self::RINGS_WANTED).union(Self::RINGS_AWAITED);
}

/// Who is waiting for a time to come.
#[derive(Debug)]
pub(crate) enum Due {
    /// A queue pair: retransmission, packets that came early.
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

/// Times of which there is one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Steering wants to work.
    Steering,
    /// What a full mailbox refused is tried again, or filters are renewed.
    Retry,
    /// The counters are written to their files.
    CounterFiles,
    /// An acknowledgement that waits for the program's next packet leaves without it.
    DelayedAck,
}

/// All of it.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) timers: Timers<rank::Timers, Due>,
    tasks: [AtomicU64; 4],
    ready: ReadyMask,
    connections: ReadyFlag,
    pub(crate) presence: Presence,
    /// Packets of this process were not answered in time, which steering has not heard yet.
    unanswered: AtomicBool,
    /// Visits of pollers in a row that found nothing.
    idle_visits: AtomicU32,
    /// When the first of them was, nanoseconds.
    idle_since: AtomicU64,
    /// Whoever holds any lock may wake it.
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
    /// The flag of one service.
    pub(crate) fn flag(&self, service: Ready) -> ReadyFlag {
        self.ready.flag(service.bits().ilog2())
    }

    /// Which services have something to do.
    #[inline]
    pub(crate) fn ready(&self) -> Ready {
        Ready::from_bits_retain(self.ready.get())
    }

    /// Something was left for connection managers: the next thread that holds no lock works it off.
    pub fn note_connection_work(&self) {
        self.connections.set();
    }

    /// Whether something was left, from now on no more: whoever asks works it off, all of it.
    pub fn take_connection_work(&self) -> bool {
        self.connections.clear()
    }

    /// Whether something is left.
    pub fn has_connection_work(&self) -> bool {
        self.connections.is_set()
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

    /// A process of this host has died: its names are taken away, once the kernel has closed all
    /// that it had.
    pub fn note_death(&self, now: Instant) {
        self.wait_for(now.after(CLOSING), Due::DeadNames);
    }

    pub(crate) fn wait_for(&self, deadline: Instant, who: Due) {
        self.timers.add(deadline, who);
        self.wake_for(Some(deadline));
    }

    /// When `task` is due.
    #[inline]
    pub(crate) fn due(&self, task: Task) -> Option<Instant> {
        Some(self.tasks[task as usize].load(Ordering::SeqCst)).filter(|&at| at != NEVER).map(Instant)
    }

    /// When the first of the tasks and timers is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let task = self.tasks.iter().map(|at| at.load(Ordering::SeqCst)).min().filter(|&at| at != NEVER);
        self.timers.next().into_iter().chain(task.map(Instant)).min()
    }

    /// Sets when `task` is due, without waking the thread.
    pub(crate) fn set(&self, task: Task, at: Option<Instant>) {
        self.tasks[task as usize].store(at.map_or(NEVER, |at| at.0), Ordering::SeqCst);
    }

    /// The same, and wakes the background thread if it would oversleep it.
    pub(crate) fn publish(&self, task: Task, at: Option<Instant>) {
        self.set(task, at);
        self.wake_for(at);
    }

    /// Packets of this process were not answered in time: steering looks whether they reach who
    /// they are for.
    pub fn note_unanswered(&self, now: Instant) {
        self.unanswered.store(true, Ordering::SeqCst);
        self.publish(Task::Steering, Some(now));
    }

    /// Whether that was called since the last time.
    pub(crate) fn take_unanswered(&self) -> bool {
        self.unanswered.swap(false, Ordering::SeqCst)
    }

    /// Publishes when steering is due, as it says itself. Who notes meanwhile that packets are not
    /// answered is heard.
    pub(crate) fn publish_steering(&self, at: Option<Instant>, now: Instant) {
        self.publish(Task::Steering, at);
        if self.unanswered.load(Ordering::SeqCst) {
            self.publish(Task::Steering, Some(now));
        }
    }

    /// Wakes the background thread if it would oversleep this deadline, which is published.
    pub(crate) fn wake_for(&self, at: Option<Instant>) {
        if at.is_some_and(|at| self.presence.oversleeps(at)) {
            self.kick();
        }
    }

    /// A visit of a poller has found something.
    #[inline]
    pub(crate) fn note_found(&self) {
        self.idle_visits.store(0, Ordering::Relaxed);
    }

    /// A program that polls in vain for long lets others run: the peer it waits for may need this
    /// very processor.
    pub(crate) fn yield_when_idle(&self, now: Instant) {
        let visits = self.idle_visits.load(Ordering::Relaxed);
        if visits == 0 {
            self.idle_since.store(now.0, Ordering::Relaxed);
        }
        if idle::is_young(visits) {
            self.idle_visits.store(visits + 1, Ordering::Relaxed);
        } else if idle::yields(now.since(Instant(self.idle_since.load(Ordering::Relaxed)))) {
            std::thread::yield_now();
        }
    }

    /// Wakes the background thread.
    pub(crate) fn kick(&self) {
        if let Some(thread) = self.thread.read().as_ref() {
            thread.poller().kick();
        }
    }

    /// What the background thread sleeps on. ENODEV: there is none.
    pub(crate) fn poller(&self) -> Result<Arc<Poller>, Error> {
        let poller = self.thread.read().as_ref().map(|thread| Arc::clone(thread.poller()));
        poller.ok_or_else(|| Error::new(libc::ENODEV, "the engine of this device is not running"))
    }

    /// Forgets all that is due.
    pub(crate) fn clear(&self) {
        self.timers.clear();
        self.unanswered.store(false, Ordering::SeqCst);
        self.tasks.iter().for_each(|at| at.store(NEVER, Ordering::SeqCst));
    }
}
