//! The blocks of objects that were destroyed, kept for a while when the checker is on: their
//! addresses are not used again meanwhile, so that a call with such a handle is recognised, and the
//! functions that a program reaches through the structure are still there.
//!
//! Touches the blocks that it is handed.

use core::ptr::NonNull;
use parking_lot::Mutex;
use std::alloc::{Layout, dealloc};
use std::collections::{HashSet, VecDeque};
use std::sync::LazyLock;

/// Blocks that are kept.
const MOST: usize = 4096;

/// A heap block without anything in it that has to be dropped; freed when dropped.
pub(crate) struct Block(NonNull<u8>, Layout);

// SAFETY: it is the only owner of plain memory.
unsafe impl Send for Block {}

impl Block {
    /// # Safety
    /// `block` was made by a `Box`, is owned by the caller and holds nothing that has to be
    /// dropped.
    pub(crate) const unsafe fn new<T>(block: NonNull<T>) -> Self {
        Self(block.cast(), Layout::new::<T>())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: a box of this layout made it, by the contract of `new`; not used after this.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// Which handles are those of destroyed objects.
#[derive(Default)]
struct Kept {
    handles: HashSet<usize>,
    blocks: VecDeque<(usize, Block)>,
}

/// Without a rank: calls ask while they hold any other lock, and nothing else is taken inside.
static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

impl Kept {
    /// Returns the block that has been here longest if there are too many.
    fn keep(&mut self, handle: usize, block: Block) -> Option<Block> {
        self.handles.insert(handle);
        self.blocks.push_back((handle, block));
        if self.handles.len() <= MOST {
            return None;
        }
        let (oldest, block) = self.blocks.pop_front()?;
        self.handles.remove(&oldest);
        Some(block)
    }
}

/// Keeps the block of a destroyed object, until there are too many others.
pub(crate) fn keep(handle: usize, block: Block) {
    // Freed behind the lock.
    let oldest = KEPT.lock().keep(handle, block);
    drop(oldest);
}

/// Whether `handle` is that of a destroyed object.
pub(crate) fn contains(handle: usize) -> bool {
    KEPT.lock().handles.contains(&handle)
}
