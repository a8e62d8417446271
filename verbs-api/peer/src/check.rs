//! The checks of `roxe check-peer`: messages between two cards, each driven through its agent.
//! Every byte and completion of both sides is compared with the plan.
//!
//! The near card is the one of `--near` or of this host, the far card is that of the other agent. A
//! [`Cell`] is one combination of service, operation, message size and path MTU. A [`Pair`] is two
//! connected queue pairs with an area of memory on each side. A [`CellRun`] runs one cell on a
//! pair: several messages, some with scatter lists, with inline data or unsignaled.
//! [`CellRun::begin`] posts the first messages, [`CellRun::finish`] waits for the completions and
//! judges them.

mod cell_run;
mod memory;
mod pair;

use crate::client::{Client, ClientError};
use crate::plan::{self, Cell, Service};
pub use cell_run::CellRun;
pub use pair::Pair;
use std::fmt;

/// IP version of the two cards' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both IP versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if *self == Self::V4 { "ipv4" } else { "ipv6" })
    }
}

/// Service, path MTU and IP version of a [`Pair`].
pub type PairKind = (Service, u32, Family);

/// One cell, run in one direction over one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Service, operation, size and path MTU of the messages.
    pub cell: Cell,
    /// IP version of the packets.
    pub family: Family,
    /// True if the far side is the requester.
    pub is_from_far: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { service, op, size, mtu } = self.cell;
        let direction = if self.is_from_far { "far->near" } else { "near->far" };
        write!(f, "{} {} size={size} mtu={mtu} {} {direction}", service.name(), op.opcodes().0, self.family)
    }
}

/// Returns every combination of service, path MTU and IP version.
pub fn kinds() -> impl Iterator<Item = PairKind> {
    let mtus = Service::ALL.into_iter().flat_map(|service| plan::MTUS.map(|mtu| (service, mtu)));
    mtus.flat_map(|(service, mtu)| Family::ALL.map(|family| (service, mtu, family)))
}

/// Returns the checks of one kind of pair: each cell in both directions.
pub fn checks((service, mtu, family): PairKind) -> impl Iterator<Item = Check> {
    plan::cells(service, mtu).flat_map(move |cell| [false, true].map(|is_from_far| Check { cell, family, is_from_far }))
}

/// Settings that all checks of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Seed of the message bytes and of the lengths of scatter/gather elements.
    pub seed: u64,
    /// True if the network loses, duplicates and reorders packets. Then UC and UD messages may be
    /// lost, and a message of one packet may arrive twice.
    pub is_lossy: bool,
    /// True for up to 32 messages in a cell instead of 4.
    pub is_burst: bool,
    /// Code N of the local ACK timeout of RC: 4.096 µs · 2^N.
    pub ack_timeout: u8,
    /// Milliseconds without an arrival after which a UC or UD message counts as lost.
    pub grace_ms: u64,
    /// Milliseconds within which requests must complete. A long message to a guest with an emulated
    /// processor takes seconds.
    pub timeout_ms: u64,
}

impl Default for Conditions {
    fn default() -> Self {
        let (ack_timeout, grace_ms, timeout_ms) = (14, 300, 30_000);
        Self { seed: 1, is_lossy: false, is_burst: false, ack_timeout, grace_ms, timeout_ms }
    }
}

/// Connections to the agents of the near and of the far card.
pub type Clients<'a> = [&'a mut Client; 2];

/// A reason why the two queue pairs cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One of the cards has no such address, MTU, service or operation.
    #[error("{0}")]
    Unsupported(String),
    /// An agent refused a request that every card supports, or its connection is lost.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// A reason why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A byte or a completion is wrong.
    #[error("{0}")]
    Wrong(String),
    /// A card does not support the pair, or an agent refused a request.
    #[error(transparent)]
    Pair(#[from] PairError),
}

impl From<ClientError> for CheckError {
    fn from(error: ClientError) -> Self {
        Self::Pair(error.into())
    }
}

/// Messages of a passed check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Messages sent.
    pub sent: u32,
    /// Messages that arrived at least once.
    pub delivered: u32,
    /// Duplicates that arrived. Only a network that duplicates packets may cause them.
    pub repeated: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by hand, for one direction and family: RC 5 operations x 7 sizes x 3 MTUs + 2 x 3,
    /// UC 4 x 7 x 3, UD 2 x 7 x 3.
    #[test]
    fn checks_are_distinct_and_complete() {
        let names: std::collections::BTreeSet<_> = kinds().flat_map(checks).map(|check| check.to_string()).collect();
        assert_eq!(names.len(), 4 * (105 + 6 + 84 + 42));
        assert_eq!(kinds().flat_map(checks).count(), names.len());
    }
}
