//! Device memory: allocation, copies, registration, import, invalid use.

use super::*;
use crate::context::ibv_import_device;
use crate::memory::ibv_rereg_mr;
use crate::memory::{ibv_import_dm, ibv_unimport_dm};

/// `IBV_ACCESS_ZERO_BASED`, which every region of device memory needs.
const ZERO_BASED: u32 = 1 << 5;
/// LOCAL_WRITE, every remote right, ZERO_BASED.
const DM_ACCESS: u32 = ALL_ACCESS as u32 | ZERO_BASED;

/// Returns the structure that contains the context, as the inline function `verbs_get_ctx` does.
fn extended_context(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast()
}

/// Allocates device memory as the inline function `ibv_alloc_dm` does.
fn alloc(context: *mut ibv_context, length: usize, log_align_req: u32, comp_mask: u32) -> *mut ibv_dm {
    let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    unsafe { (*extended_context(context)).alloc_dm.unwrap()(context, &raw mut attr) }
}

fn free(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the test allocated the device memory and does not use it afterwards.
    unsafe { (*extended_context((*dm).context)).free_dm.unwrap()(dm) }
}

fn register(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: u32) -> *mut ibv_mr {
    // SAFETY: the caller keeps the domain alive; the call validates the device memory.
    unsafe { (*extended_context((*pd).context)).reg_dm_mr.unwrap()(pd, dm, offset, length, access) }
}

fn write(dm: *mut ibv_dm, offset: u64, data: &[u8]) -> c_int {
    // SAFETY: the test keeps the device memory alive; the bytes are borrowed for the call.
    unsafe { (*dm).memcpy_to_dm.unwrap()(dm, offset, data.as_ptr().cast(), data.len()) }
}

fn read(dm: *mut ibv_dm, offset: u64, out: &mut [u8]) -> c_int {
    // SAFETY: the test keeps the device memory alive; the bytes are borrowed for the call.
    unsafe { (*dm).memcpy_from_dm.unwrap()(out.as_mut_ptr().cast(), dm, offset, out.len()) }
}

#[test]
fn send_and_write_between_regions_of_dm_succeed() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let dm = alloc(rig.context, 100, 3, 0);
    let mr = register(rig.pd, dm, 8, 64, DM_ACCESS);
    assert!(!dm.is_null() && !mr.is_null());
    // SAFETY: the test deregisters the region at its end.
    let (addr, length, lkey, rkey) = unsafe { ((*mr).addr, (*mr).length, (*mr).lkey, (*mr).rkey) };
    assert_eq!((addr, length), (null_mut(), 64));
    assert_eq!(write(dm, 8, b"over the wire..."), 0);
    assert_eq!(free(dm), libc::EBUSY, "a region uses the memory");
    let (from, to) = ([ibv_sge { addr: 0, length: 16, lkey }], [ibv_sge { addr: 17, length: 47, lkey }]);
    assert_eq!(rig.post_recv(b, 2, &to), 0);
    assert_eq!(rig.post_send(a, &mut send_wr(1, SEND, &from)).0, 0);
    assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
    let mut wr = send_wr(3, WRITE, &from);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr: 40, rkey } };
    assert_eq!(rig.post_send(a, &mut wr).0, 0);
    assert_eq!(rig.completions(1)[0].status, 0);
    let mut contents = [0; 100];
    assert_eq!(read(dm, 0, &mut contents), 0);
    assert_eq!(&contents[8..64], b"over the wire...\0over the wire...\0\0\0\0\0\0\0over the wire...");
    let mut wr = send_wr(4, WRITE, &from);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr: 49, rkey } };
    assert_eq!(rig.post_send(a, &mut wr).0, 0);
    assert_eq!(rig.completions(1)[0].status, REM_ACCESS_ERR, "beyond the region");
    destroy(&[a, b]);
    // SAFETY: the test created the handles; they are alive until a call here destroys them.
    unsafe {
        assert_eq!(
            ibv_rereg_mr(mr, REREG_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE),
            -1,
            "ZERO_BASED cannot be removed"
        );
        assert_eq!((ibv_dereg_mr(mr), free(dm)), (0, 0));
    }
}

#[test]
fn dm_copy_out_of_range_or_misaligned_is_refused() {
    let rig = Rig::new();
    let dm = alloc(rig.context, 100, 0, 0);
    let mut bytes = [0; 104];
    for (offset, length, expected) in
        [(0, 100, 0), (2, 4, libc::EINVAL), (0, 7, libc::EINVAL), (100, 4, libc::EFAULT), (0, 104, libc::EFAULT)]
    {
        assert_eq!(write(dm, offset, &bytes[..length]), expected, "{length} bytes to {offset}");
        assert_eq!(read(dm, offset, &mut bytes[..length]), expected, "{length} bytes from {offset}");
    }
    // SAFETY: this test keeps the device memory alive; the calls check pointers and lengths before
    // they copy.
    unsafe {
        let (to, from) = ((*dm).memcpy_to_dm.unwrap(), (*dm).memcpy_from_dm.unwrap());
        assert_eq!((to(dm, 0, ptr::null(), 4), from(null_mut(), dm, 0, 4)), (libc::EFAULT, libc::EFAULT));
        assert_eq!(to(dm, 0, foreign(), usize::MAX), libc::EFAULT);
        assert_eq!(to(null_mut(), 0, bytes.as_ptr().cast(), 4), libc::EINVAL);
        assert_eq!(from(bytes.as_mut_ptr().cast(), null_mut(), 0, 4), libc::EINVAL);
    }
    assert_eq!(free(dm), 0);
}

#[test]
fn invalid_dm_allocation_and_registration_are_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    for (length, log_align, comp_mask) in [(0, 0, 0), (1 << 40, 0, 0), (usize::MAX, 0, 0), (64, 40, 0), (64, 0, 1)] {
        assert!(alloc(rig.context, length, log_align, comp_mask).is_null());
        assert_eq!(errno(), libc::EINVAL, "{length} {log_align} {comp_mask}");
    }
    let dm = alloc(rig.context, 64, 0, 0);
    for (pd, offset, length, access) in [
        (rig.pd, 0, 68, DM_ACCESS),
        (rig.pd, 68, 0, DM_ACCESS),
        (rig.pd, 0, 64, 1),
        (rig.pd, 0, 64, DM_ACCESS | 1 << 6),
        (rig.pd, 0, 64, DM_ACCESS | 1 << 30),
        (other.pd, 0, 64, DM_ACCESS),
    ] {
        assert!(register(pd, dm, offset, length, access).is_null());
        assert_eq!(errno(), libc::EINVAL, "{length} bytes from {offset}, {access:#x}");
    }
    // SAFETY: the calls validate a handle before they follow any pointer.
    unsafe {
        let verbs = &*extended_context(rig.context);
        assert!(verbs.alloc_dm.unwrap()(rig.context, null_mut()).is_null());
        assert!(verbs.alloc_dm.unwrap()(foreign(), null_mut()).is_null());
        assert!(verbs.reg_dm_mr.unwrap()(rig.pd, foreign(), 0, 8, DM_ACCESS).is_null());
        assert_eq!(verbs.free_dm.unwrap()(foreign()), libc::EINVAL);
        assert_eq!(free(dm), 0);
        assert_eq!(verbs.free_dm.unwrap()(dm), libc::EINVAL, "freed already");
    }
}

#[test]
fn imported_dm_shares_memory_until_it_is_freed() {
    let (rig, other) = (Rig::new(), Rig::new());
    let dm = alloc(rig.context, 64, 0, 0);
    let mut bytes = [0; 4];
    // SAFETY: this test keeps the handles alive, and the calls validate them; the imported context
    // owns the duplicated descriptor.
    unsafe {
        let context = ibv_import_device(libc::dup((*rig.context).cmd_fd));
        let imported = ibv_import_dm(context, (*dm).handle);
        assert_eq!(((*imported).handle, (*imported).context, (*imported).comp_mask), ((*dm).handle, context, 1));
        assert_eq!((write(dm, 4, b"same"), read(imported, 4, &mut bytes)), (0, 0));
        assert_eq!(&bytes, b"same");
        assert!(ibv_import_dm(other.context, (*dm).handle).is_null(), "device memory of another context");
        assert_eq!(errno(), libc::EINVAL);
        assert!(ibv_import_dm(context, (*rig.pd).handle).is_null(), "another kind of object");
        assert!(ibv_import_dm(foreign(), 0).is_null());
        let last = ibv_import_dm(context, (*dm).handle);
        ibv_unimport_dm(imported);
        assert_eq!(read(dm, 4, &mut bytes), 0, "the memory outlives an imported handle");
        assert_eq!(free(dm), 0);
        assert_eq!(read(last, 4, &mut bytes), libc::EINVAL, "the memory is freed");
        assert_eq!(free(last), libc::EINVAL);
        ibv_unimport_dm(last);
        ibv_unimport_dm(foreign());
        assert_eq!(ibv_close_device(context), 0);
    }
}
