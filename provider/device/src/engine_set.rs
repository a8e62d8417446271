//! The engines whose queue pairs complete in one CQ or announce on one channel: mostly one.

use roxe_base::lock::{RwLock, rank};
use roxe_engine::engine::Engine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The engines of a completion queue or channel.
#[derive(Debug)]
pub(crate) struct EngineSet {
    /// Stands in for `main` until an engine is added.
    usual: Arc<Engine>,
    main: OnceLock<Arc<Engine>>,
    has_others: AtomicBool,
    others: RwLock<rank::EngineSet, Vec<Arc<Engine>>>,
}

impl EngineSet {
    pub(crate) fn new(usual: Arc<Engine>) -> Self {
        Self { usual, main: OnceLock::new(), has_others: AtomicBool::new(false), others: RwLock::default() }
    }

    /// The engine added first.
    #[inline]
    pub(crate) fn main(&self) -> &Arc<Engine> {
        self.main.get().unwrap_or(&self.usual)
    }

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

    #[inline]
    pub(crate) fn others(&self) -> Vec<Arc<Engine>> {
        if self.has_others.load(Ordering::Acquire) { self.others.read().clone() } else { Vec::new() }
    }
}
