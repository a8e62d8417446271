//! Memory windows: keys for parts of regions, opened and closed by work requests.
//!
//! A window has a slot of the table of regions for as long as it lives; binding fills the slot with the part of the region
//! that it opens, so that a peer's access finds windows and regions alike. Touches the table of regions only.

use super::{MemoryTable, Reach, Region, Role, Users};
use crate::error::Error;
use crate::lock::{Mutex, rank};
use crate::pd::{Pd, PdId};
use crate::table::Slots;
use crate::uses::{ObjectId, Use};
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Bind};
use roxe_wire::RKey;
use std::num::NonZeroU32;
use std::sync::Arc;

/// What a window may grant.
const REMOTE_RIGHTS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(FLUSH_RIGHTS);
/// Those of them that a region has to have itself.
const FLUSH_RIGHTS: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

/// The two kinds of windows (values of `enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Bound by a verb; for every queue pair of its domain.
    One = 1,
    /// Bound by a work request; for the queue pair that bound it (2B).
    Two = 2,
}

/// What makes an entry of the table a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    kind: MwKind,
    pd: PdId,
    /// Key of the region that it is bound to; none is 0.
    bound_to: Option<NonZeroU32>,
}

impl Window {
    /// The entry of this window while it is not bound.
    fn closed(self) -> Region {
        let role = Role::Window(Self { bound_to: None, ..self });
        let (addr, base, length, access) = (0, 0, 0, Access::empty());
        Region { addr, base, length, access, users: Users::Nobody, role }
    }

    /// The region that it is bound to.
    fn region(self, regions: &mut Slots<Region>) -> Option<&mut Region> {
        regions.get_mut(self.bound_to?.get())
    }
}

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    kind: MwKind,
    /// The first key it had; its upper 24 bits are those of every later one.
    key: u32,
    /// The use of the domain and the place in the quota; they end with the window.
    uses: Mutex<rank::Uses, Option<[Use; 2]>>,
}

impl Mw {
    /// A window that is not bound. ENOMEM: there are `max_mw`.
    pub(crate) fn allocate(pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Self>, Error> {
        let quota = pd.context().device().quotas().mws.take()?;
        let window = Window { kind, pd: pd.id(), bound_to: None };
        let key = pd.context().memory().insert(window.closed())?;
        Ok(Arc::new(Self { pd: Arc::clone(pd), kind, key, uses: Mutex::new(Some([pd.hold(), quota])) }))
    }

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

    /// Closes the window for good; returns when no access through it is under way. Done by dropping too; doing it again
    /// does nothing.
    pub fn deallocate(&self) {
        let uses = self.uses.lock().take();
        if let Some(uses) = uses {
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

impl MemoryTable {
    /// Binds a window for the queue pair of `reach`; when it returns, no access through an earlier binding is under way.
    pub(crate) fn bind(&self, reach: Reach, bind: &Bind) -> Result<(), MemError> {
        let mut regions = self.change();
        let key = regions.key_of_slot(bind.rkey.0).ok_or(MemError::BadKey)?;
        let window = regions.get(key).and_then(Region::window).ok_or(MemError::BadKey)?;
        window.check(reach, bind)?;
        let opened = if bind.length == 0 { window.closed() } else { window.open(&regions, reach, bind)? };
        release(&mut regions, window);
        if let Some(region) = opened.window().and_then(|window| window.region(&mut regions)) {
            region.count_windows(|windows| windows + 1);
        }
        let [.., tag] = bind.rkey.0.to_be_bytes();
        regions.retag(key, tag, opened);
        Ok(())
    }

    /// Closes a window of type 2 for the queue pair of `reach` or for its peer.
    pub(crate) fn invalidate(&self, reach: Reach, rkey: RKey) -> Result<(), MemError> {
        let mut regions = self.change();
        let entry = regions.get(rkey.0).ok_or(MemError::BadKey)?;
        // clause: INVALIDATE-REFUSED, WINDOW-TYPE-2
        let window = match (entry.window(), entry.users) {
            (Some(window), Users::Qp(qp)) if Some(qp) == reach.qp => window,
            (Some(_), Users::Qp(_)) => return Err(MemError::WrongDomain),
            (None, Users::Domain(pd)) if pd != reach.pd => return Err(MemError::WrongDomain),
            _ => return Err(MemError::Access),
        };
        close(&mut regions, rkey.0, window);
        Ok(())
    }

    /// Closes the windows that only `qp`, which is going, could use.
    pub(crate) fn forget_qp(&self, qp: ObjectId) {
        // clause: WINDOW-QP-GONE
        close_all(&mut self.change(), |entry| entry.users == Users::Qp(qp));
    }

    fn remove_window(&self, key: u32) {
        let mut regions = self.change();
        let Some(entry) = regions.key_of_slot(key).and_then(|key| regions.remove(key)) else { return };
        if let Some(window) = entry.window() {
            release(&mut regions, window);
        }
    }
}

impl Window {
    /// Whether it may be bound like this at all.
    fn check(self, reach: Reach, bind: &Bind) -> Result<(), MemError> {
        if self.pd != reach.pd {
            return Err(MemError::WrongDomain);
        }
        let possible = match self.kind {
            // clause: WINDOW-TYPE-1
            MwKind::One => !bind.access.contains(Access::ZERO_BASED),
            // clause: WINDOW-TYPE-2
            MwKind::Two => self.bound_to.is_none() && bind.length > 0,
        };
        if possible { Ok(()) } else { Err(MemError::Access) }
    }

    /// The entry of this window once it is bound.
    // clause: WINDOW-BIND
    fn open(self, regions: &Slots<Region>, reach: Reach, bind: &Bind) -> Result<Region, MemError> {
        let region = regions.get(bind.lkey.0).ok_or(MemError::BadKey)?;
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let local = if writes { Access::LOCAL_WRITE } else { Access::empty() };
        let needed = Access::MW_BIND | local | bind.access & FLUSH_RIGHTS;
        if region.access.contains(Access::ZERO_BASED) {
            return Err(MemError::Access);
        }
        let addr = region.resolve(reach.pd, bind.addr, bind.length, needed)?;
        // clause: WINDOW-ACCESS
        let users = match self.kind {
            MwKind::One => Users::Peers(self.pd),
            MwKind::Two => reach.qp.map_or(Users::Nobody, Users::Qp),
        };
        let base = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        let role = Role::Window(Self { bound_to: NonZeroU32::new(bind.lkey.0), ..self });
        Ok(Region { addr, base, length: bind.length, access: bind.access & REMOTE_RIGHTS, users, role })
    }
}

impl Region {
    /// What it is if it is a window.
    fn window(&self) -> Option<Window> {
        if let Role::Window(window) = self.role { Some(window) } else { None }
    }

    /// Whether it is a window bound to the region under `key`.
    pub(super) fn is_window_of(&self, key: u32) -> bool {
        self.window().is_some_and(|window| window.bound_to.is_some_and(|bound_to| bound_to.get() == key))
    }

    /// There is a window more or less of it.
    fn count_windows(&mut self, change: impl FnOnce(u32) -> u32) {
        if let Role::Memory { windows } = &mut self.role {
            *windows = change(*windows);
        }
    }
}

/// Closes every window that `which` picks.
pub(super) fn close_all(regions: &mut Slots<Region>, which: impl Fn(&Region) -> bool) {
    let picked = |(key, entry): (u32, &Region)| entry.window().filter(|_| which(entry)).map(|window| (key, window));
    let windows: Vec<_> = regions.iter().filter_map(picked).collect();
    for (key, window) in windows {
        close(regions, key, window);
    }
}

/// Closes the window under `key`, which keeps that key.
fn close(regions: &mut Slots<Region>, key: u32, window: Window) {
    release(regions, window);
    if let Some(entry) = regions.get_mut(key) {
        *entry = window.closed();
    }
}

/// The region that `window` was bound to has one window less.
fn release(regions: &mut Slots<Region>, window: Window) {
    if let Some(region) = window.region(regions) {
        region.count_windows(|windows| windows - 1);
    }
}

#[cfg(test)]
mod tests;
