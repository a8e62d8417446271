//! Keys, rights and ranges of regions, against real memory.

use super::*;
use crate::pd::Pd;
use crate::testing::{self, PAGE_SIZE, Pages};
use roxe_memory::guard::own_cells;
use roxe_memory::table::MemoryTable;
use roxe_transport::cx::{AtomicOp, MemError};
use roxe_transport::wr::{Access, Sge};
use roxe_wire::{LKey, RKey};
use std::sync::Arc;

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

struct Setup {
    pages: Pages,
    pd: Arc<Pd>,
}

impl Setup {
    fn new() -> Self {
        Self { pages: Pages::new(4), pd: testing::pd() }
    }

    fn table(&self) -> &MemoryTable {
        self.pd.context().memory()
    }

    fn register(&self, offset: u64, length: u64, access: Access) -> Arc<Mr> {
        let addr = self.pages.addr() + offset;
        self.pd.register(addr, length, addr, access).unwrap()
    }

    fn read(&self, mr: &Mr, va: u64, len: usize) -> Result<Vec<u8>, MemError> {
        let mut out = vec![0; len];
        self.table().hold().read_remote(self.pd.id(), mr.rkey(), va, own_cells(&mut out)).map(|()| out)
    }

    fn write(&self, mr: &Mr, va: u64, data: &[u8]) -> Result<(), MemError> {
        self.table().hold().write_remote(self.pd.id(), mr.rkey(), va, data)
    }
}

fn sge(mr: &Mr, offset: u64, length: u32) -> Sge {
    Sge { addr: mr.addr() + offset, length, lkey: mr.lkey() }
}

#[test]
fn peer_reads_back_its_write() {
    let s = Setup::new();
    let mr = s.register(10, 100, ALL);
    s.write(&mr, mr.addr() + 95, b"hello").unwrap();
    assert_eq!(s.read(&mr, mr.addr() + 94, 6).unwrap(), b"\0hello");
}

// clause: CHECK-KEY, CHECK-KEY-OVERFLOW
#[test]
fn access_beyond_region_is_refused() {
    let s = Setup::new();
    let mr = s.register(16, 100, ALL);
    let (first, end) = (mr.addr(), mr.addr() + 100);
    for (va, len) in [(first - 1, 1), (end, 1), (end - 3, 4), (first, 101), (u64::MAX, 2), (0, 1), (first - 1, 102)] {
        assert_eq!(s.read(&mr, va, len), Err(MemError::Range), "{va:#x} {len}");
        assert_eq!(s.write(&mr, va, &vec![0; len]), Err(MemError::Range), "{va:#x} {len}");
    }
    assert!(s.read(&mr, first, 100).is_ok());
    let check = |va, len| s.table().hold().check_remote(s.pd.id(), mr.rkey(), va, len, Access::REMOTE_READ);
    assert_eq!(check(first, u64::MAX), Err(MemError::Range));
    assert_eq!(check(u64::MAX, u64::MAX), Err(MemError::Range));
    assert_eq!(check(end, 0), Ok(()));
}

// clause: CHECK-KEY-EMPTY
#[test]
fn zero_length_access_needs_no_key() {
    let s = Setup::new();
    let pd = s.pd.id();
    assert_eq!(s.table().hold().check_remote(pd, RKey(1), 0, 0, Access::REMOTE_WRITE), Ok(()));
    assert_eq!(s.table().hold().read_remote(pd, RKey(1), 0, own_cells(&mut [])), Ok(()));
    assert_eq!(s.table().hold().write_remote(pd, RKey(1), 0, &[]), Ok(()));
    assert_eq!(s.table().hold().gather(pd, &[], 0, own_cells(&mut [])), Ok(()));
}

// clause: CHECK-KEY, KEY-SCATTER
#[test]
fn operation_needs_its_access_right() {
    let s = Setup::new();
    let op = AtomicOp::FetchAdd { add: 1 };
    for access in [Access::LOCAL_WRITE, Access::REMOTE_READ, ALL - Access::REMOTE_READ, ALL - Access::REMOTE_ATOMIC] {
        let mr = s.register(0, 64, access);
        let result = |right| if access.contains(right) { Ok(()) } else { Err(MemError::Access) };
        assert_eq!(s.read(&mr, mr.addr(), 8).map(drop), result(Access::REMOTE_READ));
        assert_eq!(s.write(&mr, mr.addr(), &[0; 8]), result(Access::REMOTE_WRITE));
        let (at, list) = (mr.addr(), [sge(&mr, 0, 8)]);
        let atomic = s.table().hold().atomic_remote(s.pd.id(), mr.rkey(), at, op).map(drop);
        assert_eq!(atomic, result(Access::REMOTE_ATOMIC));
        assert_eq!(s.table().hold().scatter(s.pd.id(), &list, 0, &[0; 8]), result(Access::LOCAL_WRITE));
        assert_eq!(s.table().hold().gather(s.pd.id(), &list, 0, own_cells(&mut [0; 8])), Ok(()));
    }
}

// clause: CHECK-KEY, KEY-32BITS
#[test]
fn key_is_valid_in_one_domain_until_deregistration() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL);
    let other = s.pd.context().alloc_pd().unwrap();
    let at = mr.addr();
    let read = |pd: &Pd, key| s.table().hold().read_remote(pd.id(), key, at, own_cells(&mut [0; 4]));
    assert_eq!(read(&s.pd, mr.rkey()), Ok(()));
    assert_eq!(read(&other, mr.rkey()), Err(MemError::WrongDomain));
    assert_eq!(read(&s.pd, RKey(mr.rkey().0 ^ 0x80)), Err(MemError::BadKey));
    assert_eq!(s.pd.dealloc().unwrap_err().errno(), libc::EBUSY);
    mr.deregister().unwrap();
    mr.deregister().unwrap();
    assert_eq!(read(&s.pd, mr.rkey()), Err(MemError::BadKey));
    assert!(s.pd.dealloc().is_ok());
}

// clause: KEY-REREGISTERED
#[test]
fn reregistered_region_keeps_keys_and_unchanged_terms() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL);
    let (key, first, second) = (mr.rkey(), s.pages.addr(), s.pages.addr() + PAGE_SIZE);
    let other = s.pd.context().alloc_pd().unwrap();
    let read = |pd: &Pd, va| s.table().hold().read_remote(pd.id(), key, va, own_cells(&mut [0; 8]));
    let change = |change| mr.change(change).unwrap();
    change(MrChange { pd: Some(Arc::clone(&other)), ..MrChange::default() });
    assert_eq!((read(&s.pd, first), read(&other, first)), (Err(MemError::WrongDomain), Ok(())));
    assert!(s.pd.dealloc().is_ok() && other.dealloc().is_err());
    change(MrChange { range: Some((second, 8)), ..MrChange::default() });
    assert_eq!((read(&other, first), read(&other, second)), (Err(MemError::Range), Ok(())));
    assert_eq!((mr.addr(), mr.length(), mr.rkey()), (second, 8, key));
    change(MrChange { access: Some(Access::LOCAL_WRITE), ..MrChange::default() });
    assert_eq!(read(&other, second), Err(MemError::Access));
    let all = MrChange { pd: Some(Arc::clone(&s.pd)), range: Some((first, 16)), access: Some(ALL) };
    change(all);
    assert_eq!(read(&s.pd, first + 8), Ok(()));
    assert!(other.dealloc().is_ok());
}

// clause: KEY-REREGISTERED
#[test]
fn failed_reregistration_leaves_region_unchanged() {
    let s = Setup::new();
    s.pages.unmap(3, 1);
    let mr = s.register(0, 64, ALL);
    let errno = |change| mr.change(change).err().map_or(0, |error| error.errno());
    let (gone, other_context) = (s.pages.addr() + 3 * PAGE_SIZE, testing::pd());
    assert_eq!(errno(MrChange { range: Some((gone, 8)), ..MrChange::default() }), libc::EFAULT);
    assert_eq!(errno(MrChange { range: Some((8, u64::MAX)), ..MrChange::default() }), libc::EINVAL);
    assert_eq!(errno(MrChange { access: Some(Access::REMOTE_WRITE), ..MrChange::default() }), libc::EINVAL);
    assert_eq!(errno(MrChange { pd: Some(other_context), ..MrChange::default() }), libc::EINVAL);
    assert!(s.read(&mr, mr.addr(), 64).is_ok() && s.write(&mr, mr.addr(), &[0; 64]).is_ok());
    mr.deregister().unwrap();
    assert_eq!(errno(MrChange { access: Some(ALL), ..MrChange::default() }), libc::EINVAL);
}

// clause: INVALIDATE-REFUSED
#[test]
fn invalidate_of_region_is_refused() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL);
    let other = s.pd.context().alloc_pd().unwrap();
    assert_eq!(s.table().invalidate(s.pd.id().into(), mr.rkey()), Err(MemError::Access));
    assert_eq!(s.table().invalidate(other.id().into(), mr.rkey()), Err(MemError::WrongDomain));
    assert_eq!(s.table().invalidate(s.pd.id().into(), RKey(77)), Err(MemError::BadKey));
    assert!(s.read(&mr, mr.addr(), 1).is_ok());
}

#[test]
fn gather_and_scatter_start_at_any_offset() {
    let s = Setup::new();
    let mr = s.register(0, 4 * PAGE_SIZE, ALL);
    let list = [sge(&mr, 0, 5), sge(&mr, 100, 0), sge(&mr, 200, 7), sge(&mr, PAGE_SIZE - 4, 100)];
    let data: Vec<u8> = (1..=112).collect();
    s.table().hold().scatter(s.pd.id(), &list, 0, &data).unwrap();
    assert_eq!(s.read(&mr, mr.addr() + 200, 7).unwrap(), data[5..12]);
    for offset in 0..=112 {
        for len in [0, 1, 6, 112 - offset] {
            let mut out = vec![0; len];
            let result = s.table().hold().gather(s.pd.id(), &list, offset as u32, own_cells(&mut out));
            match data.get(offset..offset + len) {
                Some(expected) => assert_eq!((result, &out[..]), (Ok(()), expected), "{offset} {len}"),
                None => assert_eq!(result, Err(MemError::Range), "{offset} {len}"),
            }
        }
    }
    let mut out = [0; 113];
    assert_eq!(s.table().hold().gather(s.pd.id(), &list, 0, own_cells(&mut out)), Err(MemError::Range));
    assert_eq!(s.table().hold().gather(s.pd.id(), &list, u32::MAX, own_cells(&mut out[..1])), Err(MemError::Range));
}

#[test]
fn unused_list_elements_are_not_checked() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL);
    let list = [sge(&mr, 0, 8), Sge { addr: 0, length: 64, lkey: LKey(3) }];
    assert_eq!(s.table().hold().gather(s.pd.id(), &list, 0, own_cells(&mut [0; 8])), Ok(()));
    assert_eq!(s.table().hold().gather(s.pd.id(), &list, 0, own_cells(&mut [0; 9])), Err(MemError::BadKey));
    let wraps = Sge { addr: u64::MAX - 1, length: 64, lkey: mr.lkey() };
    assert_eq!(s.table().hold().gather(s.pd.id(), &[wraps], 8, own_cells(&mut [0; 8])), Err(MemError::Range));
}

#[test]
fn region_is_addressed_by_iova() {
    let s = Setup::new();
    let addr = s.pages.addr() + 8;
    let mr = s.pd.register(addr, 32, 0x1000, ALL).unwrap();
    s.write(&mr, 0x1010, b"x").unwrap();
    assert_eq!(testing::load(s.pages.addr() + 24) as u8, b'x');
    assert_eq!(s.write(&mr, addr, b"x"), Err(MemError::Range));
    let zero = s.pd.register(addr, 32, addr, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(s.read(&zero, 16, 1).unwrap(), b"x");
}

#[test]
fn atomics_change_memory_and_need_alignment() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL);
    let atomic = |mr: &Mr, va, op| s.table().hold().atomic_remote(s.pd.id(), mr.rkey(), va, op);
    assert_eq!(atomic(&mr, mr.addr() + 8, AtomicOp::FetchAdd { add: 7 }), Ok(0));
    assert_eq!(testing::load(mr.addr() + 8), 7);
    assert_eq!(atomic(&mr, mr.addr() + 8, AtomicOp::CompareSwap { compare: 7, swap: 1 }), Ok(7));
    assert_eq!(atomic(&mr, mr.addr() + 64, AtomicOp::FetchAdd { add: 1 }), Err(MemError::Range));
    let odd = s.pd.register(s.pages.addr() + 1, 32, 0x1000, ALL).unwrap();
    assert_eq!(atomic(&odd, 0x1000, AtomicOp::FetchAdd { add: 1 }), Err(MemError::Range));
}

// clause: ATOMIC-WRITE-WHOLE
#[test]
fn atomic_write_needs_remote_write_and_alignment() {
    let s = Setup::new();
    let mr = s.register(0, 64, ALL - Access::REMOTE_ATOMIC);
    let store = |mr: &Mr, va| s.table().hold().store_remote(s.pd.id(), mr.rkey(), va, *b"8 bytes.");
    assert_eq!(store(&mr, mr.addr() + 8), Ok(()));
    assert_eq!(s.read(&mr, mr.addr() + 8, 8).unwrap(), b"8 bytes.");
    assert_eq!(store(&mr, mr.addr() + 64), Err(MemError::Range));
    assert_eq!(store(&s.register(0, 64, ALL - Access::REMOTE_WRITE), mr.addr()), Err(MemError::Access));
    let odd = s.pd.register(s.pages.addr() + 1, 32, 0x1000, ALL).unwrap();
    assert_eq!(store(&odd, 0x1000), Err(MemError::Range));
    s.pages.unmap(0, 1);
    assert_eq!(store(&mr, mr.addr()), Err(MemError::Fault));
}

// clause: FLUSH-RIGHTS, FLUSH-RANGE, FLUSH-PERSISTENT
#[test]
fn flush_needs_right_and_range_even_for_zero_bytes() {
    let s = Setup::new();
    let (yes, no) = (s.register(0, 64, Access::FLUSH_GLOBAL), s.register(0, 64, ALL));
    let flush = |mr: &Mr, range, access| s.table().hold().flush_remote(s.pd.id(), mr.rkey(), range, access);
    let (global, persistent) = (Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT);
    for range in [None, Some((yes.addr(), 64)), Some((yes.addr() + 64, 0))] {
        assert_eq!(flush(&yes, range, global), Ok(()));
        assert_eq!(flush(&no, range, global), Err(MemError::Access));
        assert_eq!(flush(&yes, range, global | persistent), Err(MemError::Access), "no region has that right");
    }
    assert_eq!(flush(&yes, Some((yes.addr(), 65)), global), Err(MemError::Range));
    assert_eq!(flush(&yes, Some((0, 0)), global), Err(MemError::Range));
    yes.deregister().unwrap();
    assert_eq!(flush(&yes, None, global), Err(MemError::BadKey));
}

// clause: KEY-LOCAL-WRITE, FLUSH-PERSISTENT
#[test]
fn registration_with_invalid_range_or_rights_is_refused() {
    let s = Setup::new();
    s.pages.protect(1, libc::PROT_READ);
    s.pages.unmap(3, 1);
    let at = |page: u64| s.pages.addr() + page * PAGE_SIZE;
    let errno = |addr, length, access| s.pd.register(addr, length, addr, access).err().map_or(0, |e| e.errno());
    assert_eq!(errno(at(0), 8, Access::REMOTE_WRITE), libc::EINVAL);
    assert_eq!(errno(at(0), 8, Access::REMOTE_ATOMIC), libc::EINVAL);
    assert_eq!(errno(at(0), 8, ALL | Access::FLUSH_PERSISTENT), libc::EOPNOTSUPP);
    assert_eq!(errno(at(1), 8, Access::LOCAL_WRITE), libc::EFAULT);
    assert_eq!(errno(at(1), 8, Access::REMOTE_READ), 0);
    assert_eq!(errno(at(2), PAGE_SIZE + 1, Access::LOCAL_WRITE), libc::EFAULT);
    assert_eq!(errno(at(2), u64::MAX, Access::LOCAL_WRITE), libc::EINVAL);
    assert_eq!(errno(at(3), 0, Access::LOCAL_WRITE), 0);
    let iova_wraps = s.pd.register(at(0), 8, u64::MAX - 7, Access::LOCAL_WRITE);
    assert_eq!(iova_wraps.unwrap_err().errno(), libc::EINVAL);
    assert_eq!(s.table().hold().count(), 0);
}

#[test]
fn on_demand_region_is_not_touched_at_registration() {
    let s = Setup::new();
    s.pages.unmap(2, 2);
    let mr = s.register(PAGE_SIZE, 3 * PAGE_SIZE, ALL | Access::ON_DEMAND);
    assert!(!s.pages.is_resident(1));
    assert!(s.read(&mr, mr.addr(), 8).is_ok());
    assert_eq!(s.read(&mr, mr.addr() + PAGE_SIZE, 8), Err(MemError::Fault));
}

#[test]
fn access_to_unmapped_memory_faults() {
    let s = Setup::new();
    let mr = s.register(0, 4 * PAGE_SIZE, ALL);
    s.pages.unmap(1, 1);
    assert_eq!(s.write(&mr, mr.addr(), &[1; 8192]), Err(MemError::Fault));
    assert_eq!(s.read(&mr, mr.addr() + PAGE_SIZE, 1), Err(MemError::Fault));
    let op = AtomicOp::FetchAdd { add: 1 };
    let at = mr.addr() + PAGE_SIZE;
    assert_eq!(s.table().hold().atomic_remote(s.pd.id(), mr.rkey(), at, op), Err(MemError::Fault));
    assert!(s.read(&mr, mr.addr() + 2 * PAGE_SIZE, 8192).is_ok());
}

// clause: CHECK-KEY-AGAIN, KEY-DEAD
#[test]
fn deregistered_region_is_not_written() {
    let s = Setup::new();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            let mr = s.register(0, PAGE_SIZE, ALL);
            let (table, pd, key, va) = (s.table(), s.pd.id(), mr.rkey(), mr.addr());
            let writer = scope.spawn(move || while table.hold().write_remote(pd, key, va, &[7; 4096]).is_ok() {});
            mr.deregister().unwrap();
            s.pages.clear(0);
            assert_eq!(testing::load(va + PAGE_SIZE - 8), 0);
            writer.join().unwrap();
            assert_eq!(testing::load(va + PAGE_SIZE - 8), 0);
        }
    });
}

#[test]
fn hundred_thousand_regions_work_and_are_freed() {
    let s = Setup::new();
    let regions: Vec<_> = (0..100_000u64).map(|i| s.register(i % PAGE_SIZE, 8, ALL)).collect();
    assert_eq!(s.table().hold().count(), regions.len());
    for (i, mr) in regions.iter().enumerate().step_by(997) {
        s.write(mr, mr.addr(), &i.to_ne_bytes()).unwrap();
    }
    drop(regions);
    assert_eq!(s.table().hold().count(), 0);
}

/// Dma-bufs.
mod dmabuf {
    use super::super::*;
    use crate::testing::{self, PAGE_SIZE, Pages};
    use roxe_transport::cx::MemError;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

    fn errno<T>(result: Result<T, Error>) -> i32 {
        result.map_or_else(|error| error.errno(), |_| 0)
    }

    // clause: KEY-DMABUF
    #[test]
    fn dmabuf_write_reaches_file() {
        let (pages, pd) = (Pages::of_file(3), testing::pd());
        let part = DmaBuf { fd: pages.fd(), offset: PAGE_SIZE + 8, length: PAGE_SIZE };
        let iova = (1 << 40) + 8;
        let mr = pd.reg_dmabuf_mr(part, iova, ALL).unwrap();
        let table = pd.context().memory();
        table.hold().write_remote(pd.id(), mr.rkey(), iova + 16, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(testing::load(pages.addr() + PAGE_SIZE + 24), 7);
        let beyond = table.hold().write_remote(pd.id(), mr.rkey(), iova + PAGE_SIZE - 4, &[0; 8]);
        assert_eq!(beyond, Err(MemError::Range));
        assert_eq!((mr.addr(), mr.length()), (PAGE_SIZE + 8, PAGE_SIZE));
        pages.truncate_file();
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), iova, &[1]), Err(MemError::Fault));
        let change = MrChange { access: Some(Access::empty()), ..MrChange::default() };
        assert_eq!(errno(mr.change(change)), libc::EOPNOTSUPP);
        mr.deregister().unwrap();
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), iova, &[1]), Err(MemError::BadKey));
        assert!(pd.dealloc().is_ok());
    }

    // clause: KEY-DMABUF
    #[test]
    fn invalid_dmabuf_parts_are_refused() {
        let (pages, pd) = (Pages::of_file(2), testing::pd());
        let (socket, _peer) = UnixStream::pair().unwrap();
        let unreadable = std::fs::OpenOptions::new().write(true).open("/dev/zero").unwrap();
        let good = DmaBuf { fd: pages.fd(), offset: 0, length: 2 * PAGE_SIZE };
        for (part, iova, access, expected) in [
            (good, 0, ALL, 0),
            (good, 0, ALL | Access::REMOTE_ATOMIC | Access::RELAXED_ORDERING, 0),
            (good, 8, ALL, libc::EINVAL),
            (good, 0, ALL | Access::ON_DEMAND, libc::EINVAL),
            (good, 0, ALL | Access::ZERO_BASED, libc::EINVAL),
            (good, 0, Access::REMOTE_WRITE, libc::EINVAL),
            (good, !(PAGE_SIZE - 1), ALL, libc::EINVAL),
            (DmaBuf { length: 0, ..good }, 0, ALL, libc::EINVAL),
            (DmaBuf { offset: PAGE_SIZE, ..good }, 0, ALL, libc::EINVAL),
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

/// Null regions.
mod null {
    use super::super::*;
    use crate::testing;
    use roxe_memory::guard::own_cells;
    use roxe_memory::region::{AccessScope, MwKind};
    use roxe_transport::cx::{AtomicOp, MemError};
    use roxe_transport::wr::Bind;

    /// Returns a list of `length` bytes at `addr` of the region.
    fn part(mr: &Mr, addr: u64, length: u32) -> [Sge; 1] {
        [Sge { addr, length, lkey: mr.lkey() }]
    }

    // clause: KEY-NULL
    #[test]
    fn null_region_reads_zeros_and_discards_writes() {
        let pd = testing::pd();
        let (mr, table) = (pd.alloc_null_mr().unwrap(), pd.context().memory());
        for addr in [0, 4096, 1 << 47, u64::MAX - 8] {
            let mut out = [7; 8];
            assert_eq!(table.hold().scatter(pd.id(), &part(&mr, addr, 8), 0, &[1; 8]), Ok(()));
            assert_eq!(
                (table.hold().gather(pd.id(), &part(&mr, addr, 8), 0, own_cells(&mut out)), out),
                (Ok(()), [0; 8])
            );
        }
        let other_domain = pd.context().alloc_pd().unwrap();
        let list = part(&mr, 0, 8);
        assert_eq!(
            table.hold().gather(other_domain.id(), &list, 0, own_cells(&mut [0; 8])),
            Err(MemError::WrongDomain)
        );
        assert_eq!(table.hold().scatter(other_domain.id(), &list, 0, &[0; 8]), Err(MemError::WrongDomain));
        mr.deregister().unwrap();
        assert_eq!(table.hold().gather(pd.id(), &list, 0, own_cells(&mut [0; 8])), Err(MemError::BadKey));
        assert!(pd.dealloc().is_ok());
    }

    // clause: KEY-NULL
    #[test]
    fn null_region_refuses_peers_windows_and_reregistration() {
        let pd = testing::pd();
        let (mr, table) = (pd.alloc_null_mr().unwrap(), pd.context().memory());
        let refused = Err(MemError::WrongDomain);
        assert_eq!(table.hold().read_remote(pd.id(), mr.rkey(), 0, own_cells(&mut [0; 8])), refused);
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), 0, &[0; 8]), refused);
        assert_eq!(table.hold().atomic_remote(pd.id(), mr.rkey(), 0, AtomicOp::FetchAdd { add: 1 }).map(drop), refused);
        let mw = pd.alloc_mw(MwKind::One).unwrap();
        let bind = Bind { rkey: mw.rkey(), lkey: mr.lkey(), access: Access::REMOTE_READ, addr: 0, length: 8 };
        assert_eq!(table.bind(AccessScope::from(pd.id()), &bind), refused);
        let change = MrChange { access: Some(Access::empty()), ..MrChange::default() };
        assert_eq!(mr.change(change).unwrap_err().errno(), libc::EINVAL);
    }
}

mod advise {
    use super::super::*;
    use crate::testing::{self, PAGE_SIZE, Pages};
    use roxe_memory::guard::own_cells;
    use roxe_transport::cx::MemError;
    use roxe_wire::LKey;

    const ON_DEMAND: Access = Access::ON_DEMAND.union(Access::LOCAL_WRITE);

    fn errno(result: Result<(), Error>) -> i32 {
        result.map_or_else(|e| e.errno(), |()| 0)
    }

    fn sge(mr: &Mr, addr: u64, length: u64) -> Sge {
        Sge { addr, length: length as u32, lkey: mr.lkey() }
    }

    // clause: KEY-ON-DEMAND
    #[test]
    fn prefetch_makes_pages_present() {
        let (pages, pd) = (Pages::new(4), testing::pd());
        let mr = pd.register(pages.addr(), 4 * PAGE_SIZE, pages.addr(), ON_DEMAND).unwrap();
        let page = |i| sge(&mr, pages.addr() + i * PAGE_SIZE, PAGE_SIZE);
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
    fn prefetch_beyond_region_is_refused() {
        let (pages, pd) = (Pages::new(4), testing::pd());
        let mr = pd.register(pages.addr(), 3 * PAGE_SIZE, pages.addr(), ON_DEMAND).unwrap();
        let fixed = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::empty()).unwrap();
        let other = pd.context().alloc_pd().unwrap();
        pages.unmap(2, 1);
        let at = |i: u64| pages.addr() + i * PAGE_SIZE;
        for (advice, list, expected) in [
            (Advice::Prefetch, [sge(&mr, at(0), 2 * PAGE_SIZE)], 0),
            (Advice::Prefetch, [sge(&mr, at(2), 1)], libc::EFAULT),
            (Advice::PrefetchNoFault, [sge(&mr, at(2), 1)], 0),
            (Advice::PrefetchNoFault, [sge(&mr, at(2), PAGE_SIZE + 1)], libc::EFAULT),
            (Advice::PrefetchNoFault, [Sge { lkey: LKey(7), ..sge(&mr, at(0), 1) }], libc::EFAULT),
            (Advice::Prefetch, [sge(&fixed, at(0), PAGE_SIZE)], 0),
            (Advice::PrefetchWrite, [sge(&fixed, at(0), PAGE_SIZE)], libc::EFAULT),
        ] {
            assert_eq!(errno(pd.advise_mr(advice, &list)), expected, "{advice:?} {list:?}");
        }
        assert_eq!(errno(other.advise_mr(Advice::Prefetch, &[sge(&mr, at(0), 1)])), libc::EFAULT);
    }

    // clause: KEY-ON-DEMAND
    #[test]
    fn implicit_on_demand_region_covers_address_space() {
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
