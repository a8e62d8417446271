//! Queue pairs that a failed send stops, and what a query tells.

use super::*;

/// Takes a UC QP from RESET to RTS.
fn connect_uc(qp: *mut ibv_qp, peer: u32) {
    let attr = towards(peer);
    modify(qp, ibv_qp_attr { qp_state: INIT, ..attr }, STATE | 1 << 3 | 1 << 4 | 1 << 5);
    modify(qp, ibv_qp_attr { qp_state: RTR, ..attr }, STATE | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20);
    modify(qp, ibv_qp_attr { qp_state: RTS, ..attr }, STATE | 1 << 16);
}

/// Posts a request that cannot be sent and one behind it, and starts the queue again; `good` is then sent.
fn fails_and_goes_on(rig: &Rig, qp: *mut ibv_qp, good: ibv_send_wr) {
    // SAFETY: the list outlives this function.
    let wrong = [ibv_sge { lkey: 0, ..unsafe { *good.sg_list } }];
    let mut behind = ibv_send_wr { wr_id: 2, ..good };
    let mut first = ibv_send_wr { wr_id: 1, sg_list: wrong.as_ptr(), next: &raw mut behind, ..good };
    assert_eq!(rig.post_send(qp, &mut first).0, 0);
    let ends: Vec<_> = rig.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, 4), (2, 5)], "LOC_PROT_ERR, then WR_FLUSH_ERR");
    assert_eq!(query(qp).qp_state, SQE);
    assert_eq!(rig.post_send(qp, &mut ibv_send_wr { wr_id: 3, ..good }).0, 0);
    assert_eq!(rig.completions(1)[0].status, 5, "sends flush in SQE");
    let again = ibv_qp_attr { qp_state: RTS, cur_qp_state: SQE, ..ibv_qp_attr::default() };
    modify(qp, again, STATE | 1 << 1);
    assert_eq!(rig.post_send(qp, &mut ibv_send_wr { wr_id: 4, ..good }).0, 0);
    let ends = rig.completions(2);
    assert!(ends.iter().all(|wc| wc.status == 0), "sent and received");
}

#[test]
fn a_failed_send_stops_an_unreliable_connection_until_it_is_started_again() {
    let rig = Rig::new();
    let (a, b) = (rig.qp(UC), rig.qp(UC));
    connect_uc(a, number(b));
    connect_uc(b, number(a));
    assert_eq!(rig.post_recv(b, 10, &[rig.sge(100, 1)]), 0);
    let sges = [rig.sge(0, 1)];
    fails_and_goes_on(&rig, a, send_wr(0, SEND, &sges));
    destroy(&[a, b]);
}

#[test]
fn a_failed_send_stops_datagrams_until_they_are_started_again() {
    let rig = Rig::new();
    let (a, b, ah) = (rig.ud(), rig.ud(), rig.ah());
    assert_eq!(rig.post_recv(b, 10, &[rig.sge(100, 6)]), 0);
    let sges = [rig.sge(0, 1)];
    let mut good = send_wr(0, SEND, &sges);
    good.wr = wr_union { ud: wr_ud { ah, remote_qpn: number(b), remote_qkey: QKEY } };
    fails_and_goes_on(&rig, a, good);
    destroy_ah(ah);
    destroy(&[a, b]);
}

#[test]
fn a_query_returns_every_attribute_that_was_set() {
    let rig = Rig::new();
    let qp = rig.qp(RC);
    let fresh = query(qp);
    assert_eq!((fresh.qp_state, fresh.dest_qp_num, fresh.ah_attr.is_global), (0, 0, 0));
    let mut way = loopback();
    (way.grh.flow_label, way.grh.hop_limit, way.grh.traffic_class) = (0x0a_bcde, 33, 0x60);
    let mut other_way = way;
    (other_way.grh.flow_label, other_way.grh.hop_limit, other_way.grh.traffic_class) = (0x5, 44, 0x20);
    let attr = ibv_qp_attr {
        path_mtu: 2,
        dest_qp_num: 0x12_3456,
        rq_psn: 0xab_cdef,
        sq_psn: 0x12_3455,
        qp_access_flags: 0b1010,
        ah_attr: way,
        alt_ah_attr: other_way,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 13,
        timeout: 18,
        retry_cnt: 6,
        rnr_retry: 5,
        alt_port_num: 1,
        alt_timeout: 19,
        path_mig_state: 1,
        ..towards(0)
    };
    to_rtr(qp, attr);
    let set = ibv_qp_attr { qp_state: RTS, ..attr };
    modify(qp, set, TO_RTS | 1 << 14 | 1 << 18);
    let now = query(qp);
    assert_eq!((now.qp_state, now.cur_qp_state, now.path_mtu), (RTS, RTS, 2));
    assert_eq!((now.dest_qp_num, now.rq_psn, now.sq_psn), (0x12_3456, 0xab_cdef, 0x12_3455));
    assert_eq!((now.qp_access_flags, now.port_num, now.pkey_index), (0b1010, 1, 0));
    assert_eq!((now.max_rd_atomic, now.max_dest_rd_atomic, now.min_rnr_timer), (3, 5, 13));
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry), (18, 6, 5));
    assert_eq!((now.alt_port_num, now.alt_timeout, now.alt_pkey_index, now.path_mig_state), (1, 19, 0, 1));
    for (found, expected) in [(now.ah_attr, way), (now.alt_ah_attr, other_way)] {
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
