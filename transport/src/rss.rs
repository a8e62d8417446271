//! Receive side scaling: selects one of several receive queues for a frame (`man ibv_create_qp_ex`,
//! `rx_hash_conf`). All frames of a conversation have the same hash and so the same queue.

use bitflags::bitflags;
use roxe_wire::frame::{Field, FrameKey};

/// Length of a Toeplitz key in bytes, enough for the addresses and ports of IPv6.
pub const TOEPLITZ_KEY_LEN: usize = 40;

/// Protocols with ports.
const TCP: u8 = 6;
const UDP: u8 = 17;

bitflags! {
    /// Fields of a frame that are hashed (values of `enum ibv_rx_hash_fields`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HashFields: u64 {
        /// Source address of IPv4.
        const SRC_IPV4 = 1;
        /// Destination address of IPv4.
        const DST_IPV4 = 1 << 1;
        /// Source address of IPv6.
        const SRC_IPV6 = 1 << 2;
        /// Destination address of IPv6.
        const DST_IPV6 = 1 << 3;
        /// Source port of TCP.
        const SRC_PORT_TCP = 1 << 4;
        /// Destination port of TCP.
        const DST_PORT_TCP = 1 << 5;
        /// Source port of UDP.
        const SRC_PORT_UDP = 1 << 6;
        /// Destination port of UDP.
        const DST_PORT_UDP = 1 << 7;
    }
}

impl HashFields {
    /// Returns true if a card can hash these fields together: IPv4 or IPv6, TCP or UDP, not both.
    // clause: RSS-FIELDS
    pub fn is_possible(self) -> bool {
        let both = |a: Self, b: Self| self.intersects(a) && self.intersects(b);
        let (v4, v6) = (Self::SRC_IPV4 | Self::DST_IPV4, Self::SRC_IPV6 | Self::DST_IPV6);
        let (tcp, udp) = (Self::SRC_PORT_TCP | Self::DST_PORT_TCP, Self::SRC_PORT_UDP | Self::DST_PORT_UDP);
        !both(v4, v6) && !both(tcp, udp)
    }
}

/// Configuration of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// Key of the Toeplitz function.
    pub key: [u8; TOEPLITZ_KEY_LEN],
    /// Hashed fields.
    pub fields: HashFields,
}

impl RxHash {
    /// Returns the hash of a frame; 0 if it lacks a field.
    // clause: RSS-HASH
    pub fn of(&self, frame: &FrameKey) -> u32 {
        use HashFields as F;
        let (version, protocol) = (frame.get(Field::IpVersion), frame.get(Field::L4));
        // In hashing order.
        let fields = [
            (F::SRC_IPV4, Field::SrcIp, version == [4], 4),
            (F::SRC_IPV6, Field::SrcIp, version == [6], 16),
            (F::DST_IPV4, Field::DstIp, version == [4], 4),
            (F::DST_IPV6, Field::DstIp, version == [6], 16),
            (F::SRC_PORT_TCP, Field::SrcPort, protocol == [TCP], 2),
            (F::SRC_PORT_UDP, Field::SrcPort, protocol == [UDP], 2),
            (F::DST_PORT_TCP, Field::DstPort, protocol == [TCP], 2),
            (F::DST_PORT_UDP, Field::DstPort, protocol == [UDP], 2),
        ];
        let wanted = fields.into_iter().filter(|(wanted, ..)| self.fields.contains(*wanted));
        if !wanted.clone().all(|(_, _, is_there, _)| is_there) {
            return 0;
        }
        toeplitz(&self.key, wanted.flat_map(|(_, field, _, len)| frame.get(field).iter().take(len)))
    }
}

/// Returns the Toeplitz hash of at most 36 bytes: the XOR, over the set bits of the input, of the
/// 32 key bits from that position on.
// clause: RSS-TOEPLITZ
fn toeplitz<'a>(key: &[u8; TOEPLITZ_KEY_LEN], input: impl IntoIterator<Item = &'a u8>) -> u32 {
    let (first, rest) = key.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let mut window = u32::from_be_bytes(*first);
    let mut hash = 0;
    for (byte, next) in input.into_iter().zip(rest) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The key of the published verification suite (Microsoft, "Verifying the RSS Hash
    /// Calculation").
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Source and destination with ports, the hash of the addresses, the hash of addresses and
    /// ports.
    type Vector<A> = ((A, u16), (A, u16), u32, u32);

    const IPV4: [Vector<[u8; 4]>; 5] = [
        (([66, 9, 149, 187], 2794), ([161, 142, 100, 80], 1766), 0x323e_8fc2, 0x51cc_c178),
        (([199, 92, 111, 2], 14230), ([65, 69, 140, 83], 4739), 0xd718_262a, 0xc626_b0ea),
        (([24, 19, 198, 95], 12898), ([12, 22, 207, 184], 38024), 0xd2d0_a5de, 0x5c2b_394a),
        (([38, 27, 205, 30], 48228), ([209, 142, 163, 6], 2217), 0x8298_9176, 0xafc7_327f),
        (([153, 39, 163, 191], 44251), ([202, 188, 127, 2], 1303), 0x5d18_09c5, 0x10e8_28a2),
    ];

    const IPV6: [Vector<&str>; 3] = [
        (("3ffe:2501:200:1fff::7", 2794), ("3ffe:2501:200:3::1", 1766), 0x2cc1_8cd5, 0x4020_7d3d),
        (("3ffe:501:8::260:97ff:fe40:efab", 14230), ("ff02::1", 4739), 0x0f0c_461c, 0xdde5_1bbf),
        (("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251), ("fe80::200:f8ff:fe21:67cf", 38024), 0x4b61_e985, 0x02d1_feef),
    ];

    /// Returns a frame with TCP or UDP between two addresses.
    fn frame(source: &[u8], destination: &[u8], ports: [u16; 2], protocol: u8) -> FrameKey {
        let is_v4 = source.len() == 4;
        let mut bytes = vec![0; 12];
        bytes.extend(if is_v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
        if is_v4 {
            bytes.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        } else {
            bytes.extend([0x60, 0, 0, 0, 0, 20, protocol, 64]);
        }
        bytes.extend(source);
        bytes.extend(destination);
        ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
        bytes.resize(bytes.len() + 16, 0);
        FrameKey::of(&bytes).expect("parse the frame")
    }

    fn hash(fields: HashFields, frame: &FrameKey) -> u32 {
        RxHash { key: KEY, fields }.of(frame)
    }

    // clause: RSS-TOEPLITZ, RSS-HASH
    #[test]
    fn hashes_equal_the_published_suite() {
        use HashFields as F;
        let addresses = F::SRC_IPV4 | F::DST_IPV4;
        for ((from, from_port), (to, to_port), plain, with_ports) in IPV4 {
            let frame = frame(&from, &to, [from_port, to_port], TCP);
            let from = Ipv4Addr::from(from);
            assert_eq!(hash(addresses, &frame), plain, "{from}");
            assert_eq!(hash(addresses | F::SRC_PORT_TCP | F::DST_PORT_TCP, &frame), with_ports, "{from}");
        }
        let addresses = F::SRC_IPV6 | F::DST_IPV6;
        for ((from, from_port), (to, to_port), plain, with_ports) in IPV6 {
            let octets = |text: &str| text.parse::<Ipv6Addr>().expect("parse the address").octets();
            let frame = frame(&octets(from), &octets(to), [from_port, to_port], UDP);
            assert_eq!(hash(addresses, &frame), plain, "{from}");
            assert_eq!(hash(addresses | F::SRC_PORT_UDP | F::DST_PORT_UDP, &frame), with_ports, "{from}");
        }
    }

    // clause: RSS-HASH
    #[test]
    fn frame_without_a_hashed_field_has_hash_0() {
        let tcp = frame(&[1, 2, 3, 4], &[5, 6, 7, 8], [1, 2], TCP);
        assert_ne!(hash(HashFields::SRC_IPV4, &tcp), 0);
        assert_eq!(hash(HashFields::SRC_IPV4 | HashFields::SRC_PORT_UDP, &tcp), 0);
        assert_eq!(hash(HashFields::SRC_IPV6, &tcp), 0);
        assert_eq!(hash(HashFields::empty(), &tcp), 0);
    }

    // clause: RSS-FIELDS
    #[test]
    fn mixed_ip_versions_or_protocols_are_rejected() {
        use HashFields as F;
        for (fields, is_possible) in [
            (F::empty(), true),
            (F::SRC_IPV4 | F::DST_IPV4 | F::DST_PORT_UDP, true),
            (F::SRC_IPV6 | F::SRC_PORT_TCP, true),
            (F::SRC_IPV4 | F::DST_IPV6, false),
            (F::SRC_IPV4 | F::SRC_PORT_TCP | F::DST_PORT_UDP, false),
        ] {
            assert_eq!(fields.is_possible(), is_possible, "{fields:?}");
        }
    }
}
