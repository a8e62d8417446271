//! The send queue: a ring of work requests with their lists, inline bytes and destinations in flat
//! side arrays.
//!
//! Entries are named by a running index that wraps at 2^32; `slot` maps it into the arrays. They
//! begin with the first post that needs them and double as requests pile up, so that thousands of
//! QPs with few requests each stay small; in steady state nothing allocates. A queue that was empty
//! begins anew with its first place, which is still in the cache. Touches `wr`.

use crate::qp::features::tags::Rendezvous;
use crate::qp::shared::{PostError, QpCaps, QpConfig, Service, Shared};
use crate::wr::{ATOMIC_LEN, Access, MAX_MESSAGE, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcOpcode};
use roxe_wire::{Psn, Tmh};

/// Places that a ring begins with. With room for 64 requests from the start, a process with 10,000
/// QPs occupied 120 MB, not 43.
const FIRST_PLACES: u32 = 4;

/// Where a send work request comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The program.
    #[default]
    Program,
    /// The card, which reads the data of a rendezvous. Its inline bytes are the message to send
    /// when that is done.
    Rendezvous,
    /// The card, which tells the peer that a rendezvous is over.
    Fin,
}

/// A send work request in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Bytes of the message; those of its list for atomics, 0 for a FLUSH.
    pub(crate) length: u32,
    /// Elements of its list; none with inline data.
    num_sge: u32,
    /// PSN of its first packet; set when it starts.
    pub(crate) first_psn: Psn,
    /// PSNs that it spans; set when it starts.
    pub(crate) packets: u32,
    /// XRC: the peer's shared receive queue that it is for.
    pub(crate) srqn: u32,
    pub(crate) origin: Origin,
}

impl SendWqe {
    /// A request that has not started, with an empty list.
    const fn new(wr_id: u64, op: SendOp, flags: SendFlags, length: u32, origin: Origin) -> Self {
        Self { wr_id, op, flags, length, num_sge: 0, first_psn: Psn::new(0), packets: 0, srqn: 0, origin }
    }

    /// Whether only a response of its own completes it, and `max_rd_atomic` limits it.
    pub(crate) fn awaits_response(&self) -> bool {
        self.is_answered_as_read() || self.is_atomic()
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }

    /// Whether READ responses answer it: the others get an empty one.
    // clause: NONPOSTED-ANSWER
    pub(crate) fn is_answered_as_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Bytes that its answers bring into its list.
    pub(crate) fn lands(&self) -> u32 {
        if self.is_read() || self.is_atomic() { self.length } else { 0 }
    }

    /// Payload of the one packet of a request that [awaits a response](Self::awaits_response).
    pub(crate) fn question_len(&self) -> u32 {
        if matches!(self.op, SendOp::AtomicWrite { .. }) { self.length } else { 0 }
    }

    /// Whether it happens here and sends nothing.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. })
    }

    /// Whether the receiver is to raise a solicited event: only a SEND and a WRITE with immediate
    /// can (IBA §9.2.3).
    // clause: BTH-SOLICITED
    pub(crate) fn is_solicited(&self) -> bool {
        self.flags.contains(SendFlags::SOLICITED) && !self.awaits_response() && !matches!(self.op, SendOp::Write { .. })
    }

    /// What its completion reports as operation.
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

/// `width` items for each entry of a ring, as far as they were ever put: most queues use one kind
/// of payload.
#[derive(Debug)]
struct SideArray<T> {
    items: Vec<T>,
    width: usize,
}

impl<T: Copy> SideArray<T> {
    const fn new(width: usize) -> Self {
        Self { items: Vec::new(), width }
    }

    fn put(&mut self, slot: usize, values: &[T], filler: T) {
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

    /// In a ring of `slots` entries that of `slot` becomes the first one, and those before it the
    /// last ones.
    fn turn(&mut self, slot: usize, slots: usize) {
        if let Some(&filler) = self.items.first() {
            self.items.resize(slots * self.width, filler);
            self.items.rotate_left(slot * self.width);
        }
    }
}

/// The ring of send work requests, oldest (`head`) to newest (before `tail`).
#[derive(Debug)]
pub(crate) struct SendQueue {
    caps: QpCaps,
    /// Places that there are by now, a power of two, less one.
    mask: u32,
    head: u32,
    tail: u32,
    /// The index that has the first place.
    base: u32,
    /// Entries that are not the program's; they have places of their own.
    internal: u32,
    pub(super) depth: Depth,
    slots: Vec<SendWqe>,
    sges: SideArray<Sge>,
    inline: SideArray<u8>,
    /// Destinations of datagrams; empty on other services.
    dests: SideArray<UdDest>,
}

impl SendQueue {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let caps = config.caps;
        // What a request of the card's own needs.
        let (own_sges, own_bytes) = match config.srq_max_sge {
            Some(max_sge) if config.tag_matching => (max_sge, Tmh::LEN as u32),
            _ => (0, 0),
        };
        Self {
            caps,
            mask: FIRST_PLACES - 1,
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

    /// Index of the oldest entry; equals [`SendQueue::tail`] when there is none.
    pub(crate) fn head_index(&self) -> u32 {
        self.head
    }

    /// Index that the next entry will get.
    pub(crate) fn tail_index(&self) -> u32 {
        self.tail
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn slot(&self, index: u32) -> usize {
        (index.wrapping_sub(self.base) & self.mask) as usize
    }

    fn next_slot(&mut self) -> usize {
        if self.is_empty() {
            self.base = self.tail;
        } else if self.tail.wrapping_sub(self.head) > self.mask {
            self.grow();
        }
        self.slot(self.tail)
    }

    /// Doubles a ring whose places are all taken. The oldest entry gets the first one.
    fn grow(&mut self) {
        let (first, places) = (self.slot(self.head), self.slots.len());
        self.slots.rotate_left(first);
        self.sges.turn(first, places);
        self.inline.turn(first, places);
        self.dests.turn(first, places);
        (self.base, self.mask) = (self.head, 2 * self.mask + 1);
    }

    /// The entry `index`, if it is in the queue.
    pub(crate) fn get(&self, index: u32) -> Option<&SendWqe> {
        let queued = index.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head);
        if queued { self.slots.get(self.slot(index)) } else { None }
    }

    /// The entry `index`, if it is in the queue.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut SendWqe> {
        let queued = index.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head);
        let slot = self.slot(index);
        if queued { self.slots.get_mut(slot) } else { None }
    }

    pub(crate) fn head(&self) -> Option<&SendWqe> {
        self.get(self.head)
    }

    /// Where the bytes of entry `index` are.
    pub(crate) fn payload(&self, index: u32, wqe: &SendWqe) -> SendData<'_> {
        let slot = self.slot(index);
        if wqe.flags.contains(SendFlags::INLINE) {
            SendData::Inline(self.inline.get(slot, wqe.length as usize))
        } else {
            SendData::Sges(self.sges.get(slot, wqe.num_sge as usize))
        }
    }

    /// Destination of entry `index` of a UD queue.
    pub(crate) fn dest(&self, index: u32) -> Option<&UdDest> {
        self.dests.get(self.slot(index), 1).first()
    }

    /// Appends a request; `srqn` means something on XRC only.
    pub(crate) fn push(&mut self, req: &SendRequest<'_>, srqn: u32) -> Result<(), PostError> {
        let length = self.check(req)?;
        let slot = self.next_slot();
        let (flags, num_sge) = match req.data {
            SendData::Sges(sges) => {
                self.sges.put(slot, sges, Sge::default());
                (req.flags - SendFlags::INLINE, u32::try_from(sges.len()).unwrap_or(u32::MAX))
            }
            // clause: SEND-INLINE
            SendData::Inline(bytes) => {
                self.inline.put(slot, bytes, 0);
                (req.flags | SendFlags::INLINE, 0)
            }
        };
        if let Some(dest) = req.ud.filter(|_| self.dests.width > 0) {
            self.dests.put(slot, &[dest], dest);
        }
        self.fill(slot, SendWqe { num_sge, srqn, ..SendWqe::new(req.wr_id, req.op, flags, length, Origin::Program) });
        self.depth.note(self.tail.wrapping_sub(self.head));
        Ok(())
    }

    /// Appends a READ of the card into `sges`; the message for the end is kept beside it. There is
    /// a place for it.
    pub(crate) fn push_rendezvous(&mut self, rendezvous: &Rendezvous, sges: &[Sge]) {
        let Rendezvous { wr_id, va, rkey, len, solicited, ref fin } = *rendezvous;
        let slot = self.next_slot();
        self.sges.put(slot, sges, Sge::default());
        self.inline.put(slot, &fin.to_bytes(), 0);
        let op = SendOp::Read { remote_addr: va, rkey };
        let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
        let num_sge = u32::try_from(sges.len()).unwrap_or(u32::MAX);
        self.fill(slot, SendWqe { num_sge, ..SendWqe::new(wr_id, op, flags, len, Origin::Rendezvous) });
        self.internal += 1;
    }

    /// Removes the oldest entry, a READ of the card, and appends the message that tells the peer
    /// that it is done.
    pub(crate) fn finish_rendezvous(&mut self) {
        let Some(read) = self.head().copied() else { return };
        let fin: [u8; Tmh::LEN] =
            self.inline.get(self.slot(self.head), Tmh::LEN).first_chunk().copied().unwrap_or_default();
        self.pop();
        let slot = self.next_slot();
        self.inline.put(slot, &fin, 0);
        let wqe = SendWqe::new(read.wr_id, SendOp::Send, SendFlags::INLINE, Tmh::LEN as u32, Origin::Fin);
        self.fill(slot, wqe);
        self.internal += 1;
    }

    /// Puts the next entry into its place.
    fn fill(&mut self, slot: usize, filled: SendWqe) {
        // A place exists from the second lap on; on the first it is the next to append.
        match self.slots.get_mut(slot) {
            Some(old) => *old = filled,
            None => self.slots.push(filled),
        }
        self.tail = self.tail.wrapping_add(1);
    }

    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = *self.head()?;
        self.drop_head();
        Some(wqe)
    }

    /// Removes the oldest entry without a look at it: an entry is long to copy.
    pub(crate) fn drop_head(&mut self) {
        let Some(wqe) = self.head() else { return };
        self.internal -= u32::from(wqe.origin != Origin::Program);
        self.head = self.head.wrapping_add(1);
    }

    /// Requests that can be appended now.
    pub(crate) fn room(&self) -> u32 {
        self.caps.max_send_wr.saturating_sub(self.tail.wrapping_sub(self.head) - self.internal)
    }

    /// Removes up to `count` of the newest entries, but none before `keep`.
    pub(crate) fn take_back(&mut self, count: u32, keep: u32) {
        self.tail = self.tail.wrapping_sub(count.min(self.tail.wrapping_sub(keep)));
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
        self.internal = 0;
    }

    /// Bytes of the message, if the queue takes the request.
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
                let most = if is_word { ATOMIC_LEN } else { self.caps.max_inline_data };
                let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= most);
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

/// A request that is posted while this many are under way may wait for others to leave with: a
/// program that keeps that much under way is after throughput, and acknowledgements are sure to
/// come soon and to take along what waits.
const MIN_UNDER_WAY: u32 = 16;

/// A program that lets so many be under way at a time does so again: behind its first request,
/// which brings an acknowledgement, the others may wait. Without that 16 of every 100 messages of
/// `ib_write_bw`, which posts the next 100 when those have completed, left alone: it sent 19 times
/// for 100 messages of 64 bytes, and sends 5 times.
const DEEP: u32 = 32;

/// Times in a row that fewer were under way until the program is not believed to do that any more.
const SHALLOW_TIMES: u8 = 4;

/// As many requests, and as many bytes in messages as long as the newest, wait for each other at
/// most: they fit one segmented send.
const MAX_COALESCED: u32 = 32;
const MAX_COALESCED_BYTES: u32 = 60 << 10;

/// How many requests a program lets be under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth {
    /// The most since there were none.
    most: u32,
    /// Not 0: they were many not long ago.
    deep_times: u8,
}

impl Depth {
    /// There are so many now, after one was posted.
    #[inline]
    pub(crate) fn note(&mut self, count: u32) {
        if count == 1 {
            self.deep_times = if self.most >= DEEP { SHALLOW_TIMES } else { self.deep_times.saturating_sub(1) };
            self.most = 0;
        }
        self.most = self.most.max(count);
    }

    /// Whether the newest of `waiting` requests, with `length` bytes, may wait until there are more
    /// to send with it, behind so many that are under way.
    #[inline]
    pub(crate) fn may_wait(&self, under_way: u32, waiting: u32, length: u32) -> bool {
        let is_many = under_way >= MIN_UNDER_WAY || under_way > 0 && self.deep_times > 0;
        is_many && waiting < MAX_COALESCED && length.saturating_mul(waiting) < MAX_COALESCED_BYTES
    }
}

/// What this QP may never do, found at post time.
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
