//! The `ibv_wr_*` interface: requests built call by call, posted as a batch (`man ibv_wr_post`).
//!
//! `wr_start` locks the builder of the QP, `wr_complete` or `wr_abort` unlocks it. Only
//! `wr_complete` posts requests to the send queue, so an abort, or an error of any call before, has
//! no effect on it.

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge, with_functions};
use crate::data_path::{report_long_inline, ud_dest};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, invalid, out_of_range, quick_status};
use crate::memory;
use crate::object::Object;
use crate::wr_batch::{Batch, Builder, sge};
use core::ffi::{c_int, c_void};
use roxe_transport::qp::Service;
use roxe_transport::wr::{SendOp, Sge};
use roxe_wire::{Feth, ImmDt, LKey, Placement, RKey, Selectivity};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Qpx = *mut ibv_qp_ex;

/// Returns the structure that the program sees. It has the functions of all operations, because
/// programs use more of them than they requested by `send_ops_flags`, and other providers allow it.
pub(crate) fn exposed(base: ibv_qp) -> ibv_qp_ex {
    with_functions!(ibv_qp_ex {
        self: wr_start wr_complete wr_abort wr_send wr_send_imm wr_send_inv wr_send_tso wr_rdma_read wr_rdma_write
            wr_rdma_write_imm wr_atomic_cmp_swp wr_atomic_fetch_add wr_atomic_write wr_flush wr_bind_mw wr_local_inv
            wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge wr_set_sge_list;
    } with { qp_base: base, ..ibv_qp_ex::ZERO })
}

/// Returns the builder of a QP; `None` for NULL and for a QP without one.
///
/// # Safety
/// `qp` is NULL or a QP of this library that is alive for `'a`.
unsafe fn builder<'a>(qp: Qpx) -> Option<(&'a Object<ibv_qp_ex>, &'a Builder)> {
    // SAFETY: the caller guarantees NULL or a live QP; the structure starts with its handle.
    let object = unsafe { Object::<ibv_qp_ex>::trusted(qp.cast()) }?;
    Some((object, object.inner.builder.as_ref()?))
}

/// Runs `step` on the batch; an error or a panic fails the batch.
///
/// # Safety
/// `qp` is NULL or a live QP of this library, and this thread has called `wr_start` on it.
unsafe fn with_batch(qp: Qpx, step: impl FnOnce(&mut Batch) -> Result<()>) {
    // SAFETY: the caller guarantees NULL or a live QP.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    // SAFETY: this thread has locked the builder in `wr_start`, so no other reference exists.
    let batch = unsafe { &mut *builder.data_ptr() };
    let outcome = catch_unwind(AssertUnwindSafe(|| step(batch))).unwrap_or(Err(Errno(libc::EIO)));
    if let Err(error) = outcome {
        batch.error.get_or_insert(error);
    }
}

unsafe extern "C" fn wr_start(qp: Qpx) {
    // SAFETY: the program passes NULL or a QP that stays alive during the call.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    let mut batch = builder.lock();
    batch.clear();
    core::mem::forget(batch);
}

pub(crate) unsafe extern "C" fn wr_complete(qp: Qpx) -> c_int {
    // SAFETY: the program passes NULL or a QP that stays alive during the call.
    let Some((object, builder)) = (unsafe { builder(qp) }) else { return EINVAL.report() };
    if !builder.is_locked() {
        return EINVAL.report();
    }
    let posted = quick_status(|| {
        // SAFETY: this thread has locked the builder in `wr_start`.
        let batch = unsafe { &*builder.data_ptr() };
        batch.error.map_or_else(|| batch.post(&object.inner.qp), Err)
    });
    // SAFETY: this thread has locked the builder in `wr_start`.
    unsafe { builder.force_unlock() };
    posted
}

pub(crate) unsafe extern "C" fn wr_abort(qp: Qpx) {
    // SAFETY: the program passes NULL or a QP that stays alive during the call.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    if builder.is_locked() {
        // SAFETY: this thread has locked the builder in `wr_start`.
        unsafe { builder.force_unlock() };
    }
}

/// Declares functions that begin a work request, with the program's `wr_id` and `wr_flags`.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = $op:expr;)+) => {
        $(unsafe extern "C" fn $name(qp: Qpx, $($arg: $type),*) {
            // SAFETY: the program calls this after `wr_start` on the same thread, with NULL or a
            // QP, window and region that are alive during the call. `with_batch` runs the closure,
            // which reads the fields of the QP, only if the QP is not NULL.
            unsafe { with_batch(qp, |batch| batch.begin((*qp).wr_id, (*qp).wr_flags, $op)) };
        })+
    };
}

operations! {
    wr_send() = SendOp::Send;
    wr_send_imm(imm: u32) = SendOp::SendImm(ImmDt(imm.to_ne_bytes()));
    wr_local_inv(rkey: u32) = SendOp::LocalInvalidate(RKey(rkey));
    wr_send_inv(rkey: u32) = SendOp::SendInvalidate(RKey(rkey));
    wr_rdma_read(rkey: u32, remote_addr: u64) = SendOp::Read { remote_addr, rkey: RKey(rkey) };
    wr_rdma_write(rkey: u32, remote_addr: u64) = SendOp::Write { remote_addr, rkey: RKey(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) =
        SendOp::WriteImm { remote_addr, rkey: RKey(rkey), imm: ImmDt(imm.to_ne_bytes()) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =
        SendOp::CompareSwap { remote_addr, rkey: RKey(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =
        SendOp::FetchAdd { remote_addr, rkey: RKey(rkey), add };
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = memory::bind_type_2(mw, rkey, info)?;
    wr_flush(rkey: u32, remote_addr: u64, length: usize, placement: u8, level: u8) =
        flush(RKey(rkey), remote_addr, length, placement, level)?;
}

/// Returns the FLUSH operation of `ibv_wr_flush`. `placement` is the required placement type;
/// `level` is 0 for the range and 1 for the whole region.
fn flush(rkey: RKey, remote_addr: u64, length: usize, placement: u8, level: u8) -> Result<SendOp> {
    let length =
        u32::try_from(length).map_err(|_| invalid(|| format!("length is {length}; it must be at most 2147483648")))?;
    let selectivity = match level {
        0 => Selectivity::Range,
        1 => Selectivity::Region,
        _ => return Err(out_of_range("level", level, "0 for the range and 1 for the region")),
    };
    Ok(SendOp::Flush { remote_addr, rkey, length, feth: Feth { selectivity, placement: Placement(placement) } })
}

/// Declares other functions that programs call between `wr_start` and `wr_complete`:
/// `name(arguments) = |qp, batch| body`.
macro_rules! batch_calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = |$qp:ident, $batch:ident| $body:expr;)+) => {
        $($(#[$doc])* unsafe extern "C" fn $name($qp: Qpx, $($arg: $type),*) {
            // SAFETY: the program calls this after `wr_start` on the same thread, with NULL or a QP
            // and address handle that are alive during the call, lists of the passed length, and
            // memory that it may read. `with_batch` runs the closure only if the QP is not NULL.
            unsafe { with_batch($qp, |$batch| $body) };
        })+
    };
}

batch_calls! {
    /// Fails, because no QP of this device supports TSO.
    wr_send_tso(_header: *mut c_void, _header_len: u16, _mss: u16) = |qp, _batch| Err(EOPNOTSUPP);
    /// Copies the 8 bytes now, whatever `max_inline_data` is.
    wr_atomic_write(rkey: u32, remote_addr: u64, word: *const c_void) = |qp, batch| {
        batch.begin((*qp).wr_id, (*qp).wr_flags, SendOp::AtomicWrite { remote_addr, rkey: RKey(rkey) })?;
        batch.set_word(word.cast::<[u8; 8]>().as_ref().ok_or(EINVAL)?)
    };
    wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = |qp, batch| {
        batch.current_on(Service::Ud)?.ud = Some(ud_dest(ah, remote_qpn, remote_qkey)?);
        Ok(())
    };
    wr_set_xrc_srqn(remote_srqn: u32) = |qp, batch| {
        batch.current_on(Service::XrcIni)?.srqn = Some(remote_srqn);
        Ok(())
    };
    wr_set_sge(lkey: u32, addr: u64, length: u32) = |qp, batch| {
        batch.set_sges([Sge { addr, length, lkey: LKey(lkey) }].into_iter())
    };
    wr_set_sge_list(count: usize, list: *const ibv_sge) = |qp, batch| {
        if list.is_null() && count > 0 {
            return Err(EINVAL);
        }
        batch.set_sges((0..count).map(|at| sge(list.add(at).read())))
    };
    wr_set_inline_data(addr: *mut c_void, length: usize) = |qp, batch| {
        set_inline(qp, batch, core::iter::once(ibv_data_buf { addr, length }))
    };
    wr_set_inline_data_list(count: usize, list: *const ibv_data_buf) = |qp, batch| {
        if list.is_null() && count > 0 {
            return Err(EINVAL);
        }
        set_inline(qp, batch, (0..count).map(|at| list.add(at).read()))
    };
}

/// Sets inline data. If it exceeds the QP's limit, first reports it to the checker, because the
/// batch refuses it before it reaches the QP.
///
/// # Safety
/// The contract of [`with_batch`], and every buffer is memory that the program may read.
unsafe fn set_inline(qp: Qpx, batch: &mut Batch, buffers: impl Iterator<Item = ibv_data_buf> + Clone) -> Result<()> {
    // SAFETY: the caller guarantees NULL or a live QP.
    if let (true, Some((object, _))) = (roxe_check::is_on(), unsafe { builder(qp) }) {
        let length = buffers.clone().map(|buffer| buffer.length).fold(0, usize::saturating_add);
        if length > object.inner.qp.query().1.caps.max_inline_data as usize {
            // SAFETY: the QP is alive; the program does not write to its structure during a call.
            report_long_inline(&object.inner.qp, unsafe { (*qp).wr_id }, length);
        }
    }
    // SAFETY: the caller guarantees buffers of memory that the program may read.
    unsafe { batch.set_inline(buffers) }
}
