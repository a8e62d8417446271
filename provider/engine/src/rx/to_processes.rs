//! Messages of the receive side to other processes of this host: forwarded packets, credits, ring
//! offers.

use crate::engine::Engine;
use crate::flow_control::Owed;
use crate::forward_queue::ForwardOutcome;
use crate::run::Run;
use crate::rx_state::RxState;
use crate::scheduler::{Ready, Task};
use roxe_base::cancel::uncancelled;
use roxe_net::forward::Frame;
use roxe_net::link::RxMeta;
use roxe_net::service::Mailbox;
use roxe_net::slot::{Slot, SlotSocket};
use roxe_transport::time::Instant;
use roxe_wire::Qpn;
use std::io;
use std::time::Duration;

/// Interval after which the background thread retries sends that a full mailbox refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl Engine {
    pub(crate) fn forward(&self, state: &mut RxState, qpn: Qpn, run: Run<'_>, now: Instant) {
        let to = Slot::of(qpn);
        let frame = Frame::Packets(RxMeta { first_index: run.index, ..*run.meta });
        let outcome = match state.slots.first() {
            Some(first) if to.can_be_owned() => state.forward_queue.send(first, Mailbox::Slot(to), &frame, run.bytes),
            _ => ForwardOutcome::Unowned,
        };
        match outcome {
            ForwardOutcome::Forwarded => {
                self.counters().forwarded.add(run.count());
                self.note_forwarded(state, run.meta.dst, now);
            }
            ForwardOutcome::Unowned => self.count_dropped(run, &self.counters().unknown_qp),
            ForwardOutcome::Lost => self.count_dropped(run, &self.counters().forward_errors),
        }
    }

    /// Sends pending messages to other processes, if there are any.
    #[inline]
    pub(crate) fn serve_processes(&self, state: &mut RxState, now: Instant) {
        if self.scheduler.ready().intersects(Ready::FOR_PROCESSES)
            || state.has_deferred()
            || self.scheduler.due(Task::Retry).is_some()
        {
            self.send_to_processes(state, now);
        }
    }

    /// Sends pending messages; schedules a retry while some remain.
    pub(crate) fn send_to_processes(&self, state: &mut RxState, now: Instant) {
        let ready = self.scheduler.ready();
        if ready.contains(Ready::RINGS_WANTED) {
            self.offer_rings(state, now);
        }
        if ready.contains(Ready::RINGS_AWAITED) {
            self.poll_awaited(now);
        }
        if state.source_ports.due().is_some_and(|due| due <= now) {
            // Dropping the last reference closes a socket, which is a cancellation point.
            uncancelled(|| state.source_ports.renew_filters(now));
        }
        let Some(first) = state.slots.first() else { return };
        if !state.forward_queue.is_empty() {
            let lost = state.forward_queue.retry(first);
            self.counters().forward_errors.add(lost);
        }
        while let Some(owed) = self.flows.next_due() {
            if !self.send_credit(&state.slots, owed, now) {
                self.flows.put_back(owed);
                break;
            }
        }
        let waits = !state.forward_queue.is_empty() || self.flows.is_blocked() || self.rings.has_wanted.is_set();
        let later = state.source_ports.due().into_iter().chain(self.rings.awaited_until());
        self.set_retry(waits.then(|| now.after(RETRY_INTERVAL)).into_iter().chain(later).min());
    }

    /// Sends credits that became due outside a visit to the sockets.
    pub fn send_credits(&self, now: Instant) {
        match self.rx.try_lock() {
            Some(mut rx) => self.serve_processes(&mut rx.state, now),
            // The holder of the lock may have checked for credits already.
            None => self.set_retry(Some(now)),
        }
    }

    /// Sends credits to the process of their owner; returns false if its mailbox is full.
    pub(crate) fn send_credit(&self, slots: &[SlotSocket], owed: Owed, now: Instant) -> bool {
        let Owed { to, key, bytes } = owed;
        if slots.iter().any(|socket| socket.slot() == to) {
            self.flows.credit(key, bytes, now);
            return true;
        }
        let frame = Frame::Credit { dst: key.dst, slot: key.slot, bytes };
        let sent = slots.first().map(|first| first.send(to, &frame.header(), &[]));
        // An owner that has exited needs no credits.
        !matches!(sent, Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock)
    }
}
