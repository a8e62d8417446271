//! Requests that targets of other processes have for a shared queue of this one.
//!
//! For each such target there stands a remote target here, which executes its requests one by one,
//! each exactly once: the answer to the last one is kept, for it may be asked for again. Remote
//! targets are bounded in number; one that has not been asked for long, or whose process is gone,
//! makes room. Lock: one for all remote targets of a queue, outside of those of the queue pairs.

use crate::cq::Cq;
use crate::pd::Pd;
use crate::qp::QpCore;
use crate::srq::XrcOwner;
use crate::xrc_domain::XrcDomain;
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use roxe_net::forward::XrcRequestId;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Packet, PathMtu, Qpn};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Targets of other processes that one queue remembers.
const MAX_REMOTE_TARGETS: usize = 1024;
/// A target that has not asked for so long has its answer; its XRC requests are repeated much more
/// often.
const IDLE: Duration = Duration::from_secs(10);

/// A target of another process.
#[derive(Debug)]
struct RemoteTarget {
    core: QpCore,
    epoch: u64,
    /// Of the last request, and what came of it.
    seq: u64,
    outcome: Outcome,
    used: Instant,
}

/// The targets of other processes that one shared queue has executed requests for.
#[derive(Debug)]
pub(crate) struct RemoteTargets {
    /// What they have instead of a protection domain and queues of their own.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    domain: Arc<XrcDomain>,
    /// By the number of the target in its own process.
    targets: Mutex<rank::XrcRemoteTargets, HashMap<u32, RemoteTarget>>,
}

impl RemoteTargets {
    /// For a queue of `domain`, of which nothing was asked yet.
    pub(crate) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, domain: &Arc<XrcDomain>) -> Self {
        let (pd, cq, domain) = (Arc::clone(pd), Arc::clone(cq), Arc::clone(domain));
        Self { pd, cq, domain, targets: Mutex::default() }
    }

    fn connect(&self, id: XrcRequestId, mtu: PathMtu, net: &NetHeader, now: Instant) -> Option<RemoteTarget> {
        let core = QpCore::remote_target(&self.pd, &self.cq, &self.domain, id.target);
        let target = RemoteTarget { core, epoch: id.epoch, seq: 0, outcome: Outcome::NO_QUEUE, used: now };
        target.core.connect_remote_target(mtu, net, now).then_some(target)
    }
}

impl XrcOwner for RemoteTargets {
    // clause: XRC-PROCESSES
    fn execute(
        &self,
        id: XrcRequestId,
        mtu: PathMtu,
        (net, packet): (&NetHeader, &Packet<'_>),
        now: Instant,
    ) -> Option<Outcome> {
        let mut targets = self.targets.lock();
        if let Some(old) = targets.get(&id.target.get()).filter(|target| target.epoch != id.epoch) {
            old.core.flush_remote_target(now);
            targets.remove(&id.target.get());
        }
        if let Some(target) = targets.get_mut(&id.target.get()) {
            return match id.seq.cmp(&target.seq) {
                Ordering::Less => None,
                Ordering::Equal => Some(target.outcome),
                Ordering::Greater => Some(target.execute(id, net, packet, now)),
            };
        }
        make_room(&mut targets, self.pd.context().engine(), now);
        let Some(mut target) = self.connect(id, mtu, net, now).filter(|_| targets.len() < MAX_REMOTE_TARGETS) else {
            return Some(Outcome::NO_QUEUE);
        };
        let outcome = target.execute(id, net, packet, now);
        targets.insert(id.target.get(), target);
        Some(outcome)
    }

    fn end_remote_target(&self, id: XrcRequestId, now: Instant) {
        let mut targets = self.targets.lock();
        if let Some(target) = targets.get(&id.target.get()).filter(|target| target.epoch == id.epoch) {
            target.core.flush_remote_target(now);
            targets.remove(&id.target.get());
        }
    }

    /// Receives that are in use go with the queue.
    fn srq_destroyed(&self, number: u32) {
        self.domain.remove(number);
        self.targets.lock().clear();
    }
}

impl RemoteTarget {
    fn execute(&mut self, id: XrcRequestId, net: &NetHeader, packet: &Packet<'_>, now: Instant) -> Outcome {
        (self.seq, self.used) = (id.seq, now);
        self.outcome = self.core.execute_for_other(net, packet, now);
        self.outcome
    }
}

/// Ends the remote targets whose process has ended in the middle of a message, and with them the
/// receives that they use; and, if there are too many, removes those that have not been asked for
/// long.
fn make_room(remote_targets: &mut HashMap<u32, RemoteTarget>, engine: &Engine, now: Instant) {
    let is_full = remote_targets.len() >= MAX_REMOTE_TARGETS;
    remote_targets.retain(|&target, remote_target| {
        if !remote_target.core.is_in_message() {
            return !is_full || now.since(remote_target.used) < IDLE;
        }
        let stays = engine.has_owner(Qpn::new(target));
        if !stays {
            remote_target.core.flush_remote_target(now);
        }
        stays
    });
}

#[cfg(test)]
mod tests;
