//! Tag matching: the list of posted tags of a shared receive queue, which of them a message finds,
//! what becomes of a message whose first packet has arrived, and how its receive ends.
//!
//! The list is the host's, as the shared queue serves many queue pairs; the owner has the lock.
//! Receives are matched in the order they were posted. A message that finds none goes to an
//! ordinary receive, and from then on the program may hold a message that a tag it is just posting
//! should get. So tags that are posted meanwhile match nothing until the program says that it has
//! handled as many unexpected messages as there were (rdma-core, `Documentation/tag_matching.md`).
//! Touches `wr` and the headers.

use crate::cx::TagFit;
use crate::wr::{Cqe, MAX_MESSAGE, Sge, TmFlags, TmInfo, WcOpcode, WcStatus};
use roxe_wire::{RKey, Rvh, TmOp, Tmh};
use std::collections::VecDeque;

/// Unexpected messages that the program may leave unconfirmed before it is asked to synchronise:
/// cards count in 16 bits.
const MAX_UNCONFIRMED: u32 = 0x3fff;

/// A posted tag: what it matches and what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagRecv<'a> {
    /// Handed back in the completion of the message.
    pub wr_id: u64,
    /// A message with `tag & mask` equal to this matches.
    pub tag: u64,
    /// The bits that count.
    pub mask: u64,
    /// Where the message lands.
    pub sges: &'a [Sge],
}

/// Names a posted tag until it is consumed or removed. Numbers go round 2^32, so that a stale one
/// names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagHandle(pub u32);

/// Why a tag is not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagError {
    /// As many are posted as the list takes.
    Full,
    /// Its scatter list is longer than the list was made for.
    TooManySges,
}

/// One place of the list, in the order of posting; small, because matching walks over them.
#[derive(Clone, Copy, Debug)]
struct Posted {
    tag: u64,
    mask: u64,
    slot: u32,
}

/// What does not matter for matching.
#[derive(Clone, Copy, Debug)]
struct Slot {
    wr_id: u64,
    handle: TagHandle,
    sges: u32,
}

/// The posted tags of one shared receive queue.
#[derive(Debug)]
pub struct TagList {
    order: VecDeque<Posted>,
    /// The first so many of `order` match messages; those behind them wait for [`TagList::sync`].
    enabled: usize,
    slots: Vec<Slot>,
    /// `max_sge` elements per slot.
    sges: Vec<Sge>,
    free: Vec<u32>,
    max_sge: usize,
    next_handle: u32,
    /// Unexpected messages there were, and of how many of them the program says that it has handled
    /// them.
    unexpected: u32,
    confirmed: u32,
}

impl TagList {
    /// An empty list for `max_tags` tags with lists of `max_sge` elements. Posting does not
    /// allocate.
    pub fn new(max_tags: u32, max_sge: u32) -> Self {
        let (max_tags, max_sge) = (max_tags as usize, max_sge as usize);
        let slot = Slot { wr_id: 0, handle: TagHandle(0), sges: 0 };
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

    /// Tags posted.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no tag is posted.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether the program has yet to handle unexpected messages before tags that it posts match
    /// any.
    pub fn needs_sync(&self) -> bool {
        self.unexpected != self.confirmed
    }

    /// Posts a tag behind all others.
    // clause: TM-ORDER
    pub fn add(&mut self, recv: &TagRecv<'_>) -> Result<TagHandle, TagError> {
        if recv.sges.len() > self.max_sge {
            return Err(TagError::TooManySges);
        }
        let slot = self.free.pop().ok_or(TagError::Full)?;
        let handle = TagHandle(self.next_handle);
        self.next_handle = self.next_handle.wrapping_add(1);
        let at = slot as usize;
        // At most `max_sge`, which came from 32 bits.
        self.slots[at] = Slot { wr_id: recv.wr_id, handle, sges: recv.sges.len() as u32 };
        self.sges[at * self.max_sge..][..recv.sges.len()].copy_from_slice(recv.sges);
        self.order.push_back(Posted { tag: recv.tag, mask: recv.mask, slot });
        self.enable_if_synchronous();
        Ok(handle)
    }

    /// Removes a tag; whether it was still there.
    pub fn remove(&mut self, handle: TagHandle) -> bool {
        let at = self.order.iter().position(|posted| self.slots[posted.slot as usize].handle == handle);
        at.and_then(|at| self.take_out(at)).is_some()
    }

    /// The program has handled `count` unexpected messages in all, with regard to every tag posted
    /// so far.
    // clause: TM-SYNC
    pub fn sync(&mut self, count: u32) {
        self.confirmed = count;
        self.enable_if_synchronous();
    }

    /// Takes the first tag that wants a message with `tag`: its `wr_id`, and its list in `sges`.
    // clause: TM-MATCH
    pub fn take(&mut self, tag: u64, sges: &mut Vec<Sge>) -> Option<u64> {
        let at = self.order.iter().take(self.enabled).position(|posted| tag & posted.mask == posted.tag)?;
        let slot = self.take_out(at)?;
        let Slot { wr_id, sges: count, .. } = self.slots[slot as usize];
        sges.clear();
        sges.extend_from_slice(&self.sges[slot as usize * self.max_sge..][..count as usize]);
        Some(wr_id)
    }

    /// A message found no tag. Returns whether it is time that the program synchronises.
    // clause: TM-UNEXPECTED
    pub fn note_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        self.unexpected.wrapping_sub(self.confirmed) > MAX_UNCONFIRMED
    }

    /// The program will never hear of one of the unexpected messages: it broke off.
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

    /// Takes place `at` out of the order; its slot is free from now on.
    fn take_out(&mut self, at: usize) -> Option<u32> {
        let posted = self.order.remove(at)?;
        self.enabled -= usize::from(at < self.enabled);
        self.free.push(posted.slot);
        Some(posted.slot)
    }
}

/// The longest rendezvous request that the card answers itself, bytes: what the first packet holds
/// at any path MTU.
pub const MAX_RENDEZVOUS_REQUEST: u32 = 256;

/// Rendezvous that one QP has under way at most; later ones are left to the program.
pub(crate) const MAX_RENDEZVOUS: u32 = 16;

/// Data that waits in the memory of the peer for us to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    /// Work request of the matched receive.
    pub(crate) wr_id: u64,
    /// Address of the data at the peer.
    pub(crate) va: u64,
    /// Remote key of the data.
    pub(crate) rkey: RKey,
    /// Length of the data, bytes.
    pub(crate) len: u32,
    /// Whether the end of it is a solicited event.
    pub(crate) solicited: bool,
    /// What the peer is told when it is over.
    pub(crate) fin: Tmh,
}

/// What the current receive of a tag-matching queue is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TagMatch {
    /// No tagged message: a WRITE with immediate, or the queue matches no tags.
    #[default]
    Plain,
    /// A message that is not to be matched lands in an ordinary receive, header and all.
    Untagged,
    /// A message that no tag wants lands in an ordinary receive too, and the program matches it.
    Unexpected {
        /// The program should synchronise.
        asks_sync: bool,
    },
    /// The data behind the header lands in a posted tag.
    Matched(TmInfo),
    /// A posted tag wants the data that the peer keeps, and the card reads it: the message itself
    /// goes nowhere.
    Rendezvous(Rendezvous),
    /// A posted tag wants data that the peer keeps, but the card cannot read it: the posted tag
    /// gets what is behind the header, and the program reads the data.
    Incomplete(TmInfo),
}

impl TagMatch {
    /// What becomes of a message that begins with `first`, which fits `fit` into a receive of
    /// `room` bytes.
    ///
    /// `may_read`: `first` is the whole message, and the card can read data from the peer now.
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

    /// Bytes at the beginning of the message that do not land in the receive.
    // clause: TM-HEADER-SKIPPED
    pub(crate) fn skipped(&self) -> u32 {
        match self {
            Self::Plain | Self::Untagged | Self::Unexpected { .. } => 0,
            Self::Matched(_) | Self::Incomplete(_) => Tmh::LEN as u32,
            Self::Rendezvous(_) => u32::MAX,
        }
    }

    /// The completion of the receive: `cqe` is what it would be without tags.
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

/// The tag that a message which begins with `first` is matched by, if it is.
pub(crate) fn wanted_tag(first: &[u8]) -> Option<u64> {
    // clause: TM-UNTAGGED
    let (tmh, _) = Tmh::parse(first)?;
    matches!(tmh.op, TmOp::Eager | TmOp::Rendezvous).then_some(tmh.tag)
}

#[cfg(test)]
mod tests;
