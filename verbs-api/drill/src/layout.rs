//! A table with the place of every field of every packet, and the ICRC.
//!
//! Only the names of opcodes come from `roxe_wire`. With the encoders of `roxe_wire`, the judge
//! would share roxe's mistakes, and could not write illegal packets.

use roxe_wire::{NetHeader, Opcode};
use std::sync::LazyLock;

pub(crate) const BTH_LEN: usize = 12;
pub(crate) const ICRC_LEN: usize = 4;

/// A field: its name in scripts, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// First bit, counted from the start of the packet.
    at: usize,
    bits: usize,
}

impl Field {
    /// Returns true if the field consists of whole bytes.
    const fn is_of_bytes(&self) -> bool {
        self.at.is_multiple_of(8) && self.bits.is_multiple_of(8)
    }

    /// Returns the value in `packet`; `None` if the packet is too short.
    pub(crate) fn get(&self, packet: &[u8]) -> Option<u64> {
        if self.is_of_bytes() {
            let bytes = packet.get(self.at / 8..(self.at + self.bits) / 8)?;
            return Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        }
        let bit = |at: usize| packet.get(at / 8).map(|byte| u64::from(byte >> (7 - at % 8) & 1));
        (self.at..self.at + self.bits).try_fold(0, |value, at| Some(value << 1 | bit(at)?))
    }

    /// Writes the low bits of `value`, as far as the packet reaches.
    pub(crate) fn set(&self, packet: &mut [u8], value: u64) {
        if self.is_of_bytes() {
            let (value, len) = (value.to_be_bytes(), self.bits / 8);
            let room = packet.get_mut(self.at / 8..).unwrap_or_default();
            room.iter_mut().zip(&value[value.len() - len..]).for_each(|(byte, value)| *byte = *value);
            return;
        }
        for (index, at) in (self.at..self.at + self.bits).rev().enumerate() {
            let Some(byte) = packet.get_mut(at / 8) else { continue };
            let mask = 1 << (7 - at % 8);
            *byte = if value >> index & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
    }

    /// Returns the bits of `value` that fit into this field.
    pub(crate) const fn fit(&self, value: u64) -> u64 {
        if self.bits >= 64 { value } else { value & ((1 << self.bits) - 1) }
    }
}

/// Fields of the BTH: name and bits.
const BTH: &[(&str, usize)] = &[
    ("opcode", 8),
    ("solicited", 1),
    ("migreq", 1),
    ("pad", 2),
    ("tver", 4),
    ("pkey", 16),
    ("fecn", 1),
    ("becn", 1),
    ("resv6", 6),
    ("dqpn", 24),
    ("ackreq", 1),
    ("resv7", 7),
    ("psn", 24),
];
const XRCETH: &[(&str, usize)] = &[("resv8", 8), ("srqn", 24)];
const DETH: &[(&str, usize)] = &[("qkey", 32), ("resv8", 8), ("sqpn", 24)];
const RETH: &[(&str, usize)] = &[("va", 64), ("rkey", 32), ("dmalen", 32)];
const ATOMICETH: &[(&str, usize)] = &[("va", 64), ("rkey", 32), ("swap", 64), ("compare", 64)];
const AETH: &[(&str, usize)] = &[("syndrome", 8), ("msn", 24)];
const ATOMICACKETH: &[(&str, usize)] = &[("original", 64)];
const IMMDT: &[(&str, usize)] = &[("imm", 32)];
const IETH: &[(&str, usize)] = &[("invalidate", 32)];
const FETH: &[(&str, usize)] = &[("resv26", 26), ("selectivity", 2), ("placement", 4)];
const RESERVED_16: &[(&str, usize)] = &[("reserved", 64), ("reserved2", 64)];

/// Returns the extended headers of an opcode byte in their order; none for unknown opcodes.
fn extended(opcode: u8) -> Vec<&'static [(&'static str, usize)]> {
    let mut headers = match opcode >> 5 {
        0b011 => vec![DETH],
        0b100 => return if opcode == 0x81 { vec![RESERVED_16] } else { Vec::new() },
        0b101 if !(0x0d..=0x12).contains(&(opcode & 0x1f)) => vec![XRCETH],
        0b000 | 0b001 | 0b101 => Vec::new(),
        _ => return Vec::new(),
    };
    let more: &[_] = match opcode & 0x1f {
        0x03 | 0x05 | 0x09 => &[IMMDT],
        0x06 | 0x0a | 0x0c | 0x1d => &[RETH],
        0x0b => &[RETH, IMMDT],
        0x0d | 0x0f | 0x10 | 0x11 => &[AETH],
        0x12 => &[AETH, ATOMICACKETH],
        0x13 | 0x14 => &[ATOMICETH],
        0x16 | 0x17 => &[IETH],
        0x1c => &[FETH, RETH],
        _ => &[],
    };
    headers.extend_from_slice(more);
    headers
}

/// Returns the fields of a packet with this opcode byte, and the length of its headers.
pub(crate) fn fields(opcode: u8) -> (&'static [Field], usize) {
    static ALL: LazyLock<Vec<(Vec<Field>, usize)>> = LazyLock::new(|| (0..=255).map(all_fields).collect());
    let (fields, len) = &ALL[usize::from(opcode)];
    (fields, *len)
}

/// Returns the value of the field with this name, if the opcode has the field.
pub(crate) fn get(packet: &[u8], name: &str) -> Option<u64> {
    let (fields, _) = fields(*packet.first()?);
    fields.iter().find(|field| field.name == name)?.get(packet)
}

fn all_fields(opcode: u8) -> (Vec<Field>, usize) {
    let headers = std::iter::once(BTH).chain(extended(opcode));
    let mut fields = Vec::new();
    let len = place(headers.flatten().copied(), 0, &mut fields);
    (fields, len / 8)
}

/// Adds consecutive fields from bit `at` on, and returns the end of the last one.
pub(crate) fn place(
    table: impl Iterator<Item = (&'static str, usize)>,
    mut at: usize,
    fields: &mut Vec<Field>,
) -> usize {
    for (name, bits) in table {
        fields.push(Field { name, at, bits });
        at += bits;
    }
    at
}

/// Returns true if any packet has a field with this name.
pub(crate) fn is_field(name: &str) -> bool {
    let all = [BTH, XRCETH, DETH, RETH, ATOMICETH, AETH, ATOMICACKETH, IMMDT, IETH, FETH, RESERVED_16];
    all.into_iter().flatten().any(|(field, _)| *field == name)
}

/// Services and the upper bits of their opcode bytes.
const SERVICES: [(&str, u8); 4] = [("RC", 0b000), ("UC", 0b001), ("UD", 0b011), ("XRC", 0b101)];

/// Returns the upper bits of opcode bytes of a service.
pub(crate) fn service_bits(service: &str) -> Option<u8> {
    SERVICES.iter().find(|(name, _)| *name == service).map(|(_, bits)| *bits)
}

/// Returns the service with these bits.
pub(crate) fn service_name(bits: u8) -> Option<&'static str> {
    SERVICES.iter().find(|(_, known)| *known == bits).map(|(name, _)| *name)
}

/// The reasons of a NAK, by their codes.
pub(crate) const NAKS: [&str; 5] =
    ["psn_sequence", "invalid_request", "remote_access", "remote_operation", "invalid_rd"];

/// Returns the opcode byte of an operation of a service, both named as `roxe dump` prints them.
pub(crate) fn opcode(service: u8, operation: &str) -> Option<u8> {
    let named = |byte: &u8| Opcode::from_u8(*byte).is_some_and(|opcode| opcode.properties().name == operation);
    if operation == "CNP" { Some(0x81) } else { (service << 5..=service << 5 | 0x1f).find(named) }
}

/// Returns the payload of a packet whose headers have `headers` bytes, without pad and ICRC; `None`
/// if the packet is too short.
pub(crate) fn payload(packet: &[u8], headers: usize) -> Option<&[u8]> {
    let body = packet.get(headers..packet.len().checked_sub(ICRC_LEN)?)?;
    let pad = usize::from(packet.get(1)? >> 4 & 3);
    Some(body.get(..body.len().saturating_sub(pad)).unwrap_or(body))
}

/// Returns the ICRC of `packet`, which does not contain it (IBA annex A17): CRC-32 over 8 bytes of
/// ones, the IP and UDP headers and the packet, with ones in place of the fields that routers
/// change. `net` has the addresses, the source port and the IPv4 identification.
pub(crate) fn icrc(net: &NetHeader, packet: &[u8]) -> [u8; ICRC_LEN] {
    let udp_len = (packet.len() + ICRC_LEN + 8) as u16;
    let mut bytes = vec![0xff; 8];
    if net.is_ipv4() {
        bytes.extend([0x45, 0xff]);
        bytes.extend((udp_len + 20).to_be_bytes());
        bytes.extend(net.ident.to_be_bytes());
        bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
        bytes.extend(&net.src.0[12..]);
        bytes.extend(&net.dst.0[12..]);
    } else {
        bytes.extend([0x6f, 0xff, 0xff, 0xff]);
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([17, 0xff]);
        bytes.extend(net.src.0);
        bytes.extend(net.dst.0);
    }
    bytes.extend(net.src_port.to_be_bytes());
    bytes.extend(roxe_wire::ROCE_PORT.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let start = bytes.len();
    bytes.extend(packet);
    if let Some(resv8a) = bytes.get_mut(start + 4) {
        *resv8a = 0xff;
    }
    crc32fast::hash(&bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Bth, Header, Kind, Packet, Psn, Qpn, Request, Reth, icrc as wire};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn nets() -> [NetHeader; 2] {
        let loopback =
            |ip: IpAddr| NetHeader { src: ip.into(), dst: ip.into(), src_port: 0xc001, ..NetHeader::default() };
        [loopback(Ipv4Addr::LOCALHOST.into()), loopback(Ipv6Addr::LOCALHOST.into())].map(|net| NetHeader {
            ident: if net.is_ipv4() { 7 } else { 0 },
            traffic_class: 3,
            hop_limit: 9,
            ..net
        })
    }

    #[test]
    fn icrc_matches_roxe_wire() {
        for net in nets() {
            for len in [12, 16, 63, 300] {
                let packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
                assert_eq!(icrc(&net, &packet), wire::compute(&net, &packet).to_le_bytes());
            }
        }
    }

    #[test]
    fn headers_of_opcodes_match_roxe_wire() {
        for byte in 0..=255 {
            let Some(opcode) = Opcode::from_u8(byte) else { continue };
            let (_, len) = fields(byte);
            let of_service = match byte >> 5 {
                0b011 => 8,
                0b101 if !opcode.operation().is_response() => 4,
                _ => 0,
            };
            assert_eq!(len, BTH_LEN + of_service + opcode.properties().ext_len, "{opcode}");
            assert_eq!(self::opcode(byte >> 5, opcode.properties().name), Some(byte));
        }
    }

    #[test]
    fn field_places_match_roxe_wire() {
        let (fields, len) = fields(0x0a);
        let mut packet = vec![0; len + ICRC_LEN];
        let values =
            [("opcode", 0x0a), ("dqpn", 0x1234), ("psn", 0xff_fffe), ("ackreq", 1), ("va", 1 << 40), ("dmalen", 5)];
        for (name, value) in values {
            let field = fields.iter().find(|field| field.name == name).unwrap();
            field.set(&mut packet, value);
            assert_eq!(field.get(&packet), Some(value));
        }
        let reth = Reth { va: 1 << 40, dma_len: 5, ..Reth::default() };
        let bth = Bth { ack_req: true, pkey: roxe_wire::Pkey(0), ..Bth::new(Qpn::new(0x1234), Psn::new(0xff_fffe)) };
        let header = Header { bth, kind: Kind::RcRequest(Request::WriteOnly(reth, None)) };
        assert_eq!(Packet::parse(&packet).unwrap().header, header);
    }
}
