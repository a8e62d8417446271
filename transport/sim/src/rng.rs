//! Sources of decisions: a seeded generator, or the bytes of a fuzzer.

/// A source of decisions. 0 is always the plainest choice, so that an exhausted fuzz input ends
/// quietly.
pub trait Choices: Sized {
    /// Returns an independent second source, whose decisions do not depend on the number of
    /// decisions taken by this source.
    fn fork(&mut self) -> Self;

    /// Returns a number in `0..n`; 0 if `n` is 0.
    fn below(&mut self, n: u32) -> u32;

    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns true about `per_mille` times in a thousand.
    fn chance_per_mille(&mut self, per_mille: u32) -> bool {
        self.below(1000) >= 1000u32.saturating_sub(per_mille)
    }

    /// Returns one of `items`, which must not be empty.
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(u32::try_from(items.len()).unwrap_or(u32::MAX)) as usize]
    }
}

/// SplitMix64: every seed is good, and the numbers are the same on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[allow(clippy::should_implement_trait)]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

impl Choices for Rng {
    fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    fn below(&mut self, n: u32) -> u32 {
        // The high 32 bits of the product are uniform enough for tests and need no division.
        ((u64::from(n) * (self.next() >> 32)) >> 32) as u32
    }
}

/// Decisions read from a fuzz input; zero after its end.
#[derive(Clone, Debug)]
pub struct Script<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl<'a> Script<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, step: 1 }
    }

    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn byte(&mut self) -> u32 {
        let Some(&first) = self.bytes.first() else { return 0 };
        self.bytes = self.bytes.get(self.step..).unwrap_or_default();
        u32::from(first)
    }
}

impl Choices for Script<'_> {
    /// Splits the rest of the input: both sources use alternate bytes from here on.
    fn fork(&mut self) -> Self {
        let bytes = self.bytes.get(self.step..).unwrap_or_default();
        self.step *= 2;
        Self { bytes, step: self.step }
    }

    fn below(&mut self, n: u32) -> u32 {
        let mut value = self.byte();
        if n > 1 << 8 {
            value |= self.byte() << 8;
        }
        if n > 1 << 16 {
            value |= (self.byte() << 16) | (self.byte() << 24);
        }
        value.checked_rem(n).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_published_splitmix64() {
        // First outputs for seed 1234567, as published with the algorithm (Steele, Lea, Flood
        // 2014).
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn forks_of_a_script_share_its_bytes() {
        let mut first = Script::new(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let (mut second, mut third) = (first.fork(), first.fork());
        let firsts = [&mut first, &mut second, &mut third].map(|script| script.below(9));
        assert_eq!(firsts, [0, 1, 2]);
        let rest = [&mut first, &mut second, &mut third].map(|script| [script.below(9), script.below(9)]);
        assert_eq!(rest, [[4, 0], [3, 5], [6, 0]]);
    }

    #[test]
    fn exhausted_script_makes_plain_choices() {
        let mut script = Script::new(&[7]);
        assert_eq!(script.below(5), 2);
        assert_eq!(script.below(1000), 0);
        assert!(!script.chance_per_mille(999));
        assert!(script.is_empty());
    }
}
