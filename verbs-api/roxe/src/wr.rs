//! Work requests of the send queue, as builders that borrow their lists. Only posting copies data.

use crate::{Access, AddressHandle, RemoteAddr, Sge, SrqNumber};
use roxe_transport::wr::{self, Bind, SendData, SendFlags, SendOp, UdDest};
use roxe_wire::{Feth, ImmDt, Placement, Qkey, Qpn, RKey, Selectivity};

/// One request for the send queue.
///
/// Posted with [`QueuePair::post_send`](crate::QueuePair::post_send):
///
/// ```no_run
/// # use roxe::{QueuePair, MemoryRegion, RemoteAddr, WorkRequest};
/// # fn f(qp: &QueuePair, region: &MemoryRegion, remote: RemoteAddr) -> Result<(), roxe::Error> {
/// qp.post_send(&WorkRequest::send(&[region.slice(0..64)?]).wr_id(1).signaled())?;
/// let data = [region.slice(64..128)?];
/// qp.post_send(&WorkRequest::write(&data, remote).imm(7).wr_id(2).signaled())?;
/// qp.post_send(&WorkRequest::send_inline(b"hello").solicited())?;
/// # Ok(()) }
/// ```
///
/// A request without [`signaled`](Self::signaled) completes only if it fails, unless the queue pair
/// was built with `sq_sig_all`. Its slot of the send queue becomes free when a later signaled
/// request completes.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    pub(crate) request: wr::SendRequest<'a>,
    pub(crate) srq: Option<SrqNumber>,
    /// True if an option does not fit the operation: posting refuses the request.
    pub(crate) is_impossible: bool,
}

impl<'a> WorkRequest<'a> {
    const fn new(op: SendOp, data: SendData<'a>) -> Self {
        let request = wr::SendRequest { wr_id: 0, op, flags: SendFlags::empty(), data, ud: None };
        Self { request, srq: None, is_impossible: false }
    }

    /// Creates a SEND, which sends the bytes of `sges`, in order, to the next receive request of
    /// the peer.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send, SendData::Sges(sges))
    }

    /// Creates a SEND of inline data. Posting copies `bytes`, so they need no registration and may
    /// change afterwards. The queue pair accepts at most `max_inline_data` bytes.
    pub const fn send_inline(bytes: &'a [u8]) -> Self {
        Self::new(SendOp::Send, SendData::Inline(bytes))
    }

    /// Creates an RDMA WRITE, which writes the bytes of `sges` to memory of the peer without
    /// involving its program. Not on UD.
    pub const fn write(sges: &'a [Sge], remote: RemoteAddr) -> Self {
        Self::new(SendOp::Write { remote_addr: remote.addr, rkey: remote.rkey }, SendData::Sges(sges))
    }

    /// Creates an RDMA WRITE of inline data, which posting copies as for
    /// [`send_inline`](Self::send_inline).
    pub const fn write_inline(bytes: &'a [u8], remote: RemoteAddr) -> Self {
        Self::new(SendOp::Write { remote_addr: remote.addr, rkey: remote.rkey }, SendData::Inline(bytes))
    }

    /// Creates an RDMA READ, which fills `sges` from memory of the peer without involving its
    /// program. RC and XRC.
    pub const fn read(sges: &'a [Sge], remote: RemoteAddr) -> Self {
        Self::new(SendOp::Read { remote_addr: remote.addr, rkey: remote.rkey }, SendData::Sges(sges))
    }

    /// Creates a COMPARE_SWAP on the 8 bytes at `remote` (aligned, native byte order of the peer):
    /// stores `swap` there if they equal `compare`. The old value is written to `sges` (8 bytes).
    /// RC and XRC.
    pub const fn compare_swap(sges: &'a [Sge], remote: RemoteAddr, compare: u64, swap: u64) -> Self {
        let op = SendOp::CompareSwap { remote_addr: remote.addr, rkey: remote.rkey, compare, swap };
        Self::new(op, SendData::Sges(sges))
    }

    /// Creates a FETCH_ADD on the 8 bytes at `remote` (aligned, native byte order of the peer):
    /// adds `add`, wrapping. The old value is written to `sges` (8 bytes). RC and XRC.
    pub const fn fetch_add(sges: &'a [Sge], remote: RemoteAddr, add: u64) -> Self {
        Self::new(SendOp::FetchAdd { remote_addr: remote.addr, rkey: remote.rkey, add }, SendData::Sges(sges))
    }

    /// Creates a request that opens a memory window, as
    /// [`MemoryWindow::bind`](crate::MemoryWindow::bind) describes. It sends no packet. It starts
    /// when all earlier requests of the queue are complete, and later requests start when it is
    /// complete. RC, UC and XRC.
    pub const fn bind(binding: &WindowBinding) -> Self {
        let Bind { rkey, lkey, access, addr, length } = binding.0;
        Self::new(SendOp::BindWindow { rkey, lkey, access, addr, length }, SendData::Sges(&[]))
    }

    /// Creates a request that closes the local memory window with this rkey, which this queue pair
    /// must have opened. It sends no packet, and is ordered like [`bind`](Self::bind). RC, UC and
    /// XRC.
    pub const fn local_invalidate(rkey: RKey) -> Self {
        Self::new(SendOp::LocalInvalidate(rkey), SendData::Sges(&[]))
    }

    /// Creates an ATOMIC WRITE, which writes the 8 bytes of `word` to `remote` (aligned) after all
    /// earlier writes. Posting copies `word`. A reader sees all 8 bytes or none. The request
    /// completes when the bytes are in the peer's memory. RC and XRC.
    pub const fn atomic_write(word: &'a [u8; 8], remote: RemoteAddr) -> Self {
        Self::new(SendOp::AtomicWrite { remote_addr: remote.addr, rkey: remote.rkey }, SendData::Inline(word))
    }

    /// Creates a FLUSH, which completes when all earlier writes to the `length` bytes at `remote`
    /// are visible to all threads of the peer. The memory needs
    /// [`Access::FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL). RC and XRC.
    pub const fn flush(remote: RemoteAddr, length: u32) -> Self {
        Self::new_flush(remote, length, Selectivity::Range)
    }

    /// Creates a FLUSH like [`flush`](Self::flush), for the whole region that contains `remote`.
    pub const fn flush_region(remote: RemoteAddr) -> Self {
        Self::new_flush(remote, 0, Selectivity::Region)
    }

    const fn new_flush(remote: RemoteAddr, length: u32, selectivity: Selectivity) -> Self {
        let feth = Feth { selectivity, placement: Placement::GLOBAL_VISIBILITY };
        let op = SendOp::Flush { remote_addr: remote.addr, rkey: remote.rkey, length, feth };
        Self::new(op, SendData::Sges(&[]))
    }

    /// Sets the `wr_id`, which the completion carries.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.request.wr_id = wr_id;
        self
    }

    /// Adds immediate data: a number that the peer's completion carries. A WRITE then consumes a
    /// receive request of the peer. Only for SEND and WRITE: a post of another operation is
    /// refused. Replaces [`invalidate`](Self::invalidate).
    #[must_use]
    pub const fn imm(mut self, imm: u32) -> Self {
        let imm = ImmDt(imm.to_be_bytes());
        self.request.op = match self.request.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => SendOp::SendImm(imm),
            SendOp::Write { remote_addr, rkey } | SendOp::WriteImm { remote_addr, rkey, .. } => {
                SendOp::WriteImm { remote_addr, rkey, imm }
            }
            other => {
                self.is_impossible = true;
                other
            }
        };
        self
    }

    /// Makes the peer close its memory window `rkey` when the message arrives; the kind of the
    /// window must be [`WindowKind::QueuePair`](crate::WindowKind::QueuePair). Only for SEND on RC
    /// and XRC: a post of another operation, or on another service, is refused. Replaces immediate
    /// data. Add [`fence`](Self::fence) if a READ of that window may be outstanding.
    #[must_use]
    pub const fn invalidate(mut self, rkey: RKey) -> Self {
        if let SendOp::Send | SendOp::SendImm(_) = self.request.op {
            self.request.op = SendOp::SendInvalidate(rkey);
        } else {
            self.is_impossible = true;
        }
        self
    }

    /// Makes the request complete on success too, not only on failure.
    #[must_use]
    pub const fn signaled(mut self) -> Self {
        self.request.flags = self.request.flags.union(SendFlags::SIGNALED);
        self
    }

    /// Delays the request until the earlier READs and atomics of this queue pair are complete.
    #[must_use]
    pub const fn fence(mut self) -> Self {
        self.request.flags = self.request.flags.union(SendFlags::FENCE);
        self
    }

    /// Wakes a peer that waits for solicited events only.
    #[must_use]
    pub const fn solicited(mut self) -> Self {
        self.request.flags = self.request.flags.union(SendFlags::SOLICITED);
        self
    }

    /// Sets the destination of a UD message: queue pair `qpn` at `ah`, which accepts the message if
    /// its own Q_Key is `qkey`.
    #[must_use]
    pub fn to(mut self, ah: &AddressHandle, qpn: Qpn, qkey: Qkey) -> Self {
        self.request.ud = Some(UdDest { av: ah.av, qpn, qkey });
        self
    }

    /// Sets the shared receive queue of the peer that an XRC message is for. READ, WRITE and
    /// atomics need one too, because they access memory of its protection domain. A post of any
    /// request without one is refused on XRC.
    #[must_use]
    pub const fn to_srq(mut self, number: SrqNumber) -> Self {
        self.srq = Some(number);
        self
    }

    /// Returns the operation in words, for error messages.
    pub(crate) const fn name(&self) -> &'static str {
        match self.request.op {
            SendOp::Send => "a SEND",
            SendOp::SendImm(_) => "a SEND with immediate",
            SendOp::SendInvalidate(_) => "a SEND with invalidate",
            SendOp::Write { .. } => "an RDMA WRITE",
            SendOp::WriteImm { .. } => "an RDMA WRITE with immediate",
            SendOp::Read { .. } => "an RDMA READ",
            SendOp::CompareSwap { .. } => "a COMPARE_SWAP",
            SendOp::FetchAdd { .. } => "a FETCH_ADD",
            SendOp::LocalInvalidate(_) => "a local invalidate",
            SendOp::BindWindow { .. } => "a binding of a window",
            SendOp::AtomicWrite { .. } => "an ATOMIC WRITE",
            SendOp::Flush { .. } => "a FLUSH",
        }
    }
}

/// A binding of a memory window to part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding(pub(crate) Bind);

impl WindowBinding {
    /// Returns the remote address of the first byte, for the peer. Give it to the peer when the
    /// binding is complete, or in a later SEND on the same queue pair, which starts after it.
    pub const fn remote(&self) -> RemoteAddr {
        let addr = if self.0.access.contains(Access::ZERO_BASED) { 0 } else { self.0.addr };
        RemoteAddr { addr, rkey: self.0.rkey }
    }

    /// Returns the key of the window while it is open.
    pub const fn rkey(&self) -> RKey {
        self.0.rkey
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imm_converts_send_and_write() {
        let remote = RemoteAddr { addr: 8, rkey: RKey(9) };
        let send = WorkRequest::send(&[]).imm(0x0102_0304).request;
        assert_eq!(send.op, SendOp::SendImm(ImmDt([1, 2, 3, 4])));
        let write = WorkRequest::write(&[], remote).imm(1).imm(2).request;
        assert_eq!(write.op, SendOp::WriteImm { remote_addr: 8, rkey: RKey(9), imm: ImmDt([0, 0, 0, 2]) });
        assert!(!WorkRequest::send(&[]).imm(1).invalidate(RKey(3)).is_impossible);
    }

    #[test]
    fn option_that_does_not_fit_makes_a_request_impossible() {
        let remote = RemoteAddr { addr: 8, rkey: RKey(9) };
        assert!(WorkRequest::read(&[], remote).imm(1).is_impossible);
        assert!(WorkRequest::fetch_add(&[], remote, 1).imm(1).is_impossible);
        assert!(WorkRequest::write(&[], remote).invalidate(RKey(3)).is_impossible);
    }

    #[test]
    fn flags_accumulate() {
        let request = WorkRequest::send_inline(b"x").wr_id(5).signaled().fence().solicited().request;
        assert_eq!(request.flags, SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::SOLICITED);
        assert_eq!(request.wr_id, 5);
    }
}
