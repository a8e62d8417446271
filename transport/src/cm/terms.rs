//! What programs say when they connect, accept or resolve, and what they are told: terms, settings,
//! reasons, events; and the queue of messages and events that leave the machine.
//!
//! The values that `new` fills in are those of the kernel's rdma_cm.

use crate::reasons::reasons;
use core::time::Duration;
use roxe_wire::cm::{
    Apr, AprStatus, CommId, FlowLabel, Guid, Info, Lap, Mad, Message, PrivateData, Rej, RejReason, Rep, Req, ServiceId,
    SidrRep, SidrReq, SidrStatus, Small, TimeCode, TransactionId, Transport, VendorId,
};
use roxe_wire::{Gid, PathMtu, Psn, Qkey, Qpn};
use std::collections::VecDeque;

/// The two addresses between which the messages of a connection travel, from our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Our address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
}

/// Options of a vendor that ride on a message (enhanced connection establishment).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose options; 0 for none.
    pub vendor_id: VendorId,
    /// The options: the attribute modifier of the message.
    pub options: u32,
}

impl Ece {
    /// No options.
    pub const NONE: Self = Self { vendor_id: VendorId::new(0), options: 0 };
}

/// What the active side proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Between which addresses, for messages and for the queue pair.
    pub route: Route,
    /// The service asked for.
    pub service_id: ServiceId,
    /// Which kind of queue pair.
    pub transport: Transport,
    /// Options of a vendor.
    pub ece: Ece,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The PSN that the peer's queue pair shall start with. Unpredictable.
    pub psn: Psn,
    /// READs and atomics that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we want to issue at a time.
    pub initiator_depth: u8,
    /// Whether we ask for end-to-end flow control.
    pub flow_control: bool,
    /// How often a queue pair repeats.
    pub retry_count: Small<3>,
    /// How often a queue pair waits for a receive of its peer; 7 is for ever.
    pub rnr_retry_count: Small<3>,
    /// Whether our queue pair receives from a shared queue.
    pub srq: bool,
    /// The path MTU, of both directions.
    pub path_mtu: PathMtu,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Hop limit; 1 says that the peer is on our subnet.
    pub hop_limit: u8,
    /// How long a packet lives on the way, a code.
    pub packet_lifetime: TimeCode,
    /// How long either connection manager may take to answer, a code.
    pub response_timeout: TimeCode,
    /// How often either connection manager repeats what is not answered.
    pub max_cm_retries: Small<4>,
    /// How long the request is repeated, with pauses, after the first answer that nobody listens at
    /// the peer; zero: that one counts.
    pub retry_for: Duration,
    /// For the program at the other end; librdmacm's begins with the addresses and the port.
    pub private_data: PrivateData<92>,
}

impl Connect {
    /// A reliable connection between these addresses as rdma_cm makes it, with nothing in flight
    /// for READs and atomics.
    pub const fn new(route: Route, service_id: ServiceId, qpn: Qpn, psn: Psn) -> Self {
        Self {
            route,
            service_id,
            transport: Transport::Rc,
            ece: Ece::NONE,
            qpn,
            psn,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: Small::MAX,
            rnr_retry_count: Small::MAX,
            srq: false,
            path_mtu: PathMtu::Mtu1024,
            flow_label: FlowLabel::new(0),
            traffic_class: 0,
            hop_limit: 64,
            packet_lifetime: TimeCode::new(16),
            response_timeout: TimeCode::new(20),
            max_cm_retries: Small::MAX,
            retry_for: Duration::ZERO,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// What the passive side answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Options of a vendor.
    pub ece: Ece,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The PSN that the peer's queue pair shall start with. Unpredictable.
    pub psn: Psn,
    /// READs and atomics that we serve at a time; not above what the request asks for.
    pub responder_resources: u8,
    /// READs and atomics that we want to issue at a time; not above what the request offers.
    pub initiator_depth: u8,
    /// Whether we ask for end-to-end flow control.
    pub flow_control: bool,
    /// How often the peer's queue pair waits for a receive of ours; 7 is for ever.
    pub rnr_retry_count: Small<3>,
    /// Whether our queue pair receives from a shared queue.
    pub srq: bool,
    /// For the program at the other end.
    pub private_data: PrivateData<196>,
}

impl Accept {
    /// Accepts with this queue pair, with nothing in flight for READs and atomics.
    pub fn new(qpn: Qpn, psn: Psn) -> Self {
        Self { qpn, psn, rnr_retry_count: Small::MAX, ..Self::default() }
    }
}

/// How a program refuses a request, or an answer to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why; [`RejReason::ConsumerDefined`] unless the program has something better to say.
    pub reason: RejReason,
    /// What goes with the reason.
    pub info: Info,
    /// For the program at the other end.
    pub private_data: PrivateData<148>,
}

impl Refusal {
    /// The program does not want to, as `rdma_reject` says it.
    pub const fn new(private_data: PrivateData<148>) -> Self {
        Self { reason: RejReason::ConsumerDefined, info: Info::EMPTY, private_data }
    }
}

/// What a client of a datagram service asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Between which addresses.
    pub route: Route,
    /// The service asked for.
    pub service_id: ServiceId,
    /// How long the server's connection manager may take to answer, a code.
    pub response_timeout: TimeCode,
    /// How often to ask again.
    pub max_cm_retries: Small<4>,
    /// As [`Connect::retry_for`].
    pub retry_for: Duration,
    /// For the server.
    pub private_data: PrivateData<216>,
}

impl Resolve {
    /// Asks as rdma_cm does.
    pub const fn new(route: Route, service_id: ServiceId) -> Self {
        Self {
            route,
            service_id,
            response_timeout: TimeCode::new(20),
            max_cm_retries: Small::MAX,
            retry_for: Duration::ZERO,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// What a datagram service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The queue pair to send to, with its key; `Err` says why there is none.
    pub service: Result<(Qpn, Qkey), SidrStatus>,
    /// Options of a vendor.
    pub ece: Ece,
    /// For the client.
    pub private_data: PrivateData<136>,
}

impl Resolution {
    /// There is no queue pair for the client.
    pub const fn refused(status: SidrStatus) -> Self {
        Self { service: Err(status), ece: Ece::NONE, private_data: PrivateData::EMPTY }
    }
}

/// Another path that one end proposes for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Between which addresses.
    pub route: Route,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Hop limit; 1 says that the peer is on our subnet.
    pub hop_limit: u8,
    /// How long a packet lives on the way, a code.
    pub packet_lifetime: TimeCode,
    /// How long the peer may take to answer, a code.
    pub response_timeout: TimeCode,
    /// For the program at the other end.
    pub private_data: PrivateData<168>,
}

impl Alternate {
    /// A path like those of [`Connect::new`].
    pub const fn new(route: Route) -> Self {
        Self {
            route,
            flow_label: FlowLabel::new(0),
            traffic_class: 0,
            hop_limit: 64,
            packet_lifetime: TimeCode::new(16),
            response_timeout: TimeCode::new(20),
            private_data: PrivateData::EMPTY,
        }
    }
}

/// What the other end answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlternateAnswer {
    /// Whether its queue pair has the path now, or why not.
    pub status: AprStatus,
    /// What goes with the status.
    pub info: Info,
    /// For the program that proposed it.
    pub private_data: PrivateData<148>,
}

impl AlternateAnswer {
    /// An answer with this status and nothing else.
    pub const fn new(status: AprStatus) -> Self {
        Self { status, info: Info::EMPTY, private_data: PrivateData::EMPTY }
    }
}

/// What connection management gives a queue pair on its way to RTS: the terms that both ends agreed
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpTerms {
    /// Between which addresses.
    pub route: Route,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The PSN that the peer starts with.
    pub rq_psn: Psn,
    /// The PSN to start with.
    pub sq_psn: Psn,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// READs and atomics that the peer may have under way.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that we may have under way.
    pub max_rd_atomic: u8,
    /// How often to repeat.
    pub retry_cnt: Small<3>,
    /// How often to wait for a receive of the peer.
    pub rnr_retry: Small<3>,
    /// Local ACK timeout, a code.
    pub timeout: TimeCode,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// What is the same for all connections of a device.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The node GUID.
    pub guid: Guid,
    /// How long the device may take to acknowledge a packet.
    pub ack_delay: TimeCode,
    /// How long a peer that repeats itself is told to wait for our program.
    pub service_timeout: TimeCode,
    /// The upper 12 bits of every id that the machine gives, so that those of several machines at
    /// one address differ; see [`CommId::prefix`](roxe_wire::cm::CommId::prefix). The rest is
    /// unpredictable.
    pub prefix: u16,
    /// The most connections and lookups, those included that are in TimeWait.
    pub max_connections: usize,
}

impl Settings {
    /// The settings of rdma_cm over rxe, and room for 65,536 connections.
    pub const fn new(guid: Guid) -> Self {
        Self {
            guid,
            ack_delay: TimeCode::new(15),
            service_timeout: TimeCode::new(24),
            prefix: 0,
            max_connections: 1 << 16,
        }
    }
}

/// Why a verb of the program was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// There is no such connection, lookup or listener (any more).
    #[error("no such connection")]
    UnknownId,
    /// The connection is in a state that does not allow it.
    #[error("not possible in this state of the connection")]
    State,
    /// Another listener takes the same requests.
    #[error("another listener has this service")]
    InUse,
    /// There are as many connections as there may be.
    #[error("too many connections")]
    Full,
}

reasons! {
    /// Reason for which a message was ignored.
    Ignored:
    /// The communication id is unknown, or does not belong to the sender.
    UnknownId => "cm_unknown_id",
    /// The source or destination address is not that of the connection.
    Address => "cm_address",
    /// The state of the connection does not allow the message.
    State => "cm_bad_state",
    /// The message is a duplicate.
    Duplicate => "cm_duplicate",
    /// The queue pair number is not that of the connection.
    Qpn => "cm_qpn",
    /// The message lacks a communication id or a GUID.
    Malformed => "cm_malformed",
    /// The request is for an unknown or unsupported service and was rejected.
    Refused => "cm_refused",
    /// The queue pair of the peer already has another connection, so the request was rejected.
    Stale => "cm_stale",
}

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

/// Names a listener for as long as the machine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(super) u64);

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
