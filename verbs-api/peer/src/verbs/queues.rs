//! Completion queues with their channels, shared receive queues, and queue pairs.

use super::{Ah, Context, Mr, Mw, Pd, Xrcd, check, check_pointer, make_nonblocking, missing, owned, wait_readable};
use crate::protocol::{Refusal, names};
use core::ffi::c_int;
use core::ptr;
use roxe_abi::*;
use std::rc::Rc;
use std::time::Instant;

/// A segment as passed to the card. Only the card uses addresses that the controller gave as
/// numbers.
pub(crate) type Segment = ibv_sge;

/// `enum ibv_qp_type`: the two ends of an XRC connection.
const XRC_SEND: u32 = 9;
const XRC_RECV: u32 = 10;
/// `enum ibv_qp_init_attr_mask`.
const QP_PD: u32 = 1;
const QP_XRCD: u32 = 2;
/// `enum ibv_srq_init_attr_mask`, and `IBV_SRQT_XRC`.
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 2;
const SRQ_XRCD: u32 = 4;
const SRQ_CQ: u32 = 8;
const SRQT_XRC: c_int = 1;
/// `IBV_SRQ_INIT_ATTR_TM`, and `IBV_SRQT_TM`.
const SRQ_TAGS: u32 = 16;
const SRQT_TAGS: c_int = 2;
const SRQ_LIMIT: c_int = 1 << 1;
/// `enum ibv_qp_attr_mask`: `IBV_QP_STATE` to `IBV_QP_DEST_QPN`.
const ALL_ATTRIBUTES: c_int = (1 << 21) - 1;

struct Channel {
    raw: *mut ibv_comp_channel,
    context: Rc<Context>,
}

impl Channel {
    fn create(context: &Rc<Context>) -> Result<Self, Refusal> {
        // SAFETY: `context.raw` is valid while `context` is held.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw) };
        let channel = Self { raw: check_pointer("ibv_create_comp_channel", raw)?, context: Rc::clone(context) };
        // SAFETY: `channel.raw` is valid until `channel` is dropped.
        make_nonblocking(unsafe { (*channel.raw).fd })?;
        Ok(channel)
    }
}

/// A completion queue and its channel, which is destroyed after it.
pub(crate) struct Cq {
    pub(crate) raw: *mut ibv_cq,
    channel: Channel,
    /// True if `ibv_create_cq_ex` created the queue.
    is_extended: bool,
}

/// A completion, with the sender's tag and context if the queue reports them.
pub(crate) struct Entry {
    pub(crate) wc: ibv_wc,
    pub(crate) matched: Option<ibv_wc_tm_info>,
}

/// `IBV_WC_EX_WITH_...`: the fields of `ibv_wc`, and tags.
const WITH_ALL: u64 = 0x7f | 1 << 10;

impl Cq {
    pub(crate) fn create(context: &Rc<Context>, cqe: u32) -> Result<Self, Refusal> {
        let cqe = cqe.cast_signed();
        let channel = Channel::create(context)?;
        // SAFETY: `context.raw` and `channel.raw` are valid while `context` and `channel` are held.
        let raw = unsafe { (context.library.ibv_create_cq)(context.raw, cqe, ptr::null_mut(), channel.raw, 0) };
        Ok(Self { raw: check_pointer("ibv_create_cq", raw)?, channel, is_extended: false })
    }

    /// Creates a queue that reports the tags of messages.
    pub(crate) fn create_for_tags(context: &Rc<Context>, cqe: u32) -> Result<Self, Refusal> {
        let create = context.extended().and_then(|more| more.create_cq_ex);
        let (create, channel) = (create.ok_or_else(|| missing("ibv_create_cq_ex"))?, Channel::create(context)?);
        let mut attr =
            ibv_cq_init_attr_ex { cqe, channel: channel.raw, wc_flags: WITH_ALL, ..ibv_cq_init_attr_ex::ZERO };
        // SAFETY: `context.raw` and `channel.raw` are valid while `context` and `channel` are held;
        // `attr` is a structure of the ABI and outlives the call.
        let raw = check_pointer("ibv_create_cq_ex", unsafe { create(context.raw, &raw mut attr) })?;
        Ok(Self { raw: raw.cast(), channel, is_extended: true })
    }

    pub(crate) fn cqe(&self) -> c_int {
        // SAFETY: `self.raw` is a valid queue until `destroy`.
        unsafe { (*self.raw).cqe }
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), Refusal> {
        let cqe = c_int::try_from(cqe).map_err(|_| Refusal::invalid("cqe is too large"))?;
        // SAFETY: `self.raw` is a valid queue until `destroy`.
        check("ibv_resize_cq", unsafe { (self.channel.context.library.ibv_resize_cq)(self.raw, cqe) })
    }

    pub(crate) fn poll(&self, max: usize) -> Result<Vec<Entry>, Refusal> {
        if self.is_extended {
            return self.poll_extended(max);
        }
        let poll = self.channel.context.ops().poll_cq.ok_or_else(|| missing("ibv_poll_cq"))?;
        let mut entries = vec![ibv_wc::ZERO; max];
        let room = c_int::try_from(max).unwrap_or(c_int::MAX);
        // SAFETY: `self.raw` is a valid queue until `destroy`, and `entries` has room for `room`
        // entries.
        let count = unsafe { poll(self.raw, room, entries.as_mut_ptr()) };
        let count = usize::try_from(count).or_else(|_| check("ibv_poll_cq", count).map(|()| 0))?;
        entries.truncate(count);
        Ok(entries.into_iter().map(|wc| Entry { wc, matched: None }).collect())
    }

    /// Polls a queue of `ibv_create_cq_ex`, whose completions are read field by field.
    fn poll_extended(&self, max: usize) -> Result<Vec<Entry>, Refusal> {
        let (raw, mut attr, mut entries) = (self.raw.cast::<ibv_cq_ex>(), ibv_poll_cq_attr { comp_mask: 0 }, vec![]);
        // SAFETY: `raw` is a valid queue until `destroy`, and one of `ibv_create_cq_ex`
        // (`is_extended`).
        let queue = unsafe { &*raw };
        let start = queue.start_poll.ok_or_else(|| missing("ibv_start_poll"))?;
        let (next, end) = (queue.next_poll.zip(queue.end_poll)).ok_or_else(|| missing("ibv_next_poll"))?;
        // SAFETY: `raw` is a valid extended queue until `destroy`, and `attr` outlives the call.
        let mut code = unsafe { start(raw, &raw mut attr) };
        if code == libc::ENOENT {
            return Ok(entries);
        }
        check("ibv_start_poll", code)?;
        while code == 0 {
            // SAFETY: `raw` is a valid extended queue, and its poll has a current completion.
            entries.push(unsafe { current(raw) });
            if entries.len() >= max {
                break;
            }
            // SAFETY: `raw` is a valid extended queue, and its poll has started.
            code = unsafe { next(raw) };
        }
        // SAFETY: `raw` is a valid extended queue, and its poll has started; this call ends the
        // poll.
        unsafe { end(raw) };
        if matches!(code, 0 | libc::ENOENT) { Ok(entries) } else { check("ibv_next_poll", code).map(|()| entries) }
    }

    pub(crate) fn notify(&self, solicited: bool) -> Result<(), Refusal> {
        let notify = self.channel.context.ops().req_notify_cq.ok_or_else(|| missing("ibv_req_notify_cq"))?;
        // SAFETY: `self.raw` is a valid queue until `destroy`.
        check("ibv_req_notify_cq", unsafe { notify(self.raw, c_int::from(solicited)) })
    }

    /// Waits for the requested event until `until`. Returns true if it was raised.
    pub(crate) fn event(&self, until: Instant) -> Result<bool, Refusal> {
        // SAFETY: `self.channel.raw` is valid until `self` is dropped.
        if !wait_readable(unsafe { (*self.channel.raw).fd }, until) {
            return Ok(false);
        }
        let (mut cq, mut data) = (ptr::null_mut(), ptr::null_mut());
        let library = &self.channel.context.library;
        // SAFETY: `self.channel.raw` is valid until `self` is dropped; `cq` and `data` are valid
        // for writing.
        let code = unsafe { (library.ibv_get_cq_event)(self.channel.raw, &raw mut cq, &raw mut data) };
        check("ibv_get_cq_event", code)?;
        // SAFETY: `cq` is this queue, the only queue of its channel; this acknowledges its one
        // event.
        unsafe { (library.ibv_ack_cq_events)(cq, 1) };
        Ok(true)
    }
}

/// Reads the current completion of a queue. Leaves out the fields that a failed completion does not
/// define.
///
/// # Safety
/// `raw` is a valid queue of `ibv_create_cq_ex`, and its poll has a current completion.
unsafe fn current(raw: *mut ibv_cq_ex) -> Entry {
    // SAFETY: `raw` is a valid extended queue by this function's contract; programs may read these
    // fields.
    let queue = unsafe { &*raw };
    let (wr_id, status) = (queue.wr_id, queue.status);
    macro_rules! read {
        ($reader:ident) => {
            // SAFETY: `raw` is a valid queue whose poll has started, by this function's contract.
            queue.$reader.map(|read| unsafe { read(raw) }).unwrap_or_default()
        };
    }
    let mut wc = ibv_wc { wr_id, status, vendor_err: read!(read_vendor_err), ..ibv_wc::ZERO };
    if status != 0 {
        return Entry { wc, matched: None };
    }
    (wc.opcode, wc.byte_len, wc.imm_data) = (read!(read_opcode), read!(read_byte_len), read!(read_imm_data));
    (wc.qp_num, wc.src_qp, wc.wc_flags) = (read!(read_qp_num), read!(read_src_qp), read!(read_wc_flags));
    let mut matched = ibv_wc_tm_info::ZERO;
    // SAFETY: `raw` is a valid queue whose poll has started, by this function's contract; `matched`
    // is valid for writing.
    let has_tags = queue.read_tm_info.map(|read| unsafe { read(raw, &raw mut matched) }).is_some();
    Entry { wc, matched: has_tags.then_some(matched) }
}

/// A shared receive queue. A queue of XRC or for tags holds its completion queue, and a queue of
/// XRC also its domain.
pub(crate) struct Srq {
    pub(crate) raw: *mut ibv_srq,
    pub(super) pd: Rc<Pd>,
    _domain: Option<Rc<Xrcd>>,
    _cq: Option<Rc<Cq>>,
}

impl Srq {
    pub(crate) fn create(pd: &Rc<Pd>, max_wr: u32, max_sge: u32) -> Result<Self, Refusal> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: `pd.raw` is valid while `pd` is held; `init` is a structure of the ABI and
        // outlives the call.
        let raw = unsafe { (pd.context.library.ibv_create_srq)(pd.raw, &raw mut init) };
        Ok(Self { raw: check_pointer("ibv_create_srq", raw)?, pd: Rc::clone(pd), _domain: None, _cq: None })
    }

    /// Creates a queue in an XRC domain. Requests carry the queue's number.
    pub(crate) fn create_xrc(
        pd: &Rc<Pd>,
        [max_wr, max_sge]: [u32; 2],
        xrcd: Rc<Xrcd>,
        cq: Rc<Cq>,
    ) -> Result<Self, Refusal> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let (comp_mask, srq_type) = (SRQ_XRCD, SRQT_XRC);
        let init = ibv_srq_init_attr_ex { attr, comp_mask, srq_type, ..ibv_srq_init_attr_ex::ZERO };
        Self::create_extended(pd, init, Some(xrcd), cq)
    }

    /// Creates a queue that matches at most `max_tags` tags.
    pub(crate) fn create_for_tags(
        pd: &Rc<Pd>,
        [max_wr, max_sge, max_tags]: [u32; 3],
        cq: Rc<Cq>,
    ) -> Result<Self, Refusal> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let (comp_mask, srq_type, tm_cap) = (SRQ_TAGS, SRQT_TAGS, [max_tags, max_tags]);
        let init = ibv_srq_init_attr_ex { attr, comp_mask, srq_type, tm_cap, ..ibv_srq_init_attr_ex::ZERO };
        Self::create_extended(pd, init, None, cq)
    }

    /// Creates a queue with a completion queue of its own, and an XRC domain if it has one.
    fn create_extended(
        pd: &Rc<Pd>,
        init: ibv_srq_init_attr_ex,
        domain: Option<Rc<Xrcd>>,
        cq: Rc<Cq>,
    ) -> Result<Self, Refusal> {
        let create = pd.context.extended().and_then(|more| more.create_srq_ex);
        let create = create.ok_or_else(|| missing("ibv_create_srq_ex"))?;
        let comp_mask = init.comp_mask | SRQ_TYPE | SRQ_PD | SRQ_CQ;
        let xrcd = domain.as_ref().map_or(ptr::null_mut(), |domain| domain.raw);
        let mut init = ibv_srq_init_attr_ex { comp_mask, pd: pd.raw, xrcd, cq: cq.raw, ..init };
        // SAFETY: `init` is a structure of the ABI that outlives the call; its pointers are valid
        // while `pd`, `domain` and `cq` are held.
        let raw = unsafe { create(pd.context.raw, &raw mut init) };
        let raw = check_pointer("ibv_create_srq_ex", raw)?;
        Ok(Self { raw, pd: Rc::clone(pd), _domain: domain, _cq: Some(cq) })
    }

    /// Posts an operation on tags; `segments` are those of a new tag. Returns the tag's handle.
    pub(crate) fn post_tag(&self, mut wr: ibv_ops_wr, segments: &[Segment]) -> Result<u32, Refusal> {
        let post = self.pd.context.extended().and_then(|more| more.post_srq_ops);
        let (post, mut bad) = (post.ok_or_else(|| missing("ibv_post_srq_ops"))?, ptr::null_mut());
        (wr.tm.add.sg_list, wr.tm.add.num_sge) = (segments.as_ptr(), count(segments)?);
        // SAFETY: `self.raw` is a valid queue until `destroy`; the request and `segments` outlive
        // the call.
        check("ibv_post_srq_ops", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })?;
        Ok(wr.tm.handle)
    }

    /// Sets the number of receives below which the queue raises an event.
    pub(crate) fn set_limit(&self, srq_limit: u32) -> Result<(), Refusal> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit };
        let modify = self.pd.context.library.ibv_modify_srq;
        // SAFETY: `self.raw` is a valid queue until `destroy`, and `attr` outlives the call.
        check("ibv_modify_srq", unsafe { modify(self.raw, &raw mut attr, SRQ_LIMIT) })
    }

    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[Segment]) -> Result<(), Refusal> {
        let post = self.pd.context.ops().post_srq_recv.ok_or_else(|| missing("ibv_post_srq_recv"))?;
        let (mut wr, mut bad) = (recv_wr(wr_id, segments)?, ptr::null_mut());
        // SAFETY: `self.raw` is a valid queue until `destroy`; the request and `segments` outlive
        // the call.
        check("ibv_post_srq_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    /// Returns the number that XRC requests to the queue carry.
    pub(crate) fn number(&self) -> Result<u32, Refusal> {
        let get = self.pd.context.extended().and_then(|more| more.get_srq_num);
        let (get, mut number) = (get.ok_or_else(|| missing("ibv_get_srq_num"))?, 0);
        // SAFETY: `self.raw` is a valid queue until `destroy`, and `number` is valid for writing.
        check("ibv_get_srq_num", unsafe { get(self.raw, &raw mut number) })?;
        Ok(number)
    }
}

/// The attributes and objects of a new queue pair.
#[derive(Clone)]
pub(crate) struct QpInit {
    pub(crate) kind: u32,
    pub(crate) send_cq: Rc<Cq>,
    pub(crate) recv_cq: Rc<Cq>,
    pub(crate) srq: Option<Rc<Srq>>,
    pub(crate) xrcd: Option<Rc<Xrcd>>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
}

pub(crate) struct Qp {
    pub(crate) raw: *mut ibv_qp,
    pub(super) pd: Rc<Pd>,
    init: QpInit,
}

impl Qp {
    pub(crate) fn create(pd: &Rc<Pd>, init: QpInit) -> Result<Self, Refusal> {
        if matches!(init.kind, XRC_SEND | XRC_RECV) {
            return Self::create_xrc(pd, init);
        }
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: init.send_cq.raw,
            recv_cq: init.recv_cq.raw,
            srq: init.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.raw),
            cap: init.cap,
            qp_type: init.kind.cast_signed(),
            sq_sig_all: c_int::from(init.sig_all),
        };
        // SAFETY: `pd.raw` and the pointers in `attr` are valid while `pd` and `init` are held,
        // which the queue pair keeps.
        let raw = unsafe { (pd.context.library.ibv_create_qp)(pd.raw, &raw mut attr) };
        Ok(Self { raw: check_pointer("ibv_create_qp", raw)?, pd: Rc::clone(pd), init })
    }

    /// Creates either end of an XRC connection. The initiator has a protection domain, the target
    /// an XRC domain with the shared receive queues.
    fn create_xrc(pd: &Rc<Pd>, init: QpInit) -> Result<Self, Refusal> {
        let create = pd.context.extended().and_then(|more| more.create_qp_ex);
        let create = create.ok_or_else(|| missing("ibv_create_qp_ex"))?;
        let mut attr = ibv_qp_init_attr_ex { qp_type: init.kind.cast_signed(), ..ibv_qp_init_attr_ex::ZERO };
        if init.kind == XRC_RECV {
            let xrcd = init.xrcd.as_ref().ok_or_else(|| Refusal::invalid("xrcd is missing"))?;
            (attr.comp_mask, attr.xrcd) = (QP_XRCD, xrcd.raw);
        } else {
            (attr.comp_mask, attr.pd, attr.send_cq) = (QP_PD, pd.raw, init.send_cq.raw);
            attr.cap = ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
            attr.sq_sig_all = c_int::from(init.sig_all);
        }
        // SAFETY: the pointers in `attr` are valid while `pd` and `init` are held, which the queue
        // pair keeps.
        let raw = unsafe { create(pd.context.raw, &raw mut attr) };
        Ok(Self { raw: check_pointer("ibv_create_qp_ex", raw)?, pd: Rc::clone(pd), init })
    }

    /// Returns the type, a number of `protocol::names::QP_TYPES`.
    pub(crate) const fn kind(&self) -> u32 {
        self.init.kind
    }

    pub(crate) const fn has_shared_receives(&self) -> bool {
        self.init.srq.is_some()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: `self.raw` is a valid queue pair until `destroy`.
        unsafe { (*self.raw).qp_num }
    }

    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> Result<(), Refusal> {
        let modify = self.pd.context.library.ibv_modify_qp;
        // SAFETY: `self.raw` is a valid queue pair until `destroy`, and `attr` outlives the call.
        check("ibv_modify_qp", unsafe { modify(self.raw, &raw mut attr, mask.cast_signed()) })
    }

    pub(crate) fn query(&self) -> Result<ibv_qp_attr, Refusal> {
        let (mut attr, mut init) = (ibv_qp_attr::ZERO, ibv_qp_init_attr::ZERO);
        let query = self.pd.context.library.ibv_query_qp;
        // SAFETY: `self.raw` is a valid queue pair until `destroy`; `attr` and `init` are valid for
        // writing.
        check("ibv_query_qp", unsafe { query(self.raw, &raw mut attr, ALL_ATTRIBUTES, &raw mut init) })?;
        Ok(attr)
    }

    pub(crate) fn set_member(&self, group: [u8; 16], joins: bool) -> Result<(), Refusal> {
        let (gid, library) = (ibv_gid { raw: group }, &self.pd.context.library);
        let (verb, function) = match joins {
            true => ("ibv_attach_mcast", library.ibv_attach_mcast),
            false => ("ibv_detach_mcast", library.ibv_detach_mcast),
        };
        // SAFETY: `self.raw` is a valid queue pair until `destroy`, and `gid` outlives the call.
        check(verb, unsafe { function(self.raw, &raw const gid, 0) })
    }

    /// Posts a request with its segments and, for a datagram, its address handle.
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
        // SAFETY: `self.raw` is a valid queue pair until `destroy`; `wr`, `segments` and `path`
        // outlive the call, and the request has no other pointers. The library dereferences
        // addresses of segments only for inline data, which is in the agent's memory.
        check("ibv_post_send", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[Segment]) -> Result<(), Refusal> {
        let post = self.pd.context.ops().post_recv.ok_or_else(|| missing("ibv_post_recv"))?;
        let (mut wr, mut bad) = (recv_wr(wr_id, segments)?, ptr::null_mut());
        // SAFETY: `self.raw` is a valid queue pair until `destroy`; `wr` and `segments` outlive the
        // call.
        check("ibv_post_recv", unsafe { post(self.raw, &raw mut wr, &raw mut bad) })
    }

    /// Posts the binding of a window to a part of `mr`; returns the new key.
    pub(crate) fn bind(
        &self,
        mw: &Mw,
        mr: &Rc<Mr>,
        part: ibv_mw_bind_info,
        wr_id: u64,
        flags: u32,
    ) -> Result<u32, Refusal> {
        if !Rc::ptr_eq(&mw.pd, &self.pd) {
            return Err(Refusal::invalid("the window and the queue pair belong to different protection domains"));
        }
        let bind_info = ibv_mw_bind_info { mr: mr.raw, ..part };
        if mw.kind() == 1 {
            let bind = self.pd.context.ops().bind_mw.ok_or_else(|| missing("ibv_bind_mw"))?;
            let mut request = ibv_mw_bind { wr_id, send_flags: flags, bind_info };
            // SAFETY: `self.raw`, `mw.raw` and the region in `request` are valid until their
            // `destroy`, and `request` outlives the call.
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

/// Returns the next key of a window, which differs in the lowest byte (`ibv_inc_rkey`).
const fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

fn recv_wr(wr_id: u64, segments: &[Segment]) -> Result<ibv_recv_wr, Refusal> {
    Ok(ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: segments.as_ptr(), num_sge: count(segments)? })
}

fn count(segments: &[Segment]) -> Result<c_int, Refusal> {
    c_int::try_from(segments.len()).map_err(|_| Refusal::invalid("too many segments"))
}

owned! {
    Channel by ibv_destroy_comp_channel = |channel| Some(channel.context.library.ibv_destroy_comp_channel);
    Cq by ibv_destroy_cq = |cq| Some(cq.channel.context.library.ibv_destroy_cq);
    Srq by ibv_destroy_srq = |srq| Some(srq.pd.context.library.ibv_destroy_srq);
    Qp by ibv_destroy_qp = |qp| Some(qp.pd.context.library.ibv_destroy_qp);
}
