//! Requests from one queue pair to another: their sequence numbers, and their messages.
//!
//! PSNs have 24 bits and wrap; a [`Seq`] does not, so that sequence numbers have an order.

use crate::event::{Cause, Event};
use roxe_wire::opcode::{Operation, Position};
use roxe_wire::{MAX_PAYLOAD, Psn};
use std::collections::{BTreeMap, HashMap};

/// A sequence number that does not wrap.
pub(crate) type Seq = i64;

/// A distance of PSNs that means a new connection.
const JUMP: i64 = 1 << 16;
/// Smallest path MTU.
const MIN_PAYLOAD: u32 = 256;

/// The requests to one queue pair.
#[derive(Debug)]
pub(crate) struct Requests {
    first: Seq,
    /// Smallest and largest sequence number of the next new request, which differ after a READ
    /// while the path MTU is unknown.
    next: (Seq, Seq),
    /// Ranges of missing requests: begin and end.
    missing: BTreeMap<Seq, Seq>,
    /// Number of transmissions of retransmitted packets.
    repeats: HashMap<Seq, u32>,
    /// Newest acknowledged request.
    acknowledged: Option<Seq>,
    /// Request that the responder demands again.
    asked: Option<(Seq, Cause)>,
    /// Most recent retransmission and its cause.
    resent: Option<(Seq, Cause)>,
    /// Payload bytes of a full packet.
    mtu: Option<u32>,
    /// Messages by their first sequence number.
    starts: BTreeMap<Seq, usize>,
}

/// The result for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub seq: Seq,
    pub event: Event,
    /// Its message; `None` if it begins one.
    pub message: Option<usize>,
}

impl Requests {
    pub(crate) fn new(psn: Psn) -> Self {
        let first = psn.get().into();
        Self {
            first,
            next: (first, first),
            missing: BTreeMap::new(),
            repeats: HashMap::new(),
            acknowledged: None,
            asked: None,
            resent: None,
            mtu: None,
            starts: BTreeMap::new(),
        }
    }

    /// Returns the sequence number of `psn` nearest to the expected one.
    pub(crate) fn seq_of(&self, psn: Psn) -> Seq {
        let expected = Psn::new((self.next.0 & 0xff_ffff) as u32);
        self.next.0 + i64::from(psn.distance(expected))
    }

    /// Returns true if `psn` was sent and may still be answered.
    pub(crate) fn covers(&self, psn: Psn) -> bool {
        let seq = self.seq_of(psn);
        self.acknowledged.unwrap_or(self.first) <= seq && seq < self.next.1
    }

    /// Adds a request; `len` is its payload, or the length of a READ.
    pub(crate) fn take(&mut self, psn: Psn, operation: Operation, len: u32) -> Step {
        let event = self.place(psn);
        let seq = self.seq_of(psn);
        let position = operation.facts().position;
        if event.is_new() {
            let (least, most) = self.span(operation, len);
            self.next = (seq + least, seq + most);
        }
        if matches!(position, Position::First | Position::Middle) && len > 0 {
            self.mtu = Some(len);
        }
        let is_first_time = event.is_new() || matches!(event, Event::FillsGap { .. });
        let begins = matches!(position, Position::First | Position::Only) && is_first_time;
        Step { seq, event, message: if begins { None } else { self.message_at(seq) } }
    }

    fn place(&mut self, psn: Psn) -> Event {
        let (seq, (least, most)) = (self.seq_of(psn), self.next);
        if seq >= most + JUMP || seq < least - JUMP {
            *self = Self::new(psn);
            return Event::Restart { expected: psn_of(least) };
        }
        if seq > most {
            let missing = (seq - most) as u32;
            self.missing.insert(most, seq);
            return Event::Gap { expected: psn_of(most), missing };
        }
        if seq >= least {
            return Event::New;
        }
        if self.take_missing(seq) || seq < self.first {
            self.first = self.first.min(seq);
            let cause = self.cause_of(seq);
            self.resent = Some((seq, cause));
            return Event::FillsGap { cause };
        }
        let cause = self.cause_of(seq);
        self.resent = Some((seq, cause));
        let times = self.repeats.entry(seq).or_insert(1);
        *times += 1;
        Event::Retransmission { times: *times, cause, is_acknowledged: Some(seq) <= self.acknowledged }
    }

    /// Removes `seq` from the missing requests; returns true if it was missing.
    fn take_missing(&mut self, seq: Seq) -> bool {
        let found = self.missing.range(..=seq).next_back().map(|(first, end)| (*first, *end));
        let Some((first, end)) = found.filter(|(_, end)| seq < *end) else { return false };
        self.missing.remove(&first);
        for (first, end) in [(first, seq), (seq + 1, end)] {
            if first < end {
                self.missing.insert(first, end);
            }
        }
        true
    }

    /// Returns the cause of a retransmission: a NAK, or that of the previous packet.
    fn cause_of(&mut self, seq: Seq) -> Cause {
        if let Some((_, cause)) = self.asked.take_if(|(asked, _)| *asked <= seq) {
            return cause;
        }
        match self.resent {
            Some((last, cause)) if last + 1 == seq => cause,
            _ => Cause::Unanswered,
        }
    }

    /// Returns the smallest and largest number of sequence numbers that a request takes.
    fn span(&self, operation: Operation, len: u32) -> (i64, i64) {
        if operation != Operation::ReadRequest {
            return (1, 1);
        }
        let packets = |mtu: u32| i64::from(len.div_ceil(mtu).max(1));
        match self.mtu {
            Some(mtu) => (packets(mtu), packets(mtu)),
            None => (packets(MAX_PAYLOAD as u32), packets(MIN_PAYLOAD)),
        }
    }

    /// The message with this sequence number.
    pub(crate) fn message_at(&self, seq: Seq) -> Option<usize> {
        self.starts.range(..=seq).next_back().map(|(_, message)| *message)
    }

    /// `message` begins here.
    pub(crate) fn begin(&mut self, seq: Seq, message: usize) {
        self.starts.insert(seq, message);
    }

    /// A damaged packet: it counts as sent if it is the next one, and else not at all.
    pub(crate) fn take_damaged(&mut self, psn: Psn) {
        if self.seq_of(psn) == self.next.0 && self.next.0 == self.next.1 {
            self.next = (self.next.0 + 1, self.next.1 + 1);
        }
    }

    /// Marks requests up to `seq` as acknowledged.
    pub(crate) fn acknowledge(&mut self, seq: Seq) {
        self.acknowledged = self.acknowledged.max(Some(seq));
    }

    /// Records that the responder demands `psn` again.
    pub(crate) fn ask(&mut self, psn: Psn, cause: Cause) {
        self.asked = Some((self.seq_of(psn), cause));
    }

    /// Learns the path MTU from the payload of a full response.
    pub(crate) fn learn_mtu(&mut self, len: usize) {
        self.mtu = u32::try_from(len).ok().filter(|len| *len > 0).or(self.mtu);
    }
}

pub(crate) const fn psn_of(seq: Seq) -> Psn {
    Psn::new((seq & 0xff_ffff) as u32)
}
