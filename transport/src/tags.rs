//! Tag matching: the list of posted tags of a shared receive queue, and which of them a message finds.
//!
//! Receives are matched in the order they were posted. A message that finds none goes to an ordinary receive, and from then
//! on the program may hold a message that a tag it is just posting should get. So tags that are posted meanwhile match
//! nothing until the program says that it has handled as many unexpected messages as there were
//! (rdma-core, `Documentation/tag_matching.md`). Pure data: the owner of the list has the lock.

use crate::wr::Sge;
use std::collections::VecDeque;

/// Unexpected messages that the program may leave unconfirmed before it is asked to synchronise: cards count in 16 bits.
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

/// Names a posted tag until it is consumed or removed. Numbers go round 2^32, so that a stale one names nothing.
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
    /// Unexpected messages there were, and of how many of them the program says that it has handled them.
    unexpected: u32,
    confirmed: u32,
}

impl TagList {
    /// An empty list for `max_tags` tags with lists of `max_sge` elements. Posting does not allocate.
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

    /// Whether the program has yet to handle unexpected messages before tags that it posts match any.
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

    /// The program has handled `count` unexpected messages in all, with regard to every tag posted so far.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use roxe_wire::LKey;

    fn add(list: &mut TagList, wr_id: u64, tag: u64, mask: u64) -> TagHandle {
        let sges = [Sge { addr: wr_id, length: 8, lkey: LKey(1) }];
        list.add(&TagRecv { wr_id, tag, mask, sges: &sges }).expect("room")
    }

    fn take(list: &mut TagList, tag: u64) -> Option<u64> {
        let mut sges = vec![Sge::default(); 3];
        let found = list.take(tag, &mut sges);
        if let Some(wr_id) = found {
            assert_eq!(sges, [Sge { addr: wr_id, length: 8, lkey: LKey(1) }]);
        }
        found
    }

    // clause: TM-MATCH, TM-ORDER
    #[test]
    fn the_first_posted_tag_that_wants_the_message_gets_it() {
        let mut list = TagList::new(8, 1);
        for (wr_id, tag, mask) in [(1, 5, !0), (2, 0x10, 0xf0), (3, 0x15, !0), (4, 0, 0), (5, 5, !0)] {
            add(&mut list, wr_id, tag, mask);
        }
        for (tag, wr_id) in [(0x15, Some(2)), (5, Some(1)), (5, Some(4)), (0x15, Some(3)), (5, Some(5)), (5, None)] {
            assert_eq!(take(&mut list, tag), wr_id, "tag {tag:#x}");
        }
        assert!(list.is_empty());
    }

    // clause: TM-MATCH
    #[test]
    fn bits_that_do_not_count_must_be_zero_in_the_posted_tag() {
        let mut list = TagList::new(8, 1);
        add(&mut list, 1, 0x1ff, 0xff);
        assert_eq!(take(&mut list, 0x1ff), None);
    }

    #[test]
    fn both_limits_hold_and_handles_are_not_used_again() {
        let mut list = TagList::new(2, 1);
        let (a, b) = (add(&mut list, 1, 1, !0), add(&mut list, 2, 2, !0));
        assert_eq!(list.add(&TagRecv::default()), Err(TagError::Full));
        assert_eq!(list.add(&TagRecv { sges: &[Sge::default(); 2], ..TagRecv::default() }), Err(TagError::TooManySges));
        assert!(list.remove(a) && !list.remove(a));
        let c = add(&mut list, 3, 3, !0);
        assert!(c != a && c != b && !list.remove(a));
        assert_eq!(take(&mut list, 2), Some(2));
        assert!(!list.remove(b), "it was consumed");
        assert_eq!(list.len(), 1);
    }

    // clause: TM-SYNC, TM-UNEXPECTED
    #[test]
    fn tags_posted_behind_an_unexpected_message_wait_until_it_is_handled() {
        let mut list = TagList::new(8, 1);
        add(&mut list, 1, 7, !0);
        assert!(!list.note_unexpected() && !list.note_unexpected());
        assert!(list.needs_sync());
        add(&mut list, 2, 7, !0);
        assert_eq!(take(&mut list, 7), Some(1), "older tags go on matching");
        assert_eq!(take(&mut list, 7), None);
        list.sync(1);
        assert_eq!(take(&mut list, 7), None, "one message more is not handled");
        list.sync(2);
        assert!(!list.needs_sync());
        assert_eq!(take(&mut list, 7), Some(2));
    }

    // clause: TM-BROKEN-OFF
    #[test]
    fn a_message_that_broke_off_is_not_waited_for() {
        let mut list = TagList::new(8, 1);
        list.note_unexpected();
        add(&mut list, 1, 7, !0);
        assert_eq!(take(&mut list, 7), None);
        list.forget_unexpected();
        assert_eq!(take(&mut list, 7), Some(1));
    }

    // clause: TM-UNEXPECTED
    #[test]
    fn the_program_is_asked_to_synchronise_before_a_card_would_lose_count() {
        let mut list = TagList::new(1, 1);
        let asks = (0..0x4000).map(|_| list.note_unexpected()).position(|asks| asks);
        assert_eq!(asks, Some(0x3fff));
        list.sync(0x4000);
        assert!(!list.note_unexpected());
    }

    proptest! {
        /// Any order of operations, against a plain list that is searched.
        #[test]
        fn it_agrees_with_a_plain_list(ops in prop::collection::vec((0u8..6, 0u64..4), 0..80)) {
            let mut list = TagList::new(6, 1);
            // (wr_id, tag, handle, enabled)
            let mut model: Vec<(u64, u64, TagHandle, bool)> = vec![];
            let (mut unexpected, mut confirmed) = (0u32, 0u32);
            for (id, (op, tag)) in (1u64..).zip(ops) {
                match op {
                    0 | 1 => {
                        let sges = [Sge { addr: id, length: 8, lkey: LKey(1) }];
                        match list.add(&TagRecv { wr_id: id, tag, mask: 3, sges: &sges }) {
                            Ok(handle) => model.push((id, tag, handle, false)),
                            Err(error) => prop_assert!(error == TagError::Full && model.len() == 6),
                        }
                    }
                    2 | 3 => {
                        let at = model.iter().position(|entry| entry.3 && entry.1 == tag);
                        let found = take(&mut list, tag);
                        prop_assert_eq!(found, at.map(|at| model.remove(at).0));
                        if found.is_none() {
                            unexpected += 1;
                            list.note_unexpected();
                        }
                    }
                    4 => {
                        let at = usize::try_from(tag).unwrap_or(0);
                        let handle = model.get(at).map_or(TagHandle(9999), |entry| entry.2);
                        prop_assert_eq!(list.remove(handle), at < model.len());
                        model.retain(|entry| entry.2 != handle);
                    }
                    _ => {
                        confirmed = unexpected - u32::from(tag == 0 && unexpected > 0);
                        list.sync(confirmed);
                    }
                }
                if unexpected == confirmed {
                    model.iter_mut().for_each(|entry| entry.3 = true);
                }
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }
}
