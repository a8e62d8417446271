//! Messages of failed cases: place, expectation, behaviour of the card, and packets.

use roxe_drill::{Outcome, Script, Verdict, VirtualCard, run};

fn outcome(text: &str) -> Outcome {
    let script =
        Script::parse("a.drill", &format!("title t\npeer reg mr\npeer qp q\n{text}")).expect("parse the script");
    run("a.drill", &script.cases()[0], &mut VirtualCard::default())
}

/// Returns place, expectation and behaviour of the failure of a script.
fn failure(text: &str) -> (String, String, String) {
    match outcome(text).verdict {
        Verdict::Fail(failure) => (failure.at, failure.expected, failure.received),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn unexpected_packet_is_reported_with_the_expected_one() {
    for (text, expected, received) in [
        (
            "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=101 msn=1 each",
            "ACK psn=101 msn=1",
            "RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0 (psn is 100, not 101)",
        ),
        (
            "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=2",
            "ACK psn=100 msn=2",
            "RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0 (msn is 1, not 2)",
        ),
        (
            "send WRITE_ONLY psn=101 ackreq\nexpect ACK psn=101 msn=1",
            "ACK psn=101 msn=1",
            "RC ACK dqpn=0x2a psn=100 migreq nak=psn_sequence msn=0 len=0 (psn is 100, not 101; msn is 0, not 1; \
             syndrome is 0x60, not an acknowledgement)",
        ),
        (
            "send SEND_ONLY psn=100\nexpect NAK invalid_request psn=100",
            "NAK invalid_request psn=100",
            "RC ACK dqpn=0x2a psn=100 migreq rnr timer=12 msn=0 len=0 (syndrome is 0x2c, not 0x61)",
        ),
        (
            "send READ_REQUEST psn=100 va=mr.addr rkey=mr.rkey dmalen=4\nexpect READ_RESPONSE_ONLY psn=100 data=\"full\"",
            "READ_RESPONSE_ONLY psn=100",
            "RC READ_RESPONSE_ONLY dqpn=0x2a psn=100 migreq ack msn=1 len=4 (payload differs from byte 0: 00000000, \
             not 66756c6c)",
        ),
        (
            "send READ_REQUEST psn=100 dmalen=0\nexpect ACK psn=100",
            "ACK psn=100",
            "RC READ_RESPONSE_ONLY dqpn=0x2a psn=100 migreq ack msn=1 len=0 (another opcode)",
        ),
        ("send WRITE_ONLY psn=100\nexpect ACK psn=100 within 3ms", "ACK psn=100", "nothing"),
        (
            "send WRITE_ONLY psn=100 ackreq\nsilence 3ms",
            "silence 3ms",
            "RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0",
        ),
        (
            "peer post q SEND id=1\nexpect SEND_ONLY\nexpect SEND_ONLY after 270ms",
            "SEND_ONLY",
            "RC SEND_ONLY dqpn=0x2a psn=500 ackreq migreq len=0 (received 268.435456ms after the packet before it)",
        ),
        (
            "peer post q SEND id=1\nexpect SEND_ONLY as=first\nwait 50ms\nsend RNR timer=1 psn=501 as=rnr\n\
             expect SEND_ONLY after 230ms since=rnr",
            "SEND_ONLY",
            "RC SEND_ONLY dqpn=0x2a psn=500 ackreq migreq len=0 (received 218.435456ms after rnr)",
        ),
        ("send WRITE_ONLY psn=100 ackreq\ncount ACK range=2..3 for 3ms", "2 to 3 packets ACK", "1 of them in 3ms"),
        (
            "send WRITE_ONLY psn=100 ackreq\ncount ACK psn=101 for 3ms",
            "ACK psn=101",
            "RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0 (psn is 100, not 101)",
        ),
    ] {
        let (at, is_expected, is_received) = failure(text);
        let last = 3 + text.lines().count();
        assert_eq!((at, is_expected, is_received), (format!("a.drill:{last}"), expected.into(), received.into()));
    }
}

#[test]
fn far_side_mismatch_is_reported_with_the_expectation() {
    for (text, expected, received) in [
        ("peer state q ERR within 1ms", "q is in ERR", "it is in RTS"),
        (
            "peer memory mr at=8 len=4 fill=1",
            "4 bytes of mr",
            "mr at offset 8 differs from byte 0: 00000000, not 01010101",
        ),
        ("peer event COMM_EST within 1ms", "event COMM_EST", "events: "),
        ("peer complete q id=1 within 1ms", "completion of q: id=1 status=SUCCESS", "nothing"),
        (
            "peer recv q id=2 sge=mr:0:9\nsend SEND_ONLY psn=100 len=9\npeer complete q id=1 bytes=8",
            "completion of q: id=1 status=SUCCESS bytes=8",
            "id=2 status=SUCCESS opcode=RECV bytes=9",
        ),
        (
            "peer recv q id=2 sge=mr:0:9\nsend SEND_ONLY psn=100 len=9\npeer idle q",
            "no completion of q",
            "id=2 status=SUCCESS opcode=RECV bytes=9",
        ),
        ("peer post q SEND id=1 refused", "the verb fails", "the verb succeeds"),
        (
            "peer qp r mtu=300",
            "the verb succeeds",
            "300 is not a path MTU; use 256, 512, 1024, 2048 or 4096 (errno 22)",
        ),
    ] {
        let (_, is_expected, is_received) = failure(text);
        assert_eq!((is_expected.as_str(), is_received.as_str()), (expected, received), "{text}");
    }
}

#[test]
fn packet_after_the_last_step_fails_the_case() {
    let (_, expected, received) = failure("send WRITE_ONLY psn=100 ackreq");
    assert_eq!(expected, "no packet after the last step");
    assert_eq!(received, "RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0");
}

#[test]
fn invalid_step_is_inconclusive() {
    for (text, why) in [
        ("send SEND_ONLY psn=x", "there is no name `x`"),
        ("send SEND_ONLY psn=1 va=3", "SEND_ONLY has no field `va`"),
        ("send SEND_ONLY of=p", "there is no queue pair `p`"),
        ("peer memory m len=1", "there is no memory `m`"),
        ("peer qp r srq=s", "there is no SRQ `s`"),
        ("expect ACK after 1ms since=x", "there is no packet `x`"),
        ("repeat 200000\nlet a = 1\nend", "the script has too many steps"),
    ] {
        let Verdict::Inconclusive(failure) = outcome(text).verdict else { panic!("{text}") };
        assert_eq!(failure.received, why);
    }
    assert_eq!(
        outcome("peer qp r type=RD").verdict,
        Verdict::Unsupported("the virtual card has no RD queue pairs (errno 95)".into())
    );
}

#[test]
fn figures_are_measured_from_times_and_counts() {
    let text = "send WRITE_ONLY psn=100 ackreq\nsend WRITE_ONLY psn=101 ackreq\ncount ACK for 3ms as=acks\n\
                figure acks number acks.count\nfigure last_psn number acks.psn\n\
                figure interval time (acks.at-acks.first)/(acks.count-2)\n\
                peer post q SEND id=1\nexpect SEND_ONLY as=first\nexpect SEND_ONLY as=again\n\
                figure retry time again.at-first.at\nfigure back time first.at-again.at\n\
                figure half_back time (first.at-again.at)/2\nsend ACK psn=500 msn=1";
    let outcome = outcome(text);
    assert_eq!(outcome.verdict, Verdict::Pass);
    let figures: Vec<_> = outcome.figures.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
    assert_eq!(figures, [("acks", 2), ("last_psn", 101), ("retry", 268_435_456)], "no division by 0, no negative time");
}

#[test]
fn packet_has_its_tos_as_a_name() {
    let text = "send WRITE_ONLY psn=100 tos=3 as=mark\nexpect CNP as=cnp\n\
                figure mark number mark.tos\nfigure dscp number cnp.tos/4";
    let figures = outcome(text).figures;
    let figures: Vec<_> = figures.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
    assert_eq!(figures, [("mark", 3), ("dscp", 48)]);
}

#[test]
fn count_names_the_queue_pair_of_a_packet_to_another_one() {
    let outcome = outcome("peer qp r\nsend WRITE_ONLY psn=100 ackreq of=q\ncount ACK of=r for 3ms");
    let failure = outcome.verdict.failure().expect("the case fails");
    assert!(failure.received.contains("(its destination is queue pair 0x2a, not 0x2b)"), "{}", failure.received);
}

#[test]
fn failure_message_and_capture_have_the_packets() {
    let outcome = outcome("send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=7");
    let text = outcome.verdict.failure().expect("the case fails").to_string();
    assert_eq!(
        text,
        "a.drill:5: expect ACK psn=100 msn=7\n    expected: ACK psn=100 msn=7\n    received: RC ACK dqpn=0x2a psn=100 \
         migreq ack msn=1 len=0 (msn is 1, not 7)\n  packets, `>` to the card:\n    0.000000 > RC WRITE_ONLY dqpn=0x11 \
         psn=100 ackreq migreq va=0x0 rkey=0x0 dmalen=0 len=0\n    0.000000 < RC ACK dqpn=0x2a psn=100 migreq ack msn=1 \
         len=0"
    );
    let file = outcome.log.to_pcapng();
    let frames: Vec<_> = roxe_wire::capture::frames(&file).expect("parse the capture").map(Result::unwrap).collect();
    assert_eq!((frames.len(), frames[1].comment), (2, "msn is 1, not 7"));
}
