//! Fuzz target: payloads of UDP datagrams.

use roxe_wire::{NetHeader, Packet, icrc};
use std::net::Ipv4Addr;

/// The input is the payload of a UDP datagram.
///
/// Properties: parsing never panics; a parsed packet is written to bytes that parse to an equal
/// packet; it prints as one line; a sealed ICRC verifies, yields the IP identification, and does
/// not verify once a covered bit changes.
///
/// # Panics
/// If a property does not hold.
pub fn packet(data: &[u8]) {
    let net = net(data);
    let _ = icrc::solve_ident(&net, data, 0);
    let Ok(packet) = Packet::parse(data) else { return };
    let line = packet.to_string();
    assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");

    let written = emit(&net, &packet);
    assert_eq!(Packet::parse(&written), Ok(packet));
    assert_eq!(written.len(), data.len(), "the written packet has another length");
    check_icrc(&net, written);
}

/// Returns a network header whose identification depends on the input.
fn net(data: &[u8]) -> NetHeader {
    let loopback = Ipv4Addr::LOCALHOST.into();
    let ident = data.iter().fold(0, |sum: u16, byte| sum.wrapping_mul(31).wrapping_add(u16::from(*byte)));
    NetHeader { src: loopback, dst: loopback, src_port: 0xc000, hop_limit: 64, ident, ..NetHeader::default() }
}

fn emit(net: &NetHeader, packet: &Packet<'_>) -> Vec<u8> {
    let covered = packet.header.padded_len(packet.payload.len());
    let mut bytes = vec![0xee; covered + icrc::LEN];
    let payload = packet.header.emit(packet.payload.len(), &mut bytes[..covered]);
    payload.expect("a parsed packet can be written").copy_from_slice(packet.payload);
    icrc::seal(net, &mut bytes);
    bytes
}

fn check_icrc(net: &NetHeader, mut sealed: Vec<u8>) {
    assert!(icrc::verify(net, &sealed));
    assert_eq!(icrc::solve_ident(net, &sealed, 0), Some(net.ident));
    let bit = usize::from(net.ident) % (sealed.len() * 8);
    sealed[bit / 8] ^= 1 << (bit % 8);
    // Byte 4 has the congestion bits, which the ICRC does not cover.
    assert_eq!(icrc::verify(net, &sealed), bit / 8 == 4);
}
