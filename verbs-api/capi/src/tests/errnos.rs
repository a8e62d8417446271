//! Errno of each mistake: ENOMEM for a full queue, EBUSY for an object in use, EINVAL for an
//! argument, EFAULT for missing memory, EBADF for a closed descriptor, ENODATA for an empty entry,
//! EOPNOTSUPP for a missing feature. EAGAIN is tested in `events.rs`, wrong states and foreign
//! handles in `misuse.rs`. EPERM exists only for raw packets.

use super::*;
use crate::cq::{create_cq_ex, ibv_resize_cq, modify_cq};
use crate::domain::{alloc_parent_domain, alloc_td, dealloc_td};
use crate::domain::{close_xrcd, open_xrcd};
use crate::qp::ibv_attach_mcast;
use crate::query::{ibv_query_gid, query_rt_values};
use crate::srq::create_srq_ex;
use crate::srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};

/// Call and mistake, result, and the result that the man page promises.
type Row = (&'static str, c_int, c_int);

fn check_rows(rows: &[Row]) {
    for (what, found, expected) in rows {
        assert_eq!(found, expected, "{what}");
    }
}

/// Asserts that `errno` equals the result of a call, and resets `errno`. Returns the result.
fn checked_errno(returned: c_int) -> c_int {
    assert_eq!(errno(), returned, "programs that call perror need errno too");
    crate::errno::set_errno(0);
    returned
}

/// Asserts that a call returned NULL; returns `errno`.
fn null_errno<T>(pointer: *mut T) -> c_int {
    assert!(pointer.is_null());
    errno()
}

fn srq(rig: &Rig) -> *mut ibv_srq {
    let attr = ibv_srq_attr { max_wr: 2, max_sge: 1, srq_limit: 0 };
    // SAFETY: the rig keeps the domain alive; the structure is a local variable.
    let srq = unsafe { ibv_create_srq(rig.pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr }) };
    assert!(!srq.is_null());
    srq
}

fn post_srq(rig: &Rig, srq: *mut ibv_srq, sges: &[ibv_sge]) -> c_int {
    let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: sges.as_ptr(), num_sge: sges.len() as c_int };
    // SAFETY: the test keeps the SRQ alive; the list is one local variable.
    unsafe { rig.ops().post_srq_recv.unwrap()(srq, &raw mut wr, &mut null_mut()) }
}

#[test]
fn full_queue_is_enomem() {
    let rig = Rig::new();
    let (qp, srq) = (rig.qp(RC), srq(&rig));
    connect(qp, qp_num(qp));
    modify(qp, ibv_qp_attr { qp_state: SQD, ..ibv_qp_attr::default() }, STATE);
    let sges = [rig.sge(0, 1)];
    for wr_id in 0..8 {
        assert_eq!(rig.post_send(qp, &mut send_wr(wr_id, SEND, &sges)).0, 0);
        assert_eq!(rig.post_recv(qp, wr_id, &sges), 0);
    }
    assert_eq!([post_srq(&rig, srq, &sges), post_srq(&rig, srq, &sges)], [0, 0]);
    let mut send = send_wr(8, SEND, &sges);
    check_rows(&[
        ("send queue", checked_errno(rig.post_send(qp, &mut send).0), libc::ENOMEM),
        ("receive queue", checked_errno(rig.post_recv(qp, 8, &sges)), libc::ENOMEM),
        ("shared receive queue", checked_errno(post_srq(&rig, srq, &sges)), libc::ENOMEM),
        ("a longer list in a shared receive queue", post_srq(&rig, srq, &[sges[0]; 2]), libc::EINVAL),
    ]);
    destroy(&[qp]);
    // SAFETY: the test created the SRQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_srq(srq) }, 0);
}

#[test]
fn object_in_use_is_ebusy() {
    let rig = Rig::new();
    let (srq, mut xrcd_init) = (srq(&rig), ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT });
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let qp = ibv_create_qp(rig.pd, &mut ibv_qp_init_attr { srq, ..rig.init_attr(RC) });
        let ah = rig.ah();
        let xrcd = open_xrcd(rig.context, &raw mut xrcd_init);
        let attr = ibv_srq_attr { max_wr: 2, max_sge: 1, srq_limit: 0 };
        let (srq_context, pd, cq) = (null_mut(), rig.pd, rig.cq);
        let xsrq = create_srq_ex(
            rig.context,
            &mut ibv_srq_init_attr_ex { srq_context, attr, comp_mask: 0xf, srq_type: 1, pd, xrcd, cq, tm_cap: [0; 2] },
        );
        let td = alloc_td(rig.context, &mut ibv_td_init_attr { comp_mask: 0 });
        let mut init = ibv_parent_domain_init_attr {
            pd: rig.pd,
            td,
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: null_mut(),
        };
        let parent = alloc_parent_domain(rig.context, &raw mut init);
        assert!(![qp.cast(), xrcd.cast(), xsrq.cast(), td.cast(), parent.cast::<c_void>()].contains(&null_mut()));
        check_rows(&[
            ("domain of regions, queues and handles", checked_errno(ibv_dealloc_pd(rig.pd)), libc::EBUSY),
            ("completion queue of a queue pair", checked_errno(ibv_destroy_cq(rig.cq)), libc::EBUSY),
            ("channel of a completion queue", checked_errno(ibv_destroy_comp_channel(rig.channel)), libc::EBUSY),
            ("shared receive queue of a queue pair", checked_errno(ibv_destroy_srq(srq)), libc::EBUSY),
            ("XRC domain of a shared receive queue", checked_errno(close_xrcd(xrcd)), libc::EBUSY),
            ("thread domain of a parent domain", checked_errno(dealloc_td(td)), libc::EBUSY),
        ]);
        destroy(&[qp]);
        destroy_ah(ah);
        check_rows(&[
            ("shared receive queue without its queue pair", ibv_destroy_srq(srq), 0),
            ("XRC receive queue", ibv_destroy_srq(xsrq), 0),
            ("XRC domain", close_xrcd(xrcd), 0),
            ("parent domain", ibv_dealloc_pd(parent), 0),
            ("thread domain", dealloc_td(td), 0),
        ]);
    }
}

#[test]
fn wrong_mask_or_value_is_einval() {
    let rig = Rig::new();
    let (qp, srq) = (rig.qp(RC), srq(&rig));
    let modify_srq = |max_wr, srq_limit, mask| {
        // SAFETY: this test keeps the SRQ alive; the structure is a local variable.
        unsafe { ibv_modify_srq(srq, &mut ibv_srq_attr { max_wr, max_sge: 1, srq_limit }, mask) }
    };
    let modify_qp = |change: fn(&mut ibv_qp_attr), mask| {
        let mut attr = ibv_qp_attr { qp_state: INIT, port_num: 1, ..ibv_qp_attr::default() };
        change(&mut attr);
        // SAFETY: the test keeps the QP alive; the structure is a local variable.
        unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }
    };
    let init = STATE | 1 << 3 | 1 << 4 | 1 << 5;
    let mut group = loopback().grh.dgid;
    group.raw[12] = 239;
    let (raw_clock, moderate) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, ibv_moderate_cq::default());
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    let (mcast, clock, cq, size, limit) = unsafe {
        (
            ibv_attach_mcast(qp, &raw const group, 0),
            query_rt_values(rig.context, &mut ibv_values_ex { comp_mask: 4, raw_clock }),
            modify_cq(rig.cq, &mut ibv_modify_cq_attr { attr_mask: 4, moderate }),
            ibv_resize_cq(rig.cq, 0),
            ibv_modify_srq(srq, null_mut(), 1),
        )
    };
    let found = {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 9 };
        assert_eq!(modify_srq(16, 0, 1), 0);
        // SAFETY: this test keeps the SRQ alive; the structure is a local variable.
        assert_eq!(unsafe { ibv_query_srq(srq, &raw mut attr) }, 0);
        (attr.max_wr, attr.max_sge, attr.srq_limit)
    };
    assert_eq!(found, (16, 1, 0), "the size was changed, and nothing else");
    check_rows(&[
        ("modify_qp: an attribute that does not exist", modify_qp(|_| (), init | 1 << 22), libc::EINVAL),
        (
            "modify_qp: an attribute that this transition does not take",
            modify_qp(|_| (), init | mask::TIMEOUT),
            libc::EINVAL,
        ),
        ("modify_qp: an attribute is missing", modify_qp(|_| (), init & !mask::PORT), libc::EINVAL),
        ("modify_qp: a P_Key index beyond the table", modify_qp(|attr| attr.pkey_index = 1, init), libc::EINVAL),
        ("modify_qp: a port that does not exist", modify_qp(|attr| attr.port_num = 2, init), libc::EINVAL),
        (
            "modify_qp: a right that does not exist",
            modify_qp(|attr| attr.qp_access_flags = 1 << 30, init),
            libc::EINVAL,
        ),
        ("modify_qp: a state that does not exist", modify_qp(|attr| attr.qp_state = 9, init), libc::EINVAL),
        ("modify_qp: good", modify_qp(|_| (), init), 0),
        ("modify_srq: an attribute that does not exist", modify_srq(2, 0, 4), libc::EINVAL),
        ("modify_srq: a limit beyond the size", modify_srq(2, 17, 2), libc::EINVAL),
        ("modify_srq: a size beyond the device", modify_srq(u32::MAX, 0, 1), libc::EINVAL),
        ("modify_srq: no attributes", limit, libc::EINVAL),
        ("attach_mcast: not a datagram queue", mcast, libc::EINVAL),
        ("query_rt_values: a value that does not exist", clock, libc::EINVAL),
        ("modify_cq: an attribute that does not exist", cq, libc::EINVAL),
        ("resize_cq: to nothing", size, libc::EINVAL),
    ]);
    destroy(&[qp]);
    // SAFETY: the test created the SRQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_srq(srq) }, 0);
}

#[test]
fn bad_memory_fds_and_flags_have_manual_errnos() {
    let rig = Rig::new();
    let (mut wrong_fd, mut gid) = (ibv_xrcd_init_attr { comp_mask: 3, fd: 1 << 20, oflags: 0 }, ibv_gid::default());
    let mut vlan = extended_cq(1, 1 << 8);
    // SAFETY: the rig keeps the handles alive; the structures are local variables; registration
    // checks the memory.
    unsafe {
        check_rows(&[
            ("reg_mr: memory that is not mapped", null_errno(ibv_reg_mr(rig.pd, foreign(), 4096, 1)), libc::EFAULT),
            (
                "open_xrcd: a descriptor that is not open",
                null_errno(open_xrcd(rig.context, &raw mut wrong_fd)),
                libc::EBADF,
            ),
            ("create_cq_ex: VLAN tags", null_errno(create_cq_ex(rig.context, &raw mut vlan)), libc::EOPNOTSUPP),
            (
                "create_cq: no entries",
                null_errno(ibv_create_cq(rig.context, 0, null_mut(), null_mut(), 0)),
                libc::EINVAL,
            ),
            ("query_gid: outside the table", ibv_query_gid(rig.context, 1, 16, &raw mut gid), -1),
        ]);
    }
}
