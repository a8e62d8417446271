//! The program of `roxe check-peer`: runs cells between two cards, each driven through its
//! agent, and judges every byte and completion of both sides.
//!
//! A [`Pair`] is two connected queue pairs with an area of memory on each side. A [`CellRun`] runs
//! one cell on a pair: several messages, some with scatter lists, with inline data or unsignaled.
//! [`CellRun::begin`] starts it, [`CellRun::finish`] judges it.

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

/// Service, path MTU and addresses of a pair of queue pairs.
pub type Kind = (Service, u32, Family);

/// A cell between two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The message.
    pub cell: Cell,
    /// The addresses.
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

/// Every kind of pair.
pub fn kinds() -> impl Iterator<Item = Kind> {
    let mtus = Service::ALL.into_iter().flat_map(|service| plan::MTUS.map(|mtu| (service, mtu)));
    mtus.flat_map(|(service, mtu)| Family::ALL.map(|family| (service, mtu, family)))
}

/// The checks of one kind of pair: each cell in both directions.
pub fn checks((service, mtu, family): Kind) -> impl Iterator<Item = Check> {
    plan::cells(service, mtu).flat_map(move |cell| [false, true].map(|is_from_far| Check { cell, family, is_from_far }))
}

/// The circumstances of checks.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Seed of message bytes and of the lengths of list elements.
    pub seed: u64,
    /// True if the network loses, duplicates and reorders packets. Then UC and UD messages may be
    /// lost, and a message of one packet may arrive twice.
    pub is_lossy: bool,
    /// True for up to 32 messages in a cell instead of 4.
    pub is_burst: bool,
    /// Local ACK timeout of RC: 4.096 us * 2^N.
    pub ack_timeout: u8,
    /// Milliseconds without an arrival after which a UC or UD message counts as lost.
    pub grace_ms: u64,
    /// Milliseconds within which requests must complete. A long message to an emulated processor
    /// takes seconds.
    pub timeout_ms: u64,
}

impl Default for Conditions {
    fn default() -> Self {
        let (ack_timeout, grace_ms, timeout_ms) = (14, 300, 30_000);
        Self { seed: 1, is_lossy: false, is_burst: false, ack_timeout, grace_ms, timeout_ms }
    }
}

/// The agents next to the near and the far card.
pub type Cards<'a> = [&'a mut Client; 2];

/// The reason why the cards cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One of the cards has no such address, MTU, service or operation.
    #[error("{0}")]
    Unsupported(String),
    /// An agent refused a request that every card supports, or is gone.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// The reason why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A byte or a completion is wrong.
    #[error("{0}")]
    Wrong(String),
    /// A card does not support the pair, or an agent refused a request.
    #[error(transparent)]
    Pair(#[from] PairError),
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Self::Pair(error.into())
    }
}

/// Numbers of messages of a passed check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Messages sent.
    pub sent: u32,
    /// Messages that arrived.
    pub delivered: u32,
    /// Duplicates that arrived, which a lossy network may make.
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
