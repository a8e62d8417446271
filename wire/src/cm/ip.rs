//! The header of RDMA CM in the private data of a REQ and a SIDR_REQ: the addresses of the
//! connection (IBA annex A11; Linux `struct cma_hdr`). The destination port is part of the service
//! id.

use super::num::PrivateData;
use crate::bytes::{Reader, Writer};
use core::fmt;
use core::net::IpAddr;

/// Source and destination address of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPair {
    src: IpAddr,
    dst: IpAddr,
}

impl IpPair {
    /// Creates a pair; `src` is the address of the active side. `None` if the two have different IP
    /// versions.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        (src.is_ipv4() == dst.is_ipv4()).then_some(Self { src, dst })
    }

    /// Returns the active side's address.
    pub const fn src(&self) -> IpAddr {
        self.src
    }

    /// Returns the passive side's address.
    pub const fn dst(&self) -> IpAddr {
        self.dst
    }
}

/// The RDMA CM header of a REQ or SIDR_REQ.
///
/// | byte | bits | |
/// |---|---|---|
/// | 0 | 8 | version, 0 |
/// | 1 | 4 | IP version, 4 or 6; 4 more bits are reserved |
/// | 2 | 16 | source port |
/// | 4 | 128 | source address; IPv4 in the last 4 bytes, the others reserved |
/// | 20 | 128 | destination address |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpCmHeader {
    /// The active side's port, in host byte order.
    pub src_port: u16,
    /// Addresses of the active and the passive side.
    pub addresses: IpPair,
}

/// Reason why private data does not begin with an RDMA CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpCmError {
    /// The private data is shorter than the header.
    Length,
    /// The version is not 0.
    Version,
    /// The IP version is neither 4 nor 6: the request is not from an IP address.
    IpVersion,
}

impl fmt::Display for IpCmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "private data too short for the addresses",
            Self::Version => "unknown version of the addresses",
            Self::IpVersion => "addresses that are not of IP",
        })
    }
}

impl core::error::Error for IpCmError {}

impl IpCmHeader {
    /// Length on the wire, bytes.
    pub const LEN: usize = 36;
    const VERSION: u8 = 0;

    /// Parses the header of private data; also returns the program's data.
    ///
    /// # Errors
    /// [`IpCmError`] if there is no header of version 0 with IPv4 or IPv6 addresses.
    // clause: CM-IP-HEADER
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), IpCmError> {
        let mut from = Reader(private_data);
        let mut next = || -> Result<_, crate::bytes::ParseError> {
            Ok((*from.array::<2>()?, from.u16()?, *from.array::<16>()?, *from.array::<16>()?))
        };
        let ([version, ip_version], src_port, src, dst) = next().map_err(|_| IpCmError::Length)?;
        if version != Self::VERSION {
            return Err(IpCmError::Version);
        }
        let address: fn([u8; 16]) -> IpAddr = match ip_version >> 4 {
            4 => |[.., a, b, c, d]| [a, b, c, d].into(),
            6 => IpAddr::from,
            _ => return Err(IpCmError::IpVersion),
        };
        let addresses = IpPair { src: address(src), dst: address(dst) };
        Ok((Self { src_port, addresses }, from.0))
    }

    /// Returns the bytes on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let IpPair { src, dst } = self.addresses;
        let ip_version: u8 = if src.is_ipv4() { 4 } else { 6 };
        let mut bytes = [0; Self::LEN];
        let mut to = &mut bytes[..];
        // Cannot fail: the fields fill the array.
        let _ = to
            .array([Self::VERSION, ip_version << 4])
            .and_then(|()| to.array(self.src_port.to_be_bytes()))
            .and_then(|()| to.array(wire_bytes(src)))
            .and_then(|()| to.array(wire_bytes(dst)));
        bytes
    }

    /// Returns private data of this header and the program's data; `None` if the program's data is
    /// longer than `N` − 36 bytes.
    pub fn with_program_data<const N: usize>(&self, program_data: &[u8]) -> Option<PrivateData<N>> {
        let mut bytes = [0; N];
        let (head, room) = bytes.split_first_chunk_mut()?;
        *head = self.to_bytes();
        room.get_mut(..program_data.len())?.copy_from_slice(program_data);
        PrivateData::new(&bytes)
    }
}

const fn wire_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => (v4.to_bits() as u128).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    const HEADER: IpCmHeader = IpCmHeader {
        src_port: 50000,
        addresses: IpPair { src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)) },
    };

    // clause: CM-IP-HEADER
    #[test]
    fn ip_cm_headers_round_trip_with_private_data() {
        let v6 = IpCmHeader {
            src_port: 1,
            addresses: IpPair::new(Ipv6Addr::LOCALHOST.into(), "fd00::2".parse().unwrap()).unwrap(),
        };
        for header in [HEADER, v6] {
            let data = header.with_program_data::<92>(b"hello").unwrap();
            let (found, program_data) = IpCmHeader::parse(data.as_bytes()).unwrap();
            assert_eq!(found, header);
            assert_eq!((&program_data[..5], program_data.len()), (&b"hello"[..], 56));
            assert!(program_data[5..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(HEADER.to_bytes()[..4], [0, 0x40, 0xc3, 0x50]);
        assert_eq!(HEADER.to_bytes()[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    }

    // clause: CM-IP-HEADER
    #[test]
    fn wrong_version_or_length_is_refused() {
        let mut bytes = HEADER.to_bytes();
        assert_eq!(IpCmHeader::parse(&bytes[..35]), Err(IpCmError::Length));
        bytes[1] = 0x4f;
        assert_eq!(IpCmHeader::parse(&bytes), Ok((HEADER, &[][..])), "low bits are reserved");
        bytes[1] = 0x50;
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::IpVersion));
        bytes[0] = 1;
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::Version));
        assert!(HEADER.with_program_data::<92>(&[1; 56]).is_some());
        assert_eq!(HEADER.with_program_data::<92>(&[1; 57]), None);
        assert_eq!(HEADER.with_program_data::<35>(&[]), None);
        assert_eq!(IpPair::new(Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()), None);
    }
}
