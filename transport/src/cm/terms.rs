//! Parameters, events and errors of the verbs, and the queue of outgoing messages and events. The
//! defaults of `new` are those of the kernel's rdma_cm.

use crate::reasons::reasons;
use core::time::Duration;
use roxe_wire::cm::{
    Apr, AprStatus, CommId, FlowLabel, Guid, Info, Lap, Mad, Message, PrivateData, Rej, RejReason, Rep, Req, ServiceId,
    SidrRep, SidrReq, SidrStatus, TimeCode, TransactionId, Transport, Uint, VendorId,
};
use roxe_wire::{Gid, PathMtu, Psn, Qkey, Qpn};
use std::collections::VecDeque;

/// The two addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Our address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
}

/// Vendor options in a message (enhanced connection establishment).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor; 0 for none.
    pub vendor_id: VendorId,
    /// The options, carried in the attribute modifier.
    pub options: u32,
}

impl Ece {
    /// No options.
    pub const NONE: Self = Self { vendor_id: VendorId::new(0), options: 0 };
}

/// Parameters of [`Cm::connect`](super::Cm::connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Addresses of the messages and of the queue pair.
    pub route: Route,
    /// ID of the peer's service.
    pub service_id: ServiceId,
    /// Kind of queue pair.
    pub transport: Transport,
    /// Vendor options.
    pub ece: Ece,
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN of the peer's queue pair; must be unpredictable.
    pub psn: Psn,
    /// Maximum number of READs and atomics that we serve at a time.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that we issue at a time.
    pub initiator_depth: u8,
    /// True if end-to-end flow control is requested.
    pub flow_control: bool,
    /// Retries of the queue pairs.
    pub retry_count: Uint<3>,
    /// RNR retries of the queue pairs; 7 is infinite.
    pub rnr_retry_count: Uint<3>,
    /// True if our queue pair uses a shared receive queue.
    pub srq: bool,
    /// Path MTU of both directions.
    pub path_mtu: PathMtu,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Hop limit; 1 if the peer is on our subnet.
    pub hop_limit: u8,
    /// Packet lifetime, a code.
    pub packet_lifetime: TimeCode,
    /// Response timeout of both connection managers, a code.
    pub response_timeout: TimeCode,
    /// Retries of both connection managers.
    pub max_cm_retries: Uint<4>,
    /// Duration of retries after the peer first reports no listener; zero disables them.
    pub retry_for: Duration,
    /// Data for the peer program. That of librdmacm begins with the addresses and the port.
    pub private_data: PrivateData<92>,
}

impl Connect {
    /// Creates the parameters of a reliable connection with the defaults of rdma_cm, without READs
    /// and atomics.
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
            retry_count: Uint::MAX,
            rnr_retry_count: Uint::MAX,
            srq: false,
            path_mtu: PathMtu::Mtu1024,
            flow_label: FlowLabel::new(0),
            traffic_class: 0,
            hop_limit: 64,
            packet_lifetime: TimeCode::new(16),
            response_timeout: TimeCode::new(20),
            max_cm_retries: Uint::MAX,
            retry_for: Duration::ZERO,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// Parameters of [`Cm::accept`](super::Cm::accept).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Vendor options.
    pub ece: Ece,
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN of the peer's queue pair; must be unpredictable.
    pub psn: Psn,
    /// Maximum number of READs and atomics that we serve at a time; at most the request's value.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that we issue at a time; at most the request's value.
    pub initiator_depth: u8,
    /// True if end-to-end flow control is requested.
    pub flow_control: bool,
    /// RNR retries of the peer's queue pair; 7 is infinite.
    pub rnr_retry_count: Uint<3>,
    /// True if our queue pair uses a shared receive queue.
    pub srq: bool,
    /// Data for the peer program.
    pub private_data: PrivateData<196>,
}

impl Accept {
    /// Creates the parameters of an acceptance with this queue pair, without READs and atomics.
    pub fn new(qpn: Qpn, psn: Psn) -> Self {
        Self { qpn, psn, rnr_retry_count: Uint::MAX, ..Self::default() }
    }
}

/// Parameters of [`Cm::reject`](super::Cm::reject).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason; usually [`RejReason::ConsumerDefined`].
    pub reason: RejReason,
    /// Additional information on the reason.
    pub info: Info,
    /// Data for the peer program.
    pub private_data: PrivateData<148>,
}

impl Refusal {
    /// Creates a rejection by the program, as `rdma_reject` sends it.
    pub const fn new(private_data: PrivateData<148>) -> Self {
        Self { reason: RejReason::ConsumerDefined, info: Info::EMPTY, private_data }
    }
}

/// Parameters of [`Cm::resolve`](super::Cm::resolve).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Addresses of both ends.
    pub route: Route,
    /// ID of the server's service.
    pub service_id: ServiceId,
    /// Response timeout of the server's connection manager, a code.
    pub response_timeout: TimeCode,
    /// Maximum number of retransmissions of the request.
    pub max_cm_retries: Uint<4>,
    /// Duration of retries, as in [`Connect::retry_for`].
    pub retry_for: Duration,
    /// Data for the server.
    pub private_data: PrivateData<216>,
}

impl Resolve {
    /// Creates the parameters of a lookup with the defaults of rdma_cm.
    pub const fn new(route: Route, service_id: ServiceId) -> Self {
        Self {
            route,
            service_id,
            response_timeout: TimeCode::new(20),
            max_cm_retries: Uint::MAX,
            retry_for: Duration::ZERO,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// Parameters of [`Cm::answer`](super::Cm::answer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Queue pair and Q_Key of the service, or the reason for the refusal.
    pub service: Result<(Qpn, Qkey), SidrStatus>,
    /// Vendor options.
    pub ece: Ece,
    /// Data for the client.
    pub private_data: PrivateData<136>,
}

impl Resolution {
    /// Creates a refusal with this status.
    pub const fn refused(status: SidrStatus) -> Self {
        Self { service: Err(status), ece: Ece::NONE, private_data: PrivateData::EMPTY }
    }
}

/// Parameters of [`Cm::load_alternate`](super::Cm::load_alternate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Addresses of the alternate path.
    pub route: Route,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Hop limit; 1 if the peer is on our subnet.
    pub hop_limit: u8,
    /// Packet lifetime, a code.
    pub packet_lifetime: TimeCode,
    /// Response timeout of the peer, a code.
    pub response_timeout: TimeCode,
    /// Data for the peer program.
    pub private_data: PrivateData<168>,
}

impl Alternate {
    /// Creates the parameters of a path with the same defaults as [`Connect::new`].
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

/// Parameters of [`Cm::answer_alternate`](super::Cm::answer_alternate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlternateAnswer {
    /// Success if the queue pair has the path, or the reason for the refusal.
    pub status: AprStatus,
    /// Additional information on the status.
    pub info: Info,
    /// Data for the peer program.
    pub private_data: PrivateData<148>,
}

impl AlternateAnswer {
    /// Creates an answer with this status and no further information.
    pub const fn new(status: AprStatus) -> Self {
        Self { status, info: Info::EMPTY, private_data: PrivateData::EMPTY }
    }
}

/// Attributes for a queue pair on its way to RTS, as agreed by both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpTerms {
    /// Addresses of both queue pairs.
    pub route: Route,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN of the peer.
    pub rq_psn: Psn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// Maximum number of outstanding READs and atomics of the peer.
    pub max_dest_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics of ours.
    pub max_rd_atomic: u8,
    /// Retries after a timeout or a PSN sequence NAK.
    pub retry_cnt: Uint<3>,
    /// Retries after an RNR NAK; 7 is unlimited.
    pub rnr_retry: Uint<3>,
    /// Local ACK timeout, a code.
    pub timeout: TimeCode,
    /// IPv6 flow label.
    pub flow_label: FlowLabel,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// IPv6 hop limit or IPv4 TTL.
    pub hop_limit: u8,
}

/// Settings of all connections of a device.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The node GUID.
    pub guid: Guid,
    /// Maximum delay of the device's acknowledgements, a code.
    pub ack_delay: TimeCode,
    /// Wait requested from a peer that retransmits its message, a code.
    pub service_timeout: TimeCode,
    /// Upper 12 bits of every id, which distinguish several state machines at one address; see
    /// [`CommId::prefix`](roxe_wire::cm::CommId::prefix). The other bits are unpredictable.
    pub prefix: u16,
    /// Maximum number of connections and lookups, including those in TimeWait.
    pub max_connections: usize,
}

impl Settings {
    /// Creates the settings of rdma_cm over rxe, and room for 65,536 connections.
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

/// Refusal of a verb of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The id belongs to no connection, lookup or listener.
    #[error("the id belongs to no connection, lookup or listener")]
    UnknownId,
    /// The connection is in a state that does not allow it.
    #[error("the state of the connection does not allow this call")]
    State,
    /// Another listener accepts the same requests.
    #[error("another listener uses this service id")]
    InUse,
    /// The limit of connections is reached.
    #[error("the device has its maximum number of connections")]
    Full,
}

reasons! {
    /// Reason why a message was ignored.
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
    /// Addresses of sender and receiver.
    pub route: Route,
    /// The message with its MAD header.
    pub mad: Mad,
}

/// An event for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The connection, or the lookup of a datagram service.
    pub id: CommId,
    /// Kind of event.
    pub kind: EventKind,
}

/// Kind of event. "The id is free" means that no further event has it and no verb accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A peer requests a connection: accept or reject it.
    ConnectRequest(Origin, Box<Req>, Ece),
    /// The peer accepted: confirm or reject it.
    ConnectReply(Box<Rep>, Ece),
    /// Passive side: the peer confirmed, or has sent over the connection.
    Established,
    /// The peer rejected the connection. The id is free.
    Rejected(Box<Rej>),
    /// The peer accepted with a queue pair that another connection of ours uses, and was rejected.
    /// The id is free.
    Stale,
    /// The peer does not answer. The id is free.
    Unreachable,
    /// The connection is over. After [`Ending::Requested`] the program must agree by
    /// [`Cm::disconnect`](super::Cm::disconnect).
    Disconnected(Ending),
    /// No packet of the connection is in the network: its queue pair may be reused. The id is free.
    TimeWaitExit,
    /// The peer proposes a path: load and accept it, or refuse it.
    AlternateRequest(Box<Lap>),
    /// The peer has accepted or refused our path.
    AlternateReply(Box<Apr>),
    /// The peer did not answer our path, or proposed one at the same time.
    AlternateUnanswered,
    /// A peer looks up a datagram service: answer it.
    LookupRequest(Origin, Box<SidrReq>),
    /// A datagram service answered. The id is free.
    LookupReply(Box<SidrRep>, Ece),
}

/// Identifier of a listener, unique in the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(super) u64);

/// Listener and addresses of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Listener of the request.
    pub listener: ListenId,
    /// Our address in the request, and the peer's.
    pub route: Route,
}

/// Reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer sent a DREQ.
    Requested,
    /// Both ends agreed.
    Agreed,
    /// The peer sent a REJ.
    Rejected,
    /// The peer did not answer our DREQ.
    TimedOut,
}

/// Queued messages and events.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) messages: VecDeque<Outgoing>,
    pub(super) events: VecDeque<Event>,
}

impl Outbox {
    /// Maximum number of queued messages. A driver that fetches them after every call reaches it
    /// only when very many timers are due at once; dropped messages are retransmitted like lost
    /// ones.
    // clause: CM-BOUNDS
    pub(super) const MAX_MESSAGES: usize = 4096;

    pub(super) fn send(&mut self, route: Route, tid: TransactionId, message: impl Into<Message>) {
        self.send_mad(route, Mad { tid, modifier: 0, message: message.into() });
    }

    pub(super) fn send_mad(&mut self, route: Route, mad: Mad) {
        if self.messages.len() < Self::MAX_MESSAGES {
            self.messages.push_back(Outgoing { route, mad });
        }
    }

    pub(super) fn emit(&mut self, id: CommId, kind: EventKind) {
        self.events.push_back(Event { id, kind });
    }
}
