//! The IP and UDP header fields of a packet, as far as RoCEv2 uses them. The ICRC covers them
//! ([`crate::icrc`]), and a UD receiver gets them as a GRH.

use crate::bytes::{ParseError, Reader};
use crate::num::Gid;
use core::net::IpAddr;

/// The UDP destination port of every RoCEv2 packet, in both directions.
pub const ROCE_PORT: u16 = 4791;

/// The network header of one received or sent packet. IPv4 or IPv6 follows from `dst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class; ECN in the low two bits.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// IPv4 identification; 0 for IPv6.
    pub ident: u16,
}

/// The two bits of the traffic class that belong to ECN (RFC 3168 §5); both set is CE, congestion
/// experienced.
pub const ECN: u8 = 0b11;

pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
pub(crate) const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
// clause: IP-DF
const DONT_FRAGMENT: u16 = 0x4000;

impl NetHeader {
    /// Returns true if the packet travels in IPv4.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.dst.is_ipv4()
    }

    /// Returns true if a switch marked the packet as congested (CE).
    #[inline]
    pub const fn is_marked(&self) -> bool {
        self.traffic_class & ECN == ECN
    }

    /// Marks the packet as congested (CE).
    #[inline]
    pub const fn mark(&mut self) {
        self.traffic_class |= ECN;
    }

    /// Returns the 40 bytes before the payload in a UD receive buffer: the IPv6 header, or 20 zero
    /// bytes and the IPv4 header with a valid checksum. `udp_payload_len` counts from the BTH to
    /// the ICRC.
    // clause: UD-GRH
    pub fn to_grh(&self, udp_payload_len: usize) -> [u8; 40] {
        if !self.is_ipv4() {
            return self.ipv6_header(udp_payload_len);
        }
        let mut header = self.ipv4_header(udp_payload_len);
        let checksum = fold(word_sum(&header)).to_be_bytes();
        [header[10], header[11]] = checksum;
        let mut area = [0; 40];
        if let Some((_, ipv4)) = area.split_last_chunk_mut() {
            *ipv4 = header;
        }
        area
    }

    /// Parses an IP packet (no Ethernet header) and returns its header fields and UDP payload,
    /// including the ICRC. Bytes beyond the IP length are Ethernet padding and ignored.
    ///
    /// # Errors
    /// [`ParseError::NotIp`], [`ParseError::NotRoce`] or [`ParseError::Truncated`].
    pub fn parse_ip(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        match Self::read_ip(packet)? {
            (net, payload, _, true) => Ok((net, payload)),
            _ => Err(ParseError::Truncated),
        }
    }

    /// Parses a truncated packet like [`parse_ip`](Self::parse_ip). The packet must contain at
    /// least its UDP header. Also returns the original length of the UDP payload.
    ///
    /// # Errors
    /// Fails like [`parse_ip`](Self::parse_ip).
    pub fn parse_truncated_ip(packet: &[u8]) -> Result<(Self, &[u8], usize), ParseError> {
        Self::read_ip(packet).map(|(net, payload, len, _)| (net, payload, len))
    }

    /// Returns the available UDP payload, its full length, and true if the IP packet is complete.
    #[inline]
    fn read_ip(packet: &[u8]) -> Result<(Self, &[u8], usize, bool), ParseError> {
        let version = packet.first().ok_or(ParseError::Truncated)? >> 4;
        let (mut net, protocol, datagram, len) = match version {
            4 => parse_ipv4(packet)?,
            6 => parse_ipv6(packet)?,
            _ => return Err(ParseError::NotIp),
        };
        if protocol != PROTOCOL_UDP {
            return Err(ParseError::NotRoce);
        }
        let is_whole = datagram.len() == len;
        let (src_port, payload, len) = parse_udp(datagram, len)?;
        net.src_port = src_port;
        Ok((net, payload, len, is_whole))
    }

    /// Returns the IPv4 header with DF set and checksum 0.
    pub(crate) fn ipv4_header(&self, udp_payload_len: usize) -> [u8; IPV4_LEN] {
        let [len_high, len_low] = wire_length(IPV4_LEN + UDP_LEN, udp_payload_len);
        let [id_high, id_low] = self.ident.to_be_bytes();
        let [df, fragment] = DONT_FRAGMENT.to_be_bytes();
        let [.., s0, s1, s2, s3] = self.src.0;
        let [.., d0, d1, d2, d3] = self.dst.0;
        #[rustfmt::skip]
        let header = [
            0x45, self.traffic_class, len_high, len_low,
            id_high, id_low, df, fragment,
            self.hop_limit, PROTOCOL_UDP, 0, 0,
            s0, s1, s2, s3,
            d0, d1, d2, d3,
        ];
        header
    }

    pub(crate) fn ipv6_header(&self, udp_payload_len: usize) -> [u8; IPV6_LEN] {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        let [w0, w1, w2, w3] = word.to_be_bytes();
        let [len_high, len_low] = wire_length(UDP_LEN, udp_payload_len);
        let mut header = [0; IPV6_LEN];
        let (fixed, addresses) = header.split_at_mut(8);
        fixed.copy_from_slice(&[w0, w1, w2, w3, len_high, len_low, PROTOCOL_UDP, self.hop_limit]);
        let (src, dst) = addresses.split_at_mut(16);
        src.copy_from_slice(&self.src.0);
        dst.copy_from_slice(&self.dst.0);
        header
    }

    /// Returns the UDP header without a checksum, as RoCEv2 packets are sent.
    pub(crate) fn udp_header(&self, udp_payload_len: usize) -> [u8; UDP_LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = ROCE_PORT.to_be_bytes();
        let [len_high, len_low] = wire_length(UDP_LEN, udp_payload_len);
        [s0, s1, d0, d1, len_high, len_low, 0, 0]
    }

    /// Returns the UDP header of `payload`, with the checksum that IPv6 requires.
    pub(crate) fn udp_header_with_checksum(&self, payload: &[u8]) -> [u8; UDP_LEN] {
        let mut header = self.udp_header(payload.len());
        let ends = word_sum(&self.src.0) + word_sum(&self.dst.0);
        let pseudo = ends + (UDP_LEN + payload.len()) as u64 + u64::from(PROTOCOL_UDP);
        // 0 would mean "no checksum"; all ones are the same number in one's complement.
        let checksum = match fold(pseudo + word_sum(&header) + word_sum(payload)) {
            0 => 0xffff,
            checksum => checksum,
        };
        [header[6], header[7]] = checksum.to_be_bytes();
        header
    }
}

/// Returns the sum of the 16-bit words of `bytes` for the Internet checksum; an odd last byte
/// counts as followed by zero.
pub(crate) fn word_sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

/// Returns true if the Internet checksum in `bytes` is correct (RFC 1071).
pub fn is_checksum_correct(bytes: &[u8]) -> bool {
    fold(word_sum(bytes)) == 0
}

/// Returns the length field for headers and payload. It wraps for impossible lengths.
#[inline]
pub(crate) fn wire_length(headers: usize, udp_payload_len: usize) -> [u8; 2] {
    (headers.wrapping_add(udp_payload_len) as u16).to_be_bytes()
}

/// Returns the Internet checksum of the word sum `sum`, with the checksum field 0.
pub(crate) fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Header fields, protocol, available IP payload, and the payload length that the header declares.
type IpParts<'a> = (NetHeader, u8, &'a [u8], usize);

/// Returns the first `len` bytes; all if there are fewer.
fn first(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(..len).unwrap_or(bytes)
}

fn parse_ipv4(packet: &[u8]) -> Result<IpParts<'_>, ParseError> {
    let mut rest = Reader(packet);
    let [version, traffic_class] = *rest.array()?;
    let [total_len, ident, fragment] = [rest.u16()?, rest.u16()?, rest.u16()?];
    let [hop_limit, protocol, _, _] = *rest.array()?;
    // clause: IP-PLAIN
    if version != 0x45 || fragment & !DONT_FRAGMENT != 0 {
        return Err(ParseError::NotIp);
    }
    let [src, dst] = [*rest.array::<4>()?, *rest.array::<4>()?].map(|address| IpAddr::from(address).into());
    // clause: IP-LENGTH
    let len = usize::from(total_len).checked_sub(IPV4_LEN).ok_or(ParseError::Truncated)?;
    let net = NetHeader { src, dst, src_port: 0, traffic_class, hop_limit, flow_label: 0, ident };
    Ok((net, protocol, first(rest.0, len), len))
}

fn parse_ipv6(packet: &[u8]) -> Result<IpParts<'_>, ParseError> {
    let mut rest = Reader(packet);
    let (word, len) = (rest.u32()?, rest.u16()?);
    let [protocol, hop_limit] = *rest.array()?;
    let [src, dst] = [Gid(*rest.array()?), Gid(*rest.array()?)];
    let [traffic_class, ..] = (word << 4).to_be_bytes();
    let flow_label = word & 0x000f_ffff;
    let net = NetHeader { src, dst, src_port: 0, traffic_class, hop_limit, flow_label, ident: 0 };
    let len = usize::from(len);
    Ok((net, protocol, first(rest.0, len), len))
}

/// Returns source port, available payload and the payload length that the header declares, of a
/// datagram to the RoCEv2 port. `max` is the length that the IP header leaves for the datagram.
fn parse_udp(datagram: &[u8], max: usize) -> Result<(u16, &[u8], usize), ParseError> {
    let mut rest = Reader(datagram);
    let [src_port, dst_port, len, _checksum] = [rest.u16()?, rest.u16()?, rest.u16()?, rest.u16()?];
    // clause: UDP-PORT
    if dst_port != ROCE_PORT {
        return Err(ParseError::NotRoce);
    }
    let len = usize::from(len);
    if len > max {
        return Err(ParseError::Truncated);
    }
    let len = len.checked_sub(UDP_LEN).ok_or(ParseError::Truncated)?;
    Ok((src_port, first(rest.0, len), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet with an empty datagram from port 0xc132 to 4791.
    const PACKET: [u8; 28] = [
        0x45, 2, 0, 28, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
        0xc1, 0x32, 0x12, 0xb7, 0, 8, 0, 0, // UDP
    ];

    fn parse_with(changes: &[(usize, u8)]) -> Result<usize, ParseError> {
        let mut packet = PACKET;
        changes.iter().for_each(|(at, byte)| packet[*at] = *byte);
        NetHeader::parse_ip(&packet).map(|(_, payload)| payload.len())
    }

    // clause: UDP-PORT, IP-PLAIN, IP-LENGTH
    #[test]
    fn only_plain_udp_to_port_4791_is_parsed() {
        assert_eq!(parse_with(&[]), Ok(0));
        assert_eq!(parse_with(&[(0, 0x46)]), Err(ParseError::NotIp), "options");
        assert_eq!(parse_with(&[(0, 0x55)]), Err(ParseError::NotIp), "version 5");
        assert_eq!(parse_with(&[(6, 0x20)]), Err(ParseError::NotIp), "more fragments");
        assert_eq!(parse_with(&[(7, 1)]), Err(ParseError::NotIp), "fragment offset");
        assert_eq!(parse_with(&[(9, 6)]), Err(ParseError::NotRoce), "TCP");
        assert_eq!(parse_with(&[(23, 0xb8)]), Err(ParseError::NotRoce), "port 4792");
        assert_eq!(parse_with(&[(3, 29)]), Err(ParseError::Truncated), "IP length beyond the frame");
        assert_eq!(parse_with(&[(3, 19)]), Err(ParseError::Truncated), "IP length below the header");
        assert_eq!(parse_with(&[(25, 9)]), Err(ParseError::Truncated), "UDP length beyond the packet");
        assert_eq!(parse_with(&[(25, 7)]), Err(ParseError::Truncated), "UDP length below the header");
        assert_eq!(NetHeader::parse_ip(&[]), Err(ParseError::Truncated));
    }

    #[test]
    fn cut_packet_keeps_its_headers_and_its_length() {
        let mut packet = PACKET.to_vec();
        (packet[3], packet[25]) = (128, 108);
        packet.extend([7; 12]);
        assert_eq!(NetHeader::parse_ip(&packet), Err(ParseError::Truncated));
        let (net, payload, len) = NetHeader::parse_truncated_ip(&packet).unwrap();
        assert_eq!((net.src_port, payload, len), (0xc132, &[7; 12][..], 100));
        assert_eq!(NetHeader::parse_truncated_ip(&packet[..27]), Err(ParseError::Truncated), "within the UDP header");
        packet[25] = 109;
        assert_eq!(NetHeader::parse_truncated_ip(&packet), Err(ParseError::Truncated), "longer than the IP packet");
    }

    // clause: UD-GRH
    #[test]
    fn grh_checksum_is_valid() {
        let (net, _) = NetHeader::parse_ip(&PACKET).expect("parse a RoCE packet");
        let grh = net.to_grh(0);
        let words = grh[20..].chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1]));
        assert_eq!(words.sum::<u64>() % 0xffff, 0);
        assert_eq!(grh[20..30], PACKET[..10]);
        assert_eq!(grh[32..], PACKET[12..20]);
    }

    #[test]
    fn checksums_fold_carries_until_none_is_left() {
        // 0x1ffff folds to 0x10000, which folds to 1.
        assert_eq!(fold(0x1_ffff), !1);
        assert_eq!(fold(u64::MAX), 0);
        assert_eq!(word_sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }

    #[test]
    fn ipv6_udp_checksum_is_valid_and_nonzero() {
        let net = NetHeader { src: Gid([0xfd; 16]), dst: Gid([0xfe; 16]), src_port: 0xc132, ..NetHeader::default() };
        let valid = |payload: &[u8]| {
            let header = net.udp_header_with_checksum(payload);
            let pseudo = word_sum(&net.src.0) + word_sum(&net.dst.0) + 8 + payload.len() as u64 + 17;
            assert_eq!(fold(pseudo + word_sum(&header) + word_sum(payload)), 0, "{payload:?}");
            u16::from_be_bytes([header[6], header[7]])
        };
        let plain = valid(&[0, 0]);
        assert_ne!(valid(&[1, 2, 3]), 0);
        // With this payload the checksum would be 0.
        assert_eq!(valid(&plain.to_be_bytes()), 0xffff);
    }
}
