//! Memory regions: registering memory of the program, device memory and dma-bufs, and changing and
//! ending that. The memory table ([`roxe_memory::table`]) has the keys.

use crate::context::Context;
use crate::dm::{Dm, DmPart};
use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_base::limits::MAX_MR_SIZE;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use};
use roxe_check::{Event, MrInfo, Object, Tracked, emit, is_checking};
use roxe_memory::guard;
use roxe_memory::mapped::{self, Mapping, page_size};
use roxe_memory::region::{Region, Role, Users};
use roxe_memory::table::MemoryTable;
use roxe_transport::wr::{Access, Sge};
use roxe_wire::{LKey, RKey};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A registered memory region.
#[derive(Debug)]
pub struct Mr {
    context: Arc<Context>,
    keys: Keys,
    registration: Mutex<rank::Registration, Registration>,
    tracked: Tracked,
}

/// The keys of a region: one entry of the memory table. While the checker is on, lists and peers
/// have one each, to report an lkey used as rkey and vice versa.
#[derive(Clone, Copy, Debug)]
struct Keys {
    local: u32,
    remote: u32,
}

#[derive(Clone, Copy, Debug)]
struct MrAttr {
    addr: u64,
    length: u64,
    iova: u64,
    access: Access,
}

/// Memory of a region.
#[derive(Debug)]
enum Backing {
    Program,
    /// Device memory, kept allocated.
    Device(#[expect(dead_code, reason = "held to be dropped")] DmPart),
    None,
    /// A mapping made for this region, removed after its key.
    Mapped(#[expect(dead_code, reason = "held to be dropped")] Mapping),
}

#[derive(Debug)]
struct Registration {
    pd: Arc<Pd>,
    attr: MrAttr,
    backing: Backing,
    /// Uses of the domain and of the quota, until the region is deregistered.
    uses: Option<[Use; 2]>,
    /// True if the mappings of the region are marked, for the checker.
    is_marked: bool,
}

/// Changes of [`Mr::reregister`]; `None` keeps a value.
#[derive(Clone, Debug, Default)]
pub struct MrChange {
    /// New protection domain.
    pub pd: Option<Arc<Pd>>,
    /// New address and length; requests use the new address from then on.
    pub range: Option<(u64, u64)>,
    /// New rights.
    pub access: Option<Access>,
}

const DMABUF_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::RELAXED_ORDERING);

/// A part of a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaBuf {
    /// Descriptor; it may be closed after registration.
    pub fd: RawFd,
    /// Offset of the first byte in the dma-buf.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub length: u64,
}

/// Advice about pages (`man ibv_advise_mr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Make them present for reading.
    Prefetch,
    /// Make them present for writing.
    PrefetchWrite,
    /// Make present pages known to the card. They always are: only the list is checked.
    PrefetchNoFault,
}

impl MrAttr {
    /// Checks the attributes and returns their entry for the memory table. Errors as for
    /// [`Pd::reg_mr`].
    fn check(self, pd: &Pd, backing: &Backing) -> Result<Region, Error> {
        check_rights(self.access)?;
        match backing {
            Backing::Program => self.check_memory()?,
            Backing::Device(_) => check_device_rights(self.access)?,
            Backing::Mapped(_) | Backing::None => {}
        }
        Ok(self.region(pd, self.addr))
    }

    /// Checks that the program has the memory mapped.
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

    fn region(self, pd: &Pd, addr: u64) -> Region {
        let Self { length, access, .. } = self;
        let (users, role) = (Users::Domain(pd.id()), Role::Memory { windows: 0 });
        Region { addr, base: self.base(), length, access, users, role }
    }

    fn for_checker(self, pd: &Pd, keys: Keys) -> MrInfo {
        let Self { addr, length, access, .. } = self;
        let (context, pd) = (pd.context().id(), pd.object());
        MrInfo { context, pd, lkey: keys.local, rkey: keys.remote, addr, base: self.base(), length, access }
    }

    fn base(self) -> u64 {
        // clause: KEY-ZERO-BASED
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.iova }
    }
}

impl Pd {
    /// Registers `length` bytes at `addr`; SGEs and peers address them from `iova`, or from 0 with
    /// `ZERO_BASED`. With `ON_DEMAND` the memory need not be mapped yet, and `u64::MAX` bytes at 0
    /// are the whole address space.
    ///
    /// # Safety
    /// Until the region is deregistered ([`Mr::revoke`], or the last reference is dropped), queue
    /// pairs of this domain and, with remote rights, peers read and write the memory. Nothing else
    /// may rely on its contents, and no reference (`&[u8]`, `&mut [u8]`) to it may be used
    /// meanwhile.
    ///
    /// # Errors
    /// EINVAL if the range overflows, or remote write or atomic rights lack `LOCAL_WRITE`; EFAULT
    /// if the memory is not mapped with the needed rights; ENOMEM beyond `max_mr` regions;
    /// EOPNOTSUPP for persistent memory.
    #[allow(unsafe_code)]
    pub unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let (attr, backing) = (MrAttr { addr, length, iova, access }, Backing::Program);
        Mr::enter(self, attr, attr.check(self, &backing)?, backing)
    }

    /// Registers `length` bytes of device memory at `offset`; SGEs and peers address them from 0.
    /// Fails with EINVAL if the range exceeds the buffer, the memory is freed or of another
    /// context, or the rights lack `ZERO_BASED` or have `ON_DEMAND` or `HUGETLB`; errors of
    /// [`Pd::reg_mr`].
    pub fn reg_dm_mr(self: &Arc<Self>, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Arc<Mr>, Error> {
        if !Arc::ptr_eq(dm.context(), self.context()) {
            return Err(Error::invalid("the device memory belongs to another context than the protection domain"));
        }
        let part = dm.part(offset, length)?;
        let attr = MrAttr { addr: part.addr, length: part.length, iova: 0, access };
        let backing = Backing::Device(part);
        Mr::enter(self, attr, attr.check(self, &backing)?, backing)
    }

    /// Registers a part of a dma-buf, memory that the program need not have mapped. SGEs and peers
    /// address it from `iova`. Accepts any descriptor that `mmap` can map shared.
    ///
    /// # Errors
    /// EINVAL for rights other than local and remote ones and relaxed ordering, for remote write or
    /// atomic rights without `LOCAL_WRITE`, for an `iova` with another offset within its page than
    /// `part`, for a part that is empty or too long, or for a descriptor that cannot be mapped;
    /// EBADF if `part` has no open descriptor; EACCES if it was opened without the needed rights.
    pub fn reg_dmabuf_mr(self: &Arc<Self>, part: DmaBuf, iova: u64, access: Access) -> Result<Arc<Mr>, Error> {
        // clause: KEY-DMABUF
        let within_page = page_size() - 1;
        if !DMABUF_RIGHTS.contains(access) || part.offset & within_page != iova & within_page {
            return Err(Error::invalid(
                "a region of a dma-buf accepts remote rights only, and an iova with its offset within the page",
            ));
        }
        check_rights(access)?;
        check_range(part.offset, iova, part.length)?;
        let mapping = Mapping::of_fd(part.fd, part.offset, part.length, access.contains(Access::LOCAL_WRITE))?;
        guard::install();
        let attr = MrAttr { addr: part.offset, length: part.length, iova, access };
        Mr::enter(self, attr, attr.region(self, mapping.addr()), Backing::Mapped(mapping))
    }

    /// Allocates a null region: any address reads as zeros, and writes are discarded. Only lists
    /// can use its key. Fails with ENOMEM beyond the limit of regions and windows.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        let attr = MrAttr { addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE };
        let region = Region { users: Users::Null(self.id()), ..attr.region(self, 0) };
        Mr::enter(self, attr, region, Backing::None)
    }

    /// Applies `advice` to the whole list, and returns when it is done; also for `ON_DEMAND`
    /// regions. Fails with EFAULT if a key is unknown, of another domain or without `LOCAL_WRITE`
    /// for [`Advice::PrefetchWrite`], a range exceeds its region, or memory is not mapped with
    /// these rights; then the advice may have been applied to some of the list.
    pub fn advise_mr(&self, advice: Advice, list: &[Sge]) -> Result<(), Error> {
        let write = advice == Advice::PrefetchWrite;
        let ranges = list.iter().map(|sge| self.locate(sge, write)).collect::<Result<Vec<_>, _>>()?;
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        // No lock is held: the pages may have to be read from a disk.
        ranges.into_iter().try_for_each(|(addr, length)| mapped::check(addr, length, write))
    }

    fn locate(&self, sge: &Sge, write: bool) -> Result<(u64, u64), Error> {
        let (right, length) = (if write { Access::LOCAL_WRITE } else { Access::empty() }, u64::from(sge.length));
        let regions = self.context().memory().hold();
        let found = regions.locate(self.id(), sge, right);
        found.map(|addr| (addr, length)).map_err(|why| {
            let (addr, lkey) = (sge.addr, sge.lkey.0);
            let refused = format!("{length} bytes at {addr:#x} under key {lkey:#x} cannot be prefetched: {why:?}");
            Error::new(libc::EFAULT, refused)
        })
    }
}

impl Mr {
    /// Draws keys for `region` and creates its handle.
    fn enter(pd: &Arc<Pd>, attr: MrAttr, region: Region, backing: Backing) -> Result<Arc<Self>, Error> {
        let quota = pd.context().device().quotas().mrs.take()?;
        let keys = Keys::draw(pd.context().memory(), region)?;
        let is_marked = marked(attr, &backing);
        let registration =
            Registration { pd: Arc::clone(pd), attr, backing, uses: Some([pd.hold(), quota]), is_marked };
        let tracked = Tracked::new(ObjectId::next(), || Object::Mr(attr.for_checker(pd, keys)));
        let (context, registration) = (Arc::clone(pd.context()), Mutex::new(registration));
        Ok(Arc::new(Self { context, keys, registration, tracked }))
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.registration.lock().pd)
    }

    /// Returns the key for lists; the same number as [`Mr::rkey`] unless the checker is on.
    pub fn lkey(&self) -> LKey {
        LKey(self.keys.local)
    }

    /// Returns the key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.keys.remote)
    }

    /// Returns the address of the first byte in SGEs and remote requests.
    pub fn base(&self) -> u64 {
        self.registration.lock().attr.base()
    }

    /// Returns the address of the memory; of no use to a program if it is device memory.
    pub fn addr(&self) -> u64 {
        self.registration.lock().attr.addr
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.registration.lock().attr.length
    }

    /// Reregisters the region under the same keys. After it returns, no access with the old
    /// attributes is in progress.
    ///
    /// # Errors
    /// EINVAL if the domain is of another context, or the region is deregistered or a null region;
    /// EOPNOTSUPP for a region of a dma-buf; errors of [`Pd::reg_mr`]. After an error nothing has
    /// changed.
    ///
    /// # Safety
    /// The contract of [`Pd::reg_mr`], for the new memory.
    #[allow(unsafe_code)]
    pub unsafe fn reregister(&self, change: MrChange) -> Result<(), Error> {
        let mut registration = self.registration.lock();
        if registration.uses.is_none() {
            return Err(Error::invalid("the region is deregistered"));
        }
        registration.backing.check_change(change.range.is_some())?;
        let pd = change.pd.unwrap_or_else(|| Arc::clone(&registration.pd));
        if !Arc::ptr_eq(pd.context(), &self.context) {
            return Err(Error::invalid("the protection domain belongs to another context than the region"));
        }
        let mut attr = registration.attr;
        if let Some((addr, length)) = change.range {
            attr = MrAttr { addr, length, iova: addr, ..attr };
        }
        attr.access = change.access.unwrap_or(attr.access);
        // clause: KEY-REREGISTERED
        self.keys.replace(self.context.memory(), attr.check(&pd, &registration.backing)?)?;
        if let Some([pd_use, _]) = &mut registration.uses {
            *pd_use = pd.hold();
        }
        emit(|| Event::Reregistered(self.tracked.id(), attr.for_checker(&pd, self.keys)));
        if change.range.is_some() {
            registration.is_marked = marked(attr, &registration.backing);
        }
        (registration.pd, registration.attr) = (pd, attr);
        drop(registration);
        self.context.engine().settle_memory();
        Ok(())
    }

    /// Removes the keys; when it returns, no access is in progress. Later calls do nothing. Fails
    /// with EBUSY while memory windows are bound to the region.
    pub fn deregister(&self) -> Result<(), Error> {
        self.end(|keys, memory| {
            keys.remove(memory).inspect_err(|error| emit(|| Event::DestroyRefused(self.tracked.id(), error)))
        })
    }

    /// Deregisters like [`Mr::deregister`], but also closes bound memory windows. Dropping a region
    /// revokes it, too.
    pub fn revoke(&self) {
        let _ = self.end(|keys, memory| {
            keys.revoke(memory);
            Ok(())
        });
    }

    /// Removes the keys with `remove_keys`, once, and releases the memory.
    fn end(&self, remove_keys: impl FnOnce(Keys, &MemoryTable) -> Result<(), Error>) -> Result<(), Error> {
        let mut registration = self.registration.lock();
        if registration.uses.is_some() {
            if is_checking()
                && registration.is_marked
                && may_check_mapping()
                && !mapped::is_still_marked(registration.attr.addr, registration.attr.length)
            {
                emit(|| Event::Unmapped { mr: self.tracked.id() });
            }
            emit(|| Event::DestroyBegun(self.tracked.id()));
            remove_keys(self.keys, self.context.memory())?;
            self.tracked.end();
            registration.uses = None;
            let backing = std::mem::replace(&mut registration.backing, Backing::None);
            drop(registration);
            // Delayed payload still goes to the program's memory.
            self.context.engine().settle_memory();
            drop(backing);
        }
        Ok(())
    }
}

/// Grants a right that was withheld until its first use, and returns true if there was one. The
/// caller holds no lock of the memory table.
pub(crate) fn note_use(memory: &MemoryTable, rkey: RKey, access: Access) -> bool {
    let given = if is_checking() { memory.grant(rkey, access) } else { Access::empty() };
    if !given.is_empty() {
        emit(|| Event::FirstUse { rkey, right: given });
    }
    !given.is_empty()
}

impl Keys {
    fn draw(memory: &MemoryTable, region: Region) -> Result<Self, Error> {
        let Some((lists, peers)) = Self::split(region) else {
            return memory.insert(region).map(|key| Self { local: key, remote: key });
        };
        let local = memory.insert(lists)?;
        let remote = memory.insert(peers).inspect_err(|_| memory.revoke(local))?;
        Ok(Self { local, remote })
    }

    /// Splits the entry into one for lists, to which windows are bound, and one for peers, which
    /// withholds rights until their first use. Only while the checker is on.
    fn split(region: Region) -> Option<(Region, Region)> {
        let Users::Domain(pd) = region.users else { return None };
        let lists = Region { access: region.access & !Access::OF_PEERS, ..region };
        is_checking().then(|| (lists, Region { users: Users::Peers(pd), ..region }.withholding()))
    }

    fn has_two(self) -> bool {
        self.local != self.remote
    }

    fn replace(self, memory: &MemoryTable, region: Region) -> Result<(), Error> {
        match Self::split(region).filter(|_| self.has_two()) {
            None => memory.replace(self.local, region),
            Some((lists, peers)) => {
                memory.replace(self.local, lists)?;
                memory.replace(self.remote, peers)
            }
        }
    }

    fn remove(self, memory: &MemoryTable) -> Result<(), Error> {
        memory.remove(self.local)?;
        if self.has_two() { memory.remove(self.remote) } else { Ok(()) }
    }

    fn revoke(self, memory: &MemoryTable) {
        memory.revoke(self.local);
        if self.has_two() {
            memory.revoke(self.remote);
        }
    }
}

impl Backing {
    /// Checks that a region of such memory can be reregistered, at another address if `moved`.
    fn check_change(&self, moved: bool) -> Result<(), Error> {
        match self {
            Self::Device(_) if moved => {
                Err(Error::invalid("a region in device memory cannot be moved; deregister it and register another"))
            }
            Self::Program | Self::Device(_) => Ok(()),
            Self::Mapped(_) => Err(Error::new(libc::EOPNOTSUPP, "a region of a dma-buf cannot be reregistered")),
            Self::None => Err(Error::invalid("a null region cannot be reregistered")),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.revoke();
    }
}

/// Marks the mappings of a region of the program, for the checker. Returns true if it marked them.
fn marked(attr: MrAttr, backing: &Backing) -> bool {
    let is_pinned = matches!(backing, Backing::Program) && !attr.access.contains(Access::ON_DEMAND);
    is_checking() && is_pinned && mapped::mark(attr.addr, attr.length)
}

/// Returns true for the first regions deregistered, since examining all mappings takes long.
fn may_check_mapping() -> bool {
    const MAX_EXAMINED: u32 = 1000;
    static EXAMINED: AtomicU32 = AtomicU32::new(0);
    EXAMINED.fetch_add(1, Ordering::Relaxed) < MAX_EXAMINED
}

fn check_rights(access: Access) -> Result<(), Error> {
    // clause: FLUSH-PERSISTENT
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(Error::new(
            libc::EOPNOTSUPP,
            "the device does not support persistent memory; register without FLUSH_PERSISTENT",
        ));
    }
    // clause: KEY-LOCAL-WRITE
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::invalid(format!(
            "access is {:#x}: IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE as well",
            access.bits()
        )));
    }
    Ok(())
}

/// Checks rights of device memory, which has addresses from 0 only and cannot be paged out.
fn check_device_rights(access: Access) -> Result<(), Error> {
    if !access.contains(Access::ZERO_BASED) || access.intersects(Access::ON_DEMAND | Access::HUGETLB) {
        return Err(Error::invalid(
            "a region in device memory needs ZERO_BASED and accepts neither ON_DEMAND nor HUGETLB",
        ));
    }
    Ok(())
}

fn check_range(addr: u64, base: u64, length: u64) -> Result<(), Error> {
    let fits = addr.checked_add(length).is_some() && base.checked_add(length).is_some();
    if !fits || length > MAX_MR_SIZE {
        return Err(Error::invalid(format!("{length} bytes at {addr:#x} (iova {base:#x}) exceed the address space")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
