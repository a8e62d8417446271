//! The receive queue of a QP: its own ring of receives, or the one it took from a shared queue; and
//! how each ends.
//!
//! The oldest receive is the *current* one: messages are scattered into it, and it stays where it
//! is until it completes. So asking for a receive changes nothing that the application could see.
//! May touch [`Shared`] and the host.

use crate::cx::{Host, MemError, RxPayload, Side};
use crate::qp::features::tags::{Rendezvous, TagMatch, wanted_tag};
use crate::qp::shared::{PostError, QpConfig, Service, Shared};
use crate::wr::{Cqe, RecvRequest, Sge, WcOpcode, WcStatus};
use roxe_wire::Request;

/// A posted receive; its list lies next to the others in a side array.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    wr_id: u64,
    /// Elements in the list.
    sges: usize,
    /// Bytes the list takes.
    room: u64,
}

impl Slot {
    fn new(wr_id: u64, sges: &[Sge]) -> Self {
        Self { wr_id, sges: sges.len(), room: sges.iter().map(|sge| u64::from(sge.length)).sum() }
    }
}

/// The QP's own receives: a ring whose arrays are reserved whole at the first post and filled in
/// the first lap, so that an idle QP costs no memory and a busy one does not allocate.
#[derive(Debug)]
struct Ring {
    slots: Vec<Slot>,
    /// `max_sge` elements per slot.
    sges: Vec<Sge>,
    depth: usize,
    max_sge: usize,
    /// Index of the oldest receive.
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
        let at = self.around(self.head + self.len);
        if at >= self.slots.len() {
            self.grow_to(at + 1);
        }
        self.slots[at] = Slot::new(wr_id, sges);
        self.sges[at * self.max_sge..][..sges.len()].copy_from_slice(sges);
        self.len += 1;
        Ok(())
    }

    /// Index `at`, which is less than two laps, in the arrays.
    fn around(&self, at: usize) -> usize {
        if at >= self.depth { at - self.depth } else { at }
    }

    /// Gives the arrays `slots` slots; the first call reserves them whole.
    fn grow_to(&mut self, slots: usize) {
        if self.slots.is_empty() {
            self.slots.reserve_exact(self.depth);
            self.sges.reserve_exact(self.depth.saturating_mul(self.max_sge));
        }
        self.slots.resize(slots, Slot::default());
        self.sges.resize(slots * self.max_sge, Sge::default());
    }

    fn front(&self) -> Option<(&Slot, &[Sge])> {
        let slot = self.slots.get(self.head).filter(|_| self.len > 0)?;
        Some((slot, self.sges.get(self.head * self.max_sge..)?.get(..slot.sges)?))
    }

    fn pop(&mut self) -> Option<u64> {
        let wr_id = self.front()?.0.wr_id;
        self.head = self.around(self.head + 1);
        self.len -= 1;
        Some(wr_id)
    }
}

/// The receive taken from a shared queue. It belongs to this QP until it completes (IBA §10.2.9).
#[derive(Debug)]
struct SrqReceive {
    slot: Option<Slot>,
    /// Its list, of at most `max_sge` elements; reserved when the first receive is taken.
    sges: Vec<Sge>,
    max_sge: usize,
}

impl SrqReceive {
    fn take<H: Host>(&mut self, host: &mut H) -> Option<Slot> {
        if self.sges.capacity() < self.max_sge {
            self.sges.reserve_exact(self.max_sge);
        }
        let wr_id = host.take_shared(&mut self.sges)?;
        Some(Slot::new(wr_id, &self.sges))
    }

    /// Takes the receive for a message that begins with `first`, matched by its tag; `may_read` as
    /// for [`TagMatch::of`].
    fn take_tagged<H: Host>(&mut self, host: &mut H, first: &[u8], may_read: bool) -> Option<(Slot, TagMatch)> {
        if self.sges.capacity() < self.max_sge {
            self.sges.reserve_exact(self.max_sge);
        }
        let (wr_id, fit) = host.take_tagged(wanted_tag(first), &mut self.sges)?;
        let slot = Slot::new(wr_id, &self.sges);
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

/// Where incoming messages land.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    source: Source,
    /// Whatever is posted is not there for now: an injected fault.
    pub(super) starved: bool,
    /// XRC: the shared queue that the newest request named, and the current receive is from; the
    /// host has selected it.
    pub(super) srqn: u32,
    matches_tags: bool,
    /// Tag matching: what the current receive is for.
    tag_match: TagMatch,
    /// Bytes at the beginning of the message that do not land in the current receive.
    skipped: u32,
}

/// Whether a request uses up a receive or begins to use one.
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
        Self { source, starved: false, srqn: 0, matches_tags, tag_match, skipped: 0 }
    }

    /// Whether receives come from a shared queue.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Queues a receive. A QP with a shared queue has no queue of its own (`man ibv_post_recv`:
    /// `EINVAL`).
    pub(crate) fn post(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        match &mut self.source {
            Source::Own(ring) => ring.push(req.wr_id, req.sges),
            // clause: SRQ-NO-OWN
            Source::Shared(_) | Source::Nothing => Err(PostError::BadOpcode),
        }
    }

    /// Whether there is a current receive; takes one from the shared queue if need be.
    #[inline]
    pub(crate) fn acquire<H: Host>(&mut self, host: &mut H) -> bool {
        match &mut self.source {
            _ if self.starved => false,
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

    /// As [`RecvQueue::acquire`] for a message that begins with `first`: a tag-matching queue looks
    /// at its header.
    pub(crate) fn acquire_for<H: Host>(&mut self, host: &mut H, first: &[u8], may_read: bool) -> bool {
        match &mut self.source {
            Source::Shared(taken) if self.matches_tags && !self.starved && taken.slot.is_none() => {
                let Some((slot, tag_match)) = taken.take_tagged(host, first, may_read) else { return false };
                (taken.slot, self.tag_match, self.skipped) = (Some(slot), tag_match, tag_match.skipped());
                true
            }
            _ => self.acquire(host),
        }
    }

    fn current(&self) -> Option<(&Slot, &[Sge])> {
        match &self.source {
            Source::Nothing => None,
            Source::Own(ring) => ring.front(),
            Source::Shared(taken) => Some((taken.slot.as_ref()?, &taken.sges)),
        }
    }

    /// Bytes of a message that the current receive takes; 0 without one.
    pub(crate) fn room(&self) -> u64 {
        self.current().map_or(0, |(slot, _)| slot.room + u64::from(self.skipped))
    }

    /// Of `received` bytes of a message, those that are in the current receive.
    pub(crate) fn landed(&self, received: u32) -> u32 {
        received.saturating_sub(self.skipped)
    }

    /// The list of the receive that was taken last from a shared queue.
    pub(crate) fn last_list(&self) -> &[Sge] {
        if let Source::Shared(taken) = &self.source { &taken.sges } else { &[] }
    }

    /// Places `data`, which is `offset` bytes into the message, into the current receive.
    #[inline]
    pub(crate) fn scatter<H: Host>(&self, host: &mut H, offset: u32, data: RxPayload<'_>) -> Result<(), MemError> {
        let data = data.skip(self.skipped.saturating_sub(offset) as usize);
        if data.is_empty() {
            return Ok(());
        }
        let offset = self.landed(offset);
        let (_, sges) = self.current().ok_or(MemError::Range)?;
        host.scatter(Side::Recv, sges, offset, data)
    }

    /// Ends the current receive, if there is one, with `cqe`: `wr_id` is filled in here, and every
    /// error counts as solicited (`man ibv_req_notify_cq`).
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

    /// The completion of the current receive of a tag-matching queue is `cqe` but for what its tag
    /// adds.
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

    /// The current receive of a tag-matching queue vanishes without a completion.
    pub(crate) fn give_up<H: Host>(&mut self, host: &mut H) {
        self.skipped = 0;
        if let TagMatch::Unexpected { .. } = core::mem::take(&mut self.tag_match) {
            host.forget_unexpected();
        }
    }

    /// Ends all receives as flushed, oldest first. A shared queue keeps what this QP has not taken.
    pub(crate) fn flush<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        let cqe = Cqe { status: WcStatus::WrFlushErr, opcode: WcOpcode::Recv, ..Cqe::default() };
        while self.complete(sh, host, cqe) {}
    }

    /// Forgets all receives.
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
