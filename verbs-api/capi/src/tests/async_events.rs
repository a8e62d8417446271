//! Asynchronous events of queues and queue pairs and their causes.
//!
//! Port events are tested in `provider/device/tests/integration/port.rs`, path migration in
//! `migration.rs`, SRQ_LIMIT_REACHED in `provider/device/src/srq/tests.rs`. Other events of the
//! manual have no cause: Ethernet has no LIDs and no subnet manager, the P_Key table never changes,
//! and an SRQ cannot fail.

use super::*;
use crate::cq::create_cq_ex;

const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const COMM_EST: c_int = 4;
const SQ_DRAINED: c_int = 5;

/// Returns the QP of the next event of this kind.
fn qp_of(rig: &Rig, kind: c_int) -> *mut ibv_qp {
    // SAFETY: events of this kind carry a QP.
    unsafe { rig.async_event(kind).qp }
}

#[test]
fn first_packet_in_rtr_reports_comm_est() {
    let rig = Rig::new();
    let (a, b) = (rig.qp(RC), rig.qp(RC));
    connect(a, qp_num(b));
    to_rtr(b, connect_attr(qp_num(a)));
    assert_eq!(rig.post_recv(b, 1, &[rig.sge(100, 1)]), 0);
    assert_eq!(rig.post_send(a, &mut send_wr(2, SEND, &[rig.sge(0, 1)])).0, 0);
    assert_eq!(qp_of(&rig, COMM_EST), b);
    assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
    destroy(&[a, b]);
}

#[test]
fn sq_drained_is_reported_after_started_requests() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    // The request starts, and cannot finish before the peer posts a receive.
    assert_eq!(rig.post_send(a, &mut send_wr(1, SEND, &[rig.sge(0, 1)])).0, 0);
    modify(
        a,
        ibv_qp_attr { qp_state: SQD, en_sqd_async_notify: 1, ..ibv_qp_attr::default() },
        STATE | mask::EN_SQD_ASYNC_NOTIFY,
    );
    assert_eq!((query(a).sq_draining, query(a).en_sqd_async_notify), (1, 1));
    assert_eq!(rig.post_send(a, &mut send_wr(2, SEND, &[rig.sge(0, 1)])).0, 0, "waits for RTS");
    assert_eq!(rig.post_recv(b, 11, &[rig.sge(100, 1)]), 0);
    assert_eq!(rig.post_recv(b, 12, &[rig.sge(100, 1)]), 0);
    assert_eq!(qp_of(&rig, SQ_DRAINED), a);
    assert_eq!(query(a).sq_draining, 0);
    let drained: Vec<_> = rig.completions(2).iter().map(|wc| wc.wr_id).collect();
    assert!(drained.contains(&1) && drained.contains(&11), "{drained:?}");
    modify(a, ibv_qp_attr { qp_state: RTS, ..ibv_qp_attr::default() }, STATE);
    let rest: Vec<_> = rig.completions(2).iter().map(|wc| wc.wr_id).collect();
    assert!(rest.contains(&2) && rest.contains(&12), "{rest:?}");
    destroy(&[a, b]);
}

#[test]
fn cq_overrun_fails_cq_and_qp() {
    let rig = Rig::new();
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let small = ibv_create_cq(rig.context, 1, null_mut(), null_mut(), 0);
        let (a, b) = (rig.qp(RC), ibv_create_qp(rig.pd, &mut ibv_qp_init_attr { recv_cq: small, ..rig.init_attr(RC) }));
        connect(a, qp_num(b));
        connect(b, qp_num(a));
        for wr_id in 0..3 {
            assert_eq!(rig.post_recv(b, wr_id, &[rig.sge(100, 1)]), 0);
        }
        for wr_id in 10..12 {
            assert_eq!(rig.post_send(a, &mut send_wr(wr_id, SEND, &[rig.sge(0, 1)])).0, 0);
        }
        assert_eq!(rig.async_event(CQ_ERR).cq, small);
        assert_eq!(qp_of(&rig, QP_FATAL), b);
        assert_eq!(query(b).qp_state, ERR);
        let mut wc = [ibv_wc::default(); 4];
        assert_eq!(rig.ops().poll_cq.unwrap()(small, 4, wc.as_mut_ptr()), 1, "earlier completions are kept");
        assert_eq!((wc[0].wr_id, wc[0].status), (0, 0));
        destroy(&[a, b]);
        assert_eq!(ibv_destroy_cq(small), 0);
    }
}

#[test]
fn cq_ignoring_overrun_holds_more_than_its_size() {
    let mut rig = Rig::new();
    let mut attr = ibv_cq_init_attr_ex { comp_mask: 1, flags: 2, ..extended_cq(1, 0) };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) }.cast::<ibv_cq>();
    assert!(!cq.is_null());
    let plain_cq = core::mem::replace(&mut rig.cq, cq);
    let qp = rig.qp(RC);
    connect(qp, qp_num(qp));
    modify(qp, ibv_qp_attr { qp_state: ERR, ..ibv_qp_attr::default() }, STATE);
    for wr_id in 0..8 {
        assert_eq!(rig.post_recv(qp, wr_id, &[rig.sge(0, 1)]), 0);
    }
    assert_eq!(rig.completions(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    destroy(&[qp]);
    // SAFETY: this test created the CQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
    rig.cq = plain_cq;
}
