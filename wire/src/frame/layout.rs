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

/// What follows the extension headers of IPv6, the first of which is a `next` header at `at`; and
/// whether one of them says that this is a fragment.
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
pub(crate) mod tests;
