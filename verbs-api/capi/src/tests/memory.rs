//! Re-registered regions, and memory windows.

use super::*;
use crate::memory::ibv_rereg_mr;
use crate::qp::ibv_qp_to_qp_ex;

/// Posts a WRITE of word 0 to `remote_addr` under `rkey` and returns the status of its completion.
fn write_status(rig: &Rig, qp: *mut ibv_qp, remote_addr: u64, rkey: u32) -> u32 {
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(1, WRITE, &sges);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr, rkey } };
    assert_eq!(rig.post_send(qp, &mut wr).0, 0);
    rig.completions(1)[0].status
}

/// Registers words 512 to 519, which peers can access through windows only.
fn bindable(rig: &Rig) -> *mut ibv_mr {
    let half = rig.memory.as_ptr().wrapping_add(512).cast_mut().cast();
    // SAFETY: the rig keeps the domain and the memory alive.
    let mr = unsafe { ibv_reg_mr(rig.pd, half, 64, 1 | 0x10) };
    assert!(!mr.is_null());
    mr
}

fn alloc_mw(rig: &Rig, kind: u32) -> *mut ibv_mw {
    // SAFETY: the rig keeps the domain alive.
    unsafe { rig.ops().alloc_mw.unwrap()(rig.pd, kind) }
}

fn rkey_of(mw: *mut ibv_mw) -> u32 {
    // SAFETY: the test deallocates the window later or in this call.
    unsafe { (*mw).rkey }
}

/// Returns a binding of all of `mr`, for WRITEs.
fn whole(rig: &Rig, mr: *mut ibv_mr) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr, addr: rig.addr(512), length: 64, mw_access_flags: 2 }
}

/// Binds `mw` by `ibv_bind_mw`, signaled.
fn bind(rig: &Rig, qp: *mut ibv_qp, mw: *mut ibv_mw, bind_info: ibv_mw_bind_info) -> c_int {
    let mut bind = ibv_mw_bind { wr_id: 5, send_flags: 2, bind_info };
    // SAFETY: the test keeps the handles alive; the structure is a local variable.
    unsafe { rig.ops().bind_mw.unwrap()(qp, mw, &raw mut bind) }
}

/// Posts a binding of `mw` under `rkey` by `ibv_post_send`.
fn post_bind(rig: &Rig, qp: *mut ibv_qp, mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) -> c_int {
    let mut wr = send_wr(6, BIND_MW, &[]);
    wr.bind_mw = wr_bind_mw { mw, rkey, bind_info };
    rig.post_send(qp, &mut wr).0
}

/// Returns `(wr_id, status, opcode)` of the next completion.
fn outcome(rig: &Rig) -> (u64, u32, u32) {
    let wc = rig.completions(1)[0];
    (wc.wr_id, wc.status, wc.opcode)
}

// clause: WINDOW-TYPE-1, WINDOW-HOLDS
#[test]
fn type_1_window_is_bound_and_unbound_by_verb() {
    let mut rig = Rig::new();
    let ([a, b], mr, mw) = (rig.rc_pair(), bindable(&rig), alloc_mw(&rig, 1));
    rig.set(0, 77);
    let old = rkey_of(mw);
    assert_eq!(bind(&rig, b, mw, whole(&rig, mr)), 0);
    assert_eq!(outcome(&rig), (5, 0, 5));
    let rkey = rkey_of(mw);
    assert_eq!((rkey >> 8, rkey & 0xff), (old >> 8, old.wrapping_add(1) & 0xff));
    assert_eq!(write_status(&rig, a, rig.addr(519), rkey), 0);
    assert_eq!(rig.word(519), 77);
    assert_eq!(post_bind(&rig, b, mw, rkey, whole(&rig, mr)), libc::EINVAL, "by the verb only");
    // SAFETY: the test created the handles; they are alive until a call here destroys them.
    unsafe { assert_eq!(ibv_dereg_mr(mr), libc::EBUSY) };
    assert_eq!(bind(&rig, b, mw, no_window()), 0);
    assert_eq!(outcome(&rig), (5, 0, 5));
    assert_eq!(write_status(&rig, a, rig.addr(519), rkey_of(mw)), REM_ACCESS_ERR);
    // SAFETY: the test created the handles; they are alive until a call here destroys them.
    unsafe {
        assert_eq!(ibv_dealloc_pd(rig.pd), libc::EBUSY);
        assert_eq!((rig.ops().dealloc_mw.unwrap()(mw), ibv_dereg_mr(mr)), (0, 0));
    }
    destroy(&[a, b]);
}

// clause: WINDOW-TYPE-2, WINDOW-HOLDS
#[test]
fn type_2_window_is_bound_by_work_request_only() {
    let rig = Rig::new();
    let ([a, b], mr, mw) = (rig.rc_pair(), bindable(&rig), alloc_mw(&rig, 2));
    assert_eq!(bind(&rig, b, mw, whole(&rig, mr)), libc::EINVAL);
    assert_eq!(post_bind(&rig, b, mw, 0x42, whole(&rig, mr)), 0);
    assert_eq!(outcome(&rig), (6, 0, 5));
    // SAFETY: the test created the handles; they are alive until a call here destroys them.
    let ends = unsafe { (ibv_dereg_mr(mr), rig.ops().dealloc_mw.unwrap()(mw), ibv_dereg_mr(mr)) };
    assert_eq!(ends, (libc::EBUSY, 0, 0), "an open window holds its region");
    destroy(&[a, b]);
}

// clause: WINDOW-BIND
#[test]
fn invalid_bind_completes_with_an_error() {
    let rig = Rig::new();
    let ([a, b], mw) = (rig.rc_pair(), alloc_mw(&rig, 2));
    assert!(alloc_mw(&rig, 3).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(post_bind(&rig, b, null_mut(), 1, whole(&rig, rig.mr)), libc::EINVAL);
    assert_eq!(post_bind(&rig, b, mw, 1, whole(&rig, null_mut())), libc::EINVAL);
    assert_eq!(post_bind(&rig, b, mw, 1, whole(&rig, rig.mr)), 0);
    assert_eq!(outcome(&rig), (6, 6, 5), "the region is not registered for windows");
    // SAFETY: the test deallocates the window later or in this call.
    unsafe { assert_eq!(rig.ops().dealloc_mw.unwrap()(mw), 0) };
    destroy(&[a, b]);
}

// clause: WINDOW-TYPE-2
#[test]
fn wr_builders_bind_and_invalidate_windows() {
    let rig = Rig::new();
    let (qp, mr, mw) = (rig.qp_ex(RC), bindable(&rig), alloc_mw(&rig, 2));
    connect(qp, qp_num(qp));
    let rkey = rkey_of(mw) & !0xff | 9;
    let info = whole(&rig, mr);
    // SAFETY: this test keeps the handles alive, and calls the builders in the order of the man
    // page.
    unsafe {
        let qpx = ibv_qp_to_qp_ex(qp);
        (*qpx).wr_start.unwrap()(qpx);
        ((*qpx).wr_id, (*qpx).wr_flags) = (1, 2);
        (*qpx).wr_bind_mw.unwrap()(qpx, mw, 9, &raw const info);
        (*qpx).wr_id = 2;
        (*qpx).wr_local_inv.unwrap()(qpx, rkey);
        assert_eq!((*qpx).wr_complete.unwrap()(qpx), 0);
        assert_eq!([outcome(&rig), outcome(&rig)], [(1, 0, 5), (2, 0, 6)]);
        assert_eq!((ibv_dereg_mr(mr), rig.ops().dealloc_mw.unwrap()(mw)), (0, 0));
    }
    destroy(&[qp]);
}

#[test]
fn rereg_mr_shows_new_attributes() {
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let half = rig.memory.as_mut_ptr().wrapping_add(512).cast::<c_void>();
    rig.set(0, 3);
    // SAFETY: this test keeps the handles alive; the ranges lie in the memory of the rig.
    unsafe {
        let other = ibv_alloc_pd(rig.context);
        let extra = ibv_reg_mr(rig.pd, half, 8, ALL_ACCESS);
        let rkey = (*extra).rkey;
        assert_eq!(ibv_rereg_mr(extra, REREG_PD, other, null_mut(), 0, 0), 0);
        assert_eq!(((*extra).pd, (*extra).length), (other, 8));
        assert_eq!(ibv_rereg_mr(extra, REREG_PD | REREG_TRANSLATION, rig.pd, half.wrapping_byte_add(8), 16, 0), 0);
        assert_eq!(((*extra).pd, (*extra).addr, (*extra).length), (rig.pd, half.wrapping_byte_add(8), 16));
        assert_eq!((*extra).rkey, rkey);
        assert_eq!(ibv_dealloc_pd(other), 0, "the region has moved back to the rig's domain");
        assert_eq!(write_status(&rig, a, rig.addr(513), rkey), 0);
        assert_eq!(rig.word(513), 3);
        assert_eq!(ibv_rereg_mr(extra, REREG_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE), 0);
        assert_eq!(write_status(&rig, a, rig.addr(513), rkey), REM_ACCESS_ERR, "the right to write is gone");
        assert_eq!(ibv_dereg_mr(extra), 0);
    }
    destroy(&[a, b]);
}

#[test]
fn refused_rereg_mr_sets_errno() {
    let rig = Rig::new();
    let addr = rig.memory.as_ptr().cast_mut().cast();
    let refusals = [
        (0, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (8, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (REREG_PD, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (REREG_TRANSLATION, null_mut(), null_mut(), 8, 0, libc::EINVAL),
        (REREG_TRANSLATION, null_mut(), addr, 0, 0, libc::EINVAL),
        (REREG_TRANSLATION, null_mut(), addr, 8, 1, libc::EINVAL),
        (REREG_TRANSLATION, null_mut(), foreign(), 8, 0, libc::EFAULT),
        (REREG_ACCESS, null_mut(), null_mut(), 0, 2, libc::EINVAL),
    ];
    for (flags, pd, addr, length, access, expected) in refusals {
        // SAFETY: the rig keeps the region alive; the call checks everything else.
        let code = unsafe { ibv_rereg_mr(rig.mr, flags, pd, addr, length, access) };
        assert_eq!((code, errno()), (-1, expected), "flags {flags} length {length} access {access}");
    }
}
