//! Frames of a capture that are no RoCEv2 packets: what they are, so that a packet inside of a
//! tunnel or behind an unknown link header is not passed over without a word. Touches nothing.

use roxe_wire::ROCE_PORT;
use roxe_wire::capture::{Frame, LinkType, ip_packet};
use std::collections::BTreeMap;
use std::fmt;

/// What a frame without a RoCEv2 packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Other {
    /// A frame of a link whose header is not known, by its number (`LINKTYPE_*`).
    Link(u16),
    /// A protocol of Ethernet.
    EtherType(u16),
    /// A protocol of IP.
    Protocol(u8),
    /// A datagram to another UDP port.
    Port(u16),
    /// A fragment of an IP packet, or one with options.
    Fragment,
    /// A datagram of roxe itself, or one that contradicts its lengths.
    Roce,
    /// Too short to tell.
    Short,
}

impl Other {
    /// What `frame`, in which no packet was found, is.
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

    /// Returns true if RoCEv2 packets may be inside, which are not looked for.
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

/// The EtherType behind VLAN tags.
fn ether_type(frame: &[u8]) -> Option<u16> {
    frame.get(12..)?.as_chunks::<2>().0.iter().map(|two| u16::from_be_bytes(*two)).step_by(2).find(|number| {
        // A tag has two bytes more.
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

/// How many there are of each.
#[derive(Clone, Debug, Default)]
pub struct Others(BTreeMap<Other, usize>);

impl Others {
    /// One more.
    pub fn add(&mut self, other: Other) {
        *self.0.entry(other).or_default() += 1;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }

    /// Those in which packets may be that are not looked for.
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

    fn frame(link: LinkType, data: &[u8]) -> String {
        Other::of(&Frame { data, ..Frame::new(link) }).to_string()
    }

    /// An Ethernet header and an IPv4 packet of this protocol, to this port if it has one.
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
    fn only_what_may_hide_packets_is_unseen() {
        let mut others = Others::default();
        for other in [Other::Port(53), Other::Port(4789), Other::Port(4789), Other::Link(9)] {
            others.add(other);
        }
        assert_eq!((others.count(), others.unseen().to_string().as_str()), (4, "link type 9: 1, VXLAN: 2"));
    }
}
