//! The engines that may complete something in one place: nearly always one.
//!
//! Touches nothing.

use roxe_base::lock::{RwLock, rank};
use roxe_engine::engine::Engine;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Those of the queue pairs of a completion queue, or of the completion queues of a channel.
#[derive(Debug)]
pub(crate) struct EngineSet {
    main: Arc<Engine>,
    has_others: AtomicBool,
    others: RwLock<rank::EngineSet, Vec<Arc<Engine>>>,
}

impl EngineSet {
    /// `main` alone.
    pub(crate) fn new(main: Arc<Engine>) -> Self {
        Self { main, has_others: AtomicBool::new(false), others: RwLock::default() }
    }

    /// The one that is always there.
    #[inline]
    pub(crate) fn main(&self) -> &Arc<Engine> {
        &self.main
    }

    /// `engine` is one of them from now on.
    pub(crate) fn add(&self, engine: &Arc<Engine>) {
        if Arc::ptr_eq(engine, &self.main) {
            return;
        }
        let mut others = self.others.write();
        if !others.iter().any(|known| Arc::ptr_eq(known, engine)) {
            others.push(Arc::clone(engine));
            self.has_others.store(true, Ordering::Release);
        }
    }

    /// Those beside the main one.
    #[inline]
    pub(crate) fn others(&self) -> Vec<Arc<Engine>> {
        if self.has_others.load(Ordering::Acquire) { self.others.read().clone() } else { Vec::new() }
    }
}
