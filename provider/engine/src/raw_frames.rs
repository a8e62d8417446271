//! Receiving frames: from the raw link through the flow rules to the queue pairs.
//!
//! The link is open while there are rules. A frame that matches none is dropped: it was a copy, and
//! the network stack of the host has the original. Guarded by the receive lock.

use crate::engine::Engine;
use crate::frames::{BUDGET, FrameSide, Target, choose, filter_of};
use crate::rx_state::RxState;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::qp::FrameNote;
use roxe_transport::steering::{Rule, RuleId};
use roxe_transport::time::Instant;
use roxe_wire::frame::{FrameKey, checksum};
impl Engine {
    /// Adds a flow rule. Fails with ENOMEM beyond the limit of the device; also the errors of the
    /// raw link.
    pub fn add_rule(&self, rule: Rule<Target>) -> Result<RuleId, Error> {
        let mut rx = self.rx.lock();
        let slot = &mut rx.state.frames;
        let side = match slot {
            Some(side) => side,
            None => slot.insert(FrameSide::open(&self.adapter, &*self.scheduler.poller()?)?),
        };
        if side.rules.len() >= limits::MAX_FLOWS as usize {
            return Err(Error::new(libc::ENOMEM, "the device has its maximum number of flows; destroy one first"));
        }
        let filtered = side.receiver.set_filter(filter_of(&rule), true);
        if let Err(cause) = filtered {
            if side.rules.is_empty() {
                *slot = None;
            }
            return Err(Error::os("the interface cannot receive the frames of the flow", &cause));
        }
        Ok(side.rules.insert(rule))
    }

    /// Removes a flow rule; the last one closes the link.
    pub fn remove_rule(&self, id: RuleId) {
        let mut rx = self.rx.lock();
        let slot = &mut rx.state.frames;
        let Some(side) = slot else { return };
        let rule = side.rules.remove(id);
        if let Some(rule) = &rule {
            // Nothing can be done about a failure.
            let _ = side.receiver.set_filter(filter_of(rule), false);
        }
        if side.rules.is_empty() {
            *slot = None;
        }
        // The rule may hold the last reference to a queue pair, which must be dropped without the
        // lock.
        drop(rx);
    }

    /// Receives from the raw link. Returns true if there were frames.
    pub(crate) fn drain_frames(&self, state: &mut RxState, now: Instant) -> bool {
        let Some(mut side) = state.frames.take() else { return false };
        let mut found = false;
        for _ in 0..BUDGET {
            let Ok(is_full) = side.receiver.recv() else {
                // Reported once, for example when the interface goes down.
                self.counters().receive_errors.add(1);
                break;
            };
            found |= self.deliver_frames(&mut side, state, now);
            if !is_full {
                break;
            }
        }
        state.frames = Some(side);
        found
    }

    fn deliver_frames(&self, side: &mut FrameSide, state: &mut RxState, now: Instant) -> bool {
        let FrameSide { receiver, rules, chosen } = side;
        let mut count = 0;
        for frame in receiver.frames() {
            count += 1;
            let Some(key) = FrameKey::of(frame) else { continue };
            choose(rules, chosen, &key, frame.len());
            if chosen.is_empty() {
                continue;
            }
            let ip_csum_ok = checksum::is_verified(frame);
            for (qp, flow_tag) in chosen.drain(..) {
                let outcome = qp.receive_frame(frame, FrameNote { flow_tag, ip_csum_ok }, now);
                state.touch(&qp, outcome);
            }
        }
        self.counters().received_frames.add(count);
        self.counters().oversized_frames.add(receiver.take_oversized());
        count > 0
    }
}
