//! Packets with bytes from independent sources: captures of hardware, tests of other
//! projects, and one packet of every kind from a script.

use roxe_wire::{Header, Kind, NetHeader, Packet, icrc};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex digits are text");
        u8::from_str_radix(pair, 16).expect("hex digits")
    };
    digits.chunks(2).map(byte).collect()
}

/// Returns a packet as `header.emit` and `icrc::seal` write it.
fn emit(net: &NetHeader, header: &Header, payload: &[u8]) -> Vec<u8> {
    let covered = header.padded_len(payload.len());
    let mut bytes = vec![0xee; covered + icrc::LEN];
    header.emit(payload.len(), &mut bytes[..covered]).expect("emit into a slot of exact size").copy_from_slice(payload);
    icrc::seal(net, &mut bytes);
    bytes
}

/// Checks that an IP packet parses, prints as `line`, has the right ICRC, and is written back
/// unchanged.
fn check(packet: &str, line: &str) {
    let ip = hex(packet);
    let (net, datagram) = NetHeader::parse_ip(&ip).expect(line);
    assert!(icrc::verify(&net, datagram), "ICRC of {line}");
    let packet = Packet::parse(datagram).expect(line);
    assert_eq!(packet.to_string(), line);
    assert_eq!(emit(&net, &packet.header, packet.payload), datagram, "{line}");
    check_grh(&net, &ip, datagram.len());
}

/// Checks that the GRH area holds the received IP header.
fn check_grh(net: &NetHeader, ip: &[u8], udp_payload_len: usize) {
    let grh = net.to_grh(udp_payload_len);
    if net.is_ipv4() {
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..], ip[..20]);
    } else {
        assert_eq!(grh, ip[..40]);
    }
}

// clause: ICRC-SUM, CNP-FORMAT
#[test]
fn connectx_4_cnp_parses() {
    check(
        "45c2003c718c4000401191610a0011010a001201 000012b700280000
         8100ffff4000011800000000 00000000000000000000000000000000 82fd002a",
        "CNP dqpn=0x118 psn=0 becn len=0",
    );
}

// clause: UDP-CHECKSUM, ICRC-MASK-IPV4
#[test]
fn uc_send_over_ipv4_with_udp_checksum_parses() {
    check(
        "45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2 2460ffff 000000d3 00cf1710
         4630818b e28935d9 0e9a9550 5401be88 5e50 0000 78f353f3",
        "UC SEND_ONLY dqpn=0xd3 psn=13571856 migreq len=18",
    );
}

// clause: ICRC-SUM, ICRC-MASK-IPV6
#[test]
fn uc_send_over_ipv6_parses() {
    check(
        "6e21face002c11ff 20220000000000000000000000001023 20230000000000000000000000001024
         c00012b7002ce7c5 2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 3e5b743b",
        "UC SEND_ONLY dqpn=0xd3 psn=13571856 migreq len=18",
    );
}

/// RoCEv1 packets have the same headers from the BTH on, after another network header.
#[test]
fn packets_of_a_roce_v1_capture_parse() {
    for (packet, line) in [
        (
            "0a70ffff0000010a80a788bc 000055d4c0726000000047b300000005 0000000001000000 e3d856bb",
            "RC WRITE_ONLY dqpn=0x10a psn=10979516 ackreq migreq va=0x55d4c0726000 rkey=0x47b3 dmalen=5 len=5",
        ),
        (
            "1140ffff0000010900a788c0 00000005 25f0c038",
            "RC ACK dqpn=0x109 psn=10979520 migreq ack credits=0 msn=5 len=0",
        ),
    ] {
        let bytes = hex(packet);
        let packet = Packet::parse(&bytes).expect(line);
        assert_eq!(packet.to_string(), line);
        let emitted = emit(&NetHeader::default(), &packet.header, packet.payload);
        let covered = bytes.len() - icrc::LEN;
        assert_eq!(emitted[..covered], bytes[..covered], "{line}");
    }
}

/// Parses one packet of every kind. The ICRCs are from a script that reproduces those of the
/// captures.
// clause: IP-DF, OPCODE-TABLE, HEADER-ORDER, ATOMIC-OPERANDS, CNP-FORMAT
#[test]
fn one_packet_of_every_kind_parses() {
    for (packet, line) in [
        (
            "4502003412344000401114810a0000010a000002 c01112b700200000 0430ffff0000001180000100
             68656c6c6f000000 bd3708d0",
            "RC SEND_ONLY dqpn=0x11 psn=256 ackreq len=5",
        ),
        (
            "4502003012344000401114850a0000020a000001 c01112b7001c0000 1100ffff0000001200000100 1f000001 beaafa0c",
            "RC ACK dqpn=0x12 psn=256 ack msn=1 len=0",
        ),
        (
            "4502003c12344000401114790a0000010a000002 c01112b700280000 0c00ffff0000001180000101
             00007f00000010000000123400002000 f6141d38",
            "RC READ_REQUEST dqpn=0x11 psn=257 ackreq va=0x7f0000001000 rkey=0x1234 dmalen=8192 len=0",
        ),
        (
            "45020048123440004011146d0a0000010a000002 c01112b700340000 1300ffff0000001180000103
             00007f00000020000000123411111111111111112222222222222222 f44d2d8d",
            "RC COMPARE_SWAP dqpn=0x11 psn=259 ackreq va=0x7f0000002000 rkey=0x1234 data=0x1111111111111111 \
             compare=0x2222222222222222 len=0",
        ),
        (
            "45020038123440004011147d0a0000020a000001 c01112b700240000 1200ffff0000001200000103
             1f0000042222222222222222 58e1f34b",
            "RC ATOMIC_ACK dqpn=0x12 psn=259 ack msn=4 original=0x2222222222222222 len=0",
        ),
        (
            "45020048123440004011146d0a0000010a000002 c01112b700340000 1400ffff0000001180000203
             00007f0000002000 00001234 0000000000000005 0000000000000000 5df6fa84",
            "RC FETCH_ADD dqpn=0x11 psn=515 ackreq va=0x7f0000002000 rkey=0x1234 data=0x5 len=0",
        ),
        (
            "45020048123440004011146d0a0000010a000002 c01112b700340000 0b80ffff0000001180000200
             00007f00000010000000123400000008 deadbeef 4142434445464748 4e5149d5",
            "RC WRITE_ONLY_IMM dqpn=0x11 psn=512 ackreq solicited va=0x7f0000001000 rkey=0x1234 dmalen=8 \
             imm=0xdeadbeef len=8",
        ),
        (
            "4502003412344000401114810a0000010a000002 c01112b700200000 1700ffff0000001180000201
             00005678 41424344 25e6fa25",
            "RC SEND_ONLY_INV dqpn=0x11 psn=513 ackreq invalidate=0x5678 len=4",
        ),
        (
            "45020038123440004011147d0a0000020a000001 c01112b700240000 1020ffff0000001200000202
             1f000003 4142434445460000 75ae4ece",
            "RC READ_RESPONSE_ONLY dqpn=0x12 psn=514 ack msn=3 len=6",
        ),
        (
            "4502003012344000401114850a0000020a000001 c01112b7001c0000 1100ffff0000001200000204 60000004 953ad83c",
            "RC ACK dqpn=0x12 psn=516 nak=psn_sequence msn=4 len=0",
        ),
        (
            "4502003012344000401114850a0000020a000001 c01112b7001c0000 1100ffff0000001200000204 62000004 1ef2d196",
            "RC ACK dqpn=0x12 psn=516 nak=remote_access msn=4 len=0",
        ),
        (
            "4502003012344000401114850a0000020a000001 c01112b7001c0000 1100ffff0000001200000204 2c000004 10dd1aed",
            "RC ACK dqpn=0x12 psn=516 rnr timer=12 msn=4 len=0",
        ),
        (
            "4502004412344000401114710a0000010a000002 c01112b700300000 1d00ffff0000001180000205
             00007f00000030000000123400000008 1122334455667788 4b4bf912",
            "RC ATOMIC_WRITE dqpn=0x11 psn=517 ackreq va=0x7f0000003000 rkey=0x1234 dmalen=8 len=8",
        ),
        (
            "4502004012344000401114750a0000010a000002 c01112b7002c0000 1c00ffff0000001180000206
             00000001 00007f00000030000000123400001000 d24b904f",
            "RC FLUSH dqpn=0x11 psn=518 ackreq selectivity=0 placement=0x1 va=0x7f0000003000 rkey=0x1234 \
             dmalen=4096 len=0",
        ),
        (
            "4502003412344000401114810a0000010a000002 c01112b700200000 a400ffff0000001180000207
             00000033 41424344 d5eb769d",
            "XRC SEND_ONLY dqpn=0x11 psn=519 ackreq srq=0x33 len=4",
        ),
        (
            "4502004012344000401114750a0000010a000002 c01112b7002c0000 2a00ffff0000001100000208
             00007f00000010000000123400000004 41424344 7d6261ba",
            "UC WRITE_ONLY dqpn=0x11 psn=520 va=0x7f0000001000 rkey=0x1234 dmalen=4 len=4",
        ),
        (
            "45020038123440004011147d0a0000010a000002 c01112b700240000 6400ffff0000000100000000
             8001000000000001 01070203 3f9666c1",
            "UD SEND_ONLY dqpn=0x1 psn=0 qkey=0x80010000 sqpn=0x1 len=4",
        ),
        (
            "45c2003c12344000401113b90a0000020a000001 000012b700280000 8100ffff4000001200000000
             00000000000000000000000000000000 e28e3fe9",
            "CNP dqpn=0x12 psn=0 becn len=0",
        ),
        (
            "60200000001c1140 fd000000000000000000000000000001 fd000000000000000000000000000002
             c01112b7001c0000 1100ffff0000001200000100 1f000001 584ae5ff",
            "RC ACK dqpn=0x12 psn=256 ack msn=1 len=0",
        ),
    ] {
        check(packet, line);
    }
}

// clause: BTH-PAD-EMPTY
#[test]
fn pad_count_without_payload_is_ignored() {
    let bytes = hex("1130ffff0000001200000100 1f000001 00000000");
    let packet = Packet::parse(&bytes).expect("parse the ACK");
    assert!(matches!(packet.header.kind, Kind::RcResponse(_)));
    assert_eq!(emit(&NetHeader::default(), &packet.header, &[])[1], 0);
}

// clause: BTH-RESERVED
#[test]
fn reserved_bits_are_ignored_and_not_written_back() {
    let plain = hex("0400ffff0000001180000100 00000000");
    let reserved = hex("0400ffff3f000011ff000100 00000000");
    let packet = Packet::parse(&reserved).expect("parse the SEND");
    assert_eq!(Ok(packet), Packet::parse(&plain));
    assert_eq!(emit(&NetHeader::default(), &packet.header, &[])[..12], plain[..12]);
}
