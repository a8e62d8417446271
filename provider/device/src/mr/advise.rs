//! Advice about registered memory (`ibv_advise_mr`): which of it a program will soon want present.
//!
//! Touches no contents; asks the operating system, which also answers the page faults of regions
//! that were registered with `ON_DEMAND`.

use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_memory::mapped;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Sge};

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
    /// Follows `advice` for the whole list; returns when it is done.
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
        regions.locate(self.id(), sge, right).map(|addr| (addr, length)).map_err(|why| refused(sge, why))
    }
}

fn refused(sge: &Sge, why: MemError) -> Error {
    let (length, addr, lkey) = (sge.length, sge.addr, sge.lkey.0);
    Error::new(libc::EFAULT, format!("{length} bytes at {addr:#x} under key {lkey:#x} cannot be prefetched: {why:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::Mr;
    use crate::testing::{self, PAGE, Pages};
    use roxe_memory::guard::own_cells;
    use roxe_wire::LKey;
    use std::sync::Arc;

    const ON_DEMAND: Access = Access::ON_DEMAND.union(Access::LOCAL_WRITE);

    fn errno(result: Result<(), Error>) -> i32 {
        result.map_or_else(|e| e.errno(), |()| 0)
    }

    fn sge(mr: &Mr, addr: u64, length: u64) -> Sge {
        Sge { addr, length: length as u32, lkey: mr.lkey() }
    }

    // clause: KEY-ON-DEMAND
    #[test]
    fn pages_come_when_they_are_asked_for() {
        let (pages, pd) = (Pages::new(4), testing::pd());
        let mr = pd.register(pages.addr(), 4 * PAGE, pages.addr(), ON_DEMAND).unwrap();
        let page = |i| sge(&mr, pages.addr() + i * PAGE, PAGE);
        let resident = || [0, 1, 2, 3].map(|i| pages.is_resident(i));
        assert_eq!(resident(), [false; 4]);
        pd.advise_mr(Advice::PrefetchNoFault, &[page(0)]).unwrap();
        assert_eq!(resident(), [false; 4]);
        pd.advise_mr(Advice::PrefetchWrite, &[page(1), page(3)]).unwrap();
        assert_eq!(resident(), [false, true, false, true]);
        pd.advise_mr(Advice::Prefetch, &[page(0), sge(&mr, 0, 0)]).unwrap_err();
        pd.advise_mr(Advice::Prefetch, &[page(0)]).unwrap();
        assert!(pages.is_resident(0));
    }

    #[test]
    fn lists_that_reach_too_far_are_refused() {
        let (pages, pd) = (Pages::new(4), testing::pd());
        let mr = pd.register(pages.addr(), 3 * PAGE, pages.addr(), ON_DEMAND).unwrap();
        let fixed = pd.register(pages.addr(), PAGE, pages.addr(), Access::empty()).unwrap();
        let other = pd.context().alloc_pd().unwrap();
        pages.unmap(2, 1);
        let at = |i: u64| pages.addr() + i * PAGE;
        for (advice, list, expected) in [
            (Advice::Prefetch, [sge(&mr, at(0), 2 * PAGE)], 0),
            (Advice::Prefetch, [sge(&mr, at(2), 1)], libc::EFAULT),
            (Advice::PrefetchNoFault, [sge(&mr, at(2), 1)], 0),
            (Advice::PrefetchNoFault, [sge(&mr, at(2), PAGE + 1)], libc::EFAULT),
            (Advice::PrefetchNoFault, [Sge { lkey: LKey(7), ..sge(&mr, at(0), 1) }], libc::EFAULT),
            (Advice::Prefetch, [sge(&fixed, at(0), PAGE)], 0),
            (Advice::PrefetchWrite, [sge(&fixed, at(0), PAGE)], libc::EFAULT),
        ] {
            assert_eq!(errno(pd.advise_mr(advice, &list)), expected, "{advice:?} {list:?}");
        }
        assert_eq!(errno(other.advise_mr(Advice::Prefetch, &[sge(&mr, at(0), 1)])), libc::EFAULT);
    }

    // clause: KEY-ON-DEMAND
    #[test]
    fn one_region_can_be_all_there_is() {
        let (pages, pd) = (Pages::new(1), testing::pd());
        let all = |access| pd.register(0, u64::MAX, 0, access);
        let rights = ON_DEMAND | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr: Arc<Mr> = all(rights).unwrap();
        let memory = pd.context().memory();
        memory.hold().write_remote(pd.id(), mr.rkey(), pages.addr(), b"here").unwrap();
        let mut read = [0; 4];
        memory.hold().read_remote(pd.id(), mr.rkey(), pages.addr(), own_cells(&mut read)).unwrap();
        assert_eq!(&read, b"here");
        for nowhere in [0, 1 << 47, 1 << 63, u64::MAX - 16] {
            assert_eq!(
                memory.hold().write_remote(pd.id(), mr.rkey(), nowhere, b"here"),
                Err(MemError::Fault),
                "{nowhere:#x}"
            );
        }
        let errno = |access| all(access).unwrap_err().errno();
        assert_eq!(errno(Access::LOCAL_WRITE), libc::EINVAL);
        assert_eq!(pd.register(1, u64::MAX - 1, 1, ON_DEMAND).unwrap_err().errno(), libc::EINVAL);
    }
}
