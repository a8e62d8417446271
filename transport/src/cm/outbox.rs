//! What leaves the machine: messages for peers and events for programs, in order.

use super::listen::ListenId;
use super::terms::{Ece, Route};
use roxe_wire::cm::{Apr, CommId, Lap, Mad, Message, Rej, Rep, Req, SidrRep, SidrReq, TransactionId};
use std::collections::VecDeque;

/// A message to send from queue pair 1 at one address to that at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// From where to where.
    pub route: Route,
    /// The message with its MAD header.
    pub mad: Mad,
}

/// Something that a program must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The connection, or the lookup of a datagram service.
    pub id: CommId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. "The id is free" means: no other event will name it, and no verb takes it any
/// more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A peer wants to connect to a listener: accept or reject.
    ConnectRequest(Origin, Box<Req>, Ece),
    /// The peer accepts: confirm or reject.
    ConnectReply(Box<Rep>, Ece),
    /// Passive side: the peer confirmed, or has sent over the connection.
    Established,
    /// The peer does not want to be connected. The id is free.
    Rejected(Box<Rej>),
    /// The peer accepts with a queue pair that another connection of ours has, and was refused. The
    /// id is free.
    Stale,
    /// The peer does not answer. The id is free.
    Unreachable,
    /// The connection is over. After [`Ending::Asked`] the program has to agree with a disconnect
    /// of its own.
    Disconnected(Ending),
    /// No packet of the connection is on the way any more: its queue pair may be used again. The id
    /// is free.
    TimeWaitExit,
    /// The peer proposes another path: load it and answer, or answer why not.
    AlternateRequest(Box<Lap>),
    /// The peer has loaded the path that we proposed, or says why not.
    AlternateReply(Box<Apr>),
    /// The peer does not say whether it has loaded the path that we proposed, or proposed one at
    /// the same time.
    AlternateUnanswered,
    /// A peer looks for a datagram service: answer.
    LookupRequest(Origin, Box<SidrReq>),
    /// A datagram service answers. The id is free.
    LookupReply(Box<SidrRep>, Ece),
}

/// For whom a request is, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The listener that takes the request.
    pub listener: ListenId,
    /// The address that the peer asked at, and its own.
    pub route: Route,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer asks for it.
    Asked,
    /// Both want it.
    Agreed,
    /// The peer threw it away.
    Rejected,
    /// We want it, and the peer does not answer.
    TimedOut,
}

/// Messages and events that nobody has fetched yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: VecDeque<Outgoing>,
    events: VecDeque<Event>,
}

impl Outbox {
    /// The most messages that wait. A driver that fetches them after every call meets this only
    /// when very many timers are due at once; what is lost here is repeated like what is lost on
    /// the way.
    // clause: CM-BOUNDS
    pub(super) const MOST: usize = 4096;

    /// Sends a message without options.
    pub(super) fn send(&mut self, route: Route, tid: TransactionId, message: impl Into<Message>) {
        self.send_mad(route, Mad { tid, modifier: 0, message: message.into() });
    }

    pub(super) fn send_mad(&mut self, route: Route, mad: Mad) {
        if self.messages.len() < Self::MOST {
            self.messages.push_back(Outgoing { route, mad });
        }
    }

    pub(super) fn tell(&mut self, id: CommId, kind: EventKind) {
        self.events.push_back(Event { id, kind });
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.messages.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
