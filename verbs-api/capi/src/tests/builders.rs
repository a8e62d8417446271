//! The `ibv_wr_*` interface: data, addresses, operations; misuse fails `wr_complete`.

use super::*;
use crate::qp::ibv_qp_to_qp_ex;

type Qpx = *mut ibv_qp_ex;
/// Calls between `wr_start` and `wr_complete`.
type Step<'a> = &'a dyn Fn(&ibv_qp_ex, Qpx);

const UC: c_int = 3;
const XRC_SEND: c_int = 9;
/// `IBV_ACCESS_FLUSH_GLOBAL` and the other rights.
const FLUSHABLE: c_int = ALL_ACCESS | 1 << 8;

/// Returns a QP of this type with builders in RTS, connected to itself.
fn self_connected(rig: &Rig, qp_type: c_int) -> *mut ibv_qp {
    let mut init = rig.init_ex(qp_type);
    init.send_ops_flags = if qp_type == UD { 0xc } else { 0xf };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let qp = unsafe { create_qp_ex(rig.context, &raw mut init) };
    assert!(!qp.is_null());
    match qp_type {
        UD => ud_to_rts(qp),
        UC => connect_uc(qp, qp_num(qp)),
        _ => connect(qp, qp_num(qp)),
    }
    qp
}

/// Moves a UC QP from RESET to RTS.
fn connect_uc(qp: *mut ibv_qp, peer: u32) {
    let attr = ibv_qp_attr {
        qp_state: INIT,
        path_mtu: 3,
        dest_qp_num: peer,
        qp_access_flags: 2,
        ah_attr: loopback(),
        port_num: 1,
        ..ibv_qp_attr::default()
    };
    modify(qp, attr, TO_INIT);
    modify(qp, ibv_qp_attr { qp_state: RTR, ..attr }, TO_RTR_OF_UC);
    modify(qp, ibv_qp_attr { qp_state: RTS, ..attr }, STATE | mask::SQ_PSN);
}

fn qpx_of(qp: *mut ibv_qp) -> Qpx {
    // SAFETY: the test keeps the QP alive.
    let x = unsafe { ibv_qp_to_qp_ex(qp) };
    assert!(!x.is_null());
    x
}

/// Returns the result of a batch of `steps`, whose requests are signaled and numbered `wr_id`.
fn batch(x: Qpx, wr_id: u64, steps: impl FnOnce(&ibv_qp_ex, Qpx)) -> c_int {
    // SAFETY: the caller keeps the QP alive, and it has builders; the calls follow the order of the
    // man page.
    unsafe {
        (*x).wr_start.unwrap()(x);
        ((*x).wr_id, (*x).wr_flags) = (wr_id, 2);
        steps(&*x, x);
        (*x).wr_complete.unwrap()(x)
    }
}

/// Asserts that earlier batches posted nothing: the next completion is that of an empty request.
fn assert_untouched(rig: &Rig, qp: *mut ibv_qp, qp_type: c_int) {
    let (x, ah) = (qpx_of(qp), rig.ah());
    let rc = batch(x, 77, |ops, x| {
        // SAFETY: the caller keeps the QP alive and this function the handle; `batch` calls this
        // between start and complete.
        unsafe {
            if qp_type == UD {
                ops.wr_send.unwrap()(x);
                ops.wr_set_ud_addr.unwrap()(x, ah, qp_num(qp), QKEY ^ 1);
            } else {
                ops.wr_rdma_write.unwrap()(x, 0, 0);
            }
        }
    });
    assert_eq!(rc, 0);
    let done = rig.completions(1)[0];
    assert_eq!((done.wr_id, done.status, done.qp_num), (77, 0, qp_num(qp)));
    destroy_ah(ah);
}

#[test]
fn setter_before_operation_fails_the_batch() {
    let rig = Rig::new();
    let (sge, buffer, ah) = (rig.sge(0, 1), ibv_data_buf { addr: null_mut(), length: 0 }, rig.ah());
    for qp_type in [RC, UD] {
        let qp = self_connected(&rig, qp_type);
        let x = qpx_of(qp);
        let refused = |setter: &dyn Fn(&ibv_qp_ex, Qpx)| {
            let rc = batch(x, 1, |ops, x| {
                setter(ops, x);
                // SAFETY: this test keeps the QP alive; `batch` calls this between start and
                // complete.
                unsafe { ops.wr_send.unwrap()(x) };
            });
            assert_eq!(rc, libc::EINVAL);
        };
        // SAFETY: this test keeps the handles and structures alive; `batch` calls this between
        // start and complete.
        unsafe {
            refused(&|ops, x| ops.wr_set_sge.unwrap()(x, sge.lkey, sge.addr, sge.length));
            refused(&|ops, x| ops.wr_set_sge_list.unwrap()(x, 1, &raw const sge));
            refused(&|ops, x| ops.wr_set_inline_data.unwrap()(x, rig.memory.as_ptr().cast_mut().cast(), 8));
            refused(&|ops, x| ops.wr_set_inline_data_list.unwrap()(x, 1, &raw const buffer));
            refused(&|ops, x| ops.wr_set_ud_addr.unwrap()(x, ah, 1, 1));
            refused(&|ops, x| ops.wr_set_xrc_srqn.unwrap()(x, 1));
        }
        assert_untouched(&rig, qp, qp_type);
        destroy(&[qp]);
    }
    destroy_ah(ah);
}

#[test]
fn operation_of_another_service_fails_the_batch() {
    let rig = Rig::new();
    let (rkey, to, word, ah) = (rig.rkey(), rig.addr(300), 5u64, rig.ah());
    let (rc, uc, ud) = (self_connected(&rig, RC), self_connected(&rig, UC), self_connected(&rig, UD));
    // SAFETY: this test keeps the handles and the word alive; `batch` calls this between start and
    // complete.
    unsafe {
        let one_sided: [Step<'_>; 2] = [&|ops, x| ops.wr_rdma_write.unwrap()(x, rkey, to), &|ops, x| {
            ops.wr_rdma_write_imm.unwrap()(x, rkey, to, 1)
        }];
        let reliable: [Step<'_>; 6] = [
            &|ops, x| ops.wr_rdma_read.unwrap()(x, rkey, to),
            &|ops, x| ops.wr_atomic_cmp_swp.unwrap()(x, rkey, to, 0, 1),
            &|ops, x| ops.wr_atomic_fetch_add.unwrap()(x, rkey, to, 1),
            &|ops, x| ops.wr_send_inv.unwrap()(x, rkey),
            &|ops, x| ops.wr_atomic_write.unwrap()(x, rkey, to, (&raw const word).cast()),
            &|ops, x| ops.wr_flush.unwrap()(x, rkey, to, 8, 1, 0),
        ];
        for step in reliable {
            assert_eq!(batch(qpx_of(uc), 1, step), libc::EOPNOTSUPP);
            assert_eq!(batch(qpx_of(ud), 1, step), libc::EOPNOTSUPP);
        }
        for step in one_sided {
            assert_eq!(batch(qpx_of(ud), 1, step), libc::EOPNOTSUPP);
        }
        let tso = |ops: &ibv_qp_ex, x| ops.wr_send_tso.unwrap()(x, rig.memory.as_ptr().cast_mut().cast(), 42, 1400);
        for (qp, qp_type) in [(rc, RC), (uc, UC), (ud, UD)] {
            assert_eq!(batch(qpx_of(qp), 1, tso), libc::EOPNOTSUPP, "no queue pair segments TCP");
            assert_untouched(&rig, qp, qp_type);
        }
        for qp in [rc, uc] {
            let stray = |ops: &ibv_qp_ex, x| {
                ops.wr_send.unwrap()(x);
                ops.wr_set_ud_addr.unwrap()(x, ah, 1, 1);
            };
            assert_eq!(batch(qpx_of(qp), 1, stray), libc::EINVAL);
        }
        for qp in [rc, uc, ud] {
            let stray = |ops: &ibv_qp_ex, x| {
                ops.wr_send.unwrap()(x);
                ops.wr_set_xrc_srqn.unwrap()(x, 1);
            };
            assert_eq!(batch(qpx_of(qp), 1, stray), libc::EINVAL);
        }
    }
    destroy(&[rc, uc, ud]);
    destroy_ah(ah);
}

#[test]
fn missing_address_fails_the_batch() {
    let rig = Rig::new();
    let ud = self_connected(&rig, UD);
    // SAFETY: the test keeps the QP alive; `batch` calls this between start and complete.
    unsafe {
        assert_eq!(batch(qpx_of(ud), 1, |ops, x| ops.wr_send.unwrap()(x)), libc::EINVAL, "no destination");
        let no_handle = |ops: &ibv_qp_ex, x| {
            ops.wr_send.unwrap()(x);
            ops.wr_set_ud_addr.unwrap()(x, null_mut(), 1, 1);
        };
        assert_eq!(batch(qpx_of(ud), 1, no_handle), libc::EINVAL);
    }
    assert_untouched(&rig, ud, UD);
    let mut init = rig.init_ex(XRC_SEND);
    init.recv_cq = null_mut();
    // SAFETY: the rig keeps the context alive; the structure is a local variable; `batch` calls the
    // steps between start and complete.
    unsafe {
        let xrc = create_qp_ex(rig.context, &raw mut init);
        connect(xrc, 0x1234);
        assert_eq!(batch(qpx_of(xrc), 1, |ops, x| ops.wr_send.unwrap()(x)), libc::EINVAL, "no SRQ number");
        destroy(&[ud, xrc]);
    }
}

#[test]
fn invalid_lists_and_data_fail_the_batch() {
    let rig = Rig::new();
    let rc = self_connected(&rig, RC);
    let x = qpx_of(rc);
    let (rkey, to, from) = (rig.rkey(), rig.addr(300), rig.memory.as_ptr().cast_mut().cast::<c_void>());
    let refused = |why: &str, steps: &dyn Fn(&ibv_qp_ex)| {
        let rc = batch(x, 1, |ops, x| {
            // SAFETY: the test keeps the QP alive; `batch` calls this between start and complete.
            unsafe { ops.wr_rdma_write.unwrap()(x, rkey, to) };
            steps(ops);
        });
        assert_eq!(rc, libc::EINVAL, "{why}");
    };
    let part = |length| ibv_data_buf { addr: from, length };
    let (long, hole) = ([part(40), part(25)], [part(8), ibv_data_buf { addr: null_mut(), length: 1 }]);
    let (sges, word) = ([rig.sge(0, 1); 3], 5u64);
    // SAFETY: this test keeps the lists and the memory alive; `batch` calls this between start and
    // complete.
    unsafe {
        refused("three elements in a queue for two", &|ops| ops.wr_set_sge_list.unwrap()(x, 3, sges.as_ptr()));
        refused("no list", &|ops| ops.wr_set_sge_list.unwrap()(x, 1, ptr::null()));
        refused("65 inline bytes where 64 are allowed", &|ops| ops.wr_set_inline_data.unwrap()(x, from, 65));
        refused("65 inline bytes in two parts", &|ops| ops.wr_set_inline_data_list.unwrap()(x, 2, long.as_ptr()));
        refused("more inline bytes than an address space has", &|ops| {
            ops.wr_set_inline_data.unwrap()(x, from, usize::MAX)
        });
        refused("no buffer", &|ops| ops.wr_set_inline_data.unwrap()(x, null_mut(), 1));
        refused("a NULL buffer in a list", &|ops| ops.wr_set_inline_data_list.unwrap()(x, 2, hole.as_ptr()));
        refused("no list of buffers", &|ops| ops.wr_set_inline_data_list.unwrap()(x, 1, ptr::null()));
        refused("an ATOMIC WRITE of NULL", &|ops| ops.wr_atomic_write.unwrap()(x, rkey, to, ptr::null()));
        refused("data for an ATOMIC WRITE", &|ops| {
            ops.wr_atomic_write.unwrap()(x, rkey, to, (&raw const word).cast());
            ops.wr_set_sge.unwrap()(x, rig.lkey(), rig.addr(0), 8);
        });
        refused("data for a FLUSH", &|ops| {
            ops.wr_flush.unwrap()(x, rkey, to, 8, 1, 0);
            ops.wr_set_inline_data.unwrap()(x, from, 0);
        });
        refused("a FLUSH without a placement type", &|ops| ops.wr_flush.unwrap()(x, rkey, to, 8, 0, 0));
        refused("a FLUSH with an unknown placement type", &|ops| ops.wr_flush.unwrap()(x, rkey, to, 8, 4, 0));
        refused("a FLUSH with an unknown selectivity level", &|ops| ops.wr_flush.unwrap()(x, rkey, to, 8, 1, 2));
        refused("a FLUSH of more than 2^31 bytes", &|ops| ops.wr_flush.unwrap()(x, rkey, to, (1 << 31) + 1, 1, 0));
        refused("a FLUSH of more than 2^32 bytes", &|ops| ops.wr_flush.unwrap()(x, rkey, to, 1 << 32, 1, 0));
    }
    assert_untouched(&rig, rc, RC);
    assert_eq!(rig.word(300), 0);
    destroy(&[rc]);
}

#[test]
fn aborted_batch_posts_nothing() {
    let rig = Rig::new();
    let rc = self_connected(&rig, RC);
    let x = qpx_of(rc);
    // SAFETY: this test keeps the QP alive; the builders check the order of their calls.
    unsafe {
        assert_eq!((*x).wr_complete.unwrap()(x), libc::EINVAL, "never started");
        (*x).wr_abort.unwrap()(x);
        (*x).wr_start.unwrap()(x);
        (*x).wr_rdma_write.unwrap()(x, rig.rkey(), rig.addr(300));
        (*x).wr_set_sge_list.unwrap()(x, 9, ptr::null());
        (*x).wr_abort.unwrap()(x);
        assert_eq!((*x).wr_complete.unwrap()(x), libc::EINVAL, "aborted");
        assert_eq!(batch(x, 1, |_, _| {}), 0, "an empty batch succeeds; the error of the aborted one is gone");
    }
    assert_untouched(&rig, rc, RC);
    destroy(&[rc]);
}

#[test]
fn qp_creation_refuses_unsupported_send_ops() {
    let rig = Rig::new();
    let (send_inv, tso, flush, atomic_write) = (1 << 9, 1 << 10, 1 << 11, 1 << 12);
    let create = |qp_type, send_ops_flags| {
        let mut init = ibv_qp_init_attr_ex { send_ops_flags, ..rig.init_ex(qp_type) };
        // SAFETY: the rig keeps the context alive; the structure is a local variable.
        let qp = unsafe { create_qp_ex(rig.context, &raw mut init) };
        if qp.is_null() {
            return Err(errno());
        }
        destroy(&[qp]);
        Ok(())
    };
    assert_eq!(create(RC, 0x7f | send_inv | flush | atomic_write), Ok(()));
    assert_eq!((create(UC, 0xf), create(UD, 0xc)), (Ok(()), Ok(())));
    let refused =
        [(RC, tso), (UD, tso), (UD, 1), (UD, 1 << 4), (UC, 1 << 4), (UC, send_inv), (UC, atomic_write), (UD, flush)];
    for (qp_type, ops) in refused {
        assert_eq!(create(qp_type, ops), Err(libc::EOPNOTSUPP), "{qp_type} {ops:#x}");
    }
}

#[test]
fn every_form_of_data_is_joined_in_order() {
    let mut rig = Rig::new();
    let rc = self_connected(&rig, RC);
    (0..4).for_each(|at| rig.set(at, 0x0101_0101_0101_0101 * (at as u64 + 1)));
    let (rkey, sges) = (rig.rkey(), [rig.sge(1, 2), rig.sge(0, 1)]);
    let (mut left, mut right) = ([7u8; 5], [8u8; 11]);
    let buffers = [&mut left[..], &mut [], &mut right]
        .map(|bytes| ibv_data_buf { addr: bytes.as_mut_ptr().cast(), length: bytes.len() });
    let rc_of_batch = batch(qpx_of(rc), 1, |ops, x| {
        // SAFETY: this test keeps the lists alive; `batch` calls this between start and complete.
        unsafe {
            ops.wr_rdma_write.unwrap()(x, rkey, rig.addr(300));
            ops.wr_set_sge_list.unwrap()(x, 2, sges.as_ptr());
            ops.wr_rdma_write.unwrap()(x, rkey, rig.addr(310));
            ops.wr_set_inline_data_list.unwrap()(x, 3, buffers.as_ptr());
            ops.wr_rdma_write.unwrap()(x, rkey, rig.addr(320));
            ops.wr_set_sge.unwrap()(x, rig.lkey(), rig.addr(3), 8);
            ops.wr_rdma_write.unwrap()(x, rkey, rig.addr(330));
        }
    });
    assert_eq!(rc_of_batch, 0);
    assert!(rig.completions(4).iter().all(|wc| (wc.status, wc.opcode) == (0, 1)));
    let words = |at: usize, n| (at..at + n).map(|at| rig.word(at)).collect::<Vec<_>>();
    let whole = |byte: u8| u64::from_ne_bytes([byte; 8]);
    assert_eq!(words(300, 4), [whole(2), whole(3), whole(1), 0]);
    assert_eq!(words(310, 3), [u64::from_ne_bytes([7, 7, 7, 7, 7, 8, 8, 8]), whole(8), 0]);
    assert_eq!((words(320, 2), words(330, 1)), (vec![whole(4), 0], vec![0]));
    destroy(&[rc]);
}

#[test]
fn atomic_write_and_flush_have_their_own_opcodes() {
    let rig = Rig::new();
    let mut init = rig.init_ex(RC);
    (init.cap.max_inline_data, init.send_ops_flags) = (0, 1 << 11 | 1 << 12);
    // SAFETY: this test keeps the handles and structures alive and the rig the memory; `batch`
    // calls the steps between start and complete.
    unsafe {
        let (qp, peer) = (create_qp_ex(rig.context, &raw mut init), rig.qp(RC));
        connect(qp, qp_num(peer));
        connect_as(peer, ibv_qp_attr { qp_access_flags: FLUSHABLE.cast_unsigned(), ..connect_attr(qp_num(qp)) });
        let addr = rig.memory.as_ptr().cast_mut().cast();
        let mr = ibv_reg_mr(rig.pd, addr, size_of_val(&*rig.memory), FLUSHABLE);
        let (rkey, word) = ((*mr).rkey, 0x1122_3344_5566_7788_u64);
        let rc = batch(qpx_of(qp), 1, |ops, x| {
            ops.wr_atomic_write.unwrap()(x, rkey, rig.addr(300), (&raw const word).cast());
            ops.wr_flush.unwrap()(x, rkey, rig.addr(300), 8, 1, 0);
            ops.wr_flush.unwrap()(x, rkey, 0, 0, 1, 1);
        });
        assert_eq!(rc, 0);
        let done: Vec<_> = rig.completions(3).iter().map(|wc| (wc.status, wc.opcode)).collect();
        assert_eq!((done, rig.word(300)), (vec![(0, 9), (0, 8), (0, 8)], word));
        // `ibv_post_send` takes the word from registered memory.
        let sges = [rig.sge(300, 1)];
        let mut wr = send_wr(2, ATOMIC_WRITE, &sges);
        wr.wr = wr_union { rdma: wr_rdma { remote_addr: rig.addr(302), rkey } };
        assert_eq!(rig.post_send(qp, &mut wr).0, 0);
        assert_eq!((rig.completions(1)[0].opcode, rig.word(302)), (9, word));
        // The rig's region has no access right for FLUSH.
        assert_eq!(batch(qpx_of(qp), 3, |ops, x| ops.wr_flush.unwrap()(x, rig.rkey(), rig.addr(0), 8, 1, 0)), 0);
        assert_eq!(rig.completions(1)[0].status, REM_ACCESS_ERR);
        destroy(&[qp, peer]);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert!(ibv_reg_mr(rig.pd, addr, 64, ALL_ACCESS | 1 << 9).is_null(), "persistence is not supported");
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
}
