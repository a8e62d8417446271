//! Work requests, posted one at a time.

use super::{Ah, Mr, Mw, Qp, Srq, check, missing};
use crate::protocol::{Refusal, names};
use core::ffi::c_int;
use core::ptr;
use roxe_abi::*;
use std::rc::Rc;

/// A segment as the card gets it. An address that the controller gave as a number goes no further
/// than the card.
pub(crate) type Segment = ibv_sge;

impl Qp {
    /// Posts a request that has no pointers yet, with its segments and, if it is a datagram, the
    /// path that it takes.
    pub(crate) fn post_send(
        &self,
        mut wr: ibv_send_wr,
        segments: &[Segment],
        path: Option<&Ah>,
    ) -> Result<(), Refusal> {
        (wr.next, wr.sg_list, wr.num_sge) = (ptr::null_mut(), segments.as_ptr(), count(segments)?);
        if let Some(ah) = path {
            wr.wr.ud.ah = ah.raw;
        }
        let post = self.pd.context.ops().post_send.ok_or_else(|| missing("ibv_post_send"))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, as are the segments and the path, to which alone the
        // request points; inline data lies in memory of ours, and no other address of a segment is
        // followed by the library.
        check("ibv_post_send", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[Segment]) -> Result<(), Refusal> {
        let post = self.pd.context.ops().post_recv.ok_or_else(|| missing("ibv_post_recv"))?;
        let (mut wr, mut bad) = (recv_wr(wr_id, segments)?, ptr::null_mut());
        // SAFETY: the queue pair is alive, as is what the request points to.
        check("ibv_post_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    /// Posts the binding of a window to a part of `mr`, and tells the key that it gets.
    pub(crate) fn bind(
        &self,
        mw: &Mw,
        mr: &Rc<Mr>,
        part: ibv_mw_bind_info,
        wr_id: u64,
        flags: u32,
    ) -> Result<u32, Refusal> {
        if !Rc::ptr_eq(&mw.pd, &self.pd) {
            return Err(Refusal::invalid("the window and the queue pair are of different domains"));
        }
        let bind_info = ibv_mw_bind_info { mr: mr.raw, ..part };
        if mw.kind() == 1 {
            let bind = self.pd.context.ops().bind_mw.ok_or_else(|| missing("ibv_bind_mw"))?;
            let mut request = ibv_mw_bind { wr_id, send_flags: flags, bind_info };
            // SAFETY: the queue pair, the window and the region are alive.
            check("ibv_bind_mw", unsafe { bind(self.raw, mw.raw, &raw mut request) })?;
        } else {
            let rkey = next_key(mw.rkey());
            let bind_mw = wr_bind_mw { mw: mw.raw, rkey, bind_info };
            let opcode = names::OPCODE_BIND_MW;
            self.post_send(ibv_send_wr { wr_id, opcode, send_flags: flags, bind_mw, ..ibv_send_wr::ZERO }, &[], None)?;
            mw.set_rkey(rkey);
        }
        mw.bound.set(Some(Rc::clone(mr)));
        Ok(mw.rkey())
    }
}

/// `ibv_inc_rkey`: the next key of a window, which differs in the lowest byte.
const fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

fn recv_wr(wr_id: u64, segments: &[Segment]) -> Result<ibv_recv_wr, Refusal> {
    Ok(ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: segments.as_ptr(), num_sge: count(segments)? })
}

impl Srq {
    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[Segment]) -> Result<(), Refusal> {
        let post = self.pd.context.ops().post_srq_recv.ok_or_else(|| missing("ibv_post_srq_recv"))?;
        let (mut wr, mut bad) = (recv_wr(wr_id, segments)?, ptr::null_mut());
        // SAFETY: the queue is alive, as is what the request points to.
        check("ibv_post_srq_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }
}

fn count(segments: &[Segment]) -> Result<c_int, Refusal> {
    c_int::try_from(segments.len()).map_err(|_| Refusal::invalid("too many segments"))
}
