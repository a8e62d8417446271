//! Extended completion queues (`man ibv_create_cq_ex`): polling one entry at a time, with a
//! function per field.

use crate::abi::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info, with_functions};
use crate::data_path::{POISON, hides_fields, immediate, wc_flags};
use crate::errno::{EINVAL, quick_status};
use crate::object::Object;
use crate::wallclock;
use core::ffi::{c_int, c_uint};
use roxe_transport::wr::{Cqe, TmInfo, WcExtra};
use roxe_wire::{ImmDt, Qpn};

pub(crate) fn exposed(base: ibv_cq) -> ibv_cq_ex {
    with_functions!(ibv_cq_ex {
        self: start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp
            read_wc_flags read_slid read_sl read_dlid_path_bits read_completion_ts read_completion_wallclock_ns read_cvlan
            read_flow_tag read_tm_info;
    } with { base, ..ibv_cq_ex::ZERO })
}

/// Returns the CQ of a pointer of the extended interface.
///
/// # Safety
/// `cq` is NULL or a CQ of this library that is alive for `'a`.
unsafe fn object<'a>(cq: *mut ibv_cq_ex) -> Option<&'a Object<ibv_cq_ex>> {
    // SAFETY: the caller guarantees NULL or a live CQ; the structure starts with its handle.
    unsafe { Object::<ibv_cq_ex>::trusted(cq.cast()) }
}

/// Polls the next entry into the cursor, which this thread has locked. Returns 0, ENOENT if there
/// is no entry, or another errno.
fn advance(object: &Object<ibv_cq_ex>) -> c_int {
    let mut found = None;
    let poll = quick_status(|| object.inner.cq.poll(1, |cqe| found = Some(*cqe)).map(drop).map_err(Into::into));
    let Some(mut cqe) = found else { return if poll == 0 { libc::ENOENT } else { poll } };
    if hides_fields(&cqe) {
        (cqe.byte_len, cqe.src_qpn, cqe.extra) = (POISON, Qpn::new(POISON), WcExtra::Imm(ImmDt(POISON.to_ne_bytes())));
    }
    let public = object.exposed();
    // SAFETY: this thread has locked the cursor; the program reads the public fields only between
    // polls.
    unsafe {
        (*object.inner.cursor.data_ptr()).entry = cqe;
        (&raw mut (*public).status).write(cqe.status as u32);
        (&raw mut (*public).wr_id).write(cqe.wr_id);
    }
    0
}

pub(crate) unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let Some(object) = (unsafe { object(cq) }) else { return EINVAL.report() };
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return EINVAL.report();
    }
    core::mem::forget(object.inner.cursor.lock());
    let found = advance(object);
    if found != 0 {
        // SAFETY: this thread has locked the cursor above. After a failed `start_poll` the program
        // does not call `end_poll`, which would unlock it.
        unsafe { object.inner.cursor.force_unlock() };
    }
    found
}

pub(crate) unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    unsafe { object(cq) }.map_or_else(|| EINVAL.report(), advance)
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let Some(object) = (unsafe { object(cq) }) else { return };
    if object.inner.cursor.is_locked() {
        // SAFETY: `man ibv_create_cq_ex` allows this call only after `start_poll` has returned 0
        // and locked the cursor on this thread.
        unsafe { object.inner.cursor.force_unlock() };
    }
}

/// Returns the current entry; a default one for NULL.
///
/// # Safety
/// `cq` is NULL or a live CQ of this library whose cursor this thread has locked by `start_poll`.
unsafe fn entry(cq: *mut ibv_cq_ex) -> Cqe {
    // SAFETY: the caller guarantees NULL or a live CQ, and that this thread has locked the cursor.
    unsafe { object(cq).map(|object| (*object.inner.cursor.data_ptr()).entry) }.unwrap_or_default()
}

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty = |$cqe:ident| $value:expr;)+) => {
        $($(#[$doc])* unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program passes NULL or a CQ that stays alive during the call.
            let $cqe = unsafe { entry(cq) };
            $value
        })+
    };
}

readers! {
    read_opcode -> u32 = |cqe| cqe.opcode as u32;
    read_vendor_err -> u32 = |cqe| cqe.vendor_err.0;
    read_byte_len -> u32 = |cqe| cqe.byte_len;
    /// Also reads the invalidated rkey.
    read_imm_data -> u32 = |cqe| immediate(&cqe);
    read_qp_num -> u32 = |cqe| cqe.qpn.get();
    read_src_qp -> u32 = |cqe| cqe.src_qpn.get();
    read_wc_flags -> c_uint = |cqe| wc_flags(&cqe);
    /// Ethernet has no LIDs.
    read_slid -> u32 = |_cqe| 0;
    read_sl -> u8 = |cqe| cqe.sl;
    /// Ethernet has no LIDs.
    read_dlid_path_bits -> u8 = |_cqe| 0;
    read_completion_ts -> u64 = |cqe| cqe.timestamp;
    /// Never called, because `create_cq_ex` refuses a CQ with VLAN tags.
    read_cvlan -> u16 = |_cqe| 0;
    read_flow_tag -> u32 = |cqe| cqe.flow_tag;
}

/// Returns nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let Some(object) = (unsafe { object(cq) }) else { return 0 };
    // SAFETY: programs call readers between `start_poll` and `end_poll`, so this thread has locked
    // the cursor.
    let (timestamp, clock) = unsafe {
        let cursor = object.inner.cursor.data_ptr();
        ((*cursor).entry.timestamp, &mut (*cursor).clock)
    };
    clock.at(timestamp, wallclock::measure_offset)
}

/// Writes tag and user data of a matched message, in host byte order.
unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the program passes NULL or a CQ that stays alive during the call.
    let TmInfo { tag, app_ctx, .. } = unsafe { entry(cq) }.tm;
    if !info.is_null() {
        // SAFETY: not NULL; the program passes a structure that is valid during the call.
        unsafe { info.write(ibv_wc_tm_info { tag, priv_: app_ctx }) };
    }
}
