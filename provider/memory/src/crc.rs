//! CRC-32 of packets, with carry-less multiplications of up to 512 bits where the processor has
//! them. Unsafe code: loads of several bytes at a time.
//!
//! Method: V. Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction. It is faster than crc32fast for short and long packets. For headers it is faster
//! than table lookups, and needs no tables in the cache.
//!
//! ARMv8 has instructions for this CRC. Long inputs use crc32fast, which runs three chains of them;
//! short inputs use one chain.

#[cfg(target_arch = "aarch64")]
pub use aarch64::Folding;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use roxe_wire::icrc::Tables as Folding;
#[cfg(target_arch = "x86_64")]
pub use x86::Folding;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86::{FOLD, can_fold};

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use roxe_wire::icrc::{Crc, Tables};
    use std::arch::aarch64::{__crc32b, __crc32d};

    /// Length in bytes from which three chains of instructions are faster than one.
    const MIN_CHAINED_LEN: usize = 256;

    /// Uses the CRC instructions where the processor has them.
    #[derive(Clone, Copy, Debug)]
    pub struct Folding;

    impl Crc for Folding {
        #[inline]
        fn update(register: u32, bytes: &[u8]) -> u32 {
            if bytes.len() >= MIN_CHAINED_LEN || !std::arch::is_aarch64_feature_detected!("crc") {
                return Tables::update(register, bytes);
            }
            // SAFETY: the processor has the instructions that the function is compiled for.
            unsafe { chain(register, bytes) }
        }

        #[inline]
        fn update_after(lane: u128, bytes: &[u8]) -> u32 {
            Self::update(Self::update(0, &lane.to_le_bytes()), bytes)
        }

        fn shift_after(lane: u128, bytes: &[u8], blocks: u8) -> Option<u32> {
            Tables::shift_after(lane, bytes, blocks)
        }
    }

    #[target_feature(enable = "crc")]
    fn chain(register: u32, bytes: &[u8]) -> u32 {
        let (words, bytes) = bytes.as_chunks();
        let register = words.iter().fold(register, |register, word| __crc32d(register, u64::from_le_bytes(*word)));
        bytes.iter().fold(register, |register, byte| __crc32b(register, *byte))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use roxe_wire::icrc::{BLOCK_LEN, Crc, Tables, power_of_x};
    use std::arch::x86_64::{
        __m128i, __m512i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_set_epi64x,
        _mm_srli_si128, _mm_xor_si128, _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
        _mm512_loadu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
    };

    /// Size of a lane in bytes, 128 bits.
    const LANE: usize = 16;

    /// The multipliers: pairs that shift the halves of 128 bits by 2048, 1024, 512, 384, 256 and
    /// 128 bits; the multiplier that reduces 64 bits; the polynomial with its reciprocal; a mask.
    pub(crate) static FOLD: [[u64; 2]; 9] = [
        shift_by(2048),
        shift_by(1024),
        shift_by(512),
        shift_by(384),
        shift_by(256),
        shift_by(128),
        [reflected_power(64), 0],
        [0x1_db71_0641, 0x1_f701_1641],
        [0xffff_ffff, 0],
    ];

    const fn shift_by(bits: u32) -> [u64; 2] {
        [reflected_power(bits + 32), reflected_power(bits - 32)]
    }

    /// Returns x^`n`, shifted by one bit, as carry-less multiplication of reflected operands
    /// requires.
    const fn reflected_power(n: u32) -> u64 {
        (power_of_x(n) as u64) << 1
    }

    /// Returns true if the processor multiplies 512 bits at once.
    #[inline]
    pub(crate) fn can_fold() -> bool {
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vpclmulqdq")
    }

    /// The multipliers that shift by 0 to 16 blocks.
    static BLOCKS: [[u64; 2]; 17] = blocks();

    const fn blocks() -> [[u64; 2]; 17] {
        let mut pairs = [[0; 2]; 17];
        let mut count = 1;
        while count < pairs.len() {
            pairs[count] = shift_by(8 * BLOCK_LEN as u32 * count as u32);
            count += 1;
        }
        pairs
    }

    /// Uses carry-less multiplications where the processor has them.
    #[derive(Clone, Copy, Debug)]
    pub struct Folding;

    impl Crc for Folding {
        fn update(register: u32, bytes: &[u8]) -> u32 {
            match bytes.split_first_chunk() {
                Some((first, rest)) => Self::update_after(u128::from_le_bytes(*first) ^ u128::from(register), rest),
                None => Tables::update(register, bytes),
            }
        }

        #[inline]
        fn update_after(lane: u128, bytes: &[u8]) -> u32 {
            if !std::is_x86_feature_detected!("pclmulqdq") {
                return Tables::update_after(lane, bytes);
            }
            // SAFETY: the processor has the instructions that the function is compiled for.
            unsafe { update_after(lane, bytes) }
        }

        #[inline]
        fn shift_after(lane: u128, bytes: &[u8], blocks: u8) -> Option<u32> {
            if !std::is_x86_feature_detected!("pclmulqdq") {
                return Tables::shift_after(lane, bytes, blocks);
            }
            // SAFETY: the processor has the instructions that the function is compiled for.
            unsafe { shift_after(lane, bytes, blocks) }
        }
    }

    #[target_feature(enable = "pclmulqdq")]
    fn update_after(lane: u128, bytes: &[u8]) -> u32 {
        let (short, long) = bytes.split_at(bytes.len() % BLOCK_LEN);
        let sum = after(lane, short);
        let (blocks, _) = long.as_chunks();
        if blocks.is_empty() {
            reduce_lane(sum)
        } else if can_fold() {
            // SAFETY: the processor has the instructions that the function is compiled for.
            unsafe { fold(sum, blocks) }
        } else {
            Tables::update(reduce_lane(sum), long)
        }
    }

    #[target_feature(enable = "pclmulqdq")]
    fn shift_after(lane: u128, bytes: &[u8], blocks: u8) -> Option<u32> {
        let by = BLOCKS.get(usize::from(blocks))?;
        let sum = after(lane, bytes);
        Some(reduce_lane(if blocks == 0 { sum } else { shifted_128(sum, lane_of(*by)) }))
    }

    /// Returns a lane that is equal, modulo the polynomial, to `lane` followed by `bytes`.
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn after(lane: u128, bytes: &[u8]) -> __m128i {
        let (odd, rest) = bytes.split_at(bytes.len() % LANE);
        let (lanes, _) = rest.as_chunks();
        let (start, by) = (if odd.is_empty() { load_number(lane) } else { after_odd(lane, odd) }, pair(5));
        lanes.iter().fold(start, |sum, lane| _mm_xor_si128(shifted_128(sum, by), load_lane(lane)))
    }

    /// Like [`after`], for 1 to 15 bytes.
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn after_odd(lane: u128, odd: &[u8]) -> __m128i {
        let (words, bytes) = odd.as_chunks::<4>();
        let (mut end, mut bits) = (0, 0);
        for word in words {
            end |= u128::from(u32::from_le_bytes(*word)) << bits;
            bits += 32;
        }
        for byte in bytes {
            end |= u128::from(*byte) << bits;
            bits += 8;
        }
        // `lane` and `odd` as two lanes, with zero bytes in front.
        let [first, second] = [lane << (128 - bits), lane >> bits | end << (128 - bits)];
        _mm_xor_si128(shifted_128(load_number(first), pair(5)), load_number(second))
    }

    /// Returns the register after `lane` and `blocks`.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(lane: __m128i, blocks: &[[u8; BLOCK_LEN]]) -> u32 {
        let Some((first, rest)) = blocks.split_first() else { return reduce_lane(lane) };
        let mut a = _mm512_xor_si512(load(first, 0), _mm512_zextsi128_si512(shifted_128(lane, pair(5))));
        let (mut b, mut c, mut d) = (load(first, 1), load(first, 2), load(first, 3));
        let by = _mm512_broadcast_i32x4(pair(0));
        for block in rest {
            a = shifted_and_added(a, by, load(block, 0));
            b = shifted_and_added(b, by, load(block, 1));
            c = shifted_and_added(c, by, load(block, 2));
            d = shifted_and_added(d, by, load(block, 3));
        }
        let by = _mm512_broadcast_i32x4(pair(1));
        let (c, d) = (shifted_and_added(a, by, c), shifted_and_added(b, by, d));
        reduce(shifted_and_added(c, _mm512_broadcast_i32x4(pair(2)), d))
    }

    /// Reduces 512 bits modulo the polynomial.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn reduce(bits: __m512i) -> u32 {
        let [a, b, c, d] = [
            _mm512_extracti32x4_epi32::<0>(bits),
            _mm512_extracti32x4_epi32::<1>(bits),
            _mm512_extracti32x4_epi32::<2>(bits),
            _mm512_extracti32x4_epi32::<3>(bits),
        ];
        let sum =
            _mm_xor_si128(_mm_xor_si128(shifted_128(a, pair(3)), shifted_128(b, pair(4))), shifted_128(c, pair(5)));
        let sum = _mm_xor_si128(sum, d);
        reduce_lane(sum)
    }

    /// Reduces 128 bits to 96, 64 and, by Barrett's method, 32.
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn reduce_lane(sum: __m128i) -> u32 {
        let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(sum, pair(5)), _mm_srli_si128::<8>(sum));
        let low = _mm_and_si128(sum, pair(8));
        let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(low, pair(6)), _mm_srli_si128::<4>(sum));
        let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(sum, pair(8)), pair(7));
        let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, pair(8)), pair(7));
        _mm_cvtsi128_si32(_mm_srli_si128::<4>(_mm_xor_si128(sum, product))).cast_unsigned()
    }

    /// Shifts every 128 of `bits` by the multiplier `by`, and adds `next`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn shifted_and_added(bits: __m512i, by: __m512i, next: __m512i) -> __m512i {
        let (low, high) = (_mm512_clmulepi64_epi128::<0x00>(bits, by), _mm512_clmulepi64_epi128::<0x11>(bits, by));
        _mm512_ternarylogic_epi64::<0x96>(low, high, next)
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn shifted_128(bits: __m128i, by: __m128i) -> __m128i {
        _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(bits, by), _mm_clmulepi64_si128::<0x11>(bits, by))
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn pair(index: usize) -> __m128i {
        lane_of(FOLD[index])
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn load_number(lane: u128) -> __m128i {
        lane_of([lane as u64, (lane >> 64) as u64])
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn lane_of([low, high]: [u64; 2]) -> __m128i {
        _mm_set_epi64x(high.cast_signed(), low.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn load_lane(lane: &[u8; LANE]) -> __m128i {
        // SAFETY: a lane has the 16 bytes that are loaded, from any address.
        unsafe { _mm_loadu_si128(lane.as_ptr().cast()) }
    }

    /// Loads the `index`-th quarter of a block.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn load(block: &[u8; BLOCK_LEN], index: usize) -> __m512i {
        let (quarters, _) = block.as_chunks::<64>();
        // SAFETY: a quarter has the 64 bytes that are loaded, from any address.
        unsafe { _mm512_loadu_si512(quarters[index].as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::Folding;
    use roxe_wire::icrc::{Crc, Tables};

    const LANE: u128 = 0x0123_4567_89ab_cdef_1357_9bdf_0246_8ace;

    fn bytes() -> Vec<u8> {
        (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn folded_register_matches_the_table() {
        let bytes = bytes();
        for len in (0..300).chain([512, 1000, 1024, 1040, 4096, 4112, 5000]) {
            for skew in [0, 3] {
                let bytes = bytes.get(skew..len).unwrap_or_default();
                for register in [0, !0, 0x1234_5678] {
                    let [wide, ordinary] = [Folding::update, Tables::update].map(|update| update(register, bytes));
                    assert_eq!(wide, ordinary, "{len} {register:x} {skew}");
                }
                for lane in [0, LANE, LANE << 32] {
                    let [wide, ordinary] = [Folding::update_after, Tables::update_after].map(|sum| sum(lane, bytes));
                    assert_eq!(wide, ordinary, "{len} {lane:x} {skew}");
                }
            }
        }
    }

    #[test]
    fn folded_zero_bytes_match_the_table() {
        let bytes = bytes();
        for len in 0..40 {
            for blocks in 0..=16 {
                let shifted = Folding::shift_after(LANE, &bytes[..len], blocks);
                assert_eq!(shifted, Tables::shift_after(LANE, &bytes[..len], blocks), "{len} {blocks}");
                let zeros = [&bytes[..len], &vec![0; usize::from(blocks) * 256]].concat();
                assert_eq!(shifted, Some(Tables::update_after(LANE, &zeros)), "{len} {blocks}");
            }
            assert_eq!(Folding::shift_after(LANE, &bytes[..len], 17), None);
        }
    }
}
