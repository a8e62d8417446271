//! What requester and responder of one QP both read: identity, attributes, state; and what they
//! tell the QP to do next.

use crate::cx::{Host, Side};
use crate::qp::attr::{QpAttr, QpState};
use crate::qp::congestion::{self, Congestion};
use crate::qp::retry::RetryCounts;
use crate::qp::tagged::Rendezvous;
use crate::wr::{Av, Cqe};
use bitflags::bitflags;
use core::num::NonZeroU64;
use roxe_wire::{MAX_PAYLOAD, Qpn};

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending end of an extended reliable connection: every message names a shared receive
    /// queue of the peer.
    XrcIni,
    /// The receiving end of one: it takes receives from the queues of its domain that the messages
    /// name.
    XrcTgt,
    /// Whole Ethernet frames.
    Raw,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcIni, Self::XrcTgt, Self::Raw];

    /// As `enum ibv_qp_type` calls it, without `IBV_QPT_`.
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

    /// Whether requests are acknowledged and repeated.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }
}

/// Depths and limits of a QP, fixed at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding; 0 with an SRQ.
    pub max_recv_wr: u32,
    /// Elements of a send list.
    pub max_send_sge: u32,
    /// Elements of a receive list.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// What a QP is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub service: Service,
    /// Its queues.
    pub caps: QpCaps,
    /// Every send work request reports success, whatever its flags say.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue; lists there have at most this many elements.
    pub srq_max_sge: Option<u32>,
    /// That queue matches tags (RC only). `srq_max_sge` then holds for posted tags too.
    pub tag_matching: bool,
    /// Bytes of the largest UD payload, which is the port's active MTU; on raw packets of the
    /// largest frame.
    pub port_mtu: u32,
    /// Slow down when the peer tells of congestion, up to a line of this many bit/s, and let
    /// switches mark our packets (RC and UC). `None`: neither.
    pub line_rate: Option<NonZeroU64>,
}

impl QpConfig {
    /// With receives of its own and none of what is optional, on a port with the largest MTU.
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
        /// The send queue is drained (SQD).
        const SQ_DRAINED = 1 << 1;
        /// Completions can no longer be delivered.
        const FATAL = 1 << 2;
        /// A peer's request was illegal and no receive request could report it.
        const REQ_ERR = 1 << 3;
        /// A peer violated memory protection and no receive request could report it.
        const ACCESS_ERR = 1 << 4;
        /// In the error state and the last shared receive request is done.
        const LAST_WQE_REACHED = 1 << 5;
        /// The connection goes on over the alternate path.
        const PATH_MIG = 1 << 6;
        /// The peer asked for a path that is not the alternate one.
        const PATH_MIG_ERR = 1 << 7;
    }
}

/// State that both roles of a QP see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: QpConfig,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    /// `attr.av` as packets of the connection carry it.
    pub(crate) path: Av,
    /// What is known of congestion on that path.
    pub(crate) congestion: Congestion,
    /// What it met of losses.
    pub(crate) retries: RetryCounts,
    /// Raised and not yet taken by `poll_event`.
    pub(crate) events: QpEvents,
    /// A role hit a fatal error: the QP must enter the error state before the call returns.
    pub(crate) failed: bool,
    /// A send error on UC/UD: the QP must enter SQE before the call returns.
    pub(crate) send_error: bool,
    /// `PATH_MIG_ERR` was raised since software armed the migration.
    pub(crate) migration_failed: bool,
    /// Tag matching: the rendezvous that a message has just asked for, whether the data of one has
    /// just come, and how many are under way.
    pub(crate) rendezvous: Option<Rendezvous>,
    pub(crate) rendezvous_read: bool,
    pub(crate) rendezvous_count: u32,
}

impl Shared {
    /// A QP in RESET.
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

    /// Takes over the path in the attributes, and how much may be sent.
    pub(crate) fn set_path(&mut self) {
        self.path = self.attr.av;
        // clause: STATIC-RATE
        self.congestion.set_limit(self.attr.rate_limit, self.path.static_rate);
        // clause: ECN-CAPABLE
        if self.config.line_rate.is_some() {
            self.path.traffic_class = congestion::markable(self.path.traffic_class);
        }
    }

    /// Enters `state`.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.attr.state = state;
    }

    /// A role cannot go on: the QP goes to the error state before the call returns.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Appends `cqe` to the queue of `side`; `qpn` and `timestamp` are filled in here. When the
    /// queue takes no more, the QP can no longer report anything (IBA §10.8.3).
    #[inline]
    pub(crate) fn complete<H: Host>(&mut self, host: &mut H, side: Side, mut cqe: Cqe) {
        (cqe.qpn, cqe.timestamp) = (self.config.qpn, host.now().0);
        if host.complete(side, cqe).is_err() {
            // clause: CQ-OVERRUN
            self.events.insert(QpEvents::FATAL);
            self.failed = true;
        }
    }
}
