//! Buffers of outstanding requests: bytes that two of them use, and bytes that the program changes.

use super::observer::Observer;
use crate::event::Event;
use crate::id_map::IdSet;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::wr::{Cqe, Sge, WcOpcode, WcStatus};
use std::collections::VecDeque;

/// Places that the card wrote last and that are remembered.
const WRITTEN: usize = 1024;
/// Requests that a new one is compared with.
const COMPARED: usize = 512;

/// Memory that the card wrote.
#[derive(Clone, Copy, Debug)]
struct Written {
    begin: u64,
    end: u64,
    /// How many requests had been posted.
    posted: u64,
}

/// `buffer-overlap-in-flight`, `buffer-changed-in-flight`, `receive-changed-early`.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    written: VecDeque<Written>,
    /// Of what was posted before, it is no longer known whether the card wrote it.
    forgotten: u64,
    /// Queues with a report on overlapping buffers; one is enough, and looking costs time.
    overlapping: IdSet<ObjectId>,
}

impl Observer for Buffers {
    fn look(&mut self, event: &Event<'_>, _: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::Written { addr, len } => self.written(addr, len, world.posted()),
            Event::Atomic { addr, .. } => self.written(addr, 8, world.posted()),
            Event::BytesChanged { qp, side, wr_id } => reports.extend(self.changed(qp, side, wr_id, world)),
            Event::PostedSend { qp, .. } if !self.overlapping.contains(&qp) => {
                let Some(work) = world.outstanding(Side::Send, qp).next_back() else { return };
                if work.is_written() {
                    reports.extend(self.overlap(qp, work, u64::MAX, world));
                }
            }
            // A receive counts once it is written: that of a WRITE with immediate data never is.
            Event::Completed { qp, side: Side::Recv, cqe } if is_written(cqe) => {
                let queue = world.queue_of(qp, Side::Recv);
                let is_it = |work: &&Work| work.completed && work.wr_id == cqe.wr_id;
                let work = world.outstanding(Side::Recv, queue).find(is_it);
                if let Some(work) = work.filter(|_| !self.overlapping.contains(&queue)) {
                    reports.extend(self.overlap(queue, work, cqe.byte_len.into(), world));
                }
            }
            Event::Destroyed(id) => drop(self.overlapping.remove(&id)),
            _ => {}
        }
    }
}

impl Buffers {
    fn written(&mut self, addr: u64, len: u64, posted: u64) {
        let (begin, end) = (addr, addr.saturating_add(len));
        if let Some(last) = self.written.back_mut() {
            // The packets of one message say the same again, or go on.
            if (last.begin, last.end) == (begin, end) {
                last.posted = posted;
                return;
            }
            if last.end == begin && last.posted == posted {
                last.end = end;
                return;
            }
        }
        if self.written.len() == WRITTEN {
            self.forgotten = self.written.pop_front().map_or(self.forgotten, |oldest| oldest.posted);
        }
        self.written.push_back(Written { begin, end, posted });
    }

    /// Whether the card itself may have changed the bytes of a request since it was posted.
    fn is_ours(&self, work: &Work, world: &World) -> bool {
        let wrote = |(begin, end): (u64, u64)| {
            let since = self.written.iter().filter(|written| written.posted >= work.serial);
            since.into_iter().any(|written| written.begin < end && begin < written.end)
        };
        work.serial <= self.forgotten || work.sges.iter().any(|sge| place(sge, world).is_none_or(wrote))
    }

    /// The bytes of a request are no longer those that were posted.
    fn changed(&self, qp: ObjectId, side: Side, wr_id: u64, world: &World) -> Option<Report> {
        let queue = world.queue_of(qp, side);
        let is_it = |work: &&Work| !work.completed && work.wr_id == wr_id && !work.sges.is_empty();
        let work = world.outstanding(side, queue).find(is_it)?;
        if self.is_ours(work, world) {
            return None;
        }
        let (rule, sentence, advice) = if work.is_written() {
            (
                Rule::ReceiveChangedEarly,
                format!("The program wrote into the buffer of a {} before the card did.", work.operation()),
                "Leave the buffer alone from the call that posts it until its completion was polled.",
            )
        } else {
            (
                Rule::BufferChangedInFlight,
                format!("The bytes of a {} changed after it was posted and before it completed.", work.operation()),
                "Poll the completion before the buffer is written again, or use IBV_SEND_INLINE.",
            )
        };
        Some(describe(Report::new(rule, sentence), qp, work, world).at("posted at", &work.posted).advice(advice))
    }

    /// Another request that uses the first `len` bytes of one that the card writes.
    fn overlap(&mut self, queue: ObjectId, work: &Work, len: u64, world: &World) -> Option<Report> {
        // Whether a send without a completion is done, nobody can tell.
        let is_open = |other: &Work| !other.completed && other.signaled && other.serial != work.serial;
        let all = world.all_outstanding().filter(|(_, other)| is_open(other)).take(COMPARED);
        let (other_queue, other, at) = all.into_iter().find_map(|(queue, other)| {
            let at = common(&work.sges, len, &other.sges, world)?;
            Some((queue, other, at))
        })?;
        self.overlapping.insert(queue);
        let sentence = format!(
            "The card writes bytes at {at:#x} for a {}, and an outstanding {} uses them too.",
            work.operation(),
            other.operation()
        );
        Some(
            describe(Report::new(Rule::BufferOverlapInFlight, sentence), queue, work, world)
                .fact("other queue", world.name(other_queue))
                .fact("other request", format!("{}, wr_id {}", other.operation(), other.wr_id))
                .at("posted at", &work.posted)
                .at("other posted", &other.posted)
                .advice("Give each outstanding request bytes of its own, until its completion was polled."),
        )
    }
}

fn describe(report: Report, queue: ObjectId, work: &Work, world: &World) -> Report {
    let bytes = work.sges.iter().map(|sge| format!("{} at {:#x}", sge.length, sge.addr));
    report
        .fact("queue", world.name(queue))
        .fact("request", format!("{}, wr_id {}", work.operation(), work.wr_id))
        .fact("bytes", bytes.collect::<Vec<_>>().join(", "))
}

/// Whether a receive that ended like this was written.
fn is_written(cqe: &Cqe) -> bool {
    cqe.status == WcStatus::Success && cqe.byte_len > 0 && cqe.opcode == WcOpcode::Recv
}

/// The first byte that is in both lists, of the first only `len` bytes counted.
fn common(written: &[Sge], len: u64, other: &[Sge], world: &World) -> Option<u64> {
    let mut left = len;
    written.iter().find_map(|sge| {
        let used = left.min(sge.length.into());
        left -= used;
        let end = sge.addr.saturating_add(used);
        let meets = |other: &&Sge| sge.addr < other.addr.saturating_add(other.length.into()) && other.addr < end;
        let other = other.iter().find(meets)?;
        // Equal addresses of different regions may be different bytes.
        let shift = |sge: &Sge| place(sge, world).map(|(begin, _)| begin.wrapping_sub(sge.addr));
        (used > 0 && (sge.lkey == other.lkey || shift(sge)? == shift(other)?)).then(|| sge.addr.max(other.addr))
    })
}

/// Where the memory of a list's element begins and ends.
fn place(sge: &Sge, world: &World) -> Option<(u64, u64)> {
    let (_, region, _) = world.regions().find(|(_, memory, _)| memory.lkey == sge.lkey.0)?;
    let begin = region.addr.wrapping_add(sge.addr.wrapping_sub(region.base));
    Some((begin, begin.saturating_add(sge.length.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::wr::{Access, RecvRequest, SendData, SendFlags, SendOp, SendRequest};
    use roxe_wire::{LKey, RKey};

    const KEY: u32 = 7;

    fn card() -> (Card, ObjectId) {
        let mut card = Card::new();
        let qp = card.qp();
        card.mr(KEY, 4096, 4096, Access::LOCAL_WRITE);
        (card, qp)
    }

    fn sges(addr: u64) -> [Sge; 1] {
        [Sge { addr, length: 64, lkey: LKey(KEY) }]
    }

    /// Posts a WRITE, a READ or a receive of 64 bytes there.
    fn post(card: &mut Card, qp: ObjectId, wr_id: u64, addr: u64, kind: &str) -> Vec<Rule> {
        let sges = sges(addr);
        if kind == "receive" {
            return card.tell(Event::PostedRecv { queue: qp, request: &RecvRequest { wr_id, sges: &sges } });
        }
        let write = write(wr_id, SendFlags::SIGNALED);
        let op = if kind == "read" { SendOp::Read { remote_addr: 4096, rkey: RKey(0) } } else { write.op };
        card.post(qp, &SendRequest { op, data: SendData::Sges(&sges), ..write })
    }

    fn received(card: &mut Card, qp: ObjectId, wr_id: u64, opcode: WcOpcode) -> Vec<Rule> {
        let cqe = Cqe { wr_id, opcode, byte_len: 8, ..Cqe::default() };
        card.tell(Event::Completed { qp, side: Side::Recv, cqe: &cqe })
    }

    #[test]
    fn a_read_into_bytes_that_are_being_sent_is_reported_and_one_beside_them_is_not() {
        let (mut card, qp) = card();
        assert_eq!(post(&mut card, qp, 1, 4096, "write"), []);
        assert_eq!(post(&mut card, qp, 2, 4096 + 64, "read"), []);
        let other = card.qp();
        assert_eq!(post(&mut card, other, 3, 4096 + 63, "read"), [Rule::BufferOverlapInFlight]);
    }

    #[test]
    fn receives_in_one_place_are_a_mistake_once_one_is_written() {
        for (opcode, expected) in
            [(WcOpcode::RecvRdmaWithImm, &[][..]), (WcOpcode::Recv, &[Rule::BufferOverlapInFlight][..])]
        {
            let (mut card, qp) = card();
            assert_eq!(post(&mut card, qp, 1, 4096, "receive"), []);
            assert_eq!(post(&mut card, qp, 2, 4096, "receive"), []);
            assert_eq!(received(&mut card, qp, 1, opcode), expected);
        }
    }

    #[test]
    fn changed_bytes_are_reported_unless_the_card_wrote_them() {
        for (kind, side, rule) in [
            ("write", Side::Send, Rule::BufferChangedInFlight),
            ("receive", Side::Recv, Rule::ReceiveChangedEarly),
            ("read", Side::Send, Rule::ReceiveChangedEarly),
        ] {
            let (mut card, qp) = card();
            card.tell(Event::Written { addr: 4096, len: 64 });
            post(&mut card, qp, 1, 4096, kind);
            assert_eq!(card.tell(Event::BytesChanged { qp, side, wr_id: 1 }), [rule]);
            card.tell(Event::Written { addr: 4096 + 32, len: 8 });
            assert_eq!(card.tell(Event::BytesChanged { qp, side, wr_id: 1 }), [], "{kind}");
        }
    }
}
