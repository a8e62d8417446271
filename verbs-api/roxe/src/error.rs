//! The errors of this crate, grouped by the party that can fix them. Each text says what failed and
//! what to do.

use crate::cm::CmEventKind;
use crate::{QpState, Service, WcOpcode, WcStatus};
use roxe_provider as provider;
use roxe_transport::qp::PostError;
use roxe_wire::Qpn;
use std::fmt;
use std::time::Duration;

/// An error; the variant names the party that can fix it.
///
/// ```
/// use roxe::{Access, Context, Error};
///
/// let pd = Context::open_first()?.alloc_pd()?;
/// // A peer cannot be allowed to write where this process may not.
/// let error = pd.alloc_mr(4096, Access::REMOTE_WRITE).unwrap_err();
/// assert!(matches!(error, Error::Argument(_)));
/// assert_eq!(error.errno(), 22); // EINVAL, as in C
/// # Ok::<(), Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake of the program: a wrong argument or order of calls.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A problem of this host: its interfaces, permissions or configuration.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A resource is exhausted: memory, descriptors, slots of a queue. Retry later or with less.
    #[error(transparent)]
    Resources(#[from] ResourceError),
    /// A failure of the peer or the network.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A non-blocking wait found no event, or a signal interrupted a wait. Retry.
    #[error(transparent)]
    NotYet(Refusal),
}

/// Prints as `Display`, so that a `main` that returns the error prints a readable text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A mistake of the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The device refused a verb.
    #[error(transparent)]
    Refused(Refusal),
    /// The call is not for queue pairs of this service.
    #[error("queue pair {qpn} ({service:?}) {advice}")]
    WrongService {
        /// The queue pair.
        qpn: Qpn,
        /// Service of the queue pair.
        service: Service,
        /// The call to use instead.
        advice: &'static str,
    },
    /// The queue refused a work request.
    #[error(transparent)]
    Request(RefusedRequest),
    /// A work request failed here, before or without the peer.
    #[error(transparent)]
    Completion(FailedCompletion),
    /// The event does not carry the requested value.
    #[error("the event {kind:?} has no {value}")]
    MissingValue {
        /// Kind of the event.
        kind: CmEventKind,
        /// The missing value.
        value: &'static str,
    },
    /// The range exceeds the memory region, or an atomic word is not aligned.
    #[error("{}", out_of_range(*offset, *len, *region))]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// Length in bytes.
        len: usize,
        /// Size of the region in bytes.
        region: usize,
    },
    /// The GID table has no entry at this index.
    #[error("the GID table has no entry {index}; there are: {present}")]
    NoGid {
        /// The requested index.
        index: u8,
        /// The indexes with an entry.
        present: String,
    },
    /// The text cannot be parsed.
    #[error("{text:?} is not of the form {expected}; copy the whole line that the peer printed")]
    Parse {
        /// The text as the program passed it.
        text: String,
        /// The expected form.
        expected: &'static str,
    },
}

/// A problem of this host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The device refused a verb because of this host.
    #[error(transparent)]
    Refused(Refusal),
    /// There is no device of this name.
    #[error(
        "there is no device {name}; there are: {present}. Choose one of them, or open more interfaces with ROXE_NETDEV=eth0,..."
    )]
    NoDevice {
        /// The requested name.
        name: String,
        /// The existing devices.
        present: String,
    },
    /// The interface of a device has no address: its GID table is empty.
    #[error(
        "{netdev} has no address; bring it up with `ip link set {netdev} up`, or choose another interface with ROXE_NETDEV"
    )]
    NoAddress {
        /// The network device.
        netdev: String,
    },
    /// A name has no address.
    #[error("cannot look up the address: {0}")]
    Lookup(std::io::Error),
    /// The program's event loop cannot watch a descriptor, or has ended.
    #[error("the event loop does not watch the descriptor: {0}")]
    EventLoop(std::io::Error),
    /// No device or path reaches the address, the device is gone, or a group could not be joined.
    #[error(transparent)]
    Connection(FailedConnection),
}

/// An exhausted resource.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// A limit of the device, the process or the system is reached.
    #[error(transparent)]
    Refused(Refusal),
    /// The queue is full.
    #[error(transparent)]
    QueueFull(RefusedRequest),
    /// A region could not be allocated.
    #[error("cannot allocate a region of {bytes} bytes")]
    OutOfMemory {
        /// Size of the region in bytes.
        bytes: usize,
    },
}

/// A failure of the peer or the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The device refused a verb because it cannot reach the peer.
    #[error(transparent)]
    Refused(Refusal),
    /// A work request failed at the peer, or was not acknowledged.
    #[error(transparent)]
    Completion(FailedCompletion),
    /// The peer refused the connection, ended it, or did not respond.
    #[error(transparent)]
    Connection(FailedConnection),
    /// No request completed in time.
    #[error("no completion within {0:?}; is the peer running, and did it post receive requests?")]
    Timeout(Duration),
    /// A connection was not established, or did not end, in time.
    #[error("no connection within {0:?}; is a program listening there, and does it accept?")]
    ConnectTimeout(Duration),
}

impl Error {
    /// Returns the positive errno of the verb in C, or the closest one. EIO for a request that
    /// failed after it was posted; see [`completion`](Self::completion).
    pub fn errno(&self) -> i32 {
        match self {
            Self::Argument(ArgumentError::Refused(refusal))
            | Self::Environment(EnvironmentError::Refused(refusal))
            | Self::Resources(ResourceError::Refused(refusal))
            | Self::Peer(PeerError::Refused(refusal))
            | Self::NotYet(refusal) => refusal.errno(),
            Self::Argument(ArgumentError::Completion(_)) | Self::Peer(PeerError::Completion(_)) => libc::EIO,
            Self::Argument(_) => libc::EINVAL,
            Self::Environment(EnvironmentError::NoDevice { .. }) => libc::ENODEV,
            Self::Environment(EnvironmentError::NoAddress { .. }) => libc::ENETDOWN,
            Self::Environment(EnvironmentError::Lookup(error)) => error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL),
            Self::Environment(EnvironmentError::EventLoop(error)) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Environment(EnvironmentError::Connection(failed)) | Self::Peer(PeerError::Connection(failed)) => {
                failed.errno()
            }
            Self::Resources(_) => libc::ENOMEM,
            Self::Peer(PeerError::Timeout(_) | PeerError::ConnectTimeout(_)) => libc::ETIMEDOUT,
        }
    }

    /// Returns the refusal; `None` unless the device refused a verb.
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Argument(ArgumentError::Refused(refusal))
            | Self::Environment(EnvironmentError::Refused(refusal))
            | Self::Resources(ResourceError::Refused(refusal))
            | Self::Peer(PeerError::Refused(refusal))
            | Self::NotYet(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the work request that was not posted; `None` for any other error.
    pub const fn request(&self) -> Option<&RefusedRequest> {
        match self {
            Self::Argument(ArgumentError::Request(request)) | Self::Resources(ResourceError::QueueFull(request)) => {
                Some(request)
            }
            _ => None,
        }
    }

    /// Returns the work request that failed after it was posted; `None` for any other error.
    pub const fn completion(&self) -> Option<&FailedCompletion> {
        match self {
            Self::Argument(ArgumentError::Completion(failed)) | Self::Peer(PeerError::Completion(failed)) => {
                Some(failed)
            }
            _ => None,
        }
    }

    /// Returns the connection that failed; `None` for any other error.
    pub const fn connection(&self) -> Option<&FailedConnection> {
        match self {
            Self::Environment(EnvironmentError::Connection(failed)) | Self::Peer(PeerError::Connection(failed)) => {
                Some(failed)
            }
            _ => None,
        }
    }

    /// Returns true if a non-blocking wait found no event: retry when the descriptor is readable.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::NotYet(refusal) if refusal.errno() == libc::EAGAIN)
    }
}

/// Classifies by errno. An error about this host is never [`Error::Argument`].
impl From<provider::Error> for Error {
    fn from(error: provider::Error) -> Self {
        let (errno, about_host) = (error.errno(), error.is_about_host());
        let refusal = Refusal(error);
        match errno {
            libc::EAGAIN | libc::EINTR if !about_host => Self::NotYet(refusal),
            libc::ENOMEM | libc::ENOSPC | libc::ENOBUFS | libc::EMFILE | libc::ENFILE | libc::EAGAIN => {
                Self::Resources(ResourceError::Refused(refusal))
            }
            libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH => Self::Peer(PeerError::Refused(refusal)),
            libc::ENODEV
            | libc::ENXIO
            | libc::ENETDOWN
            | libc::EADDRNOTAVAIL
            | libc::EADDRINUSE
            | libc::EPERM
            | libc::EACCES
            | libc::EIO => Self::Environment(EnvironmentError::Refused(refusal)),
            _ if about_host => Self::Environment(EnvironmentError::Refused(refusal)),
            _ => Self::Argument(ArgumentError::Refused(refusal)),
        }
    }
}

impl From<RefusedRequest> for Error {
    fn from(request: RefusedRequest) -> Self {
        match request.source {
            PostError::QueueFull => Self::Resources(ResourceError::QueueFull(request)),
            _ => Self::Argument(ArgumentError::Request(request)),
        }
    }
}

impl From<FailedCompletion> for Error {
    fn from(failed: FailedCompletion) -> Self {
        match failed.status {
            WcStatus::LocLenErr
            | WcStatus::LocQpOpErr
            | WcStatus::LocEecOpErr
            | WcStatus::LocProtErr
            | WcStatus::LocAccessErr
            | WcStatus::MwBindErr
            | WcStatus::TmErr => Self::Argument(ArgumentError::Completion(failed)),
            _ => Self::Peer(PeerError::Completion(failed)),
        }
    }
}

impl From<FailedConnection> for Error {
    fn from(failed: FailedConnection) -> Self {
        use CmEventKind::{AddrError, DeviceRemoval, MulticastError, RouteError};
        match failed.kind {
            AddrError | RouteError | DeviceRemoval | MulticastError => {
                Self::Environment(EnvironmentError::Connection(failed))
            }
            _ => Self::Peer(PeerError::Connection(failed)),
        }
    }
}

/// The device refused a verb, with the errno that a C program would see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Refusal(pub(super) provider::Error);

impl Refusal {
    /// Returns the errno, positive; the manual page of the verb lists them.
    pub fn errno(&self) -> i32 {
        self.0.errno()
    }
}

impl From<Refusal> for provider::Error {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

/// A work request that the queue refused; nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The queue pair and its current state; `None` for a shared receive queue.
    pub qp: Option<(Qpn, QpState)>,
    /// Name of the operation, with an article.
    pub operation: &'static str,
    /// Index in the posted list; the requests before it were accepted.
    pub index: usize,
    /// Reason of the refusal.
    pub source: PostError,
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp, operation, source, .. } = self;
        match qp {
            Some((qpn, state)) => write!(f, "queue pair {qpn} (state {state:?}) ")?,
            None => f.write_str("the shared receive queue ")?,
        }
        write!(f, "refused {operation}: {source}{}", advice(*source))
    }
}

impl std::error::Error for RefusedRequest {}

/// A work request that failed after it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{opcode:?} with wr_id {wr_id} on queue pair {qpn} failed: {}", explain(*status))]
pub struct FailedCompletion {
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// Operation of the work request.
    pub opcode: WcOpcode,
    /// Status of the completion.
    pub status: WcStatus,
    /// Detail, listed in docs/reference/completions.md, or the value of the card under a profile; 0
    /// if there is none.
    pub vendor_err: u32,
}

/// A failed connection, or another failed operation of [`cm`](crate::cm).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", failure_text(*kind, *status))]
pub struct FailedConnection {
    /// Kind of the event that reported the failure.
    pub kind: CmEventKind,
    /// A negative errno, or the reason code of the peer.
    pub status: i32,
    /// Private data of the rejection, padded with zeros.
    pub private_data: Vec<u8>,
}

impl FailedConnection {
    /// Returns the closest errno, positive.
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

fn out_of_range(offset: usize, len: usize, region: usize) -> String {
    let end = offset.saturating_add(len);
    if end > region {
        format!("bytes {offset}..{end} exceed the region of {region} bytes")
    } else {
        format!("offset {offset} is not aligned for an atomic word of {len} bytes")
    }
}

const fn advice(refused: PostError) -> &'static str {
    match refused {
        PostError::State => "; receives can be posted from INIT on, sends from RTS on: connect it first",
        PostError::QueueFull => "; poll the completion queue first, or build it with a longer queue",
        PostError::TooManySges => "; build it with more max_send_sge or max_recv_sge",
        PostError::InlineTooLong => "; build it with more max_inline_data, or send from a memory region",
        PostError::BadOpcode => {
            "; READ and atomics need RC or XRC, WRITE and memory windows need RC, UC or XRC, only SEND and WRITE can be \
             inline or carry immediate data, and only SEND invalidates"
        }
        PostError::BadLength => "; a message has at most 2^31 bytes, a datagram one path MTU, an ATOMIC WRITE 8",
        PostError::MissingDestination => "; set it with `to` for a datagram, with `to_srq` for an XRC message",
    }
}

const fn explain(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "it did not fail",
        WcStatus::LocLenErr => {
            "the message does not fit (LOC_LEN_ERR); post larger receive buffers, or send less: a UD message is at most the path MTU"
        }
        WcStatus::LocQpOpErr => {
            "the queue pair does not support the operation (LOC_QP_OP_ERR); check its service and attributes"
        }
        WcStatus::LocProtErr => {
            "the memory protection of this side refused (LOC_PROT_ERR); check lkey, range and access rights of the buffer, and that its region still exists"
        }
        WcStatus::WrFlushErr => {
            "it was not executed, because the queue pair is in the error state (WR_FLUSH_ERR); look at the first failed completion for the reason"
        }
        WcStatus::MwBindErr => {
            "the memory window could not be bound or closed (MW_BIND_ERR); its region needs MW_BIND, and LOCAL_WRITE if the peer may write; a window of a queue pair must be closed, on that queue pair, before it is bound again"
        }
        WcStatus::BadRespErr => "the peer sent an invalid response (BAD_RESP_ERR)",
        WcStatus::LocAccessErr => "a local buffer refused the data of a WRITE with immediate (LOC_ACCESS_ERR)",
        WcStatus::RemInvReqErr => {
            "the peer found the request illegal (REM_INV_REQ_ERR); its receive buffer is too short, or its queue pair does not allow the operation"
        }
        WcStatus::RemAccessErr => {
            "the peer's memory protection refused (REM_ACCESS_ERR); check address, rkey and the access rights of its region and queue pair"
        }
        WcStatus::RemOpErr => "the peer could not execute it (REM_OP_ERR); look for an error on its side",
        WcStatus::RetryExcErr => {
            "the peer did not acknowledge it (RETRY_EXC_ERR); is it running, is its queue pair connected to this one, does a firewall drop UDP port 4791?"
        }
        WcStatus::RnrRetryExcErr => {
            "the peer had no receive request for it (RNR_RETRY_EXC_ERR); post receives before the messages arrive, or set rnr_retry to 7 to retry forever"
        }
        WcStatus::TmErr => "the tag to remove was matched or removed before (TM_ERR)",
        WcStatus::TmRndvIncomplete => {
            "the device did not read the data of a rendezvous (TM_RNDV_INCOMPLETE); read it with an RDMA READ if the queue pair still works"
        }
        WcStatus::LocEecOpErr | WcStatus::GeneralErr => "the queue pair or device is unusable (GENERAL_ERR)",
    }
}

fn failure_text(kind: CmEventKind, status: i32) -> String {
    let because = match (kind, status) {
        (_, errno) if errno < 0 => std::io::Error::from_raw_os_error(errno.saturating_neg()).to_string(),
        (CmEventKind::Rejected, NO_LISTENER) => "no program listens on that port".into(),
        (CmEventKind::Rejected, CONSUMER) => "the peer's program refused; its private data may say why".into(),
        (CmEventKind::Rejected, STALE) => {
            "the peer still remembers an old connection of this queue pair; try again".into()
        }
        (CmEventKind::Rejected, reason) => {
            format!("the peer refused with reason {reason} of the standard's list for REJ")
        }
        (CmEventKind::Unreachable, status) if status > 0 => {
            format!("there is no such datagram service (status {status})")
        }
        _ => "this event arrived instead of the expected one".into(),
    };
    format!("{}: {because}", event_text(kind))
}

/// Reason codes of a REJ that [`failure_text`] explains.
const NO_LISTENER: i32 = 8;
const STALE: i32 = 10;
const CONSUMER: i32 = 28;

const fn event_text(kind: CmEventKind) -> &'static str {
    match kind {
        CmEventKind::AddrError => "no device reaches the address",
        CmEventKind::RouteError => "there is no path to the address",
        CmEventKind::ConnectError => "the queue pair could not be connected",
        CmEventKind::Unreachable => "the peer cannot be reached",
        CmEventKind::Rejected => "the connection was refused",
        CmEventKind::Disconnected => "the peer ended the connection",
        CmEventKind::DeviceRemoval => "the device was removed",
        CmEventKind::MulticastError => "the group could not be joined",
        _ => "another event",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_determines_the_variant_of_a_refusal() {
        let error_of = |errno| Error::from(provider::Error::new(errno, "text"));
        assert!(matches!(error_of(libc::EINVAL), Error::Argument(_)));
        assert!(matches!(error_of(libc::EBUSY), Error::Argument(_)));
        assert!(matches!(error_of(libc::EOPNOTSUPP), Error::Argument(_)));
        assert!(matches!(error_of(libc::ENOMEM), Error::Resources(_)));
        assert!(matches!(error_of(libc::ENODEV), Error::Environment(_)));
        assert!(matches!(error_of(libc::ETIMEDOUT), Error::Peer(_)));
        assert!(error_of(libc::EAGAIN).is_would_block());
        assert!(matches!(error_of(libc::EINTR), Error::NotYet(_)) && !error_of(libc::EINTR).is_would_block());
        assert_eq!((error_of(libc::EBUSY).errno(), error_of(libc::EBUSY).to_string().as_str()), (libc::EBUSY, "text"));
    }

    #[test]
    fn host_problem_is_an_environment_error() {
        let error_of = |errno| Error::from(provider::Error::host(errno, "text"));
        assert!(matches!(error_of(libc::EINVAL), Error::Environment(_)));
        assert!(matches!(error_of(libc::EMFILE), Error::Resources(_)));
        // EAGAIN of the host means that no thread could be started, not that there was no event.
        assert!(matches!(error_of(libc::EAGAIN), Error::Resources(_)) && !error_of(libc::EAGAIN).is_would_block());
    }

    #[test]
    fn status_determines_the_failing_side() {
        let error_of = |status| {
            Error::from(FailedCompletion {
                status,
                wr_id: 1,
                qpn: Qpn::new(2),
                opcode: Default::default(),
                vendor_err: 0,
            })
        };
        assert!(matches!(error_of(WcStatus::LocProtErr), Error::Argument(_)));
        assert!(matches!(error_of(WcStatus::RetryExcErr), Error::Peer(_)));
        let error = error_of(WcStatus::RemAccessErr);
        assert_eq!(error.completion().map(|failed| failed.status), Some(WcStatus::RemAccessErr));
        assert_eq!(error.errno(), libc::EIO);
    }
}
