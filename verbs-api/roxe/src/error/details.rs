//! What the variants of [`Error`](crate::Error) carry: a refusal of the card, a request that was
//! not posted, one that failed later, a connection that did not come about.
//!
//! Touches no device.

use crate::cm::{CmEventKind, failure_text};
use crate::{QpState, WcOpcode, WcStatus};
use roxe_provider as provider;
use roxe_transport::qp::PostError;
use roxe_wire::Qpn;
use std::fmt;

/// The card refused a verb, with the errno that a C program would see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Refusal(pub(super) provider::Error);

impl Refusal {
    /// The errno of `<errno.h>`, positive; the manual page of the verb lists them.
    pub fn errno(&self) -> i32 {
        self.0.errno()
    }
}

impl From<Refusal> for provider::Error {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

/// A work request was refused at the queue; nothing was sent for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The queue pair and its state now; none if it is a shared receive queue.
    pub qp: Option<(Qpn, QpState)>,
    /// The request, in words.
    pub what: &'static str,
    /// Position in the list that was posted; the requests before it were accepted.
    pub index: usize,
    /// Why.
    pub source: PostError,
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp, what, source, .. } = self;
        match qp {
            Some((qpn, state)) => write!(f, "queue pair {qpn} (state {state:?}) ")?,
            None => f.write_str("the shared receive queue ")?,
        }
        write!(f, "refused {what}: {source}{}", advice(*source))
    }
}

impl std::error::Error for RefusedRequest {}

/// A work request was accepted and failed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{opcode:?} with wr_id {wr_id} on queue pair {qpn} failed: {}", explain(*status))]
pub struct FailedCompletion {
    /// Number of the work request.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// What it was.
    pub opcode: WcOpcode,
    /// How it ended.
    pub status: WcStatus,
    /// Detail: a number from the list in docs/use.md, 0 if there is none.
    pub vendor_err: u32,
}

/// A connection did not come about, or something else that [`cm`](crate::cm) was asked to do did
/// not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", failure_text(*kind, *status))]
pub struct FailedConnection {
    /// How it ended.
    pub kind: CmEventKind,
    /// A negative errno, or the number that the peer gave as the reason.
    pub status: i32,
    /// What the peer said when it refused, filled up with zeros.
    pub private_data: Vec<u8>,
}

impl FailedConnection {
    /// The errno that comes nearest, positive.
    pub(super) fn errno(&self) -> i32 {
        match self.kind {
            _ if self.status < 0 => self.status.saturating_neg(),
            CmEventKind::Rejected => libc::ECONNREFUSED,
            CmEventKind::Unreachable => libc::ETIMEDOUT,
            CmEventKind::AddrError | CmEventKind::RouteError => libc::EHOSTUNREACH,
            CmEventKind::DeviceRemoval => libc::ENODEV,
            _ => libc::ECONNABORTED,
        }
    }
}

/// What to do about a refused request.
const fn advice(refused: PostError) -> &'static str {
    match refused {
        PostError::State => "; receives can be posted from INIT on, sends from RTS on: connect it first",
        PostError::QueueFull => "; take completions from the completion queue first, or build it with a longer queue",
        PostError::TooManySges => "; build it with more max_send_sge or max_recv_sge",
        PostError::InlineTooLong => "; build it with more max_inline_data, or send from a memory region",
        PostError::BadOpcode => {
            "; READ and atomics need RC, WRITE and memory windows need RC or UC, only SEND and WRITE can be inline or \
             carry immediate data, and only SEND invalidates"
        }
        PostError::BadLength => "; a message has at most 2^31 bytes, a datagram one path MTU, an ATOMIC WRITE 8",
        PostError::MissingDestination => "; a datagram names it with `to`, an XRC message with `to_srq`",
    }
}

/// What a status means and what to do about it.
const fn explain(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "it did not fail",
        WcStatus::LocLenErr => {
            "the message does not fit (LOC_LEN_ERR); post larger receive buffers, or send less: a UD message is at most the path MTU"
        }
        WcStatus::LocQpOpErr => "the queue pair cannot do this (LOC_QP_OP_ERR); check its service and attributes",
        WcStatus::LocProtErr => {
            "a local buffer may not be used like this (LOC_PROT_ERR); check its lkey, range and access rights, and that the region still exists"
        }
        WcStatus::WrFlushErr => {
            "it was not executed, because the queue pair is in the error state (WR_FLUSH_ERR); look at the first failed completion for the reason"
        }
        WcStatus::MwBindErr => {
            "the memory window could not be bound or closed (MW_BIND_ERR); its region needs MW_BIND, and LOCAL_WRITE if the peer may write; a window for a queue pair must be closed, on that one, before it is bound again"
        }
        WcStatus::BadRespErr => "the peer answered something impossible (BAD_RESP_ERR)",
        WcStatus::LocAccessErr => "a local buffer refused the data of a WRITE with immediate (LOC_ACCESS_ERR)",
        WcStatus::RemInvReqErr => {
            "the peer found the request illegal (REM_INV_REQ_ERR); its receive buffer is too short, or its queue pair does not allow the operation"
        }
        WcStatus::RemAccessErr => {
            "the peer's memory protection refused (REM_ACCESS_ERR); check address, rkey and the access rights of its region and queue pair"
        }
        WcStatus::RemOpErr => "the peer could not complete it (REM_OP_ERR); look for an error on its side",
        WcStatus::RetryExcErr => {
            "the peer does not answer (RETRY_EXC_ERR); is it running, is its queue pair connected to this one, does a firewall drop UDP port 4791?"
        }
        WcStatus::RnrRetryExcErr => {
            "the peer had no receive request for it (RNR_RETRY_EXC_ERR); post receives before the messages come, or set rnr_retry to 7 to wait for ever"
        }
        WcStatus::TmErr => "the tag to remove was matched or removed before (TM_ERR)",
        WcStatus::TmRndvIncomplete => {
            "the device did not bring the data of a rendezvous (TM_RNDV_INCOMPLETE); read it with an RDMA READ if the queue pair still works"
        }
        WcStatus::LocEecOpErr | WcStatus::GeneralErr => "the queue pair or device is unusable (GENERAL_ERR)",
    }
}
