//! The attributes of a queue pair and their names, as modify sets and query reports them. Pure
//! data.

use crate::qp::congestion::RateLimit;
use crate::wr::{Access, Av};
use bitflags::bitflags;
use core::fmt;
use roxe_wire::{PathMtu, Psn, Qkey, Qpn};

/// State of a queue pair (values of `enum ibv_qp_state`, IBA §10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Fresh or reset; the queues are empty.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is drained: started requests finish, no other starts.
    Sqd = 4,
    /// A send failed on UC or UD: sends flush, receiving goes on.
    Sqe = 5,
    /// Everything flushes.
    Err = 6,
}

impl QpState {
    /// All states, in numeric order.
    pub const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state with this `enum ibv_qp_state` value.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == code)
    }

    /// Whether incoming requests are executed (IBA §10.3.1: RTR, RTS, SQD and SQE).
    // clause: TAKE-REQUESTS
    pub const fn accepts_requests(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether responses to own requests are taken.
    // clause: TAKE-RESPONSES
    pub const fn accepts_responses(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

bitflags! {
    /// Which fields of a [`QpAttr`] a modify sets (values of `enum ibv_qp_attr_mask`).
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
    /// On the path; there is no alternate one, or it waits for software.
    #[default]
    Migrated = 0,
    /// Software offers the alternate path; the peer has not said that it does the same.
    Rearm = 1,
    /// Both ends may go over to the alternate path.
    Armed = 2,
}

impl MigState {
    /// The state with this `enum ibv_mig_state` value.
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
    /// On input with `CUR_STATE`: the state that the caller believes the QP is in.
    pub cur_state: Option<QpState>,
    /// Payload bytes of a full packet.
    pub path_mtu: PathMtu,
    /// State of path migration.
    pub path_mig_state: MigState,
    /// Key that datagrams to this QP must carry.
    pub qkey: Qkey,
    /// First PSN expected from the peer.
    pub rq_psn: Psn,
    /// First PSN sent to the peer.
    pub sq_psn: Psn,
    /// The peer.
    pub dest_qpn: Qpn,
    /// What the peer may do.
    pub access: Access,
    /// The way to the peer.
    pub av: Av,
    /// Alternate way to the peer; all zero when none is loaded.
    pub alt_av: Av,
    /// Index in the P_Key table; 0.
    pub pkey_index: u16,
    /// Alternate index in the P_Key table; 0.
    pub alt_pkey_index: u16,
    /// Raise `SQ_DRAINED` when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// READs and atomics this QP may have outstanding at the peer.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Code of the wait that an RNR NAK asks for, 0..=31.
    pub min_rnr_timer: u8,
    /// Physical port; 1.
    pub port: u8,
    /// Code of the local ACK timeout, 0..=31.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 0..=7; 7 is without end.
    pub rnr_retry: u8,
    /// Alternate port; 1.
    pub alt_port: u8,
    /// Code of the local ACK timeout on the alternate way, 0..=31.
    pub alt_timeout: u8,
    /// How fast it may send.
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
