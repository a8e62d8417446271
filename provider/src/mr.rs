//! Memory regions and windows: the table of keys, and every access that a local list or a peer makes under one.
//!
//! Each access checks key, protection domain, rights and range, under a read lock that is held at least until the last byte
//! is copied, so that deregistration returns only when no access is under way. Touches the application's memory through
//! [`crate::guard`] only.

use crate::error::Error;
use crate::guard::{self, Fault, SharedBytes, Sum};
use crate::limits::{MAX_MR, MAX_MW};
use crate::lock::{Sharded, ShardedReadGuard, ShardedWriteGuard, rank};
use crate::pd::PdId;
use crate::table::Slots;
use crate::uses::ObjectId;
use roxe_transport::cx::{AtomicOp, MemError};
use roxe_transport::wr::{Access, Sge};
use roxe_wire::RKey;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering, fence};

mod advise;
mod dmabuf;
mod null;
mod registration;
mod window;

pub use advise::Advice;
pub use dmabuf::DmaBuf;
pub use registration::{Mr, MrChange};
use window::Window;
pub use window::{Mw, MwKind};

/// What a key stands for. With its tag it fills one cache line ([`crate::table`]).
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Where the memory is.
    addr: u64,
    /// The address by which lists and peers name its first byte.
    base: u64,
    length: u64,
    access: Access,
    users: Users,
    role: Role,
}

/// Whether a key is that of memory or of a window.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// Memory, with this many windows bound to it.
    Memory { windows: u32 },
    /// A window.
    Window(Window),
}

/// Who may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// Lists and peers of this domain.
    Domain(PdId),
    /// Peers of this domain.
    Peers(PdId),
    /// The peer of this queue pair.
    Qp(ObjectId),
    /// Lists of this domain, and there is no memory: reading gives zeros, what is written is forgotten.
    Null(PdId),
    /// Nobody: a window that is not bound.
    Nobody,
}

/// For whom a peer's request is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// The domain of the queue pair.
    pub(crate) pd: PdId,
    /// The queue pair, for windows that are bound to one.
    pub(crate) qp: Option<ObjectId>,
}

impl From<PdId> for Reach {
    /// What every queue pair of the domain may do.
    fn from(pd: PdId) -> Self {
        Self { pd, qp: None }
    }
}

impl Region {
    /// Where `len` bytes at `va` are, if the region holds them and grants `access` to lists of `pd`.
    #[inline]
    fn resolve(&self, pd: PdId, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        // clause: WINDOW-REMOTE-ONLY
        if self.users != Users::Domain(pd) {
            return Err(MemError::WrongDomain);
        }
        self.locate(va, len, access)
    }

    /// Where `len` bytes at `va` are, if the region or window holds them and grants `access` to peers of `reach`.
    // clause: CHECK-KEY
    #[inline]
    fn resolve_remote(&self, reach: Reach, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        // clause: WINDOW-ACCESS
        let granted = match self.users {
            Users::Domain(pd) | Users::Peers(pd) => pd == reach.pd,
            Users::Qp(qp) => Some(qp) == reach.qp,
            Users::Nobody | Users::Null(_) => false,
        };
        if granted { self.locate(va, len, access) } else { Err(MemError::WrongDomain) }
    }

    /// Copies out for a list of `pd`, by `copy`.
    #[inline]
    fn read(
        &self,
        pd: PdId,
        va: u64,
        out: &[AtomicU8],
        copy: impl FnOnce(u64, &[AtomicU8]) -> Result<(), Fault>,
    ) -> Result<(), MemError> {
        // clause: KEY-NULL
        if self.users == Users::Null(pd) {
            out.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
            return Ok(());
        }
        Ok(copy(self.resolve(pd, va, out.len() as u64, Access::empty())?, out)?)
    }

    /// Copies in for a list of `pd`.
    #[inline]
    fn write(
        &self,
        pd: PdId,
        va: u64,
        len: usize,
        copy: impl FnOnce(u64) -> Result<(), Fault>,
    ) -> Result<(), MemError> {
        // clause: KEY-NULL
        if self.users == Users::Null(pd) {
            return Ok(());
        }
        // clause: KEY-SCATTER
        Ok(copy(self.resolve(pd, va, len as u64, Access::LOCAL_WRITE)?)?)
    }

    #[inline]
    fn locate(&self, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        if !self.access.contains(access) {
            return Err(MemError::Access);
        }
        // Neither subtraction wraps where the comparison before it held; a range that wraps is too long.
        let offset = va.checked_sub(self.base).ok_or(MemError::Range)?;
        // clause: CHECK-KEY-OVERFLOW
        let room = self.length.checked_sub(offset).ok_or(MemError::Range)?;
        if len > room {
            return Err(MemError::Range);
        }
        Ok(self.addr.wrapping_add(offset))
    }

    /// EBUSY while windows are bound to it.
    fn check_free(&self) -> Result<(), Error> {
        // clause: WINDOW-HOLDS
        match self.role {
            Role::Memory { windows } if windows > 0 => Err(Error::busy("memory region", "memory windows", windows)),
            _ => Ok(()),
        }
    }
}

/// The regions of a context by key.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    /// Every thread reads it all the time: each has a part of the lock of its own, whose cache line does not travel.
    regions: Sharded<rank::Memory, Slots<Region>>,
}

impl MemoryTable {
    pub(crate) fn new() -> Self {
        Self { regions: Sharded::new(Slots::new((MAX_MR + MAX_MW) as usize)) }
    }

    /// The regions, for as long as the value lives: any number of accesses. Locking for each packet made the processor wait
    /// for the stores of its payload, a quarter of the time that sending 1 MB through a ring took. Whoever holds them may not
    /// ask this table for anything else.
    #[inline]
    pub(crate) fn hold(&self) -> Regions<'_> {
        Regions(self.regions.read())
    }

    /// The regions, when nobody else looks at them.
    fn change(&self) -> ShardedWriteGuard<'_, Slots<Region>> {
        self.regions.write()
    }

    fn insert(&self, region: Region) -> Result<u32, Error> {
        self.change().insert(region)
    }

    /// Lets `key` stand for something else. Returns when no access to what it stood for is under way any more.
    fn replace(&self, key: u32, region: Region) -> Result<(), Error> {
        let mut regions = self.change();
        let old = regions.get_mut(key).ok_or_else(|| Error::invalid("no such region"))?;
        old.check_free()?;
        *old = region;
        Ok(())
    }

    /// Kills the key of a region. Returns when no access under it is under way any more. EBUSY while windows are bound.
    fn remove(&self, key: u32) -> Result<(), Error> {
        let mut regions = self.change();
        regions.get(key).map_or(Ok(()), Region::check_free)?;
        // clause: KEY-DEAD
        regions.remove(key);
        Ok(())
    }

    /// Kills the key of a region and closes the windows bound to it. Returns when no access under any of them is under way.
    fn revoke(&self, key: u32) {
        let mut regions = self.change();
        if regions.get(key).is_some_and(|region| region.check_free().is_err()) {
            window::close_all(&mut regions, |entry| entry.is_window_of(key));
        }
        // clause: KEY-DEAD
        regions.remove(key);
    }

    /// How many regions there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.hold().0.len()
    }
}

/// Regions that are held. The methods mirror [`roxe_transport::cx::Memory`] for one protection domain each.
#[derive(Debug)]
pub(crate) struct Regions<'t>(ShardedReadGuard<'t, Slots<Region>>);

impl Regions<'_> {
    #[inline]
    fn find(&self, key: u32) -> Result<&Region, MemError> {
        self.0.get(key).ok_or(MemError::BadKey)
    }

    /// Copies out of the list `sges`, from `offset` bytes into it.
    pub(crate) fn gather(&self, pd: PdId, sges: &[Sge], offset: u32, out: &[AtomicU8]) -> Result<(), MemError> {
        self.gather_by(pd, sges, offset, out, |_, addr, out| guard::read_shared(addr, out))
    }

    /// The same, with the sum of the first bytes if the copy finds it on the way.
    pub(crate) fn gather_summed(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        out: &[AtomicU8],
    ) -> Result<Option<Sum>, MemError> {
        let mut sum = None;
        self.gather_by(pd, sges, offset, out, |is_first, addr, out| {
            if is_first {
                sum = guard::read_summed(addr, out)?;
                return Ok(());
            }
            guard::read(addr, out)
        })?;
        Ok(sum)
    }

    /// Copies each part by `copy`, which hears whether it is the first one.
    #[inline]
    fn gather_by(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        out: &[AtomicU8],
        mut copy: impl FnMut(bool, u64, &[AtomicU8]) -> Result<(), Fault>,
    ) -> Result<(), MemError> {
        walk(sges, offset, out.len(), |sge, part| {
            let is_first = part.start == 0;
            let out = out.get(part).ok_or(MemError::Range)?;
            self.find(sge.lkey.0)?.read(pd, sge.addr, out, |addr, out| copy(is_first, addr, out))
        })
    }

    /// Copies into the list `sges`, from `offset` bytes into it.
    pub(crate) fn scatter(&self, pd: PdId, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), MemError> {
        walk(sges, offset, data.len(), |sge, part| {
            let data = data.get(part).ok_or(MemError::Range)?;
            self.find(sge.lkey.0)?.write(pd, sge.addr, data.len(), |addr| guard::write(addr, data))
        })
    }

    /// The same out of memory of another process.
    pub(crate) fn scatter_shared(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        data: SharedBytes<'_>,
    ) -> Result<(), MemError> {
        walk(sges, offset, data.len(), |sge, part| {
            let data = data.get(part).ok_or(MemError::Range)?;
            self.find(sge.lkey.0)?.write(pd, sge.addr, data.len(), |addr| guard::write_shared(addr, data))
        })
    }

    /// Whether a peer may do `access` on `len` bytes at `va`. Nothing is checked for no bytes (IBA §9.7.4.1.6).
    pub(crate) fn check_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemError> {
        if len == 0 {
            return Ok(());
        }
        self.find(rkey.0)?.resolve_remote(reach.into(), va, len, access).map(drop)
    }

    /// Copies out of memory for a peer.
    pub(crate) fn read_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<(), MemError> {
        self.read_remote_by(guard::read_shared, reach.into(), rkey, va, out)
    }

    /// The same, with the sum of the first bytes if the copy finds it on the way.
    pub(crate) fn read_remote_summed(
        &self,
        reach: Reach,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<Option<Sum>, MemError> {
        self.read_remote_by(guard::read_summed, reach, rkey, va, out)
    }

    #[inline]
    fn read_remote_by<T: Default>(
        &self,
        copy: impl FnOnce(u64, &[AtomicU8]) -> Result<T, Fault>,
        reach: Reach,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<T, MemError> {
        if out.is_empty() {
            return Ok(T::default());
        }
        let addr = self.find(rkey.0)?.resolve_remote(reach, va, out.len() as u64, Access::REMOTE_READ)?;
        Ok(copy(addr, out)?)
    }

    /// Copies into memory for a peer.
    pub(crate) fn write_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        data: &[u8],
    ) -> Result<(), MemError> {
        self.write_remote_by(reach.into(), rkey, va, data.len(), |addr| guard::write(addr, data))
    }

    /// The same out of memory of another process.
    pub(crate) fn write_remote_shared(
        &self,
        reach: Reach,
        rkey: RKey,
        va: u64,
        data: SharedBytes<'_>,
    ) -> Result<(), MemError> {
        self.write_remote_by(reach, rkey, va, data.len(), |addr| guard::write_shared(addr, data))
    }

    #[inline]
    fn write_remote_by(
        &self,
        reach: Reach,
        rkey: RKey,
        va: u64,
        len: usize,
        copy: impl FnOnce(u64) -> Result<(), Fault>,
    ) -> Result<(), MemError> {
        if len == 0 {
            return Ok(());
        }
        let addr = self.find(rkey.0)?.resolve_remote(reach, va, len as u64, Access::REMOTE_WRITE)?;
        Ok(copy(addr)?)
    }

    /// One atomic for a peer; returns the old value. The memory itself must be aligned too, which `va` does not say
    /// when the region's `iova` is odd: that is `Range`.
    pub(crate) fn atomic_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, MemError> {
        let addr = self.find(rkey.0)?.resolve_remote(reach.into(), va, 8, Access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) {
            return Err(MemError::Range);
        }
        // clause: ATOMIC-GLOBAL
        Ok(guard::atomic(addr, op)?)
    }

    /// One store of 8 bytes for a peer. The memory itself must be aligned too, as for [`Self::atomic_remote`].
    pub(crate) fn store_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        data: [u8; 8],
    ) -> Result<(), MemError> {
        let addr = self.find(rkey.0)?.resolve_remote(reach.into(), va, 8, Access::REMOTE_WRITE)?;
        if !addr.is_multiple_of(8) {
            return Err(MemError::Range);
        }
        // clause: ATOMIC-WRITE-WHOLE
        Ok(guard::store(addr, data)?)
    }

    /// FLUSH of a range (address and length) or a whole region for a peer. Nothing lies between the stores for peers and the
    /// other processors but the store buffer of this one.
    pub(crate) fn flush_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemError> {
        let region = self.find(rkey.0)?;
        let (va, len) = range.unwrap_or((region.base, region.length));
        region.resolve_remote(reach.into(), va, len, access)?;
        // clause: FLUSH-VISIBLE
        fence(Ordering::SeqCst);
        Ok(())
    }
}

impl From<Fault> for MemError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

/// Calls `f` for each stretch of the list that `total` bytes from `offset` on fall into, with the element cut to the
/// stretch's first byte and the range of the data that belongs there. Elements that no byte falls into are not looked
/// at. `Range` if the list is too short.
fn walk(
    sges: &[Sge],
    offset: u32,
    total: usize,
    mut f: impl FnMut(Sge, Range<usize>) -> Result<(), MemError>,
) -> Result<(), MemError> {
    let (mut skip, mut done) = (offset, 0);
    for sge in sges {
        if done == total {
            break;
        }
        let Some(room) = sge.length.checked_sub(skip).filter(|room| *room > 0) else {
            skip -= sge.length;
            continue;
        };
        let n = (total - done).min(room as usize);
        let addr = sge.addr.checked_add(u64::from(skip)).ok_or(MemError::Range)?;
        f(Sge { addr, ..*sge }, done..done + n)?;
        (done, skip) = (done + n, 0);
    }
    if done == total { Ok(()) } else { Err(MemError::Range) }
}

#[cfg(test)]
mod tests;
