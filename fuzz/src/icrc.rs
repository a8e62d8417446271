//! Fuzz target: the ICRC, compared with another implementation of the CRC over the bytes that the
//! specification lists.

use crc::{CRC_32_ISO_HDLC, Crc, Table};
use roxe_wire::{Gid, NetHeader, ROCE_PORT, icrc};

/// The other implementation of the CRC.
const ORACLE: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);
/// Number of bytes of the input that become the network header.
const NET_LEN: usize = 48;

/// The input is a network header and the bytes after it.
///
/// Properties: the ICRC equals that of the oracle; it verifies, and the IP identification can be
/// computed from it; no other value verifies.
///
/// # Panics
/// If a property does not hold.
pub fn icrc(data: &[u8]) {
    let Some((first, covered)) = data.split_first_chunk::<NET_LEN>() else { return };
    let net = net(first);
    if covered.len() < roxe_wire::Bth::LEN {
        return;
    }
    let mut sealed = [covered, &[0; icrc::LEN]].concat();
    icrc::seal(&net, &mut sealed);
    let (_, trailer) = sealed.split_last_chunk().expect("split off the ICRC");
    assert_eq!(u32::from_le_bytes(*trailer), oracle(&net, covered));
    assert!(icrc::verify(&net, &sealed));

    let likely = u16::from_be_bytes([first[46], first[47]]);
    let unknown = NetHeader { ident: 0, ..net };
    assert_eq!(icrc::solve_ident(&unknown, &sealed, likely), Some(net.ident));
    check_solution(&unknown, &mut sealed, likely);
}

/// Whatever identification is found for a damaged packet explains its ICRC.
fn check_solution(net: &NetHeader, sealed: &mut [u8], likely: u16) {
    let bit = usize::from(likely) % (sealed.len() * 8);
    sealed[bit / 8] ^= 1 << (bit % 8);
    let (covered, trailer) = sealed.split_last_chunk().expect("split off the ICRC");
    if let Some(ident) = icrc::solve_ident(net, sealed, likely) {
        assert_eq!(u32::from_le_bytes(*trailer), oracle(&NetHeader { ident, ..*net }, covered), "{ident} does not");
    }
}

fn net(bytes: &[u8; NET_LEN]) -> NetHeader {
    let [kind, traffic_class, hop_limit, p0, p1, i0, i1, l0, l1, l2, ..] = *bytes;
    let gid = |at: usize| {
        let address: [u8; 16] = bytes[at..at + 16].try_into().expect("split into sixteen bytes");
        if kind & 1 == 0 {
            Gid::from(std::net::Ipv4Addr::new(address[0], address[1], address[2], address[3]))
        } else {
            Gid(address)
        }
    };
    let (src, dst) = (gid(10), gid(26));
    let (ident, flow_label) = (u16::from_be_bytes([i0, i1]), u32::from_be_bytes([0, l0 & 0x0f, l1, l2]));
    let src_port = u16::from_be_bytes([p0, p1]);
    let (flow_label, ident) = if dst.is_ipv4() { (0, ident) } else { (flow_label, 0) };
    NetHeader { src, dst, src_port, traffic_class, hop_limit, flow_label, ident }
}

/// Computes the ICRC over 8 bytes of ones, then the packet from the IP header on, with ones in
/// place of the fields that routers change.
fn oracle(net: &NetHeader, covered: &[u8]) -> u32 {
    let mut digest = ORACLE.digest();
    digest.update(&[0xff; 8]);
    let mut grh = net.to_grh(covered.len() + icrc::LEN);
    if net.is_ipv4() {
        [1, 8, 10, 11].iter().for_each(|at| grh[20 + *at] = 0xff);
        digest.update(&grh[20..]);
    } else {
        grh[0] = 0x6f;
        [1, 2, 3, 7].iter().for_each(|at| grh[*at] = 0xff);
        digest.update(&grh);
    }
    let udp_len = (8 + covered.len() + icrc::LEN) as u16;
    for word in [net.src_port, ROCE_PORT, udp_len, 0xffff] {
        digest.update(&word.to_be_bytes());
    }
    digest.update(&covered[..4]);
    digest.update(&[0xff]);
    digest.update(&covered[5..]);
    digest.finalize()
}
