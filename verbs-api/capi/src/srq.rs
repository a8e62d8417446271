//! Shared receive queues: basic ones, those of XRC domains, and those with tag matching
//! (`IBV_SRQT_TM`). Posting receives is in `data_path.rs`.

use crate::abi::*;
use crate::cq::extended_cq;
use crate::data_path::{SgeList, write_bad_wr};
use crate::domain::xrcd;
use crate::errno::{EINVAL, EOPNOTSUPP, Result, einval, invalid, pointer, required, status, write_out};
use crate::object::{Object, Resource, Token, Unacked};
use crate::objects::{SrqInner, allocator, context, context_of, cq, pd, srq};
use crate::undefined;
use core::ffi::{c_int, c_void};
use roxe_provider::{Error, Srq, SrqInit, TagHandle, TagInit, TagOp, TagRecv, TagRequest};
use std::sync::Arc;

/// `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`: attributes that `ibv_modify_srq` changes.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
pub(crate) const BASIC: c_int = 0;
pub(crate) const XRC: c_int = 1;

pub(crate) fn optional_srq(handle: *mut ibv_srq) -> Result<Option<Arc<Srq>>> {
    Object::<ibv_srq>::optional(handle).map(|object| object.map(|object| Arc::clone(&object.inner.srq)))
}

fn attr(srq: &Srq) -> ibv_srq_attr {
    let attr = srq.query();
    ibv_srq_attr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.limit }
}

/// Creates an SRQ and writes its actual size to `size`. Ignores the limit in it, which is not an
/// attribute of creation (`man ibv_create_srq`).
pub(crate) fn create(handle: *mut ibv_pd, srq_context: *mut c_void, size: &mut ibv_srq_attr) -> Result<*mut ibv_srq> {
    let pd = pd(handle)?;
    publish(handle, srq_context, size, |init| pd.create_srq(init))
}

/// Publishes the SRQ that `make` creates, and writes its actual size to `size`.
pub(crate) fn publish(
    handle: *mut ibv_pd,
    srq_context: *mut c_void,
    size: &mut ibv_srq_attr,
    make: impl FnOnce(SrqInit) -> core::result::Result<Arc<Srq>, Error>,
) -> Result<*mut ibv_srq> {
    let token = Token::new();
    let init = SrqInit { max_wr: size.max_wr, max_sge: size.max_sge, limit: 0, user_context: token.0 };
    let srq = make(init)?;
    let exposed =
        ibv_srq { context: context_of(handle)?, srq_context, pd: handle, handle: token.short(), ..ibv_srq::ZERO };
    *size = attr(&srq);
    let inner = SrqInner { events: Unacked::new("asynchronous events", Some(srq.id())), srq };
    Object::publish_in(allocator(handle, Resource::Srq)?, token, exposed, inner)
}

pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        let init = required!(mut init);
        create(pd, init.srq_context, &mut init.attr)
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(handle: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        let srq = srq(handle)?;
        let attr = required!(attr);
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(invalid(|| {
                format!("srq_attr_mask is {mask:#x}; accepted are IBV_SRQ_MAX_WR 1, IBV_SRQ_LIMIT 2")
            }));
        }
        let if_set = |bit, value| (mask & bit != 0).then_some(value);
        Ok(srq.modify(if_set(MAX_WR, attr.max_wr), if_set(LIMIT, attr.srq_limit))?)
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(handle: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    status(|| unsafe { write_out(out, attr(srq(handle)?)) })
}

/// `man ibv_create_srq`: fails with EBUSY while QPs use it; waits until every event is
/// acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(handle: *mut ibv_srq) -> c_int {
    status(|| Object::<ibv_srq>::destroy_acknowledged(handle, |inner| inner.srq.destroy(), |inner| &inner.events))
}

/// `IBV_SRQ_INIT_ATTR_*`: fields of `ibv_srq_init_attr_ex` that the program has set.
pub(crate) const SRQ_TYPE: u32 = 1;
pub(crate) const SRQ_PD: u32 = 1 << 1;
pub(crate) const SRQ_XRCD: u32 = 1 << 2;
pub(crate) const SRQ_CQ: u32 = 1 << 3;
const SRQ_TM: u32 = 1 << 4;
/// Fields of an SRQ in an XRC domain, and of one with tag matching.
const SRQ_MASK_XRC: u32 = SRQ_TYPE | SRQ_PD | SRQ_XRCD | SRQ_CQ;
const SRQ_MASK_TAGS: u32 = SRQ_TYPE | SRQ_PD | SRQ_CQ | SRQ_TM;
/// `IBV_SRQT_TM`.
const TAGS: c_int = 2;

pub(crate) unsafe extern "C" fn create_srq_ex(
    handle: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        context(handle)?;
        let init = required!(mut init);
        if init.comp_mask == SRQ_MASK_XRC && init.srq_type == XRC {
            let (xrcd, pd, cq) = (xrcd(init.xrcd)?, pd(init.pd)?, cq(init.cq)?);
            let make = |init: SrqInit| xrcd.create_srq(pd, cq, init);
            return publish(init.pd, init.srq_context, &mut init.attr, make);
        }
        if init.comp_mask == SRQ_MASK_TAGS && init.srq_type == TAGS {
            // Only an extended CQ reports the matched tag; libmlx5 refuses other CQs too.
            let (pd, cq) = (pd(init.pd)?, extended_cq(init.cq)?);
            let [max_tags, max_ops] = init.tm_cap;
            let make = |init: SrqInit| pd.create_tag_srq(init, cq, TagInit { max_tags, max_ops });
            return publish(init.pd, init.srq_context, &mut init.attr, make);
        }
        let other_type = init.comp_mask & SRQ_TYPE != 0 && init.srq_type != BASIC;
        if other_type || init.comp_mask & !(SRQ_TYPE | SRQ_PD) != 0 {
            return Err(undefined::srq_init(EOPNOTSUPP, init.comp_mask));
        }
        if init.comp_mask & SRQ_PD == 0 {
            return Err(undefined::lacks_pd(init.comp_mask));
        }
        create(init.pd, init.srq_context, &mut init.attr)
    })
}

/// `man ibv_get_srq_num`: fails with EINVAL for an SRQ that belongs to no XRC domain.
pub(crate) unsafe extern "C" fn get_srq_num(handle: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        let none = || einval("the shared receive queue belongs to no XRC domain");
        // SAFETY: the program passes NULL or a variable that is valid during the call.
        unsafe { write_out(number, srq(handle)?.number().ok_or_else(none)?) }
    })
}

/// `IBV_OPS_SIGNALED` and `IBV_OPS_TM_SYNC`.
const SIGNALED: c_int = 1;
const TM_SYNC: c_int = 2;
/// `IBV_WR_TAG_ADD`, `IBV_WR_TAG_DEL` and `IBV_WR_TAG_SYNC`.
const ADD: c_int = 0;
const DEL: c_int = 1;
const SYNC: c_int = 2;

/// Posts one operation of a list.
///
/// # Safety
/// The scatter/gather list in `wr` has as many elements as `wr` says.
unsafe fn post_one(srq: &Srq, wr: &mut ibv_ops_wr) -> Result<()> {
    let mut list = SgeList::new();
    let op = match wr.opcode {
        ADD => {
            let add = &wr.tm.add;
            let count = usize::try_from(add.num_sge).map_err(|_| EINVAL)?;
            // SAFETY: the caller guarantees a list of `count` elements.
            let sges = unsafe { list.copy_list(add.sg_list, count) }?;
            TagOp::Add(TagRecv { wr_id: add.recv_wr_id, tag: add.tag, mask: add.mask, sges })
        }
        DEL => TagOp::Remove(TagHandle(wr.tm.handle)),
        SYNC => TagOp::Sync,
        _ => return Err(EINVAL),
    };
    let handled = (wr.flags & TM_SYNC != 0).then_some(wr.tm.unexpected_cnt);
    let created = srq.post_op(&TagRequest { wr_id: wr.wr_id, op, signaled: wr.flags & SIGNALED != 0, handled })?;
    if let Some(TagHandle(handle)) = created {
        wr.tm.handle = handle;
    }
    Ok(())
}

/// `man ibv_post_srq_ops`: fails with ENOMEM if the list of tags, or that of operations without a
/// polled completion, is full.
pub(crate) unsafe extern "C" fn post_srq_ops(
    handle: *mut ibv_srq,
    wr: *mut ibv_ops_wr,
    bad_wr: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the program passes NULL or an SRQ that stays alive during the call.
    let Some(object) = (unsafe { Object::<ibv_srq>::trusted(handle) }) else { return EINVAL.report() };
    status(|| {
        let mut next = wr;
        // SAFETY: the program passes a list that ends with NULL; its elements are valid during the
        // call.
        while let Some(request) = unsafe { next.as_mut() } {
            // SAFETY: the element, and the lists and handles in it, are valid during the call.
            if let Err(error) = unsafe { post_one(&object.inner.srq, request) } {
                // SAFETY: the program passes NULL or a variable that is valid during the call.
                unsafe { write_bad_wr(bad_wr, next) };
                return Err(error);
            }
            next = request.next;
        }
        Ok(())
    })
}
