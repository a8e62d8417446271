//! The ways in of the program's threads: polling an empty queue, before and after sending, before
//! something goes away.
//!
//! A poll receives what has arrived, runs the timers that are due, then serves the services that
//! have something to do; it never waits.

use crate::engine::Engine;
use crate::flow_control::Turn;
use crate::poller::{Poller, Watch};
use crate::rx_state::{Rx, Visitor};
use crate::scheduler::{Due, Ready, Task};
use roxe_base::clock;
use roxe_base::lock::{MutexGuard, rank};
use roxe_net::runtime_dir;
use roxe_net::udp::TakenDrops;
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use std::sync::Arc;

/// Visits to the sockets before a queue pair goes away; a peer that never stops sending must not
/// hold it up.
pub(crate) const DRAIN_ROUNDS: u32 = 16;
/// Visits to all sources after which each has been read once over, whoever goes on sending: one
/// takes eight datagrams from each socket and mailbox and 32 runs from each ring, which is more
/// than a 2,048th of what fits in there.
const ROUNDS_OF_ALL: u32 = 2048;

impl Engine {
    /// Sockets have room. Background thread only.
    pub(crate) fn on_send_room(&self, poller: &Poller) {
        // First: what is full again is watched anew.
        poller.send_room().clear();
        self.send_all_queued();
        self.serve_ready(clock::now());
    }

    /// Works off what was left for connection managers, if anything was. Call without any lock.
    #[inline]
    pub fn run_cm(&self) {
        if self.scheduler.ready().contains(Ready::CONNECTIONS) {
            self.services.run_connections(self);
        }
    }

    /// Does what is due on the thread of a poller: receives, runs timers, sends. Never waits.
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

    /// A thread of the program comes in to receive. When that is.
    pub(crate) fn enter(&self) -> Instant {
        // First: what interrupts a program that polls does so in a system call, and on some
        // machines the clock is one.
        self.scheduler.presence.enter();
        let now = clock::now();
        self.scheduler.presence.note_poll(now);
        now
    }

    /// Does all that for a thread of the program that has come in. Whether anything had arrived.
    pub(crate) fn work(&self, now: Instant) -> bool {
        let found = self.rx.try_lock().is_some_and(|rx| self.visit(rx, Visitor::Program, now));
        self.serve_ready(now);
        self.run_cm();
        found
    }

    /// Receives, then runs the timers that were due before, if nothing is left: what they wait for
    /// may have been in a socket all the time, when the machine is overloaded. Who does not get the
    /// lock of the receive side leaves them to its holder. Whether anything was there.
    pub(crate) fn visit(&self, mut rx: MutexGuard<'_, rank::Rx, Rx>, visitor: Visitor, now: Instant) -> bool {
        let due = self.scheduler.timers.is_due(now).then(|| self.scheduler.timers.added());
        rx.state.visitor = visitor;
        let all = visitor == Visitor::Woken || rx.state.takes_turn_of_sockets(due.is_some(), now);
        let found = self.receive(&mut rx, all, now);
        let due = due.filter(|_| rx.state.ends_overdue(found || !all));
        drop(rx);
        if let Some(added) = due {
            self.run_timers(added, now);
        }
        found
    }

    /// Receives until the sockets are empty. Called before something goes away: an answer of ours
    /// to another process may have come to our own socket, and nobody would forward it once the
    /// process has ended.
    pub fn drain(&self) {
        if !self.is_started() {
            return;
        }
        let mut rx = self.rx.lock();
        if let Some(interceptor) = self.interceptor() {
            self.release_held(interceptor, &mut rx.state, Instant(u64::MAX), clock::now());
        }
        self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
        self.end_waiting(&mut rx.state, Instant(u64::MAX), clock::now());
        drop(rx);
        self.run_cm();
    }

    /// Visits all sources until none of them has anything, at most `rounds` times.
    pub(crate) fn receive_until_empty(&self, rx: &mut Rx, rounds: u32) {
        let mut rounds = 0..rounds;
        while rounds.next().is_some() && self.receive(rx, true, clock::now()) {}
    }

    /// Receives everything that has arrived before the call, by whatever way and for whichever
    /// engine of the device: rings, sockets and mailboxes are empty when it returns, or as much was
    /// taken from each as it can hold. Waits for the receive sides; take only locks that are
    /// outside of those around this.
    pub fn receive_all_arrived(&self) {
        self.receive_own_arrived();
        self.further().for_each(|engine| engine.receive_own_arrived());
    }

    fn receive_own_arrived(&self) {
        if self.is_started() {
            self.receive_until_empty(&mut self.rx.lock(), ROUNDS_OF_ALL);
        }
    }

    /// The program is about to wait for an event: the background thread takes over.
    pub fn arm(&self) {
        self.serve_ready(clock::now());
        if self.scheduler.presence.arm() {
            self.scheduler.kick();
        }
    }

    /// A thread of the program is going to sleep, and receives for another engine before it does:
    /// the background thread takes over, unless it has.
    pub fn before_sleep_elsewhere(&self) {
        if self.scheduler.presence.hand_over() {
            self.scheduler.kick();
        }
    }

    /// A thread of the program is going to send.
    #[inline]
    pub fn enter_to_send(&self) {
        self.scheduler.presence.enter();
    }

    /// It has left its requests for later.
    #[inline]
    pub fn leave(&self) {
        self.scheduler.presence.leave();
    }

    /// It has sent; serves queue pairs that got room by it.
    #[inline]
    pub fn leave_after_send(&self, now: Instant) {
        self.serve_ready(now);
        self.scheduler.presence.leave();
        if let Some(live) = self.adapter.files().filter(|_| self.scheduler.due(Task::CounterFiles).is_none()) {
            self.scheduler.publish(Task::CounterFiles, Some(now.after(live.pause())));
        }
    }

    /// Runs what is due of the first `added` timers: a thread that stood still before it sent sets
    /// one that is due at once, and nobody has looked for an answer yet.
    pub(crate) fn run_timers(&self, added: u64, now: Instant) {
        while let Some((deadline, who)) = self.scheduler.timers.pop_due_before(added, now) {
            match who {
                Due::Qp(qpn) => self.table.get(qpn).into_iter().for_each(|qp| qp.on_timer(deadline, now)),
                Due::Other(whose) => whose.upgrade().into_iter().for_each(|whose| whose.on_deadline(deadline)),
                Due::Cm => self.services.leave_deadline(self, deadline),
                Due::DeadNames => {
                    runtime_dir::note_death();
                    self.scheduler.kick();
                }
                Due::Requests => self.look_for_listeners(now),
            }
        }
    }

    /// Serves the queue pairs that were refused and have room now.
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
            // What it did not need is for the next.
            flow.into_iter().for_each(|flow| self.flows.wake(&flow));
        }
    }

    /// Counts what the system has dropped at the sockets, also those of further engines. Those of
    /// groups are left for the next time if somebody receives.
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

    /// Writes the counters to their files if it is time, and sees to it that it will be if they
    /// have moved. Background thread only.
    pub(crate) fn tell_counters(&self, now: Instant) {
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

    /// Lets steering work if it is due or waits for answers. Background thread only.
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
                // Known already, most of the time.
                let _ = poller.watch(fd, Watch::Quiet);
            }
        }
        self.publish_steering(state, now);
    }
}
