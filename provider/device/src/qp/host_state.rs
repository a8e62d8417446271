//! What the surroundings of a queue pair remember from visit to visit.
//!
//! Under the lock of the queue pair. Touches the flow control of the engine.

use super::failure::Failed;
use super::history::History;
use super::watch::Watch;
use super::weak::Weak;
use crate::cq::Cq;
use crate::unpolled::Unpolled;
use roxe_engine::engine::Engine;
use roxe_engine::flow_control::{Flow, Key, Pool, STALL, STREAM_STALL};
use roxe_engine::queue_pair::Met;
use roxe_net::probe::Probe;
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use std::sync::Arc;
use std::time::Duration;

/// What the surroundings of a queue pair remember from visit to visit: where it sends, and what it
/// has completed.
#[derive(Debug, Default)]
pub(super) struct QpHostState {
    /// The window used last.
    pub(super) flow: Option<Arc<Flow>>,
    /// The window it waits for room in.
    pub(super) waits_for: Option<Key>,
    /// When to stop waiting for credits, or for what others have under way.
    pub(super) stalls_at: Option<Instant>,
    /// It has waited, and it is its turn.
    pub(super) has_turn: bool,
    /// Completions of sends that nobody has polled.
    pub(super) unpolled: Unpolled,
    /// What happened to it last.
    pub(super) history: History,
    /// What failed first, while nobody has said why.
    pub(super) failed: Option<Box<Failed>>,
    /// True if a failure was explained since the last reset.
    pub(super) is_explained: bool,
    /// True if the program moved the queue pair to ERR.
    pub(super) ended_by_program: bool,
    /// The network was asked about the peer by it, when an acknowledgement was overdue.
    pub(super) probe: Option<Box<Probe>>,
    /// For the checker.
    pub(super) watch: Watch,
    /// Losses and failures.
    pub(super) met: Met,
    /// Of the weakest legal card.
    pub(super) weak: Option<Box<Weak>>,
}

impl QpHostState {
    /// Opens the window if credits seem to be lost, or nothing comes back.
    pub(super) fn on_timer(&mut self, engine: &Engine, service: Service, now: Instant) {
        if self.stalls_at.is_none_or(|at| at > now) {
            return;
        }
        let pool = pool(service);
        // It keeps its place among those who wait.
        self.stalls_at = self.waits_for.map(|_| now.after(stall(pool)));
        if let Some(flow) = &self.flow {
            match pool {
                Pool::Stream => flow.open_stream_if_stalled(now),
                Pool::Datagrams if flow.open_if_stalled(now) => engine.scheduler.note_unanswered(now),
                Pool::Datagrams => {}
            }
            engine.flows().wake(flow);
        }
    }

    /// Places of a send queue that are free when its state machine has `room`. One whose completion
    /// still lies in `cq` is taken: a program that posts until the queue is full never overruns its
    /// completion queue.
    // clause: SEND-PLACE
    pub(super) fn free_sends(&mut self, room: u32, cq: &Cq) -> u32 {
        if room <= self.unpolled.len() {
            self.unpolled.forget(cq.polled());
        }
        room.saturating_sub(self.unpolled.len())
    }

    /// The queue pair was reset.
    pub(super) fn reset(&mut self) {
        self.unpolled.clear();
        self.failed = None;
        self.probe = None;
        (self.is_explained, self.ended_by_program) = (false, false);
        self.history.reset();
        self.watch = Watch::default();
        self.weak.iter_mut().for_each(|weak| weak.slots.clear());
    }

    /// The window towards `key`.
    #[inline]
    pub(super) fn flow(&mut self, key: Key, engine: &Engine, now: Instant) -> &Arc<Flow> {
        if self.flow.as_ref().is_some_and(|flow| flow.key() != key) {
            self.flow = None;
        }
        self.flow.get_or_insert_with(|| engine.flows().get(key, now, || engine.look_at(key)))
    }
}

/// Which window the packets of a service need.
pub(super) const fn pool(service: Service) -> Pool {
    if service.is_reliable() { Pool::Stream } else { Pool::Datagrams }
}

/// How long to wait for room without a sign of life.
pub(super) const fn stall(pool: Pool) -> Duration {
    match pool {
        Pool::Stream => STREAM_STALL,
        Pool::Datagrams => STALL,
    }
}
