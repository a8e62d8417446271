//! What the headers of a frame say as one row of bytes, so that a match is a comparison under a
//! mask.
//!
//! Touches [`Layout`].

use super::layout::{ETH_LEN, IPV4_LEN, IPV6_LEN, Layout};
use core::ops::Range;

/// Bytes of a key.
const LEN: usize = 64;

/// Something that a match can ask for. All numbers are in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Destination MAC, 6 bytes.
    DstMac,
    /// Source MAC, 6 bytes.
    SrcMac,
    /// EtherType behind the last VLAN tag, 2 bytes.
    EtherType,
    /// Outermost VLAN tag, 2 bytes: priority 3 bits, DEI 1, VLAN 12.
    VlanTag,
    /// Whether there is a VLAN tag: 1 or 0, 1 byte.
    IsTagged,
    /// Version of a whole IP header: 4 or 6, else 0, 1 byte.
    IpVersion,
    /// 6 or 17 where there is a TCP or UDP header, else 0, 1 byte.
    L4,
    /// Protocol of IPv4, next header of IPv6, 1 byte.
    Protocol,
    /// Source address: 4 bytes of IPv4 or 16 of IPv6.
    SrcIp,
    /// Destination address: 4 bytes of IPv4 or 16 of IPv6.
    DstIp,
    /// TOS of IPv4, traffic class of IPv6, 1 byte.
    TrafficClass,
    /// TTL of IPv4, hop limit of IPv6, 1 byte.
    HopLimit,
    /// Flags of IPv4, with the numbers of the kernel's `enum ib_ipv4_flags`: 2 don't fragment, 4
    /// more fragments; 1 byte.
    Ipv4Flags,
    /// Flow label of IPv6: 20 bits in 4 bytes.
    FlowLabel,
    /// TCP or UDP destination port, 2 bytes.
    DstPort,
    /// TCP or UDP source port, 2 bytes.
    SrcPort,
}

impl Field {
    /// Where it lies in a key.
    const fn place(self) -> Range<usize> {
        match self {
            Self::DstMac => 0..6,
            Self::SrcMac => 6..12,
            Self::EtherType => 12..14,
            Self::VlanTag => 14..16,
            Self::SrcIp => 16..32,
            Self::DstIp => 32..48,
            Self::FlowLabel => 48..52,
            Self::DstPort => 52..54,
            Self::SrcPort => 54..56,
            Self::IsTagged => 56..57,
            Self::IpVersion => 57..58,
            Self::L4 => 58..59,
            Self::Protocol => 59..60,
            Self::TrafficClass => 60..61,
            Self::HopLimit => 61..62,
            Self::Ipv4Flags => 62..63,
        }
    }
}

/// What the headers of one frame say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey([u8; LEN]);

impl FrameKey {
    /// The key of a frame; `None` if it is shorter than an Ethernet header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let layout = Layout::of(frame)?;
        let mut key = Self([0; LEN]);
        key.set(Field::DstMac, frame.get(..ETH_LEN)?);
        key.set(Field::SrcMac, frame.get(6..ETH_LEN)?);
        key.set(Field::EtherType, &layout.ether_type.to_be_bytes());
        if let Some(tag) = layout.tag {
            key.set(Field::VlanTag, &tag.to_be_bytes());
            key.set(Field::IsTagged, &[1]);
        }
        let Some(ip) = layout.ip else { return Some(key) };
        if ip.is_v4 {
            key.set_ipv4(frame.get(ip.start..)?.first_chunk()?);
        } else {
            key.set_ipv6(frame.get(ip.start..)?.first_chunk()?);
        }
        let ports = ip.l4.and_then(|l4| Some((l4, frame.get(..ip.end)?.get(l4.start..l4.start + 4)?)));
        if let Some((l4, ports)) = ports {
            key.set(Field::L4, &[l4.protocol]);
            key.set(Field::SrcPort, ports);
            key.set(Field::DstPort, &ports[2..]);
        }
        Some(key)
    }

    fn set_ipv4(&mut self, header: &[u8; IPV4_LEN]) {
        let has = |bit: u8, flag: u8| if header[6] & bit != 0 { flag } else { 0 };
        self.set(Field::IpVersion, &[4]);
        self.set(Field::TrafficClass, &header[1..]);
        self.set(Field::Ipv4Flags, &[has(0x40, 2) | has(0x20, 4)]);
        self.set(Field::HopLimit, &header[8..]);
        self.set(Field::Protocol, &header[9..]);
        self.set(Field::SrcIp, &header[12..16]);
        self.set(Field::DstIp, &header[16..]);
    }

    fn set_ipv6(&mut self, header: &[u8; IPV6_LEN]) {
        let [first, class, label_2, label_3, ..] = *header;
        self.set(Field::IpVersion, &[6]);
        self.set(Field::TrafficClass, &[first << 4 | class >> 4]);
        self.set(Field::FlowLabel, &[0, class & 0xf, label_2, label_3]);
        self.set(Field::Protocol, &header[6..]);
        self.set(Field::HopLimit, &header[7..]);
        self.set(Field::SrcIp, &header[8..24]);
        self.set(Field::DstIp, &header[24..]);
    }

    /// Writes the first bytes of `value`.
    fn set(&mut self, field: Field, value: &[u8]) {
        let room = self.0.get_mut(field.place()).unwrap_or_default();
        room.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
    }

    /// The bytes of a field; all zero where the frame does not have it.
    pub fn get(&self, field: Field) -> &[u8] {
        self.0.get(field.place()).unwrap_or_default()
    }

    /// Whether the frame is for a group of stations, the broadcast address included.
    pub fn is_multicast(&self) -> bool {
        self.0[0] & 1 != 0
    }
}

/// No frame can match: the same bits are asked to be 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction;

/// What frames are wanted; the default wants all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMatch {
    /// What the header fields under `mask` must be; zero where `mask` is.
    value: [u8; LEN],
    mask: [u8; LEN],
}

impl Default for FrameMatch {
    fn default() -> Self {
        Self { value: [0; LEN], mask: [0; LEN] }
    }
}

impl FrameMatch {
    /// Also asks that the bits of `field` under `mask` are those of `value`. Both may be shorter
    /// than the field.
    ///
    /// # Errors
    /// [`Contradiction`]; the match is then not to be used.
    pub fn require(&mut self, field: Field, value: &[u8], mask: &[u8]) -> Result<(), Contradiction> {
        let values = self.value.get_mut(field.place()).unwrap_or_default();
        let masks = self.mask.get_mut(field.place()).unwrap_or_default();
        for ((old_value, old_mask), (value, mask)) in values.iter_mut().zip(masks).zip(value.iter().zip(mask)) {
            if (*old_value ^ value) & *old_mask & mask != 0 {
                return Err(Contradiction);
            }
            *old_value |= value & mask;
            *old_mask |= mask;
        }
        Ok(())
    }

    /// As [`FrameMatch::require`], with all bits of `value`.
    ///
    /// # Errors
    /// As [`FrameMatch::require`].
    pub fn require_exactly(&mut self, field: Field, value: &[u8]) -> Result<(), Contradiction> {
        self.require(field, value, &[0xff; 16])
    }

    /// Whether the frame with this key is wanted.
    #[inline]
    pub fn matches(&self, key: &FrameKey) -> bool {
        let rows = self.value.iter().zip(&self.mask).zip(&key.0);
        rows.fold(0, |differs, ((value, mask), byte)| differs | (value ^ byte) & mask) == 0
    }

    /// The destination address, if exactly one is asked for.
    pub fn dst_mac(&self) -> Option<[u8; 6]> {
        let place = Field::DstMac.place();
        let is_whole = self.mask.get(place.clone())?.iter().all(|mask| *mask == 0xff);
        self.value.get(place)?.first_chunk().copied().filter(|_| is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::layout::tests::{ethernet, ipv4, ipv6, udp};
    extern crate std;
    use proptest::prelude::*;

    fn key(frame: &[u8]) -> FrameKey {
        FrameKey::of(frame).expect("long enough")
    }

    #[test]
    fn every_field_of_ipv4_is_read() {
        let key = key(&ethernet(0x0800, &ipv4(17, &udp(b"payload"))));
        for (field, bytes) in [
            (Field::DstMac, &[1, 0x50, 0x56, 0x19, 0x20, 0xa7][..]),
            (Field::SrcMac, &[0x24, 0x8a, 7, 0xa5, 0x28, 0xc8]),
            (Field::EtherType, &[8, 0]),
            (Field::VlanTag, &[0, 0]),
            (Field::IsTagged, &[0]),
            (Field::IpVersion, &[4]),
            (Field::L4, &[17]),
            (Field::Protocol, &[17]),
            (Field::TrafficClass, &[3]),
            (Field::HopLimit, &[64]),
            (Field::Ipv4Flags, &[2]),
            (Field::DstPort, &5678u16.to_be_bytes()),
            (Field::SrcPort, &1234u16.to_be_bytes()),
        ] {
            assert_eq!(key.get(field), bytes, "{field:?}");
        }
        assert_eq!((&key.get(Field::SrcIp)[..4], &key.get(Field::DstIp)[..4]), (&[1; 4][..], &[2; 4][..]));
        assert!(key.is_multicast());
    }

    #[test]
    fn every_field_of_tagged_ipv6_is_read() {
        let mut frame = ethernet(0x86dd, &ipv6(17, &udp(b"")));
        frame.splice(12..12, [0x81, 0, 0xbc, 0x0c]);
        let key = key(&frame);
        for (field, bytes) in [
            (Field::EtherType, &[0x86, 0xdd][..]),
            (Field::VlanTag, &[0xbc, 0x0c]),
            (Field::IsTagged, &[1]),
            (Field::IpVersion, &[6]),
            (Field::L4, &[17]),
            (Field::TrafficClass, &[3]),
            (Field::HopLimit, &[63]),
            (Field::FlowLabel, &[0, 1, 0x23, 0x45]),
            (Field::SrcIp, &frame[26..42]),
            (Field::DstIp, &frame[42..58]),
            (Field::DstPort, &5678u16.to_be_bytes()),
        ] {
            assert_eq!(key.get(field), bytes, "{field:?}");
        }
    }

    #[test]
    fn a_match_looks_at_the_bits_under_its_mask_only() {
        let key = key(&ethernet(0x0800, &ipv4(17, &udp(b""))));
        let mut wanted = FrameMatch::default();
        assert!(wanted.mask == [0; LEN] && wanted.matches(&key));
        wanted.require(Field::DstIp, &[2, 2, 9, 9], &[0xff, 0xff, 0, 0]).expect("no contradiction");
        assert!(wanted.matches(&key) && wanted.dst_mac().is_none());
        wanted.require_exactly(Field::DstMac, &[1, 0x50, 0x56, 0x19, 0x20, 0xa7]).expect("no contradiction");
        assert!(wanted.matches(&key) && wanted.dst_mac().is_some());
        wanted.require_exactly(Field::L4, &[6]).expect("no contradiction");
        assert!(!wanted.matches(&key));
    }

    #[test]
    fn asking_for_both_values_of_a_bit_is_a_contradiction() {
        let mut wanted = FrameMatch::default();
        wanted.require(Field::EtherType, &[8, 0], &[0xff, 0xff]).expect("the first");
        assert_eq!(wanted.require(Field::EtherType, &[8, 6], &[0xff, 0xf0]), Ok(()));
        assert_eq!(wanted.require(Field::EtherType, &[8, 6], &[0xff, 0xff]), Err(Contradiction));
    }

    proptest! {
        /// Any bytes have a key or are too short, and match what was read from them under any mask.
        #[test]
        fn a_frame_matches_its_own_fields(frame in prop::collection::vec(any::<u8>(), 0..100), mask in any::<[u8; 16]>()) {
            let Some(key) = FrameKey::of(&frame) else {
                prop_assert!(frame.len() < ETH_LEN);
                return Ok(());
            };
            let mut wanted = FrameMatch::default();
            for field in [Field::DstMac, Field::SrcIp, Field::DstPort, Field::Protocol] {
                prop_assert_eq!(wanted.require(field, key.get(field), &mask), Ok(()));
            }
            prop_assert!(wanted.matches(&key));
        }
    }
}
