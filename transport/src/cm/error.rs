//! Why a verb was refused, and why a message came to nothing. Pure data.

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

/// Why nothing came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The message names no connection of ours, or another end than the peer's.
    UnknownId,
    /// The message does not come from, or go to, the addresses of the connection.
    Address,
    /// The connection is in a state that has no use for it.
    State,
    /// The message was seen before.
    Duplicate,
    /// The message names another queue pair than ours.
    Qpn,
    /// The message lacks an id or a GUID.
    Malformed,
    /// A request for what we do not have or not do; the sender was told.
    Refused,
    /// The message is of a queue pair that has another connection with us; the sender was told.
    Stale,
}

impl Ignored {
    /// Every reason, for counters.
    pub const ALL: [Self; 8] = [
        Self::UnknownId,
        Self::Address,
        Self::State,
        Self::Duplicate,
        Self::Qpn,
        Self::Malformed,
        Self::Refused,
        Self::Stale,
    ];

    /// Name of the counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownId => "cm_unknown_id",
            Self::Address => "cm_address",
            Self::State => "cm_bad_state",
            Self::Duplicate => "cm_duplicate",
            Self::Qpn => "cm_qpn",
            Self::Malformed => "cm_malformed",
            Self::Refused => "cm_refused",
            Self::Stale => "cm_stale",
        }
    }
}
