//! The receive queue of a QP: its own ring, or a receive taken from an SRQ.
//!
//! Messages are scattered into the oldest receive, the *current* one, which stays in place until it
//! completes. Acquiring a receive therefore changes nothing that the application can see.

use crate::cx::{Host, MemError, RxPayload, Side};
use crate::qp::features::tags::{Rendezvous, TagMatch, wanted_tag};
use crate::qp::shared::{PostError, QpConfig, Service, Shared};
use crate::wr::{Cqe, RecvRequest, Sge, WcOpcode, WcStatus};
use roxe_wire::Request;

/// A posted receive; its list is in a side array.
#[derive(Clone, Copy, Debug, Default)]
struct RecvSlot {
    wr_id: u64,
    num_sge: usize,
    /// Length of the list in bytes.
    room: u64,
}

impl RecvSlot {
    fn new(wr_id: u64, sges: &[Sge]) -> Self {
        Self { wr_id, num_sge: sges.len(), room: sges.iter().map(|sge| u64::from(sge.length)).sum() }
    }
}

/// The QP's own receives: a ring whose arrays are reserved by the first post, so that an idle QP
/// costs no memory and a busy one does not allocate.
#[derive(Debug)]
struct Ring {
    slots: Vec<RecvSlot>,
    sges: Vec<Sge>,
    depth: usize,
    max_sge: usize,
    head: usize,
    len: usize,
}

impl Ring {
    fn new(depth: usize, max_sge: usize) -> Self {
        Self { slots: Vec::new(), sges: Vec::new(), depth, max_sge, head: 0, len: 0 }
    }

    fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        if self.len >= self.depth {
            return Err(PostError::QueueFull);
        }
        let at = self.slot_index(self.head + self.len);
        if at >= self.slots.len() {
            self.grow_to(at + 1);
        }
        self.slots[at] = RecvSlot::new(wr_id, sges);
        self.sges[at * self.max_sge..][..sges.len()].copy_from_slice(sges);
        self.len += 1;
        Ok(())
    }

    /// Returns the slot index of `at`, which is less than twice the depth.
    fn slot_index(&self, at: usize) -> usize {
        if at >= self.depth { at - self.depth } else { at }
    }

    fn grow_to(&mut self, slots: usize) {
        if self.slots.is_empty() {
            self.slots.reserve_exact(self.depth);
            self.sges.reserve_exact(self.depth.saturating_mul(self.max_sge));
        }
        self.slots.resize(slots, RecvSlot::default());
        self.sges.resize(slots * self.max_sge, Sge::default());
    }

    fn oldest(&self) -> Option<&RecvSlot> {
        self.slots.get(self.head).filter(|_| self.len > 0)
    }

    fn front(&self) -> Option<(&RecvSlot, &[Sge])> {
        let slot = self.oldest()?;
        Some((slot, self.sges.get(self.head * self.max_sge..)?.get(..slot.num_sge)?))
    }

    fn pop(&mut self) -> Option<u64> {
        let wr_id = self.oldest()?.wr_id;
        self.head = self.slot_index(self.head + 1);
        self.len -= 1;
        Some(wr_id)
    }
}

/// A receive taken from an SRQ. It belongs to this QP until it completes (IBA §10.2.9).
#[derive(Debug)]
struct SrqReceive {
    slot: Option<RecvSlot>,
    sges: Vec<Sge>,
    max_sge: usize,
}

impl SrqReceive {
    fn take<H: Host>(&mut self, host: &mut H) -> Option<RecvSlot> {
        if self.sges.capacity() < self.max_sge {
            self.sges.reserve_exact(self.max_sge);
        }
        let wr_id = host.take_shared(&mut self.sges)?;
        Some(RecvSlot::new(wr_id, &self.sges))
    }

    /// Takes the receive for a message that begins with `first`, matched by tag; `may_read` as in
    /// [`TagMatch::of`].
    fn take_tagged<H: Host>(&mut self, host: &mut H, first: &[u8], may_read: bool) -> Option<(RecvSlot, TagMatch)> {
        if self.sges.capacity() < self.max_sge {
            self.sges.reserve_exact(self.max_sge);
        }
        let (wr_id, fit) = host.take_tagged(wanted_tag(first), &mut self.sges)?;
        let slot = RecvSlot::new(wr_id, &self.sges);
        Some((slot, TagMatch::of(first, fit, slot.room, may_read)))
    }
}

#[derive(Debug)]
enum Source {
    /// XRC initiators never receive.
    Nothing,
    Own(Ring),
    Shared(SrqReceive),
}

#[derive(Debug)]
pub(crate) struct RecvQueue {
    source: Source,
    /// True if fault injection hides the posted receives.
    pub(super) receive_hidden: bool,
    /// XRC: the SRQ number in the newest request; the host has selected this SRQ.
    pub(super) srqn: u32,
    matches_tags: bool,
    tag_match: TagMatch,
    /// Bytes at the start of the message that are not placed in the current receive.
    skipped: u32,
}

/// Returns true if a request consumes a receive or begins to fill one.
pub(crate) const fn takes_receive(req: &Request) -> bool {
    matches!(
        req,
        Request::SendFirst | Request::SendOnly(_) | Request::WriteLast(Some(_)) | Request::WriteOnly(_, Some(_))
    )
}

impl RecvQueue {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let source = match config.srq_max_sge {
            _ if config.service == Service::XrcIni => Source::Nothing,
            Some(max_sge) => Source::Shared(SrqReceive { slot: None, sges: Vec::new(), max_sge: max_sge as usize }),
            None => Source::Own(Ring::new(config.caps.max_recv_wr as usize, config.caps.max_recv_sge as usize)),
        };
        let (matches_tags, tag_match) = (config.tag_matching, TagMatch::Plain);
        Self { source, receive_hidden: false, srqn: 0, matches_tags, tag_match, skipped: 0 }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Posts a receive; refused on a QP with an SRQ (`man ibv_post_recv`: `EINVAL`).
    pub(crate) fn post(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        match &mut self.source {
            Source::Own(ring) => ring.push(req.wr_id, req.sges),
            // clause: SRQ-NO-OWN
            Source::Shared(_) | Source::Nothing => Err(PostError::BadOpcode),
        }
    }

    /// Returns true if there is a current receive; takes one from the SRQ if needed.
    #[inline]
    pub(crate) fn acquire<H: Host>(&mut self, host: &mut H) -> bool {
        match &mut self.source {
            _ if self.receive_hidden => false,
            Source::Nothing => false,
            Source::Own(ring) => ring.len > 0,
            Source::Shared(taken) => {
                // clause: SRQ-TAKEN
                if taken.slot.is_none() {
                    taken.slot = taken.take(host);
                }
                taken.slot.is_some()
            }
        }
    }

    /// Acquires a receive like [`RecvQueue::acquire`], for a message that begins with `first`, the
    /// header that a tag-matching queue reads. Returns true if there is one.
    pub(crate) fn acquire_for<H: Host>(&mut self, host: &mut H, first: &[u8], may_read: bool) -> bool {
        match &mut self.source {
            Source::Shared(taken) if self.matches_tags && !self.receive_hidden && taken.slot.is_none() => {
                let Some((slot, tag_match)) = taken.take_tagged(host, first, may_read) else { return false };
                (taken.slot, self.tag_match, self.skipped) = (Some(slot), tag_match, tag_match.skipped());
                true
            }
            _ => self.acquire(host),
        }
    }

    fn current(&self) -> Option<(&RecvSlot, &[Sge])> {
        match &self.source {
            Source::Nothing => None,
            Source::Own(ring) => ring.front(),
            Source::Shared(taken) => Some((taken.slot.as_ref()?, &taken.sges)),
        }
    }

    /// Returns the maximum message length for the current receive, in bytes; 0 without a receive.
    pub(crate) fn room(&self) -> u64 {
        self.current().map_or(0, |(slot, _)| slot.room + u64::from(self.skipped))
    }

    /// Returns the bytes in the current receive after `received` bytes of the message.
    pub(crate) fn placed_len(&self, received: u32) -> u32 {
        received.saturating_sub(self.skipped)
    }

    /// Returns the list of the receive taken last from an SRQ.
    pub(crate) fn last_list(&self) -> &[Sge] {
        if let Source::Shared(taken) = &self.source { &taken.sges } else { &[] }
    }

    /// Copies `data`, at `offset` in the message, into the current receive.
    #[inline]
    pub(crate) fn scatter<H: Host>(&self, host: &mut H, offset: u32, data: RxPayload<'_>) -> Result<(), MemError> {
        let data = data.skip(self.skipped.saturating_sub(offset) as usize);
        if data.is_empty() {
            return Ok(());
        }
        let offset = self.placed_len(offset);
        let (_, sges) = self.current().ok_or(MemError::Range)?;
        host.scatter(Side::Recv, sges, offset, data)
    }

    /// Completes the current receive with `cqe`; fills in `wr_id` and counts every error as
    /// solicited (`man ibv_req_notify_cq`). Returns false if there is no current receive.
    #[inline]
    pub(crate) fn complete<H: Host>(&mut self, sh: &mut Shared, host: &mut H, mut cqe: Cqe) -> bool {
        let Some(wr_id) = self.pop() else { return false };
        // clause: XRC-COMPLETION
        if sh.config.service == Service::XrcTgt {
            host.select_srq(self.srqn);
        }
        // clause: WC-SOLICITED
        cqe.solicited |= cqe.status != WcStatus::Success;
        cqe.wr_id = wr_id;
        if self.matches_tags {
            cqe = self.end_tagged(sh, host, cqe);
        }
        sh.complete(host, Side::Recv, cqe);
        true
    }

    /// Adds the tag matching part to the completion `cqe` of the current receive.
    #[cold]
    fn end_tagged<H: Host>(&mut self, sh: &mut Shared, host: &mut H, cqe: Cqe) -> Cqe {
        self.skipped = 0;
        let tag_match = core::mem::take(&mut self.tag_match);
        match tag_match {
            TagMatch::Unexpected { .. } if cqe.status != WcStatus::Success => host.forget_unexpected(),
            TagMatch::Rendezvous(rendezvous) if cqe.status == WcStatus::Success => {
                let Cqe { wr_id, solicited, .. } = cqe;
                sh.rendezvous = Some(Rendezvous { wr_id, solicited, ..rendezvous });
            }
            _ => {}
        }
        tag_match.stamp(cqe)
    }

    /// Drops the tag matching state of the current receive without a completion.
    pub(crate) fn discard<H: Host>(&mut self, host: &mut H) {
        self.skipped = 0;
        if let TagMatch::Unexpected { .. } = core::mem::take(&mut self.tag_match) {
            host.forget_unexpected();
        }
    }

    /// Flushes all receives, oldest first. Receives still in an SRQ stay in it.
    pub(crate) fn flush<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        let cqe = Cqe { status: WcStatus::WrFlushErr, opcode: WcOpcode::Recv, ..Cqe::default() };
        while self.complete(sh, host, cqe) {}
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    fn pop(&mut self) -> Option<u64> {
        match &mut self.source {
            Source::Nothing => None,
            Source::Own(ring) => ring.pop(),
            Source::Shared(taken) => Some(taken.slot.take()?.wr_id),
        }
    }
}

#[cfg(test)]
mod tests;
