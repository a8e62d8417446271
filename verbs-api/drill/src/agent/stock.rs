//! Objects of a card that the next case may use again, when cases shall follow each other fast:
//! making a queue pair costs a card far more than to reset one. Pure data.

use crate::target::{Handle, NewQp, Region};

/// Objects, each with what it was made as, and whether the current case has it.
#[derive(Debug)]
pub(super) struct Shelf<M, T>(Vec<(M, T, bool)>);

/// What is there, by what it was made with.
#[derive(Debug, Default)]
pub(super) struct Stock {
    /// By their bytes and rights.
    pub(super) regions: Shelf<(u64, u32), Region>,
    /// Completion queues by their entries.
    pub(super) queues: Shelf<u32, Handle>,
    /// Queue pairs, with their numbers.
    pub(super) qps: Shelf<NewQp, (Handle, u32)>,
}

impl<M, T> Default for Shelf<M, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: PartialEq, T: Copy> Shelf<M, T> {
    /// One for the current case that was made as `wanted`, if one is left.
    pub(super) fn take(&mut self, wanted: &M) -> Option<T> {
        let (_, object, is_used) = self.0.iter_mut().find(|(made, _, is_used)| !*is_used && made == wanted)?;
        *is_used = true;
        Some(*object)
    }

    /// Keeps what the current case has made.
    pub(super) fn keep(&mut self, made: M, object: T) {
        self.0.push((made, object, true));
    }

    /// Makes everything available that the last case had; which objects that were.
    pub(super) fn put_back(&mut self) -> Vec<T> {
        self.0.iter_mut().filter_map(|(_, object, is_used)| std::mem::take(is_used).then_some(*object)).collect()
    }
}
