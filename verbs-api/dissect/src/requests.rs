//! Requests from one queue pair to another: their sequence numbers, and their messages.

use crate::event::{Cause, Event};
use crate::sequence::{Place, Seq, Sequence, psn_of, read_span};
use roxe_wire::Psn;
use roxe_wire::opcode::{Operation, Position};
use std::collections::{BTreeMap, HashMap};

/// The requests to one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    sequence: Sequence,
    /// Number of transmissions of retransmitted packets.
    repeats: HashMap<Seq, u32>,
    /// Newest acknowledged request.
    acknowledged: Option<Seq>,
    /// Sequence number of the newest NAK, and the cause of the retransmissions that follow it.
    nak: Option<(Seq, Cause)>,
    /// Newest retransmission and its cause.
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
    /// Index of the message; `None` if the request begins a message.
    pub message: Option<usize>,
}

impl Requests {
    pub(crate) fn new(psn: Psn) -> Self {
        Self { sequence: Sequence::new(psn), ..Self::default() }
    }

    /// Returns the sequence number of `psn` nearest to the expected one.
    pub(crate) fn seq_of(&self, psn: Psn) -> Seq {
        self.sequence.nearest(psn)
    }

    /// Returns true if `psn` was sent and a response may follow.
    pub(crate) fn covers(&self, psn: Psn) -> bool {
        let seq = self.seq_of(psn);
        self.acknowledged.unwrap_or_else(|| self.sequence.first()) <= seq && seq < self.sequence.next().1
    }

    /// Adds a request; `len` is its payload, or the length of a READ.
    pub(crate) fn take(&mut self, psn: Psn, operation: Operation, len: u32) -> Step {
        let span = if operation == Operation::ReadRequest { read_span(len, self.mtu) } else { (1, 1) };
        let (seq, event) = self.add(psn, span);
        let position = operation.properties().position;
        if matches!(position, Position::First | Position::Middle) && len > 0 {
            self.mtu = Some(len);
        }
        let is_first_time = event.is_new() || matches!(event, Event::FillsGap { .. });
        let begins = matches!(position, Position::First | Position::Only) && is_first_time;
        Step { seq, event, message: if begins { None } else { self.message_at(seq) } }
    }

    fn add(&mut self, psn: Psn, span: (i64, i64)) -> (Seq, Event) {
        let (seq, (least, most)) = (self.seq_of(psn), self.sequence.next());
        let event = match self.sequence.add(seq, span) {
            Place::Next => Event::New,
            Place::AfterGap => Event::Gap { expected: psn_of(most), missing: (seq - most) as u32 },
            Place::OutOfReach => {
                *self = Self::new(psn);
                self.add(psn, span);
                return (self.sequence.first(), Event::Restart { expected: psn_of(least) });
            }
            Place::InGap | Place::BeforeFirst => {
                let cause = self.cause_of(seq);
                self.resent = Some((seq, cause));
                Event::FillsGap { cause }
            }
            Place::SentBefore => {
                let cause = self.cause_of(seq);
                self.resent = Some((seq, cause));
                let times = self.repeats.entry(seq).or_insert(1);
                *times += 1;
                Event::Retransmission { times: *times, cause, is_acknowledged: Some(seq) <= self.acknowledged }
            }
        };
        (seq, event)
    }

    /// Returns the cause of a retransmission: a NAK, or the cause of the retransmission before it.
    fn cause_of(&mut self, seq: Seq) -> Cause {
        if let Some((_, cause)) = self.nak.take_if(|(expected, _)| *expected <= seq) {
            return cause;
        }
        match self.resent {
            Some((last, cause)) if last + 1 == seq => cause,
            _ => Cause::Unanswered,
        }
    }

    /// Returns the message with this sequence number.
    pub(crate) fn message_at(&self, seq: Seq) -> Option<usize> {
        self.starts.range(..=seq).next_back().map(|(_, message)| *message)
    }

    /// Records that `message` begins at `seq`.
    pub(crate) fn begin(&mut self, seq: Seq, message: usize) {
        self.starts.insert(seq, message);
    }

    /// Counts a damaged packet as sent if it is next in sequence; otherwise ignores it.
    pub(crate) fn take_damaged(&mut self, psn: Psn) {
        let (least, most) = self.sequence.next();
        if self.seq_of(psn) == least && least == most {
            self.sequence.add(least, (1, 1));
        }
    }

    /// Marks requests up to `seq` as acknowledged.
    pub(crate) fn acknowledge(&mut self, seq: Seq) {
        self.acknowledged = self.acknowledged.max(Some(seq));
    }

    /// Records a NAK with `psn`.
    pub(crate) fn nak(&mut self, psn: Psn, cause: Cause) {
        self.nak = Some((self.seq_of(psn), cause));
    }

    /// Learns the path MTU from the payload of a full response.
    pub(crate) fn learn_mtu(&mut self, len: usize) {
        self.mtu = u32::try_from(len).ok().filter(|len| *len > 0).or(self.mtu);
    }
}
