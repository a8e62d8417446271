//! Words that peers change by atomics, and that the processor changes beside them.
//!
//! What an atomic finds is compared with what the one before left there. That it differs is no
//! mistake by itself: the program may set a counter back between two rounds. It is one if the
//! second was posted before the first was executed, as it was under way all the time. That is
//! known of requests that this process has posted.

use super::key_faults::remote;
use super::observer::Observer;
use crate::event::{Event, Made};
use crate::id_map::{IdMap, IdSet};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpState};
use std::collections::{BTreeMap, VecDeque};

/// Words that are remembered.
const WORDS: usize = 4096;

/// `atomic-mixed`.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    words: BTreeMap<u64, Word>,
    /// Atomics that were posted and not executed, by queue pair.
    posted: IdMap<ObjectId, VecDeque<Work>>,
    /// Words with a report.
    reported: IdSet<u64>,
}

/// What is known of a word.
#[derive(Clone, Copy, Debug)]
struct Word {
    /// What the last atomic left there.
    left: u64,
    /// Requests that had been posted by then.
    posted: u64,
}

impl Observer for Atomics {
    fn look(&mut self, event: &Event<'_>, _: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::PostedSend { qp, .. } => {
                let work = world.outstanding(Side::Send, qp).next_back();
                if let Some(work) = work.filter(|work| is_atomic(work)) {
                    self.posted.entry(qp).or_default().push_back(work.clone());
                }
            }
            Event::Atomic { qp, rkey, va, addr, found, left } => {
                let request = requester(qp, world).and_then(|requester| self.take(requester, (va, rkey.0)));
                if self.words.len() == WORDS {
                    self.words.clear();
                }
                let before = self.words.insert(addr, Word { left, posted: world.posted() });
                if let (Some(before), Some(request)) = (before, request)
                    && found != before.left
                    && request.serial <= before.posted
                    && self.reported.insert(addr)
                {
                    reports.push(report(&request, addr, (before.left, found), (qp, world)));
                }
            }
            Event::Written { addr, len } if !self.words.is_empty() => self.forget(addr, len),
            // Whichever were taken back, it is no longer known which is executed next.
            Event::TakenBack { qp, .. } => drop(self.posted.remove(&qp)),
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.posted.remove(&qp);
            }
            Event::Destroyed(id) => {
                self.posted.remove(&id);
                if let Some(Made::Mr(memory)) = world.object(id).map(|known| known.made) {
                    self.forget(memory.addr, memory.length);
                }
            }
            _ => {}
        }
    }
}

impl Atomics {
    /// The oldest atomic of this queue pair, which is the one that is executed.
    fn take(&mut self, requester: ObjectId, place: (u64, u32)) -> Option<Work> {
        let posted = self.posted.get_mut(&requester)?;
        let oldest = posted.pop_front()?;
        if oldest.op.as_ref().and_then(remote) != Some(place) {
            self.posted.remove(&requester);
            return None;
        }
        Some(oldest)
    }

    /// Somebody else may have changed these bytes.
    fn forget(&mut self, addr: u64, len: u64) {
        let range = addr.saturating_sub(7)..addr.saturating_add(len);
        let gone: Vec<u64> = self.words.range(range).map(|(at, _)| *at).collect();
        for at in gone {
            self.words.remove(&at);
            self.reported.remove(&at);
        }
    }
}

const fn is_atomic(work: &Work) -> bool {
    use roxe_transport::wr::SendOp::{CompareSwap, FetchAdd};
    matches!(work.op, Some(CompareSwap { .. } | FetchAdd { .. }))
}

/// The queue pair of this process that is connected to `qp`.
fn requester(qp: ObjectId, world: &World) -> Option<ObjectId> {
    let own = (world.qp(qp)?.qpn, world.attributes(qp)?.values.dest_qpn);
    let is_it = |id| world.qp(id).is_some_and(|pair| pair.qpn == own.1);
    let mut all = world.all_attributes();
    all.find(|(id, attributes)| attributes.values.dest_qpn == own.0 && is_it(*id)).map(|(id, _)| id)
}

fn report(request: &Work, addr: u64, (left, found): (u64, u64), (qp, world): (ObjectId, &World)) -> Report {
    let sentence = format!(
        "The processor changed the word at {addr:#x} from {left:#x} to {found:#x} while the {} on it was under way: it \
         was posted before the atomic in front of it was executed.",
        request.operation()
    );
    let report = Report::new(Rule::AtomicMixed, sentence)
        .fact("executed by", world.name(qp))
        .fact("request", format!("{}, wr_id {:#x}", request.operation(), request.wr_id))
        .at("posted at", &request.posted);
    let holds = |memory: &crate::event::Memory| addr.wrapping_sub(memory.addr) < memory.length;
    let region = world.regions().find(|(_, memory, _)| holds(memory));
    report.at("registered at", region.map(|(_, _, registered)| registered)).advice(
        "Change the word by atomics of the card only, on its own host by way of a queue pair that is connected to \
         itself; or let all of them complete before the processor writes it.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::{SendFlags, SendOp, SendRequest};
    use roxe_wire::{Qpn, RKey};

    const ADDR: u64 = 4096;

    /// A card with two queue pairs that are connected to each other.
    fn card() -> (Card, [ObjectId; 2]) {
        let mut card = Card::new();
        let pairs = [card.qp(), card.qp()];
        for (qp, peer) in [(pairs[0], 2), (pairs[1], 1)] {
            let attr = QpAttr { dest_qpn: Qpn::new(peer), ..QpAttr::default() };
            card.tell(Event::Modified { qp, attr: &attr, mask: AttrMask::DEST_QPN });
        }
        (card, pairs)
    }

    fn post(card: &mut Card, qp: ObjectId) {
        let op = SendOp::FetchAdd { remote_addr: ADDR, rkey: RKey(5), add: 1 };
        card.post(qp, &SendRequest { op, ..write(1, SendFlags::SIGNALED) });
    }

    fn execute(card: &mut Card, qp: ObjectId, found: u64) -> Vec<Rule> {
        card.tell(Event::Atomic { qp, rkey: RKey(5), va: ADDR, addr: ADDR, found, left: found + 1 })
    }

    #[test]
    fn a_word_that_changes_between_two_atomics_that_are_under_way_is_reported() {
        let (mut card, [from, to]) = card();
        (0..3).for_each(|_| post(&mut card, from));
        assert_eq!(execute(&mut card, to, 7), []);
        assert_eq!(execute(&mut card, to, 8), []);
        assert_eq!(execute(&mut card, to, 0), [Rule::AtomicMixed]);
    }

    #[test]
    fn between_two_rounds_the_processor_may_set_it_back() {
        let (mut card, [from, to]) = card();
        for found in [7, 0, 100] {
            post(&mut card, from);
            assert_eq!(execute(&mut card, to, found), []);
        }
    }

    #[test]
    fn what_the_card_wrote_or_another_process_asks_for_is_not_judged() {
        let (mut card, [from, to]) = card();
        (0..2).for_each(|_| post(&mut card, from));
        assert_eq!(execute(&mut card, to, 7), []);
        card.tell(Event::Written { addr: ADDR - 4, len: 64 });
        assert_eq!(execute(&mut card, to, 0), []);
        let stranger = card.qp();
        assert_eq!(execute(&mut card, stranger, 50), []);
    }
}
