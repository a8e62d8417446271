//! The batch of the `ibv_wr_*` interface: work requests between `wr_start` and `wr_complete`, all
//! of which are posted, or none (`man ibv_wr_post`). `qp_ex.rs` finds the QP and locks the batch.

use crate::abi::{ibv_data_buf, ibv_qp_cap, ibv_sge};
use crate::errno::{EINVAL, Errno, Result, einval, invalid, unsupported};
use core::ops::Range;
use parking_lot::Mutex;
use roxe_check::explain::because;
use roxe_transport::qp::Service;
use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest, Sge, UdDest};
use roxe_wire::LKey;

/// A work request, whose payload is in the buffers of the batch.
pub(crate) struct BuiltRequest {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    payload: Payload,
    pub(crate) ud: Option<UdDest>,
    /// Number of the peer's SRQ, on XRC.
    pub(crate) srqn: Option<u32>,
}

enum Payload {
    /// Range of [`Batch::sges`].
    Sges(Range<usize>),
    /// Range of [`Batch::bytes`].
    Inline(Range<usize>),
}

/// Work requests since `wr_start`. The buffers keep their capacity for the next batch.
pub(crate) struct Batch {
    requests: Vec<BuiltRequest>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    cap: ibv_qp_cap,
    pub(crate) service: Service,
    /// The first error since `wr_start`; it fails the whole batch.
    pub(crate) error: Option<Errno>,
}

/// The batch of one QP, locked from `wr_start` until `wr_complete` or `wr_abort`. Only `qp_ex` may
/// lock it, because any other caller would wait until the program ends its batch.
pub(crate) type Builder = Mutex<Batch>;

/// Returns the `IBV_QP_EX_WITH_*` bit of an operation.
const fn operation_bit(op: &SendOp) -> u64 {
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

/// Returns the `IBV_QP_EX_WITH_*` bits of the operations that `service` supports.
pub(crate) const fn operations_of(service: Service) -> u64 {
    match service {
        Service::Rc | Service::XrcIni => 0x3ff | 1 << 11 | 1 << 12,
        Service::Uc => 0xf | 1 << 7 | 1 << 8,
        Service::Ud => 0xc,
        Service::Raw => 1 << 2,
        Service::XrcTgt => 0,
    }
}

/// Returns true if the program attaches data to the operation.
const fn takes_data(op: &SendOp) -> bool {
    !matches!(
        op,
        SendOp::AtomicWrite { .. } | SendOp::Flush { .. } | SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. }
    )
}

pub(crate) fn sge(sge: ibv_sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: LKey(sge.lkey) }
}

impl Batch {
    pub(crate) fn new(cap: &ibv_qp_cap, service: Service) -> Self {
        let (requests, sges, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { requests, sges, bytes, cap: *cap, service, error: None }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }

    pub(crate) fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) -> Result<()> {
        if operations_of(self.service) & operation_bit(&op) == 0 {
            return Err(unsupported(|| format!("the service of the queue pair does not support the operation {op:?}")));
        }
        if self.requests.len() >= self.cap.max_send_wr as usize {
            let max = self.cap.max_send_wr;
            because(|| format!("more requests between ibv_wr_start and ibv_wr_complete than max_send_wr, {max}"));
            return Err(Errno(libc::ENOMEM));
        }
        // `ibv_wr_set_inline_data`, not this flag, makes data inline.
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        self.requests.push(BuiltRequest { wr_id, op, flags, payload: Payload::Sges(0..0), ud: None, srqn: None });
        Ok(())
    }

    /// Returns the current request. Fails with EINVAL before the first one.
    fn current(&mut self) -> Result<&mut BuiltRequest> {
        self.requests.last_mut().ok_or_else(|| einval("a setter (ibv_wr_set_...) was called before its request"))
    }

    /// Returns the current request. Fails with EINVAL for a QP of another service.
    pub(crate) fn current_on(&mut self, service: Service) -> Result<&mut BuiltRequest> {
        if self.service == service { self.current() } else { Err(EINVAL) }
    }

    fn current_with_data(&mut self) -> Result<&mut BuiltRequest> {
        self.current().and_then(|built| match takes_data(&built.op) {
            true => Ok(built),
            false => Err(invalid(|| format!("a list or inline data was set for {:?}, which accepts none", built.op))),
        })
    }

    pub(crate) fn set_sges(&mut self, list: impl ExactSizeIterator<Item = Sge>) -> Result<()> {
        if list.len() > self.cap.max_send_sge as usize {
            let (count, max) = (list.len(), self.cap.max_send_sge);
            return Err(invalid(|| format!("num_sge is {count}; max_send_sge of the queue pair is {max}")));
        }
        let start = self.sges.len();
        self.sges.extend(list);
        let range = start..self.sges.len();
        self.current_with_data()?.payload = Payload::Sges(range);
        Ok(())
    }

    /// Copies the program's buffers as inline data of the current request.
    ///
    /// # Safety
    /// Every buffer is memory that the program may read.
    pub(crate) unsafe fn set_inline(&mut self, buffers: impl Iterator<Item = ibv_data_buf>) -> Result<()> {
        let start = self.bytes.len();
        for buffer in buffers {
            let used = self.bytes.len() - start;
            if buffer.length > self.cap.max_inline_data as usize - used || (buffer.addr.is_null() && buffer.length > 0)
            {
                return Err(EINVAL);
            }
            if buffer.length > 0 {
                // SAFETY: not NULL; the caller guarantees readable memory of this length.
                let bytes = unsafe { core::slice::from_raw_parts(buffer.addr.cast_const().cast(), buffer.length) };
                self.bytes.extend_from_slice(bytes);
            }
        }
        let range = start..self.bytes.len();
        self.current_with_data()?.payload = Payload::Inline(range);
        Ok(())
    }

    pub(crate) fn set_word(&mut self, word: &[u8; 8]) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(word);
        let range = start..self.bytes.len();
        self.current()?.payload = Payload::Inline(range);
        Ok(())
    }

    /// Posts all requests, or none if one is refused (`man ibv_wr_post`).
    pub(crate) fn post(&self, qp: &roxe_provider::Qp) -> Result<()> {
        let mut queue = qp.send();
        let posted = self.requests.iter().try_for_each(|built| {
            let srqn = if self.service == Service::XrcIni { built.srqn.ok_or(EINVAL)? } else { 0 };
            Ok(queue.push_to_srq(srqn, &self.request(built))?)
        });
        posted.inspect_err(|_| queue.take_back())
    }

    fn request<'a>(&'a self, built: &'a BuiltRequest) -> SendRequest<'a> {
        let data = match &built.payload {
            Payload::Sges(range) => SendData::Sges(self.sges.get(range.clone()).unwrap_or_default()),
            Payload::Inline(range) => SendData::Inline(self.bytes.get(range.clone()).unwrap_or_default()),
        };
        SendRequest { wr_id: built.wr_id, op: built.op, flags: built.flags, data, ud: built.ud }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let cap = ibv_qp_cap { max_send_wr: 2, max_send_sge: 1, max_inline_data: 4, ..ibv_qp_cap::default() };
        Batch::new(&cap, Service::Rc)
    }

    #[test]
    fn batch_refuses_more_requests_and_sges_than_the_queue_allows() {
        let mut batch = batch();
        let sge = Sge::default();
        assert_eq!(batch.set_sges([sge].into_iter()), Err(EINVAL), "no request was started");
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
