//! Entry points of the program's threads: polling, sending, draining before an object is destroyed.
//!
//! A poll receives, runs the timers that are due, then serves the services that are ready. It never
//! waits.

use crate::engine::Engine;
use crate::flow_control::Turn;
use crate::poller::{Poller, Watch};
use crate::presence::Awaited;
use crate::rx_state::{PollSource, Rx};
use crate::scheduler::{Ready, Task, TimerOwner};
use roxe_base::clock;
use roxe_base::lock::{MutexGuard, rank};
use roxe_net::runtime_dir;
use roxe_net::udp::TakenDrops;
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use std::sync::Arc;

/// Maximum number of receive rounds before a queue pair is destroyed, in case a peer never stops
/// sending.
pub(crate) const DRAIN_ROUNDS: u32 = 16;
/// Number of rounds after which every source has been emptied once, even if its peer keeps
/// sending: one round reads more than a 2,048th of the capacity of each socket, mailbox and ring.
const ARRIVED_ROUNDS: u32 = 2048;

impl Engine {
    /// Called when send buffers have room. Background thread only.
    pub(crate) fn on_send_room(&self, poller: &Poller) {
        // Cleared first, so that a queue that fills up again is watched again.
        poller.send_room().clear();
        self.send_all_queued();
        self.serve_ready(clock::now());
    }

    /// Runs pending work of connection managers. Call without any lock.
    #[inline]
    pub fn run_cm(&self) {
        if self.scheduler.ready().contains(Ready::CONNECTIONS) {
            self.services.run_connections(self);
        }
    }

    /// Polls once on the program's thread: receives, runs timers, sends. Never waits.
    pub fn progress(&self) {
        if !self.is_started() {
            return;
        }
        let now = self.enter();
        if self.work(now) {
            self.scheduler.note_found();
        } else {
            self.scheduler.yield_when_idle(now);
        }
        self.scheduler.presence.leave();
    }

    /// Marks a thread of the program as polling and returns the time.
    pub(crate) fn enter(&self) -> Instant {
        // Before the clock is read: that is a system call on some machines, where a signal most
        // likely interrupts a polling program.
        self.scheduler.presence.enter();
        let now = clock::now();
        self.scheduler.presence.note_poll(now);
        now
    }

    /// Polls once for a thread that has entered. Returns true if packets were received.
    pub(crate) fn work(&self, now: Instant) -> bool {
        let found = self.rx.try_lock().is_some_and(|rx| self.visit(rx, PollSource::Program, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// Receives, then runs the timers that were due before, if all sources are empty: on an
    /// overloaded machine, the packets they wait for may have arrived already. Threads that do not
    /// get the receive lock leave the timers to its holder. Returns true if packets were received.
    pub(crate) fn visit(&self, mut rx: MutexGuard<'_, rank::Rx, Rx>, source: PollSource, now: Instant) -> bool {
        let due = self.scheduler.timers.is_due(now).then(|| self.scheduler.timers.added());
        rx.state.source = source;
        let all = source == PollSource::Woken || rx.state.polls_all_sockets(due.is_some(), now);
        let found = self.receive(&mut rx, all, now);
        let due = due.filter(|_| rx.state.runs_overdue_timers(found || !all));
        drop(rx);
        if let Some(added) = due {
            self.run_timers(added, now);
        }
        found
    }

    /// Receives until the sockets are empty. Called before an object is destroyed: a packet for
    /// another process may be in a socket of this one, and is lost unless it is forwarded before
    /// this process exits.
    pub fn drain(&self) {
        if !self.is_started() {
            return;
        }
        let mut rx = self.rx.lock();
        if let Some(interceptor) = self.interceptor() {
            self.release_held(interceptor, &mut rx.state, Instant(u64::MAX), clock::now());
        }
        self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
        self.send_delayed_ack(&mut rx.state, Instant(u64::MAX), clock::now());
        drop(rx);
        self.run_cm();
    }

    /// Receives until all sources are empty, at most `rounds` times.
    pub(crate) fn receive_until_empty(&self, rx: &mut Rx, rounds: u32) {
        let mut rounds = 0..rounds;
        while rounds.next().is_some() && self.receive(rx, true, clock::now()) {}
    }

    /// Receives everything that has arrived before the call, for all engines of the device. Waits
    /// for the receive locks, so only locks of outer ranks may be held.
    pub fn receive_all_arrived(&self) {
        self.receive_own_arrived();
        self.further().for_each(|engine| engine.receive_own_arrived());
    }

    fn receive_own_arrived(&self) {
        if self.is_started() {
            self.receive_until_empty(&mut self.rx.lock(), ARRIVED_ROUNDS);
        }
    }

    /// Called before the program waits for an event that is `awaited`: the background thread takes
    /// over, unless the program receives itself ([`Engine::before_sleep`]).
    pub fn arm(&self, awaited: Awaited) {
        self.serve_ready(clock::now());
        if self.scheduler.presence.arm(awaited) {
            self.scheduler.kick();
        }
    }

    /// Called before a thread sleeps that polls only another engine: the background thread takes
    /// over this one.
    pub fn hand_over_before_sleep(&self) {
        if self.scheduler.presence.muting.hand_over() {
            self.scheduler.kick();
        }
    }

    /// Marks a thread of the program as sending.
    #[inline]
    pub fn enter_to_send(&self) {
        self.scheduler.presence.enter();
    }

    /// Ends [`Engine::enter_to_send`] without having sent.
    #[inline]
    pub fn leave(&self) {
        self.scheduler.presence.leave();
    }

    /// Ends [`Engine::enter_to_send`]; serves queue pairs that now have room.
    #[inline]
    pub fn leave_after_send(&self, now: Instant) {
        self.serve_ready(now);
        self.scheduler.presence.leave();
        if let Some(files) = self.adapter.files().filter(|_| self.scheduler.due(Task::CounterFiles).is_none()) {
            self.scheduler.publish(Task::CounterFiles, Some(now.after(files.pause())));
        }
    }

    /// Runs due timers among the first `added`. Later timers were added during this visit, possibly
    /// by a thread that had been preempted, and no poll has received since.
    pub(crate) fn run_timers(&self, added: u64, now: Instant) {
        while let Some((deadline, owner)) = self.scheduler.timers.pop_due_before(added, now) {
            match owner {
                TimerOwner::Qp(qpn) => {
                    if let Some(qp) = self.table.get(qpn) {
                        qp.on_timer(deadline, now);
                    }
                }
                TimerOwner::Other(owner) => {
                    if let Some(owner) = owner.upgrade() {
                        owner.on_deadline(deadline);
                    }
                }
                TimerOwner::Cm => self.services.queue_deadline(self, deadline),
                TimerOwner::DeadNames => {
                    runtime_dir::note_death();
                    self.scheduler.kick();
                }
                TimerOwner::Requests => self.retry_unclaimed(now),
            }
        }
    }

    /// Serves blocked queue pairs that now have room.
    #[inline]
    pub(crate) fn serve_ready(&self, now: Instant) {
        if self.scheduler.ready().contains(Ready::QUEUE_PAIRS) {
            self.serve_queue_pairs(now);
        }
    }

    fn serve_queue_pairs(&self, now: Instant) {
        while let Some(Turn { qpn, grant }) = self.flows.pop_ready() {
            let flow = grant.as_ref().map(|grant| Arc::clone(&grant.flow));
            match self.table.get(qpn) {
                Some(qp) => qp.serve_waiter(grant, now),
                None => drop(grant),
            }
            // The next waiter gets unused room.
            if let Some(flow) = flow {
                self.flows.wake(&flow);
            }
        }
    }

    /// Adds packets dropped by the kernel to the counters, for all engines of the device. Sockets
    /// of groups are skipped while another thread receives.
    pub fn count_socket_drops(&self) {
        let count = |link: &Arc<UdpLink>| {
            let TakenDrops { lost, filtered } = link.take_drops();
            self.counters().rcvbuf_errors.add(lost);
            self.counters().foreign_source_port.add(filtered);
        };
        self.links.udp.read().iter().for_each(count);
        if let Some(rx) = self.rx.try_lock() {
            rx.state.groups.iter().flat_map(|group| &group.links).for_each(count);
        }
        self.further().for_each(|engine| engine.count_socket_drops());
    }

    /// Publishes the counters if due, and schedules the next time if they have changed. Background
    /// thread only.
    pub(crate) fn publish_counters(&self, now: Instant) {
        let Some(files) = self.adapter.files() else { return };
        match self.scheduler.due(Task::CounterFiles) {
            Some(due) if due > now => return,
            Some(_) => {
                self.scheduler.set(Task::CounterFiles, None);
                self.count_socket_drops();
                files.publish(|| self.adapter.counters());
            }
            None => {}
        }
        if files.is_behind(|| self.adapter.counters()) {
            self.scheduler.set(Task::CounterFiles, Some(now.after(files.pause())));
        }
    }

    /// Runs steering if it is due or expects answers. Background thread only.
    pub(crate) fn steer(&self, now: Instant) {
        if self.scheduler.due(Task::Steering).is_none() {
            return;
        }
        let mut rx = self.rx.lock();
        let state = &mut rx.state;
        let unanswered = self.scheduler.take_unanswered();
        for steering in &mut state.steering {
            if unanswered {
                steering.note_unanswered(now);
            }
            steering.step(now);
            if let (Some(fd), Ok(poller)) = (steering.fd(), self.scheduler.poller()) {
                // Usually watched already.
                let _ = poller.watch(fd, Watch::Quiet);
            }
        }
        self.publish_steering(state, now);
    }
}
