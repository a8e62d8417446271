//! Properties of every packet: parsing undoes emitting, nothing panics, and the ICRC covers the
//! right bytes.

use crc::{CRC_32_ISO_HDLC, Crc};
use proptest::prelude::*;
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Gid, Header, Ieth, ImmDt, Kind, Msn, NetHeader, Packet,
    PacketReader, Pkey, Placement, Psn, Qkey, Qpn, RKey, Request, Response, Reth, Selectivity, SendTail, Syndrome,
    UcRequest, XrcEth, icrc,
};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

fn bth() -> impl Strategy<Value = Bth> {
    (any::<(u32, u32, u16)>(), any::<[bool; 5]>()).prop_map(|((qpn, psn, pkey), flags)| {
        let [solicited, ack_req, mig_req, fecn, becn] = flags;
        let (dest_qpn, psn, pkey) = (Qpn::new(qpn), Psn::new(psn), Pkey(pkey));
        Bth { dest_qpn, psn, pkey, solicited, ack_req, mig_req, fecn, becn }
    })
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, dma_len)| Reth { va, rkey: RKey(rkey), dma_len })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>().prop_map(|(byte, msn)| Aeth { syndrome: Syndrome::from_u8(byte), msn: Msn::new(msn) })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_or_add, compare)| AtomicEth {
        va,
        rkey: RKey(rkey),
        swap_or_add,
        compare,
    })
}

fn feth() -> impl Strategy<Value = Feth> {
    let selectivity = prop_oneof![
        Just(Selectivity::Range),
        Just(Selectivity::Region),
        Just(Selectivity::Reserved(2)),
        Just(Selectivity::Reserved(3)),
    ];
    (selectivity, 0..16u8).prop_map(|(selectivity, placement)| Feth { selectivity, placement: Placement(placement) })
}

fn imm() -> impl Strategy<Value = Option<ImmDt>> {
    any::<Option<[u8; 4]>>().prop_map(|imm| imm.map(ImmDt))
}

fn tail() -> impl Strategy<Value = SendTail> {
    prop_oneof![
        Just(SendTail::Plain),
        any::<[u8; 4]>().prop_map(|imm| SendTail::Imm(ImmDt(imm))),
        any::<u32>().prop_map(|key| SendTail::Invalidate(Ieth(RKey(key)))),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::SendFirst),
        Just(Request::SendMiddle),
        tail().prop_map(Request::SendLast),
        tail().prop_map(Request::SendOnly),
        reth().prop_map(Request::WriteFirst),
        Just(Request::WriteMiddle),
        imm().prop_map(Request::WriteLast),
        (reth(), imm()).prop_map(|(reth, imm)| Request::WriteOnly(reth, imm)),
        reth().prop_map(Request::Read),
        atomic().prop_map(Request::CompareSwap),
        atomic().prop_map(Request::FetchAdd),
        (feth(), reth()).prop_map(|(feth, reth)| Request::Flush(feth, reth)),
        reth().prop_map(Request::AtomicWrite),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        aeth().prop_map(Response::ReadFirst),
        Just(Response::ReadMiddle),
        aeth().prop_map(Response::ReadLast),
        aeth().prop_map(Response::ReadOnly),
        aeth().prop_map(Response::Ack),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Response::AtomicAck(aeth, AtomicAckEth(original))),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    let uc = request().prop_filter_map("not a UC request", |request| UcRequest::try_from(request).ok());
    let deth = any::<(u32, u32)>().prop_map(|(qkey, qpn)| Deth { qkey: Qkey(qkey), src_qpn: Qpn::new(qpn) });
    prop_oneof![
        4 => request().prop_map(Kind::RcRequest),
        2 => response().prop_map(Kind::RcResponse),
        2 => uc.prop_map(Kind::UcRequest),
        1 => (deth, imm()).prop_map(|(deth, imm)| Kind::Ud { deth, imm }),
        2 => (0..1u32 << 24, request()).prop_map(|(srq, request)| Kind::XrcRequest(XrcEth(srq), request)),
        1 => response().prop_map(Kind::XrcResponse),
        1 => Just(Kind::Cnp),
    ]
}

fn net() -> impl Strategy<Value = NetHeader> {
    let v4 = any::<[[u8; 4]; 2]>().prop_map(|pair| pair.map(|address| Gid::from(std::net::Ipv4Addr::from(address))));
    let v6 = any::<[[u8; 16]; 2]>().prop_map(|pair| pair.map(Gid));
    (prop_oneof![v4, v6], any::<(u16, u8, u8)>(), 0..1u32 << 20, any::<u16>()).prop_map(
        |([src, dst], (src_port, traffic_class, hop_limit), label, ident)| {
            let (flow_label, ident) = if dst.is_ipv4() { (0, ident) } else { (label, 0) };
            NetHeader { src, dst, src_port, traffic_class, hop_limit, flow_label, ident }
        },
    )
}

/// Returns headers, each with a payload that it may carry.
fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    let payload = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..32),
        1 => prop::collection::vec(any::<u8>(), 0..=4096),
        1 => Just(Vec::new()),
        1 => any::<[u8; 8]>().prop_map(|bytes| bytes.to_vec()),
    ];
    let header = (bth(), kind()).prop_map(|(bth, kind)| Header { bth, kind });
    (header, payload).prop_map(|(header, mut payload)| {
        let rule = header.opcode().properties().payload;
        let lengths = [payload.len(), payload.len() & !3, 8, 0];
        let fitting = lengths.into_iter().find(|len| rule.allows(*len)).expect("every rule allows 8 or 0 bytes");
        payload.resize(fitting, 7);
        (header, payload)
    })
}

fn emit(net: &NetHeader, header: &Header, payload: &[u8]) -> Vec<u8> {
    let covered = header.padded_len(payload.len());
    let mut bytes = vec![0xee; covered + icrc::LEN];
    header.emit(payload.len(), &mut bytes[..covered]).expect("emit into a slot of exact size").copy_from_slice(payload);
    icrc::seal(net, &mut bytes);
    bytes
}

/// Returns the ICRC as the specification defines it: computed by another CRC implementation over
/// the whole IP packet without its ICRC.
fn reference_icrc(net: &NetHeader, covered: &[u8]) -> u32 {
    let mut input = vec![0xff; 8];
    let udp_len = (8 + covered.len() + icrc::LEN) as u16;
    let grh = net.to_grh(covered.len() + icrc::LEN);
    let ip_at = input.len();
    let masked: &[usize] = if net.dst.is_ipv4() {
        input.extend_from_slice(&grh[20..]);
        &[1, 8, 10, 11]
    } else {
        input.extend_from_slice(&grh);
        input[ip_at] = 0x6f;
        &[1, 2, 3, 7]
    };
    masked.iter().for_each(|at| input[ip_at + at] = 0xff);
    for word in [net.src_port, 4791, udp_len, 0xffff] {
        input.extend_from_slice(&word.to_be_bytes());
    }
    let bth_at = input.len();
    input.extend_from_slice(covered);
    input[bth_at + 4] = 0xff;
    Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&input)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    // clause: BTH-PAD
    #[test]
    fn parsing_undoes_emitting(net in net(), (header, payload) in packet()) {
        let bytes = emit(&net, &header, &payload);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { header, payload: &payload }));
    }

    #[test]
    fn emit_shared_writes_the_same_bytes((header, payload) in packet(), wrong in 0..5000_usize) {
        let mut own = vec![0xee; header.padded_len(payload.len())];
        header.emit(payload.len(), &mut own).expect("emit into a slot of exact size").copy_from_slice(&payload);
        let form = header.form(payload.len()).expect("it was emitted");
        let shared: Vec<_> = own.iter().map(|_| AtomicU8::new(0xee)).collect();
        let room = header.emit_shared_as(&form, &shared).expect("emit into a slot of exact size");
        prop_assert_eq!(room.len(), payload.len());
        room.iter().zip(&payload).for_each(|(to, byte)| to.store(*byte, Relaxed));
        prop_assert_eq!(shared.iter().map(|byte| byte.load(Relaxed)).collect::<Vec<_>>(), own);
        let other: Vec<_> = (0..wrong).map(|_| AtomicU8::new(0)).collect();
        prop_assert!(wrong == shared.len() || header.emit_shared_as(&form, &other).is_none());
    }

    #[test]
    fn packet_parses_alike_after_any_other_packet(
        net in net(),
        packets in prop::collection::vec((packet(), 0..3_usize, any::<(u8, prop::sample::Index)>()), 1..5),
    ) {
        let mut all = Vec::new();
        for ((header, payload), repeats, (flip, at)) in packets {
            let mut bytes = emit(&net, &header, &payload);
            all.push(bytes.clone());
            // A packet that differs in the PSN, one that differs in any bits of its headers, and a
            // shorter one.
            for _ in 0..repeats {
                let mut next = header;
                next.bth.psn = next.bth.psn.next();
                next.bth.ack_req ^= true;
                let mut next = emit(&net, &next, &payload);
                all.push(next.clone());
                // The extended headers or the payload differ, too.
                let len = next.len() - 12;
                next[12 + at.index(len)] ^= flip;
                all.push(next);
            }
            bytes[at.index(12)] ^= flip;
            all.push(bytes.clone());
            bytes.truncate(at.index(bytes.len()));
            all.push(bytes);
        }
        let mut reader = PacketReader::default();
        for bytes in &all {
            prop_assert_eq!(reader.parse(bytes).copied(), Packet::parse(bytes));
        }
    }

    // clause: ICRC-SUM
    #[test]
    fn icrc_equals_that_of_another_crc(net in net(), (header, payload) in packet()) {
        let bytes = emit(&net, &header, &payload);
        let (covered, trailer) = bytes.split_last_chunk().expect("split off the ICRC");
        prop_assert_eq!(u32::from_le_bytes(*trailer), reference_icrc(&net, covered));
    }

    // clause: ICRC-MASK-IPV4, ICRC-MASK-IPV6
    #[test]
    fn one_flipped_bit_breaks_the_icrc(net in net(), (header, payload) in packet(), bit: prop::sample::Index) {
        let mut bytes = emit(&net, &header, &payload);
        prop_assert!(icrc::verify(&net, &bytes));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Byte 4 of the BTH, the congestion bits, may change on the way.
        prop_assert_eq!(icrc::verify(&net, &bytes), bit / 8 == 4);
    }

    // clause: ICRC-MASK-IPV4, ICRC-MASK-IPV6
    #[test]
    fn icrc_covers_the_network_header_except_mutable_fields(
        (net, other) in (net(), net()),
        (header, payload) in packet(),
    ) {
        let bytes = emit(&net, &header, &payload);
        let NetHeader { traffic_class, hop_limit, flow_label, .. } = other;
        let rerouted = NetHeader { traffic_class, hop_limit, flow_label, ..net };
        prop_assert!(icrc::verify(&rerouted, &bytes));
        let another_flow = NetHeader { src_port: net.src_port ^ 0x100, ..net };
        prop_assert!(!icrc::verify(&another_flow, &bytes));
        let mut another_sender = net;
        another_sender.src.0[15] ^= 1;
        prop_assert!(!icrc::verify(&another_sender, &bytes));
    }

    // clause: IP-IDENT
    #[test]
    fn ip_identification_is_found(net in net(), (header, payload) in packet(), likely: u16) {
        let bytes = emit(&net, &header, &payload);
        let unknown = NetHeader { ident: 0, ..net };
        prop_assert_eq!(icrc::solve_ident(&unknown, &bytes, likely), Some(net.ident));
        prop_assert_eq!(icrc::solve_ident(&unknown, &bytes, net.ident), Some(net.ident));
    }

    // clause: IP-LENGTH
    #[test]
    fn ip_packets_roundtrip(net in net(), (header, payload) in packet(), junk: [u8; 6]) {
        let datagram = emit(&net, &header, &payload);
        let grh = net.to_grh(datagram.len());
        let mut ip = if net.is_ipv4() { grh[20..].to_vec() } else { grh.to_vec() };
        for word in [net.src_port, 4791, (8 + datagram.len()) as u16, 0] {
            ip.extend_from_slice(&word.to_be_bytes());
        }
        ip.extend_from_slice(&datagram);
        prop_assert!(NetHeader::parse_ip(&ip[..ip.len() - 1]).is_err());
        // Ethernet padding.
        ip.extend_from_slice(&junk);
        prop_assert_eq!(NetHeader::parse_ip(&ip), Ok((net, &datagram[..])));
    }

    #[test]
    fn parser_does_not_panic_on_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..96), opcode: u8, mangle: bool) {
        if mangle && bytes.len() > 1 {
            // Most random opcodes are reserved and most versions wrong: set valid ones to test the
            // rest of the parser.
            bytes[0] = opcode;
            bytes[1] &= 0xf0;
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(!packet.to_string().is_empty());
            let again = emit(&NetHeader::default(), &packet.header, packet.payload);
            prop_assert_eq!(Packet::parse(&again), Ok(packet));
        }
        let _ = NetHeader::parse_ip(&bytes);
        let _ = icrc::verify(&NetHeader::default(), &bytes);
        let _ = icrc::solve_ident(&NetHeader::default(), &bytes, 1);
        icrc::seal(&NetHeader::default(), &mut bytes);
    }
}

fn brute_force(net: &NetHeader, datagram: &[u8]) -> Option<u16> {
    (0..=u16::MAX).find(|ident| icrc::verify(&NetHeader { ident: *ident, ..*net }, datagram))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    // clause: IP-IDENT
    #[test]
    fn solve_ident_agrees_with_brute_force(
        (header, payload) in packet(),
        src_port: u16,
        noise: u16,
        bit in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let loopback = std::net::Ipv4Addr::LOCALHOST.into();
        let net = NetHeader { src: loopback, dst: loopback, src_port, ident: noise, ..NetHeader::default() };
        let mut bytes = emit(&net, &header, &payload);
        if let Some(bit) = bit {
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let unknown = NetHeader { ident: 0, ..net };
        prop_assert_eq!(icrc::solve_ident(&unknown, &bytes, 0), brute_force(&unknown, &bytes));
    }
}
