//! An entry of the table of keys, a region or a window: its users, and the checks of an access.

use crate::guard::Fault;
use roxe_base::error::Error;
use roxe_base::table::Slots;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Bind};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Names a protection domain on every access to memory. Never reused while anything of the domain
/// is alive: the number would have to go round 2^32 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(NonZeroU32);

impl PdId {
    /// The name of a new domain.
    pub fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NonZeroU32::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN))
    }

    /// The name as a number, from 1 in each process.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

/// The target of a key. With its tag it fills one cache line ([`roxe_base::table`]).
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Where the memory is.
    pub addr: u64,
    /// The address by which lists and peers name its first byte.
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
    /// A window.
    Window(Window),
}

/// The permitted users of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Lists and peers of this domain.
    Domain(PdId),
    /// Peers of this domain.
    Peers(PdId),
    /// The peer of this queue pair.
    Qp(ObjectId),
    /// Lists of this domain, without memory: reads give zeros, writes are discarded.
    Null(PdId),
    /// No user: an unbound window.
    Nobody,
}

/// The state of a key, for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFacts {
    /// No region or window has it, and none had it last.
    Unknown,
    /// That of a region or window that is gone.
    Dead,
    /// A former key of a window, which has this one since it was bound again.
    Rebound(u32),
    /// That of a window that is not bound.
    Unbound,
    /// That of a null region.
    Null,
    /// That of memory.
    Open {
        /// True if it is that of a window.
        is_window: bool,
        /// True if only one queue pair may use it.
        of_qp: bool,
        /// Where the memory is.
        addr: u64,
        /// The address by which lists and peers name its first byte.
        base: u64,
        /// Length in bytes.
        length: u64,
        /// Rights that the key grants.
        access: Access,
    },
}

/// For whom a peer's request is executed.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// The domain of the queue pair.
    pub pd: PdId,
    /// The queue pair, for windows that are bound to one.
    pub qp: Option<ObjectId>,
}

impl From<PdId> for Reach {
    /// The scope of every queue pair of the domain.
    fn from(pd: PdId) -> Self {
        Self { pd, qp: None }
    }
}

impl Region {
    /// Where `len` bytes at `va` are, if the region holds them and grants `access` to lists of
    /// `pd`.
    #[inline]
    pub(crate) fn resolve(&self, pd: PdId, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        // clause: WINDOW-REMOTE-ONLY
        if self.users != Users::Domain(pd) {
            return Err(MemError::WrongDomain);
        }
        self.locate(va, len, access)
    }

    /// Where `len` bytes at `va` are, if the region or window holds them and grants `access` to
    /// peers of `reach`.
    // clause: CHECK-KEY
    #[inline]
    pub(crate) fn resolve_remote(&self, reach: Reach, va: u64, len: u64, access: Access) -> Result<u64, MemError> {
        // clause: WINDOW-ACCESS
        let granted = match self.users {
            Users::Domain(pd) | Users::Peers(pd) => pd == reach.pd,
            Users::Qp(qp) => Some(qp) == reach.qp,
            Users::Nobody | Users::Null(_) => false,
        };
        if granted { self.locate(va, len, access) } else { Err(MemError::WrongDomain) }
    }

    /// Copies out for a scatter/gather list of `pd`, by `copy`.
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

    /// Copies in for a scatter/gather list of `pd`, by `copy`.
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
        // Neither subtraction wraps where the comparison before it held; a range that wraps is too
        // long.
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

/// Rights of peers ([`Access::OF_PEERS`]) that are withheld until their first use are shifted by
/// this.
const WITHHELD: u32 = 24;

impl Region {
    /// The same, but the first use of each right of peers is refused, until `Region::give` was
    /// called for it. So it is seen, and later ones cost nothing.
    pub fn withholding(self) -> Self {
        let withheld = Access::from_bits_retain((self.access & Access::OF_PEERS).bits() << WITHHELD);
        Self { access: self.access & !Access::OF_PEERS | withheld, ..self }
    }

    /// Which of these rights are withheld.
    pub(crate) fn withheld(&self, access: Access) -> Access {
        Access::from_bits_retain(self.access.bits() >> WITHHELD) & Access::OF_PEERS & access
    }

    /// Every right that the key grants, withheld or not.
    pub(crate) fn granted(&self) -> Access {
        Access::from_bits_truncate(self.access.bits()) | self.withheld(Access::OF_PEERS)
    }

    /// Withholds them no longer.
    pub(crate) fn give(&mut self, access: Access) {
        let withheld = Access::from_bits_retain(access.bits() << WITHHELD);
        // `!` would forget what is not the name of a right.
        self.access = self.access.difference(withheld).union(access);
    }
}

const REMOTE_RIGHTS: Access = Access::OF_PEERS.union(FLUSH_RIGHTS);
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

/// The part of an entry that describes a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    kind: MwKind,
    pd: PdId,
    /// Key of the region that it is bound to; none is 0.
    bound_to: Option<NonZeroU32>,
}

impl Window {
    /// A window of the domain `pd` that is not bound.
    pub const fn new(kind: MwKind, pd: PdId) -> Self {
        Self { kind, pd, bound_to: None }
    }

    /// The entry of this window while it is not bound.
    pub fn closed(self) -> Region {
        let role = Role::Window(Self { bound_to: None, ..self });
        let (addr, base, length, access) = (0, 0, 0, Access::empty());
        Region { addr, base, length, access, users: Users::Nobody, role }
    }

    pub(crate) fn region(self, regions: &mut Slots<Region>) -> Option<&mut Region> {
        regions.get_mut(self.bound_to?.get())
    }
}

impl Window {
    /// Checks that the window can be bound like this.
    pub(crate) fn check(self, reach: Reach, bind: &Bind) -> Result<(), MemError> {
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
    pub(crate) fn open(self, regions: &Slots<Region>, reach: Reach, bind: &Bind) -> Result<Region, MemError> {
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
    pub(crate) fn window(&self) -> Option<Window> {
        if let Role::Window(window) = self.role { Some(window) } else { None }
    }

    /// Returns true for a window bound to the region under `key`.
    pub(crate) fn is_window_of(&self, key: u32) -> bool {
        self.window().is_some_and(|window| window.bound_to.is_some_and(|bound_to| bound_to.get() == key))
    }

    /// Changes the number of windows that are bound to it.
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
        let (users, role) = (Users::Nobody, Role::Memory { windows: 0 });
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = Region { addr: 0, base: 0, length: 8, access, users, role };
        let mut withholding = region.withholding();
        assert_eq!(withholding.withheld(Access::REMOTE_ATOMIC), Access::empty(), "it never had that one");
        assert_eq!(withholding.locate(0, 8, Access::LOCAL_WRITE), Ok(0));
        for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            assert_eq!(withholding.locate(0, 8, right), Err(MemError::Access));
            assert_eq!(withholding.withheld(right), right);
            withholding.give(right);
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
            let [qp, other_qp] = [(); 2].map(|()| Reach { pd, qp: Some(ObjectId::next()) });
            table.bind(qp, &Bind { rkey, lkey, access: Access::REMOTE_READ, addr: 0, length: 8 }).unwrap();
            assert!(table.hold().locate_remote(qp, rkey, 0, 8).is_ok());
            let found = table.hold().locate_remote(other_qp, rkey, 0, 8);
            assert_eq!(found.is_ok(), kind == MwKind::One, "{kind:?}: {found:?}");
        }
    }

    /// Against arithmetic that has room for every sum.
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
