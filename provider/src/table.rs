//! Numbered slots: 24 bits of index, 8 bits of tag, both drawn from the system's random source.
//!
//! A key that a peer guesses or kept from an earlier owner must not resolve: indices are handed out in random order and
//! a slot never has the tag of its previous owner. Finding a slot is one bounds check and one comparison. Touches
//! nothing but the random source.

use crate::error::Error;

/// Slots made at a time when the free ones run low.
const MIN_GROWTH: usize = 1024;
/// New slots are made while fewer than this are free, so that the next index stays a matter of chance.
const MIN_FREE: usize = 256;
/// Index 0 stays unused: programs take key 0 for "none".
const FIRST_INDEX: usize = 1;

/// Values by key.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    max: usize,
    random: Random,
}

/// At the start of a cache line: a value of up to 56 bytes is then found with one access to memory. Of a million regions hardly
/// any is still in a cache when the next message names it.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<T> {
    tag: u8,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// A table that takes up to `max` values (at most 2^24 − 1).
    pub(crate) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max: max.min((1 << 24) - 1), random: Random::default() }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len().saturating_sub(FIRST_INDEX + self.free.len())
    }

    /// Stores `value` under a new key; ENOMEM when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, Error> {
        if self.len() >= self.max {
            return Err(Error::new(libc::ENOMEM, format!("the table is full: {} entries", self.max)));
        }
        self.grow();
        let random = self.random.next()?;
        let at = (random >> 8) as usize % self.free.len();
        let index = self.free.swap_remove(at);
        let slot = &mut self.slots[index as usize];
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is the part wanted")]
        let tag = random as u8;
        slot.tag = if tag == slot.tag { tag.wrapping_add(1) } else { tag };
        slot.value = Some(value);
        Ok(index << 8 | u32::from(slot.tag))
    }

    /// The value under `key`.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        let [.., tag] = key.to_be_bytes();
        let slot = self.slots.get((key >> 8) as usize)?;
        // clause: KEY-32BITS
        slot.value.as_ref().filter(|_| slot.tag == tag)
    }

    /// The key that the slot of `key` has now, whatever tag it had when `key` was made.
    pub(crate) fn key_of_slot(&self, key: u32) -> Option<u32> {
        let slot = self.slots.get((key >> 8) as usize)?;
        slot.value.is_some().then_some(key & !0xff | u32::from(slot.tag))
    }

    /// Gives the value under `key` another tag, and another value.
    pub(crate) fn retag(&mut self, key: u32, tag: u8, value: T) {
        if self.get(key).is_some()
            && let Some(slot) = self.slots.get_mut((key >> 8) as usize)
        {
            *slot = Slot { tag, value: Some(value) };
        }
    }

    /// Every value with its key. Looks at each slot there is, so this is for what is rare.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let keyed = |(slot, index): (_, u32)| {
            let Slot { tag, value }: &Slot<T> = slot;
            value.as_ref().map(|value| (index << 8 | u32::from(*tag), value))
        };
        self.slots.iter().zip(0..).filter_map(keyed)
    }

    /// The value under `key`, to change.
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.get(key)?;
        self.slots.get_mut((key >> 8) as usize)?.value.as_mut()
    }

    /// Takes the value under `key` out; the key is dead from now on.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        self.get(key)?;
        let index = key >> 8;
        let value = self.slots.get_mut(index as usize)?.value.take();
        self.free.push(index);
        value
    }

    /// Makes new slots if free ones run low and there may be more.
    fn grow(&mut self) {
        let end = self.max + FIRST_INDEX;
        if self.free.len() >= MIN_FREE || self.slots.len() >= end {
            return;
        }
        let len = (self.slots.len() + MIN_GROWTH.max(self.slots.len() / 2)).min(end);
        let first = self.slots.len().max(FIRST_INDEX);
        self.slots.resize_with(len, || Slot { tag: 0, value: None });
        self.free.extend((first..len).map(|index| index as u32));
    }
}

/// Numbers of the system's random source, fetched a block at a time because each fetch is a system call.
#[derive(Debug, Default)]
struct Random {
    block: Vec<u32>,
}

impl Random {
    fn next(&mut self) -> Result<u32, Error> {
        if self.block.is_empty() {
            let mut bytes = [0; 256];
            getrandom::fill(&mut bytes)
                .map_err(|e| Error::new(libc::EIO, format!("cannot read the system's random source: {e}")))?;
            self.block.extend(bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_ne_bytes(*chunk)));
        }
        Ok(self.block.pop().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn values_are_found_under_their_keys_only() {
        let mut slots = Slots::new(100);
        let key = slots.insert('a').unwrap();
        assert_eq!(slots.get(key), Some(&'a'));
        assert_eq!(slots.get(key ^ 1), None);
        assert_eq!(slots.get(key ^ 0x8000_0000), None);
        assert_eq!(slots.get(0), None);
        assert_eq!(slots.get(u32::MAX), None);
    }

    #[test]
    fn all_values_are_listed_with_their_keys() {
        let mut slots = Slots::new(10);
        let keys: Vec<_> = (0..3).map(|i| slots.insert(i).unwrap()).collect();
        slots.remove(keys[1]);
        let mut listed: Vec<_> = slots.iter().map(|(key, value)| (*value, key)).collect();
        listed.sort_unstable();
        assert_eq!(listed, [(0, keys[0]), (2, keys[2])]);
    }

    #[test]
    fn a_slot_can_get_another_tag() {
        let mut slots = Slots::new(2);
        let old = slots.insert('a').unwrap();
        let [.., tag] = old.wrapping_add(1).to_be_bytes();
        slots.retag(old, tag, 'b');
        slots.retag(old, tag, 'c');
        let new = slots.key_of_slot(old).unwrap();
        assert_eq!((slots.get(old), slots.get(new), new), (None, Some(&'b'), old & !0xff | u32::from(tag)));
        slots.remove(new);
        assert_eq!(slots.key_of_slot(old), None);
    }

    // clause: KEY-32BITS
    #[test]
    fn a_stale_key_never_finds_the_next_owner() {
        let mut slots = Slots::new(1);
        for _ in 0..1000 {
            let old = slots.insert(1).unwrap();
            assert_eq!(slots.remove(old), Some(1));
            assert_eq!(slots.remove(old), None);
            let new = slots.insert(2).unwrap();
            assert_ne!(old, new);
            assert_eq!(old >> 8, new >> 8);
            slots.remove(new);
        }
    }

    #[test]
    fn a_full_table_says_so_and_recovers() {
        let mut slots = Slots::new(3);
        let keys: Vec<_> = (0..3).map(|i| slots.insert(i).unwrap()).collect();
        assert_eq!(slots.insert(3).unwrap_err().errno(), libc::ENOMEM);
        slots.remove(keys[1]);
        assert_eq!(slots.len(), 2);
        assert!(slots.insert(3).is_ok());
    }

    #[test]
    fn indices_come_in_no_order() {
        let mut slots = Slots::new(1 << 20);
        let indices: Vec<_> = (0..64).map(|i| slots.insert(i).unwrap() >> 8).collect();
        let ascending = indices.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(ascending < 16, "{indices:?}");
        assert!(indices.iter().all(|&index| index != 0));
    }

    #[test]
    fn behaves_like_a_map() {
        let (mut slots, mut model, mut dead) = (Slots::new(5000), HashMap::new(), HashSet::new());
        for i in 0..20_000u32 {
            if i % 3 == 2 {
                let key = *model.keys().next().unwrap();
                assert_eq!(slots.remove(key), model.remove(&key));
                dead.insert(key);
            } else if let Ok(key) = slots.insert(i) {
                assert_eq!(model.insert(key, i), None);
                dead.remove(&key);
            }
        }
        assert_eq!(slots.len(), model.len());
        assert!(model.iter().all(|(key, value)| slots.get(*key) == Some(value)));
        assert!(dead.iter().all(|key| slots.get(*key).is_none()));
    }
}
