//! The CRC of a few bytes, looked up one after the other, and what single header fields change in
//! it.

use super::gf2::{multiply, power_of_x};

/// What a byte in front of 0 to 3 others does to the register.
static BYTES: [[u32; 256]; 4] = [bytes(8), bytes(16), bytes(24), bytes(32)];

/// What the two bytes of a header field do to the register behind the UDP header.
pub(super) struct Field([[u32; 256]; 2]);

/// The lengths and the identification, with so many bytes between them and the BTH.
pub(super) static IPV4_LENGTH: Field = Field::in_front_of(24);
pub(super) static IPV6_LENGTH: Field = Field::in_front_of(42);
pub(super) static UDP_LENGTH: Field = Field::in_front_of(2);
pub(super) static IDENT: Field = Field::in_front_of(22);

impl Field {
    const fn in_front_of(others: u32) -> Self {
        Self([bytes(8 * others + 16), bytes(8 * others + 8)])
    }

    #[inline]
    pub(super) fn of(&self, [high, low]: [u8; 2]) -> u32 {
        let Self([highs, lows]) = self;
        highs[usize::from(high)] ^ lows[usize::from(low)]
    }
}

/// The register behind `data`.
#[inline]
pub(super) fn update(register: u32, data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks::<4>();
    let register = words.iter().fold(register, |register, word| {
        let [a, b, c, d] = (register ^ u32::from_le_bytes(*word)).to_le_bytes();
        BYTES[3][usize::from(a)] ^ BYTES[2][usize::from(b)] ^ BYTES[1][usize::from(c)] ^ BYTES[0][usize::from(d)]
    });
    let step = |register: u32, byte: &u8| register >> 8 ^ BYTES[0][usize::from(register as u8 ^ byte)];
    rest.iter().fold(register, step)
}

/// Every byte times x^`n`.
const fn bytes(n: u32) -> [u32; 256] {
    let power = power_of_x(n);
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = multiply(power, byte as u32);
        byte += 1;
    }
    table
}
