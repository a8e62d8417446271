//! Registration of regions: iova, hints, DMA-bufs, null regions.

use super::*;
use crate::memory::{alloc_null_mr, ibv_reg_dmabuf_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// `IBV_ACCESS_ZERO_BASED`, `_ON_DEMAND`, `_HUGETLB`, `_RELAXED_ORDERING`.
const ZERO_BASED: c_int = 1 << 5;
const ON_DEMAND: c_int = 1 << 6;
const HUGETLB: c_int = 1 << 7;
const RELAXED_ORDERING: c_int = 1 << 20;
/// An unknown bit of the access flags that devices may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const UNKNOWN_HINT: c_int = 1 << 29;
const PAGE: u64 = 4096;

/// Returns both keys of a region.
fn keys(mr: *mut ibv_mr) -> (u32, u32) {
    // SAFETY: this test deregisters the region later.
    unsafe { ((*mr).lkey, (*mr).rkey) }
}

fn dereg(mr: *mut ibv_mr) {
    // SAFETY: the caller registered the region and does not use it after this call.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
}

/// Returns the status of a WRITE of `sge` to `remote_addr`.
fn write(rig: &Rig, qp: *mut ibv_qp, sge: ibv_sge, remote_addr: u64, rkey: u32) -> u32 {
    let sges = [sge];
    let mut wr = send_wr(1, WRITE, &sges);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr, rkey } };
    assert_eq!(rig.post_send(qp, &mut wr).0, 0);
    rig.completions(1)[0].status
}

// clause: KEY-ZERO-BASED
#[test]
fn region_has_zero_based_or_any_iova() {
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let memory: *mut c_void = rig.memory.as_mut_ptr().wrapping_add(512).cast();
    let (pd, far) = (rig.pd, 0xffff_0000_0000_0000);
    // SAFETY: the rig keeps the domain and the memory alive.
    let regions = unsafe {
        [
            (ibv_reg_mr(pd, memory, 64, ALL_ACCESS | ZERO_BASED), 0),
            (ibv_reg_mr_iova(pd, memory, 64, 0, ALL_ACCESS), 0),
            (ibv_reg_mr_iova(pd, memory, 64, far, ALL_ACCESS | ZERO_BASED), 0),
            (ibv_reg_mr_iova(pd, memory, 64, far, ALL_ACCESS), far),
            (ibv_reg_mr_iova2(pd, memory, 64, 3, (ALL_ACCESS | RELAXED_ORDERING | UNKNOWN_HINT).cast_unsigned()), 3),
            (ibv_reg_mr_iova2(pd, memory, 64, far, (ALL_ACCESS | ON_DEMAND | HUGETLB).cast_unsigned()), far),
        ]
    };
    for (mark, (mr, base)) in (1..).zip(regions) {
        let (lkey, rkey) = keys(mr);
        // SAFETY: this test deregisters the region later.
        assert_eq!(unsafe { ((*mr).addr, (*mr).length) }, (memory, 64), "the registered memory, whatever the iova");
        rig.set(0, mark);
        assert_eq!(write(&rig, a, rig.sge(0, 1), base + 56, rkey), 0);
        assert_eq!(rig.word(519), mark);
        rig.set(513, mark + 100);
        let own = ibv_sge { addr: base + 8, length: 8, lkey };
        assert_eq!(write(&rig, a, own, rig.addr(1), rig.rkey()), 0);
        assert_eq!(rig.word(1), mark + 100);
        dereg(mr);
    }
    destroy(&[a, b]);
}

#[test]
fn invalid_iovas_and_rights_are_refused() {
    let mut rig = Rig::new();
    let memory: *mut c_void = rig.memory.as_mut_ptr().cast();
    // SAFETY: the rig keeps the domain alive; the call checks everything else.
    let reg = |length, iova, access: c_int| unsafe {
        let mr = ibv_reg_mr_iova2(rig.pd, memory, length, iova, access.cast_unsigned());
        assert!(mr.is_null());
        errno()
    };
    assert_eq!(reg(64, u64::MAX - 62, 1), libc::EINVAL, "the iova wraps");
    assert_eq!(reg(usize::MAX, 0, 1), libc::EINVAL, "longer than any memory");
    assert_eq!(reg(64, 0, 1 << 10), libc::EINVAL, "an undefined right");
    assert_eq!(reg(64, 0, ZERO_BASED | 2), libc::EINVAL, "remote without local");
}

/// Returns a file in memory of `pages` pages.
fn file(pages: u64) -> File {
    // SAFETY: the name is a C string; nothing else owns the new descriptor.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"roxe-test".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(pages * PAGE).unwrap();
    file
}

fn dmabuf(rig: &Rig, (offset, length): (u64, u64), iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr {
    // SAFETY: the rig keeps the domain alive; the call checks everything else.
    unsafe { ibv_reg_dmabuf_mr(rig.pd, offset, length as usize, iova, fd, access) }
}

// clause: KEY-DMABUF
#[test]
fn peer_writes_into_an_unmapped_dmabuf() {
    let mut rig = Rig::new();
    let ([a, b], file) = (rig.rc_pair(), file(3));
    let part = (PAGE + 24, 2 * PAGE - 24);
    let mr = dmabuf(&rig, part, 24, file.as_raw_fd(), ALL_ACCESS);
    // SAFETY: this test deregisters the region later.
    assert_eq!(unsafe { ((*mr).addr.addr() as u64, (*mr).length as u64) }, part);
    rig.set(0, 0x1122);
    assert_eq!(write(&rig, a, rig.sge(0, 1), 24, keys(mr).1), 0);
    let mut word = [0; 8];
    file.read_exact_at(&mut word, PAGE + 24).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 0x1122);
    file.write_all_at(&7u64.to_ne_bytes(), 3 * PAGE - 8).unwrap();
    let own = ibv_sge { addr: 2 * PAGE - 8, length: 8, lkey: keys(mr).0 };
    assert_eq!(write(&rig, a, own, rig.addr(1), rig.rkey()), 0);
    assert_eq!(rig.word(1), 7);
    // SAFETY: the test deregisters the region later; the call checks everything else.
    let code = unsafe { ibv_rereg_mr(mr, REREG_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE) };
    assert_eq!((code, errno()), (-1, libc::EOPNOTSUPP));
    dereg(mr);
    destroy(&[a, b]);
}

#[test]
fn invalid_dmabuf_ranges_are_refused() {
    let (rig, file) = (Rig::new(), file(2));
    let fd = file.as_raw_fd();
    for (part, iova, fd, access, expected) in [
        ((0, PAGE), 0, -1, 1, libc::EBADF),
        ((0, 2 * PAGE + 1), 0, fd, 1, libc::EINVAL),
        ((0, 0), 0, fd, 1, libc::EINVAL),
        ((8, 8), 0, fd, 1, libc::EINVAL),
        ((0, PAGE), 0, fd, 1 | ON_DEMAND, libc::EINVAL),
        ((0, PAGE), 0, fd, 2, libc::EINVAL),
    ] {
        assert!(dmabuf(&rig, part, iova, fd, access).is_null());
        assert_eq!(errno(), expected, "{part:?} at {iova} of {fd} for {access}");
    }
}

// clause: KEY-NULL
#[test]
fn null_mr_reads_zeros_and_discards_writes() {
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    // SAFETY: the rig keeps the domain alive.
    let null = unsafe { alloc_null_mr(rig.pd) };
    // SAFETY: this test deregisters the region later.
    unsafe { assert_eq!(((*null).addr, (*null).length, (*null).rkey), (null_mut(), usize::MAX, 0)) };
    let hole = ibv_sge { addr: 0x1234, length: 8, lkey: keys(null).0 };
    for (at, value) in [(0, 5), (10, 9), (11, 9), (12, 9)] {
        rig.set(at, value);
    }
    let (from, to) = ([rig.sge(0, 1), hole], [rig.sge(10, 2)]);
    assert_eq!(rig.post_recv(b, 1, &to), 0);
    assert_eq!(rig.post_send(a, &mut send_wr(2, SEND, &from)).0, 0);
    assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
    assert_eq!([10, 11, 12].map(|at| rig.word(at)), [5, 0, 9], "the null region reads as zero");
    let (from, to) = ([rig.sge(10, 2)], [hole, rig.sge(12, 1)]);
    rig.set(11, 6);
    assert_eq!(rig.post_recv(b, 3, &to), 0);
    assert_eq!(rig.post_send(a, &mut send_wr(4, SEND, &from)).0, 0);
    assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
    assert_eq!(rig.word(12), 6, "the null region discards the first word");
    // SAFETY: this test deregisters the region later.
    let code = unsafe { ibv_rereg_mr(null, REREG_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE) };
    assert_eq!((code, errno()), (-1, libc::EINVAL));
    dereg(null);
    destroy(&[a, b]);
}

/// A mapping of more huge pages than are free: an access to the last one raises SIGBUS.
struct UnreservedPages {
    addr: *mut c_void,
    length: usize,
}

impl UnreservedPages {
    /// Returns `None` if the system has no huge pages of 2 MiB, or no room for another mapping.
    fn new() -> Option<Self> {
        const HUGE_2MB: c_int = 21 << libc::MAP_HUGE_SHIFT;
        let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").ok()?;
        let length = (free.trim().parse::<usize>().ok()? + 512) << 21;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_HUGETLB | HUGE_2MB;
        // SAFETY: the kernel chooses the address of the new mapping.
        let addr = unsafe { libc::mmap(null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        (addr != libc::MAP_FAILED).then_some(Self { addr, length })
    }

    /// Returns eight bytes of the last page, which never exists.
    fn sge(&self, lkey: u32) -> ibv_sge {
        ibv_sge { addr: (self.addr.addr() + self.length - 8) as u64, length: 8, lkey }
    }
}

impl Drop for UnreservedPages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing uses it afterwards.
        unsafe { libc::munmap(self.addr, self.length) };
    }
}

#[test]
fn missing_huge_pages_fail_registration_and_use() {
    let Some(memory) = UnreservedPages::new() else {
        println!("not tested: this system cannot map huge pages of 2 MiB");
        return;
    };
    let rig = Rig::new();
    for hint in [0, HUGETLB] {
        // SAFETY: the rig keeps the domain alive, and `memory` the mapping.
        let mr = unsafe { ibv_reg_mr(rig.pd, memory.addr, memory.length, ALL_ACCESS | hint) };
        assert_eq!((mr.is_null(), errno()), (true, libc::EFAULT));
    }
    // SAFETY: the rig keeps the domain alive, and `memory` the mapping.
    let mr = unsafe { ibv_reg_mr(rig.pd, memory.addr, memory.length, ALL_ACCESS | ON_DEMAND) };
    let (lkey, rkey) = keys(mr);
    let (missing, present) = (memory.sge(lkey), [rig.sge(0, 1)]);
    let (loc_prot, rem_op) = (4, 11);

    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_send(a, &mut send_wr(1, SEND, &[missing])).0, 0);
    assert_eq!(rig.completions(1)[0].status, loc_prot, "a send from the missing page");
    destroy(&[a, b]);

    for opcode in [WRITE, READ] {
        let [a, b] = rig.rc_pair();
        assert_eq!(rig.post_send(a, &mut rdma_wr(1, opcode, &present, missing.addr, rkey)).0, 0);
        assert_eq!(rig.completions(1)[0].status, rem_op, "operation {opcode} of the peer");
        destroy(&[a, b]);
    }

    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_recv(b, 2, &[missing]), 0);
    assert_eq!(rig.post_send(a, &mut send_wr(1, SEND, &present)).0, 0);
    let mut ends: Vec<_> = rig.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(1, rem_op), (2, loc_prot)], "a receive into the missing page");
    destroy(&[a, b]);
    dereg(mr);
}

#[test]
fn refused_rereg_mr_is_err_input() {
    const ERR_INPUT: c_int = -1;
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let unmapped: *mut c_void = ptr::without_provenance_mut(0x1000);
    rig.set(0, 77);
    // REMOTE_WRITE without LOCAL_WRITE; an undefined right; missing memory.
    for (flags, addr, length, access, reason) in [
        (REREG_ACCESS, null_mut(), 0, 1 << 1, libc::EINVAL),
        (REREG_ACCESS, null_mut(), 0, 1 << 30, libc::EINVAL),
        (REREG_TRANSLATION, unmapped, 8, 0, libc::EFAULT),
    ] {
        // SAFETY: the rig keeps the region alive; the call checks the memory before it uses it.
        let answer = unsafe { ibv_rereg_mr(rig.mr, flags, null_mut(), addr, length, access) };
        assert_eq!((answer, errno()), (ERR_INPUT, reason));
        rig.set(200, 0);
        assert_eq!(write(&rig, a, rig.sge(0, 1), rig.addr(200), rig.rkey()), 0);
        assert_eq!(rig.word(200), 77);
    }
    destroy(&[a, b]);
}
