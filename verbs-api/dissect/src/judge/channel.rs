//! One direction of a connection: the requests of one card and the answers of the other.

use super::charge::{Card, Charge, Role, Rule};
use super::history::History;
use crate::sequence::Seq;
use roxe_wire::{Psn, opcode::Service};
use std::collections::VecDeque;
use std::time::Duration;

/// Facts about a direction that do not change.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub requester: Card,
    pub responder: Card,
    pub service: Service,
    /// Path MTU, bytes.
    pub mtu: Option<u32>,
    /// First PSN, as the responder named it.
    pub start: Option<Psn>,
    /// Most unanswered READs and atomics.
    pub depth: Option<u32>,
    /// ACK timeout.
    pub timeout: Option<Duration>,
    /// True if what passes the capture reaches the cards, and in its order.
    pub is_complete: bool,
}

/// The newest sequence NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nak {
    /// Request that it asks for.
    pub expected: Seq,
    pub packet: usize,
    /// Time of the first NAK in a row for this request, in nanoseconds.
    pub since: u64,
    /// True if that request, or another one behind it, was sent since.
    pub is_sent: bool,
    /// Number of NAKs in a row after which the requester began behind their PSN.
    pub evasions: u32,
    /// Number of NAKs in a row that asked for the same request while it was not sent.
    pub repeats: u32,
}

/// State of a direction, learned from its packets so far.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub history: History,
    /// Newest acknowledged request, and the packet that acknowledged it.
    pub acked: Option<(Seq, usize)>,
    /// Range of the count of messages before the first request.
    pub base: Option<(i64, i64)>,
    pub nak: Option<Nak>,
    /// Newest RNR NAK: request, packet, time, wait in nanoseconds, and true if the request was sent
    /// since.
    pub rnr: Option<(Seq, usize, u64, u64, bool)>,
    /// NAK that ended the connection: request and packet.
    pub refusal: Option<(Seq, usize)>,
    /// Newest retransmission.
    pub resent: Option<Seq>,
    /// Newest retransmission that began directly behind the acknowledged requests: request, packet,
    /// time.
    pub shown: Option<(Seq, usize, u64)>,
    /// Newest packet that lets the requester send again.
    pub urge: Option<usize>,
    /// Time of the newest progress, in nanoseconds.
    pub progress: u64,
    /// True if a request was sent again.
    pub has_repeats: bool,
    /// READs and atomics without an answer: last PSN, packet.
    pub unanswered: VecDeque<(Seq, usize)>,
    /// A request beyond the agreed depth, and the oldest unanswered one at that time.
    pub too_deep: Option<(usize, Seq)>,
    /// Responses to requests that were not seen: least request that must have been sent, packet,
    /// and true for a sequence NAK.
    pub ghosts: Vec<(Seq, usize, bool)>,
    /// Most messages that the responder has receives for.
    pub limit: Option<(i64, usize)>,
}

/// One direction of a connection.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub terms: Terms,
    pub state: State,
    /// State before a request with a PSN from elsewhere, and that request.
    pub parked: Option<(Box<State>, usize)>,
    /// Number of requests that the responder got although the capture has not.
    pub lost: u64,
    pub charges: Vec<Charge>,
}

impl Channel {
    pub(super) fn new(terms: Terms) -> Self {
        Self { terms, state: State::default(), parked: None, lost: 0, charges: Vec::new() }
    }

    /// Charges the requester.
    pub(super) fn requester(&mut self, rule: Rule, packet: usize, text: String) -> &mut Charge {
        let charge = Charge::new(rule, self.terms.requester, Role::Requester, packet, text);
        self.charge(charge)
    }

    /// Charges the responder.
    pub(super) fn responder(&mut self, rule: Rule, packet: usize, text: String) -> &mut Charge {
        let charge = Charge::new(rule, self.terms.responder, Role::Responder, packet, text);
        self.charge(charge)
    }

    fn charge(&mut self, charge: Charge) -> &mut Charge {
        self.charges.push(charge);
        let last = self.charges.len() - 1;
        &mut self.charges[last]
    }
}
