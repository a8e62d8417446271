//! Multicast groups of datagram identifiers.

use super::cm_events::*;
use super::*;
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast};
use crate::rdmacm::*;

const MULTICAST_JOIN: c_int = 12;

/// Returns a group that is unique to this process and test.
fn group(test: u8) -> libc::sockaddr_in {
    let [a, b, ..] = std::process::id().to_le_bytes();
    // SAFETY: all bits zero are an address of no family.
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
fn bound(wire: &Wire) -> *mut rdma_cm_id {
    let id = wire.id(UDP);
    // SAFETY: a live identifier and an address.
    assert_eq!(unsafe { rdma_bind_addr(id, loopback_port(0).as_mut_ptr()) }, 0);
    id
}

fn leave(id: *mut rdma_cm_id, group: &mut libc::sockaddr_in) -> (c_int, c_int) {
    // SAFETY: a live identifier and an address.
    (unsafe { rdma_leave_multicast(id, ptr::from_mut(group).cast()) }, errno())
}

#[test]
fn group_join_attaches_the_qp_until_leave() {
    let wire = Wire::new();
    let (id, mut group) = (bound(&wire), group(201));
    create_qp(id);
    let context = ptr::without_provenance_mut::<c_void>(77);
    // SAFETY: a live identifier and an address.
    assert_eq!(unsafe { rdma_join_multicast(id, (&raw mut group).cast(), context) }, 0);
    let event = wire.expect(MULTICAST_JOIN);
    let ud = event.ud();
    assert_eq!((event.id, event.status, ud.private_data.cast_mut(), ud.private_data_len), (id, 0, context, 0));
    assert_eq!((ud.qp_num, ud.qkey, ud.ah_attr.is_global), (0x00ff_ffff, 0x0123_4567, 1));
    assert_eq!(ud.ah_attr.grh.dgid.raw, mgid(&group).raw);
    drop(event);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { ibv_destroy_qp(read(id).qp) }, libc::EBUSY, "it is a member");
    assert_eq!(leave(id, &mut group).0, 0);
    assert_eq!(leave(id, &mut group), (-1, libc::EADDRNOTAVAIL));
    wire.end(&[id]);
}

#[test]
fn send_only_join_attaches_no_qp() {
    let wire = Wire::new();
    let (id, mut group) = (bound(&wire), group(202));
    create_qp(id);
    let mut attr = rdma_cm_join_mc_attr_ex { comp_mask: 3, join_flags: 1, addr: (&raw mut group).cast() };
    // SAFETY: a live identifier and a valid structure.
    assert_eq!(unsafe { rdma_join_multicast_ex(id, &raw mut attr, null_mut()) }, 0);
    assert!(wire.expect(MULTICAST_JOIN).ud().private_data.is_null());
    let (qp, gid) = (read(id).qp, mgid(&group));
    // SAFETY: a live queue pair and a GID.
    unsafe {
        assert_eq!(ibv_attach_mcast(qp, &raw const gid, 0), 0);
        assert_eq!(ibv_detach_mcast(qp, &raw const gid, 0), 0);
    }
    assert_eq!(leave(id, &mut group).0, 0);
    wire.end(&[id]);
}

#[test]
fn destroyed_qp_leaves_its_groups() {
    let wire = Wire::new();
    let (id, mut group) = (bound(&wire), group(203));
    create_qp(id);
    // SAFETY: a live identifier and an address; then handles that are looked up.
    unsafe {
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), 0);
        wire.expect(MULTICAST_JOIN);
        let qp = read(id).qp;
        rdma_destroy_qp(id);
        assert_eq!(ibv_destroy_qp(qp), libc::EINVAL, "it is gone");
    }
    wire.end(&[id]);
}

#[test]
fn synchronous_join_waits_for_membership() {
    let wire = Wire::new();
    let (id, mut group) = (bound(&wire), group(204));
    // SAFETY: a live identifier and an address.
    unsafe {
        assert_eq!(rdma_migrate_id(id, null_mut()), 0);
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), 0);
        assert_eq!((*read(id).event).event, MULTICAST_JOIN);
    }
    assert_eq!(leave(id, &mut group).0, 0);
    wire.end(&[id]);
}

#[test]
fn tcp_id_cannot_join_a_group() {
    let wire = Wire::new();
    let (id, mut group) = (wire.id(TCP), group(205));
    // SAFETY: a live identifier and addresses.
    unsafe {
        assert_eq!(rdma_bind_addr(id, loopback_port(0).as_mut_ptr()), 0);
        assert_eq!(rdma_join_multicast(id, (&raw mut group).cast(), null_mut()), -1);
    }
    assert_eq!(errno(), libc::EINVAL);
    wire.end(&[id]);
}
