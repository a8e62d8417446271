//! Regions of a dma-buf (`ibv_reg_dmabuf_mr`): memory that the program names by a descriptor and
//! need not have mapped.
//!
//! A card would reach it through the bus. This one maps it for itself, so anything serves that
//! `mmap` maps shared: a dma-buf whose exporter allows that, a file in memory. Touches no contents.

use super::registration::{Backing, Mr, Terms, check_range, check_rights};
use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_memory::guard;
use roxe_memory::mapped::{Mapping, page_size};
use roxe_transport::wr::Access;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The rights that such a region can have.
const RIGHTS: Access = Access::LOCAL_WRITE
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

impl Pd {
    /// Registers a part of a dma-buf; peers and lists name it by addresses from `iova`.
    ///
    /// EINVAL: other rights than local and remote ones and relaxed ordering, remote write or atomic
    /// rights without `LOCAL_WRITE`, an `iova` with another offset in its page than the part has, a
    /// part that is empty or reaches beyond the end, or a descriptor that cannot be mapped. EBADF:
    /// no descriptor. EACCES: one that was not opened for this.
    pub fn reg_dmabuf_mr(self: &Arc<Self>, part: DmaBuf, iova: u64, access: Access) -> Result<Arc<Mr>, Error> {
        // clause: KEY-DMABUF
        let within_page = page_size() - 1;
        if !RIGHTS.contains(access) || part.offset & within_page != iova & within_page {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::MrChange;
    use crate::testing::{self, PAGE, Pages};
    use roxe_transport::cx::MemError;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

    fn errno<T>(result: Result<T, Error>) -> i32 {
        result.map_or_else(|error| error.errno(), |_| 0)
    }

    // clause: KEY-DMABUF
    #[test]
    fn a_write_of_a_peer_reaches_the_file() {
        let (pages, pd) = (Pages::of_file(3), testing::pd());
        let part = DmaBuf { fd: pages.fd(), offset: PAGE + 8, length: PAGE };
        let iova = (1 << 40) + 8;
        let mr = pd.reg_dmabuf_mr(part, iova, ALL).unwrap();
        let table = pd.context().memory();
        table.hold().write_remote(pd.id(), mr.rkey(), iova + 16, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(testing::load(pages.addr() + PAGE + 24), 7);
        let beyond = table.hold().write_remote(pd.id(), mr.rkey(), iova + PAGE - 4, &[0; 8]);
        assert_eq!(beyond, Err(MemError::Range));
        assert_eq!((mr.addr(), mr.length()), (PAGE + 8, PAGE));
        pages.truncate_file();
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), iova, &[1]), Err(MemError::Fault));
        let anew = MrChange { access: Some(Access::empty()), ..MrChange::default() };
        assert_eq!(errno(mr.change(anew)), libc::EOPNOTSUPP);
        mr.deregister().unwrap();
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), iova, &[1]), Err(MemError::BadKey));
        assert!(pd.dealloc().is_ok());
    }

    // clause: KEY-DMABUF
    #[test]
    fn parts_that_cannot_be_are_refused() {
        let (pages, pd) = (Pages::of_file(2), testing::pd());
        let (socket, _peer) = UnixStream::pair().unwrap();
        let unreadable = std::fs::OpenOptions::new().write(true).open("/dev/zero").unwrap();
        let good = DmaBuf { fd: pages.fd(), offset: 0, length: 2 * PAGE };
        for (part, iova, access, expected) in [
            (good, 0, ALL, 0),
            (good, 0, ALL | Access::REMOTE_ATOMIC | Access::RELAXED_ORDERING, 0),
            (good, 8, ALL, libc::EINVAL),
            (good, 0, ALL | Access::ON_DEMAND, libc::EINVAL),
            (good, 0, ALL | Access::ZERO_BASED, libc::EINVAL),
            (good, 0, Access::REMOTE_WRITE, libc::EINVAL),
            (good, !(PAGE - 1), ALL, libc::EINVAL),
            (DmaBuf { length: 0, ..good }, 0, ALL, libc::EINVAL),
            (DmaBuf { offset: PAGE, ..good }, 0, ALL, libc::EINVAL),
            (DmaBuf { length: u64::MAX, ..good }, 0, ALL, libc::EINVAL),
            (DmaBuf { fd: -1, ..good }, 0, ALL, libc::EBADF),
            (DmaBuf { fd: socket.as_raw_fd(), ..good }, 0, ALL, libc::EINVAL),
            (DmaBuf { fd: unreadable.as_raw_fd(), ..good }, 0, ALL, libc::EACCES),
        ] {
            assert_eq!(errno(pd.reg_dmabuf_mr(part, iova, access)), expected, "{part:?} {iova:#x} {access:?}");
        }
        assert!(pd.dealloc().is_ok());
    }
}
