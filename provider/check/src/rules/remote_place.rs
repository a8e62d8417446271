//! What a request does to which memory of a peer. Pure.

use super::key_faults::remote;
use crate::world::Work;
use roxe_transport::wr::SendOp;

/// Bytes of a peer that a request reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Keys are drawn at random: the same one is that of the same region.
    pub(super) key: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Reads,
    Writes,
    /// At once with other atomics.
    Atomic,
}

impl Place {
    /// That of a request; `None`: it names no memory of a peer, or no byte of it.
    pub(super) fn of(work: &Work) -> Option<Self> {
        let op = work.op.as_ref()?;
        let ((begin, key), what) = (remote(op)?, what(op));
        (work.len > 0).then(|| Self { key, begin, end: begin.saturating_add(work.len), what })
    }

    /// Whether a response brings its result: it may be executed after what follows.
    pub(super) const fn answers(&self) -> bool {
        matches!(self.what, What::Reads | What::Atomic)
    }

    /// Whether it matters which is executed first. A READ of just the word of an atomic finds it
    /// before or after, on every card.
    pub(super) const fn conflicts(&self, other: &Self) -> bool {
        let meets = self.key == other.key && self.begin < other.end && other.begin < self.end;
        let is_same = self.begin == other.begin && self.end == other.end;
        meets
            && match (self.what, other.what) {
                (What::Reads, What::Reads) | (What::Atomic, What::Atomic) => false,
                (What::Reads, What::Atomic) | (What::Atomic, What::Reads) => !is_same,
                _ => true,
            }
    }
}

const fn what(op: &SendOp) -> What {
    match op {
        SendOp::Read { .. } => What::Reads,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => What::Atomic,
        _ => What::Writes,
    }
}
