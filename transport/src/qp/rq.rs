//! The receive queue of a QP: its own ring of receives, or the one it took from a shared queue; and how each ends.
//!
//! The oldest receive is the *current* one: messages are scattered into it, and it stays where it is until it
//! completes. So asking for a receive changes nothing that the application could see. May touch [`Shared`] and the host.

use crate::cx::{Host, MemError, Side};
use crate::qp::PostError;
use crate::qp::shared::{QpConfig, Shared};
use crate::wr::{Cqe, RecvRequest, Sge, WcOpcode, WcStatus};

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

/// The QP's own receives: a ring whose arrays grow to their full size in the first lap and were reserved at creation,
/// so that memory is touched only as far as it is used.
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
        let (slots, sges) = (Vec::with_capacity(depth), Vec::with_capacity(depth.saturating_mul(max_sge)));
        Self { slots, sges, depth, max_sge, head: 0, len: 0 }
    }

    fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        if self.len >= self.depth {
            return Err(PostError::QueueFull);
        }
        let at = (self.head + self.len) % self.depth;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::default());
            self.sges.resize((at + 1) * self.max_sge, Sge::default());
        }
        self.slots[at] = Slot::new(wr_id, sges);
        self.sges[at * self.max_sge..][..sges.len()].copy_from_slice(sges);
        self.len += 1;
        Ok(())
    }

    fn front(&self) -> Option<(&Slot, &[Sge])> {
        let slot = self.slots.get(self.head).filter(|_| self.len > 0)?;
        Some((slot, self.sges.get(self.head * self.max_sge..)?.get(..slot.sges)?))
    }

    fn pop(&mut self) -> Option<u64> {
        let wr_id = self.front()?.0.wr_id;
        self.head = (self.head + 1) % self.depth;
        self.len -= 1;
        Some(wr_id)
    }
}

/// The receive taken from a shared queue. It belongs to this QP until it completes (IBA §10.2.9.3).
#[derive(Debug)]
struct Taken {
    slot: Option<Slot>,
    /// Its list; the capacity is that of the shared queue.
    sges: Vec<Sge>,
}

#[derive(Debug)]
enum Source {
    Own(Ring),
    Shared(Taken),
}

/// Where incoming messages land.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    source: Source,
}

impl RecvQueue {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let source = match config.srq_max_sge {
            Some(max_sge) => Source::Shared(Taken { slot: None, sges: Vec::with_capacity(max_sge as usize) }),
            None => Source::Own(Ring::new(config.caps.max_recv_wr as usize, config.caps.max_recv_sge as usize)),
        };
        Self { source }
    }

    /// Whether receives come from a shared queue.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Queues a receive. A QP with a shared queue has no queue of its own (`man ibv_post_recv`: `EINVAL`).
    pub(crate) fn post(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        match &mut self.source {
            Source::Own(ring) => ring.push(req.wr_id, req.sges),
            Source::Shared(_) => Err(PostError::BadOpcode),
        }
    }

    /// Whether there is a current receive; takes one from the shared queue if need be.
    pub(crate) fn acquire<H: Host>(&mut self, host: &mut H) -> bool {
        match &mut self.source {
            Source::Own(ring) => ring.len > 0,
            Source::Shared(taken) => {
                if taken.slot.is_none() {
                    taken.slot = host.take_shared(&mut taken.sges).map(|wr_id| Slot::new(wr_id, &taken.sges));
                }
                taken.slot.is_some()
            }
        }
    }

    fn current(&self) -> Option<(&Slot, &[Sge])> {
        match &self.source {
            Source::Own(ring) => ring.front(),
            Source::Shared(taken) => Some((taken.slot.as_ref()?, &taken.sges)),
        }
    }

    /// Bytes that the current receive takes; 0 without one.
    pub(crate) fn room(&self) -> u64 {
        self.current().map_or(0, |(slot, _)| slot.room)
    }

    /// Places `data` `offset` bytes into the current receive.
    pub(crate) fn scatter<H: Host>(&self, host: &mut H, offset: u32, data: &[u8]) -> Result<(), MemError> {
        if data.is_empty() {
            return Ok(());
        }
        let (_, sges) = self.current().ok_or(MemError::Range)?;
        host.scatter(sges, offset, data)
    }

    /// Ends the current receive, if there is one, with `cqe`: `wr_id`, `qpn`, `timestamp` are filled in here, and every
    /// error counts as solicited (`man ibv_req_notify_cq`).
    pub(crate) fn complete<H: Host>(&mut self, sh: &mut Shared, host: &mut H, cqe: Cqe) -> bool {
        let Some(wr_id) = self.pop() else { return false };
        let solicited = cqe.solicited || cqe.status != WcStatus::Success;
        let cqe = Cqe { wr_id, solicited, qpn: sh.config.qpn, timestamp: host.now().0, ..cqe };
        if host.complete(Side::Recv, cqe).is_err() {
            sh.overrun();
        }
        true
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
            Source::Own(ring) => ring.pop(),
            Source::Shared(taken) => Some(taken.slot.take()?.wr_id),
        }
    }
}
