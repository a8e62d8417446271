//! Why a work request was not accepted, and why a packet was not taken. Pure data.

use crate::reasons::reasons;
use thiserror::Error;

/// Why a work request was not accepted; nothing was queued (`man ibv_post_send`).
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
    /// The service, or `max_rd_atomic` = 0, rules this operation out, or its data cannot be inline.
    #[error("this queue pair cannot do this operation")]
    BadOpcode,
    /// The message is longer than 2^31 bytes, the data of an ATOMIC WRITE not 8 bytes, or a FLUSH
    /// has data.
    #[error("the length is out of range")]
    BadLength,
    /// A datagram without a destination.
    #[error("the message needs a destination")]
    MissingDestination,
}

reasons! {
    /// Why a packet was ignored. Nobody is told but the counters: a peer must not learn, nor break,
    /// anything by it.
    DropReason:
    /// The QP is in a state that does not take this kind of packet.
    BadState => "bad_state",
    /// The packet belongs to another transport service.
    WrongService => "wrong_service",
    /// The P_Key is not ours.
    Pkey => "pkey",
    /// The Q_Key is not ours.
    Qkey => "qkey",
    /// The packet does not come from, or go to, the addresses of this connection.
    Address => "address",
    /// A response to something that was never sent.
    GhostResponse => "ghost_response",
    /// A response to something that is already complete.
    DuplicateResponse => "duplicate_response",
    /// A response that tells of a loss whose repair is already under way.
    AwaitingRetry => "awaiting_retry",
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome => "reserved_syndrome",
    /// A request that was executed before.
    DuplicateRequest => "duplicate_request",
    /// A request behind a lost one.
    OutOfSequence => "out_of_sequence",
    /// A request for a receive, and none is posted.
    NoReceive => "no_receive",
    /// A request that is malformed, not offered, not allowed on this QP, or longer than the
    /// receive.
    InvalidRequest => "invalid_request",
    /// A request that the remote key does not allow.
    RemoteAccess => "remote_access",
    /// A good request that met unusable memory of our own application.
    LocalProtection => "local_protection",
    /// A congestion notification for a queue pair that does not limit its rate.
    CongestionNotice => "rp_cnp_ignored",
}
