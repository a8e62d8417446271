//! Posting and polling through the function pointers, both ends in this process.

use super::*;
use crate::ah::ibv_create_ah_from_wc;
use crate::cq::create_cq_ex;
use crate::qp::ibv_qp_to_qp_ex;

#[test]
fn list_is_posted_in_order_and_inline_data_copied() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    for wr_id in 0..2 {
        assert_eq!(rig.post_recv(b, wr_id, &[rig.sge(100 + wr_id as usize, 1)]), 0);
    }
    let mut bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
    let (left, right) = bytes.split_at_mut(3);
    // Inline data needs no key.
    let part = |bytes: &mut [u8]| ibv_sge {
        addr: bytes.as_mut_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    };
    let sges = [part(left), part(right)];
    let mut second = send_wr(11, SEND, &sges);
    let mut first = send_wr(10, SEND, &sges);
    (first.send_flags, second.send_flags) = (8, 8 | 2);
    first.next = &raw mut second;
    assert_eq!(rig.post_send(a, &mut first).0, 0);
    bytes.fill(0xff);
    let ids: Vec<_> = rig.completions(3).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert!(ids.contains(&(11, 0)) && !ids.contains(&(10, 0)), "only the second one is signaled: {ids:?}");
    let expected = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((rig.word(100), rig.word(101)), (expected, expected));
    destroy(&[a, b]);
}

#[test]
fn datagram_grh_makes_a_reply_address() {
    let mut rig = Rig::new();
    let (a, b, ah) = (rig.ud(), rig.ud(), rig.ah());
    rig.set(0, 77);
    assert_eq!(rig.post_recv(b, 1, &[rig.sge(100, 6)]), 0);
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(2, SEND, &sges);
    wr.wr = wr_union { ud: wr_ud { ah, remote_qpn: qp_num(b), remote_qkey: QKEY } };
    assert_eq!(rig.post_send(a, &mut wr).0, 0);
    let wcs = rig.completions(2);
    let mut received = *wcs.iter().find(|wc| wc.wr_id == 1).unwrap();
    assert_eq!((received.status, received.byte_len, received.src_qp), (0, 48, qp_num(a)));
    assert_eq!((received.wc_flags, received.sl), (1, 0b1010));
    assert_eq!(rig.word(105), 77);
    let area = ptr::with_exposed_provenance_mut(rig.memory.as_ptr().wrapping_add(100).expose_provenance());
    // SAFETY: the rig keeps the domain and the memory alive; `received` is the completion that
    // filled `area`.
    let back = unsafe { ibv_create_ah_from_wc(rig.pd, &raw mut received, area, 1) };
    assert!(!back.is_null());
    destroy_ah(back);
    destroy_ah(ah);
    destroy(&[a, b]);
}

#[test]
fn batch_is_posted_completely_or_not_at_all() {
    let mut rig = Rig::new();
    let (a, b) = (rig.qp_ex(RC), rig.qp(RC));
    connect(a, qp_num(b));
    connect(b, qp_num(a));
    rig.set(0, 31);
    let (lkey, from, to, rkey) = (rig.lkey(), rig.addr(0), rig.addr(300), rig.rkey());
    // SAFETY: this test keeps the QP alive, and calls its builders in the order of the man page.
    unsafe {
        let x = ibv_qp_to_qp_ex(a);
        let ops = &*x;
        ops.wr_start.unwrap()(x);
        (*x).wr_id = 1;
        (*x).wr_flags = 2;
        ops.wr_rdma_write.unwrap()(x, rkey, to);
        ops.wr_set_sge.unwrap()(x, lkey, from, 8);
        ops.wr_abort.unwrap()(x);

        ops.wr_start.unwrap()(x);
        ops.wr_rdma_write.unwrap()(x, rkey, to);
        ops.wr_set_sge_list.unwrap()(x, 3, [rig.sge(0, 1); 3].as_ptr());
        assert_eq!(ops.wr_complete.unwrap()(x), libc::EINVAL, "three elements in a queue for two");
        assert_eq!(rig.word(300), 0);

        ops.wr_start.unwrap()(x);
        (*x).wr_id = 2;
        ops.wr_rdma_write.unwrap()(x, rkey, to);
        ops.wr_set_sge.unwrap()(x, lkey, from, 8);
        (*x).wr_id = 3;
        ops.wr_rdma_write.unwrap()(x, rkey, to + 8);
        let mut word = 32u64;
        ops.wr_set_inline_data.unwrap()(x, (&raw mut word).cast(), 8);
        assert_eq!(ops.wr_complete.unwrap()(x), 0);
    }
    let done: Vec<_> = rig.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(2, 0), (3, 0)]);
    assert_eq!((rig.word(300), rig.word(301)), (31, 32));
    destroy(&[a, b]);
}

#[test]
fn refused_batch_posts_nothing() {
    let rig = Rig::new();
    let (a, b) = (rig.qp_ex(RC), rig.qp(RC));
    connect(a, qp_num(b));
    connect(b, qp_num(a));
    let mut word = 0u64;
    // SAFETY: this test keeps the QP alive, and calls its builders in the order of the man page.
    unsafe {
        let x = ibv_qp_to_qp_ex(a);
        (*x).wr_flags = 2;
        (*x).wr_start.unwrap()(x);
        for _ in 0..9 {
            (*x).wr_rdma_write.unwrap()(x, rig.rkey(), rig.addr(300));
        }
        assert_eq!((*x).wr_complete.unwrap()(x), libc::ENOMEM, "nine requests in a queue of eight");
        (*x).wr_start.unwrap()(x);
        (*x).wr_rdma_write.unwrap()(x, rig.rkey(), rig.addr(300));
        (*x).wr_rdma_read.unwrap()(x, rig.rkey(), rig.addr(300));
        (*x).wr_set_inline_data.unwrap()(x, (&raw mut word).cast(), 8);
        assert_eq!((*x).wr_complete.unwrap()(x), libc::EINVAL, "a READ into inline data");
        (*x).wr_start.unwrap()(x);
        (*x).wr_id = 5;
        (*x).wr_rdma_write.unwrap()(x, rig.rkey(), rig.addr(300));
        assert_eq!((*x).wr_complete.unwrap()(x), 0);
    }
    let done = rig.completions(1);
    assert_eq!((done[0].wr_id, done[0].status), (5, 0), "the first completion is of the last batch");
    destroy(&[a, b]);
}

#[test]
fn extended_cq_is_polled_entry_by_entry() {
    let mut rig = Rig::new();
    let mut attr = extended_cq(16, 0x8ff);
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) };
    assert!(!cq.is_null());
    let plain_cq = rig.cq;
    rig.cq = cq.cast();
    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_recv(b, 1, &[rig.sge(100, 1)]), 0);
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut send_wr(2, SEND, &sges)).0, 0);
    let (mut ids, deadline) = (vec![], Instant::now() + TIMEOUT);
    // SAFETY: this test created the extended CQ, and calls it in the order of the man page.
    unsafe {
        while ids.len() < 2 {
            assert!(Instant::now() < deadline);
            if (*cq).start_poll.unwrap()(cq, &mut ibv_poll_cq_attr { comp_mask: 0 }) != 0 {
                continue;
            }
            loop {
                ids.push((*cq).wr_id);
                assert_eq!((*cq).status, 0);
                if (*cq).wr_id == 1 {
                    assert_eq!((*cq).read_opcode.unwrap()(cq), 128);
                    assert_eq!((*cq).read_byte_len.unwrap()(cq), 8);
                    assert_eq!((*cq).read_qp_num.unwrap()(cq), qp_num(b));
                    assert_ne!((*cq).read_completion_ts.unwrap()(cq), 0);
                    assert!((*cq).read_completion_wallclock_ns.unwrap()(cq) > 1_500_000_000_000_000_000);
                }
                if (*cq).next_poll.unwrap()(cq) != 0 {
                    break;
                }
            }
            (*cq).end_poll.unwrap()(cq);
        }
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        destroy(&[a, b]);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
    }
    rig.cq = plain_cq;
}

#[test]
fn queries_return_created_attributes() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let (mut attr, mut init) = (ibv_qp_attr::default(), rig.init_attr(UD));
    // SAFETY: the test keeps the QP alive; the structures are local variables.
    assert_eq!(unsafe { ibv_query_qp(a, &raw mut attr, 1, &raw mut init) }, 0);
    assert_eq!((attr.qp_state, attr.cur_qp_state, attr.dest_qp_num, attr.path_mtu), (RTS, RTS, qp_num(b), 3));
    assert_eq!((attr.ah_attr.is_global, attr.ah_attr.grh.dgid.raw), (1, loopback().grh.dgid.raw));
    assert_eq!((attr.rnr_retry, attr.retry_cnt, attr.timeout, attr.min_rnr_timer), (7, 7, 14, 1));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.rq_psn, attr.sq_psn), (4, 4, 7, 7));
    assert_eq!((init.qp_type, init.send_cq), (RC, rig.cq));
    assert!(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 64);
    destroy(&[a, b]);
}
