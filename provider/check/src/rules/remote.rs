//! Memory of peers: operations on the same bytes that nothing orders.
//!
//! Both have to be posted by this process. One is under way while its completion was not written,
//! so that only requests that report one count.

use super::observer::Observer;
use super::remote_place::Place;
use crate::event::Event;
use crate::id_map::IdSet;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::wr::SendFlags;

/// Requests that a new one is compared with.
const COMPARED: usize = 512;

/// `remote-overlap`.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// Queue pairs with a report; one is enough, and looking costs time.
    reported: IdSet<ObjectId>,
    /// Queue pairs that have posted a READ or an atomic.
    reads: IdSet<ObjectId>,
}

impl Observer for Remote {
    fn look(&mut self, event: &Event<'_>, _: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::PostedSend { qp, request } => {
                let Some(work) = world.outstanding(Side::Send, qp).next_back() else { return };
                let Some(place) = Place::of(work).filter(|_| !self.reported.contains(&qp)) else { return };
                let is_fenced = request.flags.contains(SendFlags::FENCE);
                let own = if is_fenced || !self.reads.contains(&qp) { None } else { before(qp, &place, world) };
                let other = own.map(|other| (qp, other)).or_else(|| beside(qp, &place, world));
                if let Some((queue, other)) = other {
                    self.reported.insert(qp);
                    reports.push(report((qp, work), (queue, other), &place, world));
                }
                if place.answers() {
                    self.reads.insert(qp);
                }
            }
            Event::Destroyed(id) => {
                self.reported.remove(&id);
                self.reads.remove(&id);
            }
            _ => {}
        }
    }
}

/// Whether it is under way for sure.
const fn is_open(work: &Work) -> bool {
    !work.completed && work.signaled
}

/// A READ or an atomic in front of the last request of a queue pair that may be executed after it.
fn before<'w>(qp: ObjectId, place: &Place, world: &'w World) -> Option<&'w Work> {
    // READs and atomics are executed in their order.
    let overtakes = |earlier: &Place| earlier.answers() && !place.answers();
    let earlier = world.outstanding(Side::Send, qp).rev().skip(1).take(COMPARED).filter(|work| is_open(work));
    let mut earlier = earlier.filter_map(|work| Some((work, Place::of(work)?)));
    earlier.find(|(_, at)| overtakes(at) && place.conflicts(at)).map(|(work, _)| work)
}

/// A request of another queue pair.
fn beside<'w>(qp: ObjectId, place: &Place, world: &'w World) -> Option<(ObjectId, &'w Work)> {
    let others = world.sends().filter(|(queue, _)| *queue != qp);
    let open = others.flat_map(|(queue, works)| works.iter().map(move |work| (queue, work)));
    let mut open = open.take(COMPARED).filter(|(_, work)| is_open(work));
    open.find(|(_, work)| Place::of(work).is_some_and(|at| place.conflicts(&at)))
}

fn report((qp, work): (ObjectId, &Work), (queue, other): (ObjectId, &Work), place: &Place, world: &World) -> Report {
    let (whose, why) = if queue == qp {
        ("of the same queue pair", "without IBV_SEND_FENCE it may be executed first")
    } else {
        ("of another queue pair", "nothing orders the two")
    };
    let (operation, earlier) = (work.operation(), other.operation());
    let sentence = format!(
        "The {operation} of {} bytes at {:#x} (rkey {:#x}) was posted while the {earlier} {whose} on some of these \
         bytes is under way, and one of them writes: {why}.",
        place.end - place.begin,
        place.begin,
        place.key
    );
    Report::new(Rule::RemoteOverlap, sentence)
        .fact("queue pair", world.name(qp))
        .fact("request", format!("{operation}, wr_id {:#x}", work.wr_id))
        .fact("other queue", world.name(queue))
        .fact("other request", format!("{earlier}, wr_id {:#x}", other.wr_id))
        .at("posted at", &work.posted)
        .at("other posted", &other.posted)
        .advice(
            "Poll the completion of the first before the second is posted. In one queue pair IBV_SEND_FENCE does it for \
             READs and atomics.",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::wr::{SendData, SendOp, SendRequest, Sge};
    use roxe_wire::{LKey, RKey};

    /// Posts 64 bytes, or an atomic of 8, with this remote place.
    fn post(card: &mut Card, qp: ObjectId, kind: &str, remote_addr: u64, flags: SendFlags) -> Vec<Rule> {
        let rkey = RKey(5);
        let (op, length) = match kind {
            "write" => (SendOp::Write { remote_addr, rkey }, 64),
            "read" => (SendOp::Read { remote_addr, rkey }, 64),
            _ => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
        };
        let sges = [Sge { addr: 4096 * u64::from(rkey.0), length, lkey: LKey(1) }];
        let request = write(1, flags);
        let rules = card.post(qp, &SendRequest { op, data: SendData::Sges(&sges), ..request });
        rules.into_iter().filter(|rule| *rule == Rule::RemoteOverlap).collect()
    }

    #[test]
    fn two_queue_pairs_on_the_same_bytes_are_reported_if_one_writes() {
        let flags = SendFlags::SIGNALED;
        for (first, second, at, expected) in [
            ("write", "write", 63, &[Rule::RemoteOverlap][..]),
            ("write", "read", 0, &[Rule::RemoteOverlap]),
            ("read", "write", 0, &[Rule::RemoteOverlap]),
            ("atomic", "write", 0, &[Rule::RemoteOverlap]),
            ("write", "write", 64, &[]),
            ("read", "read", 0, &[]),
            ("atomic", "atomic", 0, &[]),
        ] {
            let mut card = Card::new();
            let [a, b] = [card.qp(), card.qp()];
            assert_eq!(post(&mut card, a, first, 4096, flags), []);
            assert_eq!(post(&mut card, b, second, 4096 + at, flags), expected, "{first} {second} {at}");
        }
    }

    #[test]
    fn what_has_completed_or_reports_no_completion_is_in_nobodys_way() {
        let mut card = Card::new();
        let [a, b] = [card.qp(), card.qp()];
        assert_eq!(post(&mut card, a, "write", 4096, SendFlags::empty()), []);
        assert_eq!(post(&mut card, b, "write", 4096, SendFlags::SIGNALED), []);
        card.complete(b, 1);
        assert_eq!(post(&mut card, a, "write", 4096, SendFlags::SIGNALED), []);
    }

    #[test]
    fn a_write_may_overtake_a_read_of_its_queue_pair_unless_it_is_fenced() {
        let signaled = SendFlags::SIGNALED;
        for (first, second, flags, expected) in [
            ("read", "write", signaled, &[Rule::RemoteOverlap][..]),
            ("atomic", "write", signaled, &[Rule::RemoteOverlap]),
            ("read", "write", signaled | SendFlags::FENCE, &[]),
            ("write", "read", signaled, &[]),
            ("write", "write", signaled, &[]),
            ("atomic", "read", signaled, &[]),
        ] {
            let mut card = Card::new();
            let qp = card.qp();
            assert_eq!(post(&mut card, qp, first, 4096, signaled), []);
            assert_eq!(post(&mut card, qp, second, 4096, flags), expected, "{first} {second}");
        }
    }
}
