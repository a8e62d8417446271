//! Memory windows: keys for parts of regions, bound and invalidated by work requests. The memory
//! table ([`roxe_memory::table`]) has the keys.

use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use};
use roxe_check::{Object, Tracked};
use roxe_memory::region::{MwKind, Window};
use roxe_wire::RKey;
use std::sync::Arc;

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    kind: MwKind,
    /// First key; every later key has the same upper 24 bits.
    key: u32,
    /// Uses of the domain and of the quota, until the window is deallocated.
    uses: Mutex<rank::Uses, Option<[Use; 2]>>,
    tracked: Tracked,
}

impl Pd {
    /// Allocates an unbound memory window. Fails with ENOMEM if the device has `max_mw` already.
    pub fn alloc_mw(self: &Arc<Self>, kind: MwKind) -> Result<Arc<Mw>, Error> {
        let quota = self.context().device().quotas().mws.take()?;
        let window = Window::new(kind, self.id());
        let key = self.context().memory().insert(window.closed())?;
        let uses = Mutex::new(Some([self.hold(), quota]));
        let tracked = Tracked::new(ObjectId::next(), || Object::Mw { pd: self.object(), key });
        Ok(Arc::new(Mw { pd: Arc::clone(self), kind, key, uses, tracked }))
    }
}

impl Mw {
    /// Returns the protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the kind of the window.
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// Returns the key after allocation; each bind replaces the lower 8 bits.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Deallocates the window, as a drop does; when it returns, no access through the window is in
    /// progress. Later calls do nothing.
    pub fn deallocate(&self) {
        let uses = self.uses.lock().take();
        if let Some(uses) = uses {
            // Reported before the key is invalid, because other threads then find no window.
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
