//! The requests of one direction of a connection by sequence number: their records, the gaps
//! between them, and the number of their messages.

use crate::sequence::{Place, Seq, Sequence};
use roxe_wire::opcode::{Operation, Position};
use roxe_wire::{AtomicEth, Psn, Request, Reth};
use std::collections::BTreeMap;

/// Maximum number of remembered requests. Above it, the older half is dropped.
const MAX_RECORDS: usize = 1 << 18;
/// Maximum number of remembered PSNs at which a READ was retransmitted.
pub(super) const MAX_STARTS: usize = 64;

/// A request that was sent.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Packet index of the first transmission.
    pub packet: usize,
    /// Packet index and time of the newest transmission.
    pub last: (usize, u64),
    pub request: Request,
    /// Payload bytes.
    pub len: u32,
    /// Number of PSNs that the request uses.
    pub span: i64,
    /// SRQ number of an XRC request.
    pub xrc: Option<u32>,
    pub hash: u64,
    /// Bytes of the message up to this packet, and the DMA length of its WRITE; `None` if unknown.
    pub sum: Option<(u64, Option<u32>)>,
    /// Next expected response to a READ or atomic.
    pub expected: Seq,
    /// PSNs of a READ request and of its retransmissions.
    pub starts: Vec<Seq>,
    /// Lowest response PSN that a retransmission requests again.
    pub again: Option<Seq>,
    pub is_lost: bool,
}

impl Record {
    pub(super) fn operation(&self) -> Operation {
        self.request.operation()
    }

    pub(super) fn position(&self) -> Position {
        self.operation().properties().position
    }

    pub(super) fn ends_message(&self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }
}

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
pub(super) const fn has_own_response(request: &Request) -> bool {
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
    /// Sequence numbers of the last request of each message, in order; of a READ, its request.
    ends: Vec<Seq>,
    pub has_begun: bool,
}

impl History {
    /// Resets the history to begin with this PSN.
    pub(super) fn begin(&mut self, psn: Psn) {
        *self = Self { sequence: Sequence::new(psn), has_begun: true, ..Self::default() };
    }

    /// Adds a request that is sent for the first time; `max_span` is the largest
    /// number of PSNs that it may use.
    pub(super) fn insert(&mut self, seq: Seq, record: Record, max_span: i64) {
        let (min_next, max_next) = self.sequence.next();
        let place = self.sequence.add(seq, (record.span, max_span));
        // The PSN of this request shows how many PSNs the READ before it uses.
        if place == Place::Next
            && min_next != max_next
            && let Some((begin, read)) = self.records.range_mut(..seq).next_back()
        {
            read.span = seq - begin;
        }
        if record.ends_message() {
            let at = self.ends.partition_point(|end| *end < seq);
            self.ends.insert(at, seq);
        }
        self.records.insert(seq, record);
        if self.records.len() > MAX_RECORDS {
            let keep = self.records.keys().nth(MAX_RECORDS / 2).copied().unwrap_or_default();
            self.records = self.records.split_off(&keep);
        }
    }

    /// Returns the number of requests after `from` and up to `seq` that the capture lacks.
    pub(super) fn unseen(&self, from: Option<Seq>, seq: Seq) -> i64 {
        self.sequence.missing(from.map_or_else(|| self.sequence.first(), |from| from + 1), seq + 1)
    }

    /// Returns the record of the request that uses this sequence number.
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

    /// Returns the minimum and the maximum number of messages that end up to `seq`.
    pub(super) fn messages(&self, seq: Seq) -> (i64, i64) {
        let known = self.ends.partition_point(|end| *end <= seq) as i64;
        let unknown = self.sequence.missing(Seq::MIN, seq + 1);
        (known, if self.sequence.has_dropped_gaps() { i64::MAX / 4 } else { known + unknown })
    }
}
