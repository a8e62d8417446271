//! The send queue: a ring of work requests with their lists, inline bytes and destinations in side
//! arrays.
//!
//! An entry has a running index that wraps at 2^32; `slot` maps it into the arrays. The arrays
//! are allocated by the first post that needs them and double on demand, so that thousands of QPs
//! with few requests stay small. An empty queue restarts at its first slot, which is still in the
//! cache.

use crate::qp::features::tags::Rendezvous;
use crate::qp::shared::{PostError, QpCaps, QpConfig, Service, Shared};
use crate::wr::{ATOMIC_LEN, Access, MAX_MESSAGE, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcOpcode};
use roxe_wire::{Psn, Tmh};

/// Initial number of slots; small, because a process may have thousands of QPs.
const FIRST_SLOTS: u32 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    #[default]
    Program,
    /// The card, which reads the data of a rendezvous. The inline bytes are the FIN to send
    /// afterwards.
    Rendezvous,
    /// The card, which sends the FIN of a rendezvous.
    Fin,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Message length in bytes; the list length for atomics, 0 for a FLUSH.
    pub(crate) length: u32,
    num_sge: u32,
    /// PSN of the first packet; set when the request starts.
    pub(crate) first_psn: Psn,
    /// Number of PSNs; set when the request starts.
    pub(crate) packets: u32,
    /// XRC: the shared receive queue of the peer.
    pub(crate) srqn: u32,
    pub(crate) origin: Origin,
}

impl SendWqe {
    const fn new(wr_id: u64, op: SendOp, flags: SendFlags, length: u32, origin: Origin) -> Self {
        Self { wr_id, op, flags, length, num_sge: 0, first_psn: Psn::new(0), packets: 0, srqn: 0, origin }
    }

    /// Returns the bytes that its responses write into its list.
    pub(crate) fn response_bytes(&self) -> u32 {
        if self.op.is_read() || self.op.is_atomic() { self.length } else { 0 }
    }

    /// Returns the payload bytes of the request packet, for a request that [awaits a
    /// response](SendOp::awaits_response).
    pub(crate) fn request_len(&self) -> u32 {
        if matches!(self.op, SendOp::AtomicWrite { .. }) { self.length } else { 0 }
    }

    /// Returns true if the receiver must raise a solicited event: only SEND and WRITE with
    /// immediate can (IBA §9.2.3).
    // clause: BTH-SOLICITED
    pub(crate) fn is_solicited(&self) -> bool {
        self.flags.contains(SendFlags::SOLICITED)
            && !self.op.awaits_response()
            && !matches!(self.op, SendOp::Write { .. })
    }

    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
            SendOp::BindWindow { .. } => WcOpcode::BindWindow,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
        }
    }
}

/// `width` items for each slot of a ring, allocated up to the highest slot used: most queues use
/// one kind of payload.
#[derive(Debug)]
struct SideArray<T> {
    items: Vec<T>,
    width: usize,
}

impl<T: Copy> SideArray<T> {
    const fn new(width: usize) -> Self {
        Self { items: Vec::new(), width }
    }

    fn write_slot(&mut self, slot: usize, values: &[T], filler: T) {
        if values.is_empty() {
            return;
        }
        let (start, end) = (slot * self.width, (slot + 1) * self.width);
        if self.items.len() < end {
            self.items.resize(end, filler);
        }
        if let Some(room) = self.items.get_mut(start..start + values.len()) {
            room.copy_from_slice(values);
        }
    }

    fn get(&self, slot: usize, len: usize) -> &[T] {
        let start = slot * self.width;
        self.items.get(start..start + len).unwrap_or(&[])
    }

    /// Rotates a ring of `slots` slots so that `slot` becomes the first.
    fn rotate(&mut self, slot: usize, slots: usize) {
        if let Some(&filler) = self.items.first() {
            self.items.resize(slots * self.width, filler);
            self.items.rotate_left(slot * self.width);
        }
    }
}

/// The ring of send work requests from `head` (oldest) to before `tail`.
#[derive(Debug)]
pub(crate) struct SendQueue {
    caps: QpCaps,
    /// Number of slots, a power of two, minus 1.
    mask: u32,
    head: u32,
    tail: u32,
    /// Index of the entry in the first slot.
    base: u32,
    /// Number of entries that the card itself queued; they do not count against `max_send_wr`.
    internal: u32,
    pub(super) depth: Depth,
    slots: Vec<SendWqe>,
    sges: SideArray<Sge>,
    inline: SideArray<u8>,
    dests: SideArray<UdDest>,
}

impl SendQueue {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let caps = config.caps;
        // A rendezvous READ uses a receive list and stores its FIN inline.
        let (own_sges, own_bytes) = match config.srq_max_sge {
            Some(max_sge) if config.tag_matching => (max_sge, Tmh::LEN as u32),
            _ => (0, 0),
        };
        Self {
            caps,
            mask: FIRST_SLOTS - 1,
            head: 0,
            tail: 0,
            base: 0,
            internal: 0,
            depth: Depth::default(),
            slots: Vec::new(),
            sges: SideArray::new(caps.max_send_sge.max(own_sges) as usize),
            // clause: ATOMIC-WRITE-INLINE
            inline: SideArray::new(caps.max_inline_data.max(ATOMIC_LEN).max(own_bytes) as usize),
            dests: SideArray::new(usize::from(config.service == Service::Ud)),
        }
    }

    /// Returns the index of the oldest entry; equals `tail_index` if the queue is empty.
    pub(crate) fn head_index(&self) -> u32 {
        self.head
    }

    pub(crate) fn tail_index(&self) -> u32 {
        self.tail
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn slot(&self, index: u32) -> usize {
        (index.wrapping_sub(self.base) & self.mask) as usize
    }

    #[inline]
    fn next_slot(&mut self) -> usize {
        if self.is_empty() {
            self.base = self.tail;
        } else if self.tail.wrapping_sub(self.head) > self.mask {
            self.grow();
        }
        self.slot(self.tail)
    }

    /// Doubles a full ring; the oldest entry moves to the first slot.
    #[cold]
    fn grow(&mut self) {
        let (first, slots) = (self.slot(self.head), self.slots.len());
        self.slots.rotate_left(first);
        self.sges.rotate(first, slots);
        self.inline.rotate(first, slots);
        self.dests.rotate(first, slots);
        (self.base, self.mask) = (self.head, 2 * self.mask + 1);
    }

    pub(crate) fn get(&self, index: u32) -> Option<&SendWqe> {
        let queued = index.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head);
        if queued { self.slots.get(self.slot(index)) } else { None }
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut SendWqe> {
        let queued = index.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head);
        let slot = self.slot(index);
        if queued { self.slots.get_mut(slot) } else { None }
    }

    pub(crate) fn head(&self) -> Option<&SendWqe> {
        self.get(self.head)
    }

    pub(crate) fn payload(&self, index: u32, wqe: &SendWqe) -> SendData<'_> {
        let slot = self.slot(index);
        if wqe.flags.contains(SendFlags::INLINE) {
            SendData::Inline(self.inline.get(slot, wqe.length as usize))
        } else {
            SendData::Sges(self.sges.get(slot, wqe.num_sge as usize))
        }
    }

    pub(crate) fn dest(&self, index: u32) -> Option<&UdDest> {
        self.dests.get(self.slot(index), 1).first()
    }

    /// Appends a request; only XRC uses `srqn`.
    pub(crate) fn push(&mut self, req: &SendRequest<'_>, srqn: u32) -> Result<(), PostError> {
        let length = self.check(req)?;
        let slot = self.next_slot();
        let (flags, num_sge) = match req.data {
            SendData::Sges(sges) => {
                self.sges.write_slot(slot, sges, Sge::default());
                (req.flags - SendFlags::INLINE, u32::try_from(sges.len()).unwrap_or(u32::MAX))
            }
            // clause: SEND-INLINE
            SendData::Inline(bytes) => {
                self.inline.write_slot(slot, bytes, 0);
                (req.flags | SendFlags::INLINE, 0)
            }
        };
        if let Some(dest) = req.ud.filter(|_| self.dests.width > 0) {
            self.dests.write_slot(slot, &[dest], dest);
        }
        self.write_wqe(
            slot,
            SendWqe { num_sge, srqn, ..SendWqe::new(req.wr_id, req.op, flags, length, Origin::Program) },
        );
        self.depth.record(self.tail.wrapping_sub(self.head));
        Ok(())
    }

    /// Appends a READ of the card into `sges` and stores the FIN with it. The ring has room.
    pub(crate) fn push_rendezvous(&mut self, rendezvous: &Rendezvous, sges: &[Sge]) {
        let Rendezvous { wr_id, va, rkey, len, solicited, ref fin } = *rendezvous;
        let slot = self.next_slot();
        self.sges.write_slot(slot, sges, Sge::default());
        self.inline.write_slot(slot, &fin.to_bytes(), 0);
        let op = SendOp::Read { remote_addr: va, rkey };
        let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
        let num_sge = u32::try_from(sges.len()).unwrap_or(u32::MAX);
        self.write_wqe(slot, SendWqe { num_sge, ..SendWqe::new(wr_id, op, flags, len, Origin::Rendezvous) });
        self.internal += 1;
    }

    /// Replaces the oldest entry, a READ of the card, by the FIN at the end of the queue.
    pub(crate) fn finish_rendezvous(&mut self) {
        let Some(read) = self.head().copied() else { return };
        let fin: [u8; Tmh::LEN] =
            self.inline.get(self.slot(self.head), Tmh::LEN).first_chunk().copied().unwrap_or_default();
        self.pop();
        let slot = self.next_slot();
        self.inline.write_slot(slot, &fin, 0);
        let wqe = SendWqe::new(read.wr_id, SendOp::Send, SendFlags::INLINE, Tmh::LEN as u32, Origin::Fin);
        self.write_wqe(slot, wqe);
        self.internal += 1;
    }

    fn write_wqe(&mut self, slot: usize, wqe: SendWqe) {
        // A slot exists from the second lap on; in the first lap it is appended.
        match self.slots.get_mut(slot) {
            Some(old) => *old = wqe,
            None => self.slots.push(wqe),
        }
        self.tail = self.tail.wrapping_add(1);
    }

    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = *self.head()?;
        self.drop_head();
        Some(wqe)
    }

    /// Removes the oldest entry without copying it.
    pub(crate) fn drop_head(&mut self) {
        let Some(wqe) = self.head() else { return };
        self.internal -= u32::from(wqe.origin != Origin::Program);
        self.head = self.head.wrapping_add(1);
    }

    /// Returns the free places for requests of the program.
    pub(crate) fn room(&self) -> u32 {
        self.caps.max_send_wr.saturating_sub(self.tail.wrapping_sub(self.head) - self.internal)
    }

    /// Removes the `count` newest entries, but none before the index `first_removable`.
    pub(crate) fn retract(&mut self, count: u32, first_removable: u32) {
        self.tail = self.tail.wrapping_sub(count.min(self.tail.wrapping_sub(first_removable)));
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
        self.internal = 0;
    }

    /// Checks the request against the limits of the queue and returns its message length.
    fn check(&self, req: &SendRequest<'_>) -> Result<u32, PostError> {
        if self.room() == 0 {
            return Err(PostError::QueueFull);
        }
        let length = match req.data {
            SendData::Sges(sges) if sges.len() > self.caps.max_send_sge as usize => return Err(PostError::TooManySges),
            SendData::Sges(sges) => {
                let sum: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                // clause: SEND-MAX-LENGTH
                u32::try_from(sum).ok().filter(|length| *length <= MAX_MESSAGE).ok_or(PostError::BadLength)?
            }
            SendData::Inline(bytes) => {
                let is_word = matches!(req.op, SendOp::AtomicWrite { .. });
                let max = if is_word { ATOMIC_LEN } else { self.caps.max_inline_data };
                let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= max);
                length.ok_or(PostError::InlineTooLong)?
            }
        };
        let fits = match req.op {
            // clause: ATOMIC-WRITE-LENGTH
            SendOp::AtomicWrite { .. } => length == ATOMIC_LEN,
            // clause: SEND-MAX-LENGTH
            SendOp::Flush { length: range, .. } => length == 0 && range <= MAX_MESSAGE,
            _ => true,
        };
        if fits { Ok(length) } else { Err(PostError::BadLength) }
    }
}

/// With this many requests in flight, a new one may wait for others: the program aims at
/// throughput, and acknowledgements will soon trigger the next transmission.
const MIN_IN_FLIGHT: u32 = 16;

/// A program that reached this depth once will do so again: after its first request, which causes
/// an acknowledgement, the other requests may wait. This serves programs that post the next list
/// when the previous one has completed.
const DEEP: u32 = 32;

/// Number of consecutive shallow phases after which a program no longer counts as deep.
const SHALLOW_TIMES: u8 = 4;

/// Limits of waiting requests and bytes: they fit one segmented send.
const MAX_COALESCED: u32 = 32;
const MAX_COALESCED_BYTES: u32 = 60 << 10;

/// Estimates how many requests a program keeps in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth {
    /// Maximum depth since the queue was empty.
    max: u32,
    /// Shallow phases left until the program no longer counts as deep; 0 if it does not.
    deep_times: u8,
}

impl Depth {
    /// Records the queue length after a post.
    #[inline]
    pub(crate) fn record(&mut self, count: u32) {
        if count == 1 {
            self.deep_times = if self.max >= DEEP { SHALLOW_TIMES } else { self.deep_times.saturating_sub(1) };
            self.max = 0;
        }
        self.max = self.max.max(count);
    }

    /// Returns true if the newest of `waiting` requests, of `length` bytes, may wait for more
    /// after `in_flight` started ones.
    #[inline]
    pub(crate) fn may_wait(&self, in_flight: u32, waiting: u32, length: u32) -> bool {
        let is_busy = in_flight >= MIN_IN_FLIGHT || in_flight > 0 && self.deep_times > 0;
        is_busy && waiting < MAX_COALESCED && length.saturating_mul(waiting) < MAX_COALESCED_BYTES
    }
}

/// Checks the operation against the service and attributes of the QP.
pub(super) fn check_op(sh: &Shared, req: &SendRequest<'_>) -> Result<(), PostError> {
    use SendOp::{
        AtomicWrite, BindWindow, CompareSwap, FetchAdd, Flush, LocalInvalidate, Read, Send, SendImm, SendInvalidate,
        Write, WriteImm,
    };
    let is_inline = matches!(req.data, SendData::Inline(_));
    // clause: SEND-OPERATIONS
    let possible = match (req.op, sh.config.service) {
        (_, Service::XrcTgt) => false,
        // clause: RAW-FRAME
        (op, Service::Raw) => matches!(op, Send),
        (Send | SendImm(_), _) => true,
        (Write { .. } | WriteImm { .. }, Service::Rc | Service::Uc | Service::XrcIni)
        | (SendInvalidate(_), Service::Rc | Service::XrcIni) => true,
        (LocalInvalidate(_) | BindWindow { .. }, Service::Rc | Service::Uc | Service::XrcIni) => true,
        (Read { .. } | CompareSwap { .. } | FetchAdd { .. }, Service::Rc | Service::XrcIni) => {
            !is_inline && sh.attr.max_rd_atomic > 0
        }
        // clause: NONPOSTED-PLACE
        (AtomicWrite { .. }, Service::Rc | Service::XrcIni) => sh.attr.max_rd_atomic > 0,
        (Flush { feth, .. }, Service::Rc | Service::XrcIni) => {
            !is_inline && sh.attr.max_rd_atomic > 0 && Access::of_flush(&feth).is_some()
        }
        (_, Service::Uc | Service::Ud) => false,
    };
    if !possible {
        return Err(PostError::BadOpcode);
    }
    if sh.config.service == Service::Ud && req.ud.is_none() {
        return Err(PostError::MissingDestination);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
