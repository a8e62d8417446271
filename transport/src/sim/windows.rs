//! Bytes that the queue pairs of one node have reserved towards another. Touches nothing.

use std::collections::BTreeMap;

/// From which node to which.
pub(super) type Way = (usize, usize);

/// Room that all QPs of a node share towards another node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) reserved: u32,
    /// One packet of each.
    pub(super) beyond: u32,
}

/// The windows of all pairs of nodes.
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<Way, Window>);

impl Windows {
    /// A queue pair more may go beyond the window by so much.
    pub(super) fn widen(&mut self, way: Way, beyond: u32) {
        self.0.entry(way).or_default().beyond += beyond;
    }

    /// Bytes reserved that way.
    pub(super) fn reserved(&self, way: Way) -> u32 {
        self.0.get(&way).map_or(0, |window| window.reserved)
    }

    /// A queue pair has reserved `now` bytes that way instead of `before`.
    pub(super) fn recount(&mut self, way: Way, before: u32, now: u32) -> Window {
        let window = self.0.entry(way).or_default();
        window.reserved = window.reserved - before + now;
        *window
    }
}
