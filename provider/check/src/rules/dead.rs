//! Completions that outlive their queue pair. This card takes them away with it; others leave them
//! in the queue, and the program finds a number that nobody has any more.

use super::observer::Observer;
use crate::event::Event;
use crate::id_map::IdMap;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{World, side_of};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpState};

/// `completion-of-the-dead`.
#[derive(Debug, Default)]
pub(super) struct Dead {
    /// Completions that nobody polled, by queue pair: of sends, and of receives.
    unpolled: IdMap<ObjectId, [u64; 2]>,
    /// What destroyed queue pairs had in a completion queue.
    left: IdMap<ObjectId, Left>,
}

/// Completions in a queue whose queue pair is gone.
#[derive(Debug)]
struct Left {
    count: u64,
    /// The queue pair.
    name: String,
    created: Stack,
    destroyed: Stack,
}

impl Observer for Dead {
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::Completed { qp, side, .. } => self.unpolled.entry(qp).or_default()[side as usize] += 1,
            Event::Polled { cq, cqe } => {
                // On a card that leaves them there they come first.
                reports.extend(self.left.remove(&cq).map(|left| left.report(cq, world)));
                let unpolled = world.qp_of(cq, cqe.qpn).and_then(|qp| self.unpolled.get_mut(&qp));
                if let Some(unpolled) = unpolled {
                    let count = &mut unpolled[side_of(cqe) as usize];
                    *count = count.saturating_sub(1);
                }
            }
            // It takes its completions away on every card.
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.unpolled.remove(&qp);
            }
            Event::Destroyed(id) => {
                self.left.remove(&id);
                self.destroyed(id, stack, world);
            }
            _ => {}
        }
    }
}

impl Dead {
    fn destroyed(&mut self, qp: ObjectId, stack: &Stack, world: &World) -> Option<()> {
        let unpolled = self.unpolled.remove(&qp)?;
        let (pair, created) = (world.qp(qp)?, &world.object(qp)?.created);
        for (side, cq) in [(Side::Send, pair.send_cq), (Side::Recv, pair.recv_cq)] {
            let count = unpolled[side as usize];
            if count > 0 {
                let (name, created, destroyed) = (world.name(qp), created.clone(), stack.clone());
                self.left.entry(cq).or_insert(Left { count: 0, name, created, destroyed }).count += count;
            }
        }
        Some(())
    }
}

impl Left {
    fn report(self, cq: ObjectId, world: &World) -> Report {
        let Self { count, name, created, destroyed } = self;
        let what = if count == 1 { "completion" } else { "completions" };
        let sentence = format!(
            "{count} {what} of the {name} had not been polled when it was destroyed, and the program went on polling \
             their queue: some cards leave them there, with the number of a queue pair that is gone."
        );
        Report::new(Rule::CompletionOfTheDead, sentence)
            .fact("polled from", world.name(cq))
            .at("destroyed at", &destroyed)
            .at("created at", &created)
            .advice(
                "Poll all completions of a queue pair before it is destroyed: move it to IBV_QPS_ERR and poll until each \
                 request has completed. Or look up qp_num of each completion, and expect that it may be gone.",
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::SendFlags;

    /// Two queue pairs of one completion queue, with a completion of each.
    fn card() -> (Card, [ObjectId; 2]) {
        let mut card = Card::new();
        let pairs = [card.qp(), card.qp()];
        for qp in pairs {
            card.post(qp, &write(1, SendFlags::SIGNALED));
            card.complete(qp, 1);
        }
        (card, pairs)
    }

    #[test]
    fn who_polls_behind_a_completion_of_a_dead_queue_pair_is_reported_once() {
        let (mut card, [dead, alive]) = card();
        assert_eq!(card.tell(Event::Destroyed(dead)), []);
        assert_eq!(card.poll(alive, 1), [Rule::CompletionOfTheDead]);
        card.complete(alive, 2);
        assert_eq!(card.poll(alive, 2), []);
    }

    #[test]
    fn who_polls_first_resets_first_or_polls_no_more_is_not() {
        let (mut polled, [dead, alive]) = card();
        assert_eq!(polled.poll(dead, 1), []);
        polled.tell(Event::Destroyed(dead));
        assert_eq!(polled.poll(alive, 1), []);

        let (mut reset, [dead, alive]) = card();
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        reset.tell(Event::Modified { qp: dead, attr: &attr, mask: AttrMask::STATE });
        reset.tell(Event::Destroyed(dead));
        assert_eq!(reset.poll(alive, 1), []);

        let (mut ended, pairs) = card();
        for qp in pairs {
            assert_eq!(ended.tell(Event::Destroyed(qp)), []);
        }
        let cq = ended.cq;
        assert_eq!(ended.tell(Event::Destroyed(cq)), []);
    }
}
