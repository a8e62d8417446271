//! Control calls with a structure whose `context` or `handle` was overwritten, with a copy of a
//! structure, or with a destroyed one. They are refused before any pointer is followed, and the
//! object works again once the field is restored.
//!
//! With an overwritten field, destroy calls return ENOENT and others EINVAL, as the kernel does for
//! an unknown number (`rdma_lookup_get_uobject` and its callers). A pointer that is not an object
//! is EINVAL.

use super::*;
use crate::cq::{create_cq_ex, ibv_resize_cq, modify_cq};
use crate::domain::{alloc_td, dealloc_td};
use crate::domain::{close_xrcd, open_xrcd};
use crate::flow::{create_counters, destroy_counters, read_counters};
use crate::memory::ibv_import_mr;
use crate::memory::{alloc_mw, dealloc_mw};
use crate::memory::{alloc_null_mr, ibv_rereg_mr};
use crate::qp::ibv_query_ece;
use crate::qp::{ibv_attach_mcast, ibv_qp_to_qp_ex, modify_qp_rate_limit};
use crate::srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};
use crate::wq::{create_rwq_ind_table, create_wq, destroy_rwq_ind_table, destroy_wq, modify_wq};

/// Name and result of a call: 0 or an errno value.
type Call<'a> = (&'static str, &'a dyn Fn() -> c_int);

/// Pointers to the `context` field of a structure and, if it has one, the `handle` field.
type Fields = (*mut *mut ibv_context, Option<*mut u32>);

/// Returns `errno` if a call returned NULL, else 0.
fn errno_if_null<T>(pointer: *mut T) -> c_int {
    if pointer.is_null() { errno() } else { 0 }
}

/// Asserts that every call is refused while `field` is `wrong`; then restores the field.
///
/// # Safety
/// `field` lies in a live structure.
unsafe fn check_refused<T>(field: *mut T, wrong: T, uses: &[Call<'_>], destroys: Call<'_>) {
    // SAFETY: the caller says that `field` lies in a live structure.
    let right = unsafe { field.replace(wrong) };
    for (what, call) in uses {
        assert_eq!(call(), libc::EINVAL, "{what}");
    }
    assert_eq!((destroys.1)(), libc::ENOENT, "{}", destroys.0);
    // SAFETY: the refused calls have left the structure alive.
    unsafe { field.write(right) };
}

/// Asserts that every call is refused while either field has the value of another object.
///
/// # Safety
/// Both fields lie in a live structure.
unsafe fn check_overwritten((context, handle): Fields, other: *mut ibv_context, uses: &[Call<'_>], destroys: Call<'_>) {
    // SAFETY: the caller says that both fields lie in a live structure.
    unsafe {
        check_refused(context, other, uses, destroys);
        check_refused(context, null_mut(), uses, destroys);
        if let Some(handle) = handle {
            check_refused(handle, !handle.read(), uses, destroys);
            check_refused(handle, handle.read().wrapping_add(1), uses, destroys);
        }
    }
}

/// Returns a second context of the device of `rig`.
fn second_context(rig: &Rig) -> *mut ibv_context {
    // SAFETY: the rig keeps the context alive, and its device with it.
    let context = unsafe { ibv_open_device((*rig.context).device) };
    assert!(!context.is_null());
    context
}

fn srq_attr() -> ibv_srq_attr {
    ibv_srq_attr { max_wr: 2, max_sge: 1, srq_limit: 0 }
}

#[test]
fn overwritten_pd_is_refused_until_restored() {
    let rig = Rig::new();
    let other = second_context(&rig);
    let addr: *mut c_void = ptr::with_exposed_provenance_mut(rig.addr(0) as usize);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let pd = ibv_alloc_pd(rig.context);
        let pd_fields: Fields = (&raw mut (*pd).context, Some(&raw mut (*pd).handle));
        let srq = || ibv_create_srq(pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr: srq_attr() });
        let uses: &[Call<'_>] = &[
            ("reg_mr", &|| errno_if_null(ibv_reg_mr(pd, addr, 8, ALL_ACCESS))),
            ("alloc_null_mr", &|| errno_if_null(alloc_null_mr(pd))),
            ("import_mr", &|| errno_if_null(ibv_import_mr(pd, 1))),
            ("create_qp", &|| errno_if_null(ibv_create_qp(pd, &mut rig.init_attr(RC)))),
            ("create_qp_ex", &|| {
                errno_if_null(create_qp_ex(rig.context, &mut ibv_qp_init_attr_ex { pd, ..rig.init_ex(RC) }))
            }),
            ("create_srq", &|| errno_if_null(srq())),
            ("create_ah", &|| errno_if_null(ibv_create_ah(pd, &mut loopback()))),
            ("alloc_mw", &|| errno_if_null(alloc_mw(pd, 1))),
        ];
        let destroys: Call<'_> = ("dealloc_pd", &|| ibv_dealloc_pd(pd));
        check_overwritten(pd_fields, other, uses, destroys);
        let mr = ibv_reg_mr(pd, addr, 8, ALL_ACCESS);
        assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(pd), ibv_dealloc_pd(pd)), (0, 0, libc::EINVAL));
        assert_eq!(ibv_close_device(other), 0);
    }
}

#[test]
fn overwritten_cq_is_refused_until_restored() {
    let rig = Rig::new();
    let other = second_context(&rig);
    let moderate = ibv_moderate_cq::default();
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let plain = ibv_create_cq(rig.context, 8, null_mut(), null_mut(), 0);
        let extended = create_cq_ex(rig.context, &mut extended_cq(8, 0)).cast::<ibv_cq>();
        for cq in [plain, extended] {
            let cq_fields: Fields = (&raw mut (*cq).context, Some(&raw mut (*cq).handle));
            let uses: &[Call<'_>] = &[
                ("create_qp", &|| {
                    let init = rig.init_attr(RC);
                    errno_if_null(ibv_create_qp(rig.pd, &mut ibv_qp_init_attr { send_cq: cq, ..init }))
                }),
                ("create_qp, receives", &|| {
                    let init = rig.init_attr(RC);
                    errno_if_null(ibv_create_qp(rig.pd, &mut ibv_qp_init_attr { recv_cq: cq, ..init }))
                }),
                ("resize_cq", &|| ibv_resize_cq(cq, 16)),
                ("modify_cq", &|| modify_cq(cq, &mut ibv_modify_cq_attr { attr_mask: 1, moderate })),
            ];
            let destroys: Call<'_> = ("destroy_cq", &|| ibv_destroy_cq(cq));
            check_overwritten(cq_fields, other, uses, destroys);
            assert_eq!((ibv_resize_cq(cq, 16), ibv_destroy_cq(cq), ibv_destroy_cq(cq)), (0, 0, libc::EINVAL));
        }
        assert_eq!(ibv_close_device(other), 0);
    }
}

#[test]
fn overwritten_qp_is_refused_until_restored() {
    let mut rig = Rig::new();
    let other = second_context(&rig);
    let (peer, group) = (rig.qp(RC), loopback().grh.dgid);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        for qp in [rig.qp(RC), rig.qp_ex(RC)] {
            let qp_fields: Fields = (&raw mut (*qp).context, Some(&raw mut (*qp).handle));
            let uses: &[Call<'_>] = &[
                ("modify_qp", &|| {
                    let mut attr = ibv_qp_attr { qp_state: ERR, ..ibv_qp_attr::default() };
                    ibv_modify_qp(qp, &raw mut attr, STATE)
                }),
                ("query_qp", &|| {
                    let (mut attr, mut init) = (ibv_qp_attr::default(), MaybeUninit::uninit());
                    ibv_query_qp(qp, &raw mut attr, STATE, init.as_mut_ptr())
                }),
                ("attach_mcast", &|| ibv_attach_mcast(qp, &raw const group, 0)),
                ("modify_qp_rate_limit", &|| {
                    let mut attr = ibv_qp_rate_limit_attr { rate_limit: 0, max_burst_sz: 0, typical_pkt_sz: 0 };
                    modify_qp_rate_limit(qp, &raw mut attr)
                }),
                ("query_ece", &|| ibv_query_ece(qp, &mut ibv_ece::default())),
                ("qp_to_qp_ex", &|| errno_if_null(ibv_qp_to_qp_ex(qp))),
            ];
            let destroys: Call<'_> = ("destroy_qp", &|| ibv_destroy_qp(qp));
            check_overwritten(qp_fields, other, uses, destroys);
            assert_eq!(query(qp).qp_state, 0, "still in RESET");
            connect(qp, qp_num(qp));
            rig.set(0, 5);
            assert_eq!(rig.post_recv(qp, 1, &[rig.sge(1, 1)]), 0);
            assert_eq!(rig.post_send(qp, &mut send_wr(2, SEND, &[rig.sge(0, 1)])).0, 0);
            assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
            assert_eq!((ibv_destroy_qp(qp), ibv_destroy_qp(qp)), (0, libc::EINVAL));
        }
        assert_eq!(ibv_close_device(other), 0);
    }
    destroy(&[peer]);
}

#[test]
fn overwritten_srq_is_refused_until_restored() {
    let rig = Rig::new();
    let other = second_context(&rig);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let srq = ibv_create_srq(rig.pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr: srq_attr() });
        let srq_fields: Fields = (&raw mut (*srq).context, Some(&raw mut (*srq).handle));
        let uses: &[Call<'_>] = &[
            ("modify_srq", &|| ibv_modify_srq(srq, &mut srq_attr(), 1)),
            ("query_srq", &|| ibv_query_srq(srq, &mut srq_attr())),
            ("create_qp", &|| errno_if_null(ibv_create_qp(rig.pd, &mut ibv_qp_init_attr { srq, ..rig.init_attr(RC) }))),
        ];
        let destroys: Call<'_> = ("destroy_srq", &|| ibv_destroy_srq(srq));
        check_overwritten(srq_fields, other, uses, destroys);
        assert_eq!(ibv_query_srq(srq, &mut srq_attr()), 0);
        assert_eq!((ibv_destroy_srq(srq), ibv_destroy_srq(srq)), (0, libc::EINVAL));
        assert_eq!(ibv_close_device(other), 0);
    }
}

#[test]
fn overwritten_mr_mw_and_ah_are_refused() {
    let rig = Rig::new();
    let (other, ah, [qp, peer]) = (second_context(&rig), rig.ah(), rig.rc_pair());
    let addr: *mut c_void = ptr::with_exposed_provenance_mut(rig.addr(0) as usize);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let ah_fields: Fields = (&raw mut (*ah).context, Some(&raw mut (*ah).handle));
        let mr = ibv_reg_mr(rig.pd, addr, 8, ALL_ACCESS | 1 << 4);
        let mr_fields: Fields = (&raw mut (*mr).context, Some(&raw mut (*mr).handle));
        let mw = alloc_mw(rig.pd, 1);
        let mw_fields: Fields = (&raw mut (*mw).context, Some(&raw mut (*mw).handle));
        let bind = |mr| {
            let info = ibv_mw_bind_info { mr, addr: rig.addr(0), length: 8, mw_access_flags: 0 };
            rig.ops().bind_mw.unwrap()(qp, mw, &mut ibv_mw_bind { wr_id: 5, send_flags: 2, bind_info: info })
        };
        let uses: &[Call<'_>] = &[
            ("rereg_mr", &|| match ibv_rereg_mr(mr, REREG_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE) {
                0 => 0,
                _ => errno(),
            }),
            ("bind_mw", &|| bind(mr)),
        ];
        let destroys: Call<'_> = ("dereg_mr", &|| ibv_dereg_mr(mr));
        check_overwritten(mr_fields, other, uses, destroys);
        assert_eq!(bind(foreign()), libc::EINVAL, "a region that the library never made");
        let uses: &[Call<'_>] = &[("bind_mw", &|| bind(mr))];
        let destroys: Call<'_> = ("dealloc_mw", &|| dealloc_mw(mw));
        check_overwritten(mw_fields, other, uses, destroys);
        // The work request that binds a type 2 window is checked like the verb.
        let second = alloc_mw(rig.pd, 2);
        let second_fields: Fields = (&raw mut (*second).context, Some(&raw mut (*second).handle));
        let post = || {
            let bind_info = ibv_mw_bind_info { mr, addr: rig.addr(0), length: 8, mw_access_flags: 0 };
            let mut wr = send_wr(6, BIND_MW, &[]);
            wr.bind_mw = wr_bind_mw { mw: second, rkey: 1, bind_info };
            rig.post_send(qp, &mut wr).0
        };
        let uses: &[Call<'_>] = &[("post_send of BIND_MW", &post)];
        let rkey = (*second).rkey;
        check_overwritten(mr_fields, other, uses, ("dereg_mr", &|| ibv_dereg_mr(mr)));
        check_overwritten(second_fields, other, uses, ("dealloc_mw", &|| dealloc_mw(second)));
        assert_eq!((bind(mr), post()), (0, 0), "the windows can be bound once their fields are restored");
        assert!(rig.completions(2).iter().all(|wc| wc.status == 0));
        assert_eq!(((*second).rkey, dealloc_mw(second)), (rkey, 0), "posting does not write to the window");
        let destroys: Call<'_> = ("destroy_ah", &|| ibv_destroy_ah(ah));
        check_overwritten(ah_fields, other, &[], destroys);
        assert_eq!((dealloc_mw(mw), dealloc_mw(mw)), (0, libc::EINVAL));
        assert_eq!((ibv_dereg_mr(mr), ibv_dereg_mr(mr)), (0, libc::EINVAL));
        assert_eq!((ibv_destroy_ah(ah), ibv_destroy_ah(ah)), (0, libc::EINVAL));
        assert_eq!(ibv_close_device(other), 0);
    }
    destroy(&[qp, peer]);
}

#[test]
fn overwritten_channels_and_domains_are_refused() {
    let rig = Rig::new();
    let other = second_context(&rig);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let channel = ibv_create_comp_channel(rig.context);
        let channel_fields: Fields = (&raw mut (*channel).context, None);
        let uses: &[Call<'_>] =
            &[("create_cq", &|| errno_if_null(ibv_create_cq(rig.context, 8, null_mut(), channel, 0)))];
        let destroys: Call<'_> = ("destroy_comp_channel", &|| ibv_destroy_comp_channel(channel));
        check_overwritten(channel_fields, other, uses, destroys);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);

        let mut init = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        let xrcd = open_xrcd(rig.context, &raw mut init);
        let xrcd_fields: Fields = (&raw mut (*xrcd).context, None);
        let destroys: Call<'_> = ("close_xrcd", &|| close_xrcd(xrcd));
        check_overwritten(xrcd_fields, other, &[], destroys);
        assert_eq!((close_xrcd(xrcd), close_xrcd(xrcd)), (0, libc::EINVAL));

        let td = alloc_td(rig.context, &mut ibv_td_init_attr { comp_mask: 0 });
        let td_fields: Fields = (&raw mut (*td).context, None);
        check_overwritten(td_fields, other, &[], ("dealloc_td", &|| dealloc_td(td)));
        assert_eq!((dealloc_td(td), dealloc_td(td)), (0, libc::EINVAL));

        let counters = create_counters(rig.context, &mut ibv_counters_init_attr { comp_mask: 0 });
        let counters_fields: Fields = (&raw mut (*counters).context, None);
        let uses: &[Call<'_>] = &[("read_counters", &|| read_counters(counters, [0u64].as_mut_ptr(), 1, 0))];
        let destroys: Call<'_> = ("destroy_counters", &|| destroy_counters(counters));
        check_overwritten(counters_fields, other, uses, destroys);
        assert_eq!((destroy_counters(counters), destroy_counters(counters)), (0, libc::EINVAL));
        assert_eq!(ibv_close_device(other), 0);
    }
}

#[test]
fn overwritten_wq_and_table_are_refused() {
    let rig = Rig::new();
    let other = second_context(&rig);
    let (wq_context, pd, cq) = (null_mut(), rig.pd, rig.cq);
    let mut init =
        ibv_wq_init_attr { wq_context, wq_type: 0, max_wr: 4, max_sge: 2, pd, cq, comp_mask: 0, create_flags: 0 };
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let wq = create_wq(rig.context, &raw mut init);
        let wq_fields: Fields = (&raw mut (*wq).context, Some(&raw mut (*wq).handle));
        let list = [wq];
        let table = || {
            let mut init = ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 0, ind_tbl: list.as_ptr(), comp_mask: 0 };
            create_rwq_ind_table(rig.context, &raw mut init)
        };
        let uses: &[Call<'_>] = &[
            ("modify_wq", &|| {
                let mut attr = ibv_wq_attr { attr_mask: 1, wq_state: 1, curr_wq_state: 0, flags: 0, flags_mask: 0 };
                modify_wq(wq, &raw mut attr)
            }),
            ("create_rwq_ind_table", &|| errno_if_null(table())),
        ];
        let destroys: Call<'_> = ("destroy_wq", &|| destroy_wq(wq));
        check_overwritten(wq_fields, other, uses, destroys);
        let table = table();
        let table_fields = (&raw mut (*table).context, Some((&raw mut (*table).ind_tbl_handle).cast::<u32>()));
        let destroys: Call<'_> = ("destroy_rwq_ind_table", &|| destroy_rwq_ind_table(table));
        check_overwritten(table_fields, other, &[], destroys);
        assert_eq!((destroy_rwq_ind_table(table), destroy_wq(wq), destroy_wq(wq)), (0, 0, libc::EINVAL));
        assert_eq!(ibv_close_device(other), 0);
    }
}

/// The structures have a valid `context`, because inline functions of verbs.h use it.
#[test]
fn destroy_of_a_foreign_structure_is_refused() {
    let rig = Rig::new();
    // SAFETY: the calls look a handle up before they follow any pointer; the structures outlive
    // them.
    unsafe {
        let mw = alloc_mw(rig.pd, 2);
        let mut copy = mw.read();
        assert_eq!(rig.ops().dealloc_mw.unwrap()(&raw mut copy), libc::EINVAL, "a copy of a window");
        let mut block = [0xa5u8; 512];
        let block = block.as_mut_ptr().cast::<c_void>();
        for (what, answer) in [
            ("dealloc_mw", dealloc_mw(block.cast())),
            ("dereg_mr", ibv_dereg_mr(block.cast())),
            ("dealloc_pd", ibv_dealloc_pd(block.cast())),
            ("destroy_cq", ibv_destroy_cq(block.cast())),
            ("destroy_qp", ibv_destroy_qp(block.cast())),
            ("destroy_srq", ibv_destroy_srq(block.cast())),
            ("destroy_ah", ibv_destroy_ah(block.cast())),
            ("destroy_comp_channel", ibv_destroy_comp_channel(block.cast())),
            ("close_xrcd", close_xrcd(block.cast())),
            ("dealloc_td", dealloc_td(block.cast())),
            ("destroy_wq", destroy_wq(block.cast())),
            ("destroy_rwq_ind_table", destroy_rwq_ind_table(block.cast())),
            ("destroy_counters", destroy_counters(block.cast())),
            ("destroy_flow", crate::flow::destroy_flow(block.cast())),
            ("free_dm", crate::memory::free_dm(block.cast())),
        ] {
            assert_eq!(answer, libc::EINVAL, "{what}");
        }
        assert_eq!((rig.ops().dealloc_mw.unwrap()(mw), dealloc_mw(mw)), (0, libc::EINVAL));
    }
}
