//! Ethernet frames for flow steering: header fields ([`FrameKey`]), conditions on header fields
//! ([`FrameMatch`]), and checksums ([`checksum`]). Incomplete or unknown headers count as payload.

pub mod checksum;

use core::ops::Range;

/// Length of a [`FrameKey`] in bytes.
const KEY_LEN: usize = 64;

/// A header field for conditions, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Destination MAC, 6 bytes.
    DstMac,
    /// Source MAC, 6 bytes.
    SrcMac,
    /// EtherType after the last VLAN tag, 2 bytes.
    EtherType,
    /// Outermost VLAN tag, 2 bytes: priority 3 bits, DEI 1, VLAN 12.
    VlanTag,
    /// 1 with a VLAN tag, else 0, 1 byte.
    IsTagged,
    /// Version of a complete IP header: 4 or 6, else 0, 1 byte.
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
    const fn range(self) -> Range<usize> {
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

/// The header fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey([u8; KEY_LEN]);

impl FrameKey {
    /// Returns the key of a frame; `None` if it is shorter than an Ethernet header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let layout = Layout::of(frame)?;
        let mut key = Self([0; KEY_LEN]);
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
        let room = self.0.get_mut(field.range()).unwrap_or_default();
        room.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
    }

    /// Returns the bytes of a field; all zero where the frame does not have it.
    pub fn get(&self, field: Field) -> &[u8] {
        self.0.get(field.range()).unwrap_or_default()
    }

    /// Returns true if the frame is for a group of stations, the broadcast address included.
    pub fn is_multicast(&self) -> bool {
        self.0[0] & 1 != 0
    }
}

/// Error of conditions that no frame can match: two of them require different values of one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction;

/// Conditions on frames; the default matches all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMatch {
    /// Required values of the bits in `mask`; the other bits are zero.
    value: [u8; KEY_LEN],
    mask: [u8; KEY_LEN],
}

impl Default for FrameMatch {
    fn default() -> Self {
        Self { value: [0; KEY_LEN], mask: [0; KEY_LEN] }
    }
}

impl FrameMatch {
    /// Adds the condition that the bits of `field` in `mask` equal those of `value`. Both may be
    /// shorter than the field.
    ///
    /// # Errors
    /// [`Contradiction`]; the match is then invalid.
    pub fn require(&mut self, field: Field, value: &[u8], mask: &[u8]) -> Result<(), Contradiction> {
        let values = self.value.get_mut(field.range()).unwrap_or_default();
        let masks = self.mask.get_mut(field.range()).unwrap_or_default();
        for ((old_value, old_mask), (value, mask)) in values.iter_mut().zip(masks).zip(value.iter().zip(mask)) {
            if (*old_value ^ value) & *old_mask & mask != 0 {
                return Err(Contradiction);
            }
            *old_value |= value & mask;
            *old_mask |= mask;
        }
        Ok(())
    }

    /// Adds the condition that `field` equals `value`, like [`FrameMatch::require`] with a mask of
    /// all ones.
    ///
    /// # Errors
    /// Fails like [`FrameMatch::require`].
    pub fn require_exactly(&mut self, field: Field, value: &[u8]) -> Result<(), Contradiction> {
        self.require(field, value, &[0xff; 16])
    }

    /// Returns true if the frame with this key matches.
    #[inline]
    pub fn matches(&self, key: &FrameKey) -> bool {
        let rows = self.value.iter().zip(&self.mask).zip(&key.0);
        rows.fold(0, |differs, ((value, mask), byte)| differs | (value ^ byte) & mask) == 0
    }

    /// Returns the destination address, if exactly one is required.
    pub fn dst_mac(&self) -> Option<[u8; 6]> {
        let range = Field::DstMac.range();
        let is_whole = self.mask.get(range.clone())?.iter().all(|mask| *mask == 0xff);
        self.value.get(range)?.first_chunk().copied().filter(|_| is_whole)
    }
}

/// Size in bytes of the two addresses and the EtherType: the shortest frame.
pub const ETH_LEN: usize = 14;
/// Size of a VLAN tag in bytes.
pub const TAG_LEN: usize = 4;
/// Maximum number of VLAN tags; hardware reads two.
const MAX_TAGS: usize = 2;
const MAX_EXTENSIONS: usize = 8;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// The types of customer (802.1Q) and service (802.1ad) tags.
const ETHERTYPE_TAGS: [u16; 2] = [0x8100, 0x88a8];
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

pub(super) const IPV4_LEN: usize = 20;
pub(super) const IPV6_LEN: usize = 40;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The outermost VLAN tag.
    pub(super) tag: Option<u16>,
    /// The EtherType after the last tag.
    pub(super) ether_type: u16,
    pub(super) ip: Option<Ip>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    pub(super) is_v4: bool,
    pub(super) start: usize,
    /// End of the packet; padding of the frame follows.
    pub(super) end: usize,
    /// True if the frame is complete and not a fragment.
    pub(super) is_whole: bool,
    pub(super) l4: Option<L4>,
}

/// A TCP or UDP header. Of the fragments of a packet, only the first has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct L4 {
    pub(super) protocol: u8,
    pub(super) start: usize,
}

impl Layout {
    /// Finds the headers of a frame. Returns `None` if the frame is shorter than an Ethernet
    /// header.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let mut at = ETH_LEN;
        let (mut tag, mut ether_type) = (None, u16_at(frame, at - 2)?);
        for _ in 0..MAX_TAGS {
            let words = u16_at(frame, at).zip(u16_at(frame, at + 2));
            let Some((tci, next)) = words.filter(|_| ETHERTYPE_TAGS.contains(&ether_type)) else { break };
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
        let claimed = start + IPV6_LEN + usize::from(u16_at(header, 4)?);
        let end = claimed.min(frame.len());
        let (l4, is_fragment) = after_extensions(frame.get(..end)?, header[6], start + IPV6_LEN);
        Some(Self { is_v4: false, start, end, is_whole: end == claimed && !is_fragment, l4 })
    }
}

impl L4 {
    pub(super) fn of(protocol: u8, start: usize) -> Option<Self> {
        matches!(protocol, TCP | UDP).then_some(Self { protocol, start })
    }
}

/// Returns the protocol and position after the IPv6 extension headers, which begin with `next` at
/// `at`; and true for a fragment.
fn after_extensions(packet: &[u8], mut next: u8, mut at: usize) -> (Option<L4>, bool) {
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
pub(crate) mod tests;
