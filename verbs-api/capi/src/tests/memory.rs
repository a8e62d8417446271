//! Regions that change, windows, and memory that is not the program's.

use super::*;
use crate::memory::ibv_rereg_mr;

const TRANSLATION: c_int = 1;
const DOMAIN: c_int = 2;
const RIGHTS: c_int = 4;

/// Posts a WRITE of word 0 to `remote_addr` under `rkey` and returns the status of its completion.
fn write_status(rig: &Rig, qp: *mut ibv_qp, remote_addr: u64, rkey: u32) -> u32 {
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(1, 0, &sges);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr, rkey } };
    assert_eq!(rig.post_send(qp, &mut wr).0, 0);
    rig.completions(1)[0].status
}

#[test]
fn a_region_registered_anew_shows_its_new_terms() {
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let half = rig.memory.as_mut_ptr().wrapping_add(512).cast::<c_void>();
    rig.set(0, 3);
    // SAFETY: living handles; the range lies in the memory of the rig.
    unsafe {
        let other = ibv_alloc_pd(rig.context);
        let extra = ibv_reg_mr(rig.pd, half, 8, ALL_ACCESS);
        let rkey = (*extra).rkey;
        assert_eq!(ibv_rereg_mr(extra, DOMAIN, other, null_mut(), 0, 0), 0);
        assert_eq!(((*extra).pd, (*extra).length), (other, 8));
        assert_eq!(ibv_rereg_mr(extra, DOMAIN | TRANSLATION, rig.pd, half.wrapping_byte_add(8), 16, 0), 0);
        assert_eq!(((*extra).pd, (*extra).addr, (*extra).length), (rig.pd, half.wrapping_byte_add(8), 16));
        assert_eq!((*extra).rkey, rkey);
        assert_eq!(ibv_dealloc_pd(other), 0, "the region has left");
        assert_eq!(write_status(&rig, a, rig.addr(513), rkey), 0);
        assert_eq!(rig.word(513), 3);
        assert_eq!(ibv_rereg_mr(extra, RIGHTS, null_mut(), null_mut(), 0, 1), 0);
        assert_eq!(write_status(&rig, a, rig.addr(513), rkey), 10, "the right to write is gone");
        assert_eq!(ibv_dereg_mr(extra), 0);
    }
    destroy(&[a, b]);
}

#[test]
fn a_region_that_cannot_be_registered_anew_says_why() {
    let rig = Rig::new();
    let addr = rig.memory.as_ptr().cast_mut().cast();
    let refusals = [
        (0, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (8, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (DOMAIN, null_mut(), null_mut(), 0, 0, libc::EINVAL),
        (TRANSLATION, null_mut(), null_mut(), 8, 0, libc::EINVAL),
        (TRANSLATION, null_mut(), addr, 0, 0, libc::EINVAL),
        (TRANSLATION, null_mut(), addr, 8, 1, libc::EINVAL),
        (TRANSLATION, null_mut(), foreign(), 8, 0, libc::EFAULT),
        (RIGHTS, null_mut(), null_mut(), 0, 2, libc::EINVAL),
    ];
    for (flags, pd, addr, length, access, expected) in refusals {
        // SAFETY: a living region; everything else is checked.
        let code = unsafe { ibv_rereg_mr(rig.mr, flags, pd, addr, length, access) };
        assert_eq!((code, errno()), (-1, expected), "flags {flags} length {length} access {access}");
    }
}
