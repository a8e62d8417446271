//! Registered memory made of vectors: keys, protection domains, rights, and faults on demand.
//!
//! May touch: `cx` and `wr` only. Keys, ranges and rights are checked byte by byte, so that a state
//! machine that asks for the wrong thing is found out; [`super::host`] checks what else
//! [`crate::cx::Memory`] asks of it.

use crate::cx::MemError;
use crate::wr::{Access, Bind, Sge};
use roxe_wire::{LKey, RKey};

/// The protection domain of the QP that uses a [`VecMemory`].
pub const OWN_PD: u32 = 1;

/// Where the first region starts; page aligned, far from zero.
const FIRST_ADDR: u64 = 0x10_0000;

/// A registered region, as an application holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Local and remote key: 24 bits of index, 8 bits of tag.
    pub key: u32,
    /// First virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

impl Mr {
    /// The remote key.
    pub const fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The element for `len` bytes that start `offset` bytes into the region.
    pub const fn sge(&self, offset: u32, len: u32) -> Sge {
        Sge { addr: self.addr + offset as u64, length: len, lkey: LKey(self.key) }
    }

    /// The element for the whole region.
    pub const fn all(&self) -> Sge {
        self.sge(0, self.len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Good,
    Invalid,
    Unmapped,
}

#[derive(Debug)]
struct Region {
    mr: Mr,
    pd: u32,
    access: Access,
    /// Whether a peer may invalidate it, as it may a memory window.
    window: bool,
    condition: Condition,
    bytes: Vec<u8>,
}

/// An address space of registered regions, used by one QP of domain [`OWN_PD`].
#[derive(Debug, Default)]
pub struct VecMemory {
    regions: Vec<Region>,
    /// Bound windows. Any key that is no region's names one.
    windows: Vec<Bind>,
    /// FLUSHes done for the peer.
    pub flushes: u32,
}

impl VecMemory {
    /// Registers `len` zero bytes with these rights in the QP's own domain.
    pub fn register(&mut self, len: u32, access: Access) -> Mr {
        self.register_in(OWN_PD, len, access)
    }

    /// Registers `len` zero bytes in the domain `pd`.
    pub fn register_in(&mut self, pd: u32, len: u32, access: Access) -> Mr {
        let index = u32::try_from(self.regions.len()).expect("few regions");
        // A page of nothing between regions, so that an overrun is caught.
        let addr =
            self.regions.last().map_or(FIRST_ADDR, |r| (r.mr.addr + u64::from(r.mr.len)).next_multiple_of(4096) + 4096);
        let mr = Mr { key: (index + 1) << 8 | (index.wrapping_mul(37) & 0xff), addr, len };
        let bytes = vec![0; len as usize];
        self.regions.push(Region { mr, pd, access, window: false, condition: Condition::Good, bytes });
        mr
    }

    /// Lets a peer invalidate `mr`, as if it were a memory window.
    pub fn make_window(&mut self, mr: Mr) {
        self.region_mut(mr).window = true;
    }

    /// Deregisters `mr`: its key is bad from now on.
    pub fn deregister(&mut self, mr: Mr) {
        self.region_mut(mr).condition = Condition::Invalid;
    }

    /// Takes the memory behind `mr` away while it stays registered: accesses fault.
    pub fn unmap(&mut self, mr: Mr) {
        self.region_mut(mr).condition = Condition::Unmapped;
    }

    /// How many windows are bound.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// The bytes of `mr`.
    pub fn bytes(&self, mr: Mr) -> &[u8] {
        &self.regions[index_of(mr.key).expect("a key of ours")].bytes
    }

    /// The bytes of `mr`, to fill.
    pub fn bytes_mut(&mut self, mr: Mr) -> &mut [u8] {
        &mut self.region_mut(mr).bytes
    }

    /// The 8-byte word at `offset` of `mr`, in the byte order of this machine.
    pub fn word(&self, mr: Mr, offset: u32) -> u64 {
        let at = offset as usize;
        u64::from_ne_bytes(self.bytes(mr)[at..at + 8].try_into().expect("eight bytes"))
    }

    fn region_mut(&mut self, mr: Mr) -> &mut Region {
        &mut self.regions[index_of(mr.key).expect("a key of ours")]
    }

    /// The bytes `addr..addr + len` under `key`, after every check.
    pub(super) fn access(&mut self, key: u32, addr: u64, len: u64, need: Access) -> Result<&mut [u8], MemError> {
        let Some(window) = self.windows.iter().find(|window| window.rkey.0 == key).copied() else {
            return self.access_region(key, addr, len, need);
        };
        if need == Access::LOCAL_WRITE || !window.access.contains(need) {
            return Err(MemError::Access);
        }
        let inside =
            addr.checked_sub(window.addr).and_then(|at| at.checked_add(len)).is_some_and(|at| at <= window.length);
        if !inside {
            return Err(MemError::Range);
        }
        self.access_region(window.lkey.0, addr, len, Access::empty())
    }

    fn access_region(&mut self, key: u32, addr: u64, len: u64, need: Access) -> Result<&mut [u8], MemError> {
        let region = index_of(key).and_then(|i| self.regions.get_mut(i)).ok_or(MemError::BadKey)?;
        if region.mr.key != key || region.condition == Condition::Invalid {
            return Err(MemError::BadKey);
        }
        if region.pd != OWN_PD {
            return Err(MemError::WrongDomain);
        }
        if !region.access.contains(need) {
            return Err(MemError::Access);
        }
        let start = addr.checked_sub(region.mr.addr).ok_or(MemError::Range)?;
        let end = start.checked_add(len).filter(|&end| end <= u64::from(region.mr.len)).ok_or(MemError::Range)?;
        if region.condition == Condition::Unmapped {
            return Err(MemError::Fault);
        }
        Ok(&mut region.bytes[usize::try_from(start).expect("in range")..usize::try_from(end).expect("in range")])
    }

    /// Walks the part of `sges` that covers `len` bytes from `offset`; `f` gets each piece and its
    /// place in the data.
    pub(super) fn walk(
        &mut self,
        sges: &[Sge],
        offset: u32,
        len: usize,
        need: Access,
        mut f: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), MemError> {
        let (mut skip, mut done) = (u64::from(offset), 0);
        for sge in sges {
            let here = u64::from(sge.length);
            if skip >= here {
                skip -= here;
                continue;
            }
            let take = (here - skip).min((len - done) as u64);
            if take == 0 {
                break;
            }
            let addr = sge.addr.checked_add(skip).ok_or(MemError::Range)?;
            let piece = self.access(sge.lkey.0, addr, take, need)?;
            f(done, piece);
            done += piece.len();
            skip = 0;
        }
        if done == len { Ok(()) } else { Err(MemError::Range) }
    }

    /// Where the region with this key starts; 0 if there is none.
    pub(super) fn base_of(&self, rkey: RKey) -> u64 {
        index_of(rkey.0).and_then(|i| self.regions.get(i)).map_or(0, |r| r.mr.addr)
    }

    /// Takes a window away, or a region that a peer may invalidate.
    pub(super) fn invalidate(&mut self, rkey: RKey) -> Result<(), MemError> {
        if self.windows.iter().any(|window| window.rkey == rkey) {
            self.windows.retain(|window| window.rkey != rkey);
            return Ok(());
        }
        self.access(rkey.0, self.base_of(rkey), 0, Access::empty())?;
        let region = index_of(rkey.0).and_then(|i| self.regions.get_mut(i)).ok_or(MemError::BadKey)?;
        if !region.window {
            return Err(MemError::Access);
        }
        region.condition = Condition::Invalid;
        Ok(())
    }

    /// Opens a window, unless one has that index.
    pub(super) fn open(&mut self, bind: &Bind) -> Result<(), MemError> {
        self.access_region(bind.lkey.0, bind.addr, bind.length, Access::MW_BIND)?;
        if self.windows.iter().any(|window| window.rkey.0 >> 8 == bind.rkey.0 >> 8) {
            return Err(MemError::Access);
        }
        self.windows.push(*bind);
        Ok(())
    }
}

/// The table index of a key; keys start at index 1 so that key 0 is nobody's.
fn index_of(key: u32) -> Option<usize> {
    (key >> 8).checked_sub(1).map(|i| i as usize)
}
