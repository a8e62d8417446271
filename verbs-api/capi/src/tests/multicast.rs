//! Multicast groups of UD queue pairs.

use super::*;
use crate::ah::ibv_create_ah_from_wc;
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast};
use crate::query::ibv_query_device;

/// Returns an IPv4 group that is unique to this process.
fn group() -> ibv_gid {
    let [a, b, ..] = std::process::id().to_le_bytes();
    ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, b, a, 200] }
}

// clause: UD-MULTICAST
#[test]
fn datagram_to_a_group_reaches_its_member() {
    let mut rig = Rig::new();
    let (qp, group) = (rig.ud(), group());
    let mut attr = loopback();
    attr.grh.dgid = group;
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    let ah = unsafe { ibv_create_ah(rig.pd, &raw mut attr) };
    // SAFETY: this test keeps the QP alive; the GID is a local variable.
    assert_eq!(unsafe { ibv_attach_mcast(qp, &raw const group, 0) }, 0);
    rig.set(0, 0x1234);
    assert_eq!(rig.post_recv(qp, 1, &[rig.sge(10, 6)]), 0);
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(2, SEND, &sges);
    wr.wr.ud = wr_ud { ah, remote_qpn: 0x00ff_ffff, remote_qkey: QKEY };
    assert_eq!(rig.post_send(qp, &mut wr).0, 0);
    let wcs = rig.completions(2);
    assert!(wcs.iter().all(|wc| wc.status == 0));
    let mut received = *wcs.iter().find(|wc| wc.wr_id == 1).unwrap();
    assert_eq!(rig.word(15), 0x1234);
    // SAFETY: the test keeps the handles alive; a refused call destroys nothing.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!(ibv_detach_mcast(qp, &raw const group, 0), 0);
        assert_eq!(ibv_detach_mcast(qp, &raw const group, 0), libc::EINVAL);
    }
    let area = ptr::with_exposed_provenance_mut(rig.memory.as_ptr().wrapping_add(10).expose_provenance());
    // SAFETY: the rig keeps the domain and the memory alive; `received` is the completion that
    // filled `area`.
    let back = unsafe { ibv_create_ah_from_wc(rig.pd, &raw mut received, area, 1) };
    assert!(!back.is_null());
    destroy_ah(back);
    destroy_ah(ah);
    destroy(&[qp]);
}

#[test]
fn attach_mcast_needs_ud_and_a_group() {
    let rig = Rig::new();
    let (ud, rc, unicast, group) = (rig.qp(UD), rig.qp(RC), loopback().grh.dgid, group());
    let mut attr = MaybeUninit::uninit();
    // SAFETY: this test keeps the rig's handles alive, the call looks up the others, and the
    // structures are its variables.
    unsafe {
        assert_eq!(ibv_attach_mcast(ud, &raw const unicast, 0), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(rc, &raw const group, 0), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(ud, null_mut(), 0), libc::EINVAL);
        assert_eq!(ibv_detach_mcast(foreign(), &raw const group, 0), libc::EINVAL);
        assert_eq!(ibv_query_device(rig.context, attr.as_mut_ptr()), 0);
        let attr = attr.assume_init();
        assert!(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0);
        assert_eq!(attr.max_total_mcast_qp_attach, attr.max_mcast_grp * attr.max_mcast_qp_attach);
    }
    destroy(&[ud, rc]);
}
