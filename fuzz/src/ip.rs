//! IP packets with any content.

use roxe_wire::NetHeader;

/// Properties: reading never panics; the payload lies within the packet; what was read is written
/// back as it was but for what RoCEv2 does not use, and that reads as the same again.
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
    // Only the payload is missing: its length is in both headers.
    udp[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    let mut packet = again[..header.len() + 8].to_vec();
    packet.extend_from_slice(payload);
    assert_eq!(NetHeader::parse_ip(&packet), Ok((net, payload)));
    check_unchanged(&net, data, header);
}

/// The header that is written is the one that was read, but for lengths, checksum and the DF bit,
/// which were not read.
fn check_unchanged(net: &NetHeader, read: &[u8], written: &[u8]) {
    let not_read: &[usize] = if net.is_ipv4() { &[2, 3, 6, 10, 11] } else { &[4, 5] };
    for (at, byte) in written.iter().enumerate().filter(|(at, _)| !not_read.contains(at)) {
        assert_eq!(*byte, read[at], "byte {at} of the IP header");
    }
}
