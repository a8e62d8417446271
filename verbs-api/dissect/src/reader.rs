//! Finds the RoCEv2 packets in a capture file, and counts other frames.

use roxe_wire::capture::{CaptureError, Direction, Frame, LinkType, frames, ip_packet};
use roxe_wire::{MAX_PAYLOAD, NetHeader, Packet, ParseError, ROCE_PORT, icrc};
use std::collections::BTreeMap;
use std::fmt;

/// Integrity of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// The ICRC is correct.
    Good,
    /// The bytes are not a packet.
    Malformed(ParseError),
    /// The ICRC is wrong.
    WrongIcrc,
    /// Captured and original length in bytes: only captured headers can be checked.
    Truncated(usize, usize),
}

impl Integrity {
    /// Returns true if the packet is known to be damaged.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Malformed(_) | Self::WrongIcrc)
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("icrc ok"),
            Self::Malformed(error) => write!(f, "malformed: {error}"),
            Self::WrongIcrc => f.write_str("icrc wrong: the packet was damaged on the way or sent so"),
            Self::Truncated(captured, length) => {
                write!(f, "truncated: {captured} of {length} bytes, icrc not captured")
            }
        }
    }
}

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'f> {
    /// Number of the frame in the file, from 1.
    pub frame: usize,
    /// Nanoseconds since the first frame.
    pub time: u64,
    /// Direction at the recording end; `None` if the file has no direction.
    pub direction: Option<Direction>,
    /// Number of the recording interface.
    pub interface: u32,
    /// Bytes of the frame before the IP header.
    pub link_header: &'f [u8],
    /// Bytes from the IP header on; the whole batch if the packet is a segment of a batch.
    pub ip: &'f [u8],
    /// Fields of the IP and UDP headers.
    pub net: NetHeader,
    /// Bytes from the BTH to the ICRC, as far as captured.
    pub bytes: &'f [u8],
    /// Result of the length and ICRC checks.
    pub integrity: Integrity,
    /// Comment of the file on the frame, or an empty text.
    pub remark: &'f str,
}

impl<'f> Captured<'f> {
    /// Returns the packet, unless it is malformed or truncated within its headers. The payload of a
    /// truncated packet is zeros.
    pub fn packet(&self) -> Option<Packet<'f>> {
        match self.integrity {
            Integrity::Truncated(_, length) => Packet::parse_truncated(self.bytes, length, ZEROS).ok(),
            _ => Packet::parse(self.bytes).ok(),
        }
    }

    /// Returns true if the payload is not captured completely.
    pub const fn is_truncated(&self) -> bool {
        matches!(self.integrity, Integrity::Truncated(..))
    }

    /// Returns true if a fault rule of the recording process dropped the packet.
    pub fn is_lost(&self) -> bool {
        self.has_effect("dropped")
    }

    /// Returns true if a switch or a fault rule of the recording process marked the packet (CE).
    pub fn is_marked(&self) -> bool {
        self.net.is_marked() || self.has_effect("marked CE")
    }

    /// Returns the fault rule of the recording process that changed the packet, and its effects.
    pub fn fate(&self) -> Option<&'f str> {
        self.remark.split_once(" | ").map(|(_, fate)| fate)
    }

    fn has_effect(&self, name: &str) -> bool {
        let effects = self.fate().and_then(|fate| fate.rsplit(": ").next());
        effects.is_some_and(|effects| effects.split(", ").any(|effect| effect == name))
    }
}

/// Replaces a payload that is not captured.
static ZEROS: &[u8] = &[0; MAX_PAYLOAD + 4];

/// An item of a capture file.
#[derive(Clone, Copy, Debug)]
pub enum Item<'f> {
    /// A RoCEv2 packet.
    Packet(Captured<'f>),
    /// A frame in which no RoCEv2 packet was found.
    Other(Other),
    /// The file cannot be read after this frame.
    Broken(usize, CaptureError),
}

/// Returns the items of `file`. Datagrams for which `is_other` is true are not packets. Fails if
/// the bytes are not a capture file.
pub fn items<'f>(
    file: &'f [u8],
    is_other: impl Fn(&[u8]) -> bool,
) -> Result<impl Iterator<Item = Item<'f>>, CaptureError> {
    let mut start = None;
    Ok((1..).zip(frames(file)?).flat_map(move |(number, frame)| match frame {
        Err(error) => vec![Item::Broken(number - 1, error)],
        Ok(frame) => {
            let time = frame.timestamp_ns.saturating_sub(*start.get_or_insert(frame.timestamp_ns));
            let packets = packets(&frame, &is_other);
            let ip = ip_packet(frame.link, frame.data).unwrap_or_default();
            let link_header = &frame.data[..frame.data.len() - ip.len()];
            let captured = packets.into_iter().map(|(net, bytes, length)| Captured {
                frame: number,
                time,
                direction: frame.direction,
                interface: frame.interface,
                link_header,
                ip,
                net,
                bytes,
                integrity: judge_cut(&net, bytes, length),
                remark: frame.comment,
            });
            let captured = captured.map(Item::Packet);
            let items: Vec<_> = captured.collect();
            if items.is_empty() { vec![Item::Other(Other::of(&frame))] } else { items }
        }
    }))
}

fn judge(net: &NetHeader, bytes: &[u8]) -> Integrity {
    match Packet::parse(bytes) {
        Err(error) => Integrity::Malformed(error),
        Ok(_) if !icrc::verify(net, bytes) => Integrity::WrongIcrc,
        Ok(_) => Integrity::Good,
    }
}

/// Checks a packet like [`judge`]; `length` is its number of bytes on the wire.
fn judge_cut(net: &NetHeader, bytes: &[u8], length: usize) -> Integrity {
    if bytes.len() == length {
        return judge(net, bytes);
    }
    match Packet::parse_truncated(bytes, length, ZEROS) {
        // The headers are truncated, or the packet is a batch whose segments cannot be found.
        Ok(_) | Err(ParseError::Truncated) => Integrity::Truncated(bytes.len(), length),
        Err(error) => Integrity::Malformed(error),
    }
}

/// Returns the RoCEv2 packets of a frame with their lengths on the wire: none, one, or the segments
/// of a batch (UDP_SEGMENT), which is captured before the device splits it.
fn packets<'f>(frame: &Frame<'f>, is_other: &impl Fn(&[u8]) -> bool) -> Vec<(NetHeader, &'f [u8], usize)> {
    let Some(Ok((net, payload, length))) = ip_packet(frame.link, frame.data).map(NetHeader::parse_truncated_ip) else {
        return Vec::new();
    };
    if is_other(payload) || (payload.len() < length && !frame.is_truncated()) {
        return Vec::new();
    }
    if payload.len() < length {
        return vec![(net, payload, length)];
    }
    let size = match judge(&net, payload) {
        Integrity::Good => payload.len(),
        _ => segment_size(&net, payload).unwrap_or(payload.len()),
    };
    let numbered = payload.chunks(size.max(1)).zip(0u16..);
    numbered.map(|(segment, index)| (segment_header(&net, index), segment, segment.len())).collect()
}

/// Returns the header of a segment: the kernel increments the IPv4 identification.
fn segment_header(net: &NetHeader, index: u16) -> NetHeader {
    let ident = if net.is_ipv4() { net.ident.wrapping_add(index) } else { net.ident };
    NetHeader { ident, ..*net }
}

/// Returns the segment size of a batch: the length at which the first segment is a valid packet.
fn segment_size(net: &NetHeader, payload: &[u8]) -> Option<usize> {
    /// `UDP_MAX_SEGMENTS` of Linux.
    const MAX_SEGMENTS: usize = 128;
    /// Upper limit for headers, pad and ICRC.
    const MAX_HEADERS: usize = 64;
    let shortest = payload.len().div_ceil(MAX_SEGMENTS).next_multiple_of(4);
    let longest = payload.len().saturating_sub(1).min(MAX_PAYLOAD + MAX_HEADERS);
    let mut sizes = (shortest..=longest).step_by(4);
    sizes.find(|size| payload.get(..*size).is_some_and(|first| judge(net, first) == Integrity::Good))
}

/// A frame without a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Other {
    /// A link layer that is not decoded (`LINKTYPE_*`).
    Link(u16),
    /// Another EtherType.
    EtherType(u16),
    /// Another IP protocol.
    Protocol(u8),
    /// Another UDP port.
    Port(u16),
    /// An IP fragment, or an IP packet with options.
    Fragment,
    /// A probe of roxe, or a datagram with inconsistent lengths.
    Roce,
    /// A frame that is too short for its headers.
    Short,
}

impl Other {
    /// Classifies a frame in which no packet was found.
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        if let LinkType::Other(number) = frame.link {
            return Self::Link(number);
        }
        match ip_packet(frame.link, frame.data) {
            Some(packet) => Self::of_ip(packet).unwrap_or(Self::Short),
            None if frame.link == LinkType::Ethernet => ether_type(frame.data).map_or(Self::Short, Self::EtherType),
            None => Self::Short,
        }
    }

    fn of_ip(packet: &[u8]) -> Option<Self> {
        let (protocol, payload) = match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<20>()?;
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
                if header[0] != 0x45 || fragment != 0 {
                    return Some(Self::Fragment);
                }
                (header[9], packet.get(20..)?)
            }
            6 => (*packet.get(6)?, packet.get(40..)?),
            _ => return None,
        };
        Some(match protocol {
            44 => Self::Fragment,
            17 => match u16::from_be_bytes([*payload.get(2)?, *payload.get(3)?]) {
                ROCE_PORT => Self::Roce,
                port => Self::Port(port),
            },
            protocol => Self::Protocol(protocol),
        })
    }

    /// Returns true if the frame may contain RoCEv2 packets that this crate does not decode.
    pub fn may_hide_packets(self) -> bool {
        match self {
            Self::Link(_) | Self::Fragment => true,
            Self::EtherType(number) => matches!(number, 0x8847 | 0x8848 | 0x8863 | 0x8864 | 0x8915 | 0x894f),
            Self::Protocol(number) => matches!(number, 4 | 41 | 47 | 50),
            Self::Port(number) => matches!(number, 4789 | 6081 | 8472 | 6635),
            Self::Roce | Self::Short => false,
        }
    }
}

/// Returns the EtherType after VLAN tags.
fn ether_type(frame: &[u8]) -> Option<u16> {
    frame.get(12..)?.as_chunks::<2>().0.iter().map(|two| u16::from_be_bytes(*two)).step_by(2).find(|number| {
        // Two bytes of tag control information separate the EtherTypes.
        !matches!(number, 0x8100 | 0x88a8 | 0x9100)
    })
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Link(number) => write!(f, "link type {number}"),
            Self::EtherType(0x0806) => f.write_str("ARP"),
            Self::EtherType(0x8847 | 0x8848) => f.write_str("MPLS"),
            Self::EtherType(0x8863 | 0x8864) => f.write_str("PPPoE"),
            Self::EtherType(0x8915) => f.write_str("RoCEv1"),
            Self::EtherType(number) => write!(f, "EtherType {number:#06x}"),
            Self::Protocol(1 | 58) => f.write_str("ICMP"),
            Self::Protocol(4 | 41) => f.write_str("IP in IP"),
            Self::Protocol(6) => f.write_str("TCP"),
            Self::Protocol(47) => f.write_str("GRE"),
            Self::Protocol(50) => f.write_str("IPsec"),
            Self::Protocol(number) => write!(f, "IP protocol {number}"),
            Self::Port(4789 | 8472) => f.write_str("VXLAN"),
            Self::Port(6081) => f.write_str("GENEVE"),
            Self::Port(6635) => f.write_str("MPLS in UDP"),
            Self::Port(number) => write!(f, "UDP to port {number}"),
            Self::Fragment => f.write_str("IP fragments or options"),
            Self::Roce => f.write_str("no packets of UDP port 4791"),
            Self::Short => f.write_str("too short"),
        }
    }
}

/// Counts of other frames.
#[derive(Clone, Debug, Default)]
pub struct Others(BTreeMap<Other, usize>);

impl Others {
    /// Counts a frame.
    pub fn add(&mut self, other: Other) {
        *self.0.entry(other).or_default() += 1;
    }

    /// Returns the total.
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }

    /// Returns the counts of frames that may contain packets.
    pub fn unseen(&self) -> Self {
        Self(self.0.iter().filter(|(other, _)| other.may_hide_packets()).map(|(other, n)| (*other, *n)).collect())
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(|(other, count)| format!("{other}: {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Bth, Header, Kind, Psn, Qpn, Request, SendTail};
    use std::net::Ipv4Addr;

    fn net(ident: u16) -> NetHeader {
        let loopback = Ipv4Addr::LOCALHOST.into();
        NetHeader { src: loopback, dst: loopback, src_port: 0xc000, ident, ..NetHeader::default() }
    }

    fn segment(psn: u32, len: usize, ident: u16) -> Vec<u8> {
        let header = Header {
            bth: Bth::new(Qpn::new(0x11), Psn::new(psn)),
            kind: Kind::RcRequest(Request::SendOnly(SendTail::Plain)),
        };
        let mut datagram = vec![0; header.padded_len(len) + icrc::LEN];
        let end = datagram.len() - icrc::LEN;
        header.emit(len, &mut datagram[..end]).unwrap().fill(psn as u8);
        icrc::seal(&net(ident), &mut datagram);
        datagram
    }

    #[test]
    fn batch_is_split_into_segments() {
        let batch = [segment(1, 64, 7), segment(2, 64, 8), segment(3, 10, 9)];
        let size = segment_size(&net(7), &batch.concat()).unwrap();
        assert_eq!(size, batch[0].len());
        for (index, part) in batch.concat().chunks(size).enumerate() {
            assert_eq!(judge(&segment_header(&net(7), index as u16), part), Integrity::Good, "{index}");
        }
    }

    #[test]
    fn damaged_packet_is_not_a_batch() {
        let mut datagram = segment(1, 64, 0);
        datagram[20] ^= 1;
        assert_eq!(judge(&net(0), &datagram), Integrity::WrongIcrc);
        assert_eq!(segment_size(&net(0), &datagram), None);
        assert_eq!(segment_size(&net(0), &[]), None);
    }

    #[test]
    fn remark_shows_packets_dropped_by_fault_rules() {
        let is_lost = |remark| {
            let packet = segment(1, 4, 0);
            let (direction, integrity) = (None, Integrity::Good);
            let (link_header, ip, net): (&[u8], &[u8], _) = (&[], &[], net(0));
            let bytes = &packet;
            Captured { frame: 1, time: 0, direction, interface: 0, link_header, ip, net, bytes, integrity, remark }
                .is_lost()
        };
        assert!(is_lost("qp 0x11 wr_id 7 first | rule 2: drop 3%: dropped"));
        assert!(is_lost("qp 0x11 wr_id 7 first | fault: dropped, marked CE"));
        assert!(!is_lost("qp 0x11 wr_id 7 first | rule 2: drop 3%: copy"));
        assert!(!is_lost("dropped") && !is_lost(""));
    }

    fn frame(link: LinkType, data: &[u8]) -> String {
        Other::of(&Frame { data, ..Frame::new(link) }).to_string()
    }

    /// Returns an Ethernet frame with an IPv4 packet of this protocol, to this port.
    fn ipv4(protocol: u8, port: u16) -> Vec<u8> {
        let mut data = vec![0; 12];
        data.extend([8, 0, 0x45]);
        data.resize(14 + 28, 0);
        data[23] = protocol;
        data[36..38].copy_from_slice(&port.to_be_bytes());
        data
    }

    #[test]
    fn tunnels_and_unknown_links_are_named() {
        assert_eq!(frame(LinkType::Other(127), &[]), "link type 127");
        assert_eq!(frame(LinkType::Ethernet, &ipv4(17, 4789)), "VXLAN");
        assert_eq!(frame(LinkType::Ethernet, &ipv4(17, 53)), "UDP to port 53");
        assert_eq!(frame(LinkType::Ethernet, &ipv4(47, 0)), "GRE");
        let tagged: Vec<u8> = [[0; 12].as_slice(), &[0x81, 0, 0, 5, 0x88, 0x47]].concat();
        assert_eq!(frame(LinkType::Ethernet, &tagged), "MPLS");
        assert_eq!(frame(LinkType::Ethernet, &[0; 3]), "too short");
        let mut fragment = ipv4(17, 4791);
        fragment[21] = 1;
        assert_eq!(frame(LinkType::Ethernet, &fragment), "IP fragments or options");
    }

    #[test]
    fn unseen_frames_are_those_that_may_hold_packets() {
        let mut others = Others::default();
        for other in [Other::Port(53), Other::Port(4789), Other::Port(4789), Other::Link(9)] {
            others.add(other);
        }
        assert_eq!((others.count(), others.unseen().to_string().as_str()), (4, "link type 9: 1, VXLAN: 2"));
    }
}
