//! The data path: posting and polling through the function pointers of the context.
//!
//! These functions neither allocate nor lock the registry. They convert lists on the stack.

use crate::abi::*;
use crate::errno::{EINVAL, Result, invalid, null, out_of_range, quick_negative, quick_status};
use crate::memory;
use crate::object::Object;
use crate::wr_batch::sge;
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use roxe_check::{Event, emit, is_checking, is_on};
use roxe_provider::limits::{MAX_INLINE_DATA, MAX_SGE};
use roxe_provider::{PostError, Qp, Service};
use roxe_transport::cx::Side;
use roxe_transport::wr::{Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcExtra, WcStatus};
use roxe_wire::{ImmDt, Qkey, Qpn, RKey};

/// `IBV_WC_GRH`, `IBV_WC_WITH_IMM`, `IBV_WC_IP_CSUM_OK`, `IBV_WC_WITH_INV`.
const WC_GRH: c_uint = 1;
const WC_WITH_IMM: c_uint = 2;
const WC_IP_CSUM_OK: c_uint = 4;
const WC_WITH_INV: c_uint = 8;

/// Returns the immediate data in network byte order, or the invalidated key in host byte order.
pub(crate) fn immediate(cqe: &Cqe) -> u32 {
    match cqe.extra {
        WcExtra::None => 0,
        WcExtra::Imm(imm) => u32::from_ne_bytes(imm.0),
        WcExtra::Invalidated(rkey) => rkey.0,
    }
}

pub(crate) fn wc_flags(cqe: &Cqe) -> c_uint {
    let extra = match cqe.extra {
        WcExtra::None => 0,
        WcExtra::Imm(_) => WC_WITH_IMM,
        WcExtra::Invalidated(_) => WC_WITH_INV,
    };
    let grh = if cqe.grh { WC_GRH } else { 0 };
    extra | cqe.tm.flags.bits() | grh | if cqe.ip_csum_ok { WC_IP_CSUM_OK } else { 0 }
}

/// Value of the undefined fields of a completion while the checker is on. Cards leave arbitrary
/// values there; this one makes a program fail visibly if it reads such a field.
pub(crate) const POISON: u32 = 0xdead_beef;

fn to_wc(cqe: &Cqe) -> ibv_wc {
    let wc = ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status as u32,
        opcode: cqe.opcode as u32,
        vendor_err: cqe.vendor_err.0,
        byte_len: cqe.byte_len,
        imm_data: immediate(cqe),
        qp_num: cqe.qpn.get(),
        src_qp: cqe.src_qpn.get(),
        wc_flags: wc_flags(cqe),
        pkey_index: 0,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: 0,
    };
    if hides_fields(cqe) { poisoned(wc) } else { wc }
}

/// Returns true if the checker is on and only four fields of `cqe` are defined (`man ibv_poll_cq`).
pub(crate) fn hides_fields(cqe: &Cqe) -> bool {
    is_checking() && cqe.status != WcStatus::Success
}

/// Replaces all but the four defined fields by [`POISON`].
#[cold]
const fn poisoned(wc: ibv_wc) -> ibv_wc {
    ibv_wc {
        opcode: POISON,
        byte_len: POISON,
        imm_data: POISON,
        src_qp: POISON,
        wc_flags: POISON,
        pkey_index: 0xdead,
        slid: 0xdead,
        sl: 0xde,
        dlid_path_bits: 0xde,
        ..wc
    }
}

pub(crate) unsafe extern "C" fn poll_cq(handle: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let Some(object) = (unsafe { Object::<ibv_cq_ex>::trusted(handle) }) else { return -EINVAL.report() };
    quick_negative(|| {
        let max = usize::try_from(num_entries).map_err(|_| out_of_range("num_entries", num_entries, "0 or more"))?;
        if wc.is_null() && max > 0 {
            return Err(EINVAL);
        }
        let mut next = wc;
        let found = object.inner.cq.poll(max, |cqe| {
            // SAFETY: the program passes an array of `num_entries` elements, valid during the call;
            // `poll` calls this closure at most that often.
            unsafe {
                next.write(to_wc(cqe));
                next = next.add(1);
            }
        })?;
        c_int::try_from(found).map_err(|_| EINVAL)
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(handle: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let Some(object) = (unsafe { Object::<ibv_cq_ex>::trusted(handle) }) else { return EINVAL.report() };
    quick_status(|| {
        object.inner.cq.req_notify(solicited_only != 0);
        Ok(())
    })
}

const NUM_SGE_RANGE: &str = "0 to max_sge of the device";

/// A scatter/gather list on the stack. It has no field that is initialised: with one, the compiler
/// would clear the whole list for each message.
pub(crate) struct SgeList {
    items: [MaybeUninit<Sge>; MAX_SGE as usize],
}

impl SgeList {
    pub(crate) const fn new() -> Self {
        Self { items: [MaybeUninit::uninit(); MAX_SGE as usize] }
    }

    /// Copies the program's list. Fails with EINVAL if it is longer than any queue allows.
    ///
    /// # Safety
    /// `list` is NULL or points to `count` elements.
    pub(crate) unsafe fn copy_list(&mut self, list: *const ibv_sge, count: usize) -> Result<&[Sge]> {
        if count > self.items.len() {
            return Err(invalid(|| format!("num_sge is {count}; the device takes at most {MAX_SGE}")));
        }
        if list.is_null() && count > 0 {
            return Err(invalid(|| format!("num_sge is {count} and sg_list is NULL")));
        }
        for (i, item) in self.items[..count].iter_mut().enumerate() {
            // SAFETY: the caller guarantees `count` elements, and `i` is below `count`.
            item.write(sge(unsafe { list.add(i).read() }));
        }
        // SAFETY: the loop initialised the first `count` items.
        Ok(unsafe { core::slice::from_raw_parts(self.items.as_ptr().cast(), count) })
    }
}

/// The inline data of a work request on the stack.
struct InlineData {
    bytes: [MaybeUninit<u8>; MAX_INLINE_DATA as usize],
}

impl InlineData {
    const fn new() -> Self {
        Self { bytes: [MaybeUninit::uninit(); MAX_INLINE_DATA as usize] }
    }

    /// Copies the memory of the list. Inline data needs no valid keys (`man ibv_post_send`), so
    /// none is checked.
    ///
    /// # Safety
    /// Every element of `sges` is memory that the program may read.
    unsafe fn copy_buffers(&mut self, sges: &[Sge]) -> Result<&[u8]> {
        let mut len = 0;
        for sge in sges {
            let count = sge.length as usize;
            let room = self.bytes.get_mut(len..).and_then(|rest| rest.get_mut(..count)).ok_or_else(|| {
                let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                invalid(|| format!("the inline data has {length} bytes; the device takes at most {MAX_INLINE_DATA}"))
            })?;
            let from = core::ptr::with_exposed_provenance::<u8>(usize::try_from(sge.addr).map_err(|_| EINVAL)?);
            if count > 0 {
                // SAFETY: the caller guarantees `count` readable bytes; `room` has as many.
                unsafe { room.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, count) };
            }
            len += count;
        }
        // SAFETY: the first `len` bytes were written above.
        Ok(unsafe { core::slice::from_raw_parts(self.bytes.as_ptr().cast(), len) })
    }
}

/// Returns the operation of a work request. Fails with EINVAL for those that the device lacks.
///
/// # Safety
/// The program has set the member of the union that belongs to the opcode. The window and region of
/// a bind are NULL or live handles.
unsafe fn send_op(wr: &ibv_send_wr) -> Result<SendOp> {
    let imm = ImmDt(wr.imm_data.to_ne_bytes());
    // SAFETY: the caller guarantees the member of the opcode, which is the one that each arm reads,
    // and the handles of a bind.
    unsafe {
        let (rdma, atomic) = (|| wr.wr.rdma, || wr.wr.atomic);
        Ok(match wr.opcode {
            0 => SendOp::Write { remote_addr: rdma().remote_addr, rkey: RKey(rdma().rkey) },
            1 => SendOp::WriteImm { remote_addr: rdma().remote_addr, rkey: RKey(rdma().rkey), imm },
            2 => SendOp::Send,
            3 => SendOp::SendImm(imm),
            4 => SendOp::Read { remote_addr: rdma().remote_addr, rkey: RKey(rdma().rkey) },
            5 => SendOp::CompareSwap {
                remote_addr: atomic().remote_addr,
                rkey: RKey(atomic().rkey),
                compare: atomic().compare_add,
                swap: atomic().swap,
            },
            6 => SendOp::FetchAdd {
                remote_addr: atomic().remote_addr,
                rkey: RKey(atomic().rkey),
                add: atomic().compare_add,
            },
            7 => SendOp::LocalInvalidate(RKey(wr.imm_data)),
            8 => memory::bind_type_2(wr.bind_mw.mw, wr.bind_mw.rkey, &raw const wr.bind_mw.bind_info)?,
            9 => SendOp::SendInvalidate(RKey(wr.imm_data)),
            15 => SendOp::AtomicWrite { remote_addr: rdma().remote_addr, rkey: RKey(rdma().rkey) },
            other => {
                let accepted = "0 to 9 and 15 of enum ibv_wr_opcode; post FLUSH with ibv_wr_flush";
                return Err(invalid(|| format!("opcode is {other}; accepted are {accepted}")));
            }
        })
    }
}

/// Returns the destination of a datagram. Fails with EINVAL without an address handle.
///
/// # Safety
/// `ah` is NULL or a live handle of this library.
pub(crate) unsafe fn ud_dest(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDest> {
    // SAFETY: the caller guarantees NULL or a live handle.
    let ah =
        unsafe { Object::<ibv_ah>::trusted(ah) }.ok_or_else(|| null("wr.ud.ah, the address handle of a datagram,"))?;
    Ok(UdDest { av: *ah.inner.av(), qpn: Qpn::new(qpn), qkey: Qkey(qkey) })
}

/// Converts one work request and passes it to `post`.
///
/// # Safety
/// The lists and handles in `wr` are valid, as `man ibv_post_send` demands.
unsafe fn post_one(
    wr: &ibv_send_wr,
    service: Service,
    post: impl FnOnce(&SendRequest<'_>) -> core::result::Result<(), PostError>,
) -> Result<()> {
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let count = usize::try_from(wr.num_sge).map_err(|_| out_of_range("num_sge", wr.num_sge, NUM_SGE_RANGE))?;
    let (mut list, mut bytes) = (SgeList::new(), InlineData::new());
    // SAFETY: the program passes a list of `num_sge` elements, valid during the call.
    let sges = unsafe { list.copy_list(wr.sg_list, count) }?;
    let data = if flags.contains(SendFlags::INLINE) {
        // SAFETY: the caller guarantees that inline data is memory that the program may read.
        SendData::Inline(unsafe { bytes.copy_buffers(sges) }?)
    } else {
        SendData::Sges(sges)
    };
    let ud = match service {
        // SAFETY: on UD the program sets this member, with a handle that is NULL or alive.
        Service::Ud => Some(unsafe { ud_dest(wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) }?),
        Service::Rc | Service::Uc | Service::XrcIni | Service::XrcTgt | Service::Raw => None,
    };
    // SAFETY: the program sets the member of its opcode, with handles that are NULL or alive.
    let op = unsafe { send_op(wr) }?;
    Ok(post(&SendRequest { wr_id: wr.wr_id, op, flags, data, ud })?)
}

/// Reports to the checker inline data that is refused before the request reaches the QP.
pub(crate) fn report_long_inline(qp: &Qp, wr_id: u64, inline: usize) {
    let error = PostError::InlineTooLong;
    emit(|| Event::PostRefused { queue: qp.id(), side: Side::Send, wr_id, inline, error });
}

/// Reports a refused request to the checker if it has more inline data than any QP accepts.
///
/// # Safety
/// The contract of [`post_one`].
#[cold]
unsafe fn report_if_long_inline(qp: &Qp, wr: &ibv_send_wr) {
    let count = usize::try_from(wr.num_sge).unwrap_or(0);
    let mut list = SgeList::new();
    let is_inline = SendFlags::from_bits_truncate(wr.send_flags).contains(SendFlags::INLINE);
    // SAFETY: the program passes a list of `num_sge` elements, valid during the call.
    if let (true, Ok(sges)) = (is_inline, unsafe { list.copy_list(wr.sg_list, count) }) {
        let length = sges.iter().map(|sge| sge.length as usize).sum();
        if length > MAX_INLINE_DATA as usize {
            report_long_inline(qp, wr.wr_id, length);
        }
    }
}

pub(crate) unsafe extern "C" fn post_send(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes NULL or a QP that stays alive during the call.
    let Some(object) = (unsafe { Object::<ibv_qp_ex>::trusted(handle) }) else { return EINVAL.report() };
    quick_status(|| {
        let mut queue = object.inner.qp.send();
        let mut next = wr;
        // SAFETY: the program passes a list that ends with NULL; its elements are valid during the
        // call.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: the element, and the lists and handles in it, are valid during the call.
            let posted = unsafe {
                post_one(request, object.inner.service, |converted| queue.push_to_srq(request.remote_srqn, converted))
            };
            if let Err(error) = posted {
                if is_on() {
                    // SAFETY: the element and its list are valid during the call.
                    unsafe { report_if_long_inline(&object.inner.qp, request) };
                }
                // SAFETY: the program passes NULL or a variable that is valid during the call.
                unsafe { write_bad_wr(bad_wr, next) };
                return Err(error);
            }
            next = request.next;
        }
        Ok(())
    })
}

/// Writes the failed request to the program's variable, if there is one.
///
/// # Safety
/// `bad` is NULL or points to a variable.
pub(crate) unsafe fn write_bad_wr<T>(bad: *mut *mut T, wr: *mut T) {
    if !bad.is_null() {
        // SAFETY: not NULL; the caller guarantees a variable.
        unsafe { bad.write(wr) };
    }
}

/// Passes each receive request of a list to `post`.
///
/// # Safety
/// `wr` is a list that ends with NULL, and whose elements are valid. `bad_wr` is NULL or points to
/// a variable.
unsafe fn post_receives(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvRequest<'_>) -> core::result::Result<(), PostError>,
) -> Result<()> {
    let mut list = SgeList::new();
    let mut next = wr;
    // SAFETY: the caller guarantees a list of valid elements that ends with NULL.
    while let Some(request) = unsafe { next.as_ref() } {
        let count =
            usize::try_from(request.num_sge).map_err(|_| out_of_range("num_sge", request.num_sge, NUM_SGE_RANGE));
        // SAFETY: the program passes a list of `num_sge` elements, valid during the call.
        let sges = count.and_then(|count| unsafe { list.copy_list(request.sg_list, count) });
        let posted = sges.and_then(|sges| Ok(post(&RecvRequest { wr_id: request.wr_id, sges })?));
        if let Err(error) = posted {
            // SAFETY: the caller guarantees NULL or a variable.
            unsafe { write_bad_wr(bad_wr, next) };
            return Err(error);
        }
        next = request.next;
    }
    Ok(())
}

/// Declares functions that post receives: `function(handle) to queue of structure`.
macro_rules! receive_queues {
    ($($(#[$doc:meta])* $name:ident($handle:ident) to $queue:ident of $structure:ident;)+) => {
        $(
            $(#[$doc])*
            pub(crate) unsafe extern "C" fn $name(
                handle: *mut $handle,
                wr: *mut ibv_recv_wr,
                bad_wr: *mut *mut ibv_recv_wr,
            ) -> c_int {
                // SAFETY: the program passes NULL or a queue that stays alive during the call.
                let Some(object) = (unsafe { Object::<$structure>::trusted(handle) }) else { return EINVAL.report() };
                // SAFETY: the program passes a list that ends with NULL, and NULL or a variable,
                // all valid during the call.
                quick_status(|| unsafe { post_receives(wr, bad_wr, |request| object.inner.$queue.post_recv(request)) })
            }
        )+
    };
}

receive_queues! {
    /// `man ibv_post_recv`.
    post_recv(ibv_qp) to qp of ibv_qp_ex;
    /// `man ibv_post_srq_recv`.
    post_srq_recv(ibv_srq) to srq of ibv_srq;
    /// `ibv_post_wq_recv`, which the header calls through the queue.
    post_wq_recv(ibv_wq) to wq of ibv_wq;
}
