//! Queried attributes, and attributes that change while a request is posted.

use super::*;

#[test]
fn query_qp_returns_modified_attributes() {
    let rig = Rig::new();
    let qp = rig.qp(RC);
    let fresh = query(qp);
    assert_eq!((fresh.qp_state, fresh.dest_qp_num, fresh.ah_attr.is_global), (0, 0, 0));
    let mut primary = loopback();
    (primary.grh.flow_label, primary.grh.hop_limit, primary.grh.traffic_class) = (0x0a_bcde, 33, 0x60);
    let mut alternate = primary;
    (alternate.grh.flow_label, alternate.grh.hop_limit, alternate.grh.traffic_class) = (0x5, 44, 0x20);
    let attr = ibv_qp_attr {
        path_mtu: 2,
        dest_qp_num: 0x12_3456,
        rq_psn: 0xab_cdef,
        sq_psn: 0x12_3455,
        qp_access_flags: 0b1010,
        ah_attr: primary,
        alt_ah_attr: alternate,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 13,
        timeout: 18,
        retry_cnt: 6,
        rnr_retry: 5,
        alt_port_num: 1,
        alt_timeout: 19,
        path_mig_state: 1,
        ..connect_attr(0)
    };
    to_rtr(qp, attr);
    let set = ibv_qp_attr { qp_state: RTS, ..attr };
    modify(qp, set, TO_RTS | mask::ALT_PATH | mask::PATH_MIG_STATE);
    let now = query(qp);
    assert_eq!((now.qp_state, now.cur_qp_state, now.path_mtu), (RTS, RTS, 2));
    assert_eq!((now.dest_qp_num, now.rq_psn, now.sq_psn), (0x12_3456, 0xab_cdef, 0x12_3455));
    assert_eq!((now.qp_access_flags, now.port_num, now.pkey_index), (0b1010, 1, 0));
    assert_eq!((now.max_rd_atomic, now.max_dest_rd_atomic, now.min_rnr_timer), (3, 5, 13));
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry), (18, 6, 5));
    assert_eq!((now.alt_port_num, now.alt_timeout, now.alt_pkey_index, now.path_mig_state), (1, 19, 0, 1));
    for (found, expected) in [(now.ah_attr, primary), (now.alt_ah_attr, alternate)] {
        assert_eq!((found.is_global, found.port_num, found.grh.dgid.raw), (1, 1, expected.grh.dgid.raw));
        let grh =
            |attr: ibv_ah_attr| (attr.grh.flow_label, attr.grh.hop_limit, attr.grh.traffic_class, attr.grh.sgid_index);
        assert_eq!(grh(found), grh(expected));
    }
    assert!((now.cap.max_send_wr, now.cap.max_recv_wr) >= (8, 8) && now.cap.max_inline_data >= 64);
    assert_eq!((now.sq_draining, now.en_sqd_async_notify), (0, 0));
    destroy(&[qp]);
    let ud = rig.ud();
    assert_eq!((query(ud).qkey, query(ud).qp_state), (QKEY, RTS));
    destroy(&[ud]);
}

#[test]
fn read_after_max_rd_atomic_becomes_0_is_loc_qp_op_err() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    modify(a, ibv_qp_attr { qp_state: SQD, ..ibv_qp_attr::default() }, STATE);
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut rdma_wr(1, READ, &sges, rig.addr(200), rig.rkey())).0, 0);
    modify(
        a,
        ibv_qp_attr { qp_state: SQD, max_rd_atomic: 0, ..ibv_qp_attr::default() },
        STATE | mask::MAX_QP_RD_ATOMIC,
    );
    let mut start = ibv_qp_attr { qp_state: RTS, ..ibv_qp_attr::default() };
    // SAFETY: the test keeps the QP alive; the structure is a local variable.
    assert_eq!(unsafe { ibv_modify_qp(a, &raw mut start, STATE) }, 0);
    assert_eq!((rig.completions(1)[0].status, query(a).qp_state), (2, ERR), "LOC_QP_OP_ERR");
    destroy(&[a, b]);
}
