//! Tables that spread the frames of a hash queue pair over receive work queues (`man
//! ibv_create_rwq_ind_table`).
//!
//! Touches nothing; the engine asks it for each frame that a flow has chosen the queue pair for.

use super::core::QpCore;
use crate::context::Context;
use crate::cq::Cq;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use roxe_engine::queue_pair::{QueuePair, Spread};
use roxe_transport::rss::RxHash;
use roxe_wire::frame::FrameKey;
use std::sync::Arc;

/// A table of receive work queues: which one gets a frame with a given hash.
#[derive(Debug)]
pub struct RwqTable {
    context: Arc<Context>,
    entries: Vec<Arc<QpCore>>,
    /// Where a hash queue pair would complete, if it completed anything.
    cq: Arc<Cq>,
    uses: UseCount,
    /// The uses of the queues and the place in the quota; they end when the table is destroyed.
    held: Mutex<rank::Uses, Vec<Use>>,
}

impl RwqTable {
    /// A table of queues of `context` with these state machines; `held` ends with it. Hash queue
    /// pairs complete in `cq` by name.
    pub(crate) fn new(context: &Arc<Context>, entries: Vec<Arc<QpCore>>, cq: &Arc<Cq>, held: Vec<Use>) -> Arc<Self> {
        let (context, cq, uses) = (Arc::clone(context), Arc::clone(cq), UseCount::default());
        Arc::new(Self { context, entries, cq, uses, held: Mutex::new(held) })
    }

    /// The context of its queues.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where a hash queue pair would complete, if it completed anything.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Takes the table out of use: EBUSY while hash queue pairs use it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("indirection table", "queue pairs")?;
        self.held.lock().clear();
        Ok(())
    }
}

/// What a hash queue pair does with frames.
#[derive(Debug)]
pub(crate) struct Rss {
    table: Arc<RwqTable>,
    hash: RxHash,
}

impl Rss {
    /// Spreads frames over the queues of `table` by `hash`.
    pub(crate) fn new(table: &Arc<RwqTable>, hash: RxHash) -> Self {
        Self { table: Arc::clone(table), hash }
    }

    /// Registers one queue pair as a user of the table.
    pub(crate) fn hold(&self) -> Use {
        self.table.uses.hold()
    }
}

impl Spread for Rss {
    // clause: RSS-CHOICE
    fn choose(&self, key: &FrameKey) -> Option<Arc<dyn QueuePair>> {
        let entries = &self.table.entries;
        // A power of two.
        let entry = entries.get(self.hash.of(key) as usize & (entries.len() - 1))?;
        Some(Arc::clone(entry) as _)
    }
}
