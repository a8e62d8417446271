//! Where the headers of an Ethernet frame lie. Touches nothing.

/// Bytes of the two addresses and the EtherType: the shortest frame.
pub const ETH_LEN: usize = 14;
/// Bytes of a VLAN tag.
pub const TAG_LEN: usize = 4;
/// VLAN tags that are read; hardware reads two.
const MAX_TAGS: usize = 2;
/// IPv6 extension headers that are read at most.
const MAX_EXTENSIONS: usize = 8;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// The types of customer (802.1Q) and service (802.1ad) tags.
const ETHERTYPE_TAGS: [u16; 2] = [0x8100, 0x88a8];
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

pub(super) const IPV4_LEN: usize = 20;
pub(super) const IPV6_LEN: usize = 40;
/// Flags and offset of an IPv4 fragment.
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Where the headers of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The outermost VLAN tag.
    pub(super) tag: Option<u16>,
    /// The EtherType behind the last tag.
    pub(super) ether_type: u16,
    pub(super) ip: Option<Ip>,
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    pub(super) is_v4: bool,
    pub(super) start: usize,
    /// Where the packet ends: what follows is padding of the frame.
    pub(super) end: usize,
    /// The frame holds all that the header promises, and it is no fragment.
    pub(super) is_whole: bool,
    pub(super) l4: Option<L4>,
}

/// The header of TCP or UDP; fragments but the first have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct L4 {
    pub(super) protocol: u8,
    pub(super) start: usize,
}

impl Layout {
    /// `None`: shorter than an Ethernet header.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let mut at = ETH_LEN;
        let (mut tag, mut ether_type) = (None, u16_at(frame, at - 2)?);
        for _ in 0..MAX_TAGS {
            let behind = u16_at(frame, at).zip(u16_at(frame, at + 2));
            let Some((tci, next)) = behind.filter(|_| ETHERTYPE_TAGS.contains(&ether_type)) else { break };
            tag.get_or_insert(tci);
            ether_type = next;
            at += TAG_LEN;
        }
        let ip = match ether_type {
            ETHERTYPE_IPV4 => Ip::v4(frame, at),
            ETHERTYPE_IPV6 => Ip::v6(frame, at),
            _ => None,
        };
        Some(Self { tag, ether_type, ip })
    }
}

impl Ip {
    fn v4(frame: &[u8], start: usize) -> Option<Self> {
        let header = frame.get(start..start + IPV4_LEN)?;
        let len = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(u16_at(header, 2)?);
        if header[0] >> 4 != 4 || len < IPV4_LEN || frame.len() < start + len || total < len {
            return None;
        }
        let fragment = u16_at(header, 6)?;
        let end = (start + total).min(frame.len());
        let l4 = if fragment & FRAGMENT_OFFSET == 0 { L4::of(header[9], start + len) } else { None };
        let is_whole = end == start + total && fragment & (FRAGMENT_OFFSET | MORE_FRAGMENTS) == 0;
        Some(Self { is_v4: true, start, end, is_whole, l4 })
    }

    fn v6(frame: &[u8], start: usize) -> Option<Self> {
        let header = frame.get(start..start + IPV6_LEN)?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let promised = start + IPV6_LEN + usize::from(u16_at(header, 4)?);
        let end = promised.min(frame.len());
        let (l4, is_fragment) = behind_extensions(frame.get(..end)?, header[6], start + IPV6_LEN);
        Some(Self { is_v4: false, start, end, is_whole: end == promised && !is_fragment, l4 })
    }
}

impl L4 {
    pub(super) fn of(protocol: u8, start: usize) -> Option<Self> {
        matches!(protocol, TCP | UDP).then_some(Self { protocol, start })
    }
}

/// What follows the extension headers of IPv6, the first of which is a `next` header at `at`; and whether one of them says
/// that this is a fragment.
fn behind_extensions(packet: &[u8], mut next: u8, mut at: usize) -> (Option<L4>, bool) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let mut is_fragment = false;
    for _ in 0..MAX_EXTENSIONS {
        let Some(extension) = packet.get(at..at + 8).filter(|_| !matches!(next, TCP | UDP)) else { break };
        let len = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(extension[1]) + 1) * 8,
            FRAGMENT => {
                is_fragment = true;
                // The upper 13 bits are the offset.
                if u16::from_be_bytes([extension[2], extension[3]]) >> 3 != 0 {
                    return (None, true);
                }
                8
            }
            _ => break,
        };
        next = extension[0];
        at += len;
    }
    (L4::of(next, at), is_fragment)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|pair| u16::from_be_bytes(*pair))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    /// An Ethernet header in front of `rest`.
    pub(crate) fn ethernet(ether_type: u16, rest: &[u8]) -> Vec<u8> {
        let mut frame = std::vec![1, 0x50, 0x56, 0x19, 0x20, 0xa7, 0x24, 0x8a, 7, 0xa5, 0x28, 0xc8];
        frame.extend_from_slice(&ether_type.to_be_bytes());
        frame.extend_from_slice(rest);
        frame
    }

    /// 1.1.1.1 to 2.2.2.2 with DF; checksum 0.
    pub(crate) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [high, low] = ((IPV4_LEN + payload.len()) as u16).to_be_bytes();
        let mut packet = std::vec![0x45, 3, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        packet.extend_from_slice(payload);
        packet
    }

    /// fd00::1 to fd00::2, flow label 0x12345.
    pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let [high, low] = (payload.len() as u16).to_be_bytes();
        let mut packet = std::vec![0x60, 0x31, 0x23, 0x45, high, low, next, 63];
        for last in [1, 2] {
            packet.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        packet.extend_from_slice(payload);
        packet
    }

    /// A datagram from port 1234 to 5678 without a checksum.
    pub(crate) fn udp(payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::new();
        for word in [1234u16, 5678, (8 + payload.len()) as u16, 0] {
            datagram.extend_from_slice(&word.to_be_bytes());
        }
        datagram.extend_from_slice(payload);
        datagram
    }

    fn l4_of(frame: &[u8]) -> Option<L4> {
        Layout::of(frame)?.ip?.l4
    }

    #[test]
    fn headers_are_found_behind_tags_options_and_extensions() {
        let plain = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
        assert_eq!(l4_of(&plain), Some(L4 { protocol: UDP, start: 34 }));
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0xac, 0x0c, 0x81, 0, 0, 7]);
        let layout = Layout::of(&tagged).expect("a frame");
        assert_eq!(
            (layout.tag, layout.ether_type, l4_of(&tagged).map(|l4| l4.start)),
            (Some(0xac0c), 0x0800, Some(42))
        );
        let mut options = plain.clone();
        (options[14], options[17]) = (0x46, options[17] + 4);
        options.splice(34..34, [0; 4]);
        assert_eq!(l4_of(&options), Some(L4 { protocol: UDP, start: 38 }));
        let hop_by_hop = [&[UDP, 0, 0, 0, 0, 0, 0, 0][..], &udp(b"")].concat();
        assert_eq!(l4_of(&ethernet(0x86dd, &ipv6(0, &hop_by_hop))), Some(L4 { protocol: UDP, start: 62 }));
    }

    #[test]
    fn what_is_not_whole_counts_as_payload() {
        let frame = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
        assert_eq!(Layout::of(&frame[..13]), None);
        assert_eq!(Layout::of(&frame[..33]).expect("a frame").ip, None);
        assert_eq!(Layout::of(&ethernet(0x8100, &[1])).map(|layout| layout.tag), Some(None));
        let cut = Layout::of(&frame[..40]).and_then(|layout| layout.ip).expect("an IP header");
        assert!(!cut.is_whole && cut.end == 40);
        let padded = [&frame[..], &[0; 20]].concat();
        let ip = Layout::of(&padded).and_then(|layout| layout.ip).expect("an IP header");
        assert!(ip.is_whole && ip.end == frame.len());
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let mut frame = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
        frame[20] = 0x20;
        assert!(Layout::of(&frame).and_then(|l| l.ip).is_some_and(|ip| !ip.is_whole && ip.l4.is_some()));
        frame[21] = 1;
        assert_eq!(l4_of(&frame), None);
        for (offset, has_ports) in [(0, true), (8, false)] {
            let fragment = [&[UDP, 0, 0, offset | 1, 0, 0, 0, 9][..], &udp(b"")].concat();
            let frame = ethernet(0x86dd, &ipv6(44, &fragment));
            assert!(Layout::of(&frame).and_then(|l| l.ip).is_some_and(|ip| !ip.is_whole));
            assert_eq!(l4_of(&frame).is_some(), has_ports);
        }
    }
}
