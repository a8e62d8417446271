//! An entry of the table of keys, a region or a window: its permitted users, and the checks of an
//! access.

use crate::guard::Fault;
use roxe_base::error::Error;
use roxe_base::table::Slots;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Bind};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Identifies a protection domain on every access to memory. Not reused before 2^32 further
/// domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(NonZeroU32);

impl PdId {
    /// Returns the id of a new domain.
    pub fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NonZeroU32::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN))
    }

    /// Returns the id as a number, from 1 in each process.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

/// The memory under a key. With its key it fills one cache line ([`roxe_base::table`]).
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Address of the memory in this process.
    pub addr: u64,
    /// Address that lists and peers use for the first byte.
    pub base: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rights that the key grants.
    pub access: Access,
    /// The permitted users of the key.
    pub users: Users,
    /// Memory or a window.
    pub role: Role,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Memory, with this many windows bound to it.
    Memory {
        /// Number of bound windows.
        windows: u32,
    },
    /// A memory window.
    Window(Window),
}

/// The permitted users of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Scatter/gather lists and peers of this domain.
    Domain(PdId),
    /// Peers of this domain.
    Peers(PdId),
    /// The peer of this queue pair.
    Qp(ObjectId),
    /// Scatter/gather lists of this domain, without memory: reads return zeros, writes are
    /// discarded.
    Null(PdId),
    /// No user: the window is not bound.
    Unbound,
}

/// The state of a key, for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// No region or window has the key, and none was the last to have it.
    Unknown,
    /// The key of a destroyed region or window.
    Dead,
    /// A former key of a window. Since it was bound again, the window has this key.
    Rebound(u32),
    /// The key of a window that is not bound.
    Unbound,
    /// The key of a null region.
    Null,
    /// The key of memory.
    Open {
        /// True if it is the key of a window.
        is_window: bool,
        /// The permitted users: lists and peers of a domain, its peers only, or one queue pair.
        users: Users,
        /// Address of the memory in this process.
        addr: u64,
        /// Address that lists and peers use for the first byte.
        base: u64,
        /// Length in bytes.
        length: u64,
        /// Rights that the key grants.
        access: Access,
    },
}

/// The queue pair and domain for which a peer's request is executed.
#[derive(Clone, Copy, Debug)]
pub struct AccessScope {
    /// The domain of the queue pair.
    pub pd: PdId,
    /// The queue pair, for windows that are bound to one.
    pub qp: Option<ObjectId>,
}

impl From<PdId> for AccessScope {
    fn from(pd: PdId) -> Self {
        Self { pd, qp: None }
    }
}

impl Region {
    /// Returns the address of `len` bytes at `va`, if the region contains them and grants `access`
    /// to lists of `pd`.
    #[inline]
    pub(crate) fn resolve(&self, pd: PdId, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        // clause: WINDOW-REMOTE-ONLY
        if self.users != Users::Domain(pd) {
            return Err(MemError::WrongDomain);
        }
        self.locate(va, len, access)
    }

    /// Returns the address of `len` bytes at `va`, if the entry contains them and grants `access`
    /// to peers of `scope`.
    // clause: CHECK-KEY
    #[inline]
    pub(crate) fn resolve_remote(
        &self,
        scope: AccessScope,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<u64, MemError> {
        // clause: WINDOW-ACCESS
        let granted = match self.users {
            Users::Domain(pd) | Users::Peers(pd) => pd == scope.pd,
            Users::Qp(qp) => Some(qp) == scope.qp,
            Users::Unbound | Users::Null(_) => false,
        };
        if granted { self.locate(va, len, access) } else { Err(MemError::WrongDomain) }
    }

    /// Copies out of memory for a scatter/gather list of `pd`, by `copy`.
    #[inline]
    pub(crate) fn read(
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

    /// Copies into memory for a scatter/gather list of `pd`, by `copy`.
    #[inline]
    pub(crate) fn write(
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
        // Checked subtractions only: `va + len` could wrap.
        let offset = va.checked_sub(self.base).ok_or(MemError::Range)?;
        // clause: CHECK-KEY-OVERFLOW
        let room = self.length.checked_sub(offset).ok_or(MemError::Range)?;
        if len > room {
            return Err(MemError::Range);
        }
        Ok(self.addr.wrapping_add(offset))
    }

    pub(crate) fn check_free(&self) -> Result<(), Error> {
        // clause: WINDOW-HOLDS
        match self.role {
            Role::Memory { windows } if windows > 0 => Err(Error::busy("memory region", "memory windows", windows)),
            _ => Ok(()),
        }
    }
}

/// Shift of the rights of peers ([`Access::OF_PEERS`]) that are withheld until their first use.
const WITHHELD: u32 = 24;

impl Region {
    /// Withholds each right of peers: its first use is refused, and [`MemoryTable::grant`] then
    /// grants it. So the caller notices the first use, and later uses cost nothing.
    ///
    /// [`MemoryTable::grant`]: crate::table::MemoryTable::grant
    pub fn withholding(self) -> Self {
        let withheld = Access::from_bits_retain((self.access & Access::OF_PEERS).bits() << WITHHELD);
        Self { access: self.access & !Access::OF_PEERS | withheld, ..self }
    }

    /// Returns those rights of `access` that are withheld.
    pub(crate) fn withheld(&self, access: Access) -> Access {
        Access::from_bits_retain(self.access.bits() >> WITHHELD) & Access::OF_PEERS & access
    }

    /// Returns all rights of the key, withheld or not.
    pub(crate) fn granted(&self) -> Access {
        Access::from_bits_truncate(self.access.bits()) | self.withheld(Access::OF_PEERS)
    }

    /// Stops withholding `access`.
    pub(crate) fn grant(&mut self, access: Access) {
        let withheld = Access::from_bits_retain(access.bits() << WITHHELD);
        // `!` would clear the withheld bits, which are not named rights.
        self.access = self.access.difference(withheld).union(access);
    }
}

const REMOTE_RIGHTS: Access = Access::OF_PEERS.union(FLUSH_RIGHTS);
/// The rights of a window that its region must have too.
const FLUSH_RIGHTS: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

/// The two kinds of windows (values of `enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Bound by a verb; usable through every queue pair of its domain.
    One = 1,
    /// Bound by a work request; usable through the queue pair that bound it only (type 2B).
    Two = 2,
}

/// The part of an entry that describes a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    kind: MwKind,
    pd: PdId,
    /// Key of the region that the window is bound to.
    bound_to: Option<NonZeroU32>,
}

impl Window {
    /// Creates a window of the domain `pd` that is not bound.
    pub const fn new(kind: MwKind, pd: PdId) -> Self {
        Self { kind, pd, bound_to: None }
    }

    /// Returns the entry of this window while it is not bound.
    pub fn closed(self) -> Region {
        let role = Role::Window(Self { bound_to: None, ..self });
        let (addr, base, length, access) = (0, 0, 0, Access::empty());
        Region { addr, base, length, access, users: Users::Unbound, role }
    }

    pub(crate) fn region(self, regions: &mut Slots<Region>) -> Option<&mut Region> {
        regions.get_mut(self.bound_to?.get())
    }

    /// Checks that the window's type and state allow `bind`.
    pub(crate) fn check(self, scope: AccessScope, bind: &Bind) -> Result<(), MemError> {
        if self.pd != scope.pd {
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

    /// Returns the entry of this window bound by `bind`.
    // clause: WINDOW-BIND
    pub(crate) fn open(self, regions: &Slots<Region>, scope: AccessScope, bind: &Bind) -> Result<Region, MemError> {
        let region = regions.get(bind.lkey.0).ok_or(MemError::BadKey)?;
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let local = if writes { Access::LOCAL_WRITE } else { Access::empty() };
        let needed = Access::MW_BIND | local | bind.access & FLUSH_RIGHTS;
        if region.access.contains(Access::ZERO_BASED) {
            return Err(MemError::Access);
        }
        let addr = region.resolve(scope.pd, bind.addr, bind.length, needed)?;
        // clause: WINDOW-ACCESS
        let users = match self.kind {
            MwKind::One => Users::Peers(self.pd),
            MwKind::Two => scope.qp.map_or(Users::Unbound, Users::Qp),
        };
        let base = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        let role = Role::Window(Self { bound_to: NonZeroU32::new(bind.lkey.0), ..self });
        Ok(Region { addr, base, length: bind.length, access: bind.access & REMOTE_RIGHTS, users, role })
    }
}

impl Region {
    pub(crate) fn window(&self) -> Option<Window> {
        if let Role::Window(window) = self.role { Some(window) } else { None }
    }

    /// Returns true for a window bound to the region under `key`.
    pub(crate) fn is_window_of(&self, key: u32) -> bool {
        self.window().is_some_and(|window| window.bound_to.is_some_and(|bound_to| bound_to.get() == key))
    }

    pub(crate) fn count_windows(&mut self, change: impl FnOnce(u32) -> u32) {
        if let Role::Memory { windows } = &mut self.role {
            *windows = change(*windows);
        }
    }
}

impl From<Fault> for MemError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::MemoryTable;
    use roxe_wire::{LKey, RKey};

    #[test]
    fn region_and_tag_fit_a_cache_line() {
        assert_eq!(size_of::<Option<Region>>(), 56);
    }

    #[test]
    fn withheld_right_is_refused_until_given() {
        let (users, role) = (Users::Unbound, Role::Memory { windows: 0 });
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = Region { addr: 0, base: 0, length: 8, access, users, role };
        let mut withholding = region.withholding();
        assert_eq!(withholding.withheld(Access::REMOTE_ATOMIC), Access::empty(), "not a right of the region");
        assert_eq!(withholding.locate(0, 8, Access::LOCAL_WRITE), Ok(0));
        for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            assert_eq!(withholding.locate(0, 8, right), Err(MemError::Access));
            assert_eq!(withholding.withheld(right), right);
            withholding.grant(right);
            assert_eq!((withholding.locate(0, 8, right), withholding.withheld(right)), (Ok(0), Access::empty()));
        }
        assert_eq!(withholding.access, access);
    }

    // clause: WINDOW-ACCESS
    #[test]
    fn type_2_window_is_open_to_its_qp_only() {
        let (table, pd) = (MemoryTable::default(), PdId::next());
        let (access, role) = (Access::MW_BIND, Role::Memory { windows: 0 });
        let region = Region { addr: 0, base: 0, length: 8, access, users: Users::Domain(pd), role };
        let lkey = LKey(table.insert(region).unwrap());
        for kind in [MwKind::One, MwKind::Two] {
            let rkey = RKey(table.insert(Window::new(kind, pd).closed()).unwrap());
            let [qp, other_qp] = [(); 2].map(|()| AccessScope { pd, qp: Some(ObjectId::next()) });
            table.bind(qp, &Bind { rkey, lkey, access: Access::REMOTE_READ, addr: 0, length: 8 }).unwrap();
            assert!(table.hold().locate_remote(qp, rkey, 0, 8).is_ok());
            let found = table.hold().locate_remote(other_qp, rkey, 0, 8);
            assert_eq!(found.is_ok(), kind == MwKind::One, "{kind:?}: {found:?}");
        }
    }

    /// Compares with 128-bit arithmetic, which cannot overflow.
    // clause: CHECK-KEY, CHECK-KEY-OVERFLOW
    #[test]
    fn range_is_found_only_inside_the_region() {
        const EDGES: [u64; 13] = [
            0,
            1,
            2,
            7,
            8,
            u32::MAX as u64,
            u32::MAX as u64 + 1,
            i64::MAX as u64,
            i64::MAX as u64 + 1,
            u64::MAX - 8,
            u64::MAX - 2,
            u64::MAX - 1,
            u64::MAX,
        ];
        let role = Role::Memory { windows: 0 };
        let mut found = 0;
        for (base, length) in EDGES.into_iter().flat_map(|base| EDGES.map(|length| (base, length))) {
            for addr in [0, 4096, u64::MAX - 4095] {
                let users = Users::Qp(ObjectId::next());
                let region = Region { addr, base, length, access: Access::REMOTE_READ, users, role };
                for (va, len) in EDGES.into_iter().flat_map(|va| EDGES.map(|len| (va, len))) {
                    let [base, length, va_, len_] = [base, length, va, len].map(u128::from);
                    let is_inside = va_ >= base && va_ + len_ <= base + length;
                    let place = addr.wrapping_add(va.wrapping_sub(region.base));
                    let expected = if is_inside { Ok(place) } else { Err(MemError::Range) };
                    let what = format!("{len} at {va:#x} in {:#x}+{:#x}", region.base, region.length);
                    assert_eq!(region.locate(va, len, Access::REMOTE_READ), expected, "{what}");
                    assert_eq!(region.locate(va, len, Access::REMOTE_WRITE), Err(MemError::Access), "{what}");
                    found += u32::from(is_inside);
                }
            }
        }
        assert!(found > 1000);
    }
}
