//! Why a verb was refused, and why a message came to nothing. Pure data.

use crate::reasons::reasons;

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
    /// Why nothing came of a message.
    Ignored:
    /// The message names no connection of ours, or another end than the peer's.
    UnknownId => "cm_unknown_id",
    /// The message does not come from, or go to, the addresses of the connection.
    Address => "cm_address",
    /// The connection is in a state that has no use for it.
    State => "cm_bad_state",
    /// The message was seen before.
    Duplicate => "cm_duplicate",
    /// The message names another queue pair than ours.
    Qpn => "cm_qpn",
    /// The message lacks an id or a GUID.
    Malformed => "cm_malformed",
    /// A request for what we do not have or not do; the sender was told.
    Refused => "cm_refused",
    /// The message is of a queue pair that has another connection with us; the sender was told.
    Stale => "cm_stale",
}
