//! The table of keys of one context.
//!
//! A window has an entry of the table for its lifetime. Binding fills the entry with part of the
//! region, so that an access by a peer treats windows like regions. The region counts its windows.
//!
//! An access holds a read lock until the last byte is copied. So after the removal or replacement
//! of an entry no access under it is in progress.

use crate::region::{AccessScope, Region, Users, Window};
use crate::regions::Regions;
use roxe_base::error::Error;
use roxe_base::limits::{MAX_MR, MAX_MW};
use roxe_base::lock::{Sharded, rank};
use roxe_base::table::Slots;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Bind};
use roxe_wire::RKey;

/// The regions of a context by key.
#[derive(Debug)]
pub struct MemoryTable {
    /// Sharded, because every thread reads it: no cache line moves between readers.
    regions: Sharded<rank::Memory, Slots<Region>>,
}

impl Default for MemoryTable {
    fn default() -> Self {
        // A region may have two keys, one for lists and one for peers.
        Self { regions: Sharded::new(Slots::new((2 * MAX_MR + MAX_MW) as usize)) }
    }
}

impl MemoryTable {
    /// Read-locks the regions for any number of accesses. (A lock per packet would wait for the
    /// stores of its payload.) The holder must not call other methods of this table.
    #[inline]
    pub fn hold(&self) -> Regions<'_> {
        Regions::new(self.regions.read())
    }

    /// Adds `region` under a new key, which is returned.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn insert(&self, region: Region) -> Result<u32, Error> {
        self.regions.write().insert(region)
    }

    /// Replaces the entry of `key`. Returns when no access to the old entry is in progress.
    pub fn replace(&self, key: u32, region: Region) -> Result<(), Error> {
        let mut regions = self.regions.write();
        let old =
            regions.get_mut(key).ok_or_else(|| Error::invalid(format!("the key {key:#x} belongs to no region")))?;
        old.check_free()?;
        *old = region;
        Ok(())
    }

    /// Removes the key of a region. Returns when no access under it is in progress.
    ///
    /// # Errors
    /// EBUSY while windows are bound.
    pub fn remove(&self, key: u32) -> Result<(), Error> {
        let mut regions = self.regions.write();
        regions.get(key).map_or(Ok(()), Region::check_free)?;
        // clause: KEY-DEAD
        regions.remove(key);
        Ok(())
    }

    /// Removes the key of a region and closes its windows. Returns when no access under any of them
    /// is in progress.
    pub fn revoke(&self, key: u32) {
        let mut regions = self.regions.write();
        if regions.get(key).is_some_and(|region| region.check_free().is_err()) {
            close_all(&mut regions, |entry| entry.is_window_of(key));
        }
        // clause: KEY-DEAD
        regions.remove(key);
    }

    /// Grants those rights of `access` that the key withheld ([`Region::withholding`]), and returns
    /// them.
    pub fn grant(&self, rkey: RKey, access: Access) -> Access {
        let withheld = |regions: &Slots<Region>| regions.get(rkey.0).map(|region| region.withheld(access));
        let given = withheld(&self.regions.read()).unwrap_or(Access::empty());
        if !given.is_empty()
            && let Some(region) = self.regions.write().get_mut(rkey.0)
        {
            region.grant(given);
        }
        given
    }

    /// Binds a window for the queue pair of `scope`. Returns when no access through an earlier
    /// binding is in progress.
    pub fn bind(&self, scope: AccessScope, bind: &Bind) -> Result<(), MemError> {
        let mut regions = self.regions.write();
        let key = regions.key_of_slot(bind.rkey.0).ok_or(MemError::BadKey)?;
        let window = regions.get(key).and_then(Region::window).ok_or(MemError::BadKey)?;
        window.check(scope, bind)?;
        let opened = if bind.length == 0 { window.closed() } else { window.open(&regions, scope, bind)? };
        release(&mut regions, window);
        if let Some(region) = opened.window().and_then(|window| window.region(&mut regions)) {
            region.count_windows(|windows| windows + 1);
        }
        let [.., tag] = bind.rkey.0.to_be_bytes();
        regions.retag(key, tag, opened);
        Ok(())
    }

    /// Closes a window of type 2 at the request of the queue pair of `scope` or its peer.
    pub fn invalidate(&self, scope: AccessScope, rkey: RKey) -> Result<(), MemError> {
        let mut regions = self.regions.write();
        let entry = regions.get(rkey.0).ok_or(MemError::BadKey)?;
        // clause: INVALIDATE-REFUSED, WINDOW-TYPE-2
        let window = match (entry.window(), entry.users) {
            (Some(window), Users::Qp(qp)) if Some(qp) == scope.qp => window,
            (Some(_), Users::Qp(_)) => return Err(MemError::WrongDomain),
            (None, Users::Domain(pd) | Users::Peers(pd)) if pd != scope.pd => return Err(MemError::WrongDomain),
            _ => return Err(MemError::Access),
        };
        close(&mut regions, rkey.0, window);
        Ok(())
    }

    /// Closes the windows that only `qp`, which is being destroyed, could use.
    pub fn forget_qp(&self, qp: ObjectId) {
        // clause: WINDOW-QP-GONE
        close_all(&mut self.regions.write(), |entry| entry.users == Users::Qp(qp));
    }

    /// Removes a window. `key` is any key that it had. Returns when no access through it is in
    /// progress.
    pub fn remove_window(&self, key: u32) {
        let mut regions = self.regions.write();
        let Some(entry) = regions.key_of_slot(key).and_then(|key| regions.remove(key)) else { return };
        if let Some(window) = entry.window() {
            release(&mut regions, window);
        }
    }
}

fn close_all(regions: &mut Slots<Region>, is_selected: impl Fn(&Region) -> bool) {
    let picked =
        |(key, entry): (u32, &Region)| entry.window().filter(|_| is_selected(entry)).map(|window| (key, window));
    let windows: Vec<_> = regions.iter().filter_map(picked).collect();
    for (key, window) in windows {
        close(regions, key, window);
    }
}

/// Closes the window under `key`; its key stays.
fn close(regions: &mut Slots<Region>, key: u32, window: Window) {
    release(regions, window);
    if let Some(entry) = regions.get_mut(key) {
        *entry = window.closed();
    }
}

/// Uncounts `window` from the region that it was bound to.
fn release(regions: &mut Slots<Region>, window: Window) {
    if let Some(region) = window.region(regions) {
        region.count_windows(|windows| windows - 1);
    }
}
