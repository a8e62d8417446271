//! What XRC targets and queues of different processes tell each other: sent by whoever holds the
//! receive side, and taken in.

use crate::engine::Engine;
use crate::forward_queue::ForwardOutcome;
use crate::queue_pair::VisitOutcome;
use crate::rx_state::RxState;
use crate::xrc_messages::XrcMessage;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId};
use roxe_net::service::Mailbox;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;

impl Engine {
    /// Sends the XRC messages. A process that is gone has no queues any more.
    pub(crate) fn send_xrc_messages(&self, state: &mut RxState, now: Instant) {
        while let Some(first) = state.slots.first() {
            let Some(XrcMessage { to, frame, body }) = self.xrc_messages.pop() else { return };
            let fate = state.forward_queue.send(first, Mailbox::Slot(to), &frame, &body);
            if let (ForwardOutcome::Unowned, Frame::XrcRequest(XrcRequest { id, .. })) = (fate, frame)
                && let Some(qp) = self.table.get(id.target)
            {
                let report = qp.take_result((id, Outcome::NO_QUEUE, &[]), now);
                if report.contains(VisitOutcome::HAS_WORK) {
                    qp.serve(now);
                }
                qp.announce(report);
            }
        }
    }

    /// A result came for a target of ours.
    pub(crate) fn take_result(&self, state: &mut RxState, result: (XrcRequestId, Outcome, &[u8]), now: Instant) {
        if let Some(qp) = self.table.get(result.0.target) {
            let report = qp.take_result(result, now);
            state.touch(&qp, report);
        }
    }
}
