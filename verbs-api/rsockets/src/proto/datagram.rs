//! Headers of datagrams: over UDP until the peer's queue pair is known, over UD afterwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// First word of the header over UDP.
const TAG: u32 = 0x5555_5555;
/// Bytes of the header over UDP, by IP version.
const UDP_V4_LEN: usize = 16;
const UDP_V6_LEN: usize = 28;
/// Bytes of the header over UD, by IP version.
const UD_V4_LEN: usize = 8;
const UD_V6_LEN: usize = 24;
/// Maximum bytes of either header.
pub(crate) const MAX_HEADER: usize = UDP_V6_LEN;
/// Maximum bytes of a datagram with its header.
pub(crate) const MAX_DATAGRAM: usize = 2048;

const OP_DATA: u8 = 0;
const OP_CONTROL: u8 = 7;

/// The header over UDP, which announces the sender's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpHeader {
    /// True if the program's data follows. No data follows in an answer.
    pub(crate) data: bool,
    /// Queue pair number of the sender.
    pub(crate) qpn: u32,
    /// Address of the sender.
    pub(crate) addr: IpAddr,
}

/// An encoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderBytes {
    bytes: [u8; MAX_HEADER],
    /// Number of used bytes.
    len: usize,
}

impl HeaderBytes {
    /// Returns a header that ends with `address`, and the IP version of `address`, which selects
    /// the header's length.
    fn ending_with(address: IpAddr, [v4, v6]: [usize; 2]) -> (Self, u8) {
        let mut bytes = [0; MAX_HEADER];
        match address {
            IpAddr::V4(address) => {
                bytes[v4 - 4..v4].copy_from_slice(&address.octets());
                (Self { bytes, len: v4 }, 4)
            }
            IpAddr::V6(address) => {
                bytes[v6 - 16..v6].copy_from_slice(&address.octets());
                (Self { bytes, len: v6 }, 6)
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl UdpHeader {
    // clause: RSOCK-UDP-HEADER
    pub(crate) fn encode(&self) -> HeaderBytes {
        let (mut out, version) = HeaderBytes::ending_with(self.addr, [UDP_V4_LEN, UDP_V6_LEN]);
        out.bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        out.bytes[4] = version;
        out.bytes[5] = if self.data { OP_DATA } else { OP_CONTROL };
        out.bytes[6] = out.len as u8;
        out.bytes[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        out
    }

    /// Decodes the header and the data after it; `None` if invalid or of another IP version.
    // clause: RSOCK-UDP-CHECK
    pub(crate) fn decode(packet: &[u8], from: SocketAddr) -> Option<(Self, &[u8])> {
        let (head, rest) = packet.split_first_chunk::<12>()?;
        let [t0, t1, t2, t3, version, op, len, _, _, q0, q1, q2] = *head;
        let data = match op {
            OP_DATA => true,
            OP_CONTROL => false,
            _ => return None,
        };
        let addr: IpAddr = match (version, usize::from(len), from) {
            (4, UDP_V4_LEN, SocketAddr::V4(_)) => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
            (6, UDP_V6_LEN, SocketAddr::V6(_)) => Ipv6Addr::from(*rest.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let qpn = u32::from_be_bytes([0, q0, q1, q2]);
        let body = packet.get(usize::from(len)..)?;
        (u32::from_be_bytes([t0, t1, t2, t3]) == TAG).then_some((Self { data, qpn, addr }, body))
    }
}

/// Encodes the header over UD: the address of the sending socket.
// clause: RSOCK-UD-HEADER
pub(crate) fn encode_source(source: SocketAddr) -> HeaderBytes {
    let (mut out, version) = HeaderBytes::ending_with(source.ip(), [UD_V4_LEN, UD_V6_LEN]);
    (out.bytes[0], out.bytes[1]) = (version, out.len as u8);
    out.bytes[2..4].copy_from_slice(&source.port().to_be_bytes());
    if let SocketAddr::V6(addr) = source {
        out.bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
    }
    out
}

/// Decodes the sender of a UD datagram, and the data; `None` if the header is invalid.
pub(crate) fn decode_source(packet: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (head, rest) = packet.split_first_chunk::<4>()?;
    let [version, len, high, low] = *head;
    let port = u16::from_be_bytes([high, low]);
    match (version, usize::from(len)) {
        (4, UD_V4_LEN) => {
            let (addr, data) = rest.split_first_chunk::<4>()?;
            Some((SocketAddr::new(Ipv4Addr::from(*addr).into(), port), data))
        }
        (6, UD_V6_LEN) => {
            let (flow, rest) = rest.split_first_chunk::<4>()?;
            let (addr, data) = rest.split_first_chunk::<16>()?;
            let flow = u32::from_be_bytes(*flow);
            Some((SocketAddrV6::new(Ipv6Addr::from(*addr), port, flow, 0).into(), data))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "10.0.0.1:7000";
    const V6: &str = "[fd00::1]:7000";

    // clause: RSOCK-UDP-HEADER
    #[test]
    fn udp_header_matches_the_wire_format() {
        let header = UdpHeader { data: true, qpn: 0x0012_3456, addr: [10, 0, 0, 1].into() };
        let bytes = header.encode();
        let expected = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 1];
        assert_eq!(bytes.as_slice(), expected);
        let packet = [bytes.as_slice(), b"hello"].concat();
        assert_eq!(UdpHeader::decode(&packet, V4.parse().unwrap()), Some((header, &b"hello"[..])));
        let answer = UdpHeader { data: false, qpn: 7, addr: "fd00::1".parse().unwrap() };
        let bytes = answer.encode();
        assert_eq!(bytes.as_slice()[4..8], [6, 7, 28, 0]);
        assert_eq!(bytes.as_slice().len(), 28);
        assert_eq!(UdpHeader::decode(bytes.as_slice(), V6.parse().unwrap()), Some((answer, &[][..])));
    }

    // clause: RSOCK-UDP-CHECK
    #[test]
    fn invalid_udp_headers_are_dropped() {
        let good = UdpHeader { data: true, qpn: 1, addr: [10, 0, 0, 1].into() }.encode();
        let good = good.as_slice();
        for len in 0..good.len() {
            assert_eq!(UdpHeader::decode(&good[..len], V4.parse().unwrap()), None);
        }
        assert_eq!(UdpHeader::decode(good, V6.parse().unwrap()), None, "IPv4 header from an IPv6 sender");
        for (at, value) in [(0, 0x54), (4, 6), (5, 3), (6, 28), (6, 0)] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert_eq!(UdpHeader::decode(&bad, V4.parse().unwrap()), None);
        }
    }

    // clause: RSOCK-UD-HEADER
    #[test]
    fn ud_header_matches_the_wire_format() {
        let v4 = encode_source(V4.parse().unwrap());
        assert_eq!(v4.as_slice(), [4, 8, 0x1b, 0x58, 10, 0, 0, 1]);
        let packet = [v4.as_slice(), b"data"].concat();
        assert_eq!(decode_source(&packet), Some((V4.parse().unwrap(), &b"data"[..])));
        let v6 = encode_source(V6.parse().unwrap());
        assert_eq!(v6.as_slice()[..8], [6, 24, 0x1b, 0x58, 0, 0, 0, 0]);
        assert_eq!(decode_source(v6.as_slice()), Some((V6.parse().unwrap(), &[][..])));
        for bad in [&[4, 24, 0, 1, 0, 0, 0, 0][..], &[6, 8, 0, 1, 0, 0, 0, 0], &[4, 8, 0, 1, 9], &[]] {
            assert_eq!(decode_source(bad), None);
        }
    }
}
