//! State shared by both roles of a queue pair: attributes, creation parameters, pending events and
//! errors; and the reasons why a work request or a packet was refused.

use crate::cx::{Ending, Host, Side};
use crate::qp::features::congestion::{self, Congestion, RateLimit};
use crate::qp::features::tags::Rendezvous;
use crate::reasons::reasons;
use crate::wr::{Access, Av, Cqe};
use bitflags::bitflags;
use core::fmt;
use core::num::NonZeroU64;
use roxe_wire::{ECN, MAX_PAYLOAD, PathMtu, Psn, Qkey, Qpn};
use thiserror::Error;

/// State of a queue pair (values of `enum ibv_qp_state`, IBA §10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Reset; the queues are empty.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining: started requests finish, no other starts.
    Sqd = 4,
    /// A send failed on UC or UD: sends flush, receiving continues.
    Sqe = 5,
    /// All work requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states, in numeric order.
    pub const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Returns the state with this `enum ibv_qp_state` value.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == code)
    }

    /// Returns true if incoming requests are executed (IBA §10.3.1: RTR, RTS, SQD and SQE).
    // clause: TAKE-REQUESTS
    pub const fn accepts_requests(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Returns true if responses to own requests are accepted.
    // clause: TAKE-RESPONSES
    pub const fn accepts_responses(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

bitflags! {
    /// Fields of a [`QpAttr`] that a modify sets (values of `enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_av`, `alt_pkey_index`, `alt_port`, `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue depths; they cannot be changed.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// State of path migration (values of `enum ibv_mig_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MigState {
    /// No migration is prepared, or it has taken place.
    #[default]
    Migrated = 0,
    /// Software offers the alternate path; the peer has not offered it yet.
    Rearm = 1,
    /// Both ends may migrate to the alternate path.
    Armed = 2,
}

impl MigState {
    /// Returns the state with this `enum ibv_mig_state` value.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Migrated, Self::Rearm, Self::Armed].into_iter().find(|state| *state as u8 == code)
    }
}

/// The attributes of a queue pair, as modify sets and query reports them (`struct ibv_qp_attr`, IBA
/// §11.2.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The state; the target of a modify.
    pub state: QpState,
    /// On input with `CUR_STATE`: the state assumed by the caller.
    pub cur_state: Option<QpState>,
    /// Payload bytes of a full packet.
    pub path_mtu: PathMtu,
    /// State of path migration.
    pub path_mig_state: MigState,
    /// Q_Key required of datagrams to this QP.
    pub qkey: Qkey,
    /// First PSN expected from the peer.
    pub rq_psn: Psn,
    /// First PSN sent to the peer.
    pub sq_psn: Psn,
    /// The peer's queue pair number.
    pub dest_qpn: Qpn,
    /// Rights of the peer.
    pub access: Access,
    /// Path to the peer.
    pub av: Av,
    /// Alternate path to the peer; all zero if none is loaded.
    pub alt_av: Av,
    /// Index in the P_Key table; 0.
    pub pkey_index: u16,
    /// Alternate index in the P_Key table; 0.
    pub alt_pkey_index: u16,
    /// True if `SQ_DRAINED` is raised when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// Maximum number of READs and atomics outstanding at the peer.
    pub max_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics of the peer at this queue pair.
    pub max_dest_rd_atomic: u8,
    /// Code of the wait requested by RNR NAKs, 0..=31.
    pub min_rnr_timer: u8,
    /// Physical port; 1.
    pub port: u8,
    /// Code of the local ACK timeout, 0..=31.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 0..=7; 7 is infinite.
    pub rnr_retry: u8,
    /// Alternate port; 1.
    pub alt_port: u8,
    /// Code of the local ACK timeout on the alternate path, 0..=31.
    pub alt_timeout: u8,
    /// Rate limit of the send queue.
    pub rate_limit: RateLimit,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: None,
            path_mtu: PathMtu::Mtu256,
            path_mig_state: MigState::Migrated,
            qkey: Qkey::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            dest_qpn: Qpn::default(),
            access: Access::default(),
            av: Av::default(),
            alt_av: Av::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port: 0,
            alt_timeout: 0,
            rate_limit: RateLimit::default(),
        }
    }
}

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// XRC initiator: every message carries the number of an SRQ of the peer.
    XrcIni,
    /// XRC target: receives are taken from the SRQ whose number the message carries.
    XrcTgt,
    /// Whole Ethernet frames.
    Raw,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcIni, Self::XrcTgt, Self::Raw];

    /// Returns the name in `enum ibv_qp_type`, without `IBV_QPT_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcIni => "XRC_SEND",
            Self::XrcTgt => "XRC_RECV",
            Self::Raw => "RAW_PACKET",
        }
    }

    /// Returns true if requests are acknowledged and retransmitted.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }
}

/// Depths and limits of a QP, fixed at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receive work requests; 0 with an SRQ.
    pub max_recv_wr: u32,
    /// Maximum number of elements in a send list.
    pub max_send_sge: u32,
    /// Maximum number of elements in a receive list.
    pub max_recv_sge: u32,
    /// Maximum inline data in bytes.
    pub max_inline_data: u32,
}

/// Creation parameters of a QP.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Transport service.
    pub service: Service,
    /// Queue depths.
    pub caps: QpCaps,
    /// True if every send work request reports success, also without `SIGNALED`.
    pub sq_sig_all: bool,
    /// Maximum number of list elements in the shared receive queue; `None` without one.
    pub srq_max_sge: Option<u32>,
    /// True if that queue matches tags (RC only). `srq_max_sge` then also limits posted tags.
    pub tag_matching: bool,
    /// The port's active MTU: the largest UD payload in bytes. On raw packets the largest frame.
    pub port_mtu: u32,
    /// Line rate in bit/s for DCQCN (RC and UC): react to CNPs and mark packets as ECN-capable.
    /// `None` disables both.
    pub line_rate: Option<NonZeroU64>,
}

impl QpConfig {
    /// Creates a configuration with its own receive queue, no optional feature and the largest MTU.
    pub const fn new(qpn: Qpn, service: Service, caps: QpCaps) -> Self {
        let (sq_sig_all, srq_max_sge, tag_matching, line_rate) = (false, None, false, None);
        Self { qpn, service, caps, sq_sig_all, srq_max_sge, tag_matching, port_mtu: MAX_PAYLOAD as u32, line_rate }
    }
}

bitflags! {
    /// Affiliated asynchronous events a QP raises (IBA §11.6.3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpEvents: u8 {
        /// First request received in RTR.
        const COMM_EST = 1;
        /// The send queue was drained (SQD).
        const SQ_DRAINED = 1 << 1;
        /// Completions can no longer be delivered.
        const FATAL = 1 << 2;
        /// A peer's request was illegal and no receive request could report it.
        const REQ_ERR = 1 << 3;
        /// A peer violated memory protection and no receive request could report it.
        const ACCESS_ERR = 1 << 4;
        /// In the error state, and the last shared receive is complete.
        const LAST_WQE_REACHED = 1 << 5;
        /// The connection migrated to the alternate path.
        const PATH_MIG = 1 << 6;
        /// The peer requested migration to a path that is not the alternate one.
        const PATH_MIG_ERR = 1 << 7;
    }
}

/// Losses and RNR NAKs since the last call, named like hardware counters. They count whether or not
/// the message fails in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCounts {
    /// Sequence error NAKs received.
    pub packet_seq_err: u32,
    /// Responses that imply the loss of an earlier response.
    pub implied_nak_seq_err: u32,
    /// RNR NAKs received.
    pub rnr_nak_retry_err: u32,
    /// Expirations of the local ACK timeout.
    pub local_ack_timeout_err: u32,
    /// RNR NAKs sent.
    pub send_rnr_err: u32,
}

impl RetryCounts {
    /// Returns true if all counts are zero. Called after every packet: the OR is cheaper than a
    /// comparison with the default.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { packet_seq_err, implied_nak_seq_err, rnr_nak_retry_err, local_ack_timeout_err, send_rnr_err } = self;
        *packet_seq_err | *implied_nak_seq_err | *rnr_nak_retry_err | *local_ack_timeout_err | *send_rnr_err == 0
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: QpConfig,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    /// `attr.av` with the ECN bits of the connection's packets.
    pub(crate) path: Av,
    pub(crate) congestion: Congestion,
    pub(crate) retries: RetryCounts,
    /// Events for the next `poll_event`.
    pub(crate) events: QpEvents,
    /// True if a role hit a fatal error: the QP must enter ERR before the call returns.
    pub(crate) failed: bool,
    /// True if a send failed on UC or UD: the QP must enter SQE before the call returns.
    pub(crate) send_error: bool,
    /// True if `PATH_MIG_ERR` was raised since software armed the migration.
    pub(crate) migration_failed: bool,
    /// Tag matching: rendezvous that the requester must begin.
    pub(crate) rendezvous: Option<Rendezvous>,
    /// True if the data of a rendezvous was read.
    pub(crate) rendezvous_read: bool,
    /// Number of outstanding rendezvous.
    pub(crate) rendezvous_count: u32,
}

impl Shared {
    pub(crate) fn new(config: QpConfig) -> Self {
        let attr = QpAttr::default();
        Self {
            config,
            state: attr.state,
            attr,
            path: attr.av,
            congestion: Congestion::default(),
            retries: RetryCounts::default(),
            events: QpEvents::empty(),
            failed: false,
            send_error: false,
            migration_failed: false,
            rendezvous: None,
            rendezvous_read: false,
            rendezvous_count: 0,
        }
    }

    /// Applies the path and the rate limits of the attributes.
    pub(crate) fn set_path(&mut self) {
        self.path = self.attr.av;
        // clause: STATIC-RATE
        self.congestion.set_limit(self.attr.rate_limit, self.path.static_rate);
        // clause: ECN-CAPABLE
        if self.config.line_rate.is_some() {
            self.path.traffic_class = self.path.traffic_class & !ECN | congestion::ECT_0;
        }
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.attr.state = state;
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Appends `cqe` to the queue of `side` and fills in `qpn` and `timestamp`. A CQ overrun is
    /// fatal to the QP (IBA §10.8.3).
    #[inline]
    pub(crate) fn complete<H: Host>(&mut self, host: &mut H, side: Side, mut cqe: Cqe) {
        (cqe.qpn, cqe.timestamp) = (self.config.qpn, host.now().0);
        if let Err(ending) = host.complete(side, cqe) {
            self.end(side, ending);
        }
    }
}

impl Shared {
    /// Ends the QP after a completion.
    #[cold]
    fn end(&mut self, side: Side, ending: Ending) {
        match ending {
            // clause: CQ-OVERRUN
            Ending::Fatal => self.events.insert(QpEvents::FATAL),
            // clause: STATE-SQE
            Ending::Failed if side == Side::Send && matches!(self.config.service, Service::Uc | Service::Ud) => {
                self.send_error = true;
                return;
            }
            Ending::Failed => {}
        }
        self.failed = true;
    }
}

/// Reason why a work request was refused; nothing was queued (`man ibv_post_send`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PostError {
    /// The state of the QP does not allow it.
    #[error("the queue pair is not in a state that accepts this work request")]
    State,
    /// The queue is full.
    #[error("the queue is full")]
    QueueFull,
    /// The list is longer than the queue was created for.
    #[error("the scatter/gather list has too many elements")]
    TooManySges,
    /// More inline bytes than the queue was created for.
    #[error("the inline data is longer than max_inline_data")]
    InlineTooLong,
    /// The service or `max_rd_atomic` = 0 excludes this operation, or its data cannot be inline.
    #[error("the queue pair does not support this operation")]
    BadOpcode,
    /// The message is longer than 2^31 bytes, an ATOMIC WRITE does not have 8 bytes, or a FLUSH has
    /// data.
    #[error("the length is out of range")]
    BadLength,
    /// A datagram without a destination.
    #[error("the datagram needs an address handle")]
    MissingDestination,
}

reasons! {
    /// Reason why a packet was dropped. Only counters record it, because a dropped packet
    /// must have no effect on the connection.
    DropReason:
    /// The state of the QP does not allow this kind of packet.
    BadState => "bad_state",
    /// The packet belongs to another transport service.
    WrongService => "wrong_service",
    /// The P_Key does not match.
    Pkey => "pkey",
    /// The Q_Key does not match.
    Qkey => "qkey",
    /// The source or destination address is not that of the connection.
    Address => "address",
    /// A response to a request that was never sent.
    GhostResponse => "ghost_response",
    /// A response to a request that has completed.
    DuplicateResponse => "duplicate_response",
    /// A response that reports a loss for which a retransmission is already in progress.
    AwaitingRetry => "awaiting_retry",
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome => "reserved_syndrome",
    /// A request that was executed before.
    DuplicateRequest => "duplicate_request",
    /// A request after a lost one.
    OutOfSequence => "out_of_sequence",
    /// A request that needs a receive while none is posted.
    NoReceive => "no_receive",
    /// A request that is malformed, unsupported, not allowed on this QP, or longer than the
    /// receive.
    InvalidRequest => "invalid_request",
    /// A request that its remote key does not permit.
    RemoteAccess => "remote_access",
    /// A valid request for which the local application's own memory cannot be used.
    LocalProtection => "local_protection",
    /// A congestion notification (CNP) for a queue pair without rate control.
    CongestionNotice => "rp_cnp_ignored",
}
