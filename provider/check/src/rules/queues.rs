//! Send queues: who fills them and who never makes room; more inline data than they take; posting
//! where nothing is executed any more.

use super::observer::Observer;
use crate::event::Event;
use crate::id_map::IdMap;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, PostError};

/// `never-signaled`, `slots-without-completion`, `inline-over-grant`, `post-in-error`.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Where a send queue was full while signaled requests were in it; nothing was polled since.
    full: IdMap<ObjectId, Stack>,
}

impl Observer for Queues {
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::Modified { qp, mask, .. } if mask.contains(AttrMask::STATE) => {
                self.full.remove(&qp);
            }
            Event::Destroyed(id) => {
                reports.extend(self.full.remove(&id).and_then(|stack| unpolled(id, &stack, world)));
            }
            Event::PostRefused { queue, side: Side::Send, error: PostError::QueueFull, .. } => {
                if world.outstanding(Side::Send, queue).all(|work| !work.signaled) {
                    reports.extend(never_signaled(queue, stack, world));
                } else if self.full.insert(queue, stack.clone()).is_some() {
                    reports.extend(unpolled(queue, stack, world));
                }
            }
            Event::PostRefused { queue, error: PostError::InlineTooLong, inline, wr_id, .. } => {
                reports.extend(inline_over_grant(queue, inline, wr_id, stack, world));
            }
            Event::PostedSend { qp, .. } => reports.extend(posted(qp, stack, world)),
            // A program that polls when the queue is full does what it has to.
            Event::Polled { cq, .. } => self.full.retain(|qp, _| world.qp(*qp).is_some_and(|pair| pair.send_cq != cq)),
            _ => {}
        }
    }
}

/// A send was posted.
fn posted(qp: ObjectId, stack: &Stack, world: &World) -> Option<Report> {
    if world.is_in_error(qp) {
        let report = Report::new(Rule::PostInError, "A send was posted to a queue pair in the error state.");
        let report = report.fact("queue pair", world.name(qp)).at("posted at", stack);
        return Some(report.advice("Move the queue pair to RESET and connect it anew, or destroy it."));
    }
    // The card here frees a place as soon as it can; others wait for the completion.
    let count = world.depth(Side::Send, qp);
    if count <= world.qp(qp)?.caps.max_send_wr as usize {
        return None;
    }
    if world.outstanding(Side::Send, qp).all(|work| !work.signaled) {
        return never_signaled(qp, stack, world);
    }
    let sentence =
        format!("{count} requests are in the send queue since a completion was polled, more than it has places.");
    full(Rule::SlotsWithoutCompletion, sentence, POLL, world.outstanding(Side::Send, qp).next(), (qp, stack, world))
}

const SIGNAL: &str = "Post at least one request in max_send_wr with IBV_SEND_SIGNALED, and poll its completion.";
const POLL: &str = "Poll the completion queue before more than max_send_wr requests are posted.";

/// No completion can ever free a place.
fn never_signaled(qp: ObjectId, stack: &Stack, world: &World) -> Option<Report> {
    let count = world.depth(Side::Send, qp);
    let sentence = format!("All {count} places of the send queue hold requests without a completion.");
    full(Rule::NeverSignaled, sentence, SIGNAL, world.outstanding(Side::Send, qp).next(), (qp, stack, world))
}

/// The completions that would free places are there, and nobody takes them.
fn unpolled(qp: ObjectId, stack: &Stack, world: &World) -> Option<Report> {
    let completed = || world.outstanding(Side::Send, qp).filter(|work| work.completed);
    let count = completed().count();
    let sentence = format!("The send queue is full, and {count} completions that would free places lie unpolled.");
    full(Rule::SlotsWithoutCompletion, sentence, POLL, completed().next(), (qp, stack, world))
}

/// A send queue is full, of which `oldest` is the first to be told; no report without one.
fn full(
    rule: Rule,
    sentence: String,
    advice: &str,
    oldest: Option<&Work>,
    (qp, stack, world): (ObjectId, &Stack, &World),
) -> Option<Report> {
    let report = Report::new(rule, sentence).fact("queue pair", world.name(qp)).at("posted at", stack);
    Some(report.at("oldest request", &oldest?.posted).advice(advice))
}

/// The room for inline data is what was asked for, though this device has more.
fn inline_over_grant(qp: ObjectId, inline: usize, wr_id: u64, stack: &Stack, world: &World) -> Option<Report> {
    let granted = world.qp(qp)?.caps.max_inline_data;
    let sentence =
        format!("A request has {inline} bytes of inline data, but the queue pair was created for {granted}.");
    let report = Report::new(Rule::InlineOverGrant, sentence).fact("queue pair", world.name(qp));
    Some(
        report
            .fact("wr_id", format!("{wr_id:#x}"))
            .at("posted at", stack)
            .at("created at", &world.object(qp)?.created)
            .advice(format!(
                "Create the queue pair with cap.max_inline_data = {inline}, look at what ibv_create_qp leaves \
                 there, and post longer data without IBV_SEND_INLINE. Some cards give more than is asked for."
            )),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::wr::SendFlags;

    #[test]
    fn a_queue_full_of_silent_requests_is_stuck_for_ever() {
        let mut card = Card::new();
        let qp = card.qp();
        for wr_id in 0..2 {
            assert_eq!(card.post(qp, &write(wr_id, SendFlags::empty())), []);
        }
        assert_eq!(card.refuse(qp, PostError::QueueFull), [Rule::NeverSignaled]);
    }

    #[test]
    fn a_full_queue_is_no_mistake_if_its_completions_are_polled_next() {
        let mut card = Card::new();
        let qp = card.qp();
        card.post(qp, &write(1, SendFlags::SIGNALED));
        card.complete(qp, 1);
        assert_eq!(card.refuse(qp, PostError::QueueFull), []);
        assert_eq!(card.poll(qp, 1), []);
        card.post(qp, &write(2, SendFlags::SIGNALED));
        card.complete(qp, 2);
        assert_eq!(card.refuse(qp, PostError::QueueFull), []);
        assert_eq!(card.refuse(qp, PostError::QueueFull), [Rule::SlotsWithoutCompletion]);
    }

    #[test]
    fn inline_data_that_was_refused_is_reported_and_a_long_list_is_not() {
        let mut card = Card::new();
        let qp = card.qp();
        assert_eq!(card.refuse(qp, PostError::InlineTooLong), [Rule::InlineOverGrant]);
        assert_eq!(card.refuse(qp, PostError::TooManySges), []);
    }
}
