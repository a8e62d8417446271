//! The invariant CRC: the last 4 bytes of every packet, over everything that routers do not change.
//!
//! It is the CRC-32 of Ethernet over 8 bytes of ones (in place of a header that RoCE lacks), then
//! IP header, UDP header, BTH and everything after it, with the fields that routers change replaced
//! by ones; least significant byte first on the wire. The IP and UDP lengths follow from the
//! packet's length.

use crate::bth::Bth;
use crate::net::{IPV4_LEN, IPV6_LEN, NetHeader, UDP_LEN, wire_length};
use crate::num::Gid;
use crc32fast::Hasher;

/// Length on the wire, bytes.
pub const LEN: usize = 4;

/// CRC register after the 8 bytes of ones.
const AFTER_PREFIX: u32 = !0x2144_df1c;

/// Length in bytes below which table lookups are faster than setting up a wide CRC.
const TABLE_LIMIT: usize = 64;

/// Returns the ICRC of `packet`, from the BTH to the end of the pad.
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    Sealer::new(net).icrc::<Tables>(net.ident, packet)
}

/// Unit of [`Summed`] in bytes.
pub const BLOCK_LEN: usize = 256;

/// A part of a packet whose CRC was computed while it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summed {
    /// Offset from the start of the BTH in bytes, at least [`Bth::LEN`].
    pub start: usize,
    /// Length in blocks of [`BLOCK_LEN`] bytes.
    pub blocks: u8,
    /// CRC-32 register after the part, starting from 0. Any bytes that are equal to it modulo the
    /// polynomial give the same remainder, for example the last block of a folded copy.
    pub remainder: u32,
}

/// A CRC-32 implementation: [`Tables`] runs on any processor.
///
/// A *lane* is 16 bytes as a little-endian number, into which the register before them is XORed.
pub trait Crc {
    /// Returns the register after `bytes`, starting from `register`.
    fn update(register: u32, bytes: &[u8]) -> u32;

    /// Returns the register after `lane` and `bytes`, starting from 0.
    fn update_after(lane: u128, bytes: &[u8]) -> u32;

    /// Returns the register after `lane`, `bytes` and `blocks` times [`BLOCK_LEN`] zero bytes,
    /// starting from 0; `None` if `blocks` is too large.
    fn shift_after(lane: u128, bytes: &[u8], blocks: u8) -> Option<u32>;
}

/// Table lookups for short inputs, `crc32fast` for long ones.
#[derive(Clone, Copy, Debug)]
pub struct Tables;

impl Crc for Tables {
    fn update(register: u32, bytes: &[u8]) -> u32 {
        if bytes.len() < TABLE_LIMIT {
            return update_bytes(register, bytes);
        }
        let mut hasher = Hasher::new_with_initial(!register);
        hasher.update(bytes);
        !hasher.finalize()
    }

    fn update_after(lane: u128, bytes: &[u8]) -> u32 {
        Self::update(update_bytes(0, &lane.to_le_bytes()), bytes)
    }

    fn shift_after(lane: u128, bytes: &[u8], blocks: u8) -> Option<u32> {
        shift(Self::update_after(lane, bytes), blocks)
    }
}

/// Seals or checks packets between two addresses. The CRC of their headers is computed once, and
/// the effects of length and identification are looked up.
#[derive(Clone, Copy, Debug)]
pub struct Sealer {
    src: Gid,
    dst: Gid,
    src_port: u16,
    is_ipv4: bool,
    /// The register after a UDP header without lengths, identification 0.
    plain: u32,
    /// UDP payload length for which `register` holds, bytes.
    udp_payload_len: usize,
    /// The register after a UDP header with the lengths, identification 0.
    register: u32,
}

impl Default for Sealer {
    fn default() -> Self {
        Self::new(&NetHeader::default())
    }
}

impl Sealer {
    /// Creates a sealer for packets between the addresses of `net`.
    pub fn new(net: &NetHeader) -> Self {
        let is_ipv4 = net.is_ipv4();
        let plain = if is_ipv4 {
            update_bytes(AFTER_PREFIX, &masked_ipv4(net))
        } else {
            update_bytes(AFTER_PREFIX, &masked_ipv6(net))
        };
        // No UDP payload has length 0, so the first packet computes the register.
        Self { src: net.src, dst: net.dst, src_port: net.src_port, is_ipv4, plain, udp_payload_len: 0, register: plain }
    }

    /// Changes the addresses to those of `net`, which rarely differ.
    #[inline]
    pub fn retarget(&mut self, net: &NetHeader) {
        if (self.src, self.dst, self.src_port) != (net.src, net.dst, net.src_port) {
            *self = Self::new(net);
        }
    }

    /// Writes the ICRC into the last 4 bytes of a UDP payload, with this identification for IPv4.
    /// Does nothing if there are no 4 bytes. `summed` must be correct.
    pub fn seal<C: Crc>(&mut self, ident: u16, udp_payload: &mut [u8], summed: Option<&Summed>) {
        let Some((packet, icrc)) = udp_payload.split_last_chunk_mut::<LEN>() else { return };
        let known = summed.and_then(|summed| self.icrc_around::<C>(ident, packet, summed));
        *icrc = known.unwrap_or_else(|| self.icrc::<C>(ident, packet)).to_le_bytes();
    }

    /// Returns the identification like [`solve_ident`], for packets between this sealer's
    /// addresses.
    // clause: IP-IDENT
    pub fn solve_ident<C: Crc>(&mut self, udp_payload: &[u8], likely: u16) -> Option<u16> {
        let (packet, icrc) = udp_payload.split_last_chunk::<LEN>()?;
        let difference = self.icrc::<C>(likely, packet) ^ u32::from_le_bytes(*icrc);
        match self.is_ipv4 {
            true if difference == 0 => Some(likely),
            true => ident_for(difference, packet.len(), likely),
            false => (difference == 0).then_some(0),
        }
    }

    // clause: ICRC-SUM
    #[inline]
    fn icrc<C: Crc>(&mut self, ident: u16, packet: &[u8]) -> u32 {
        match packet.split_first_chunk() {
            Some((bth, rest)) => !C::update_after(self.lane(ident, packet.len(), bth), rest),
            // Too short for a packet: any CRC will do.
            None => !update_bytes(AFTER_PREFIX, packet),
        }
    }

    /// Returns the ICRC of `packet` without reading the summed part; `None` if that part is not
    /// within the packet after the BTH.
    fn icrc_around<C: Crc>(&mut self, ident: u16, packet: &[u8], summed: &Summed) -> Option<u32> {
        let (bth, rest) = packet.split_first_chunk()?;
        let (before, rest) = rest.split_at_checked(summed.start.checked_sub(Bth::LEN)?)?;
        let after = rest.get(usize::from(summed.blocks) * BLOCK_LEN..)?;
        let lane = self.lane(ident, packet.len(), bth);
        let register = C::shift_after(lane, before, summed.blocks)? ^ summed.remainder;
        // Most packets have no pad, and skipping the update is faster than updating with no bytes.
        Some(if after.is_empty() { !register } else { !C::update(register, after) })
    }

    /// Returns the lane of the BTH of a packet of `len` bytes.
    #[inline]
    fn lane(&mut self, ident: u16, len: usize, bth: &[u8; Bth::LEN]) -> u128 {
        let [a, b, c, d, _, e, f, g, h, i, j, k] = *bth;
        let first = u32::from_le_bytes([a, b, c, d]) ^ self.after_udp(ident, len.saturating_add(LEN));
        // The ICRC covers ones in place of the byte with the congestion bits.
        let [second, third] = [u32::from_le_bytes([0xff, e, f, g]), u32::from_le_bytes([h, i, j, k])];
        u128::from(first) << 32 | u128::from(second) << 64 | u128::from(third) << 96
    }

    #[inline]
    fn after_udp(&mut self, ident: u16, udp_payload_len: usize) -> u32 {
        if self.udp_payload_len != udp_payload_len {
            self.udp_payload_len = udp_payload_len;
            let ip = if self.is_ipv4 {
                IPV4_LENGTH.of(wire_length(IPV4_LEN + UDP_LEN, udp_payload_len))
            } else {
                IPV6_LENGTH.of(wire_length(UDP_LEN, udp_payload_len))
            };
            self.register = self.plain ^ ip ^ UDP_LENGTH.of(wire_length(UDP_LEN, udp_payload_len));
        }
        if self.is_ipv4 { self.register ^ IDENT.of(ident.to_be_bytes()) } else { self.register }
    }
}

/// Returns the IPv4 and UDP header with ones for fields that routers change, and without fields
/// that differ between packets.
fn masked_ipv4(net: &NetHeader) -> [u8; IPV4_LEN + UDP_LEN] {
    let mut headers = [0; IPV4_LEN + UDP_LEN];
    headers[..20].copy_from_slice(&net.ipv4_header(0));
    headers[20..].copy_from_slice(&net.udp_header(0));
    // Lengths, identification.
    for at in [2, 3, 4, 5, 24, 25] {
        headers[at] = 0;
    }
    // TOS, TTL, header checksum, UDP checksum.
    // clause: ICRC-MASK-IPV4
    for at in [1, 8, 10, 11, 26, 27] {
        headers[at] = 0xff;
    }
    headers
}

/// Returns the IPv6 and UDP header with ones for fields that routers change, and without lengths.
fn masked_ipv6(net: &NetHeader) -> [u8; IPV6_LEN + UDP_LEN] {
    let mut headers = [0; IPV6_LEN + UDP_LEN];
    headers[..40].copy_from_slice(&net.ipv6_header(0));
    headers[40..].copy_from_slice(&net.udp_header(0));
    for at in [4, 5, 44, 45] {
        headers[at] = 0;
    }
    // Traffic class and flow label (the version stays), hop limit, UDP checksum.
    // clause: ICRC-MASK-IPV6
    headers[0] |= 0x0f;
    for at in [1, 2, 3, 7, 46, 47] {
        headers[at] = 0xff;
    }
    headers
}

/// Returns true if the last 4 bytes of a UDP payload are its ICRC.
pub fn verify(net: &NetHeader, udp_payload: &[u8]) -> bool {
    udp_payload
        .split_last_chunk::<LEN>()
        .is_some_and(|(packet, icrc)| compute(net, packet) == u32::from_le_bytes(*icrc))
}

/// Writes the ICRC into the last 4 bytes of a UDP payload. Does nothing if there are no 4 bytes.
pub fn seal(net: &NetHeader, udp_payload: &mut [u8]) {
    Sealer::new(net).seal::<Tables>(net.ident, udp_payload, None);
}

/// Returns the IPv4 identification for which the received ICRC is correct, if any; ignores
/// `net.ident`. `likely` is tried first. With IPv6 there is no identification: `Some(0)` if the
/// ICRC is correct.
pub fn solve_ident(net: &NetHeader, udp_payload: &[u8], likely: u16) -> Option<u16> {
    Sealer::new(net).solve_ident::<Tables>(udp_payload, likely)
}

/// Returns the identification of a packet of `len` bytes whose ICRC differs by `difference` from
/// that of `ident`.
#[cold]
fn ident_for(difference: u32, len: usize, ident: u16) -> Option<u16> {
    // Between the identification and the ICRC: the end of the IP header, the UDP header, the
    // packet.
    let following = len.checked_add(20 - 6 + 8)?;
    // The register also shifted over the two bytes of the identification.
    let delta = unshift(difference, u16::try_from(following.checked_add(2)?).ok()?);
    Some(u16::try_from(delta).ok()?.swap_bytes() ^ ident)
}

#[cfg(test)]
mod tests;

// Tables for the CRC of a few bytes, and for the effect of single header fields on the CRC.

/// Effect on the register of a byte that 0 to 3 other bytes follow.
static BYTES: [[u32; 256]; 4] = [byte_table(8), byte_table(16), byte_table(24), byte_table(32)];

/// Effect of the two bytes of a header field on the register after the UDP header.
struct FieldEffect([[u32; 256]; 2]);

/// Header fields, by the number of bytes between the field and the BTH.
static IPV4_LENGTH: FieldEffect = FieldEffect::preceding(24);
static IPV6_LENGTH: FieldEffect = FieldEffect::preceding(42);
static UDP_LENGTH: FieldEffect = FieldEffect::preceding(2);
static IDENT: FieldEffect = FieldEffect::preceding(22);

impl FieldEffect {
    const fn preceding(others: u32) -> Self {
        Self([byte_table(8 * others + 16), byte_table(8 * others + 8)])
    }

    #[inline]
    fn of(&self, [high, low]: [u8; 2]) -> u32 {
        let Self([highs, lows]) = self;
        highs[usize::from(high)] ^ lows[usize::from(low)]
    }
}

#[inline]
fn update_bytes(register: u32, data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks::<4>();
    let register = words.iter().fold(register, |register, word| {
        let [a, b, c, d] = (register ^ u32::from_le_bytes(*word)).to_le_bytes();
        BYTES[3][usize::from(a)] ^ BYTES[2][usize::from(b)] ^ BYTES[1][usize::from(c)] ^ BYTES[0][usize::from(d)]
    });
    let step = |register: u32, byte: &u8| register >> 8 ^ BYTES[0][usize::from(register as u8 ^ byte)];
    rest.iter().fold(register, step)
}

/// Returns every byte times x^`n`.
const fn byte_table(n: u32) -> [u32; 256] {
    let power = power_of_x(n);
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = multiply(power, byte as u32);
        byte += 1;
    }
    table
}

// Polynomials over GF(2) modulo that of the CRC, in the CRC's bit order: bit 31 is the coefficient
// of x^0.

const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// x^(-8·i) for i below 256, and x^(-8·256·i) for i below 256.
const LOW: [u32; 256] = powers(divide_by_x(ONE, 8));
const HIGH: [u32; 256] = powers(divide_by_x(ONE, 8 * 256));
const BLOCK_POWER: u32 = power_of_x(8 * 256);
/// Value of each 4 bits of a register, lowest first, after 0 to 16 times 256 zero bytes.
static SHIFTED: [[[u32; 16]; 8]; 17] = shift_table();

/// Returns `register` after `blocks` times 256 zero bytes; `None` for more than 16.
#[inline]
fn shift(register: u32, blocks: u8) -> Option<u32> {
    let nibbles = SHIFTED.get(usize::from(blocks))?.iter().enumerate();
    Some(nibbles.fold(0, |sum, (at, shifted)| sum ^ shifted[(register >> (4 * at) & 15) as usize]))
}

const fn shift_table() -> [[[u32; 16]; 8]; 17] {
    let mut table = [[[0; 16]; 8]; 17];
    let (mut blocks, mut power) = (0, ONE);
    while blocks < 17 {
        let mut at = 0;
        while at < 8 * 16 {
            let (nibble, value) = (at / 16, at % 16);
            table[blocks][nibble][value] = multiply(power, (value as u32) << (4 * nibble));
            at += 1;
        }
        power = multiply(BLOCK_POWER, power);
        blocks += 1;
    }
    table
}

/// Returns the register `bytes` zero bytes before `register`.
fn unshift(register: u32, bytes: u16) -> u32 {
    let [high, low] = bytes.to_be_bytes();
    multiply(multiply(HIGH[usize::from(high)], LOW[usize::from(low)]), register)
}

const fn multiply(a: u32, b: u32) -> u32 {
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

/// Returns x^`n` modulo the polynomial of CRC-32, reflected: the highest bit is x^0.
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
