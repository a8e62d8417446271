//! The `ibv_wr_*` interface: work requests put together call by call and posted as one batch (`man ibv_wr_post`).
//!
//! `wr_start` locks the builder of the QP, `wr_complete` or `wr_abort` unlocks it. Until then nothing reaches the queue,
//! so that an abort, or an error of any call in between, leaves no trace.

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_sge};
use crate::data::ud_dest;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, quick_status};
use crate::object::Object;
use crate::{ordered, window};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use roxe_transport::qp::Service;
use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest, Sge, UdDest};
use roxe_wire::{Feth, ImmDt, LKey, Placement, RKey, Selectivity};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Qpx = *mut ibv_qp_ex;

/// A work request whose payload lies in the buffers of the batch.
struct Built {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    payload: Payload,
    ud: Option<UdDest>,
    /// XRC: the peer's shared receive queue.
    srqn: Option<u32>,
}

enum Payload {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// Work requests since `wr_start`. The buffers grow to what the program uses once and keep that size.
struct Batch {
    requests: Vec<Built>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    cap: ibv_qp_cap,
    service: Service,
    /// The first error since `wr_start`; it fails the whole batch.
    error: Option<Errno>,
}

/// The builder of one QP.
pub(crate) struct Builder {
    lock: RawMutex,
    batch: UnsafeCell<Batch>,
}

// SAFETY: the batch is only touched between `wr_start` and `wr_complete` or `wr_abort`, while the lock is held.
unsafe impl Sync for Builder {}

impl Builder {
    pub(crate) fn new(cap: &ibv_qp_cap, service: Service) -> Self {
        let (requests, sges, bytes) = (Vec::new(), Vec::new(), Vec::new());
        let batch = Batch { requests, sges, bytes, cap: *cap, service, error: None };
        Self { lock: RawMutex::INIT, batch: UnsafeCell::new(batch) }
    }
}

/// The `IBV_QP_EX_WITH_*` bit of an operation.
const fn bit(op: &SendOp) -> u64 {
    match op {
        SendOp::Write { .. } => 1,
        SendOp::WriteImm { .. } => 1 << 1,
        SendOp::Send => 1 << 2,
        SendOp::SendImm(_) => 1 << 3,
        SendOp::Read { .. } => 1 << 4,
        SendOp::CompareSwap { .. } => 1 << 5,
        SendOp::FetchAdd { .. } => 1 << 6,
        SendOp::LocalInvalidate(_) => 1 << 7,
        SendOp::BindWindow { .. } => 1 << 8,
        SendOp::SendInvalidate(_) => 1 << 9,
        SendOp::Flush { .. } => 1 << 11,
        SendOp::AtomicWrite { .. } => 1 << 12,
    }
}

/// `IBV_QP_EX_WITH_*` of everything that a QP of `service` can do. A QP has the builders of all of these, whichever it was
/// created with: programs use more than they asked for, because other providers let them.
pub(crate) const fn operations_of(service: Service) -> u64 {
    match service {
        Service::Rc | Service::XrcIni => 0x3ff | 1 << 11 | 1 << 12,
        Service::Uc => 0xf | 1 << 7 | 1 << 8,
        Service::Ud => 0xc,
        Service::Raw => 1 << 2,
        Service::XrcTgt => 0,
    }
}

/// Whether the program attaches data to the operation.
const fn takes_data(op: &SendOp) -> bool {
    !matches!(
        op,
        SendOp::AtomicWrite { .. } | SendOp::Flush { .. } | SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. }
    )
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) -> Result<()> {
        if operations_of(self.service) & bit(&op) == 0 {
            return Err(EOPNOTSUPP);
        }
        if self.requests.len() >= self.cap.max_send_wr as usize {
            return Err(Errno(libc::ENOMEM));
        }
        // Inline data is announced by the setter, not by a flag.
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        self.requests.push(Built { wr_id, op, flags, payload: Payload::Sges(0..0), ud: None, srqn: None });
        Ok(())
    }

    /// The request being built; EINVAL before the first one.
    fn last(&mut self) -> Result<&mut Built> {
        self.requests.last_mut().ok_or(EINVAL)
    }

    /// The request being built, if data can be attached to it.
    fn last_with_data(&mut self) -> Result<&mut Built> {
        self.last().and_then(|built| if takes_data(&built.op) { Ok(built) } else { Err(EINVAL) })
    }

    fn set_sges(&mut self, list: impl ExactSizeIterator<Item = Sge>) -> Result<()> {
        if list.len() > self.cap.max_send_sge as usize {
            return Err(EINVAL);
        }
        let start = self.sges.len();
        self.sges.extend(list);
        let range = start..self.sges.len();
        self.last_with_data()?.payload = Payload::Sges(range);
        Ok(())
    }

    /// Copies the buffers of the program.
    ///
    /// # Safety
    /// Every buffer is memory that the program may read.
    unsafe fn set_inline(&mut self, buffers: impl Iterator<Item = ibv_data_buf>) -> Result<()> {
        let start = self.bytes.len();
        for buffer in buffers {
            let used = self.bytes.len() - start;
            if buffer.length > self.cap.max_inline_data as usize - used || (buffer.addr.is_null() && buffer.length > 0)
            {
                return Err(EINVAL);
            }
            if buffer.length > 0 {
                // SAFETY: this function's contract.
                let bytes = unsafe { core::slice::from_raw_parts(buffer.addr.cast_const().cast(), buffer.length) };
                self.bytes.extend_from_slice(bytes);
            }
        }
        let range = start..self.bytes.len();
        self.last_with_data()?.payload = Payload::Inline(range);
        Ok(())
    }

    /// Copies the data of an ATOMIC WRITE.
    fn set_word(&mut self, word: &[u8; 8]) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(word);
        let range = start..self.bytes.len();
        self.last()?.payload = Payload::Inline(range);
        Ok(())
    }

    /// Posts every request, or none if one is refused (`man ibv_wr_post`).
    fn post(&self, qp: &roxe_provider::Qp) -> Result<()> {
        let mut queue = qp.send();
        let posted = self.requests.iter().try_for_each(|built| {
            let srqn = if self.service == Service::XrcIni { built.srqn.ok_or(EINVAL)? } else { 0 };
            Ok(queue.push_to_srq(srqn, &self.request(built))?)
        });
        posted.inspect_err(|_| queue.take_back())
    }

    fn request<'a>(&'a self, built: &'a Built) -> SendRequest<'a> {
        let data = match &built.payload {
            Payload::Sges(range) => SendData::Sges(self.sges.get(range.clone()).unwrap_or_default()),
            Payload::Inline(range) => SendData::Inline(self.bytes.get(range.clone()).unwrap_or_default()),
        };
        SendRequest { wr_id: built.wr_id, op: built.op, flags: built.flags, data, ud: built.ud }
    }
}

/// What the program sees.
pub(crate) fn exposed(base: ibv_qp) -> ibv_qp_ex {
    ordered::qp_ex(ibv_qp_ex {
        qp_base: base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: Some(wr_flush),
    })
}

/// The builder of a QP; `None` for NULL and for a QP without one.
///
/// # Safety
/// `qp` is NULL or a living QP of ours.
unsafe fn builder<'a>(qp: Qpx) -> Option<(&'a Object<ibv_qp_ex>, &'a Builder)> {
    // SAFETY: this function's contract; the structure starts with the handle.
    let object = unsafe { Object::<ibv_qp_ex>::trusted(qp.cast()) }?;
    Some((object, object.inner.builder.as_ref()?))
}

/// Lets `step` work on the batch; an error, or a panic of ours, fails the batch.
///
/// # Safety
/// `qp` is NULL or a living QP of ours, and this thread called `wr_start` on it.
unsafe fn with_batch(qp: Qpx, step: impl FnOnce(&mut Batch) -> Result<()>) {
    // SAFETY: this function's contract.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    // SAFETY: the lock is held since `wr_start`, so nobody else has a reference.
    let batch = unsafe { &mut *builder.batch.get() };
    let outcome = catch_unwind(AssertUnwindSafe(|| step(batch))).unwrap_or(Err(Errno(libc::EIO)));
    if let Err(error) = outcome {
        batch.error.get_or_insert(error);
    }
}

/// Begins a request with the `wr_id` and `wr_flags` that the program has set.
///
/// # Safety
/// As [`with_batch`].
unsafe fn begin(qp: Qpx, op: SendOp) {
    // SAFETY: this function's contract; the two fields are read only if `qp` is not NULL.
    unsafe { with_batch(qp, |batch| batch.begin((*qp).wr_id, (*qp).wr_flags, op)) };
}

/// Fails the batch: the QP was created without this operation.
///
/// # Safety
/// As [`with_batch`].
unsafe fn refuse(qp: Qpx) {
    // SAFETY: this function's contract.
    unsafe { with_batch(qp, |_| Err(EOPNOTSUPP)) };
}

unsafe extern "C" fn wr_start(qp: Qpx) {
    // SAFETY: called through the structure of a living QP.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    builder.lock.lock();
    // SAFETY: locked on the line above.
    unsafe { (*builder.batch.get()).clear() };
}

pub(crate) unsafe extern "C" fn wr_complete(qp: Qpx) -> c_int {
    // SAFETY: called through the structure of a living QP.
    let Some((object, builder)) = (unsafe { builder(qp) }) else { return EINVAL.tell() };
    if !builder.lock.is_locked() {
        return EINVAL.tell();
    }
    let posted = quick_status(|| {
        // SAFETY: the lock is held since `wr_start`.
        let batch = unsafe { &*builder.batch.get() };
        batch.error.map_or_else(|| batch.post(&object.inner.qp), Err)
    });
    // SAFETY: locked since `wr_start`.
    unsafe { builder.lock.unlock() };
    posted
}

unsafe extern "C" fn wr_abort(qp: Qpx) {
    // SAFETY: called through the structure of a living QP.
    let Some((_, builder)) = (unsafe { builder(qp) }) else { return };
    if builder.lock.is_locked() {
        // SAFETY: locked since `wr_start`.
        unsafe { builder.lock.unlock() };
    }
}

/// Builders of operations: each begins one work request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = $op:expr;)+) => {
        $(unsafe extern "C" fn $name(qp: Qpx, $($arg: $type),*) {
            // SAFETY: called through the structure of a living QP, after `wr_start`.
            unsafe { begin(qp, $op) };
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
}

unsafe extern "C" fn wr_bind_mw(qp: Qpx, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: called through the structure of a living QP, after `wr_start`, with a living window and region.
    unsafe {
        with_batch(qp, |batch| batch.begin((*qp).wr_id, (*qp).wr_flags, window::bind_type_2(mw, rkey, info)?));
    }
}

/// Builders of operations that no QP of this device has.
macro_rules! refused {
    ($($name:ident($($type:ty),*);)+) => {
        $(unsafe extern "C" fn $name(qp: Qpx, $(_: $type),*) {
            // SAFETY: called through the structure of a living QP, after `wr_start`.
            unsafe { refuse(qp) };
        })+

        /// Their names.
        #[cfg(test)]
        pub(crate) const REFUSED: &[&str] = &[$(stringify!($name)),+];
    };
}

refused! {
    wr_send_tso(*mut c_void, u16, u16);
}

/// The 8 bytes are copied now; whatever `max_inline_data` is.
unsafe extern "C" fn wr_atomic_write(qp: Qpx, rkey: u32, remote_addr: u64, word: *const c_void) {
    let op = SendOp::AtomicWrite { remote_addr, rkey: RKey(rkey) };
    // SAFETY: called through the structure of a living QP, after `wr_start`, with 8 bytes that the program may read. The
    // fields of the QP are read only if it is not NULL.
    unsafe {
        with_batch(qp, |batch| {
            batch.begin((*qp).wr_id, (*qp).wr_flags, op)?;
            batch.set_word(word.cast::<[u8; 8]>().as_ref().ok_or(EINVAL)?)
        });
    }
}

/// `man ibv_wr_post` of newer rdma-core: `placement` says what must have happened to the data, `level` is 0 for the range and 1
/// for the whole region.
unsafe extern "C" fn wr_flush(qp: Qpx, rkey: u32, remote_addr: u64, length: usize, placement: u8, level: u8) {
    // SAFETY: called through the structure of a living QP, after `wr_start`; its fields are read only if it is not NULL.
    unsafe {
        with_batch(qp, |batch| {
            let length = u32::try_from(length).map_err(|_| EINVAL)?;
            let selectivity = match level {
                0 => Selectivity::Range,
                1 => Selectivity::Region,
                _ => return Err(EINVAL),
            };
            let feth = Feth { selectivity, placement: Placement(placement) };
            let op = SendOp::Flush { remote_addr, rkey: RKey(rkey), length, feth };
            batch.begin((*qp).wr_id, (*qp).wr_flags, op)
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: Qpx, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: called through the structure of a living QP, after `wr_start`, with a living address handle.
    unsafe {
        with_batch(qp, |batch| {
            if batch.service != Service::Ud {
                return Err(EINVAL);
            }
            batch.last()?.ud = Some(ud_dest(ah, remote_qpn, remote_qkey)?);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: Qpx, remote_srqn: u32) {
    // SAFETY: called through the structure of a living QP, after `wr_start`.
    unsafe {
        with_batch(qp, |batch| {
            if batch.service != Service::XrcIni {
                return Err(EINVAL);
            }
            batch.last()?.srqn = Some(remote_srqn);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: Qpx, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey: LKey(lkey) };
    // SAFETY: called through the structure of a living QP, after `wr_start`.
    unsafe { with_batch(qp, |batch| batch.set_sges([sge].into_iter())) };
}

unsafe extern "C" fn wr_set_sge_list(qp: Qpx, count: usize, list: *const ibv_sge) {
    if list.is_null() && count > 0 {
        // SAFETY: called through the structure of a living QP, after `wr_start`.
        return unsafe { with_batch(qp, |_| Err(EINVAL)) };
    }
    let at = |i| {
        // SAFETY: the program passes `count` elements, and `i` is below that.
        let sge: ibv_sge = unsafe { list.add(i).read() };
        Sge { addr: sge.addr, length: sge.length, lkey: LKey(sge.lkey) }
    };
    // SAFETY: called through the structure of a living QP, after `wr_start`.
    unsafe { with_batch(qp, |batch| batch.set_sges((0..count).map(at))) };
}

unsafe extern "C" fn wr_set_inline_data(qp: Qpx, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: called through the structure of a living QP, after `wr_start`, with memory that the program may read.
    unsafe { with_batch(qp, |batch| batch.set_inline([buffer].into_iter())) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: Qpx, count: usize, list: *const ibv_data_buf) {
    if list.is_null() && count > 0 {
        // SAFETY: called through the structure of a living QP, after `wr_start`.
        return unsafe { with_batch(qp, |_| Err(EINVAL)) };
    }
    // SAFETY: the program passes `count` elements, and `i` is below that.
    let at = |i| unsafe { list.add(i).read() };
    // SAFETY: called through the structure of a living QP, after `wr_start`, with memory that the program may read.
    unsafe { with_batch(qp, |batch| batch.set_inline((0..count).map(at))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let cap = ibv_qp_cap { max_send_wr: 2, max_send_sge: 1, max_inline_data: 4, ..ibv_qp_cap::default() };
        Builder::new(&cap, Service::Rc).batch.into_inner()
    }

    #[test]
    fn a_batch_keeps_the_limits_of_its_queue() {
        let mut batch = batch();
        let sge = Sge::default();
        assert_eq!(batch.set_sges([sge].into_iter()), Err(EINVAL), "no request was begun");
        batch.begin(1, 0, SendOp::Send).unwrap();
        assert_eq!(batch.set_sges([sge, sge].into_iter()), Err(EINVAL));
        batch.set_sges([sge].into_iter()).unwrap();
        batch.begin(2, 0, SendOp::Send).unwrap();
        assert_eq!(batch.begin(3, 0, SendOp::Send), Err(Errno(libc::ENOMEM)));
    }

    #[test]
    fn inline_buffers_are_joined_up_to_the_limit() {
        let mut batch = batch();
        let mut bytes = *b"abcde";
        let start = bytes.as_mut_ptr();
        let buffer =
            |range: Range<usize>| ibv_data_buf { addr: start.wrapping_add(range.start).cast(), length: range.len() };
        let (good, long) = ([buffer(0..2), buffer(3..5)], [buffer(0..2), buffer(0..3)]);
        batch.begin(1, 0, SendOp::Send).unwrap();
        // SAFETY: the buffers lie in `bytes`.
        unsafe {
            assert_eq!(batch.set_inline(long.into_iter()), Err(EINVAL));
            batch.clear();
            batch.begin(1, 0, SendOp::Send).unwrap();
            batch.set_inline(good.into_iter()).unwrap();
        }
        assert_eq!(batch.bytes, b"abde");
    }
}
