//! Objects of a card that the next case may use again, when cases shall follow each other fast:
//! making a queue pair costs a card far more than to reset one. Pure data.

use crate::target::{Handle, NewQp, Region};

/// Something that was made as `made`, and whether the current case has it.
#[derive(Debug)]
struct Kept<M, T> {
    made: M,
    object: T,
    is_used: bool,
}

/// What is there, by what it was made with.
#[derive(Debug, Default)]
pub(super) struct Stock {
    regions: Vec<Kept<(u64, u32), Region>>,
    queues: Vec<Kept<u32, Handle>>,
    qps: Vec<Kept<NewQp, (Handle, u32)>>,
}

fn take<M: PartialEq, T: Copy>(all: &mut [Kept<M, T>], made: &M) -> Option<T> {
    let kept = all.iter_mut().find(|kept| !kept.is_used && kept.made == *made)?;
    kept.is_used = true;
    Some(kept.object)
}

fn put_back<M, T: Copy>(all: &mut [Kept<M, T>]) -> Vec<T> {
    all.iter_mut().filter_map(|kept| std::mem::take(&mut kept.is_used).then_some(kept.object)).collect()
}

impl Stock {
    /// A region of so many bytes with these rights.
    pub(super) fn region(&mut self, made: (u64, u32)) -> Option<Region> {
        take(&mut self.regions, &made)
    }

    pub(super) fn keep_region(&mut self, made: (u64, u32), object: Region) {
        self.regions.push(Kept { made, object, is_used: true });
    }

    /// A completion queue with so many entries.
    pub(super) fn queue(&mut self, made: u32) -> Option<Handle> {
        take(&mut self.queues, &made)
    }

    pub(super) fn keep_queue(&mut self, made: u32, object: Handle) {
        self.queues.push(Kept { made, object, is_used: true });
    }

    /// A queue pair, and its number.
    pub(super) fn qp(&mut self, made: &NewQp) -> Option<(Handle, u32)> {
        take(&mut self.qps, made)
    }

    pub(super) fn keep_qp(&mut self, made: NewQp, object: (Handle, u32)) {
        self.qps.push(Kept { made, object, is_used: true });
    }

    /// Makes everything available that the last case had: its queue pairs, which are to be reset,
    /// and its queues, which are to be emptied.
    pub(super) fn put_back(&mut self) -> (Vec<Handle>, Vec<Handle>) {
        put_back(&mut self.regions);
        let qps = put_back(&mut self.qps).into_iter().map(|(qp, _)| qp).collect();
        (qps, put_back(&mut self.queues))
    }
}
