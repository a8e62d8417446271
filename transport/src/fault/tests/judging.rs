//! Matching and actions of rules.

use super::*;
use core::time::Duration;
use roxe_wire::NetHeader;

const MS: Duration = Duration::from_millis(1);

#[test]
fn rule_without_words_matches_every_packet() {
    let mut all = injector("drop");
    assert_eq!(all.dropped(tx(), 3), [0, 1, 2]);
    assert_eq!(all.dropped(rx(), 3), [0, 1, 2]);
    assert!(all.judge_one(tx(), 0, CNP, b"").drop);
    assert_eq!(all.totals(), [(7, 7)]);
    assert_eq!(injector("").judge_one(tx(), 0, SEND, b""), Verdict::PASS);
}

#[test]
fn direction_and_qp_words_filter_packets() {
    let other = Stream { qpn: 18, ordinal: 1, ..tx() };
    for (text, expected) in [
        ("drop tx", [true, false, true]),
        ("drop rx", [false, true, false]),
        ("drop qp=17", [true, true, false]),
        ("drop qp=0x12", [false, false, true]),
        ("drop qp=#0", [true, true, false]),
        ("drop qp=#1", [false, false, true]),
        ("drop qp=#2", [false, false, false]),
    ] {
        let mut injector = injector(text);
        assert_eq!([tx(), rx(), other].map(|stream| injector.drops(stream, 5)), expected, "{text}");
    }
}

#[test]
fn at_word_limits_the_time() {
    let at = |millis: u64| Stream { at: MS * millis as u32, ..tx() };
    for (text, expected) in [
        ("drop at=2ms..4ms", [false, true, true, false]),
        ("drop at=3ms..", [false, false, true, true]),
        ("drop at=0s..3ms", [true, true, false, false]),
        // `nth` counts the packets in that time.
        ("drop at=2ms.. nth=2", [false, false, true, false]),
    ] {
        let mut injector = injector(text);
        assert_eq!([1, 2, 3, 4].map(|millis| injector.drops(at(millis), 5)), expected, "{text}");
    }
}

#[test]
fn naks_are_forged_from_responses_cnps_from_any_packet() {
    let answer = |syndrome| Kind::RcResponse(Response::Ack(aeth(syndrome)));
    for (text, syndrome) in [
        ("nak psn_sequence", Syndrome::Nak(NakCode::PsnSequence)),
        ("nak remote_access rx", Syndrome::Nak(NakCode::RemoteAccess)),
        ("nak 0x2c", Syndrome::RnrNak { timer: 12 }),
        ("nak 0x7f", Syndrome::Nak(NakCode::Reserved(31))),
        ("nak 0xa5", Syndrome::Reserved(0xa5)),
    ] {
        let mut injector = injector(text);
        assert_eq!(injector.judge_one(rx(), 4, SEND, b"data"), Verdict::PASS, "{text}: a request has no syndrome");
        let forged = injector.judge_one(rx(), 5, answer(Syndrome::ACK_UNLIMITED), b"").forged.expect(text);
        let header = Header { bth: Bth::new(Qpn::new(99), Psn::new(5)), kind: answer(Syndrome::ACK_UNLIMITED) };
        let bytes = forged.packet(&Packet { header, payload: b"" }).expect(text);
        assert_eq!(Packet::parse(&bytes).expect(text).header, Header { kind: answer(syndrome), ..header });
    }
    let mut injector = injector("cnp rx nth=2");
    assert_eq!(injector.judge_one(rx(), 4, CNP, b""), Verdict::PASS, "none is made of another one");
    assert_eq!(injector.judge_one(rx(), 4, SEND, b"data"), Verdict::PASS);
    let forged = injector.judge_one(rx(), 5, SEND, b"data").forged.expect("forge a packet ahead of the second");
    let header = Header { bth: Bth::new(Qpn::new(99), Psn::new(5)), kind: SEND };
    let bytes = forged.packet(&Packet { header, payload: b"data" }).expect("build the notification");
    let cnp = Packet::parse(&bytes).expect("a packet is on the link").header;
    assert_eq!((cnp.kind, cnp.bth.dest_qpn, cnp.bth.becn), (Kind::Cnp, Qpn::new(99), true));
}

#[test]
fn peer_word_filters_by_address() {
    let from_other = |stream| Stream { peer: peer(12), ..stream };
    let v6 = Gid("fe80::1".parse::<std::net::Ipv6Addr>().expect("parse the address").octets());
    for (text, expected) in [
        ("drop peer=10.77.0.11", [true, true, false, false, false]),
        ("drop from=10.77.0.11", [false, true, false, false, false]),
        ("drop to=10.77.0.12", [false, false, true, false, false]),
        ("drop peer=fe80::1", [false, false, false, false, true]),
    ] {
        let mut injector = injector(text);
        let streams = [tx(), rx(), from_other(tx()), from_other(rx()), Stream { peer: v6, ..rx() }];
        assert_eq!(streams.map(|stream| injector.drops(stream, 5)), expected, "{text}");
    }
}

/// Returns one packet of each named kind.
fn one_of_each() -> Vec<(&'static str, Kind, &'static [u8])> {
    use {Request as Q, Response as P};
    let atomic = AtomicEth { va: 0, rkey: RKey(1), swap_or_add: 1, compare: 2 };
    let imm = ImmDt([1, 2, 3, 4]);
    vec![
        ("SEND_FIRST", Kind::RcRequest(Q::SendFirst), &[0; 256]),
        ("SEND_LAST_IMM", uc(Request::SendLast(SendTail::Imm(imm))), b"x"),
        ("SEND_ONLY", ud(), b""),
        ("WRITE_ONLY", Kind::RcRequest(Q::WriteOnly(reth(4), None)), b"data"),
        ("WRITE_LAST_IMM", Kind::RcRequest(Q::WriteLast(Some(imm))), b"data"),
        ("READ_REQUEST", read(4), b""),
        ("FETCH_ADD", Kind::RcRequest(Q::FetchAdd(atomic)), b""),
        ("READ_RESPONSE_MIDDLE", Kind::RcResponse(P::ReadMiddle), &[0; 256]),
        ("READ_RESPONSE_ONLY", Kind::RcResponse(P::ReadOnly(good())), b"data"),
        ("ATOMIC_ACK", Kind::RcResponse(P::AtomicAck(good(), AtomicAckEth(1))), b""),
        ("ACK", ack(), b""),
        ("NAK", nak(), b""),
        ("RNR_NAK", rnr_nak(), b""),
        ("CNP", CNP, b""),
    ]
}

#[test]
fn opcodes_and_classes_match_the_names_that_dump_prints() {
    for (text, expected) in [
        ("SEND", vec!["SEND_FIRST", "SEND_LAST_IMM", "SEND_ONLY"]),
        ("SEND_ONLY", vec!["SEND_ONLY"]),
        ("WRITE", vec!["WRITE_ONLY", "WRITE_LAST_IMM"]),
        ("READ_REQUEST", vec!["READ_REQUEST"]),
        ("READ_RESPONSE", vec!["READ_RESPONSE_MIDDLE", "READ_RESPONSE_ONLY"]),
        ("ATOMIC", vec!["FETCH_ADD"]),
        ("ATOMIC_ACK", vec!["ATOMIC_ACK"]),
        ("ACK", vec!["ACK"]),
        ("NAK", vec!["NAK", "RNR_NAK"]),
        ("RNR_NAK", vec!["RNR_NAK"]),
        ("CNP", vec!["CNP"]),
        ("ACK,CNP,READ_RESPONSE_ONLY", vec!["READ_RESPONSE_ONLY", "ACK", "CNP"]),
        ("RESPONSE", vec!["READ_RESPONSE_MIDDLE", "READ_RESPONSE_ONLY", "ATOMIC_ACK", "ACK", "NAK", "RNR_NAK"]),
        (
            "REQUEST",
            vec![
                "SEND_FIRST",
                "SEND_LAST_IMM",
                "SEND_ONLY",
                "WRITE_ONLY",
                "WRITE_LAST_IMM",
                "READ_REQUEST",
                "FETCH_ADD",
            ],
        ),
    ] {
        let mut injector = injector(&format!("drop op={text}"));
        let hit =
            one_of_each().into_iter().filter(|(_, kind, payload)| injector.judge_one(tx(), 1, *kind, payload).drop);
        assert_eq!(hit.map(|(name, ..)| name).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn service_word_filters_and_excludes_cnps() {
    let send = Request::SendOnly(SendTail::Plain);
    let uc = uc(Request::SendOnly(SendTail::Plain));
    let kinds =
        [SEND, ack(), uc, ud(), Kind::XrcRequest(XrcEth(5), send), Kind::XrcResponse(Response::Ack(good())), CNP];
    for (text, expected) in [
        ("drop service=RC", [true, true, false, false, false, false, false]),
        ("drop service=UC", [false, false, true, false, false, false, false]),
        ("drop service=UD", [false, false, false, true, false, false, false]),
        ("drop service=XRC", [false, false, false, false, true, true, false]),
        ("drop service=RC,XRC op=ACK", [false, true, false, false, false, true, false]),
        ("drop service=RC,UC,UD,XRC", [true, true, true, true, true, true, false]),
    ] {
        let mut injector = injector(text);
        assert_eq!(kinds.map(|kind| injector.judge_one(tx(), 1, kind, b"data").drop), expected, "{text}");
    }
}

#[test]
fn psns_are_matched_with_wrap_around() {
    let mut injector = injector("drop psn=0xfffffe..1,7");
    let psns = [0xff_fffd, 0xff_fffe, 0xff_ffff, 0, 1, 2, 6, 7, 8];
    let expected = [false, true, true, true, true, false, false, true, false];
    assert_eq!(psns.map(|psn| injector.drops(tx(), psn)), expected);
}

#[test]
fn nth_counts_matching_packets_per_direction_and_qp() {
    let mut injector = injector("drop op=SEND nth=2,4..5");
    let other = Stream { ordinal: 1, ..tx() };
    for stream in [tx(), rx(), other] {
        assert!(!injector.judge_one(stream, 0, ack(), b"").drop);
    }
    for stream in [tx(), rx(), other] {
        assert_eq!(injector.dropped(stream, 7), [1, 3, 4]);
    }
    assert_eq!(injector.totals(), [(21, 9)]);
}

#[test]
fn times_limits_the_faults() {
    let mut injector = injector("drop times=2; drop op=SEND nth=3.. times=1");
    assert_eq!(injector.dropped(tx(), 9), [0, 1, 2]);
    assert_eq!(injector.dropped(rx(), 9), [0, 1, 2]);
    assert_eq!(injector.totals(), [(18, 4), (18, 2)]);
}

#[test]
fn forget_resets_counters_but_not_the_report() {
    let mut injector = injector("drop nth=1");
    assert_eq!(injector.dropped(tx(), 5), [0]);
    injector.forget(0);
    injector.forget(77);
    assert_eq!(injector.dropped(tx(), 5), [0]);
    assert_eq!(injector.totals(), [(10, 2)]);
    let lines: Vec<_> = injector.report().map(|report| report.to_string()).collect();
    assert_eq!(lines, ["drop nth=1: 10 packets matched, 2 faults"]);
}

#[test]
fn dropped_packet_has_no_other_fault_but_is_counted() {
    let mut injector = injector("ecn; duplicate; drop nth=2; drop nth=2");
    let marked = Verdict { mark_ce: true, copies: 1, rule: Some(RuleId(0)), ..Verdict::PASS };
    assert_eq!(injector.judge_one(tx(), 0, SEND, b""), marked);
    assert_eq!(injector.judge_one(tx(), 1, SEND, b""), Verdict { drop: true, rule: Some(RuleId(2)), ..Verdict::PASS });
    assert_eq!(injector.totals(), [(2, 1), (2, 1), (2, 1), (2, 0)]);
    let order: Vec<_> = injector.report().map(|report| report.id.to_string()).collect();
    assert_eq!(order, ["1", "2", "3", "4"]);
}

#[test]
fn copies_and_delays_add_up() {
    let mut injector = injector("delay by=2ms; duplicate; duplicate copies=2 by=3ms; delay by=5ms");
    let expected = Verdict { copies: 3, copies_after: 3 * MS, delay: 7 * MS, rule: Some(RuleId(0)), ..Verdict::PASS };
    assert_eq!(injector.judge_one(tx(), 0, SEND, b""), expected);
    assert!(!expected.is_pass() && Verdict::PASS.is_pass());
}

#[test]
fn delays_cover_their_range() {
    for (text, least, most) in [("delay by=2ms..4ms", 2 * MS, 4 * MS), ("reorder by=3ms", Duration::ZERO, 3 * MS)] {
        let mut injector = injector(text);
        let times: Vec<_> = (0..1000).map(|psn| injector.judge_one(tx(), psn, SEND, b"").delay).collect();
        assert!(times.iter().all(|time| (least..=most).contains(time)), "{text}");
        let quarter = (most - least) / 4;
        assert!(times.iter().any(|time| *time < least + quarter), "{text}");
        assert!(times.iter().any(|time| *time > most - quarter), "{text}");
    }
}

/// Returns a sealed packet, and the rule that damages it.
fn damaged(part: &str, n: u32) -> (Vec<u8>, Vec<u8>, NetHeader) {
    let net = NetHeader { src: peer(1), dst: peer(11), ..NetHeader::default() };
    let header = Header { bth: Bth::new(Qpn::new(99), Psn::new(n)), kind: ud() };
    let payload = b"hello";
    let mut bytes = vec![0; header.padded_len(payload.len()) + icrc::LEN];
    let room = bytes.len() - icrc::LEN;
    header.emit(payload.len(), &mut bytes[..room]).expect("emit into a slot of exact size").copy_from_slice(payload);
    icrc::seal(&net, &mut bytes);
    let mut injector = Injector::new(&rules(&format!("corrupt {part}")), u64::from(n));
    let verdict = injector.judge_one(tx(), n, header.kind, payload);
    let mut hurt = bytes.clone();
    verdict.corrupt.expect("damage").apply(&mut hurt);
    (bytes, hurt, net)
}

#[test]
fn corruption_flips_one_bit_that_the_icrc_detects() {
    // 12 BTH and 8 DETH, 5 payload, 3 pad, 4 ICRC. The ICRC does not cover byte 4.
    for (part, places) in [
        ("header", (0..20).filter(|at| *at != 4).collect::<Vec<usize>>()),
        ("payload", (20..25).collect()),
        ("icrc", (28..32).collect()),
    ] {
        let mut hit = vec![0u8; 32];
        for n in 0..2000 {
            let (whole, hurt, net) = damaged(part, n);
            let changed: Vec<_> = (0..32).filter(|at| whole[*at] != hurt[*at]).collect();
            assert_eq!(changed.len(), 1, "{part}");
            let flipped = whole[changed[0]] ^ hurt[changed[0]];
            assert_eq!(flipped.count_ones(), 1, "{part}");
            hit[changed[0]] |= flipped;
            assert!(icrc::verify(&net, &whole) && !icrc::verify(&net, &hurt), "{part}");
        }
        let expected: Vec<_> = (0..32).map(|at| if places.contains(&at) { 0xff } else { 0 }).collect();
        assert_eq!(hit, expected, "{part}: every bit of it, and no other");
    }
}

#[test]
fn corrupt_payload_needs_a_payload() {
    let mut injector = injector("corrupt payload nth=1");
    assert!(injector.judge_one(tx(), 0, ack(), b"").is_pass());
    assert!(injector.judge_one(tx(), 0, SEND, b"").is_pass());
    assert_eq!(injector.judge_one(tx(), 0, SEND, b"x").corrupt.map(|corruption| corruption.at), Some(12));
    assert_eq!(injector.totals(), [(1, 1)]);
}

#[test]
fn first_corruption_wins() {
    let mut injector = injector("corrupt icrc; corrupt header");
    let corrupt = injector.judge_one(tx(), 0, SEND, b"").corrupt.expect("damage");
    assert!((12..16).contains(&corrupt.at));
    assert_eq!(injector.totals(), [(1, 1), (1, 0)]);
}

#[test]
fn corruption_beyond_the_packet_has_no_effect() {
    let mut bytes = [7; 4];
    Corruption { at: 4, mask: 1 }.apply(&mut bytes);
    assert_eq!(bytes, [7; 4]);
}

#[test]
fn rnr_applies_to_requests_that_need_a_receive() {
    let imm = ImmDt([1, 2, 3, 4]);
    let mut injector = injector("rnr");
    for (kind, expected) in [
        (SEND, true),
        (Kind::RcRequest(Request::SendFirst), true),
        (Kind::RcRequest(Request::SendMiddle), false),
        (Kind::RcRequest(Request::SendLast(SendTail::Plain)), false),
        (Kind::RcRequest(Request::WriteOnly(reth(4), None)), false),
        (Kind::RcRequest(Request::WriteOnly(reth(4), Some(imm))), true),
        (Kind::RcRequest(Request::WriteLast(Some(imm))), true),
        (uc(Request::SendOnly(SendTail::Plain)), true),
        (uc(Request::SendMiddle), false),
        (ud(), true),
        (read(4), false),
        (ack(), false),
        (CNP, false),
    ] {
        assert_eq!(injector.judge_one(rx(), 1, kind, b"").rnr, expected, "{kind:?}");
        assert!(injector.judge_one(tx(), 1, kind, b"").is_pass(), "{kind:?}");
    }
}
