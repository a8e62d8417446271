//! Events that a program takes and has to acknowledge.

use super::observer::Observer;
use crate::event::Event;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{World, describe};
use roxe_base::uses::ObjectId;

/// `events-unacked`, `acked-too-many`.
#[derive(Debug)]
pub(super) struct Events;

impl Observer for Events {
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::WaitsForAcks { object, what, left } => {
                let whose = whose(object, world);
                let sentence = format!(
                    "A call that destroys an object waits and will not return: {left} {what}{whose} were taken and \
                     never acknowledged."
                );
                let advice = "Acknowledge each event that was taken: ibv_ack_cq_events (any number at a time), \
                              ibv_ack_async_event or rdma_ack_cm_event, before the object is destroyed.";
                reports.push(Report::new(Rule::EventsUnacked, sentence).at("destroyed at", stack).advice(advice));
            }
            Event::AckedTooMany { object, what, taken, acked } => {
                let whose = whose(object, world);
                let sentence =
                    format!("{acked} {what}{whose} were acknowledged, of which the program had taken only {taken}.");
                let advice = "Acknowledge as many events as ibv_get_cq_event or ibv_get_async_event gave. On other \
                              implementations the count is wrong from here on, and destroying the object never \
                              returns.";
                reports.push(Report::new(Rule::AckedTooMany, sentence).at("acknowledged at", stack).advice(advice));
            }
            _ => {}
        }
    }
}

/// What people call the object whose events they are. While it is destroyed it is gone already.
fn whose(object: Option<ObjectId>, world: &World) -> String {
    let Some(id) = object else { return String::new() };
    let alive = world.object(id).map(|known| &known.made);
    let made = alive.or_else(|| world.gone().find(|gone| gone.id == id).map(|gone| &gone.made));
    made.map_or_else(String::new, |made| format!(" of the {}", describe(made)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Card;

    #[test]
    fn waiting_for_acknowledgements_and_too_many_of_them_are_reported() {
        let mut card = Card::new();
        let (object, what) = (Some(card.cq), "completion events");
        assert_eq!(card.tell(Event::AckedTooMany { object, what, taken: 1, acked: 2 }), [Rule::AckedTooMany]);
        assert_eq!(card.tell(Event::Destroyed(card.cq)), []);
        assert_eq!(card.tell(Event::WaitsForAcks { object, what, left: 1 }), [Rule::EventsUnacked]);
    }
}
