//! Memory regions: dma-bufs, null regions and advice about registered memory. Memory of the program
//! and of the device is in `registration`. The memory table ([`roxe_memory::table`]) has the keys.

mod registration;

use crate::pd::Pd;
use registration::{Backing, Terms, check_range, check_rights};
use roxe_base::error::Error;
use roxe_memory::guard;
use roxe_memory::mapped::{self, Mapping, page_size};
use roxe_memory::region::{Region, Users};
use roxe_transport::wr::{Access, Sge};
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) use registration::note_use;
pub use registration::{Mr, MrChange};

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
    /// Offset of the first byte.
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

impl Pd {
    /// Registers a part of a dma-buf, memory that the program need not have mapped. Lists and peers
    /// name it by addresses from `iova`. Any descriptor serves that `mmap` can map shared.
    ///
    /// # Errors
    /// EINVAL: rights other than local and remote ones and relaxed ordering, remote write or atomic
    /// rights without `LOCAL_WRITE`, an `iova` with another offset within its page than `part`, a
    /// part that is empty or too long, or a descriptor that cannot be mapped. EBADF: no descriptor.
    /// EACCES: opened without the needed rights.
    pub fn reg_dmabuf_mr(self: &Arc<Self>, part: DmaBuf, iova: u64, access: Access) -> Result<Arc<Mr>, Error> {
        // clause: KEY-DMABUF
        let within_page = page_size() - 1;
        if !DMABUF_RIGHTS.contains(access) || part.offset & within_page != iova & within_page {
            return Err(Error::invalid(
                "a dma-buf takes remote rights only, and an iova with its offset within the page",
            ));
        }
        check_rights(access)?;
        check_range(part.offset, iova, part.length)?;
        let mapping = Mapping::of_fd(part.fd, part.offset, part.length, access.contains(Access::LOCAL_WRITE))?;
        guard::install();
        let terms = Terms { addr: part.offset, length: part.length, iova, access };
        Mr::enter(self, terms, terms.region(self, mapping.addr()), Backing::Mapped(mapping))
    }

    /// Allocates a null region: any address reads as zeros, and writes are discarded. Only lists
    /// can use its key. ENOMEM: too many regions and windows.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        let terms = Terms { addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE };
        let region = Region { users: Users::Null(self.id()), ..terms.region(self, 0) };
        Mr::enter(self, terms, region, Backing::None)
    }

    /// Applies `advice` to the whole list, and returns when it is done; also for `ON_DEMAND`
    /// regions.
    ///
    /// # Errors
    /// EFAULT: a key that is unknown, of another domain or without `LOCAL_WRITE` for
    /// [`Advice::PrefetchWrite`], a range beyond its region, or memory not mapped with these
    /// rights. Some of the list may have been applied.
    pub fn advise_mr(&self, advice: Advice, list: &[Sge]) -> Result<(), Error> {
        let write = advice == Advice::PrefetchWrite;
        let ranges = list.iter().map(|sge| self.locate(sge, write)).collect::<Result<Vec<_>, _>>()?;
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        // No lock is held: the pages may have to be read from a disk.
        ranges.into_iter().try_for_each(|(addr, length)| mapped::check(addr, length, write))
    }

    /// Returns address and length of a list element's memory.
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

#[cfg(test)]
mod tests;
