//! Values under 32-bit keys, whose bits are all drawn from the system's random source.
//!
//! A key that a peer guesses, or kept from an earlier owner, must not resolve. The low bits of a
//! key's index (its upper 24 bits) select the slot; all other bits are compared, so that a key is
//! as hard to guess in a small table as in a large one. When the table doubles, one more bit of the
//! index selects the slot, and half of the values move. A lookup is one bounds check and one
//! comparison. On the weakest legal card, keys follow from its seed.

use crate::error::Error;
use crate::random;
use crate::weakest::{Choices, Subject, Weakness, has, seed};
use std::sync::atomic::{AtomicU64, Ordering};

const FIRST_SIZE: usize = 1024;
/// The table grows when fewer slots than this are free, so that the next slot stays unpredictable.
const MIN_FREE: usize = 256;
/// The first slot, and so index 0, stays unused: programs use key 0 for "none".
const FIRST_INDEX: usize = 1;

/// Values by key.
#[derive(Debug)]
pub struct Slots<T> {
    /// The number of slots is 0 or a power of two.
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    max: usize,
    random: Random,
}

/// Aligned to a cache line, so that a lookup of a value of up to 56 bytes misses the cache once. Of
/// a million regions, most are no longer in a cache when a message uses their key.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<T> {
    /// The key of the value; without a value, the key of the last value in this slot.
    key: u32,
    value: Option<T>,
}

impl<T> Slot<T> {
    const EMPTY: Self = Self { key: 0, value: None };
}

impl<T> Slots<T> {
    /// Creates a table of at most `max` values (at most 2^24 − 1).
    pub fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max: max.min((1 << 24) - 1), random: Random::default() }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.slots.len().saturating_sub(FIRST_INDEX + self.free.len())
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores `value` under a new key. Fails with ENOMEM when the table is full.
    pub fn insert(&mut self, value: T) -> Result<u32, Error> {
        if self.len() >= self.max {
            return Err(Error::new(libc::ENOMEM, format!("the table is full: {} entries", self.max)));
        }
        self.grow();
        // The weakest legal card reuses the slot that became free last, under its last key.
        let reuse = has(Weakness::NUMBERS);
        let at = if reuse { self.free.len() - 1 } else { self.random.next()? as usize % self.free.len() };
        let index = self.free.get(at).copied().unwrap_or_default();
        let last = self.slots[index as usize].key;
        let key = if reuse && last != 0 { last } else { self.new_key(index)? };
        self.free.swap_remove(at);
        self.slots[index as usize] = Slot { key, value: Some(value) };
        Ok(key)
    }

    /// Returns a key for the slot `index`, other than its last one.
    fn new_key(&mut self, index: u32) -> Result<u32, Error> {
        let (mask, last) = (self.mask() << 8, self.slots[index as usize].key);
        loop {
            let key = self.random.next()? & !mask | index << 8;
            if key != last {
                return Ok(key);
            }
        }
    }

    /// Returns the bits of an index that select the slot.
    fn mask(&self) -> u32 {
        // No truncation: there are at most 2^24 slots.
        (self.slots.len() as u32).wrapping_sub(1)
    }

    /// Returns the slot of `key`, which exists unless the table is empty.
    #[inline]
    fn slot_index(&self, key: u32) -> usize {
        (key >> 8) as usize & self.slots.len().wrapping_sub(1)
    }

    /// Returns the value under `key`.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&T> {
        let slot = self.slots.get(self.slot_index(key))?;
        // clause: KEY-32BITS
        slot.value.as_ref().filter(|_| slot.key == key)
    }

    /// Returns the current key of the value in the slot that `key` selects, if the two differ at
    /// most in their tags.
    pub fn key_of_slot(&self, key: u32) -> Option<u32> {
        let slot = self.slots.get(self.slot_index(key))?;
        (slot.value.is_some() && slot.key >> 8 == key >> 8).then_some(slot.key)
    }

    /// Returns true if `key` was that of the last value of a slot that is empty now.
    pub fn was_last(&self, key: u32) -> bool {
        key != 0 && self.slots.get(self.slot_index(key)).is_some_and(|slot| slot.value.is_none() && slot.key == key)
    }

    /// Replaces the value under `key` by `value`, and the tag of the key by `tag`.
    pub fn retag(&mut self, key: u32, tag: u8, value: T) {
        let index = self.slot_index(key);
        if self.get(key).is_some()
            && let Some(slot) = self.slots.get_mut(index)
        {
            *slot = Slot { key: key & !0xff | u32::from(tag), value: Some(value) };
        }
    }

    /// Returns all values with their keys. Slow: visits every slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref().map(|value| (slot.key, value)))
    }

    /// Returns the value under `key`, mutable.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.get(key)?;
        let index = self.slot_index(key);
        self.slots.get_mut(index)?.value.as_mut()
    }

    /// Removes and returns the value under `key`.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let index = self.slot_index(key);
        self.get(key)?;
        let value = self.slots.get_mut(index)?.value.take();
        self.free.push(index as u32);
        value
    }

    /// Doubles the table if few slots are free and the table may grow.
    fn grow(&mut self) {
        let old = self.slots.len();
        if self.free.len() >= MIN_FREE || old > self.max {
            return;
        }
        self.slots.resize_with((old * 2).max(FIRST_SIZE), || Slot::EMPTY);
        for at in FIRST_INDEX..old {
            let index = self.slot_index(self.slots[at].key);
            if index != at {
                self.slots[index] = std::mem::replace(&mut self.slots[at], Slot::EMPTY);
            }
        }
        let is_free = |(slot, at): (&Slot<T>, u32)| slot.value.is_none().then_some(at);
        self.free = self.slots.iter().zip(0..).skip(FIRST_INDEX).filter_map(is_free).collect();
    }
}

#[derive(Debug, Default)]
struct Random {
    /// The choices of the seed, on the weakest legal card.
    chosen: Option<Choices>,
}

impl Random {
    fn choose() -> Choices {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        Choices::new(seed(), Subject::Keys, TABLES.fetch_add(1, Ordering::Relaxed))
    }

    fn next(&mut self) -> Result<u32, Error> {
        if has(Weakness::NUMBERS) {
            return Ok(self.chosen.get_or_insert_with(Self::choose).number() as u32);
        }
        let failed = |e| Error::new(libc::EIO, format!("cannot read the system's random source: {e}"));
        random::number().map(|number| number as u32).map_err(failed)
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
    fn slot_gets_another_tag() {
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
    fn stale_key_does_not_find_the_next_owner() {
        let mut slots = Slots::new(1);
        for _ in 0..1000 {
            let old = slots.insert(1).unwrap();
            assert_eq!(slots.remove(old), Some(1));
            assert_eq!(slots.remove(old), None);
            let new = slots.insert(2).unwrap();
            assert_ne!(old, new);
            slots.remove(new);
        }
    }

    #[test]
    fn full_table_refuses_and_recovers() {
        let mut slots = Slots::new(3);
        let keys: Vec<_> = (0..3).map(|i| slots.insert(i).unwrap()).collect();
        assert_eq!(slots.insert(3).unwrap_err().errno(), libc::ENOMEM);
        slots.remove(keys[1]);
        assert_eq!(slots.len(), 2);
        assert!(slots.insert(3).is_ok());
    }

    #[test]
    fn key_indices_are_unordered() {
        let mut slots = Slots::new(1 << 20);
        let indices: Vec<_> = (0..64).map(|i| slots.insert(i).unwrap() >> 8).collect();
        let ascending = indices.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(ascending < 16, "{indices:?}");
        assert!(indices.iter().all(|&index| index != 0));
    }

    #[test]
    fn key_bits_are_random_in_a_small_table() {
        const KEYS: u32 = 4096;
        let mut slots = Slots::new(1 << 20);
        let mut ones = [0u32; 32];
        for n in 0..KEYS {
            let key = slots.insert(n).unwrap();
            ones.iter_mut().enumerate().for_each(|(bit, ones)| *ones += key >> bit & 1);
            // One value at a time: the table keeps its first size.
            slots.remove(key);
        }
        assert_eq!(slots.slots.len(), FIRST_SIZE);
        // Eight standard deviations of 4096 coin tosses; one is 32.
        assert!(ones.iter().all(|ones| ones.abs_diff(KEYS / 2) < 8 * 32), "{ones:?}");
    }

    #[test]
    fn tags_of_fresh_slots_are_uniform() {
        let mut slots = Slots::new(1 << 20);
        let mut counts = [0f64; 256];
        let drawn = 1 << 16;
        (0..drawn).for_each(|n| counts[slots.insert(n).unwrap() as usize & 0xff] += 1.0);
        let expected = f64::from(drawn) / 256.0;
        let chi_squared: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        // 255 degrees of freedom: mean 255, standard deviation 22.6. One tag that is never drawn
        // and one drawn twice as often would alone add 512.
        assert!(chi_squared < 255.0 + 8.0 * 22.6, "{chi_squared}");
    }

    #[test]
    fn values_keep_their_keys_while_the_table_grows() {
        let mut slots = Slots::new(1 << 20);
        let keys: Vec<_> = (0..10_000).map(|n| slots.insert(n).unwrap()).collect();
        assert!(keys.iter().zip(0..).all(|(key, n)| slots.get(*key) == Some(&n)));
        assert_eq!((slots.len(), slots.iter().count()), (10_000, 10_000));
        assert!(keys.into_iter().zip(0..).all(|(key, n)| slots.remove(key) == Some(n)));
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn slots_behave_like_a_map() {
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
