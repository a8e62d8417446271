//! Maps and sets whose keys are identities and numbers of this process. Nobody outside chooses
//! those, so one multiplication hashes them: each event looks into a dozen of these maps. Touches
//! nothing.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by identity.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
/// A set of identities.
pub(crate) type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// The hasher of both.
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
        // 2^64 over the golden ratio: neighbours come to lie far apart.
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        // A map takes its place from the low bits, which a multiplication hardly mixes.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn numbers_that_follow_each_other_lie_apart_in_the_low_bits_and_in_the_high_ones() {
        let hash = |key: (u64, u32)| BuildHasherDefault::<IdHasher>::default().hash_one(key);
        for shift in [0, 57] {
            let places: HashSet<_> = (0..128).map(|at| (hash((at / 8, at as u32 % 8)) >> shift) & 0x7f).collect();
            // As many as 128 balls thrown at 128 places hit, about.
            assert!(places.len() > 60, "{} places, shifted by {shift}", places.len());
        }
    }
}
