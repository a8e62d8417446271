//! Rules about the memory of outstanding requests: requests must not share bytes, the program must
//! not change their bytes, accesses to a peer's memory must be ordered, and the processor must not
//! change words that atomics change.

use super::keys::remote;
use crate::event::{Event, MrInfo, Object};
use crate::id_map::{IdMap, IdSet};
use crate::program::{Observer, Program, Work};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpState};
use roxe_transport::wr::{Cqe, SendFlags, SendOp, Sge, WcOpcode, WcStatus};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of remembered writes of the card.
const MAX_WRITES: usize = 1024;
/// Maximum number of requests compared with a new one.
const MAX_COMPARED: usize = 512;

#[derive(Clone, Copy, Debug)]
struct CardWrite {
    begin: u64,
    end: u64,
    /// Number of requests posted before the write.
    posted: u64,
}

/// Rules `buffer-overlap-in-flight`, `buffer-changed-in-flight` and `receive-changed-early`.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    written: VecDeque<CardWrite>,
    /// Serial number of a request. For requests up to this one, writes of the card may be missing
    /// in `written`.
    forgotten: u64,
    /// Queues with an overlap report; one is enough, and the search is expensive.
    overlapping: IdSet<ObjectId>,
}

impl Observer for Buffers {
    fn observe(&mut self, event: &Event<'_>, _: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Written { addr, len } => self.record_write(addr, len, program.posted()),
            Event::Atomic { addr, .. } => self.record_write(addr, 8, program.posted()),
            Event::BytesChanged { qp, side, wr_id } => reports.extend(self.report_change(qp, side, wr_id, program)),
            Event::PostedSend { qp, .. } if !self.overlapping.contains(&qp) => {
                let Some(work) = program.outstanding(Side::Send, qp).next_back() else { return };
                if work.is_written() {
                    reports.extend(self.report_overlap(qp, work, u64::MAX, program));
                }
            }
            // The buffer of a receive overlaps only once the card has written it. A WRITE with
            // immediate data never writes it.
            Event::Completed { qp, side: Side::Recv, cqe } if is_written(cqe) => {
                let queue = program.queue_of(qp, Side::Recv);
                let matches_request = |work: &&Work| work.completed && work.wr_id == cqe.wr_id;
                let work = program.outstanding(Side::Recv, queue).find(matches_request);
                if let Some(work) = work.filter(|_| !self.overlapping.contains(&queue)) {
                    reports.extend(self.report_overlap(queue, work, cqe.byte_len.into(), program));
                }
            }
            Event::Destroyed(id) => drop(self.overlapping.remove(&id)),
            _ => {}
        }
    }
}

impl Buffers {
    fn record_write(&mut self, addr: u64, len: u64, posted: u64) {
        let (begin, end) = (addr, addr.saturating_add(len));
        if let Some(last) = self.written.back_mut() {
            // Packets of one message repeat or extend the range.
            if (last.begin, last.end) == (begin, end) {
                last.posted = posted;
                return;
            }
            if last.end == begin && last.posted == posted {
                last.end = end;
                return;
            }
        }
        if self.written.len() == MAX_WRITES {
            self.forgotten = self.written.pop_front().map_or(self.forgotten, |oldest| oldest.posted);
        }
        self.written.push_back(CardWrite { begin, end, posted });
    }

    /// Returns true if the card may have changed the bytes of a request since its post.
    fn may_be_card_write(&self, work: &Work, program: &Program) -> bool {
        let wrote = |(begin, end): (u64, u64)| {
            let mut since = self.written.iter().filter(|written| written.posted >= work.serial);
            since.any(|written| written.begin < end && begin < written.end)
        };
        work.serial <= self.forgotten || work.sges.iter().any(|sge| memory_of(sge, program).is_none_or(wrote))
    }

    fn report_change(&self, qp: ObjectId, side: Side, wr_id: u64, program: &Program) -> Option<Report> {
        let queue = program.queue_of(qp, side);
        let matches_request = |work: &&Work| !work.completed && work.wr_id == wr_id && !work.sges.is_empty();
        let work = program.outstanding(side, queue).find(matches_request)?;
        if self.may_be_card_write(work, program) {
            return None;
        }
        let (rule, sentence, advice) = if work.is_written() {
            (
                Rule::ReceiveChangedEarly,
                format!("The program wrote into the buffer of a {} before the card did.", work.operation()),
                "Do not write the buffer from the call that posts it until its completion is polled.",
            )
        } else {
            (
                Rule::BufferChangedInFlight,
                format!("The bytes of a {} changed after it was posted and before it completed.", work.operation()),
                "Poll the completion before the buffer is written again, or use IBV_SEND_INLINE.",
            )
        };
        Some(describe(Report::new(rule, sentence), qp, work, program).at("posted at", &work.posted).advice(advice))
    }

    /// Reports a request that uses some of the first `len` bytes of `work`, which the card writes.
    fn report_overlap(&mut self, queue: ObjectId, work: &Work, len: u64, program: &Program) -> Option<Report> {
        // It is unknown whether an unsignaled send is done.
        let is_open = |other: &Work| !other.completed && other.signaled && other.serial != work.serial;
        let mut all = program.all_outstanding().filter(|(_, other)| is_open(other)).take(MAX_COMPARED);
        let (other_queue, other, at) = all.find_map(|(queue, other)| {
            let at = common_byte(&work.sges, len, &other.sges, program)?;
            Some((queue, other, at))
        })?;
        self.overlapping.insert(queue);
        let sentence = format!(
            "The card writes bytes at {at:#x} for a {}, and an outstanding {} uses them too.",
            work.operation(),
            other.operation()
        );
        Some(
            describe(Report::new(Rule::BufferOverlapInFlight, sentence), queue, work, program)
                .labelled("other queue", program.name(other_queue))
                .labelled("other request", format!("{}, wr_id {}", other.operation(), other.wr_id))
                .at("posted at", &work.posted)
                .at("other posted", &other.posted)
                .advice("Give each outstanding request bytes of its own until its completion is polled."),
        )
    }
}

fn describe(report: Report, queue: ObjectId, work: &Work, program: &Program) -> Report {
    let bytes = work.sges.iter().map(|sge| format!("{} at {:#x}", sge.length, sge.addr));
    report
        .labelled("queue", program.name(queue))
        .labelled("request", format!("{}, wr_id {}", work.operation(), work.wr_id))
        .labelled("bytes", bytes.collect::<Vec<_>>().join(", "))
}

/// Returns true if the card wrote a receive with this completion.
fn is_written(cqe: &Cqe) -> bool {
    cqe.status == WcStatus::Success && cqe.byte_len > 0 && cqe.opcode == WcOpcode::Recv
}

/// Returns the first byte common to the first `len` bytes of `written` and to `other`.
fn common_byte(written: &[Sge], len: u64, other: &[Sge], program: &Program) -> Option<u64> {
    let mut left = len;
    written.iter().find_map(|sge| {
        let used = left.min(sge.length.into());
        left -= used;
        let end = sge.addr.saturating_add(used);
        let overlaps = |other: &&Sge| sge.addr < other.addr.saturating_add(other.length.into()) && other.addr < end;
        let other = other.iter().find(overlaps)?;
        // Equal addresses of different regions may be different bytes.
        let shift = |sge: &Sge| memory_of(sge, program).map(|(begin, _)| begin.wrapping_sub(sge.addr));
        (used > 0 && (sge.lkey == other.lkey || shift(sge)? == shift(other)?)).then(|| sge.addr.max(other.addr))
    })
}

/// Returns begin and end of the memory of a list element.
fn memory_of(sge: &Sge, program: &Program) -> Option<(u64, u64)> {
    let (_, region, _) = program.regions().find(|(_, memory, _)| memory.lkey == sge.lkey.0)?;
    let begin = region.addr.wrapping_add(sge.addr.wrapping_sub(region.base));
    Some((begin, begin.saturating_add(sge.length.into())))
}

/// `remote-overlap`: unordered operations on the same bytes of a peer.
///
/// Only requests of this process are seen. A request is outstanding until its completion is
/// written, so only signaled requests count.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// Queue pairs with a report; one is enough, and the search is expensive.
    reported: IdSet<ObjectId>,
    /// Queue pairs that have posted a READ or an atomic.
    reads: IdSet<ObjectId>,
}

impl Observer for Remote {
    fn observe(&mut self, event: &Event<'_>, _: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::PostedSend { qp, request } => {
                let Some(work) = program.outstanding(Side::Send, qp).next_back() else { return };
                let Some(range) = RemoteRange::from_work(work).filter(|_| !self.reported.contains(&qp)) else { return };
                let is_fenced = request.flags.contains(SendFlags::FENCE);
                let own =
                    if is_fenced || !self.reads.contains(&qp) { None } else { find_reordered(qp, &range, program) };
                let other = own.map(|other| (qp, other)).or_else(|| find_on_other_qp(qp, &range, program));
                if let Some((queue, other)) = other {
                    self.reported.insert(qp);
                    reports.push(unordered((qp, work), (queue, other), &range, program));
                }
                if range.has_result() {
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

/// Returns true if the request is certainly outstanding.
const fn is_open(work: &Work) -> bool {
    !work.completed && work.signaled
}

/// Finds an earlier READ or atomic of the queue pair that may be executed after its last request.
fn find_reordered<'w>(qp: ObjectId, range: &RemoteRange, program: &'w Program) -> Option<&'w Work> {
    // READs and atomics are executed in order among themselves.
    let overtakes = |earlier: &RemoteRange| earlier.has_result() && !range.has_result();
    let earlier = program.outstanding(Side::Send, qp).rev().skip(1).take(MAX_COMPARED).filter(|work| is_open(work));
    let mut earlier = earlier.filter_map(|work| Some((work, RemoteRange::from_work(work)?)));
    earlier.find(|(_, at)| overtakes(at) && range.conflicts(at)).map(|(work, _)| work)
}

/// Finds a conflicting request of another queue pair.
fn find_on_other_qp<'w>(qp: ObjectId, range: &RemoteRange, program: &'w Program) -> Option<(ObjectId, &'w Work)> {
    let others = program.sends().filter(|(queue, _)| *queue != qp);
    let open = others.flat_map(|(queue, works)| works.iter().map(move |work| (queue, work)));
    let mut open = open.take(MAX_COMPARED).filter(|(_, work)| is_open(work));
    open.find(|(_, work)| RemoteRange::from_work(work).is_some_and(|at| range.conflicts(&at)))
}

fn unordered(
    (qp, work): (ObjectId, &Work),
    (queue, other): (ObjectId, &Work),
    range: &RemoteRange,
    program: &Program,
) -> Report {
    let (whose, why) = if queue == qp {
        ("of the same queue pair", "without IBV_SEND_FENCE the new request may be executed first")
    } else {
        ("of another queue pair", "no rule orders the two")
    };
    let (operation, earlier) = (work.operation(), other.operation());
    let sentence = format!(
        "The {operation} of {} bytes at {:#x} (rkey {:#x}) was posted while the {earlier} {whose} on some of these \
         bytes was outstanding, and one of them writes: {why}.",
        range.end - range.begin,
        range.begin,
        range.key
    );
    Report::new(Rule::RemoteOverlap, sentence)
        .labelled("queue pair", program.name(qp))
        .labelled("request", format!("{operation}, wr_id {}", work.wr_id))
        .labelled("other queue", program.name(queue))
        .labelled("other request", format!("{earlier}, wr_id {}", other.wr_id))
        .at("posted at", &work.posted)
        .at("other posted", &other.posted)
        .advice(
            "Poll the completion of the first request before the second is posted. Within one queue pair, \
             IBV_SEND_FENCE orders a request after READs and atomics.",
        )
}

/// Bytes of a peer that a request reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteRange {
    /// Keys are random, so equal keys are of the same region.
    key: u32,
    begin: u64,
    end: u64,
    kind: AccessKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessKind {
    Reads,
    Writes,
    /// Atomic with respect to other atomics.
    Atomic,
}

impl RemoteRange {
    /// Returns the range of a request; `None` if it accesses no byte of a peer.
    fn from_work(work: &Work) -> Option<Self> {
        let op = work.op.as_ref()?;
        let (begin, key) = remote(op)?;
        let kind = match op {
            SendOp::Read { .. } => AccessKind::Reads,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => AccessKind::Atomic,
            _ => AccessKind::Writes,
        };
        (work.len > 0).then(|| Self { key, begin, end: begin.saturating_add(work.len), kind })
    }

    /// Returns true if a response carries its result: later requests may be executed first.
    const fn has_result(&self) -> bool {
        matches!(self.kind, AccessKind::Reads | AccessKind::Atomic)
    }

    /// Returns true if the order matters. A READ of exactly the word of an atomic sees one of two
    /// valid values on every card.
    const fn conflicts(&self, other: &Self) -> bool {
        let overlaps = self.key == other.key && self.begin < other.end && other.begin < self.end;
        let is_same = self.begin == other.begin && self.end == other.end;
        overlaps
            && match (self.kind, other.kind) {
                (AccessKind::Reads, AccessKind::Reads) | (AccessKind::Atomic, AccessKind::Atomic) => false,
                (AccessKind::Reads, AccessKind::Atomic) | (AccessKind::Atomic, AccessKind::Reads) => !is_same,
                _ => true,
            }
    }
}

/// Maximum number of remembered words.
const MAX_WORDS: usize = 4096;

/// `atomic-mixed`: words that peers change with atomics and the processor changes too.
///
/// The rule compares the value before an atomic with the value after the previous one. A difference
/// alone is legal: the program may reset a counter between rounds. It is a mistake if the second
/// atomic was posted before the first was executed, which is known for requests of this process
/// only.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    words: BTreeMap<u64, Word>,
    /// Atomics not yet executed, by queue pair.
    posted: IdMap<ObjectId, VecDeque<Work>>,
    reported: IdSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    /// Value after the last atomic.
    value: u64,
    /// Number of requests posted before that atomic.
    posted: u64,
}

impl Observer for Atomics {
    fn observe(&mut self, event: &Event<'_>, _: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::PostedSend { qp, .. } => {
                let work = program.outstanding(Side::Send, qp).next_back();
                let is_atomic =
                    |work: &&Work| matches!(work.op, Some(SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }));
                if let Some(work) = work.filter(is_atomic) {
                    self.posted.entry(qp).or_default().push_back(work.clone());
                }
            }
            Event::Atomic { qp, rkey, va, addr, old, new } => {
                let request = requester(qp, program).and_then(|requester| self.take_oldest(requester, (va, rkey.0)));
                if self.words.len() == MAX_WORDS {
                    self.words.clear();
                }
                let last = self.words.insert(addr, Word { value: new, posted: program.posted() });
                if let (Some(last), Some(request)) = (last, request)
                    && old != last.value
                    && request.serial <= last.posted
                    && self.reported.insert(addr)
                {
                    reports.push(mixed(&request, addr, (last.value, old), (qp, program)));
                }
            }
            Event::Written { addr, len } if !self.words.is_empty() => self.forget(addr, len),
            // The next atomic to be executed is now unknown.
            Event::SendsWithdrawn { qp, .. } => drop(self.posted.remove(&qp)),
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.posted.remove(&qp);
            }
            Event::Destroyed(id) => {
                self.posted.remove(&id);
                if let Some(Object::Mr(memory)) = program.live_object(id).map(|known| known.object) {
                    self.forget(memory.addr, memory.length);
                }
            }
            _ => {}
        }
    }
}

impl Atomics {
    /// Removes the oldest atomic of this queue pair, which is the one being executed: it must be at
    /// the address and rkey `target`.
    fn take_oldest(&mut self, requester: ObjectId, target: (u64, u32)) -> Option<Work> {
        let posted = self.posted.get_mut(&requester)?;
        let oldest = posted.pop_front()?;
        if oldest.op.as_ref().and_then(remote) != Some(target) {
            self.posted.remove(&requester);
            return None;
        }
        Some(oldest)
    }

    /// Forgets the words in a range that the card has written otherwise, or that was deregistered.
    fn forget(&mut self, addr: u64, len: u64) {
        let range = addr.saturating_sub(7)..addr.saturating_add(len);
        let gone: Vec<u64> = self.words.range(range).map(|(at, _)| *at).collect();
        for at in gone {
            self.words.remove(&at);
            self.reported.remove(&at);
        }
    }
}

/// Returns the queue pair of this process that is connected to `qp`.
fn requester(qp: ObjectId, program: &Program) -> Option<ObjectId> {
    let own = (program.qp(qp)?.qpn, program.attributes(qp)?.values.dest_qpn);
    let is_peer = |id| program.qp(id).is_some_and(|pair| pair.qpn == own.1);
    let mut all = program.all_attributes();
    all.find(|(id, attributes)| attributes.values.dest_qpn == own.0 && is_peer(*id)).map(|(id, _)| id)
}

fn mixed(request: &Work, addr: u64, (left, found): (u64, u64), (qp, program): (ObjectId, &Program)) -> Report {
    let sentence = format!(
        "The processor changed the word at {addr:#x} from {left:#x} to {found:#x} while the {} on it was outstanding: \
         the request was posted before the previous atomic was executed.",
        request.operation()
    );
    let report = Report::new(Rule::AtomicMixed, sentence)
        .labelled("executed by", program.name(qp))
        .labelled("request", format!("{}, wr_id {}", request.operation(), request.wr_id))
        .at("posted at", &request.posted);
    let holds = |memory: &MrInfo| addr.wrapping_sub(memory.addr) < memory.length;
    let region = program.regions().find(|(_, memory, _)| holds(memory));
    report.at("registered at", region.map(|(_, _, registered)| registered)).advice(
        "Change the word with atomics of the card only; on its own host, use a queue pair that is connected to \
         itself. Or let all atomics complete before the processor writes the word.",
    )
}

#[cfg(test)]
mod tests;
