//! Message numbers: assigned on first appearance, kept by retransmissions.

use super::*;

const MTU: usize = 1024;

/// Kinds of a three-packet SEND.
fn parts() -> [(Kind, usize); 3] {
    let kinds = [Request::SendFirst, Request::SendMiddle, Request::SendLast(SendTail::Plain)];
    let [first, middle, last] = kinds.map(Kind::RcRequest);
    [(first, MTU), (middle, MTU), (last, 9)]
}

/// The message numbers, up to 40, of packets.
struct Numbers(Injector);

impl Numbers {
    fn new() -> Self {
        let list: Vec<_> = (1..=40).map(|n| format!("ecn msg={n}")).collect();
        Self(injector(&list.join(";")))
    }

    /// Returns the number of a packet.
    fn of(&mut self, stream: Stream, psn: u32, kind: Kind, len: usize) -> Option<u16> {
        self.0.judge_one(stream, psn, kind, &vec![0; len]).rule.map(|rule| rule.0 + 1)
    }

    /// Returns the numbers of the three packets of a SEND.
    fn of_send(&mut self, stream: Stream, psn: u32) -> [Option<u16>; 3] {
        let mut at = psn;
        parts().map(|(kind, len)| {
            at += 1;
            self.of(stream, at - 1, kind, len)
        })
    }
}

#[test]
fn messages_are_numbered_from_1() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of_send(tx(), 100), [Some(1); 3]);
    assert_eq!(numbers.of(tx(), 103, SEND, 4), Some(2));
    assert_eq!(numbers.of_send(tx(), 104), [Some(3); 3]);
    assert_eq!(numbers.of_send(rx(), 500), [Some(1); 3], "the other direction counts separately");
    assert_eq!(numbers.of_send(Stream { ordinal: 1, ..tx() }, 104), [Some(1); 3], "so does another queue pair");
    assert_eq!(numbers.of(tx(), 107, CNP, 0), None);
}

#[test]
fn retransmission_keeps_its_message_number() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of_send(tx(), 100), [Some(1); 3]);
    assert_eq!(numbers.of_send(tx(), 103), [Some(2); 3]);
    // Retransmits from the middle of the first message on.
    let [_, (middle, len), (last, rest)] = parts();
    assert_eq!(numbers.of(tx(), 101, middle, len), Some(1));
    assert_eq!(numbers.of(tx(), 102, last, rest), Some(1));
    assert_eq!(numbers.of_send(tx(), 103), [Some(2); 3]);
    assert_eq!(numbers.of(tx(), 106, SEND, 4), Some(3));
}

#[test]
fn message_numbers_survive_psn_wrap() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of(tx(), 0xff_fffd, SEND, 4), Some(1));
    assert_eq!(numbers.of_send(tx(), 0xff_fffe), [Some(2); 3]);
    assert_eq!(numbers.of(tx(), 1, SEND, 4), Some(3));
    assert_eq!(numbers.of(tx(), 0xff_fffd, SEND, 4), Some(1));
    let [_, (middle, len), (last, rest)] = parts();
    assert_eq!((numbers.of(tx(), 0xff_ffff, middle, len), numbers.of(tx(), 0, last, rest)), (Some(2), Some(2)));
}

#[test]
fn packet_after_gap_has_no_number_until_gap_is_filled() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of(rx(), 10, SEND, 4), Some(1));
    assert_eq!(numbers.of(rx(), 12, SEND, 4), None, "11 was lost before the injector");
    assert_eq!(numbers.of(rx(), 11, SEND, 4), Some(2));
    assert_eq!(numbers.of(rx(), 12, SEND, 4), Some(3));
}

#[test]
fn uc_message_numbers_continue_after_a_gap() {
    let mut numbers = Numbers::new();
    let send = uc(Request::SendOnly(SendTail::Plain));
    assert_eq!(numbers.of(rx(), 10, send, 4), Some(1));
    assert_eq!(numbers.of(rx(), 15, send, 4), Some(2));
    assert_eq!(numbers.of(rx(), 16, uc(Request::SendMiddle), MTU), Some(2));
}

#[test]
fn every_datagram_is_a_message() {
    let mut numbers = Numbers::new();
    assert_eq!([7, 3, 3].map(|psn| numbers.of(rx(), psn, ud(), 4)), [Some(1), Some(2), Some(3)]);
}

#[test]
fn first_packet_may_be_a_middle() {
    let mut numbers = Numbers::new();
    let [_, (middle, len), (last, rest)] = parts();
    assert_eq!(numbers.of(rx(), 10, middle, len), Some(1));
    assert_eq!(numbers.of(rx(), 11, last, rest), Some(1));
    assert_eq!(numbers.of(rx(), 12, SEND, 4), Some(2));
}

#[test]
fn responses_count_as_the_message_they_answer() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of(rx(), 100, ack(), 0), None, "no request was sent");
    assert_eq!(numbers.of_send(tx(), 100), [Some(1); 3]);
    assert_eq!(numbers.of(tx(), 103, SEND, 4), Some(2));
    assert_eq!(numbers.of(rx(), 102, ack(), 0), Some(1));
    assert_eq!(numbers.of(rx(), 103, nak(), 0), Some(2));
    assert_eq!(numbers.of(rx(), 104, ack(), 0), None, "acknowledges a PSN that was never sent");
    assert_eq!(numbers.of(tx(), 103, ack(), 0), None, "the peer sent no request");
}

#[test]
fn read_occupies_one_psn_per_response() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of(tx(), 100, read(2500), 0), Some(1), "100, 101, 102 at an MTU of 1024");
    assert_eq!(numbers.of(tx(), 103, SEND, 4), Some(2), "the MTU is not known yet");
    let first = Kind::RcResponse(Response::ReadFirst(good()));
    let middle = Kind::RcResponse(Response::ReadMiddle);
    assert_eq!((numbers.of(rx(), 100, first, MTU), numbers.of(rx(), 101, middle, MTU)), (Some(1), Some(1)));
    assert_eq!(numbers.of(tx(), 104, read(2500), 0), Some(3));
    assert_eq!(numbers.of(tx(), 108, SEND, 4), None, "the MTU is known now: the next PSN is 107");
    assert_eq!(numbers.of(rx(), 106, middle, MTU), Some(3));
    assert_eq!(numbers.of(rx(), 107, ack(), 0), None);
    assert_eq!(numbers.of(tx(), 107, SEND, 4), Some(4));
}

#[test]
fn retried_read_tail_keeps_its_message_number() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.of(tx(), 100, read(2500), 0), Some(1));
    let first = Kind::RcResponse(Response::ReadFirst(good()));
    assert_eq!(numbers.of(rx(), 100, first, MTU), Some(1));
    assert_eq!(numbers.of(tx(), 101, read(1476), 0), Some(1));
    assert_eq!(numbers.of(tx(), 103, read(4), 0), Some(2));
    assert_eq!(numbers.of(tx(), 102, read(452), 0), Some(1));
    assert_eq!(numbers.of(tx(), 104, SEND, 4), Some(3));
}

#[test]
fn only_the_newest_messages_are_remembered() {
    let mut injector = injector("ecn msg=1; ecn msg=2..");
    for psn in 0..513 {
        assert_eq!(injector.judge_one(tx(), psn, SEND, b"").rule, Some(RuleId(u16::from(psn > 0))));
    }
    assert_eq!(injector.judge_one(tx(), 0, SEND, b"").rule, None);
    assert_eq!(injector.judge_one(tx(), 1, SEND, b"").rule, Some(RuleId(1)));
}

#[test]
fn messages_with_ambiguous_psns_are_forgotten() {
    let mut numbers = Numbers::new();
    // One READ of 2^22 packets: 1 GiB at an MTU of 256.
    assert_eq!(numbers.of(tx(), 0, Kind::RcRequest(Request::SendFirst), 256), Some(1));
    assert_eq!(numbers.of(tx(), 1, read(1 << 30), 0), Some(2));
    assert_eq!(numbers.of(tx(), 1 + (1 << 22), SEND, 0), Some(3));
    assert_eq!(numbers.of(tx(), 0, Kind::RcRequest(Request::SendFirst), 256), None);
    assert_eq!(numbers.of(rx(), 1 << 22, ack(), 0), None);
    assert_eq!(numbers.of(rx(), 1 + (1 << 22), ack(), 0), Some(3));
}

#[test]
fn path_mtu_is_learned_from_full_packets_only() {
    let mut numbers = Numbers::new();
    let (first, middle) = (Kind::RcResponse(Response::ReadFirst(good())), Kind::RcResponse(Response::ReadMiddle));
    let last = Kind::RcResponse(Response::ReadLast(good()));
    assert_eq!(numbers.of(tx(), 100, read(2500), 0), Some(1));
    assert_eq!(numbers.of(rx(), 102, last, 256), Some(1), "the last one may have any size");
    assert_eq!(numbers.of(rx(), 101, middle, 1000), Some(1), "no path has this MTU");
    assert_eq!(numbers.of(tx(), 101, SEND, 4), Some(2), "so the last PSN of the READ is not known");
    assert_eq!(numbers.of(tx(), 102, read(2500), 0), Some(3));
    assert_eq!(numbers.of(rx(), 102, first, MTU), Some(3));
    assert_eq!(numbers.of(rx(), 103, middle, 1000), Some(3));
    assert_eq!(numbers.of(tx(), 106, SEND, 4), None, "the known MTU stays: the next PSN is 105");
}
