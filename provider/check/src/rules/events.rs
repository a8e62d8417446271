//! Events that a program reads without acknowledging them, and events that it does not read: while
//! its thread sleeps, or although they report a failure.

use crate::event::{Event, Object};
use crate::id_map::{IdMap, IdSet};
use crate::program::{Observer, Program, describe};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::qp::{AttrMask, QpState};
use roxe_transport::wr::WcStatus;
use std::fmt::Debug;

/// `events-unacked`, `acked-too-many`.
#[derive(Debug)]
pub(super) struct Events;

impl Observer for Events {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::WaitsForAcks { object, kind, unacked } => {
                let whose = whose(object, program);
                let sentence = format!(
                    "A call that destroys an object waits and will not return: {unacked} {kind}{whose} were read and \
                     never acknowledged."
                );
                let advice = "Acknowledge each event that was read: ibv_ack_cq_events (any number at a time), \
                              ibv_ack_async_event or rdma_ack_cm_event, before the object is destroyed.";
                reports.push(Report::new(Rule::EventsUnacked, sentence).at("destroyed at", stack).advice(advice));
            }
            Event::AckedTooMany { object, kind, delivered, acked } => {
                let whose = whose(object, program);
                let sentence =
                    format!("{acked} {kind}{whose} were acknowledged, but the program had read only {delivered}.");
                let advice = "Acknowledge as many events as ibv_get_cq_event or ibv_get_async_event returned. On other \
                              implementations the count stays wrong, and destroying the object never returns.";
                reports.push(Report::new(Rule::AckedTooMany, sentence).at("acknowledged at", stack).advice(advice));
            }
            _ => {}
        }
    }
}

/// Returns the source of the events in words. The object may be destroyed already.
fn whose(object: Option<ObjectId>, program: &Program) -> String {
    let Some(id) = object else { return String::new() };
    let alive = program.live_object(id).map(|known| &known.object);
    let object = alive.or_else(|| program.destroyed().find(|gone| gone.id == id).map(|gone| &gone.object));
    object.map_or_else(String::new, |object| format!(" of the {}", describe(object)))
}

/// `event-unread`, `async-unread`.
#[derive(Debug, Default)]
pub(super) struct UnreadEvents {
    /// The last arming call, by completion queue.
    armed: IdMap<ObjectId, Stack>,
    /// Queue pairs whose failure the program knows.
    failed: IdSet<ObjectId>,
}

impl Observer for UnreadEvents {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Armed { cq, .. } => drop(self.armed.insert(cq, stack.clone())),
            Event::Polled { cq, cqe } if cqe.status != WcStatus::Success => {
                self.failed.extend(program.qp_of(cq, cqe.qpn));
            }
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) => {
                match attr.state {
                    QpState::Err => self.failed.insert(qp),
                    _ => self.failed.remove(&qp),
                };
            }
            Event::EventsUnread { channel, source, count } => {
                reports.extend(self.unread(channel, source, count, program));
            }
            Event::AsyncEventUnread { source, kind } if !self.failed.contains(&source) => {
                reports.push(async_unread(source, kind, program));
            }
            Event::Destroyed(id) => {
                self.armed.remove(&id);
                self.failed.remove(&id);
            }
            _ => {}
        }
    }
}

impl UnreadEvents {
    fn unread(&self, channel: ObjectId, source: ObjectId, count: usize, program: &Program) -> Option<Report> {
        let known = program.live_object(channel)?;
        let is_async = matches!(known.object, Object::Context);
        let (place, call) = if is_async {
            ("async_fd of a device context", "ibv_get_async_event")
        } else {
            ("descriptor of a completion channel", "ibv_get_cq_event")
        };
        let what = if count == 1 { "an event has".to_owned() } else { format!("{count} events have") };
        let sentence = format!(
            "A thread sleeps in epoll_wait although {what} been unread for over a second: the {place} is in its set \
             with EPOLLET, and the thread did not read all events when the descriptor was last reported."
        );
        let report = Report::new(Rule::EventUnread, sentence);
        let report = if is_async { report } else { report.labelled("oldest of", program.name(source)) };
        let label = if is_async { "opened at" } else { "channel made" };
        Some(report.at("armed at", self.armed.get(&source)).at(label, &known.created).advice(format!(
            "With EPOLLET, make the descriptor non-blocking and call {call} until it fails with EAGAIN, or do not set \
             EPOLLET: each call returns one event, and several may be pending."
        )))
    }
}

fn async_unread(source: ObjectId, kind: &dyn Debug, program: &Program) -> Report {
    let known = program.live_object(source);
    let what = known.map_or_else(|| "device".to_owned(), |_| program.name(source));
    let sentence = format!("The {what} has failed ({kind:?}), and its asynchronous event was not read for a second.");
    let report = Report::new(Rule::AsyncUnread, sentence).at("created at", known.map(|known| &known.created));
    report.advice(
        "Read the events of each device context in a thread of its own, or from its async_fd in an event loop: \
         ibv_get_async_event, then ibv_ack_async_event. Queues can fail without an error completion.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Card;
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::Cqe;

    #[test]
    fn missing_and_excess_acknowledgements_are_reported() {
        let mut card = Card::new();
        let (object, kind) = (Some(card.cq), "completion events");
        assert_eq!(card.emit(Event::AckedTooMany { object, kind, delivered: 1, acked: 2 }), [Rule::AckedTooMany]);
        assert_eq!(card.emit(Event::Destroyed(card.cq)), []);
        assert_eq!(card.emit(Event::WaitsForAcks { object, kind, unacked: 1 }), [Rule::EventsUnacked]);
    }

    #[test]
    fn unread_event_of_a_sleeping_thread_is_reported() {
        let mut card = Card::new();
        let (context, channel, cq) = (card.context, ObjectId::next(), card.cq);
        card.emit(Event::Created(channel, Object::Channel { context }));
        card.emit(Event::Armed { cq, any: true, missed: 0 });
        for channel in [channel, context] {
            assert_eq!(card.emit(Event::EventsUnread { channel, source: cq, count: 1 }), [Rule::EventUnread]);
        }
        card.emit(Event::Destroyed(channel));
        assert_eq!(card.emit(Event::EventsUnread { channel, source: cq, count: 1 }), [], "the channel is destroyed");
    }

    #[test]
    fn unread_qp_error_is_reported_unless_the_program_knows_of_it() {
        let mut card = Card::new();
        let [unknown, polled, moved] = [(); 3].map(|()| card.qp());
        let qpn = roxe_wire::Qpn::new(2);
        let (cq, cqe) = (card.cq, Cqe { status: WcStatus::WrFlushErr, qpn, ..Cqe::default() });
        card.emit(Event::Polled { cq, cqe: &cqe });
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        card.emit(Event::Modified { qp: moved, attr: &attr, mask: AttrMask::STATE });
        for (source, expected) in [(unknown, &[Rule::AsyncUnread][..]), (polled, &[]), (moved, &[])] {
            assert_eq!(card.emit(Event::AsyncEventUnread { source, kind: &"QpAccessErr" }), expected);
        }
    }

    #[test]
    fn unread_device_event_is_reported_without_an_object() {
        let mut card = Card::new();
        let event = Event::AsyncEventUnread { source: ObjectId::next(), kind: &"DeviceFatal" };
        assert_eq!(card.emit(event), [Rule::AsyncUnread]);
    }
}
