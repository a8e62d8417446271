//! The engines that may complete something in one place: nearly always one.
//!
//! Touches nothing.

use roxe_base::lock::{RwLock, rank};
use roxe_engine::engine::Engine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Those of the queue pairs of a completion queue, or of the completion queues of a channel.
#[derive(Debug)]
pub(crate) struct EngineSet {
    /// What stands for the main one as long as there is none.
    usual: Arc<Engine>,
    main: OnceLock<Arc<Engine>>,
    has_others: AtomicBool,
    others: RwLock<rank::EngineSet, Vec<Arc<Engine>>>,
}

impl EngineSet {
    /// None yet. Whoever asks for the main one gets `usual` until one is added.
    pub(crate) fn new(usual: Arc<Engine>) -> Self {
        Self { usual, main: OnceLock::new(), has_others: AtomicBool::new(false), others: RwLock::default() }
    }

    /// The one that was added first.
    #[inline]
    pub(crate) fn main(&self) -> &Arc<Engine> {
        self.main.get().unwrap_or(&self.usual)
    }

    /// `engine` is one of them from now on.
    pub(crate) fn add(&self, engine: &Arc<Engine>) {
        if Arc::ptr_eq(engine, self.main.get_or_init(|| Arc::clone(engine))) {
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
