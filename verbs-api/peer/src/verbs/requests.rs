//! Work requests, posted one at a time.

use super::{Ah, Mr, Mw, Qp, Srq, check, missing};
use crate::protocol::{Refusal, names};
use core::ffi::{c_int, c_uint};
use core::ptr;
use roxe_abi::*;
use std::rc::Rc;

/// A segment as the card gets it. An address that the controller gave as a number goes no further
/// than the card.
pub(crate) type Segment = ibv_sge;

/// A request for `post_send`.
pub(crate) struct SendRequest {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// As it stands in the request: immediate data in network byte order, or a key.
    pub(crate) imm_data: u32,
    pub(crate) segments: Vec<Segment>,
    /// What is sent instead of segments, copied by the library.
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) target: Target,
    /// The shared queue that a request of XRC names.
    pub(crate) srqn: u32,
}

/// The part of a request that depends on the service and the opcode.
pub(crate) enum Target {
    /// Nothing, or where in the peer's memory.
    Remote { addr: u64, rkey: u32, compare_add: u64, swap: u64, is_atomic: bool },
    /// Which queue pair, and by which path.
    Datagram { ah: Rc<Ah>, qpn: u32, qkey: u32 },
}

impl Qp {
    pub(crate) fn post_send(&self, request: &SendRequest) -> Result<(), Refusal> {
        let mut inline = None;
        let mut flags = request.flags;
        if let Some(bytes) = &request.inline {
            let length = u32::try_from(bytes.len()).map_err(|_| Refusal::invalid("inline_data is too long"))?;
            inline = Some([Segment { addr: bytes.as_ptr().addr() as u64, length, lkey: 0 }]);
            flags |= names::number(names::SEND_FLAGS, "INLINE").unwrap_or(0);
        }
        let segments = inline.as_ref().map_or(&request.segments[..], |inline| inline);
        let mut wr = ibv_send_wr {
            wr_id: request.wr_id,
            sg_list: segments.as_ptr(),
            num_sge: count(segments)?,
            opcode: request.opcode,
            send_flags: flags,
            imm_data: request.imm_data,
            remote_srqn: request.srqn,
            ..ibv_send_wr::ZERO
        };
        wr.wr = match &request.target {
            Target::Datagram { ah, qpn, qkey } => {
                wr_union { ud: wr_ud { ah: ah.raw, remote_qpn: *qpn, remote_qkey: *qkey } }
            }
            Target::Remote { addr, rkey, compare_add, swap, is_atomic: true } => wr_union {
                atomic: wr_atomic { remote_addr: *addr, compare_add: *compare_add, swap: *swap, rkey: *rkey },
            },
            Target::Remote { addr, rkey, .. } => wr_union { rdma: wr_rdma { remote_addr: *addr, rkey: *rkey } },
        };
        self.post(&mut wr)
    }

    fn post(&self, wr: &mut ibv_send_wr) -> Result<(), Refusal> {
        let post = self.context().ops().post_send.ok_or_else(|| missing("ibv_post_send"))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, as is what the request points to; inline data lies in
        // memory of ours, and no other address of a segment is followed by the library.
        check("ibv_post_send", unsafe { post(self.raw, ptr::from_mut(wr), &raw mut bad) })
    }

    pub(crate) fn post_recv(&self, request: &RecvRequest) -> Result<(), Refusal> {
        let post = self.context().ops().post_recv.ok_or_else(|| missing("ibv_post_recv"))?;
        let (mut wr, mut bad) = (request.raw()?, ptr::null_mut());
        // SAFETY: the queue pair is alive, as is what the request points to.
        check("ibv_post_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    /// Posts the binding of a window, and tells the key that it gets.
    pub(crate) fn bind(&self, mw: &Mw, window: &Window, wr_id: u64, flags: u32) -> Result<u32, Refusal> {
        if !Rc::ptr_eq(mw.pd(), self.pd()) {
            return Err(Refusal::invalid("the window and the queue pair are of different domains"));
        }
        let bind_info = ibv_mw_bind_info {
            mr: window.mr.raw(),
            addr: window.addr,
            length: window.length,
            mw_access_flags: window.access as c_uint,
        };
        if mw.kind() == 1 {
            let bind = self.context().ops().bind_mw.ok_or_else(|| missing("ibv_bind_mw"))?;
            let mut request = ibv_mw_bind { wr_id, send_flags: flags, bind_info };
            // SAFETY: the queue pair, the window and the region are alive.
            check("ibv_bind_mw", unsafe { bind(self.raw, mw.raw(), &raw mut request) })?;
        } else {
            let rkey = next_key(mw.rkey());
            let bind_mw = wr_bind_mw { mw: mw.raw(), rkey, bind_info };
            let opcode = names::OPCODE_BIND_MW;
            self.post(&mut ibv_send_wr { wr_id, opcode, send_flags: flags, bind_mw, ..ibv_send_wr::ZERO })?;
            mw.set_rkey(rkey);
        }
        mw.set_bound(&window.mr);
        Ok(mw.rkey())
    }
}

/// What a window shall show.
pub(crate) struct Window {
    pub(crate) mr: Rc<Mr>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

/// `ibv_inc_rkey`: the next key of a window, which differs in the lowest byte.
const fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// A request for `post_recv`.
pub(crate) struct RecvRequest {
    pub(crate) wr_id: u64,
    pub(crate) segments: Vec<Segment>,
}

impl RecvRequest {
    fn raw(&self) -> Result<ibv_recv_wr, Refusal> {
        Ok(ibv_recv_wr {
            wr_id: self.wr_id,
            next: ptr::null_mut(),
            sg_list: self.segments.as_ptr(),
            num_sge: count(&self.segments)?,
        })
    }
}

impl Srq {
    pub(crate) fn post_recv(&self, request: &RecvRequest) -> Result<(), Refusal> {
        let post = self.context().ops().post_srq_recv.ok_or_else(|| missing("ibv_post_srq_recv"))?;
        let (mut wr, mut bad) = (request.raw()?, ptr::null_mut());
        // SAFETY: the queue is alive, as is what the request points to.
        check("ibv_post_srq_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }
}

fn count(segments: &[Segment]) -> Result<c_int, Refusal> {
    c_int::try_from(segments.len()).map_err(|_| Refusal::invalid("too many segments"))
}
