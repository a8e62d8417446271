//! One direction of a connection: the requests of one card and the responses of the other.

use super::charge::{Card, Charge, Charges, Role, Rule};
use super::history::History;
use crate::sequence::Seq;
use roxe_wire::{Psn, opcode::Service};
use std::collections::VecDeque;
use std::time::Duration;

/// Parameters of a direction, which do not change.
#[derive(Clone, Debug)]
pub(super) struct Params {
    pub requester: Card,
    pub responder: Card,
    pub service: Service,
    /// Path MTU, in bytes.
    pub mtu: Option<u32>,
    /// First PSN, from the REQ or REP of the requester.
    pub start: Option<Psn>,
    /// Maximum number of outstanding READs and atomics.
    pub depth: Option<u32>,
    /// ACK timeout of the requester.
    pub timeout: Option<Duration>,
    /// True if every captured packet reaches its receiver, in the captured order.
    pub is_complete: bool,
}

/// The newest sequence NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nak {
    /// Request with the PSN of the NAK.
    pub expected: Seq,
    pub packet: usize,
    /// Time of the first NAK in a row for this request, in nanoseconds.
    pub since: u64,
    /// True if that request or a later one was sent since.
    pub is_sent: bool,
    /// Number of NAKs in a row, with this PSN, after which the requester retransmitted from a later
    /// one.
    pub evasions: u32,
    /// Number of NAKs in a row with the same PSN while its request was not sent.
    pub repeats: u32,
}

/// State of a direction, learned from its packets so far.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub history: History,
    /// Newest acknowledged request, and the packet that acknowledged it.
    pub acked: Option<(Seq, usize)>,
    /// Range of the number of messages before the first request.
    pub base: Option<(i64, i64)>,
    pub nak: Option<Nak>,
    /// Newest RNR NAK: request, packet, time, wait in nanoseconds, and true if the request has been
    /// sent since.
    pub rnr: Option<(Seq, usize, u64, u64, bool)>,
    /// NAK that ended the connection: request and packet.
    pub refusal: Option<(Seq, usize)>,
    /// Newest retransmission.
    pub resent: Option<Seq>,
    /// Newest retransmission that began directly after the acknowledged requests: request, packet,
    /// time. It shows that the requester has received the acknowledgement.
    pub resumed: Option<(Seq, usize, u64)>,
    /// Newest packet because of which the requester may retransmit.
    pub retry_cause: Option<usize>,
    /// Time of the newest progress, in nanoseconds.
    pub progress: u64,
    /// True if a request was retransmitted.
    pub has_repeats: bool,
    /// READs and atomics without a response: last PSN, packet.
    pub unanswered: VecDeque<(Seq, usize)>,
    /// A request beyond the agreed depth, and the oldest unanswered request at that time.
    pub excess: Option<(usize, Seq)>,
    /// Responses to requests that were not captured: lowest request that must have been sent,
    /// packet, and true for a sequence NAK.
    pub ghosts: Vec<(Seq, usize, bool)>,
    /// Maximum number of messages for which the responder has receives, and the packet with these
    /// credits.
    pub limit: Option<(i64, usize)>,
}

/// One direction of a connection.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub params: Params,
    pub state: State,
    /// State before a request with a PSN outside the sequence, and the packet of that request.
    pub parked: Option<(Box<State>, usize)>,
    /// Number of requests that the responder received but the capture lacks.
    pub lost: u64,
    pub charges: Charges,
}

impl Channel {
    pub(super) fn new(params: Params) -> Self {
        Self { params, state: State::default(), parked: None, lost: 0, charges: Charges::default() }
    }

    pub(super) fn requester(&mut self, rule: Rule, packet: usize, text: impl Into<String>) -> &mut Charge {
        self.charges.add(rule, self.params.requester, Role::Requester, packet, text)
    }

    pub(super) fn responder(&mut self, rule: Rule, packet: usize, text: impl Into<String>) -> &mut Charge {
        self.charges.add(rule, self.params.responder, Role::Responder, packet, text)
    }
}
