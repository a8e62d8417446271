//! The requests of one direction of a connection by sequence number: their records, what is missing
//! between them, and how many messages they are.

use crate::sequence::{Place, Seq, Sequence};
use roxe_wire::opcode::{Operation, Position};
use roxe_wire::{AtomicEth, Psn, Request, Reth};
use std::collections::BTreeMap;

/// Most remembered requests; of more, the older half is forgotten.
const MOST: usize = 1 << 18;
/// Most remembered places at which a READ was repeated.
pub(super) const MOST_STARTS: usize = 64;

/// A request that was sent.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Index of its first transmission.
    pub packet: usize,
    /// Index and time of its newest transmission.
    pub last: (usize, u64),
    pub request: Request,
    /// Payload bytes.
    pub len: u32,
    /// Number of PSNs that it takes.
    pub span: i64,
    /// Shared receive queue, on XRC.
    pub xrc: Option<u32>,
    pub hash: u64,
    /// Bytes of its message up to here and the length in the RETH of its WRITE, if both are known.
    pub sum: Option<(u64, Option<u32>)>,
    /// Of a READ or atomic: the next expected response.
    pub expected: Seq,
    /// Of a READ: where the request, or a repetition of it, begins.
    pub starts: Vec<Seq>,
    /// Smallest response that a repetition asks for again.
    pub again: Option<Seq>,
    pub is_lost: bool,
}

impl Record {
    pub(super) fn operation(&self) -> Operation {
        self.request.operation()
    }

    pub(super) fn position(&self) -> Position {
        self.operation().facts().position
    }

    pub(super) fn ends_message(&self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }
}

/// Returns the RETH of a request.
pub(super) const fn reth(request: &Request) -> Option<Reth> {
    match request {
        Request::WriteFirst(reth)
        | Request::WriteOnly(reth, _)
        | Request::Read(reth)
        | Request::Flush(_, reth)
        | Request::AtomicWrite(reth) => Some(*reth),
        _ => None,
    }
}

/// Returns the operands of an atomic.
pub(super) const fn atomic(request: &Request) -> Option<AtomicEth> {
    match request {
        Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => Some(*atomic),
        _ => None,
    }
}

/// Returns true for a request that is answered by more than an ACK.
pub(super) const fn asks(request: &Request) -> bool {
    matches!(
        request,
        Request::Read(_)
            | Request::CompareSwap(_)
            | Request::FetchAdd(_)
            | Request::Flush(..)
            | Request::AtomicWrite(_)
    )
}

/// Requests by sequence number.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub records: BTreeMap<Seq, Record>,
    pub sequence: Sequence,
    /// Sequence numbers with which messages end, in their order; that of a READ itself.
    ends: Vec<Seq>,
    pub has_begun: bool,
}

impl History {
    /// Expects this PSN first.
    pub(super) fn begin(&mut self, psn: Psn) {
        *self = Self { sequence: Sequence::new(psn), has_begun: true, ..Self::default() };
    }

    /// Adds a request that is sent for the first time; `most` is the largest number of PSNs that
    /// it may take.
    pub(super) fn insert(&mut self, seq: Seq, record: Record, most: i64) {
        let (least_next, most_next) = self.sequence.next();
        let place = self.sequence.add(seq, (record.span, most));
        // Now it is known how many PSNs the READ before takes.
        if place == Place::Next
            && least_next != most_next
            && let Some((begin, read)) = self.records.range_mut(..seq).next_back()
        {
            read.span = seq - begin;
        }
        if record.ends_message() {
            let at = self.ends.partition_point(|end| *end < seq);
            self.ends.insert(at, seq);
        }
        self.records.insert(seq, record);
        if self.records.len() > MOST {
            let keep = self.records.keys().nth(MOST / 2).copied().unwrap_or_default();
            self.records = self.records.split_off(&keep);
        }
    }

    /// Returns the number of requests behind `from` and up to `seq` that were not seen.
    pub(super) fn unseen(&self, from: Option<Seq>, seq: Seq) -> i64 {
        self.sequence.missing(from.map_or_else(|| self.sequence.first(), |from| from + 1), seq + 1)
    }

    /// Returns the record that has this sequence number.
    pub(super) fn covering(&self, seq: Seq) -> Option<(Seq, &Record)> {
        let (begin, record) = self.records.range(..=seq).next_back()?;
        (seq < begin + record.span).then_some((*begin, record))
    }

    pub(super) fn covering_mut(&mut self, seq: Seq) -> Option<(Seq, &mut Record)> {
        let (begin, record) = self.records.range_mut(..=seq).next_back()?;
        (seq < begin + record.span).then_some((*begin, record))
    }

    /// Returns the record directly before `seq`.
    pub(super) fn before(&self, seq: Seq) -> Option<&Record> {
        self.covering(seq - 1).filter(|(begin, record)| begin + record.span == seq).map(|(_, record)| record)
    }

    /// Returns the least and the largest number of messages that end up to `seq`.
    pub(super) fn messages(&self, seq: Seq) -> (i64, i64) {
        let known = self.ends.partition_point(|end| *end <= seq) as i64;
        let unknown = self.sequence.missing(Seq::MIN, seq + 1);
        (known, if self.sequence.has_forgotten() { i64::MAX / 4 } else { known + unknown })
    }
}
