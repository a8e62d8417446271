//! Receive work queues: states, indirection tables and hash QPs.

use super::*;
use crate::wq::{create_rwq_ind_table, create_wq, destroy_rwq_ind_table, destroy_wq, modify_wq};

const RAW_PACKET: c_int = 8;
const RESET: c_int = 0;
const READY: c_int = 1;
const ERROR: c_int = 2;
const SRC_IPV4: u64 = 1;
const SRC_IPV6: u64 = 1 << 2;
const KEY: [u8; 40] = [0x5a; 40];

fn wq_attr(rig: &Rig) -> ibv_wq_init_attr {
    let (wq_context, pd, cq) = (null_mut(), rig.pd, rig.cq);
    ibv_wq_init_attr { wq_context, wq_type: 0, max_wr: 4, max_sge: 2, pd, cq, comp_mask: 0, create_flags: 0 }
}

fn wq(rig: &Rig) -> *mut ibv_wq {
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let wq = unsafe { create_wq(rig.context, &mut wq_attr(rig)) };
    assert!(!wq.is_null());
    wq
}

fn set_state(wq: *mut ibv_wq, state: c_int) -> c_int {
    let mut attr = ibv_wq_attr { attr_mask: 1, wq_state: state, curr_wq_state: 0, flags: 0, flags_mask: 0 };
    // SAFETY: the test keeps the WQ alive; the structure is a local variable.
    unsafe { modify_wq(wq, &raw mut attr) }
}

fn post(wq: *mut ibv_wq, wr_id: u64) -> c_int {
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: ptr::null(), num_sge: 0 };
    // SAFETY: the test keeps the WQ alive; the list is one local variable.
    unsafe { (*wq).post_recv.unwrap()(wq, &raw mut wr, null_mut()) }
}

fn ind_table(rig: &Rig, wqs: &[*mut ibv_wq], log_ind_tbl_size: u32) -> *mut ibv_rwq_ind_table {
    let mut init = ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl: wqs.as_ptr(), comp_mask: 0 };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    unsafe { create_rwq_ind_table(rig.context, &raw mut init) }
}

fn hash_attr(rig: &Rig, table: *mut ibv_rwq_ind_table) -> ibv_qp_init_attr_ex {
    let mut init = rig.init_ex(RAW_PACKET);
    (init.comp_mask, init.rwq_ind_tbl, init.send_cq, init.recv_cq) =
        (1 | 1 << 2 | 1 << 4 | 1 << 5, table, null_mut(), null_mut());
    init.rx_hash_conf = ibv_rx_hash_conf {
        rx_hash_function: 1,
        rx_hash_key_len: 40,
        rx_hash_key: KEY.as_ptr(),
        rx_hash_fields_mask: SRC_IPV4,
    };
    init
}

fn hash_qp(rig: &Rig, mut init: ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let qp = unsafe { create_qp_ex(rig.context, &raw mut init) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

// clause: WQ-STATES
#[test]
fn wq_accepts_receives_and_flushes_on_error() {
    let rig = Rig::new();
    let wq = wq(&rig);
    assert_eq!(post(wq, 1), libc::EINVAL);
    assert_eq!(set_state(wq, READY), 0);
    for wr_id in 1..=4 {
        assert_eq!(post(wq, wr_id), 0);
    }
    assert_eq!(post(wq, 5), libc::ENOMEM);
    assert_eq!(set_state(wq, ERROR), 0);
    // SAFETY: this test keeps the WQ alive.
    let (number, state) = unsafe { ((*wq).wq_num, (*wq).state) };
    let flushed: Vec<_> = rig.completions(4).iter().map(|wc| (wc.wr_id, wc.status, wc.qp_num)).collect();
    assert_eq!((flushed, state), ((1..=4).map(|id| (id, 5, number)).collect(), ERROR));
    assert_eq!(set_state(wq, READY), libc::EINVAL);
    assert_eq!(set_state(wq, RESET), 0);
    assert_eq!(set_state(wq, 3), libc::EINVAL);
    // SAFETY: this test created the WQ; the second call looks its handle up and finds it destroyed.
    unsafe {
        assert_eq!(destroy_wq(wq), 0);
        assert_eq!(destroy_wq(wq), libc::EINVAL);
    }
}

// clause: RSS-TABLE
#[test]
fn hash_qp_holds_table_and_table_holds_queues() {
    let rig = Rig::new();
    let wqs = [wq(&rig), wq(&rig)];
    let table = ind_table(&rig, &wqs, 1);
    assert!(!table.is_null());
    let qp = hash_qp(&rig, hash_attr(&rig, table)).unwrap();
    // SAFETY: this test created the objects and does not use them after their destruction.
    unsafe {
        assert_eq!(destroy_wq(wqs[0]), libc::EBUSY);
        assert_eq!(destroy_rwq_ind_table(table), libc::EBUSY);
        destroy(&[qp]);
        assert_eq!(destroy_rwq_ind_table(table), 0);
        wqs.iter().for_each(|&wq| assert_eq!(destroy_wq(wq), 0));
    }
}

// clause: RSS-FIELDS
#[test]
fn unsupported_hash_fields_and_functions_are_refused() {
    let rig = Rig::new();
    let wqs = [wq(&rig)];
    assert!(ind_table(&rig, &wqs, 32).is_null());
    let table = ind_table(&rig, &wqs, 0);
    let refused = |errno, change: fn(&mut ibv_qp_init_attr_ex)| {
        let mut init = hash_attr(&rig, table);
        change(&mut init);
        assert_eq!(hash_qp(&rig, init), Err(errno));
    };
    refused(libc::EOPNOTSUPP, |init| init.rx_hash_conf.rx_hash_function = 2);
    refused(libc::EINVAL, |init| init.rx_hash_conf.rx_hash_key_len = 39);
    refused(libc::EINVAL, |init| init.rx_hash_conf.rx_hash_fields_mask = SRC_IPV4 | SRC_IPV6);
    refused(libc::EOPNOTSUPP, |init| init.rx_hash_conf.rx_hash_fields_mask = 1 << 8);
    refused(libc::EINVAL, |init| init.qp_type = RC);
    refused(libc::EINVAL, |init| init.rwq_ind_tbl = foreign());
    refused(libc::EOPNOTSUPP, |init| init.create_flags = 1);
    for change in [
        (|attr| attr.wq_type = 1) as fn(&mut ibv_wq_init_attr),
        |attr| attr.max_wr = 0,
        |attr| attr.cq = foreign(),
        |attr| (attr.comp_mask, attr.create_flags) = (1, 1),
    ] {
        let mut attr = wq_attr(&rig);
        change(&mut attr);
        // SAFETY: the rig keeps the context alive; the structure is a local variable.
        assert!(unsafe { create_wq(rig.context, &raw mut attr) }.is_null());
    }
    // SAFETY: this test created the objects and does not use them afterwards.
    unsafe {
        assert_eq!(destroy_rwq_ind_table(table), 0);
        assert_eq!(destroy_wq(wqs[0]), 0);
    }
}
