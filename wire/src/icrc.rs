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
// clause: ICRC-SUM
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(AFTER_PREFIX);
    match packet.split_first_chunk() {
        Some((bth, rest)) => {
            let udp_payload_len = packet.len().saturating_add(LEN);
            // All headers in one piece: three short updates cost 10 ns more than one.
            if net.is_ipv4() {
                hasher.update(&masked_ipv4(net, udp_payload_len, *bth));
            } else {
                hasher.update(&masked_ipv6(net, udp_payload_len, *bth));
            }
            hasher.update(rest);
        }
        // Not a packet; some CRC has to come out.
        None => hasher.update(packet),
    }
    hasher.finalize()
}

/// IPv4, UDP and base transport header with ones for what routers change.
fn masked_ipv4(net: &NetHeader, udp_payload_len: usize, bth: [u8; Bth::LEN]) -> [u8; 40] {
    let mut headers = [0; 40];
    headers[..20].copy_from_slice(&net.ipv4_header(udp_payload_len));
    headers[20..28].copy_from_slice(&net.udp_header(udp_payload_len));
    headers[28..].copy_from_slice(&bth);
    // TOS, TTL, header checksum, UDP checksum, congestion bits.
    // clause: ICRC-MASK-IPV4
    for at in [1, 8, 10, 11, 26, 27, 32] {
        headers[at] = 0xff;
    }
    headers
}

/// IPv6, UDP and base transport header with ones for what routers change.
fn masked_ipv6(net: &NetHeader, udp_payload_len: usize, bth: [u8; Bth::LEN]) -> [u8; 60] {
    let mut headers = [0; 60];
    headers[..40].copy_from_slice(&net.ipv6_header(udp_payload_len));
    headers[40..48].copy_from_slice(&net.udp_header(udp_payload_len));
    headers[48..].copy_from_slice(&bth);
    // Traffic class and flow label (the version stays), hop limit, UDP checksum, congestion bits.
    // clause: ICRC-MASK-IPV6
    headers[0] |= 0x0f;
    for at in [1, 2, 3, 7, 46, 47, 52] {
        headers[at] = 0xff;
    }
    headers
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
        // clause: ICRC-SUM
        *icrc = compute(net, packet).to_le_bytes();
    }
}

/// The IPv4 identification that explains the received ICRC, if any does; `net.ident` is not looked at.
///
/// `likely` is tried first. With IPv6 there is no identification: `Some(0)` if the ICRC is right.
// clause: IP-IDENT
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unshift_undoes_zero_bytes() {
        for count in [0, 1, 2, 255, 256, 257, 4150, 65535] {
            let register = 0x1234_5678;
            let mut shifted = register;
            for _ in 0..8 * u32::from(count) {
                shifted = shifted >> 1 ^ if shifted & 1 == 0 { 0 } else { 0xedb8_8320 };
            }
            assert_eq!(gf2::unshift(shifted, count), register, "{count} bytes");
        }
    }

    #[test]
    fn without_an_identification_the_icrc_is_right_or_wrong() {
        let net = NetHeader { dst: crate::Gid([0xfd; 16]), ..NetHeader::default() };
        let mut datagram = [7; 40];
        seal(&net, &mut datagram);
        assert_eq!(solve_ident(&net, &datagram, 5), Some(0));
        datagram[20] ^= 1;
        assert_eq!(solve_ident(&net, &datagram, 5), None);
    }

    /// An identification that nobody sees weakens the ICRC against damage of many bits, but not of one.
    #[test]
    fn one_flipped_bit_is_never_taken_for_another_identification() {
        let loopback = core::net::Ipv4Addr::LOCALHOST.into();
        let net = NetHeader { src: loopback, dst: loopback, ..NetHeader::default() };
        let mut datagram = [0x5a; 4160];
        seal(&net, &mut datagram);
        // Byte 4 is not covered.
        for at in (0..datagram.len()).filter(|at| *at != 4) {
            for bit in 0..8 {
                datagram[at] ^= 1 << bit;
                assert_eq!(solve_ident(&net, &datagram, 0), None, "byte {at}, bit {bit}");
                datagram[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn what_is_too_short_for_an_icrc_is_never_right() {
        let net = NetHeader::default();
        let mut datagram = [0; 3];
        seal(&net, &mut datagram);
        assert_eq!(datagram, [0; 3]);
        assert!(!verify(&net, &datagram));
        assert_eq!(solve_ident(&net, &datagram, 0), None);
    }
}
