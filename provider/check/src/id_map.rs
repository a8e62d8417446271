//! Maps and sets keyed by object ids and numbers of this process. No attacker chooses these keys,
//! and each event looks up a dozen of them, so one multiplication is hash enough.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub(crate) type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 over the golden ratio spreads consecutive keys.
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        // Hash maps index by the low bits, which a multiplication barely mixes.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn consecutive_keys_spread_over_low_and_high_bits() {
        let hash = |key: (u64, u32)| BuildHasherDefault::<IdHasher>::default().hash_one(key);
        for shift in [0, 57] {
            let places: HashSet<_> = (0..128).map(|at| (hash((at / 8, at as u32 % 8)) >> shift) & 0x7f).collect();
            // 128 random keys would hit about this many buckets.
            assert!(places.len() > 60, "{} places, shifted by {shift}", places.len());
        }
    }
}
