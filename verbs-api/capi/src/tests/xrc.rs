//! XRC: domains, SRQs with numbers, targets with several handles.

use super::*;
use crate::domain::{close_xrcd, open_xrcd};
use crate::qp::ibv_qp_to_qp_ex;
use crate::qp::open_qp;
use crate::srq::create_srq_ex;
use crate::srq::get_srq_num;
use crate::srq::{ibv_create_srq, ibv_destroy_srq};
use std::os::fd::AsRawFd;

const XRC_SEND: c_int = 9;
const XRC_RECV: c_int = 10;

fn domain(rig: &Rig, fd: c_int, oflags: c_int) -> *mut ibv_xrcd {
    let mut init = ibv_xrcd_init_attr { comp_mask: 3, fd, oflags };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    unsafe { open_xrcd(rig.context, &raw mut init) }
}

fn close(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the call looks the handle up.
    unsafe { close_xrcd(xrcd) }
}

fn srq(rig: &Rig, xrcd: *mut ibv_xrcd) -> (*mut ibv_srq, u32) {
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let (srq_context, pd, cq) = (null_mut(), rig.pd, rig.cq);
    let mut init =
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask: 0xf, srq_type: 1, pd, xrcd, cq, tm_cap: [0; 2] };
    let mut number = 0;
    // SAFETY: the test keeps the handles alive; the pointers are to local variables.
    unsafe {
        let srq = create_srq_ex(rig.context, &raw mut init);
        assert!(!srq.is_null());
        assert_eq!(get_srq_num(srq, &raw mut number), 0);
        (srq, number)
    }
}

fn target(rig: &Rig, xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let mut init = rig.init_ex(XRC_RECV);
    (init.comp_mask, init.xrcd, init.send_cq, init.recv_cq) = (2, xrcd, null_mut(), null_mut());
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let qp = unsafe { create_qp_ex(rig.context, &raw mut init) };
    assert!(!qp.is_null());
    qp
}

fn initiator(rig: &Rig) -> *mut ibv_qp {
    let mut init = rig.init_ex(XRC_SEND);
    init.recv_cq = null_mut();
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let qp = unsafe { create_qp_ex(rig.context, &raw mut init) };
    assert!(!qp.is_null());
    qp
}

fn post_to(rig: &Rig, srq: *mut ibv_srq, wr_id: u64, sges: &[ibv_sge]) {
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_ptr(), num_sge: sges.len() as c_int };
    // SAFETY: the test keeps the SRQ alive; the list is one local variable.
    assert_eq!(unsafe { rig.ops().post_srq_recv.unwrap()(srq, &raw mut wr, null_mut()) }, 0);
}

fn destroy_srq(srq: *mut ibv_srq) {
    // SAFETY: the test created the SRQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_srq(srq) }, 0);
}

#[test]
fn xrc_message_is_routed_by_srq_number() {
    let mut rig = Rig::new();
    let xrcd = domain(&rig, -1, libc::O_CREAT);
    let queues = [srq(&rig, xrcd), srq(&rig, xrcd)];
    let (ini, tgt) = (initiator(&rig), target(&rig, xrcd));
    connect(ini, qp_num(tgt));
    connect(tgt, qp_num(ini));
    rig.set(0, 41);
    for (at, (srq, _)) in (0..).zip(queues) {
        post_to(&rig, srq, at, &[rig.sge(100 + at as usize, 1)]);
    }
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(7, SEND, &sges);
    wr.remote_srqn = queues[1].1;
    assert_eq!(rig.post_send(ini, &mut wr).0, 0);
    let got = rig.completions(2).into_iter().find(|wc| wc.wr_id == 1).unwrap();
    assert_eq!((got.status, got.byte_len, got.qp_num, rig.word(101)), (0, 8, qp_num(tgt), 41));
    let (lkey, from) = (rig.lkey(), rig.addr(0));
    // SAFETY: this test keeps the QP alive, and calls its builders in the order of the man page.
    unsafe {
        let x = ibv_qp_to_qp_ex(ini);
        let ops = &*x;
        ops.wr_start.unwrap()(x);
        ((*x).wr_id, (*x).wr_flags) = (8, 2);
        ops.wr_send.unwrap()(x);
        ops.wr_set_xrc_srqn.unwrap()(x, queues[0].1);
        ops.wr_set_sge.unwrap()(x, lkey, from, 8);
        assert_eq!(ops.wr_complete.unwrap()(x), 0);
    }
    assert!(rig.completions(2).iter().all(|wc| wc.status == 0 && [8, 0].contains(&wc.wr_id)));
    assert_eq!(rig.word(100), 41);
    assert_eq!(close(xrcd), libc::EBUSY);
    destroy(&[ini, tgt]);
    queues.into_iter().for_each(|(srq, _)| destroy_srq(srq));
    assert_eq!(close(xrcd), 0);
    assert_eq!(close(xrcd), libc::EINVAL);
}

#[test]
fn xrc_target_lives_until_its_last_handle() {
    let rig = Rig::new();
    let xrcd = domain(&rig, -1, libc::O_CREAT);
    let first = target(&rig, xrcd);
    let mut attr =
        ibv_qp_open_attr { comp_mask: 0xf, qp_num: qp_num(first), xrcd, qp_context: null_mut(), qp_type: XRC_RECV };
    // SAFETY: the rig keeps the context alive; the structures are local variables.
    unsafe {
        let second = open_qp(rig.context, &raw mut attr);
        assert!(!second.is_null() && second != first && qp_num(second) == qp_num(first));
        let init = ibv_qp_attr { qp_state: INIT, port_num: 1, ..ibv_qp_attr::default() };
        modify(first, init, TO_INIT);
        destroy(&[first]);
        let (mut now, mut made) = (ibv_qp_attr::default(), rig.init_attr(RC));
        assert_eq!(ibv_query_qp(second, &raw mut now, 1, &raw mut made), 0);
        assert_eq!((now.qp_state, state(second), made.qp_type), (INIT, INIT, XRC_RECV));
        assert_eq!(close(xrcd), libc::EBUSY);
        destroy(&[second]);
        assert!(open_qp(rig.context, &raw mut attr).is_null());
    }
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(close(xrcd), 0);
}

#[test]
fn xrc_domain_needs_an_open_file_or_o_creat() {
    let rig = Rig::new();
    assert!(domain(&rig, -1, 0).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(domain(&rig, 1 << 20, libc::O_CREAT).is_null());
    assert_eq!(errno(), libc::EBADF);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(domain(&rig, file.as_raw_fd(), 0).is_null());
    assert_eq!(errno(), libc::EAGAIN);
    let xrcd = domain(&rig, file.as_raw_fd(), libc::O_CREAT);
    assert!(!xrcd.is_null());
    assert!(domain(&rig, file.as_raw_fd(), libc::O_CREAT | libc::O_EXCL).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let again = domain(&rig, file.as_raw_fd(), 0);
    assert_eq!((close(xrcd), close(again)), (0, 0));
    let mut init =
        ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 } };
    let mut number = 0;
    // SAFETY: the rig keeps its handles alive; the pointers are to local variables.
    unsafe {
        let plain = ibv_create_srq(rig.pd, &raw mut init);
        assert_eq!(get_srq_num(plain, &raw mut number), libc::EINVAL);
        destroy_srq(plain);
        assert_eq!(get_srq_num(null_mut(), &raw mut number), libc::EINVAL);
        let mut orphan = rig.init_ex(XRC_RECV);
        orphan.comp_mask = 2;
        assert!(create_qp_ex(rig.context, &raw mut orphan).is_null());
    }
    assert_eq!(errno(), libc::EINVAL);
}
