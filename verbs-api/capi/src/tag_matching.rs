//! Tag matching: shared receive queues of the type `IBV_SRQT_TM` and the operations on their tags.

use crate::abi::{ibv_ops_wr, ibv_srq, ibv_srq_init_attr_ex};
use crate::cq::extended_cq;
use crate::data_path::{SgeList, report_bad};
use crate::errno::{EINVAL, Result, status};
use crate::object::Object;
use crate::objects::pd;
use crate::srq;
use core::ffi::c_int;
use roxe_provider::{SrqInit, TagHandle, TagInit, TagOp, TagRecv, TagRequest};

/// `IBV_OPS_SIGNALED` and `IBV_OPS_TM_SYNC`.
const SIGNALED: c_int = 1;
const TM_SYNC: c_int = 2;
/// `IBV_WR_TAG_ADD`, `IBV_WR_TAG_DEL` and `IBV_WR_TAG_SYNC`.
const ADD: c_int = 0;
const DEL: c_int = 1;
const SYNC: c_int = 2;

/// `man ibv_create_srq_ex`: EINVAL without an extended CQ, since no other tells what matched (as
/// libmlx5 has it).
pub(crate) fn create_srq(init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    let (domain, completes) = (pd(init.pd)?, extended_cq(init.cq)?);
    let [max_tags, max_ops] = init.tm_cap;
    let make = |init: SrqInit| domain.create_tag_srq(init, completes, TagInit { max_tags, max_ops });
    srq::publish(init.pd, init.srq_context, &mut init.attr, make)
}

/// Does one operation of a list.
///
/// # Safety
/// `wr` and its scatter list are as the program of a verbs interface must pass them.
unsafe fn post_one(srq: &roxe_provider::Srq, wr: &mut ibv_ops_wr) -> Result<()> {
    let mut list = SgeList::new();
    let op = match wr.opcode {
        ADD => {
            let add = &wr.tm.add;
            let count = usize::try_from(add.num_sge).map_err(|_| EINVAL)?;
            // SAFETY: this function's contract.
            let sges = unsafe { list.fill(add.sg_list, count) }?;
            TagOp::Add(TagRecv { wr_id: add.recv_wr_id, tag: add.tag, mask: add.mask, sges })
        }
        DEL => TagOp::Remove(TagHandle(wr.tm.handle)),
        SYNC => TagOp::Sync,
        _ => return Err(EINVAL),
    };
    let handled = (wr.flags & TM_SYNC != 0).then_some(wr.tm.unexpected_cnt);
    let made = srq.post_op(&TagRequest { wr_id: wr.wr_id, op, signaled: wr.flags & SIGNALED != 0, handled })?;
    if let Some(TagHandle(handle)) = made {
        wr.tm.handle = handle;
    }
    Ok(())
}

/// `man ibv_post_srq_ops`: ENOMEM if the list of tags, or of operations that are not polled, is
/// full.
pub(crate) unsafe extern "C" fn post_srq_ops(
    handle: *mut ibv_srq,
    wr: *mut ibv_ops_wr,
    bad_wr: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: called through the context of a living SRQ.
    let Some(object) = (unsafe { Object::<ibv_srq>::trusted(handle) }) else { return EINVAL.tell() };
    status(|| {
        let mut next = wr;
        // SAFETY: the list ends with NULL and its elements are whole structures of the program.
        while let Some(request) = unsafe { next.as_mut() } {
            // SAFETY: the list ends with NULL and its elements are whole structures of the
            // program.
            if let Err(error) = unsafe { post_one(&object.inner.srq, request) } {
                // SAFETY: NULL or a variable of the program.
                unsafe { report_bad(bad_wr, next) };
                return Err(error);
            }
            next = request.next;
        }
        Ok(())
    })
}
