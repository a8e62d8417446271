//! Fuzz target: IP packets.

use roxe_wire::NetHeader;

/// The input is an IP packet.
///
/// Properties: parsing never panics; the written header equals the parsed one except for fields
/// that RoCEv2 does not use; the written packet parses to equal values.
///
/// # Panics
/// If a property does not hold.
pub fn ip(data: &[u8]) {
    let Ok((net, payload)) = NetHeader::parse_ip(data) else { return };
    let grh = net.to_grh(payload.len());
    let header = if net.is_ipv4() { &grh[20..] } else { &grh[..] };
    let mut again = [0; 40 + 8];
    let (ip, udp) = again.split_at_mut(header.len());
    ip.copy_from_slice(header);
    udp[..4].copy_from_slice(&[net.src_port.to_be_bytes(), roxe_wire::ROCE_PORT.to_be_bytes()].concat());
    // The length of the payload is in both headers.
    udp[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    let mut packet = again[..header.len() + 8].to_vec();
    packet.extend_from_slice(payload);
    assert_eq!(NetHeader::parse_ip(&packet), Ok((net, payload)));
    check_unchanged(&net, data, header);
}

/// Checks that the written header equals the parsed one, except for lengths, checksum and the DF
/// bit, which are not parsed.
fn check_unchanged(net: &NetHeader, read: &[u8], written: &[u8]) {
    let not_parsed: &[usize] = if net.is_ipv4() { &[2, 3, 6, 10, 11] } else { &[4, 5] };
    for (index, byte) in written.iter().enumerate().filter(|(index, _)| !not_parsed.contains(index)) {
        assert_eq!(*byte, read[index], "byte {index} of the IP header");
    }
}
