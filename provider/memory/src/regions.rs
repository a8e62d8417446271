//! Accesses to memory by a key, for a local scatter/gather list or a peer. Each access checks key,
//! domain, rights and range, then copies. Only [`crate::guard`] touches the application's memory.

use crate::guard::{self, Fault, SharedBytes, Sum};
use crate::region::{AccessScope, KeyState, PdId, Region, Users};
use roxe_base::lock::ShardedReadGuard;
use roxe_base::table::Slots;
use roxe_transport::cx::{AtomicOp, MemError};
use roxe_transport::wr::{Access, Sge};
use roxe_wire::RKey;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// The regions and windows of a read-locked table. The methods mirror
/// [`roxe_transport::cx::Memory`].
#[derive(Debug)]
pub struct Regions<'t>(ShardedReadGuard<'t, Slots<Region>>);

impl<'t> Regions<'t> {
    pub(crate) const fn new(guard: ShardedReadGuard<'t, Slots<Region>>) -> Self {
        Self(guard)
    }

    /// Returns the number of entries, windows included.
    #[cfg(any(test, feature = "testing"))]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Regions<'_> {
    /// Returns the memory regions with their keys; no windows.
    pub fn memory_regions(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.0.iter().filter(|(_, region)| region.window().is_none())
    }

    #[inline]
    fn find(&self, key: u32) -> Result<&Region, MemError> {
        self.0.get(key).ok_or(MemError::BadKey)
    }

    /// Returns the current key of the entry in the slot of `key` ([`Slots::key_of_slot`]).
    pub fn current_key(&self, key: u32) -> Option<u32> {
        self.0.key_of_slot(key)
    }

    /// Returns the state of a key, for the explanation of an error.
    pub fn key_state(&self, key: u32) -> KeyState {
        let Some(region) = self.0.get(key) else {
            let is_window = |key: &u32| self.0.get(*key).is_some_and(|entry| entry.window().is_some());
            return match self.current_key(key).filter(is_window) {
                Some(current) => KeyState::Rebound(current),
                _ if self.0.was_last(key) => KeyState::Dead,
                _ => KeyState::Unknown,
            };
        };
        match region.users {
            Users::Unbound => KeyState::Unbound,
            Users::Null(_) => KeyState::Null,
            Users::Qp(_) | Users::Peers(_) | Users::Domain(_) => {
                let Region { addr, base, length, users, .. } = *region;
                let is_window = region.window().is_some();
                KeyState::Open { is_window, users, addr, base, length, access: region.granted() }
            }
        }
    }

    /// Returns the address of the element `sge`, if its region grants `access` to lists of `pd`.
    pub fn locate(&self, pd: PdId, sge: &Sge, access: Access) -> Result<u64, MemError> {
        self.find(sge.lkey.0)?.resolve(pd, sge.addr, sge.length.into(), access)
    }

    /// Returns the address of `len` bytes at `va` for a peer. The rights of the key are not
    /// checked.
    pub fn locate_remote(&self, scope: AccessScope, rkey: RKey, va: u64, len: u64) -> Result<u64, MemError> {
        self.find(rkey.0)?.resolve_remote(scope, va, len, Access::empty())
    }

    /// Returns the destinations of `len` bytes of the list `sges`, from byte `offset`: addresses,
    /// each with its range of the data.
    pub fn locate_list(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        len: usize,
    ) -> Result<Vec<(u64, Range<usize>)>, MemError> {
        let mut places = vec![];
        walk(sges, offset, len, |sge, part| {
            let addr = self.find(sge.lkey.0)?.resolve(pd, sge.addr, part.len() as u64, Access::LOCAL_WRITE)?;
            places.push((addr, part));
            Ok(())
        })?;
        Ok(places)
    }

    /// Returns the address of `len` bytes that a peer writes by the key of a region. Fails with
    /// `BadKey` for a window, which may be bound to other memory before the write.
    pub fn locate_write(&self, scope: AccessScope, rkey: RKey, va: u64, len: u64) -> Result<u64, MemError> {
        let region = self.find(rkey.0)?;
        if region.window().is_some() {
            return Err(MemError::BadKey);
        }
        region.resolve_remote(scope, va, len, Access::REMOTE_WRITE)
    }

    /// Copies `out.len()` bytes of the list `sges`, from its byte `offset` on, to `out`.
    #[inline]
    pub fn gather(&self, pd: PdId, sges: &[Sge], offset: u32, out: &[AtomicU8]) -> Result<(), MemError> {
        self.gather_by(pd, sges, offset, out, |_, addr, out| guard::read_shared(addr, out))
    }

    /// Like [`Regions::gather`]. Returns the CRC of the first bytes if the copy computes it.
    #[inline]
    pub fn gather_summed(
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

    /// Like [`Regions::gather`], but calls `copy` for each part. Its first argument is true for the
    /// first part.
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

    /// Copies `data` to the list `sges`, from its byte `offset` on.
    #[inline]
    pub fn scatter(&self, pd: PdId, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), MemError> {
        walk(sges, offset, data.len(), |sge, part| {
            let data = data.get(part).ok_or(MemError::Range)?;
            self.find(sge.lkey.0)?.write(pd, sge.addr, data.len(), |addr| guard::write(addr, data))
        })
    }

    /// Like [`Regions::scatter`], from bytes that another process may change.
    #[inline]
    pub fn scatter_shared(&self, pd: PdId, sges: &[Sge], offset: u32, data: SharedBytes<'_>) -> Result<(), MemError> {
        walk(sges, offset, data.len(), |sge, part| {
            let data = data.get(part).ok_or(MemError::Range)?;
            self.find(sge.lkey.0)?.write(pd, sge.addr, data.len(), |addr| guard::write_shared(addr, data))
        })
    }

    /// Checks `access` of a peer to `len` bytes at `va`. Zero bytes are always allowed (IBA
    /// §9.7.4.1.6).
    #[inline]
    pub fn check_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemError> {
        if len == 0 {
            return Ok(());
        }
        self.find(rkey.0)?.resolve_remote(scope.into(), va, len, access).map(drop)
    }

    /// Copies `out.len()` bytes at `va` to `out` for a peer.
    #[inline]
    pub fn read_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<(), MemError> {
        self.read_remote_by(guard::read_shared, scope.into(), rkey, va, out)
    }

    /// Like [`Regions::read_remote`]. Returns the CRC of the first bytes if the copy computes it.
    #[inline]
    pub fn read_remote_summed(
        &self,
        scope: AccessScope,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<Option<Sum>, MemError> {
        self.read_remote_by(guard::read_summed, scope, rkey, va, out)
    }

    #[inline]
    fn read_remote_by<T: Default>(
        &self,
        copy: impl FnOnce(u64, &[AtomicU8]) -> Result<T, Fault>,
        scope: AccessScope,
        rkey: RKey,
        va: u64,
        out: &[AtomicU8],
    ) -> Result<T, MemError> {
        if out.is_empty() {
            return Ok(T::default());
        }
        let addr = self.find(rkey.0)?.resolve_remote(scope, va, out.len() as u64, Access::REMOTE_READ)?;
        Ok(copy(addr, out)?)
    }

    /// Copies `data` to `va` for a peer.
    #[inline]
    pub fn write_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        data: &[u8],
    ) -> Result<(), MemError> {
        self.write_remote_by(scope.into(), rkey, va, data.len(), |addr| guard::write(addr, data))
    }

    /// Like [`Regions::write_remote`], from bytes that another process may change.
    #[inline]
    pub fn write_remote_shared(
        &self,
        scope: AccessScope,
        rkey: RKey,
        va: u64,
        data: SharedBytes<'_>,
    ) -> Result<(), MemError> {
        self.write_remote_by(scope, rkey, va, data.len(), |addr| guard::write_shared(addr, data))
    }

    #[inline]
    fn write_remote_by(
        &self,
        scope: AccessScope,
        rkey: RKey,
        va: u64,
        len: usize,
        copy: impl FnOnce(u64) -> Result<(), Fault>,
    ) -> Result<(), MemError> {
        if len == 0 {
            return Ok(());
        }
        let addr = self.find(rkey.0)?.resolve_remote(scope, va, len as u64, Access::REMOTE_WRITE)?;
        Ok(copy(addr)?)
    }

    /// Returns the address of 8 bytes that a peer accesses as a whole. Fails with `Range` if the
    /// address is not aligned. An aligned `va` does not imply an aligned address, because the
    /// region may have another base address (`iova`).
    #[inline]
    fn find_word(&self, scope: AccessScope, rkey: RKey, va: u64, access: Access) -> Result<u64, MemError> {
        let addr = self.find(rkey.0)?.resolve_remote(scope, va, 8, access)?;
        if addr.is_multiple_of(8) { Ok(addr) } else { Err(MemError::Range) }
    }

    /// Executes an atomic operation for a peer; returns the old value. Fails with `Range` if the
    /// memory is not aligned.
    pub fn atomic_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, MemError> {
        let addr = self.find_word(scope.into(), rkey, va, Access::REMOTE_ATOMIC)?;
        // clause: ATOMIC-GLOBAL
        Ok(guard::atomic(addr, op)?)
    }

    /// Like [`Self::atomic_remote`], but in three steps: the read and each half of the write, each
    /// followed by `pause`. The caller excludes the card's other atomics, but no other access.
    pub fn atomic_in_steps(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
        pause: impl Fn(),
    ) -> Result<u64, MemError> {
        let addr = self.find_word(scope.into(), rkey, va, Access::REMOTE_ATOMIC)?;
        let mut word = [0; 8];
        guard::read(addr, guard::own_cells(&mut word))?;
        let old = u64::from_ne_bytes(word);
        let new = op.applied(old);
        pause();
        for (at, half) in (addr..).step_by(4).zip(new.to_ne_bytes().as_chunks::<4>().0) {
            guard::write(at, half)?;
            pause();
        }
        Ok(old)
    }

    /// Stores 8 bytes in one access for a peer. Fails with `Range` if the memory is not aligned.
    pub fn store_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        va: u64,
        data: [u8; 8],
    ) -> Result<(), MemError> {
        let addr = self.find_word(scope.into(), rkey, va, Access::REMOTE_WRITE)?;
        // clause: ATOMIC-WRITE-WHOLE
        Ok(guard::store(addr, data)?)
    }

    /// Flushes a range (address and length) or a whole region for a peer. A fence is enough: each
    /// store of an earlier request is in memory or in this processor's store buffer.
    pub fn flush_remote(
        &self,
        scope: impl Into<AccessScope>,
        rkey: RKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemError> {
        let region = self.find(rkey.0)?;
        let (va, len) = range.unwrap_or((region.base, region.length));
        region.resolve_remote(scope.into(), va, len, access)?;
        // clause: FLUSH-VISIBLE
        fence(Ordering::SeqCst);
        Ok(())
    }
}

/// Calls `f` for each element that holds some of the `total` bytes from byte `offset` of the list
/// on. `f` gets the element with its address moved to the first of these bytes, and their range in
/// the data. Fails with `Range` if the list is too short. The keys of other elements are not
/// checked.
#[inline]
fn walk(
    sges: &[Sge],
    offset: u32,
    total: usize,
    mut f: impl FnMut(Sge, Range<usize>) -> Result<(), MemError>,
) -> Result<(), MemError> {
    // Usually the first element holds all bytes.
    if let [sge, ..] = sges
        && total > 0
        && sge.length.checked_sub(offset).is_some_and(|room| total <= room as usize)
    {
        let addr = sge.addr.checked_add(u64::from(offset)).ok_or(MemError::Range)?;
        return f(Sge { addr, ..*sge }, 0..total);
    }
    walk_all(sges, offset, total, f)
}

/// Like [`walk`], for bytes in any number of elements.
#[inline(never)]
fn walk_all(
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
        let len = (total - done).min(room as usize);
        let addr = sge.addr.checked_add(u64::from(skip)).ok_or(MemError::Range)?;
        f(Sge { addr, ..*sge }, done..done + len)?;
        (done, skip) = (done + len, 0);
    }
    if done == total { Ok(()) } else { Err(MemError::Range) }
}
