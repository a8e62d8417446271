//! Tests of `tags.rs`.

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
fn first_matching_tag_in_posting_order_wins() {
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
fn tag_bits_outside_the_mask_must_be_zero() {
    let mut list = TagList::new(8, 1);
    add(&mut list, 1, 0x1ff, 0xff);
    assert_eq!(take(&mut list, 0x1ff), None);
}

#[test]
fn list_limits_hold_and_handles_are_unique() {
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
fn new_tags_wait_for_confirmation_of_unexpected_messages() {
    let mut list = TagList::new(8, 1);
    add(&mut list, 1, 7, !0);
    assert!(!list.note_unexpected() && !list.note_unexpected());
    assert!(list.needs_sync());
    add(&mut list, 2, 7, !0);
    assert_eq!(take(&mut list, 7), Some(1), "older tags still match");
    assert_eq!(take(&mut list, 7), None);
    list.sync(1);
    assert_eq!(take(&mut list, 7), None, "one more message is unconfirmed");
    list.sync(2);
    assert!(!list.needs_sync());
    assert_eq!(take(&mut list, 7), Some(2));
}

// clause: TM-BROKEN-OFF
#[test]
fn aborted_unexpected_message_needs_no_confirmation() {
    let mut list = TagList::new(8, 1);
    list.note_unexpected();
    add(&mut list, 1, 7, !0);
    assert_eq!(take(&mut list, 7), None);
    list.forget_unexpected();
    assert_eq!(take(&mut list, 7), Some(1));
}

// clause: TM-UNEXPECTED
#[test]
fn sync_is_requested_before_16_bit_overflow() {
    let mut list = TagList::new(1, 1);
    let asks = (0..0x4000).map(|_| list.note_unexpected()).position(|asks| asks);
    assert_eq!(asks, Some(0x3fff));
    list.sync(0x4000);
    assert!(!list.note_unexpected());
}

proptest! {
    /// Compares any order of operations with a plain list.
    #[test]
    fn tag_list_agrees_with_a_model(ops in prop::collection::vec((0u8..6, 0u64..4), 0..80)) {
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
