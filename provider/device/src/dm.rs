//! Device memory (`man ibv_alloc_dm`): pages of this process whose address the program never
//! learns. As on hardware, it is zeroed, parent and child of a fork share it, and SGEs and peers
//! access it through a region. `max_dm_size` limits it per process instead of per device.
//!
//! No reference to these bytes exists, because peers and the child of a fork may write them at any
//! time: all access goes through [`roxe_memory::guard`].

use crate::context::Context;
use crate::device::DmBudget;
use roxe_base::error::Error;
use roxe_base::limits::{DM_GRAIN, MAX_DM_SIZE};
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use roxe_memory::guard::{self, Fault, own_cells};
use roxe_memory::mapped::{Mapping, page_size};
use std::sync::Arc;

#[derive(Debug)]
struct Block {
    pages: Mapping,
    length: u64,
    budget: Arc<DmBudget>,
}

impl Block {
    fn alloc(budget: &Arc<DmBudget>, length: u64) -> Result<Self, Error> {
        let length = length.next_multiple_of(page_size());
        budget.take(length)?;
        let pages = Mapping::anonymous(length).inspect_err(|_| budget.give_back(length))?;
        Ok(Self { pages, length, budget: Arc::clone(budget) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.budget.give_back(self.length);
    }
}

/// A buffer in the memory of the device.
#[derive(Debug)]
pub struct Dm {
    context: Arc<Context>,
    length: u64,
    /// `None` once freed.
    block: Mutex<rank::DeviceMemory, Option<Arc<Block>>>,
    uses: UseCount,
}

impl Context {
    /// Allocates `length` bytes of device memory, zeroed, aligned to `2^log_align` bytes. Fails
    /// with EINVAL if `length` is 0 or above `max_dm_size`, or the alignment exceeds a page; ENOMEM
    /// if fewer bytes are left.
    pub fn alloc_dm(self: &Arc<Self>, length: u64, log_align: u32) -> Result<Arc<Dm>, Error> {
        if length == 0 || length > MAX_DM_SIZE {
            return Err(Error::invalid(format!(
                "cannot allocate {length} bytes of device memory; request 1 to {MAX_DM_SIZE}"
            )));
        }
        // Every buffer starts at a page boundary, and no call aligns pages further.
        let max_align = page_size().trailing_zeros();
        if log_align > max_align {
            return Err(Error::invalid(format!(
                "cannot align device memory to 2^{log_align} bytes; the maximum is 2^{max_align}"
            )));
        }
        guard::install();
        let block = Arc::new(Block::alloc(self.device().dm_budget(), length)?);
        let (context, block, uses) = (Arc::clone(self), Mutex::new(Some(block)), UseCount::default());
        Ok(Arc::new(Dm { context, length, block, uses }))
    }
}

impl Dm {
    /// Returns the context of the buffer.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Copies `data` to `offset`. A peer that reads meanwhile may see a part of it. Fails with
    /// EINVAL if `offset` or the length is not a multiple of 4, or the buffer is freed; EFAULT if
    /// the range exceeds the buffer; ENOMEM if the system has no free page.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let (block, addr) = self.locate(offset, data.len() as u64)?;
        let written = guard::write(addr, data);
        drop(block);
        written.map_err(no_page)
    }

    /// Copies bytes at `offset` to `out`; errors as for [`Dm::write`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let (block, addr) = self.locate(offset, out.len() as u64)?;
        let read = guard::read(addr, own_cells(out));
        drop(block);
        read.map_err(no_page)
    }

    /// Frees the memory, as a drop does. Fails with EBUSY while a region is registered in it,
    /// EINVAL if it is freed already.
    pub fn free(&self) -> Result<(), Error> {
        let mut block = self.block.lock();
        self.uses.check_unused("device memory", "memory regions")?;
        block.take().map(drop).ok_or_else(freed)
    }

    /// Returns the address of `offset`, and the block: holding it keeps the pages mapped.
    fn locate(&self, offset: u64, length: u64) -> Result<(Arc<Block>, u64), Error> {
        if !offset.is_multiple_of(DM_GRAIN) || !length.is_multiple_of(DM_GRAIN) {
            return Err(Error::invalid(format!(
                "{length} bytes at offset {offset}: both must be multiples of {DM_GRAIN}"
            )));
        }
        if !self.contains(offset, length) {
            return Err(Error::new(libc::EFAULT, self.out_of_range(offset, length)));
        }
        let block = self.block.lock().clone().ok_or_else(freed)?;
        let addr = block.pages.addr() + offset;
        Ok((block, addr))
    }

    /// Returns the bytes for a region. While the result exists, the pages stay mapped and
    /// [`Dm::free`] returns EBUSY.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Result<DmPart, Error> {
        if !self.contains(offset, length) {
            return Err(Error::invalid(self.out_of_range(offset, length)));
        }
        let guard = self.block.lock();
        let block = Arc::clone(guard.as_ref().ok_or_else(freed)?);
        Ok(DmPart { addr: block.pages.addr() + offset, length, _use: self.uses.hold(), _block: block })
    }

    fn contains(&self, offset: u64, length: u64) -> bool {
        self.length.checked_sub(offset).is_some_and(|room| length <= room)
    }

    fn out_of_range(&self, offset: u64, length: u64) -> String {
        format!("{length} bytes at offset {offset} exceed the {} bytes of device memory", self.length)
    }
}

fn freed() -> Error {
    Error::invalid("the device memory was freed")
}

fn no_page(Fault: Fault) -> Error {
    Error::new(libc::ENOMEM, "the system has no free page for device memory")
}

#[derive(Debug)]
pub(crate) struct DmPart {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    _use: Use,
    /// Keeps the pages mapped after the buffer is dropped.
    _block: Arc<Block>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::MrChange;
    use crate::pd::Pd;
    use crate::testing;
    use roxe_transport::cx::{AtomicOp, MemError};
    use roxe_transport::wr::{Access, Sge};

    const RIGHTS: Access = Access::all().difference(
        Access::ON_DEMAND.union(Access::HUGETLB).union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT),
    );

    fn errno<T>(result: Result<T, Error>) -> i32 {
        result.map_or_else(|error| error.errno(), |_| 0)
    }

    fn dm(pd: &Pd, length: u64) -> Arc<Dm> {
        pd.context().alloc_dm(length, 0).unwrap()
    }

    #[test]
    fn device_memory_is_limited_to_max_dm_size() {
        let context = testing::context();
        let max = context.device().attr().max_dm_size;
        for (length, log_align, expected) in [
            (0, 0, libc::EINVAL),
            (max + 1, 0, libc::EINVAL),
            (u64::MAX, 0, libc::EINVAL),
            (4, 13, libc::EINVAL),
            (4, 64, libc::EINVAL),
            (4, 12, 0),
        ] {
            assert_eq!(errno(context.alloc_dm(length, log_align)), expected, "{length} bytes aligned to 2^{log_align}");
        }
        let budget = Arc::new(DmBudget::default());
        let largest = Block::alloc(&budget, max - 1).unwrap();
        assert_eq!(errno(Block::alloc(&budget, 1)), libc::ENOMEM, "a page belongs to one buffer");
        drop(largest);
        assert_eq!(errno(Block::alloc(&budget, max)), 0);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn device_memory_is_zeroed_and_copies_are_checked() {
        let pd = testing::pd();
        let dm = dm(&pd, 100);
        let mut out = [7; 100];
        dm.read(0, &mut out).unwrap();
        assert_eq!(out, [0; 100]);
        dm.write(8, b"abcdefgh").unwrap();
        dm.read(4, &mut out[..12]).unwrap();
        assert_eq!(&out[..12], b"\0\0\0\0abcdefgh");
        for (offset, length, expected) in [
            (0, 100, 0),
            (100, 0, 0),
            (1, 4, libc::EINVAL),
            (4, 3, libc::EINVAL),
            (100, 4, libc::EFAULT),
            (0, 104, libc::EFAULT),
            (104, 0, libc::EFAULT),
            (u64::MAX - 3, 8, libc::EFAULT),
        ] {
            assert_eq!(errno(dm.write(offset, &vec![1; length])), expected, "{length} bytes to {offset}");
            assert_eq!(errno(dm.read(offset, &mut vec![1; length])), expected, "{length} bytes from {offset}");
        }
    }

    #[test]
    fn dm_region_is_addressed_from_zero_to_its_length() {
        let pd = testing::pd();
        let (dm, memory) = (dm(&pd, 64), pd.context().memory());
        let mr = pd.reg_dm_mr(&dm, 16, 40, RIGHTS).unwrap();
        memory.hold().write_remote(pd.id(), mr.rkey(), 0, b"from a peer.").unwrap();
        let mut out = [0; 12];
        dm.read(16, &mut out).unwrap();
        assert_eq!(&out, b"from a peer.");
        let list = [Sge { addr: 5, length: 7, lkey: mr.lkey() }];
        memory.hold().gather(pd.id(), &list, 0, own_cells(&mut out[..7])).unwrap();
        assert_eq!(&out[..7], b"a peer.");
        let add = AtomicOp::FetchAdd { add: 3 };
        assert_eq!(memory.hold().atomic_remote(pd.id(), mr.rkey(), 32, add), Ok(0));
        assert_eq!(memory.hold().atomic_remote(pd.id(), mr.rkey(), 32, add), Ok(3));
        assert_eq!(memory.hold().write_remote(pd.id(), mr.rkey(), 36, b"12345"), Err(MemError::Range));
        let odd = pd.reg_dm_mr(&dm, 4, 8, RIGHTS).unwrap();
        assert_eq!(memory.hold().atomic_remote(pd.id(), odd.rkey(), 0, add), Err(MemError::Range), "not aligned");
    }

    #[test]
    fn dm_registration_with_invalid_range_or_rights_is_refused() {
        let pd = testing::pd();
        let (dm, other) = (dm(&pd, 64), testing::pd());
        let zero = Access::ZERO_BASED;
        for (offset, length, access, expected) in [
            (0, 64, zero, 0),
            (0, 0, zero, 0),
            (64, 0, zero, 0),
            (0, 65, zero, libc::EINVAL),
            (60, 5, zero, libc::EINVAL),
            (65, 0, zero, libc::EINVAL),
            (8, u64::MAX, zero, libc::EINVAL),
            (0, 64, Access::LOCAL_WRITE, libc::EINVAL),
            (0, 64, zero | Access::REMOTE_WRITE, libc::EINVAL),
            (0, 64, zero | Access::ON_DEMAND, libc::EINVAL),
            (0, 64, zero | Access::HUGETLB, libc::EINVAL),
        ] {
            assert_eq!(errno(pd.reg_dm_mr(&dm, offset, length, access)), expected, "{length} from {offset} {access:?}");
        }
        assert_eq!(errno(other.reg_dm_mr(&dm, 0, 64, zero)), libc::EINVAL, "a domain of another context");
        assert_eq!(errno(dm.free()), 0, "a refused registration holds nothing");
        assert_eq!(errno(pd.reg_dm_mr(&dm, 0, 64, zero)), libc::EINVAL);
        assert_eq!(errno(dm.free()), libc::EINVAL);
        assert_eq!(errno(dm.read(0, &mut [0; 4])), libc::EINVAL);
    }

    #[test]
    fn device_memory_lives_as_long_as_its_region() {
        let pd = testing::pd();
        let dm = dm(&pd, 64);
        let mr = pd.reg_dm_mr(&dm, 0, 64, RIGHTS).unwrap();
        assert_eq!(errno(dm.free()), libc::EBUSY);
        dm.write(0, b"kept").unwrap();
        drop(dm);
        let mut out = [0; 4];
        pd.context().memory().hold().read_remote(pd.id(), mr.rkey(), 0, own_cells(&mut out)).unwrap();
        assert_eq!(&out, b"kept");
        let dm = self::dm(&pd, 64);
        let mr = pd.reg_dm_mr(&dm, 0, 64, RIGHTS).unwrap();
        mr.deregister().unwrap();
        assert_eq!(errno(dm.free()), 0);
    }

    #[test]
    fn dm_region_reregisters_rights_but_not_range() {
        let pd = testing::pd();
        let dm = dm(&pd, 64);
        let mr = pd.reg_dm_mr(&dm, 0, 64, RIGHTS).unwrap();
        let read = |pd: &Pd| pd.context().memory().hold().read_remote(pd.id(), mr.rkey(), 0, own_cells(&mut [0; 4]));
        let change = MrChange { access: Some(Access::ZERO_BASED), ..MrChange::default() };
        mr.change(change).unwrap();
        assert_eq!(read(&pd), Err(MemError::Access));
        let other = pd.context().alloc_pd().unwrap();
        mr.change(MrChange { access: Some(RIGHTS), pd: Some(Arc::clone(&other)), ..MrChange::default() }).unwrap();
        assert_eq!((read(&other), read(&pd)), (Ok(()), Err(MemError::WrongDomain)));
        for refused in [
            MrChange { access: Some(Access::LOCAL_WRITE), ..MrChange::default() },
            MrChange { range: Some((testing::Pages::new(1).addr(), 8)), ..MrChange::default() },
        ] {
            assert_eq!(errno(mr.change(refused)), libc::EINVAL);
        }
        assert_eq!(errno(dm.free()), libc::EBUSY);
        mr.deregister().unwrap();
        assert_eq!(errno(dm.free()), 0);
    }

    #[test]
    fn device_memory_pages_are_allocated_on_first_use() {
        let pd = testing::pd();
        let dm = dm(&pd, 3 * testing::PAGE_SIZE);
        let _mr = pd.reg_dm_mr(&dm, 0, 3 * testing::PAGE_SIZE, RIGHTS).unwrap();
        let resident = || {
            let block = dm.block.lock();
            [0, 1, 2].map(|i| testing::is_resident(block.as_ref().unwrap().pages.addr() + i * testing::PAGE_SIZE))
        };
        assert_eq!(resident(), [false; 3]);
        dm.write(testing::PAGE_SIZE, b"here").unwrap();
        assert_eq!(resident(), [false, true, false]);
    }
}
