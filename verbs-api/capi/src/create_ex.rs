//! Queue pairs and shared receive queues by extended attributes: which kind of them the program
//! means.

use crate::abi::{ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr_ex};
use crate::errno::{EOPNOTSUPP, Errno, Result, invalid, null, pointer};
use crate::objects::context;
use crate::qp::{self, XRC_RECV, service};
use crate::srq::{self, BASIC, XRC};
use crate::{garbage, tag_matching, wq, wr_batch, xrc};
use core::ffi::c_int;

/// `IBV_QP_INIT_ATTR_*`: which fields of `ibv_qp_init_attr_ex` are given.
pub(crate) const QP_PD: u32 = 1;
pub(crate) const QP_XRCD: u32 = 1 << 1;
const QP_CREATE_FLAGS: u32 = 1 << 2;
const QP_SEND_OPS_FLAGS: u32 = 1 << 6;

/// `IBV_SRQ_INIT_ATTR_*`: which fields of `ibv_srq_init_attr_ex` are given.
pub(crate) const SRQ_TYPE: u32 = 1;
pub(crate) const SRQ_PD: u32 = 1 << 1;
pub(crate) const SRQ_XRCD: u32 = 1 << 2;
pub(crate) const SRQ_CQ: u32 = 1 << 3;
const SRQ_TM: u32 = 1 << 4;
/// What a queue of an XRC domain is made from, and what one with tag matching is.
const SRQ_MASK_XRC: u32 = SRQ_TYPE | SRQ_PD | SRQ_XRCD | SRQ_CQ;
const SRQ_MASK_TAGS: u32 = SRQ_TYPE | SRQ_PD | SRQ_CQ | SRQ_TM;
/// `IBV_SRQT_TM`.
const TAGS: c_int = 2;

/// EINVAL for attributes without the bit that names the protection domain.
fn lacks_pd(comp_mask: u32) -> Errno {
    invalid(|| {
        format!("comp_mask is {comp_mask:#x}, without the bit for pd (IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD)")
    })
}

/// EINVAL without a domain, EOPNOTSUPP for what the device does not do.
fn check_extended(init: &ibv_qp_init_attr_ex) -> Result<()> {
    let given = |bit| init.comp_mask & bit != 0;
    let flags = if given(QP_CREATE_FLAGS) { init.create_flags } else { 0 };
    let ops = if given(QP_SEND_OPS_FLAGS) { init.send_ops_flags } else { 0 };
    let other = init.comp_mask & !(QP_PD | QP_CREATE_FLAGS | QP_SEND_OPS_FLAGS);
    if other != 0 || flags != 0 || ops & !wr_batch::operations_of(service(init.qp_type)?) != 0 {
        let done = QP_PD | QP_CREATE_FLAGS | QP_SEND_OPS_FLAGS;
        return Err(garbage::qp_init(EOPNOTSUPP, (init.comp_mask, done), flags, (ops, service(init.qp_type)?)));
    }
    if given(QP_PD) { Ok(()) } else { Err(lacks_pd(init.comp_mask)) }
}

/// `man ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(handle: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    pointer(|| {
        context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let extended = unsafe { init.as_ref() }.ok_or_else(|| null("init"))?;
        if extended.qp_type == XRC_RECV && extended.comp_mask & QP_XRCD != 0 {
            return xrc::create_target(handle, extended);
        }
        if wq::is_hash_qp(extended) {
            return wq::create_hash_qp(extended);
        }
        check_extended(extended)?;
        let (pd, builders) = (extended.pd, extended.comp_mask & QP_SEND_OPS_FLAGS != 0);
        // SAFETY: not NULL, and the extended structure starts with the classic one.
        qp::create(pd, unsafe { &mut *init.cast::<ibv_qp_init_attr>() }, builders)
    })
}

/// `man ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    handle: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let init = unsafe { init.as_mut() }.ok_or_else(|| null("init"))?;
        if init.comp_mask == SRQ_MASK_XRC && init.srq_type == XRC {
            return xrc::create_srq(init);
        }
        if init.comp_mask == SRQ_MASK_TAGS && init.srq_type == TAGS {
            return tag_matching::create_srq(init);
        }
        let other_type = init.comp_mask & SRQ_TYPE != 0 && init.srq_type != BASIC;
        if other_type || init.comp_mask & !(SRQ_TYPE | SRQ_PD) != 0 {
            return Err(garbage::srq_init(EOPNOTSUPP, init.comp_mask));
        }
        if init.comp_mask & SRQ_PD == 0 {
            return Err(lacks_pd(init.comp_mask));
        }
        srq::create(init.pd, init.srq_context, &mut init.attr)
    })
}
