//! Parent domains with allocators, thread domains, imported handles, and connection options.

use super::*;
use crate::context::ibv_import_device;
use crate::cq::create_cq_ex;
use crate::domain::{alloc_parent_domain, alloc_td, dealloc_td};
use crate::domain::{ibv_import_pd, ibv_unimport_pd};
use crate::memory::{ibv_import_mr, ibv_unimport_mr};
use crate::qp::{ibv_query_ece, ibv_set_ece};
use crate::srq::{ibv_create_srq, ibv_destroy_srq};
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// State of the test's allocator.
#[derive(Default)]
struct AllocatorState {
    /// Address, layout and resource type of each block that is not freed.
    live: Vec<(usize, Layout, u64)>,
    /// Resource types of all allocated blocks, in order.
    served: Vec<u64>,
    /// Number of freed blocks.
    freed: usize,
    /// Address of the parent domain.
    pd: usize,
    /// Answer to the next request for memory.
    answer: Answer,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Answer {
    #[default]
    Memory,
    /// `IBV_ALLOCATOR_USE_DEFAULT`.
    Default,
    /// NULL.
    Nothing,
}

unsafe extern "C" fn alloc(pd: *mut ibv_pd, state: *mut c_void, size: usize, align: usize, kind: u64) -> *mut c_void {
    // SAFETY: `pd_context` points to the test's state, which outlives the domain; only one thread
    // uses it.
    let state = unsafe { &mut *state.cast::<AllocatorState>() };
    assert_eq!(pd.addr(), state.pd);
    assert!(size > 0 && size.is_multiple_of(align));
    match state.answer {
        Answer::Default => ptr::without_provenance_mut(usize::MAX),
        Answer::Nothing => null_mut(),
        Answer::Memory => {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the assertion above says that the layout has a size.
            let block = unsafe { alloc_zeroed(layout) };
            state.live.push((block.addr(), layout, kind));
            state.served.push(kind);
            block.cast()
        }
    }
}

unsafe extern "C" fn free(_: *mut ibv_pd, state: *mut c_void, block: *mut c_void, kind: u64) {
    // SAFETY: `pd_context` points to the test's state, which outlives the domain; only one thread
    // uses it.
    let state = unsafe { &mut *state.cast::<AllocatorState>() };
    let at =
        state.live.iter().position(|live| live.0 == block.addr()).expect("find the freed block among the live ones");
    let (_, layout, allocated_for) = state.live.swap_remove(at);
    assert_eq!(allocated_for, kind);
    state.freed += 1;
    // SAFETY: `alloc` allocated the block with this layout, and it was still listed as live.
    unsafe { dealloc(block.cast(), layout) };
}

/// Returns a parent domain on the domain of `rig`.
fn parent(rig: &Rig, td: *mut ibv_td, state: *mut AllocatorState) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr {
        pd: rig.pd,
        td,
        comp_mask: if state.is_null() { 0 } else { 1 | 2 },
        alloc: Some(alloc),
        free: Some(free),
        pd_context: state.cast(),
    };
    // SAFETY: the test keeps the handles alive; the structure is a local variable.
    let pd = unsafe { alloc_parent_domain(rig.context, &raw mut attr) };
    assert!(!pd.is_null());
    pd
}

fn cq_attr(parent_domain: *mut ibv_pd) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex { comp_mask: 2, parent_domain, ..extended_cq(8, 0) }
}

#[test]
fn parent_domain_objects_use_its_allocator() {
    let rig = Rig::new();
    let state = Box::into_raw(Box::<AllocatorState>::default());
    let pd = parent(&rig, null_mut(), state);
    // SAFETY: this test keeps the handles and the allocator's state alive; no other thread uses
    // them.
    unsafe {
        (*state).pd = pd.addr();
        let cq = create_cq_ex(rig.context, &mut cq_attr(pd)).cast::<ibv_cq>();
        let mut init =
            ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 } };
        let srq = ibv_create_srq(pd, &raw mut init);
        let qp = ibv_create_qp(pd, &mut ibv_qp_init_attr { send_cq: cq, recv_cq: cq, srq, ..rig.init_attr(RC) });
        for block in [cq.addr(), srq.addr(), qp.addr()] {
            assert!((*state).live.iter().any(|live| (live.0..live.0 + live.1.size()).contains(&block)));
        }
        assert_eq!((*state).served, [3, 2, 1]);
        assert_eq!((*qp).pd, pd);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_srq(srq), ibv_destroy_cq(cq)), (0, 0, 0));
        assert_eq!(((*state).live.len(), (*state).freed), (0, 3));
        assert_eq!(ibv_dealloc_pd(pd), 0);
        drop(Box::from_raw(state));
    }
}

#[test]
fn allocator_may_decline_or_fail() {
    let rig = Rig::new();
    let state = Box::into_raw(Box::<AllocatorState>::default());
    let pd = parent(&rig, null_mut(), state);
    // SAFETY: this test keeps the handles and the allocator's state alive; no other thread uses
    // them.
    unsafe {
        (*state).pd = pd.addr();
        (*state).answer = Answer::Default;
        let qp = ibv_create_qp(pd, &mut rig.init_attr(UD));
        destroy(&[qp]);
        assert_eq!(((*state).served.len(), (*state).freed), (0, 0));
        (*state).answer = Answer::Nothing;
        assert!(ibv_create_qp(pd, &mut rig.init_attr(UD)).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        assert!(create_cq_ex(rig.context, &mut cq_attr(pd)).is_null());
        assert_eq!(ibv_dealloc_pd(pd), 0, "failed creations hold no reference");
        drop(Box::from_raw(state));
    }
}

#[test]
fn parent_domain_shares_memory_access() {
    let mut rig = Rig::new();
    let pd = parent(&rig, null_mut(), null_mut());
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    let pair = [(); 2].map(|()| unsafe { ibv_create_qp(pd, &mut rig.init_attr(RC)) });
    connect(pair[0], qp_num(pair[1]));
    connect(pair[1], qp_num(pair[0]));
    rig.set(0, 77);
    let sges = [rig.sge(0, 1)];
    let mut wr = send_wr(1, WRITE, &sges);
    wr.wr.rdma = wr_rdma { remote_addr: rig.addr(9), rkey: rig.rkey() };
    assert_eq!(rig.post_send(pair[0], &mut wr).0, 0);
    assert_eq!((rig.completions(1)[0].status, rig.word(9)), (0, 77));
    destroy(&pair);
    // SAFETY: the test created the handle and does not use it afterwards.
    assert_eq!(unsafe { ibv_dealloc_pd(pd) }, 0);
}

#[test]
fn domains_in_use_are_ebusy() {
    let rig = Rig::new();
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let td = alloc_td(rig.context, &mut ibv_td_init_attr { comp_mask: 0 });
        let pd = parent(&rig, td, null_mut());
        assert_eq!(dealloc_td(td), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(rig.pd), libc::EBUSY);
        let cq = create_cq_ex(rig.context, &mut cq_attr(pd)).cast::<ibv_cq>();
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!((ibv_destroy_cq(cq), ibv_dealloc_pd(pd), dealloc_td(td)), (0, 0, 0));
        assert_eq!(dealloc_td(td), libc::EINVAL);
    }
}

#[test]
fn parent_domain_may_allow_unprotected_memory() {
    let rig = Rig::new();
    let mut attr = ibv_parent_domain_init_attr { pd: rig.pd, comp_mask: 4, ..Default::default() };
    // SAFETY: the rig keeps both alive; the structure is a local variable.
    unsafe {
        let pd = alloc_parent_domain(rig.context, &raw mut attr);
        assert!(!pd.is_null());
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn invalid_domain_arguments_are_refused() {
    let rig = Rig::new();
    let attr = |pd, td, comp_mask| ibv_parent_domain_init_attr {
        pd,
        td,
        comp_mask,
        alloc: None,
        free: None,
        pd_context: null_mut(),
    };
    let bad = [
        attr(null_mut(), null_mut(), 0),
        attr(rig.pd, foreign(), 0),
        attr(rig.pd, null_mut(), 1),
        attr(rig.pd, null_mut(), 8),
    ];
    // SAFETY: this test keeps the rig's handles alive, the call looks up the others, and the
    // structures are its variables.
    unsafe {
        for mut attr in bad {
            assert!(alloc_parent_domain(rig.context, &raw mut attr).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert!(alloc_parent_domain(rig.context, null_mut()).is_null());
        assert!(alloc_td(rig.context, null_mut()).is_null());
        assert!(alloc_td(rig.context, &mut ibv_td_init_attr { comp_mask: 1 }).is_null());
        assert!(create_cq_ex(rig.context, &mut cq_attr(rig.pd)).is_null(), "no parent domain");
        assert_eq!(errno(), libc::EINVAL);
    }
}

#[test]
fn imported_handles_reach_the_same_objects() {
    let rig = Rig::new();
    // SAFETY: this test keeps the handles alive; the imported context owns the duplicate.
    unsafe {
        let fd = libc::dup((*rig.context).cmd_fd);
        let context = ibv_import_device(fd);
        assert_eq!((*context).cmd_fd, fd);
        assert_eq!((*context).device, (*rig.context).device);
        let pd = ibv_import_pd(context, (*rig.pd).handle);
        let mr = ibv_import_mr(pd, (*rig.mr).handle);
        assert_eq!(((*mr).addr, (*mr).length), (null_mut(), 8192));
        assert_eq!(((*mr).lkey, (*mr).rkey), (rig.lkey(), rig.rkey()));
        assert_eq!(((*pd).handle, (*mr).handle), ((*rig.pd).handle, (*rig.mr).handle));
        // A region registered through the imported handle keeps the domain of both contexts busy.
        let second = ibv_reg_mr(pd, rig.memory.as_ptr().cast_mut().cast(), 64, 0);
        assert_eq!((ibv_dealloc_pd(rig.pd), ibv_dereg_mr(second)), (libc::EBUSY, 0));
        ibv_unimport_mr(mr);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_dealloc_pd(pd), libc::EINVAL);
        assert_eq!(ibv_close_device(context), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), -1, "closed with the context");
    }
}

#[test]
fn unknown_numbers_cannot_be_imported() {
    let (rig, other) = (Rig::new(), Rig::new());
    // SAFETY: the rigs keep their handles alive; the calls look up numbers and foreign handles.
    unsafe {
        assert!(ibv_import_device(-1).is_null());
        assert_eq!(errno(), libc::EBADF);
        assert!(ibv_import_device((*rig.context).async_fd).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert!(ibv_import_pd(rig.context, (*other.pd).handle).is_null(), "an object of another context");
        assert_eq!(errno(), libc::EINVAL);
        assert!(ibv_import_mr(rig.pd, (*other.mr).handle).is_null(), "an object of another context");
        assert!(ibv_import_pd(foreign(), 0).is_null());
        assert!(ibv_import_mr(foreign(), 0).is_null());
        ibv_unimport_pd(foreign());
        ibv_unimport_mr(foreign());
    }
}

#[test]
fn ece_reports_no_options() {
    let rig = Rig::new();
    let qp = rig.qp(RC);
    let mut ece = ibv_ece { vendor_id: 1, options: 1, comp_mask: 1 };
    // SAFETY: this test keeps the rig's handles alive, the call looks up the others, and the
    // structures are its variables.
    unsafe {
        assert_eq!(ibv_query_ece(qp, &raw mut ece), 0);
        let our_vendor = ece.vendor_id;
        assert_eq!(ece, ibv_ece { vendor_id: our_vendor, options: 0, comp_mask: 0 });
        assert_ne!(our_vendor, 0);
        let mut wanted = ibv_ece { options: 5, ..ece };
        assert_eq!(ibv_set_ece(qp, &raw mut wanted), 0);
        assert_eq!(wanted.options, 0, "no option is accepted");
        let cases = [(0, 0, libc::EOPNOTSUPP), (our_vendor + 1, 0, libc::EINVAL), (our_vendor, 1, libc::EINVAL)];
        for (vendor_id, comp_mask, expected) in cases {
            assert_eq!(ibv_set_ece(qp, &mut ibv_ece { vendor_id, options: 0, comp_mask }), expected);
        }
        assert_eq!((ibv_query_ece(qp, null_mut()), ibv_set_ece(qp, null_mut())), (libc::EINVAL, libc::EINVAL));
        assert_eq!(ibv_query_ece(foreign(), &raw mut ece), libc::EINVAL);
    }
    destroy(&[qp]);
}
