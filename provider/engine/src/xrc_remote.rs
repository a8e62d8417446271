//! Errands between processes that share an XRC domain, on their way out and in.
//!
//! Queue pairs post letters under their locks; whoever holds the receive lock sends them through the mailboxes. Bounded: a
//! letter that finds no room is lost, and whoever waits for the answer posts it again.

use crate::engine::Engine;
use crate::forward_queue::Fate;
use crate::queue_pair::VisitOutcome;
use crate::rx::RxState;
use roxe_base::lock::rank;
use roxe_base::queue::Queue;
use roxe_net::forward::{Errand, ErrandId, Frame};
use roxe_net::service::Mailbox;
use roxe_net::slot::Slot;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;

/// Letters that wait to be sent.
const MAX_LETTERS: usize = 1024;

/// A frame for another process.
#[derive(Clone, Debug)]
pub struct Letter {
    /// Whose mailbox.
    pub to: Slot,
    /// What it is.
    pub frame: Frame,
    /// What follows.
    pub body: Vec<u8>,
}

/// What waits.
pub(crate) type Letters = Queue<rank::Letters, Letter>;

impl Engine {
    /// Leaves a letter for [`Engine::send_letters`].
    pub fn post(&self, letter: Letter) {
        self.letters.change(|letters| {
            if letters.len() < MAX_LETTERS {
                letters.push_back(letter);
            } else {
                self.counters().forward_errors.add(1);
            }
        });
    }

    /// Whether letters wait.
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Sends the letters. A process that is gone has no queues any more.
    pub(crate) fn send_letters(&self, state: &mut RxState, now: Instant) {
        while let Some(first) = state.slots.first() {
            let Some(Letter { to, frame, body }) = self.letters.pop() else { return };
            let fate = state.strays.send(first, Mailbox::Slot(to), &frame, &body);
            if let (Fate::Unowned, Frame::Errand(Errand { id, .. })) = (fate, frame)
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
    pub(crate) fn take_result(&self, state: &mut RxState, result: (ErrandId, Outcome, &[u8]), now: Instant) {
        if let Some(qp) = self.table.get(result.0.target) {
            let report = qp.take_result(result, now);
            state.touch(qp, report);
        }
    }
}
