//! Memory regions as programs hold them: registering a part of a dma-buf, the region without
//! memory, and advice about registered memory. Registering memory of the program and of the device
//! is in `registration`.
//!
//! What is behind a key is the table's ([`roxe_memory::table`]). Touches no contents; asks the
//! operating system about pages.

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

/// The rights that a region of a dma-buf can have.
const DMABUF_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::RELAXED_ORDERING);

/// A part of what a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaBuf {
    /// The descriptor; it may be closed when the region is registered.
    pub fd: RawFd,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// What shall become of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Present for reading.
    Prefetch,
    /// Present for writing.
    PrefetchWrite,
    /// Those that are present are made known to the card. Here that is so already: only the list is
    /// checked.
    PrefetchNoFault,
}

impl Pd {
    /// Registers a part of a dma-buf: memory that the program names by a descriptor and need not
    /// have mapped. Peers and lists name it by addresses from `iova`.
    ///
    /// A card would reach it through the bus. This one maps it for itself, so anything serves that
    /// `mmap` maps shared: a dma-buf whose exporter allows that, a file in memory.
    ///
    /// EINVAL: other rights than local and remote ones and relaxed ordering, remote write or atomic
    /// rights without `LOCAL_WRITE`, an `iova` with another offset in its page than the part has, a
    /// part that is empty or reaches beyond the end, or a descriptor that cannot be mapped. EBADF:
    /// no descriptor. EACCES: one that was not opened for this.
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

    /// A region of any addresses that reads as zeros and forgets what is written: a program names
    /// it where a list must have bytes that it does not care about. No peer can use its key.
    /// ENOMEM: too many regions and windows.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        let terms = Terms { addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE };
        let region = Region { users: Users::Null(self.id()), ..terms.region(self, 0) };
        Mr::enter(self, terms, region, Backing::None)
    }

    /// Follows `advice` for the whole list; returns when it is done. The operating system also
    /// answers the page faults of regions that were registered with `ON_DEMAND`.
    ///
    /// EFAULT: a key that is unknown, of another domain or without `LOCAL_WRITE` for
    /// [`Advice::PrefetchWrite`], a range beyond its region, or memory that is not mapped with
    /// these rights. Then some of the list may have been followed.
    pub fn advise_mr(&self, advice: Advice, list: &[Sge]) -> Result<(), Error> {
        let write = advice == Advice::PrefetchWrite;
        let ranges = list.iter().map(|sge| self.locate(sge, write)).collect::<Result<Vec<_>, _>>()?;
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        // No lock is held here: the pages may have to come from a disk. Whoever unmaps them
        // meanwhile gets EFAULT.
        ranges.into_iter().try_for_each(|(addr, length)| mapped::check(addr, length, write))
    }

    /// Where the memory of a list's element is.
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
