//! Sums, sealing, and unknown identifications.

use super::*;

#[test]
fn unshift_undoes_zero_bytes() {
    for count in [0, 1, 2, 255, 256, 257, 4150, 65535] {
        let register = 0x1234_5678;
        let mut shifted = register;
        for _ in 0..8 * u32::from(count) {
            shifted = shifted >> 1 ^ if shifted & 1 == 0 { 0 } else { 0xedb8_8320 };
        }
        assert_eq!(unshift(shifted, count), register, "{count} bytes");
    }
}

#[test]
fn unshift_undoes_shift() {
    for blocks in 0..=16 {
        let shifted = shift(0x1234_5678, blocks).expect("small");
        assert_eq!(unshift(shifted, u16::from(blocks) * 256), 0x1234_5678, "{blocks}");
    }
    assert_eq!(shift(1, 17), None);
}

#[test]
fn update_bytes_matches_crc32_at_any_length() {
    let data: [u8; 70] = core::array::from_fn(|i| (i * 37) as u8);
    for len in 0..=70 {
        let mut hasher = Hasher::new_with_initial(7);
        hasher.update(&data[..len]);
        assert_eq!(!update_bytes(!7, &data[..len]), hasher.finalize(), "{len}");
        assert_eq!(update_bytes(0, &data[..len]), Tables::update(0, &data[..len]), "{len}");
    }
}

#[test]
fn sealer_seals_with_and_without_a_known_sum() {
    let loopback = core::net::Ipv4Addr::LOCALHOST.into();
    let nets = [loopback, Gid([0xfd; 16])].map(|dst| NetHeader { src: loopback, dst, ..NetHeader::default() });
    let mut bytes: [u8; 4160] = core::array::from_fn(|i| (i * 7 + i / 256) as u8);
    for net in nets {
        let mut sealer = Sealer::new(&net);
        let lens = [4160, 4160, 4112, 300, 16, 15, 4, 3, 4160];
        for (ident, len) in (0..).zip(lens).chain([(200, 4160), (255, 4112)]) {
            for (start, blocks) in
                [(12, 0), (12, 16), (28, 16), (60, 15), (12, 1), (13, 1), (11, 1), (5000, 1), (12, 17)]
            {
                let datagram = &mut bytes[..len];
                let end = start + usize::from(blocks) * BLOCK_LEN;
                let remainder = datagram.get(start..end).map_or(1, |bytes| Tables::update(0, bytes));
                let fits = start >= 12 && end + LEN <= len;
                sealer.seal::<Tables>(ident, datagram, fits.then_some(&Summed { start, blocks, remainder }));
                let as_sent = NetHeader { ident: if net.is_ipv4() { ident } else { 0 }, ..net };
                assert_eq!(verify(&as_sent, datagram), len >= LEN, "{ident} {len} {start} {blocks}");
            }
        }
        // A part that ends behind the packet or overlaps its BTH is ignored.
        sealer.seal::<Tables>(0, &mut bytes, Some(&Summed { start: 4100, blocks: 1, remainder: 1 }));
        sealer.seal::<Tables>(0, &mut bytes, Some(&Summed { start: 2, blocks: 1, remainder: 1 }));
        assert!(verify(&NetHeader { ident: 0, ..net }, &bytes));
    }
}

#[test]
fn ipv6_icrc_needs_no_identification() {
    let net = NetHeader { dst: Gid([0xfd; 16]), ..NetHeader::default() };
    let mut datagram = [7; 40];
    seal(&net, &mut datagram);
    assert_eq!(solve_ident(&net, &datagram, 5), Some(0));
    datagram[20] ^= 1;
    assert_eq!(solve_ident(&net, &datagram, 5), None);
}

/// An unknown identification weakens the ICRC against multi-bit damage, but not against one bit.
#[test]
fn bit_flip_is_never_solved_by_an_identification() {
    let loopback = core::net::Ipv4Addr::LOCALHOST.into();
    let net = NetHeader { src: loopback, dst: loopback, ..NetHeader::default() };
    // Miri is too slow for 33,000 bits.
    let mut datagram = [0x5a; if cfg!(miri) { 20 } else { 4160 }];
    seal(&net, &mut datagram);
    // The ICRC does not cover byte 4.
    for at in (0..datagram.len()).filter(|at| *at != 4) {
        for bit in 0..8 {
            datagram[at] ^= 1 << bit;
            assert_eq!(solve_ident(&net, &datagram, 0), None, "byte {at}, bit {bit}");
            datagram[at] ^= 1 << bit;
        }
    }
}

// clause: IP-IDENT
#[test]
#[cfg_attr(miri, ignore = "solving for many packets of 4 KiB takes Miri too long")]
fn sealer_finds_identifications_and_damage() {
    let loopback = core::net::Ipv4Addr::LOCALHOST.into();
    let nets = [loopback, Gid([0xfd; 16])].map(|dst| NetHeader { src: loopback, dst, ..NetHeader::default() });
    for net in nets {
        let mut sealer = Sealer::new(&net);
        for (len, ident) in [(4160, 0), (4160, 7), (40, 255), (300, 256), (300, 65_535), (20, 3)] {
            let as_sent = NetHeader { ident: if net.is_ipv4() { ident } else { 0 }, ..net };
            let mut bytes: [u8; 4160] = core::array::from_fn(|i| (i * 7 + i / 256) as u8);
            let datagram = &mut bytes[..len];
            seal(&as_sent, datagram);
            for likely in [0, 7, 255, 256, 65_535] {
                let found = sealer.solve_ident::<Tables>(datagram, likely);
                assert_eq!(found, Some(as_sent.ident), "{len} {ident} {likely}");
            }
            datagram[len - 6] ^= 1;
            assert_eq!(sealer.solve_ident::<Tables>(datagram, ident), None, "{len} {ident}");
        }
        assert_eq!(sealer.solve_ident::<Tables>(&[0; 3], 0), None);
    }
}

#[test]
fn datagram_without_icrc_does_not_verify() {
    let net = NetHeader::default();
    let mut datagram = [0; 3];
    seal(&net, &mut datagram);
    assert_eq!(datagram, [0; 3]);
    assert!(!verify(&net, &datagram));
    assert_eq!(solve_ident(&net, &datagram, 0), None);
}
