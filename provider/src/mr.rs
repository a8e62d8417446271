//! Memory regions and windows: registration, and every access that a local list or a peer makes under a key.
//!
//! Each access checks key, protection domain, rights and range, under one read lock that is held until the last byte is
//! copied, so that deregistration returns only when no access is under way. Touches the application's memory through
//! [`crate::guard`] only.

use crate::device::Context;
use crate::dm::Part;
use crate::error::Error;
use crate::guard::{self, Fault};
use crate::limits::{MAX_MR, MAX_MR_SIZE};
use crate::mapped::{self, Mapping};
use crate::pd::{Pd, PdId};
use crate::table::Slots;
use crate::uses::{ObjectId, Use};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use roxe_transport::cx::{AtomicOp, MemError};
use roxe_transport::wr::{Access, Sge};
use roxe_wire::{LKey, RKey};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

mod advise;
mod dmabuf;
mod null;
mod window;

pub use advise::Advice;
pub use dmabuf::DmaBuf;
use window::Window;
pub use window::{Mw, MwKind};

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Where the memory is.
    addr: u64,
    /// The address by which lists and peers name its first byte.
    base: u64,
    length: u64,
    access: Access,
    users: Users,
    /// Windows bound to it.
    windows: u32,
    /// What it is more if it is a window.
    window: Option<Window>,
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

    /// Copies out for a list of `pd`.
    #[inline]
    fn read(&self, pd: PdId, va: u64, out: &mut [u8]) -> Result<(), MemError> {
        // clause: KEY-NULL
        if self.users == Users::Null(pd) {
            out.fill(0);
            return Ok(());
        }
        Ok(guard::read(self.resolve(pd, va, out.len() as u64, Access::empty())?, out)?)
    }

    /// Copies in for a list of `pd`.
    #[inline]
    fn write(&self, pd: PdId, va: u64, data: &[u8]) -> Result<(), MemError> {
        // clause: KEY-NULL
        if self.users == Users::Null(pd) {
            return Ok(());
        }
        // clause: KEY-SCATTER
        Ok(guard::write(self.resolve(pd, va, data.len() as u64, Access::LOCAL_WRITE)?, data)?)
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
        match self.windows {
            0 => Ok(()),
            n => Err(Error::busy("memory region", "memory windows", n)),
        }
    }
}

/// The regions of a context by key. The methods mirror [`roxe_transport::cx::Memory`] for one protection domain each.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    regions: RwLock<Slots<Region>>,
}

impl MemoryTable {
    pub(crate) fn new() -> Self {
        Self { regions: RwLock::new(Slots::new(MAX_MR as usize)) }
    }

    /// Copies out of the list `sges`, from `offset` bytes into it.
    pub(crate) fn gather(&self, pd: PdId, sges: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), MemError> {
        let regions = self.regions.read();
        walk(sges, offset, out.len(), |sge, part| {
            let out = out.get_mut(part).ok_or(MemError::Range)?;
            find(&regions, sge.lkey.0)?.read(pd, sge.addr, out)
        })
    }

    /// Copies into the list `sges`, from `offset` bytes into it.
    pub(crate) fn scatter(&self, pd: PdId, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), MemError> {
        let regions = self.regions.read();
        walk(sges, offset, data.len(), |sge, part| {
            let data = data.get(part).ok_or(MemError::Range)?;
            find(&regions, sge.lkey.0)?.write(pd, sge.addr, data)
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
        find(&self.regions.read(), rkey.0)?.resolve_remote(reach.into(), va, len, access).map(drop)
    }

    /// Copies out of memory for a peer.
    pub(crate) fn read_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), MemError> {
        if out.is_empty() {
            return Ok(());
        }
        let regions = self.regions.read();
        let addr = find(&regions, rkey.0)?.resolve_remote(reach.into(), va, out.len() as u64, Access::REMOTE_READ)?;
        Ok(guard::read(addr, out)?)
    }

    /// Copies into memory for a peer.
    pub(crate) fn write_remote(
        &self,
        reach: impl Into<Reach>,
        rkey: RKey,
        va: u64,
        data: &[u8],
    ) -> Result<(), MemError> {
        if data.is_empty() {
            return Ok(());
        }
        let regions = self.regions.read();
        let addr = find(&regions, rkey.0)?.resolve_remote(reach.into(), va, data.len() as u64, Access::REMOTE_WRITE)?;
        Ok(guard::write(addr, data)?)
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
        let regions = self.regions.read();
        let addr = find(&regions, rkey.0)?.resolve_remote(reach.into(), va, 8, Access::REMOTE_ATOMIC)?;
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
        let regions = self.regions.read();
        let addr = find(&regions, rkey.0)?.resolve_remote(reach.into(), va, 8, Access::REMOTE_WRITE)?;
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
        let regions = self.regions.read();
        let region = find(&regions, rkey.0)?;
        let (va, len) = range.unwrap_or((region.base, region.length));
        region.resolve_remote(reach.into(), va, len, access)?;
        // clause: FLUSH-VISIBLE
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn insert(&self, region: Region) -> Result<u32, Error> {
        self.regions.write().insert(region)
    }

    /// Lets `key` stand for something else. Returns when no access to what it stood for is under way any more.
    fn replace(&self, key: u32, region: Region) -> Result<(), Error> {
        let mut regions = self.regions.write();
        let old = regions.get_mut(key).ok_or_else(|| Error::invalid("no such region"))?;
        old.check_free()?;
        *old = region;
        Ok(())
    }

    /// Kills the key of a region. Returns when no access under it is under way any more. EBUSY while windows are bound.
    fn remove(&self, key: u32) -> Result<(), Error> {
        let mut regions = self.regions.write();
        regions.get(key).map_or(Ok(()), Region::check_free)?;
        // clause: KEY-DEAD
        regions.remove(key);
        Ok(())
    }

    /// Kills the key of a region and closes the windows bound to it. Returns when no access under any of them is under way.
    fn revoke(&self, key: u32) {
        let mut regions = self.regions.write();
        if regions.get(key).is_some_and(|region| region.windows > 0) {
            window::close_all(&mut regions, |entry| entry.is_window_of(key));
        }
        // clause: KEY-DEAD
        regions.remove(key);
    }

    /// How many regions there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.regions.read().len()
    }
}

impl From<Fault> for MemError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

#[inline]
fn find<'a>(regions: &'a RwLockReadGuard<'_, Slots<Region>>, key: u32) -> Result<&'a Region, MemError> {
    regions.get(key).ok_or(MemError::BadKey)
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

/// A registered memory region.
#[derive(Debug)]
pub struct Mr {
    context: Arc<Context>,
    key: u32,
    registration: Mutex<Registration>,
}

/// What a region is registered as now.
#[derive(Clone, Copy, Debug)]
struct Terms {
    addr: u64,
    length: u64,
    iova: u64,
    access: Access,
}

/// Whose memory it is.
#[derive(Debug)]
enum Backing {
    /// The program's.
    Program,
    /// The device's, which cannot be freed meanwhile.
    Device(#[expect(dead_code, reason = "held to be dropped")] Part),
    /// Nobody's: a null region.
    None,
    /// Ours, mapped for this region; goes when its key is dead.
    Mapped(#[expect(dead_code, reason = "held to be dropped")] Mapping),
}

#[derive(Debug)]
struct Registration {
    pd: Arc<Pd>,
    terms: Terms,
    backing: Backing,
    /// Ends with the registration.
    pd_use: Option<Use>,
}

/// What [`Mr::reregister`] changes; `None` leaves it as it is.
#[derive(Clone, Debug, Default)]
pub struct MrChange {
    /// The domain.
    pub pd: Option<Arc<Pd>>,
    /// Address and length; the region is named by the new address from then on.
    pub range: Option<(u64, u64)>,
    /// The rights.
    pub access: Option<Access>,
}

impl Terms {
    /// What the table holds for a region of these terms; the errors are those of [`Pd::reg_mr`].
    fn check(self, pd: &Pd, backing: &Backing) -> Result<Region, Error> {
        check_rights(self.access)?;
        match backing {
            Backing::Program => self.check_memory()?,
            Backing::Device(_) => check_device_rights(self.access)?,
            Backing::Mapped(_) | Backing::None => {}
        }
        Ok(self.region(pd, self.addr))
    }

    /// Whether the program has this memory.
    fn check_memory(self) -> Result<(), Error> {
        let Self { addr, length, access, .. } = self;
        let base = self.base();
        // clause: KEY-ON-DEMAND
        let everything = access.contains(Access::ON_DEMAND) && (addr, base, length) == (0, 0, u64::MAX);
        if !everything {
            check_range(addr, base, length)?;
        }
        guard::install();
        if !access.contains(Access::ON_DEMAND) {
            mapped::check(addr, length, access.contains(Access::LOCAL_WRITE))?;
        }
        Ok(())
    }

    /// What the table holds for them if the memory is at `addr`.
    fn region(self, pd: &Pd, addr: u64) -> Region {
        let Self { length, access, .. } = self;
        Region { addr, base: self.base(), length, access, users: Users::Domain(pd.id()), windows: 0, window: None }
    }

    /// The address by which its first byte is named.
    fn base(self) -> u64 {
        // clause: KEY-ZERO-BASED
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.iova }
    }
}

impl Mr {
    pub(crate) fn register(
        pd: &Arc<Pd>,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Self>, Error> {
        let terms = Terms { addr, length, iova, access };
        let backing = Backing::Program;
        Self::enter(pd, terms, terms.check(pd, &backing)?, backing)
    }

    /// A region of device memory.
    pub(crate) fn register_part(pd: &Arc<Pd>, part: Part, access: Access) -> Result<Arc<Self>, Error> {
        let terms = Terms { addr: part.addr, length: part.length, iova: 0, access };
        let backing = Backing::Device(part);
        Self::enter(pd, terms, terms.check(pd, &backing)?, backing)
    }

    /// Gives `region` a key.
    fn enter(pd: &Arc<Pd>, terms: Terms, region: Region, backing: Backing) -> Result<Arc<Self>, Error> {
        let key = pd.context().memory().insert(region)?;
        let registration = Registration { pd: Arc::clone(pd), terms, backing, pd_use: Some(pd.hold()) };
        Ok(Arc::new(Self { context: Arc::clone(pd.context()), key, registration: Mutex::new(registration) }))
    }

    /// Its protection domain.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.registration.lock().pd)
    }

    /// The key for local lists; the same number as [`Mr::rkey`].
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// The key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The address by which lists and peers name its first byte.
    pub fn base(&self) -> u64 {
        self.registration.lock().terms.base()
    }

    /// Where the memory begins; of no use to a program if it is the device's.
    pub fn addr(&self) -> u64 {
        self.registration.lock().terms.addr
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.registration.lock().terms.length
    }

    /// Registers the region anew under the same keys. When it returns, no access on the old terms is under way any more.
    ///
    /// On an error nothing has changed. EINVAL: a domain of another context, or the region is deregistered or a null region;
    /// EOPNOTSUPP: a region of a dma-buf; the other errors are those of [`Pd::reg_mr`].
    pub fn reregister(&self, change: MrChange) -> Result<(), Error> {
        let mut now = self.registration.lock();
        if now.pd_use.is_none() {
            return Err(Error::invalid("the region is deregistered"));
        }
        now.backing.check_change(change.range.is_some())?;
        let pd = change.pd.unwrap_or_else(|| Arc::clone(&now.pd));
        if !Arc::ptr_eq(pd.context(), &self.context) {
            return Err(Error::invalid("the protection domain belongs to another context than the region"));
        }
        let mut terms = now.terms;
        if let Some((addr, length)) = change.range {
            terms = Terms { addr, length, iova: addr, ..terms };
        }
        terms.access = change.access.unwrap_or(terms.access);
        // clause: KEY-REREGISTERED
        self.context.memory().replace(self.key, terms.check(&pd, &now.backing)?)?;
        (now.pd_use, now.pd, now.terms) = (Some(pd.hold()), pd, terms);
        Ok(())
    }

    /// Kills the keys; returns when no access is under way any more. Doing it again does nothing. EBUSY while memory windows
    /// are bound to the region.
    pub fn deregister(&self) -> Result<(), Error> {
        let mut now = self.registration.lock();
        if now.pd_use.is_some() {
            self.context.memory().remove(self.key)?;
            now.end();
        }
        Ok(())
    }

    /// The same, and the memory windows bound to the region are closed. Done by dropping too.
    pub fn revoke(&self) {
        let mut now = self.registration.lock();
        if now.pd_use.is_some() {
            self.context.memory().revoke(self.key);
            now.end();
        }
    }
}

impl Registration {
    /// The key is dead.
    fn end(&mut self) {
        self.pd_use = None;
        self.backing = Backing::None;
    }
}

impl Backing {
    /// Whether a region of such memory can be registered anew, `moved` to another place.
    fn check_change(&self, moved: bool) -> Result<(), Error> {
        match self {
            Self::Device(_) if moved => {
                Err(Error::invalid("a region in device memory keeps its place; deregister it and register another"))
            }
            Self::Program | Self::Device(_) => Ok(()),
            Self::Mapped(_) => Err(Error::new(libc::EOPNOTSUPP, "a region of a dma-buf cannot be registered anew")),
            Self::None => Err(Error::invalid("a null region cannot be registered anew")),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.revoke();
    }
}

fn check_rights(access: Access) -> Result<(), Error> {
    // clause: FLUSH-PERSISTENT
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(Error::new(
            libc::EOPNOTSUPP,
            "the device knows no persistent memory; register without FLUSH_PERSISTENT",
        ));
    }
    // clause: KEY-LOCAL-WRITE
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::invalid("remote write and atomic rights need LOCAL_WRITE as well"));
    }
    Ok(())
}

/// Device memory has no addresses but those from zero, and no pages that a program could take away.
fn check_device_rights(access: Access) -> Result<(), Error> {
    if !access.contains(Access::ZERO_BASED) || access.intersects(Access::ON_DEMAND | Access::HUGETLB) {
        return Err(Error::invalid(
            "a region in device memory needs ZERO_BASED and takes neither ON_DEMAND nor HUGETLB",
        ));
    }
    Ok(())
}

fn check_range(addr: u64, base: u64, length: u64) -> Result<(), Error> {
    let fits = addr.checked_add(length).is_some() && base.checked_add(length).is_some();
    if !fits || length > MAX_MR_SIZE {
        return Err(Error::invalid(format!("{length} bytes at {addr:#x} (named {base:#x}) exceed the address space")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
