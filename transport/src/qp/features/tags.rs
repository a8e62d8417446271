//! Tag matching: the posted tags of a shared receive queue, how a message matches, and how its
//! receive completes.
//!
//! The host owns the list, because several queue pairs share it. Receives match in posting order. A
//! message without a match is placed in an ordinary receive; it may belong to a tag that the
//! program is just posting. New tags therefore match nothing until the program has confirmed all
//! unexpected messages (rdma-core, `Documentation/tag_matching.md`).

use crate::cx::TagFit;
use crate::wr::{Cqe, MAX_MESSAGE, Sge, TmFlags, TmInfo, WcOpcode, WcStatus};
use roxe_wire::{RKey, Rvh, TmOp, Tmh};
use std::collections::VecDeque;

/// Maximum number of unconfirmed unexpected messages before the program is requested to
/// synchronise: cards count in 16 bits.
const MAX_UNCONFIRMED: u32 = 0x3fff;

/// A tag to post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagRecv<'a> {
    /// Returned in the completion of the message.
    pub wr_id: u64,
    /// A message matches if its `tag & mask` equals this.
    pub tag: u64,
    /// Significant bits.
    pub mask: u64,
    /// Destination of the message.
    pub sges: &'a [Sge],
}

/// Identifier of a posted tag until it is consumed or removed. Handles are reused after 2^32 tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagHandle(pub u32);

/// Reason why a tag was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagError {
    /// The list is full.
    Full,
    /// The scatter list has too many elements.
    TooManySges,
}

/// The matching part of a posted tag; small, because matching scans these.
#[derive(Clone, Copy, Debug)]
struct Posted {
    tag: u64,
    mask: u64,
    slot: u32,
}

#[derive(Clone, Copy, Debug)]
struct TagSlot {
    wr_id: u64,
    handle: TagHandle,
    num_sge: u32,
}

/// The posted tags of one shared receive queue.
#[derive(Debug)]
pub struct TagList {
    order: VecDeque<Posted>,
    /// Number of entries of `order` that match messages; the others wait for [`TagList::sync`].
    enabled: usize,
    slots: Vec<TagSlot>,
    sges: Vec<Sge>,
    free: Vec<u32>,
    max_sge: usize,
    next_handle: u32,
    /// Number of unexpected messages.
    unexpected: u32,
    /// Number of unexpected messages that the program has confirmed.
    confirmed: u32,
}

impl TagList {
    /// Creates an empty list for `max_tags` tags with lists of `max_sge` elements. Posting does not
    /// allocate.
    pub fn new(max_tags: u32, max_sge: u32) -> Self {
        let (max_tags, max_sge) = (max_tags as usize, max_sge as usize);
        let slot = TagSlot { wr_id: 0, handle: TagHandle(0), num_sge: 0 };
        Self {
            order: VecDeque::with_capacity(max_tags),
            enabled: 0,
            slots: vec![slot; max_tags],
            sges: vec![Sge::default(); max_tags * max_sge],
            free: (0..).take(max_tags).collect(),
            max_sge,
            next_handle: 0,
            unexpected: 0,
            confirmed: 0,
        }
    }

    /// Returns the number of posted tags.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if no tag is posted.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns true if the program must confirm unexpected messages before new tags match.
    pub fn needs_sync(&self) -> bool {
        self.unexpected != self.confirmed
    }

    /// Posts a tag after all others.
    // clause: TM-ORDER
    pub fn add(&mut self, recv: &TagRecv<'_>) -> Result<TagHandle, TagError> {
        if recv.sges.len() > self.max_sge {
            return Err(TagError::TooManySges);
        }
        let slot = self.free.pop().ok_or(TagError::Full)?;
        let handle = TagHandle(self.next_handle);
        self.next_handle = self.next_handle.wrapping_add(1);
        let at = slot as usize;
        // The length is at most `max_sge`, a `u32`.
        self.slots[at] = TagSlot { wr_id: recv.wr_id, handle, num_sge: recv.sges.len() as u32 };
        self.sges[at * self.max_sge..][..recv.sges.len()].copy_from_slice(recv.sges);
        self.order.push_back(Posted { tag: recv.tag, mask: recv.mask, slot });
        self.enable_if_synchronous();
        Ok(handle)
    }

    /// Removes a tag. Returns false if it was not posted any more.
    pub fn remove(&mut self, handle: TagHandle) -> bool {
        let at = self.order.iter().position(|posted| self.slots[posted.slot as usize].handle == handle);
        at.and_then(|at| self.take_out(at)).is_some()
    }

    /// Confirms `count` unexpected messages in total, with regard to every tag posted so far.
    // clause: TM-SYNC
    pub fn sync(&mut self, count: u32) {
        self.confirmed = count;
        self.enable_if_synchronous();
    }

    /// Takes the first tag that matches `tag`: returns its `wr_id` and writes its list to `sges`.
    // clause: TM-MATCH
    pub fn take(&mut self, tag: u64, sges: &mut Vec<Sge>) -> Option<u64> {
        let at = self.order.iter().take(self.enabled).position(|posted| tag & posted.mask == posted.tag)?;
        let slot = self.take_out(at)?;
        let TagSlot { wr_id, num_sge, .. } = self.slots[slot as usize];
        sges.clear();
        sges.extend_from_slice(&self.sges[slot as usize * self.max_sge..][..num_sge as usize]);
        Some(wr_id)
    }

    /// Counts an unexpected message. Returns true if the program should synchronise.
    // clause: TM-UNEXPECTED
    pub fn note_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        self.unexpected.wrapping_sub(self.confirmed) > MAX_UNCONFIRMED
    }

    /// Stops counting an unexpected message that was aborted before its completion.
    // clause: TM-BROKEN-OFF
    pub fn forget_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_sub(1);
        self.enable_if_synchronous();
    }

    fn enable_if_synchronous(&mut self) {
        if !self.needs_sync() {
            self.enabled = self.order.len();
        }
    }

    /// Removes entry `at` of the order and frees its slot.
    fn take_out(&mut self, at: usize) -> Option<u32> {
        let posted = self.order.remove(at)?;
        self.enabled -= usize::from(at < self.enabled);
        self.free.push(posted.slot);
        Some(posted.slot)
    }
}

/// Maximum size in bytes of a rendezvous request that the card serves itself: the payload of one
/// packet at any path MTU.
pub const MAX_RENDEZVOUS_REQUEST: u32 = 256;

/// Maximum number of rendezvous of one QP; the program handles further ones.
pub(crate) const MAX_RENDEZVOUS: u32 = 16;

/// Data in the memory of the peer for the card to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    pub(crate) wr_id: u64,
    pub(crate) va: u64,
    pub(crate) rkey: RKey,
    pub(crate) len: u32,
    /// True if the final completion is a solicited event.
    pub(crate) solicited: bool,
    pub(crate) fin: Tmh,
}

/// Use of the current receive of a tag-matching queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TagMatch {
    /// A WRITE with immediate, or the queue matches no tags.
    #[default]
    Plain,
    /// A message without a tag is placed in an ordinary receive, with its header.
    Untagged,
    /// A message without a match is placed in an ordinary receive, and the program matches it.
    Unexpected {
        /// True if the program should synchronise.
        asks_sync: bool,
    },
    /// The data after the header is placed in a posted tag.
    Matched(TmInfo),
    /// A rendezvous message matched, and the card reads the data; the message itself is dropped.
    Rendezvous(Rendezvous),
    /// A rendezvous message matched, but the card cannot read the data: the posted tag gets the
    /// bytes after the header, and the program reads the data.
    Incomplete(TmInfo),
}

impl TagMatch {
    /// Returns the use of a receive of `room` bytes for a message that begins with `first`,
    /// according to `fit`. `may_read` is true if `first` is the whole message and the card can READ
    /// from the peer now.
    pub(crate) fn of(first: &[u8], fit: TagFit, room: u64, may_read: bool) -> Self {
        let header = Tmh::parse(first);
        match (fit, header) {
            (TagFit::Unexpected { asks_sync }, _) => Self::Unexpected { asks_sync },
            (TagFit::Matched, Some((tmh, rest))) => Self::matched(tmh, rest, room, may_read),
            _ => Self::Untagged,
        }
    }

    fn matched(tmh: Tmh, rest: &[u8], room: u64, may_read: bool) -> Self {
        let info = TmInfo { tag: tmh.tag, app_ctx: tmh.app_ctx, flags: TmFlags::MATCH | TmFlags::DATA_VALID };
        if tmh.op != TmOp::Rendezvous {
            return Self::Matched(info);
        }
        let fits = |rvh: &Rvh| u64::from(rvh.len) <= room && rvh.len <= MAX_MESSAGE;
        // clause: TM-RENDEZVOUS-SOFTWARE
        let is_short = rest.len() + Tmh::LEN <= MAX_RENDEZVOUS_REQUEST as usize;
        match Rvh::parse(rest).filter(|rvh| may_read && is_short && fits(rvh)) {
            Some(Rvh { va, rkey, len }) => {
                let fin = Tmh { op: TmOp::Fin, ..tmh };
                Self::Rendezvous(Rendezvous { wr_id: 0, va, rkey, len, solicited: false, fin })
            }
            None => Self::Incomplete(info),
        }
    }

    /// Returns the bytes at the start of the message that are not placed in the receive.
    // clause: TM-HEADER-SKIPPED
    pub(crate) fn skipped(&self) -> u32 {
        match self {
            Self::Plain | Self::Untagged | Self::Unexpected { .. } => 0,
            Self::Matched(_) | Self::Incomplete(_) => Tmh::LEN as u32,
            Self::Rendezvous(_) => u32::MAX,
        }
    }

    /// Adds the tag matching part to the completion `cqe`.
    // clause: TM-COMPLETION
    pub(crate) fn stamp(&self, cqe: Cqe) -> Cqe {
        let (opcode, tm) = match *self {
            Self::Plain => return cqe,
            Self::Untagged => (WcOpcode::TmNoTag, TmInfo::default()),
            Self::Unexpected { asks_sync } => {
                let flags = if asks_sync { TmFlags::SYNC_REQ } else { TmFlags::empty() };
                (WcOpcode::TmRecv, TmInfo { flags, ..TmInfo::default() })
            }
            Self::Matched(info) | Self::Incomplete(info) => (WcOpcode::TmRecv, info),
            Self::Rendezvous(Rendezvous { fin, .. }) => {
                (WcOpcode::TmRecv, TmInfo { tag: fin.tag, app_ctx: fin.app_ctx, flags: TmFlags::MATCH })
            }
        };
        match (self, cqe.status) {
            (Self::Incomplete(_), WcStatus::Success) => Cqe { opcode, tm, status: WcStatus::TmRndvIncomplete, ..cqe },
            (_, WcStatus::Success) => Cqe { opcode, tm, ..cqe },
            _ => Cqe { opcode, ..cqe },
        }
    }
}

/// Returns the tag of a message that begins with `first`, if it is matched by tag.
pub(crate) fn wanted_tag(first: &[u8]) -> Option<u64> {
    // clause: TM-UNTAGGED
    let (tmh, _) = Tmh::parse(first)?;
    matches!(tmh.op, TmOp::Eager | TmOp::Rendezvous).then_some(tmh.tag)
}

#[cfg(test)]
mod tests;
