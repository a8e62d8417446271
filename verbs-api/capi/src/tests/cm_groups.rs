//! Multicast groups of datagram identifiers.

use super::cm_events::*;
use super::*;
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast};
use crate::rdmacm::*;

const MULTICAST_JOIN: c_int = 12;

/// Returns a group that is unique to this process and test.
fn group(test: u8) -> libc::sockaddr_in {
    let [a, b, ..] = std::process::id().to_le_bytes();
    // SAFETY: all zeros are a valid `sockaddr_in`: numbers only.
    let mut addr: libc::sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_addr.s_addr = u32::from_ne_bytes([239, b, a, test]);
    addr
}

fn mgid(group: &libc::sockaddr_in) -> ibv_gid {
    let [a, b, c, d] = group.sin_addr.s_addr.to_ne_bytes();
    ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] }
}

/// Returns a datagram identifier on the loopback device.
fn bound(cm: &CmChannel) -> *mut rdma_cm_id {
    let id = cm.id(UDP);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    assert_eq!(unsafe { rdma_bind_addr(id, loopback_port(0).as_mut_ptr()) }, 0);
    id
}

fn leave(id: *mut rdma_cm_id, group: &mut libc::sockaddr_in) -> (c_int, c_int) {
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    (unsafe { rdma_leave_multicast(id, ptr::from_mut(group).cast()) }, errno())
}

#[test]
fn group_join_attaches_the_qp_until_leave() {
    let cm = CmChannel::new();
    let (id, mut group) = (bound(&cm), group(201));
    create_qp(id);
    let context = ptr::without_provenance_mut::<c_void>(77);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    assert_eq!(unsafe { rdma_join_multicast(id, (&raw mut group).cast(), context) }, 0);
    let event = cm.expect(MULTICAST_JOIN);
    let ud = event.ud();
    assert_eq!((event.id, event.status, ud.private_data.cast_mut(), ud.private_data_len), (id, 0, context, 0));
    assert_eq!((ud.qp_num, ud.qkey, ud.ah_attr.is_global), (0x00ff_ffff, 0x0123_4567, 1));
    assert_eq!(ud.ah_attr.grh.dgid.raw, mgid(&group).raw);
    drop(event);
    // SAFETY: the test keeps the QP of the identifier alive.
    assert_eq!(unsafe { ibv_destroy_qp(read(id).qp) }, libc::EBUSY, "it is a member");
    assert_eq!(leave(id, &mut group).0, 0);
    assert_eq!(leave(id, &mut group), (-1, libc::EADDRNOTAVAIL));
    cm.destroy_ids(&[id]);
}

#[test]
fn send_only_join_attaches_no_qp() {
    let cm = CmChannel::new();
    let (id, mut group) = (bound(&cm), group(202));
    create_qp(id);
    let mut attr = rdma_cm_join_mc_attr_ex { comp_mask: 3, join_flags: 1, addr: (&raw mut group).cast() };
    // SAFETY: this test keeps the identifier alive; the structure is its variable.
    assert_eq!(unsafe { rdma_join_multicast_ex(id, &raw mut attr, null_mut()) }, 0);
    assert!(cm.expect(MULTICAST_JOIN).ud().private_data.is_null());
    let (qp, gid) = (read(id).qp, mgid(&group));
    // SAFETY: this test keeps the QP alive; the GID is a local variable.
    unsafe {
        assert_eq!(ibv_attach_mcast(qp, &raw const gid, 0), 0);
        assert_eq!(ibv_detach_mcast(qp, &raw const gid, 0), 0);
    }
    assert_eq!(leave(id, &mut group).0, 0);
    cm.destroy_ids(&[id]);
}

#[test]
fn destroyed_qp_leaves_its_groups() {
    let cm = CmChannel::new();
    let (id, mut group) = (bound(&cm), group(203));
    create_qp(id);
    // SAFETY: this test keeps the identifier alive; the address is a local variable; the last call
    // looks the QP up.
    unsafe {
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), 0);
        cm.expect(MULTICAST_JOIN);
        let qp = read(id).qp;
        rdma_destroy_qp(id);
        assert_eq!(ibv_destroy_qp(qp), libc::EINVAL, "destroyed already");
    }
    cm.destroy_ids(&[id]);
}

#[test]
fn synchronous_join_waits_for_membership() {
    let cm = CmChannel::new();
    let (id, mut group) = (bound(&cm), group(204));
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    unsafe {
        assert_eq!(rdma_migrate_id(id, null_mut()), 0);
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), 0);
        assert_eq!((*read(id).event).event, MULTICAST_JOIN);
    }
    assert_eq!(leave(id, &mut group).0, 0);
    cm.destroy_ids(&[id]);
}

#[test]
fn tcp_id_cannot_join_a_group() {
    let cm = CmChannel::new();
    let (id, mut group) = (cm.id(TCP), group(205));
    // SAFETY: the test keeps the identifier alive; the addresses are local variables.
    unsafe {
        assert_eq!(rdma_bind_addr(id, loopback_port(0).as_mut_ptr()), 0);
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), -1);
    }
    assert_eq!(errno(), libc::EINVAL);
    cm.destroy_ids(&[id]);
}
