//! Frames of raw packets on their way in: from the raw link through the flows to the queue pairs.
//!
//! There is a receiver as long as there is a flow; without one nothing of this costs anything. A
//! frame that no flow wants is dropped here: it was a copy, the network stack of the host has the
//! frame.
//!
//! Belongs to the receive side of the engine and is changed under its lock.

use crate::engine::Engine;
use crate::frames::{BUDGET, FrameSide, Target, choose, reach_of};
use crate::queue_pair::QueuePair;
use crate::rx_state::RxState;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::qp::FrameNote;
use roxe_transport::steering::{Rule, RuleId};
use roxe_transport::time::Instant;
use roxe_wire::frame::{FrameKey, checksum};
use std::sync::Arc;
impl Engine {
    /// From now on frames go by `rule`, too. ENOMEM beyond the limit of the device; errors of the
    /// raw link.
    pub fn add_rule(&self, rule: Rule<Target>) -> Result<RuleId, Error> {
        let mut rx = self.rx.lock();
        let slot = &mut rx.state.frames;
        let side = match slot {
            Some(side) => side,
            None => slot.insert(FrameSide::open(&self.adapter, &*self.scheduler.poller()?)?),
        };
        if side.rules.len() >= limits::MAX_FLOWS as usize {
            return Err(Error::new(libc::ENOMEM, "no more flows; destroy one first"));
        }
        let reached = side.receiver.set_reach(reach_of(&rule), true);
        if let Err(cause) = reached {
            if side.rules.is_empty() {
                *slot = None;
            }
            return Err(Error::os("the interface does not take in the frames of the flow", &cause));
        }
        Ok(side.rules.insert(rule))
    }

    /// Ends what [`Engine::add_rule`] began; the last rule to go closes the link.
    pub fn remove_rule(&self, id: RuleId) {
        let mut rx = self.rx.lock();
        let slot = &mut rx.state.frames;
        let Some(side) = slot else { return };
        let rule = side.rules.remove(id);
        if let Some(rule) = &rule {
            // It was wanted once for this rule; there is nothing to do about a failure.
            let _ = side.receiver.set_reach(reach_of(rule), false);
        }
        if side.rules.is_empty() {
            *slot = None;
        }
        // The rule may hold the last reference to a queue pair: that one goes without the lock.
        drop(rx);
    }

    /// Receives from the raw link. Whether there was anything.
    pub(crate) fn drain_frames(&self, state: &mut RxState, now: Instant) -> bool {
        let Some(mut side) = state.frames.take() else { return false };
        let mut found = false;
        for _ in 0..BUDGET {
            let Ok(is_full) = side.receiver.recv() else {
                // The interface went down, for example; it is told once.
                self.counters().receive_errors.add(1);
                break;
            };
            found |= self.hand_out_frames(&mut side, state, now);
            if !is_full {
                break;
            }
        }
        state.frames = Some(side);
        found
    }

    /// Gives the frames of one receive to their queue pairs.
    fn hand_out_frames(&self, side: &mut FrameSide, state: &mut RxState, now: Instant) -> bool {
        let FrameSide { receiver, rules, chosen } = side;
        let mut count = 0;
        for frame in receiver.frames() {
            count += 1;
            let Some(key) = FrameKey::of(frame) else { continue };
            choose(rules, chosen, &key, frame.len());
            if !chosen.is_empty() {
                deliver(frame, chosen, state, now);
            }
        }
        self.counters().received_frames.add(count);
        self.counters().oversized_frames.add(receiver.take_oversized());
        count > 0
    }
}

/// Gives one frame to those in `chosen`, who are taken out.
fn deliver(frame: &[u8], chosen: &mut Vec<(Arc<dyn QueuePair>, u32)>, state: &mut RxState, now: Instant) {
    let ip_csum_ok = checksum::is_verified(frame);
    for (qp, flow_tag) in chosen.drain(..) {
        let report = qp.receive_frame(frame, FrameNote { flow_tag, ip_csum_ok }, now);
        state.touch(&qp, report);
    }
}
