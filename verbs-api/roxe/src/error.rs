//! The one error of this crate: what happened, to what, and what to do about it.

use crate::cm::CmEventKind;
use crate::{QpState, Service, WcOpcode, WcStatus};
use roxe_provider as provider;
use roxe_transport::qp::PostError;
use roxe_wire::Qpn;
use std::time::Duration;

/// Why something did not work. The text of each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The card refused, with the errno that a C program would see.
    #[error(transparent)]
    Provider(#[from] provider::Error),
    /// There is no device of this name.
    #[error(
        "there is no device {name}; there are: {present}. Choose one of them, or open more interfaces with ROXE_NETDEV=eth0,..."
    )]
    NoDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        present: String,
    },
    /// This call is for queue pairs of another service.
    #[error("queue pair {qpn} ({service:?}) {advice}")]
    WrongService {
        /// The queue pair.
        qpn: Qpn,
        /// Its service.
        service: Service,
        /// What to call instead.
        advice: &'static str,
    },
    /// A work request was refused at the queue; nothing was sent for it.
    #[error("queue pair {qpn} (state {state:?}) refused {what}: {source}{}", advice(*source))]
    Post {
        /// The queue pair.
        qpn: Qpn,
        /// Its state now.
        state: QpState,
        /// The request, in words.
        what: &'static str,
        /// Position in the list that was posted; the requests before it were accepted.
        index: usize,
        /// Why.
        source: PostError,
    },
    /// A shared receive queue refused a receive request.
    #[error("the shared receive queue refused a receive request: {source}{}", advice(*source))]
    PostShared {
        /// Why.
        source: PostError,
    },
    /// A work request was accepted and failed later.
    #[error("{opcode:?} with wr_id {wr_id} on queue pair {qpn} failed: {}", explain(*status))]
    Completion {
        /// Number of the work request.
        wr_id: u64,
        /// The queue pair.
        qpn: Qpn,
        /// What it was.
        opcode: WcOpcode,
        /// How it ended.
        status: WcStatus,
        /// Detail: a number from the list in the README, 0 if there is none.
        vendor_err: u32,
    },
    /// A connection did not come about, or something else that [`cm`](crate::cm) was asked to do
    /// did not work.
    #[error("{}", crate::cm::failure_text(*kind, *status))]
    Connection {
        /// How it ended.
        kind: CmEventKind,
        /// A negative errno, or the number that the peer gave as the reason.
        status: i32,
        /// What the peer said when it refused, filled up with zeros.
        private_data: Vec<u8>,
    },
    /// An event was asked for what it does not tell.
    #[error("the event {kind:?} has no {lacks}")]
    NotThisEvent {
        /// What it tells.
        kind: CmEventKind,
        /// What it does not tell.
        lacks: &'static str,
    },
    /// A name has no address.
    #[error("cannot look the address up: {0}")]
    Lookup(std::io::Error),
    /// Nothing completed in the time given.
    #[error("no completion within {0:?}; is the peer running, and did it post receive requests?")]
    Timeout(Duration),
    /// A part of a memory region was named that it does not have.
    #[error(
        "bytes {offset}..{} are not inside the region of {region} bytes, or not aligned for an atomic word",
        offset.saturating_add(*len)
    )]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// How many.
        len: usize,
        /// Size of the region.
        region: usize,
    },
    /// A region could not be allocated.
    #[error("no memory for a region of {bytes} bytes")]
    OutOfMemory {
        /// Its size.
        bytes: usize,
    },
    /// Text from a peer is not what it should be.
    #[error("{text:?} is not of the form {expected}; copy the whole line that the peer printed")]
    Parse {
        /// The text.
        text: String,
        /// How it should look.
        expected: &'static str,
    },
}

impl Error {
    /// Whether a non-blocking wait found nothing: try again when the descriptor is readable.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Provider(error) if std::io::Error::from_raw_os_error(error.errno()).kind() == std::io::ErrorKind::WouldBlock)
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
            "; READ and atomics need RC, WRITE and memory windows need RC or UC, and only SEND and WRITE can be inline"
        }
        PostError::BadLength => "; a message has at most 2^31 bytes, a datagram one path MTU, an ATOMIC WRITE 8",
        PostError::MissingDestination => "; a datagram names it with `to`, an XRC message with `to_srq`",
    }
}

/// What a status means and what to do about it.
pub(crate) const fn explain(status: WcStatus) -> &'static str {
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
