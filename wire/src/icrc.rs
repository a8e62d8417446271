//! The invariant CRC: the last 4 bytes of every packet, over everything that no router may change.
//!
//! CRC-32 as in Ethernet over 8 bytes of ones (for a header RoCE does not have), then IP header, UDP header, BTH and
//! the rest, with the fields that routers change replaced by ones; least significant byte first on the wire. The IP
//! and UDP lengths in it follow from the packet's length. Touches `net`.

use crate::{Bth, NetHeader};
use crc32fast::Hasher;

/// Length on the wire, bytes.
pub const LEN: usize = 4;

/// CRC-32 of the 8 bytes of ones in front of everything.
const AFTER_PREFIX: u32 = 0x2144_df1c;

/// The ICRC of `packet`, which reaches from the BTH to the end of the pad. Goes on the wire least significant byte
/// first.
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(AFTER_PREFIX);
    let udp_payload_len = packet.len().saturating_add(LEN);
    if net.is_ipv4() {
        hasher.update(&masked_ipv4(net, udp_payload_len));
    } else {
        hasher.update(&masked_ipv6(net, udp_payload_len));
    }
    hasher.update(&net.udp_header(udp_payload_len, 0xffff));
    match packet.split_first_chunk::<{ Bth::LEN }>() {
        Some((bth, rest)) => {
            let mut bth = *bth;
            bth[4] = 0xff;
            hasher.update(&bth);
            hasher.update(rest);
        }
        // No packet; some CRC has to come out.
        None => hasher.update(packet),
    }
    hasher.finalize()
}

fn masked_ipv4(net: &NetHeader, udp_payload_len: usize) -> [u8; 20] {
    let mut header = net.ipv4_header(udp_payload_len);
    for at in [1, 8, 10, 11] {
        header[at] = 0xff;
    }
    header
}

fn masked_ipv6(net: &NetHeader, udp_payload_len: usize) -> [u8; 40] {
    let mut header = net.ipv6_header(udp_payload_len);
    header[0] = 0x6f;
    for at in [1, 2, 3, 7] {
        header[at] = 0xff;
    }
    header
}

/// Whether the last 4 bytes of a UDP payload are its ICRC.
pub fn verify(net: &NetHeader, udp_payload: &[u8]) -> bool {
    udp_payload
        .split_last_chunk::<LEN>()
        .is_some_and(|(packet, icrc)| compute(net, packet) == u32::from_le_bytes(*icrc))
}

/// Writes the ICRC into the last 4 bytes of a UDP payload. Does nothing if there are no 4 bytes.
pub fn seal(net: &NetHeader, udp_payload: &mut [u8]) {
    if let Some((packet, icrc)) = udp_payload.split_last_chunk_mut::<LEN>() {
        *icrc = compute(net, packet).to_le_bytes();
    }
}

/// The IPv4 identification that explains the received ICRC, if any does; `net.ident` is not looked at.
///
/// `likely` is tried first. With IPv6 there is no identification: `Some(0)` if the ICRC is right.
pub fn solve_ident(net: &NetHeader, udp_payload: &[u8], likely: u16) -> Option<u16> {
    let (packet, icrc) = udp_payload.split_last_chunk::<LEN>()?;
    let ident = if net.is_ipv4() { likely } else { 0 };
    let difference = compute(&NetHeader { ident, ..*net }, packet) ^ u32::from_le_bytes(*icrc);
    if difference == 0 {
        return Some(ident);
    }
    if !net.is_ipv4() {
        return None;
    }
    // Between the identification and the ICRC: the rest of the IP header, the UDP header, the packet.
    let behind = packet.len().checked_add(20 - 6 + 8)?;
    // The difference came in as two bytes, so their own shift is to be undone too.
    let delta = gf2::unshift(difference, u16::try_from(behind.checked_add(2)?).ok()?);
    Some(u16::try_from(delta).ok()?.swap_bytes() ^ ident)
}

/// Polynomials over GF(2) modulo that of the CRC, in the CRC's bit order: bit 31 is the coefficient of x^0.
mod gf2 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    const ONE: u32 = 1 << 31;

    /// x^(-8·i) for i below 256, and x^(-8·256·i) for i below 256.
    const LOW: [u32; 256] = powers(divide_by_x(ONE, 8));
    const HIGH: [u32; 256] = powers(divide_by_x(ONE, 8 * 256));

    /// What the register held `bytes` zero bytes before it came to hold `register`.
    pub(super) fn unshift(register: u32, bytes: u16) -> u32 {
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

    const fn powers(base: u32) -> [u32; 256] {
        let mut table = [ONE; 256];
        let mut i = 1;
        while i < table.len() {
            table[i] = multiply(table[i - 1], base);
            i += 1;
        }
        table
    }
}
