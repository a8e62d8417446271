//! The requests of one direction of a connection by sequence number: their records, what is missing
//! between them, and how many messages they are.

use crate::requests::Seq;
use roxe_wire::opcode::{Operation, Position};
use roxe_wire::{AtomicEth, Psn, Request, Reth};
use std::collections::BTreeMap;

/// A distance of PSNs that means another connection.
pub(super) const JUMP: i64 = 1 << 16;
/// Most remembered requests; of more, the older half is forgotten.
const MOST: usize = 1 << 18;
/// Most remembered places at which a READ was repeated.
pub(super) const MOST_STARTS: usize = 64;
/// Most separate gaps that are remembered.
const MOST_GAPS: usize = 1 << 10;

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

/// Place of a request among those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The next one.
    Next,
    /// Behind requests that were not seen.
    BehindGap,
    /// In a gap.
    InGap,
    /// Before the first one.
    BeforeFirst,
    /// Sent before.
    Again,
    /// Too far away to belong to the same connection.
    Elsewhere,
}

/// Requests by sequence number.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub records: BTreeMap<Seq, Record>,
    first: Seq,
    /// Smallest and largest sequence number of the next request, which differ behind a READ while
    /// the path MTU is unknown.
    pub next: (Seq, Seq),
    /// Ranges of requests that were not seen: begin and end.
    gaps: BTreeMap<Seq, Seq>,
    /// Sequence numbers with which messages end, in their order; that of a READ itself.
    ends: Vec<Seq>,
    pub has_begun: bool,
    /// True if there were more gaps than are remembered.
    has_more_gaps: bool,
}

impl History {
    /// Expects this PSN first.
    pub(super) fn begin(&mut self, psn: Psn) {
        let first = psn.get().into();
        *self = Self { first, next: (first, first), has_begun: true, ..Self::default() };
    }

    /// Returns the sequence number of `psn` nearest to the next one.
    pub(super) fn seq_of(&self, psn: Psn) -> Seq {
        let expected = Psn::new((self.next.0 & 0xff_ffff) as u32);
        self.next.0 + i64::from(psn.distance(expected))
    }

    pub(super) fn place(&self, seq: Seq) -> Place {
        let (least, most) = self.next;
        if seq >= most + JUMP || seq < least - JUMP {
            Place::Elsewhere
        } else if seq > most {
            Place::BehindGap
        } else if seq >= least {
            Place::Next
        } else if seq < self.first {
            Place::BeforeFirst
        } else if self.gap_at(seq).is_some() {
            Place::InGap
        } else {
            Place::Again
        }
    }

    fn gap_at(&self, seq: Seq) -> Option<(Seq, Seq)> {
        let (begin, end) = self.gaps.range(..=seq).next_back()?;
        (seq < *end).then_some((*begin, *end))
    }

    /// Adds a request that is sent for the first time; `most` is the largest number of PSNs that
    /// it may take.
    pub(super) fn insert(&mut self, seq: Seq, record: Record, most: i64) {
        let span = record.span;
        match self.place(seq) {
            Place::BehindGap => {
                if self.gaps.len() < MOST_GAPS {
                    self.gaps.insert(self.next.1, seq);
                } else {
                    self.has_more_gaps = true;
                }
                self.next = (seq + span, seq + most);
            }
            Place::Next => {
                // Now it is known how many PSNs the READ before takes.
                if self.next.0 != self.next.1
                    && let Some((begin, read)) = self.records.range_mut(..seq).next_back()
                {
                    read.span = seq - begin;
                }
                self.next = (seq + span, seq + most);
            }
            Place::InGap => self.close(seq, seq + span),
            Place::BeforeFirst => {
                if seq + span < self.first {
                    self.gaps.insert(seq + span, self.first);
                }
                self.first = seq;
            }
            Place::Again | Place::Elsewhere => {}
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

    /// Removes `begin..end` from the gaps.
    fn close(&mut self, begin: Seq, end: Seq) {
        let hit: Vec<_> = self.gaps.range(..end).rev().take_while(|(_, last)| **last > begin).collect();
        let hit: Vec<_> = hit.into_iter().map(|(first, last)| (*first, *last)).collect();
        for (first, last) in hit {
            self.gaps.remove(&first);
            for (first, last) in [(first, begin.min(last)), (end.max(first), last)] {
                if first < last {
                    self.gaps.insert(first, last);
                }
            }
        }
    }

    /// Returns the number of requests behind `from` and up to `seq` that were not seen.
    pub(super) fn unseen(&self, from: Option<Seq>, seq: Seq) -> i64 {
        let from = from.map_or(self.first, |from| from + 1);
        let gaps = self.gaps.iter().map(|(begin, end)| (*begin.max(&from), *end.min(&(seq + 1))));
        gaps.map(|(begin, end)| (end - begin).max(0)).sum()
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
        let unknown: i64 = self.gaps.range(..=seq).map(|(begin, end)| (seq + 1).min(*end) - begin).sum();
        (known, if self.has_more_gaps { i64::MAX / 4 } else { known + unknown })
    }
}
