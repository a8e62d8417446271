//! How many rings this process has: each costs memory and descriptors, whichever of its engines has
//! it. Touches nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static READ: AtomicUsize = AtomicUsize::new(0);

/// Rings that this process writes, agreed on or offered.
pub fn written() -> usize {
    WRITTEN.load(Relaxed)
}

/// Rings that this process reads.
pub fn read() -> usize {
    READ.load(Relaxed)
}

/// Counts one ring for as long as it lives.
#[derive(Debug)]
pub(super) struct Counted(&'static AtomicUsize);

impl Counted {
    pub(super) fn writer() -> Self {
        Self::new(&WRITTEN)
    }

    pub(super) fn reader() -> Self {
        Self::new(&READ)
    }

    fn new(count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
