//! `ibv_alloc_buf` and `ibv_reg_mr_ex`.

use super::*;
use crate::domain::ibv_dealloc_pd;
use crate::memory::{ibv_alloc_buf, ibv_export_buf_dmabuf_fd, ibv_free_buf, ibv_reg_buf_mr, ibv_reg_mr_ex};
use std::os::fd::FromRawFd;

/// `IBV_REG_MR_MASK_*`.
const IOVA: u64 = 1;
const ADDR: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const DMAH: u64 = 1 << 4;
const BUF: u64 = 1 << 5;

fn alloc(pd: *mut ibv_pd, size: usize) -> (*mut c_void, *mut ibv_buf) {
    let mut buf = null_mut();
    // SAFETY: the caller keeps the domain alive; `buf` is a local variable.
    let addr = unsafe { ibv_alloc_buf(pd, size, &raw mut buf) };
    (addr, buf)
}

/// Registers memory; the error is errno.
fn reg(pd: *mut ibv_pd, mut attr: ibv_mr_init_attr) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the rig keeps the domain alive; the structure is a local variable.
    let mr = unsafe { ibv_reg_mr_ex(pd, &raw mut attr) };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

/// WRITEs the first word of the rig's memory to `addr` of a region, and deregisters it.
fn write_to(rig: &Rig, qp: *mut ibv_qp, mr: *mut ibv_mr, addr: u64) -> u32 {
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(1, WRITE, &sges);
    // SAFETY: the caller registered the region; it is deregistered below.
    let rkey = unsafe { (*mr).rkey };
    wr.wr = wr_union { rdma: wr_rdma { remote_addr: addr, rkey } };
    assert_eq!(rig.post_send(qp, &mut wr).0, 0);
    let status = rig.completions(1)[0].status;
    // SAFETY: the caller registered the region and does not use it after this call.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    status
}

#[test]
fn buffer_registered_by_either_call_accepts_writes() {
    let mut rig = Rig::new();
    let [qp, peer] = rig.rc_pair();
    rig.set(0, 0x0123_4567_89ab_cdef);
    let (addr, buf) = alloc(rig.pd, 8192);
    assert!(addr.addr().is_multiple_of(4096));
    let within = addr.wrapping_byte_add(4096);
    // SAFETY: the rig keeps the domain alive; `buf` was allocated from it.
    let by_buf = unsafe { ibv_reg_buf_mr(rig.pd, buf, within, 64, ALL_ACCESS) };
    let attr = ibv_mr_init_attr {
        length: 64,
        access: ALL_ACCESS,
        comp_mask: ADDR | BUF,
        addr: within,
        buf,
        ..Default::default()
    };
    for mr in [by_buf, reg(rig.pd, attr).unwrap()] {
        assert_eq!(write_to(&rig, qp, mr, within.addr() as u64), 0);
        // SAFETY: the word lies in the buffer, and the completed WRITE was the last to touch it.
        assert_eq!(unsafe { within.cast::<u64>().replace(0) }, 0x0123_4567_89ab_cdef);
    }
    // SAFETY: this test allocated the buffer and does not use it afterwards.
    unsafe { ibv_free_buf(buf) };
    destroy(&[qp, peer]);
}

#[test]
fn buffer_registration_checks_domain_and_range() {
    let rig = Rig::new();
    // SAFETY: the rig keeps the context alive.
    let other = unsafe { ibv_alloc_pd(rig.context) };
    let (addr, buf) = alloc(other, 4096);
    // SAFETY: this test keeps the handles alive until it frees them; each call checks its arguments
    // first.
    unsafe {
        for (pd, addr, length) in [(rig.pd, addr, 64), (other, addr.wrapping_byte_add(1), 4096), (other, null_mut(), 1)]
        {
            assert_eq!((ibv_reg_buf_mr(pd, buf, addr, length, 0), errno()), (null_mut(), libc::EINVAL));
        }
        assert_eq!((ibv_export_buf_dmabuf_fd(buf), errno()), (-1, libc::ENODATA));
        assert_eq!(ibv_dealloc_pd(other), libc::EBUSY);
        ibv_free_buf(buf);
        ibv_free_buf(buf);
        assert_eq!(ibv_dealloc_pd(other), 0);
        assert_eq!(alloc(rig.pd, 0).0, null_mut());
        assert_eq!(ibv_alloc_buf(rig.pd, 1, null_mut()), null_mut());
    }
}

#[test]
fn reg_mr_ex_mask_selects_memory_and_iova() {
    let mut rig = Rig::new();
    let [qp, peer] = rig.rc_pair();
    rig.set(0, 5);
    let memory: *mut c_void = rig.memory.as_mut_ptr().wrapping_add(512).cast();
    let attr =
        ibv_mr_init_attr { length: 64, access: ALL_ACCESS, addr: memory, iova: 0x1000, fd: -1, ..Default::default() };
    let plain = reg(rig.pd, ibv_mr_init_attr { comp_mask: ADDR, ..attr }).unwrap();
    assert_eq!(write_to(&rig, qp, plain, memory.addr() as u64), 0);
    let named = reg(rig.pd, ibv_mr_init_attr { comp_mask: ADDR | IOVA, ..attr }).unwrap();
    assert_eq!(write_to(&rig, qp, named, 0x1000), 0);
    assert_eq!(rig.word(512), 5);
    // SAFETY: nothing else owns the new descriptor.
    let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"roxe".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(8192).unwrap();
    let file_attr = ibv_mr_init_attr { fd: std::os::fd::AsRawFd::as_raw_fd(&file), fd_offset: 4096, ..attr };
    let shared = reg(rig.pd, ibv_mr_init_attr { comp_mask: FD | FD_OFFSET | IOVA, ..file_attr }).unwrap();
    assert_eq!(write_to(&rig, qp, shared, 0x1000), 0);
    let mut word = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, 4096).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 5);
    destroy(&[qp, peer]);
}

#[test]
fn contradictory_reg_mr_ex_masks_are_refused() {
    let rig = Rig::new();
    let memory: *mut c_void = rig.memory.as_ptr().cast_mut().cast();
    let attr = ibv_mr_init_attr { length: 64, access: ALL_ACCESS, addr: memory, ..Default::default() };
    for comp_mask in [0, IOVA, ADDR | FD, ADDR | FD_OFFSET, FD | BUF, ADDR | BUF, ADDR | 1 << 6] {
        assert_eq!(reg(rig.pd, ibv_mr_init_attr { comp_mask, ..attr }), Err(libc::EINVAL), "{comp_mask:#x}");
    }
    assert_eq!(reg(rig.pd, ibv_mr_init_attr { comp_mask: ADDR | DMAH, ..attr }), Err(libc::EOPNOTSUPP));
    // SAFETY: the rig keeps the domain alive; the call checks for NULL.
    assert_eq!((unsafe { ibv_reg_mr_ex(rig.pd, null_mut()) }, errno()), (null_mut(), libc::EINVAL));
}
