//! Polynomials over GF(2) modulo that of the CRC, in the CRC's bit order: bit 31 is the coefficient
//! of x^0.

const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// x^(-8·i) for i below 256, and x^(-8·256·i) for i below 256.
const LOW: [u32; 256] = powers(divide_by_x(ONE, 8));
const HIGH: [u32; 256] = powers(divide_by_x(ONE, 8 * 256));
/// x^(8·256).
const BLOCK: u32 = power_of_x(8 * 256);
/// What each value of each four bits of a register, the lowest first, becomes up to 16 times 256
/// zero bytes later.
static LATER: [[[u32; 16]; 8]; 17] = later();

/// What the register holds `blocks` times 256 zero bytes after it held `register`; `None` if that
/// is too many.
#[inline]
pub(super) fn shift(register: u32, blocks: u8) -> Option<u32> {
    let fours = LATER.get(usize::from(blocks))?.iter().enumerate();
    Some(fours.fold(0, |sum, (at, later)| sum ^ later[(register >> (4 * at) & 15) as usize]))
}

const fn later() -> [[[u32; 16]; 8]; 17] {
    let mut table = [[[0; 16]; 8]; 17];
    let (mut blocks, mut power) = (0, ONE);
    while blocks < 17 {
        let mut at = 0;
        while at < 8 * 16 {
            let (four, value) = (at / 16, at % 16);
            table[blocks][four][value] = multiply(power, (value as u32) << (4 * four));
            at += 1;
        }
        power = multiply(BLOCK, power);
        blocks += 1;
    }
    table
}

/// What the register held `bytes` zero bytes before it came to hold `register`.
pub(super) fn unshift(register: u32, bytes: u16) -> u32 {
    let [high, low] = bytes.to_be_bytes();
    multiply(multiply(HIGH[usize::from(high)], LOW[usize::from(low)]), register)
}

pub(super) const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut b, mut bit) = (0, b, 32);
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

const fn divide_by_x(value: u32, times: u32) -> u32 {
    let (mut value, mut left) = (value, times);
    while left > 0 {
        let carry = value >> 31;
        value = (value ^ POLYNOMIAL & carry.wrapping_neg()) << 1 | carry;
        left -= 1;
    }
    value
}

/// x^`n` modulo the polynomial of CRC-32, reflected: the highest bit is x^0.
pub const fn power_of_x(n: u32) -> u32 {
    let (mut value, mut square, mut left) = (ONE, ONE >> 1, n);
    while left > 0 {
        if left & 1 == 1 {
            value = multiply(value, square);
        }
        square = multiply(square, square);
        left >>= 1;
    }
    value
}

const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < table.len() {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}
