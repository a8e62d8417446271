//! XRC requests between processes that share an XRC domain, on their way out and in.
//!
//! Queue pairs post XRC messages under their locks; whoever holds the receive lock sends them through the mailboxes. Bounded: a
//! XRC message that finds no room is lost, and whoever waits for the answer posts it again.

use crate::engine::Engine;
use crate::forward_queue::Fate;
use crate::queue_pair::VisitOutcome;
use crate::rx::RxState;
use roxe_base::lock::rank;
use roxe_base::queue::Queue;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId};
use roxe_net::service::Mailbox;
use roxe_net::slot::Slot;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;

/// XRC messages that wait to be sent.
const MAX_XRC_MESSAGES: usize = 1024;

/// A frame for another process.
#[derive(Clone, Debug)]
pub struct XrcMessage {
    /// Whose mailbox.
    pub to: Slot,
    /// What it is.
    pub frame: Frame,
    /// What follows.
    pub body: Vec<u8>,
}

/// What waits.
pub(crate) type XrcMessages = Queue<rank::XrcMessages, XrcMessage>;

impl Engine {
    /// Leaves a XRC message for [`Engine::send_xrc_messages`].
    pub fn post(&self, message: XrcMessage) {
        self.xrc_messages.change(|xrc_messages| {
            if xrc_messages.len() < MAX_XRC_MESSAGES {
                xrc_messages.push_back(message);
            } else {
                self.counters().forward_errors.add(1);
            }
        });
    }

    /// Whether XRC messages wait.
    pub fn has_xrc_messages(&self) -> bool {
        !self.xrc_messages.is_empty()
    }

    /// Sends the XRC messages. A process that is gone has no queues any more.
    pub(crate) fn send_xrc_messages(&self, state: &mut RxState, now: Instant) {
        while let Some(first) = state.slots.first() {
            let Some(XrcMessage { to, frame, body }) = self.xrc_messages.pop() else { return };
            let fate = state.forward_queue.send(first, Mailbox::Slot(to), &frame, &body);
            if let (Fate::Unowned, Frame::XrcRequest(XrcRequest { id, .. })) = (fate, frame)
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
            state.touch(qp, report);
        }
    }
}
