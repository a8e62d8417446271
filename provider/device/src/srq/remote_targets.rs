//! Requests that targets of other processes have for a shared queue of this one.
//!
//! For each such target there stands a remote target here, which executes its requests one by one, each exactly once: the answer
//! to the last one is kept, for it may be asked for again. Remote targets are bounded in number; one that has not been asked for
//! long, or whose process is gone, makes room. Lock: one for all remote targets of a queue, outside of those of the queue pairs.

use super::{Kind, Srq};
use crate::host::MAX_FETCH;
use crate::qp::QpCore;
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use roxe_memory::guard::own_cells;
use roxe_net::forward::XrcRequestId;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Packet, PathMtu, Qpn, RKey};
use std::collections::HashMap;
use std::time::Duration;

/// Targets of other processes that one queue remembers.
const MAX_REMOTE_TARGETS: usize = 1024;
/// A target that has not asked for so long has its answer; its XRC requests are repeated much more often.
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

/// All of one queue.
#[derive(Debug, Default)]
pub(super) struct RemoteTargets(Mutex<rank::XrcRemoteTargets, HashMap<u32, RemoteTarget>>);

impl RemoteTargets {
    /// The queue is destroyed: receives in use go with it.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Srq {
    fn remote_targets(&self) -> Option<&Mutex<rank::XrcRemoteTargets, HashMap<u32, RemoteTarget>>> {
        if let Kind::Xrc(xrc) = &self.kind { Some(&xrc.remote_targets.0) } else { None }
    }

    /// Executes a request of a target of another process, or says what came of it before. `None`: it is an old one.
    // clause: XRC-PROCESSES
    pub(crate) fn execute(
        &self,
        id: XrcRequestId,
        mtu: PathMtu,
        (net, packet): (&NetHeader, &Packet<'_>),
        now: Instant,
    ) -> Option<Outcome> {
        let mut remote_targets = self.remote_targets()?.lock();
        if let Some(old) = remote_targets.get(&id.target.get()).filter(|remote_target| remote_target.epoch != id.epoch)
        {
            old.core.flush_remote_target(now);
            remote_targets.remove(&id.target.get());
        }
        if let Some(remote_target) = remote_targets.get_mut(&id.target.get()) {
            return match id.seq.cmp(&remote_target.seq) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some(remote_target.outcome),
                std::cmp::Ordering::Greater => Some(remote_target.execute(id, net, packet, now)),
            };
        }
        make_room(&mut remote_targets, self.pd.context().engine(), now);
        let Some(mut remote_target) =
            self.new_remote_target(id, mtu, net, now).filter(|_| remote_targets.len() < MAX_REMOTE_TARGETS)
        else {
            return Some(Outcome::NO_QUEUE);
        };
        let outcome = remote_target.execute(id, net, packet, now);
        remote_targets.insert(id.target.get(), remote_target);
        Some(outcome)
    }

    fn new_remote_target(&self, id: XrcRequestId, mtu: PathMtu, net: &NetHeader, now: Instant) -> Option<RemoteTarget> {
        let Kind::Xrc(xrc) = &self.kind else { return None };
        let core = xrc.xrcd.remote_target(id.target);
        let remote_target = RemoteTarget { core, epoch: id.epoch, seq: 0, outcome: Outcome::NO_QUEUE, used: now };
        remote_target.core.connect_remote_target(mtu, net, now).then_some(remote_target)
    }

    /// Reads memory that the queue gives peers access to: `len` bytes, of which more than a piece is never asked for.
    pub(crate) fn read_for_other(&self, rkey: RKey, va: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len.min(MAX_FETCH) as usize];
        self.pd.context().memory().hold().read_remote(self.pd.id(), rkey, va, own_cells(&mut bytes)).ok()?;
        Some(bytes)
    }

    /// A connection of a target of another process has ended.
    pub(crate) fn end_remote_target(&self, id: XrcRequestId, now: Instant) {
        let Some(remote_targets) = self.remote_targets() else { return };
        let mut remote_targets = remote_targets.lock();
        if let Some(remote_target) =
            remote_targets.get(&id.target.get()).filter(|remote_target| remote_target.epoch == id.epoch)
        {
            remote_target.core.flush_remote_target(now);
            remote_targets.remove(&id.target.get());
        }
    }
}

impl RemoteTarget {
    fn execute(&mut self, id: XrcRequestId, net: &NetHeader, packet: &Packet<'_>, now: Instant) -> Outcome {
        (self.seq, self.used) = (id.seq, now);
        self.outcome = self.core.execute_for_other(net, packet, now);
        self.outcome
    }
}

/// Sees off the remote targets whose process has ended in the middle of a message, so that the receives they use end; and those
/// that have not been asked for long, if there are too many.
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
