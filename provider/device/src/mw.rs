//! Memory windows as programs hold them: keys for parts of regions, opened and closed by work
//! requests.
//!
//! What is behind a key is the table's ([`roxe_memory::table`]).

use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use};
use roxe_check::{Made, Tracked};
use roxe_memory::region::{MwKind, Window};
use roxe_wire::RKey;
use std::sync::Arc;

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    kind: MwKind,
    /// The first key it had; its upper 24 bits are those of every later one.
    key: u32,
    /// The use of the domain and the place in the quota; they end with the window.
    uses: Mutex<rank::Uses, Option<[Use; 2]>>,
    tracked: Tracked,
}

impl Pd {
    /// A memory window that is not bound yet. ENOMEM: there are `max_mw`.
    pub fn alloc_mw(self: &Arc<Self>, kind: MwKind) -> Result<Arc<Mw>, Error> {
        let quota = self.context().device().quotas().mws.take()?;
        let window = Window::new(kind, self.id());
        let key = self.context().memory().insert(window.closed())?;
        let uses = Mutex::new(Some([self.hold(), quota]));
        let tracked = Tracked::new(ObjectId::next(), || Made::Mw { pd: self.object(), key });
        Ok(Arc::new(Mw { pd: Arc::clone(self), kind, key, uses, tracked }))
    }
}

impl Mw {
    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Which kind it is.
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// The key it was allocated with. Each binding replaces the lower 8 bits.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Closes the window for good; returns when no access through it is under way. Done by dropping
    /// too; doing it again does nothing.
    pub fn deallocate(&self) {
        let uses = self.uses.lock().take();
        if let Some(uses) = uses {
            // Whoever finds the key dead finds the window gone.
            self.tracked.end();
            self.pd.context().memory().remove_window(self.key);
            drop(uses);
        }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.deallocate();
    }
}

#[cfg(test)]
mod tests;
