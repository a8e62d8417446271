//! The checksums of IPv4, TCP and UDP in a frame, as network cards check and fill them in.

use super::{IPV4_LEN, Ip, L4, Layout, TCP, UDP};
use crate::net::{fold, word_sum};
use core::ops::Range;

/// Positions of the checksums in their headers, and minimum header lengths.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const IPV4_CHECKSUM: usize = 10;

/// Returns true if the frame is a complete TCP segment or UDP datagram in IPv4 with two correct
/// checksums (`IBV_WC_IP_CSUM_OK`). A datagram without a checksum does not count.
// clause: RAW-CHECKSUM-OK
pub fn is_verified(frame: &[u8]) -> bool {
    let Some(ip) = ip_of(frame).filter(|ip| ip.is_v4 && header_sum(frame, ip) == Some(0)) else { return false };
    let Some(segment) = Segment::of(frame, &ip) else { return false };
    let given = frame.get(segment.checksum.clone()).unwrap_or_default();
    let is_given = segment.protocol == TCP || given != [0, 0];
    is_given && segment.sum(frame, &ip) == 0
}

/// Fills in the checksums of an IPv4 header and of a complete TCP segment or UDP datagram in IPv4
/// or IPv6 (`IBV_SEND_IP_CSUM`).
// clause: RAW-CHECKSUM-SEND
pub fn fill(frame: &mut [u8]) {
    let Some(ip) = ip_of(frame) else { return };
    if ip.is_v4 {
        let place = ip.start + IPV4_CHECKSUM..ip.start + IPV4_CHECKSUM + 2;
        write_sum(frame, place.clone(), 0);
        let sum = header_sum(frame, &ip).unwrap_or_default();
        write_sum(frame, place, sum);
    }
    let Some(segment) = Segment::of(frame, &ip) else { return };
    write_sum(frame, segment.checksum.clone(), 0);
    let sum = segment.sum(frame, &ip);
    // 0 means no checksum; all ones are the same number in one's complement.
    write_sum(frame, segment.checksum.clone(), if sum == 0 && segment.protocol == UDP { 0xffff } else { sum });
}

fn ip_of(frame: &[u8]) -> Option<Ip> {
    Layout::of(frame)?.ip
}

fn write_sum(frame: &mut [u8], range: Range<usize>, sum: u16) {
    if let Some(field) = frame.get_mut(range) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns the checksum over an IPv4 header; 0 if the header contains the correct one.
fn header_sum(frame: &[u8], ip: &Ip) -> Option<u16> {
    let header = frame.get(ip.start..)?;
    let len = usize::from(header.first()? & 0xf) * 4;
    header.get(..len.max(IPV4_LEN)).map(|header| fold(word_sum(header)))
}

/// A whole TCP segment or UDP datagram.
struct Segment {
    protocol: u8,
    place: Range<usize>,
    checksum: Range<usize>,
}

impl Segment {
    fn of(frame: &[u8], ip: &Ip) -> Option<Self> {
        let L4 { protocol, start } = ip.l4.filter(|_| ip.is_whole)?;
        let (checksum, shortest, end) = match protocol {
            TCP => (TCP_CHECKSUM, TCP_LEN, ip.end),
            _ => (UDP_CHECKSUM, UDP_LEN, start + usize::from(super::u16_at(frame, start + 4)?)),
        };
        let checksum = start + checksum..start + checksum + 2;
        (end <= ip.end && start + shortest <= end).then_some(Self { protocol, place: start..end, checksum })
    }

    /// Returns the checksum over the segment and its pseudo header; 0 if the segment contains the
    /// correct one.
    fn sum(&self, frame: &[u8], ip: &Ip) -> u16 {
        let addresses = if ip.is_v4 { ip.start + 12..ip.start + 20 } else { ip.start + 8..ip.start + 40 };
        let sum_of = |place: Range<usize>| word_sum(frame.get(place).unwrap_or_default());
        let pseudo = sum_of(addresses) + self.place.len() as u64 + u64::from(self.protocol);
        fold(pseudo + sum_of(self.place.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::{ethernet, ipv4, ipv6, udp};
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    fn tcp(payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; TCP_LEN];
        segment[12] = 0x50;
        segment.extend_from_slice(payload);
        segment
    }

    // clause: RAW-CHECKSUM-OK, RAW-CHECKSUM-SEND
    #[test]
    fn filled_checksums_verify_and_any_bit_flip_fails() {
        for (protocol, payload) in [(UDP, udp(b"odd")), (TCP, tcp(b"even"))] {
            let mut frame = ethernet(0x0800, &ipv4(protocol, &payload));
            assert!(!is_verified(&frame));
            fill(&mut frame);
            assert!(is_verified(&frame));
            for at in 14..frame.len() {
                frame[at] ^= 4;
                assert!(!is_verified(&frame), "byte {at}");
                frame[at] ^= 4;
            }
        }
    }

    // clause: RAW-CHECKSUM-SEND
    #[test]
    fn known_header_has_known_checksum() {
        // The commonly cited example of the IPv4 header checksum.
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        let mut frame = ethernet(0x0800, &header);
        fill(&mut frame);
        assert_eq!(frame[24..26], [0xb8, 0x61]);
    }

    // clause: RAW-CHECKSUM-SEND
    #[test]
    fn ipv6_checksum_equals_the_packet_writers() {
        let net = crate::NetHeader {
            src: crate::Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            dst: crate::Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
            src_port: 1234,
            ..crate::NetHeader::default()
        };
        let header = net.udp_header_with_checksum(b"hello");
        let mut datagram = [&header[..6], &[0, 0], b"hello"].concat();
        let mut frame = ethernet(0x86dd, &ipv6(UDP, &datagram));
        fill(&mut frame);
        datagram[6..8].copy_from_slice(&header[6..]);
        assert_eq!(frame[54..], datagram[..]);
        assert!(!is_verified(&frame), "the flag is about IPv4");
    }

    // clause: RAW-CHECKSUM-OK
    #[test]
    fn incomplete_or_unsummed_datagrams_are_not_verified() {
        let mut frame = ethernet(0x0800, &ipv4(UDP, &udp(b"hello")));
        fill(&mut frame);
        assert!(!is_verified(&frame[..frame.len() - 1]));
        let mut fragment = frame.clone();
        fragment[20] |= 0x20;
        fill(&mut fragment);
        assert!(!is_verified(&fragment));
        frame[40..42].fill(0);
        assert!(!is_verified(&frame));
    }
}
