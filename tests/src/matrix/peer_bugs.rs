//! Ways a cell is known to fail because of a defect in rxe, each with how we know.
//!
//! An entry excuses a failure only if the cell and what was seen both match it; the result then names the defect, apart
//! from what passed. A cell that passes is simply passed.

use super::{Cell, Group};

/// A defect of the peer.
pub struct PeerBug {
    /// Its name, and the evidence that it is the peer's.
    pub name: &'static str,
    /// Which cells it touches.
    pub touches: fn(&Group, &Cell) -> bool,
    /// Words of the failure that it causes.
    pub seen: &'static str,
}

/// Every known one.
pub const KNOWN: &[PeerBug] = &[];

/// The defect that explains why `cell` failed with `seen`.
pub fn explains(group: &Group, cell: &Cell, seen: &str) -> Option<&'static str> {
    KNOWN.iter().find(|bug| (bug.touches)(group, cell) && seen.contains(bug.seen)).map(|bug| bug.name)
}
