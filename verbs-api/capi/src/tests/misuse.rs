//! Wrong arguments, states and order return the errno of the man pages.

use super::*;
use crate::cq::{create_cq_ex, ibv_resize_cq};
use crate::event::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::memory::{ibv_reg_mr_iova2, ibv_rereg_mr};
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast, ibv_qp_to_qp_ex, ibv_query_qp_data_in_order};
use crate::query::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_device, ibv_query_gid, ibv_query_gid_type,
    ibv_query_pkey, ibv_query_port, query_device_ex, query_port, query_rt_values,
};
use crate::srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};

/// Returns true if `pointer` is NULL and errno is EINVAL.
fn is_refused<T>(pointer: *mut T) -> bool {
    pointer.is_null() && errno() == libc::EINVAL
}

#[test]
fn foreign_and_null_handles_are_refused() {
    // SAFETY: the calls look a handle up before they follow any pointer.
    unsafe {
        for context in [null_mut(), foreign()] {
            assert_eq!(ibv_query_device(context, null_mut()), libc::EINVAL);
            assert_eq!(ibv_query_port(context, 1, null_mut()), libc::EINVAL);
            assert_eq!(ibv_query_gid(context, 1, 0, null_mut()), -1);
            assert_eq!(ibv_query_pkey(context, 1, 0, null_mut()), -1);
            assert_eq!(ibv_get_pkey_index(context, 1, 0xffff), -1);
            assert_eq!(ibv_get_async_event(context, null_mut()), -1);
            assert_eq!(ibv_close_device(context), -1);
            assert!(is_refused(ibv_alloc_pd(context)));
            assert!(is_refused(ibv_create_comp_channel(context)));
            assert!(is_refused(ibv_create_cq(context, 1, null_mut(), null_mut(), 0)));
        }
        for pd in [null_mut(), foreign()] {
            assert_eq!(ibv_dealloc_pd(pd), libc::EINVAL);
            assert!(is_refused(ibv_reg_mr(pd, null_mut(), 8, 0)));
            assert!(is_refused(ibv_create_qp(pd, null_mut())));
            assert!(is_refused(ibv_create_srq(pd, null_mut())));
            assert!(is_refused(ibv_create_ah(pd, &mut loopback())));
        }
        for qp in [null_mut(), foreign()] {
            assert_eq!(ibv_modify_qp(qp, null_mut(), 0), libc::EINVAL);
            assert_eq!(ibv_query_qp(qp, null_mut(), 0, null_mut()), libc::EINVAL);
            assert_eq!(ibv_destroy_qp(qp), libc::EINVAL);
            assert_eq!(ibv_attach_mcast(qp, null_mut(), 0), libc::EINVAL);
            assert_eq!(ibv_detach_mcast(qp, null_mut(), 0), libc::EINVAL);
            assert_eq!(ibv_query_qp_data_in_order(qp, 0, 0), 0);
            assert!(ibv_qp_to_qp_ex(qp).is_null());
        }
        for srq in [null_mut(), foreign()] {
            assert_eq!(ibv_query_srq(srq, null_mut()), libc::EINVAL);
            assert_eq!(ibv_modify_srq(srq, null_mut(), 0), libc::EINVAL);
            assert_eq!(ibv_destroy_srq(srq), libc::EINVAL);
        }
        for cq in [null_mut(), foreign()] {
            assert_eq!(ibv_resize_cq(cq, 8), libc::EINVAL);
            assert_eq!(ibv_destroy_cq(cq), libc::EINVAL);
            ibv_ack_cq_events(cq, 1);
        }
        ibv_ack_async_event(null_mut());
        assert_eq!(ibv_dereg_mr(foreign()), libc::EINVAL);
        assert_eq!(ibv_rereg_mr(foreign(), 0, null_mut(), null_mut(), 0, 0), -1);
        assert_eq!(ibv_destroy_ah(foreign()), libc::EINVAL);
        assert_eq!(ibv_destroy_comp_channel(foreign()), libc::EINVAL);
        assert_eq!(ibv_get_cq_event(foreign(), null_mut(), null_mut()), -1);
        assert!(is_refused(ibv_open_device(foreign())));
    }
}

#[test]
fn data_path_calls_refuse_null() {
    let rig = Rig::new();
    let ops = rig.ops();
    // SAFETY: the calls check for NULL before they follow any pointer.
    unsafe {
        assert_eq!(ops.post_send.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(ops.post_recv.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(ops.post_srq_recv.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(ops.poll_cq.unwrap()(null_mut(), 1, null_mut()), -libc::EINVAL);
        assert_eq!(ops.poll_cq.unwrap()(rig.cq, -1, null_mut()), -libc::EINVAL);
        assert_eq!(ops.poll_cq.unwrap()(rig.cq, 1, null_mut()), -libc::EINVAL);
        assert_eq!(ops.req_notify_cq.unwrap()(null_mut(), 0), libc::EINVAL);
        assert_eq!(ops.bind_mw.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(ops.dealloc_mw.unwrap()(null_mut()), libc::EINVAL);
        assert!(is_refused(ops.alloc_mw.unwrap()(null_mut(), 1)));
    }
}

#[test]
fn destroyed_handle_is_einval() {
    let rig = Rig::new();
    let (qp, ah) = (rig.qp(RC), rig.ah());
    destroy(&[qp]);
    destroy_ah(ah);
    // SAFETY: the calls look a handle up before they follow any pointer.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), libc::EINVAL);
        assert_eq!(ibv_destroy_ah(ah), libc::EINVAL);
        // A live handle of another kind.
        assert_eq!(ibv_destroy_qp(rig.cq.cast()), libc::EINVAL);
    }
}

#[test]
fn destroy_of_objects_in_use_is_ebusy() {
    let rig = Rig::new();
    let qp = rig.qp(RC);
    // SAFETY: the test keeps the handles alive; a refused call destroys nothing.
    unsafe {
        assert_eq!(ibv_destroy_cq(rig.cq), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(rig.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_comp_channel(rig.channel), libc::EBUSY);
        assert_eq!((*rig.channel).refcnt, 1);
    }
    destroy(&[qp]);
}

#[test]
fn ports_and_indices_out_of_range_are_refused() {
    let rig = Rig::new();
    let (mut gid, mut entry, mut pkey, mut kind) = (ibv_gid::default(), ibv_gid_entry::default(), 0u16, -1);
    let mut attr = ibv_port_attr { port_cap_flags2: 0xabcd, ..ibv_port_attr::default() };
    // SAFETY: the rig keeps the context alive; the pointers are to local variables.
    unsafe {
        assert_eq!(ibv_query_port(rig.context, 1, &raw mut attr), 0);
        assert_eq!(attr.port_cap_flags2, 0xabcd, "the old call must not write beyond the old structure");
        assert_eq!(query_port(rig.context, 1, &raw mut attr, size_of::<ibv_port_attr>()), 0);
        assert_eq!((attr.state, attr.link_layer, attr.port_cap_flags2), (4, 2, 0));
        assert_eq!(query_port(rig.context, 2, &raw mut attr, size_of::<ibv_port_attr>()), libc::EINVAL);

        let hole = attr.gid_tbl_len - 1;
        assert_eq!(ibv_query_gid(rig.context, 1, hole, &raw mut gid), 0);
        assert_eq!(gid.raw, [0; 16]);
        assert_eq!(ibv_query_gid(rig.context, 1, attr.gid_tbl_len, &raw mut gid), -1);
        assert_eq!(ibv_query_gid(rig.context, 1, -1, &raw mut gid), -1);
        let size = size_of::<ibv_gid_entry>();
        assert_eq!(_ibv_query_gid_ex(rig.context, 1, 0, &raw mut entry, 0, size), 0);
        assert_eq!((entry.gid.raw, entry.gid_type), (loopback().grh.dgid.raw, 2));
        assert_eq!(_ibv_query_gid_ex(rig.context, 1, hole.cast_unsigned(), &raw mut entry, 0, size), libc::ENODATA);
        assert_eq!(_ibv_query_gid_ex(rig.context, 1, 0, &raw mut entry, 1, size), libc::EINVAL);
        assert_eq!(_ibv_query_gid_table(rig.context, &raw mut entry, 0, 0, size), -libc::EINVAL as isize);
        assert_eq!(ibv_query_gid_type(rig.context, 1, 0, &raw mut kind), 0);
        assert_eq!(kind, 1);

        assert_eq!(ibv_query_pkey(rig.context, 1, 0, &raw mut pkey), 0);
        assert_eq!(pkey, 0xffff);
        assert_eq!(ibv_query_pkey(rig.context, 1, 1, &raw mut pkey), -1);
        assert_eq!(ibv_get_pkey_index(rig.context, 1, 0xffff), 0);
        assert_eq!(ibv_get_pkey_index(rig.context, 1, 0x1234), -1);
    }
}

#[test]
fn query_fills_structures_of_any_size() {
    let rig = Rig::new();
    let mut room = [u64::MAX; 64];
    let byte = |room: &[u64; 64], at: usize| room[at / 8].to_ne_bytes()[at % 8];
    // SAFETY: the rig keeps the context alive; `room` is longer than any passed size.
    unsafe {
        let attr = room.as_mut_ptr().cast::<ibv_device_attr_ex>();
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr, 240), 0);
        assert_eq!(byte(&room, 240), 0xff);
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr, 480), 0);
        assert_eq!((byte(&room, 479), byte(&room, 480)), (0, 0xff));
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr, 8), libc::EINVAL);
        assert_eq!(query_device_ex(rig.context, &1u32, attr, 400), libc::EINVAL);
        let raw_clock = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut values = ibv_values_ex { comp_mask: 1, raw_clock };
        assert_eq!(query_rt_values(rig.context, &raw mut values), 0);
        assert!(values.comp_mask == 1 && values.raw_clock.tv_sec + values.raw_clock.tv_nsec > 0);
        values.comp_mask = 2;
        assert_eq!(query_rt_values(rig.context, &raw mut values), libc::EINVAL);
    }
}

#[test]
fn queues_beyond_limits_are_refused() {
    let rig = Rig::new();
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        assert!(is_refused(ibv_create_cq(rig.context, 0, null_mut(), null_mut(), 0)));
        assert!(is_refused(ibv_create_cq(rig.context, -1, null_mut(), null_mut(), 0)));
        assert!(is_refused(ibv_create_cq(rig.context, c_int::MAX, null_mut(), null_mut(), 0)));
        assert!(is_refused(ibv_create_cq(rig.context, 1, null_mut(), null_mut(), 1)));
        assert!(is_refused(ibv_create_cq(rig.context, 1, null_mut(), foreign(), 0)));
        for change in 0..6 {
            let mut init = rig.init_attr(RC);
            match change {
                0 => init.cap.max_send_wr = u32::MAX,
                1 => init.cap.max_recv_wr = u32::MAX,
                2 => init.cap.max_send_sge = u32::MAX,
                3 => init.cap.max_recv_sge = u32::MAX,
                4 => init.cap.max_inline_data = u32::MAX,
                _ => init.send_cq = null_mut(),
            }
            assert!(is_refused(ibv_create_qp(rig.pd, &raw mut init)), "change {change}");
        }
        let mut init = rig.init_attr(0xff);
        assert!(ibv_create_qp(rig.pd, &raw mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP, "queue pairs of a driver");
    }
}

#[test]
fn extended_queues_refuse_unsupported_features() {
    let rig = Rig::new();
    let create = |wc_flags, comp_mask, flags| {
        let mut attr = ibv_cq_init_attr_ex { comp_mask, flags, ..extended_cq(1, wc_flags) };
        // SAFETY: the rig keeps the context alive; the structure is a local variable.
        let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) };
        assert!(cq.is_null());
        errno()
    };
    assert_eq!(create(1 << 12, 0, 0), libc::EINVAL);
    assert_eq!(create(1 << 8, 0, 0), libc::EOPNOTSUPP);
    assert_eq!(create(1, 2, 0), libc::EINVAL, "no parent domain");
    assert_eq!(create(1, 4, 0), libc::EOPNOTSUPP);
    assert_eq!(create(1, 1, 4), libc::EOPNOTSUPP);
}

#[test]
fn registration_checks_rights_and_memory() {
    let rig = Rig::new();
    let addr = rig.memory.as_ptr().cast_mut().cast();
    // SAFETY: the rig keeps the domain alive; registration checks the memory before it uses it.
    unsafe {
        assert!(is_refused(ibv_reg_mr(rig.pd, addr, 8, 2)), "REMOTE_WRITE without LOCAL_WRITE");
        assert!(is_refused(ibv_reg_mr(rig.pd, addr, 8, 8)), "REMOTE_ATOMIC without LOCAL_WRITE");
        assert!(is_refused(ibv_reg_mr_iova2(rig.pd, addr, 8, 0, 1 << 30)), "an unknown right");
        assert!(ibv_reg_mr(rig.pd, foreign(), 4096, 1).is_null());
        assert_eq!(errno(), libc::EFAULT, "memory that is not mapped");
    }
}

#[test]
fn invalid_address_handles_are_refused() {
    let rig = Rig::new();
    let refused = |change: fn(&mut ibv_ah_attr)| {
        let mut attr = loopback();
        change(&mut attr);
        // SAFETY: the rig keeps the domain alive; the structure is a local variable.
        is_refused(unsafe { ibv_create_ah(rig.pd, &raw mut attr) })
    };
    assert!(refused(|attr| attr.is_global = 0));
    assert!(refused(|attr| attr.grh.sgid_index = 15));
    assert!(refused(|attr| attr.port_num = 2));
    // SAFETY: the rig keeps the domain alive.
    assert!(is_refused(unsafe { ibv_create_ah(rig.pd, null_mut()) }));
}

#[test]
fn post_checks_state_list_and_queue_space() {
    let rig = Rig::new();
    let fresh = rig.qp(RC);
    let sges = [rig.sge(0, 1); 3];
    assert_eq!(rig.post_recv(fresh, 1, &sges[..1]), libc::EINVAL, "RESET");
    assert_eq!(rig.post_send(fresh, &mut send_wr(1, SEND, &sges[..1])).0, libc::EINVAL, "RESET");
    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_recv(b, 1, &sges), libc::EINVAL, "three elements in a queue for two");
    for wr_id in 0..8 {
        assert_eq!(rig.post_recv(b, wr_id, &sges[..1]), 0);
    }
    assert_eq!(rig.post_recv(b, 8, &sges[..1]), libc::ENOMEM, "full");
    let mut wrong = send_wr(2, SEND, &sges);
    let mut first = send_wr(1, SEND, &sges[..1]);
    first.next = &raw mut wrong;
    assert_eq!(rig.post_send(a, &mut first), (libc::EINVAL, &raw mut wrong), "the second one is bad");
    for opcode in [8, 10, 11, 14, 16, 99] {
        assert_eq!(rig.post_send(a, &mut send_wr(3, opcode, &sges[..1])).0, libc::EINVAL, "opcode {opcode}");
    }
    let mut negative = send_wr(3, SEND, &sges[..1]);
    negative.num_sge = -1;
    assert_eq!(rig.post_send(a, &mut negative).0, libc::EINVAL);
    let mut headless = send_wr(3, SEND, &[]);
    (headless.sg_list, headless.num_sge) = (ptr::null(), 1);
    assert_eq!(rig.post_send(a, &mut headless).0, libc::EINVAL);
    let mut long = send_wr(3, SEND, &[]);
    let inline = [rig.sge(0, 9)];
    (long.sg_list, long.num_sge, long.send_flags) = (inline.as_ptr(), 1, 8);
    assert_eq!(rig.post_send(a, &mut long).0, libc::EINVAL, "72 inline bytes where 64 are allowed");
    let done = rig.completions(2);
    assert!(done.iter().all(|wc| wc.status == 0), "the first request of the list was good");
    destroy(&[a, b, fresh]);
}

#[test]
fn datagram_without_address_handle_is_refused() {
    let rig = Rig::new();
    let ud = rig.ud();
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(1, SEND, &sges);
    wr.wr = wr_union { ud: wr_ud { ah: null_mut(), remote_qpn: 1, remote_qkey: 1 } };
    assert_eq!(rig.post_send(ud, &mut wr).0, libc::EINVAL);
    destroy(&[ud]);
}

#[test]
fn illegal_transition_leaves_qp_unchanged() {
    let rig = Rig::new();
    let qp = rig.qp(RC);
    let mut attr = ibv_qp_attr { qp_state: RTS, ..ibv_qp_attr::default() };
    // SAFETY: the test keeps the QP alive; the structure is a local variable.
    unsafe {
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, STATE), libc::EINVAL, "RESET to RTS");
        attr.qp_state = INIT;
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, STATE), libc::EINVAL, "attributes are missing");
        attr.qp_state = 77;
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, STATE), libc::EINVAL, "no such state");
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, 1 << 30), libc::EINVAL, "no such attribute");
    }
    assert_eq!(state(qp), 0);
    destroy(&[qp]);
}
