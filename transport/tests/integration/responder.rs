//! An RC responder against forged requests: each received packet causes exactly the given packets.
//!
//! Responses are written as `ack 100 msn 1`, `nak PsnSequence 101`, `rnr 100`, `first 100`, `atomic
//! 100 = 7`.

use super::*;
use roxe_sim::wire::net_header;
use roxe_transport::qp::DropReason;
use roxe_transport::qp::{QpEvents, Service};
use roxe_wire::{AtomicEth, Ieth, NakCode, NetHeader, Qpn, RKey, Reth, Syndrome};

/// A responder whose peer, with first PSN 100, is forged by the test.
struct Script {
    p: Pair,
    /// Remotely accessible bytes.
    mr: Mr,
    seen: usize,
}

impl Script {
    fn new(setup: Setup) -> Self {
        let mut p = alone(B, setup);
        let mr = blank(&mut p, B, 4096);
        Self { p, mr, seen: 0 }
    }

    /// Injects a request that requests an acknowledgement, and returns the responses.
    fn deliver(&mut self, psn: u32, req: Request, payload: &[u8]) -> Vec<String> {
        self.deliver_header(&request(B, psn, req), payload)
    }

    fn deliver_header(&mut self, header: &Header, payload: &[u8]) -> Vec<String> {
        self.p.inject(B, header, payload);
        self.p.transmit(B);
        self.responses()
    }

    /// Takes the responses since the last call, as text.
    fn responses(&mut self) -> Vec<String> {
        let new = self.p.log[self.seen..].iter().map(describe).collect();
        self.seen = self.p.log.len();
        new
    }

    fn reth(&self, offset: u64, dma_len: u32) -> Reth {
        Reth { va: self.mr.addr + offset, rkey: self.mr.rkey(), dma_len }
    }

    fn add(&self, swap_or_add: u64) -> Request {
        Request::FetchAdd(AtomicEth { va: self.mr.addr, rkey: self.mr.rkey(), swap_or_add, compare: 0 })
    }

    fn state(&self) -> QpState {
        self.p.ends[1].qp.state()
    }

    fn last_drop(&self) -> Option<DropReason> {
        self.p.ends[1].dropped.0
    }
}

fn describe(logged: &roxe_sim::LoggedPacket) -> String {
    let psn = logged.header.bth.psn;
    match logged.header.kind {
        Kind::RcResponse(Response::Ack(aeth)) => match aeth.syndrome {
            Syndrome::Ack { .. } => format!("ack {psn} msn {}", aeth.msn.get()),
            Syndrome::RnrNak { .. } => format!("rnr {psn}"),
            Syndrome::Nak(code) => format!("nak {code:?} {psn}"),
            Syndrome::Reserved(_) => panic!("reserved syndrome sent"),
        },
        Kind::RcResponse(Response::ReadFirst(aeth)) => format!("first {psn} msn {}", aeth.msn.get()),
        Kind::RcResponse(Response::ReadMiddle) => format!("middle {psn}"),
        Kind::RcResponse(Response::ReadLast(aeth)) => format!("last {psn} msn {}", aeth.msn.get()),
        Kind::RcResponse(Response::ReadOnly(aeth)) => format!("only {psn} msn {}", aeth.msn.get()),
        Kind::RcResponse(Response::AtomicAck(aeth, value)) => {
            format!("atomic {psn} msn {} = {}", aeth.msn.get(), value.0)
        }
        kind => panic!("a responder sent {kind:?}"),
    }
}

const WRITE_LAST: Request = Request::WriteLast(None);

fn send_last() -> Request {
    Request::SendLast(SendTail::Plain)
}

// clause: ACK-AFTER-DEED
#[test]
fn send_is_acknowledged_after_it_is_placed() {
    let mut s = Script::new(Setup::default());
    let mr = s.mr;
    recv(&mut s.p, B, 1, &[mr.all()]);
    assert_eq!(s.deliver(100, SEND_ONLY, b"hello"), ["ack 100 msn 1"]);
    assert_eq!((one_recv(&mut s.p, B).byte_len, &bytes(&s.p, B, mr)[..6]), (5, &b"hello\0"[..]));
}

// clause: NAK-UNASKED
#[test]
fn responder_sends_only_requested_acks_and_naks() {
    let mut s = Script::new(Setup::default());
    let without_ack_req = |psn, req| Header { bth: bth(B, psn, false), kind: Kind::RcRequest(req) };
    let reth = s.reth(0, 4);
    assert_eq!(s.deliver_header(&without_ack_req(100, Request::WriteOnly(reth, None)), b"abcd"), [""; 0]);
    assert_eq!(bytes(&s.p, B, s.mr)[..4], *b"abcd");
    assert_eq!(
        s.deliver_header(&without_ack_req(102, Request::WriteOnly(reth, None)), b"abcd"),
        ["nak PsnSequence 101"]
    );
    assert_eq!(s.deliver_header(&without_ack_req(101, SEND_ONLY), b""), ["rnr 101"]);
    assert_eq!(s.deliver_header(&without_ack_req(101, Request::SendMiddle), &[0; 256]), ["nak InvalidRequest 101"]);
    assert_eq!(s.state(), QpState::Err);
}

// clause: ACK-ASKED
#[test]
fn one_ack_covers_all_earlier_requests() {
    let mut s = Script::new(Setup::default());
    for psn in 100..105 {
        let reth = s.reth(0, 0);
        s.p.inject(B, &request(B, psn, Request::WriteOnly(reth, None)), &[]);
    }
    s.p.transmit(B);
    assert_eq!(s.responses(), ["ack 104 msn 5"]);
}

// clause: MSN-COUNT
#[test]
fn msn_counts_complete_messages_and_accepted_reads() {
    let mut s = Script::new(Setup { batch: 1, ..Setup::default() });
    assert_eq!(s.deliver(100, Request::WriteFirst(s.reth(0, 700)), &[1; 256]), ["ack 100 msn 0"]);
    assert_eq!(s.deliver(101, Request::WriteMiddle, &[1; 256]), ["ack 101 msn 0"]);
    assert_eq!(s.deliver(102, WRITE_LAST, &[1; 188]), ["ack 102 msn 1"]);
    assert_eq!(s.deliver(103, Request::Read(s.reth(0, 700)), &[]), ["first 103 msn 2", "middle 104", "last 105 msn 2"]);
    assert_eq!(s.deliver(101, Request::WriteMiddle, &[1; 256]).first().map(String::as_str), Some("ack 102 msn 2"));
}

// clause: SRQ-ORDER
#[test]
fn empty_srq_causes_rnr_nak() {
    let mut s = Script::new(Setup { srq: true, ..Setup::default() });
    let mr = s.mr;
    assert_eq!(s.deliver(100, SEND_ONLY, b"x"), ["rnr 100"]);
    recv(&mut s.p, B, 4, &[mr.all()]);
    assert_eq!(s.deliver(100, SEND_ONLY, b"x"), ["ack 100 msn 1"]);
    assert_eq!(s.deliver(101, SEND_ONLY, b"x"), ["rnr 101"]);
    assert_eq!(recvs(&mut s.p, B), statuses(4..=4, WcStatus::Success));
}

// clause: GAP-NAK
#[test]
fn gap_is_nakked_once_until_filled() {
    let mut s = Script::new(Setup::default());
    let write = Request::WriteOnly(s.reth(0, 0), None);
    assert_eq!(s.deliver(101, write, &[]), ["nak PsnSequence 100"]);
    assert_eq!(s.deliver(102, write, &[]), [""; 0]);
    assert_eq!(s.deliver(101, write, &[]), [""; 0]);
    assert_eq!(s.deliver(100, write, &[]), ["ack 100 msn 1"]);
    assert_eq!(s.deliver(102, write, &[]), ["nak PsnSequence 101"]);
    assert_eq!((s.state(), s.last_drop()), (QpState::Rts, Some(DropReason::OutOfSequence)));
}

// clause: PSN-WINDOW
#[test]
fn window_is_half_the_psn_space() {
    let mut s = Script::new(Setup::default());
    let write = Request::WriteOnly(s.reth(0, 0), None);
    // The newest PSN that counts as future, and the oldest that counts as past.
    assert_eq!(s.deliver(100 + 0x7f_ffff, write, &[]), ["nak PsnSequence 100"]);
    assert_eq!(s.deliver(100 + 0x80_0000, write, &[]), ["ack 99 msn 0"]);
}

// clause: GAP-AFTER-RNR
#[test]
fn gap_after_an_rnr_nak_is_not_nakked() {
    let mut s = Script::new(Setup::default());
    let write = Request::WriteOnly(s.reth(0, 0), None);
    assert_eq!(s.deliver(100, SEND_ONLY, &[]), ["rnr 100"]);
    assert_eq!(s.deliver(101, write, &[]), [""; 0], "the peer waits after the RNR NAK");
    assert_eq!(s.deliver(100, SEND_ONLY, &[]), ["rnr 100"], "each attempt gets an RNR NAK");
    recv(&mut s.p, B, 1, &[]);
    assert_eq!(s.deliver(100, SEND_ONLY, &[]), ["ack 100 msn 1"]);
}

// clause: DUP-SEND-WRITE
#[test]
fn duplicate_send_or_write_is_acked_not_executed() {
    let mut s = Script::new(Setup::default());
    let (mr, reth) = (s.mr, s.reth(0, 4));
    for id in 1..=2 {
        recv(&mut s.p, B, id, &[mr.sge(100, 100)]);
    }
    s.deliver(100, SEND_ONLY, b"once");
    s.deliver(101, Request::WriteOnly(reth, None), b"once");
    assert_eq!(s.deliver(100, SEND_ONLY, b"more"), ["ack 101 msn 2"]);
    assert_eq!(s.deliver(101, Request::WriteOnly(reth, None), b"more"), ["ack 101 msn 2"]);
    // A duplicate is not validated: a wrong key or length changes nothing.
    let wrong = Reth { rkey: RKey(0), ..reth };
    assert_eq!(s.deliver(100, Request::WriteOnly(wrong, None), b"x"), ["ack 101 msn 2"]);
    assert_eq!(recvs(&mut s.p, B), statuses(1..=1, WcStatus::Success));
    assert_eq!((&bytes(&s.p, B, mr)[..4], &bytes(&s.p, B, mr)[100..104]), (&b"once"[..], &b"once"[..]));
    assert_eq!((s.state(), s.last_drop()), (QpState::Rts, Some(DropReason::DuplicateRequest)));
}

// clause: DUP-READ, DUP-READ-RANGE
#[test]
fn duplicate_read_is_answered_from_its_start() {
    let mut s = Script::new(Setup::default());
    let whole = Request::Read(s.reth(0, 1000));
    let response = ["first 100 msn 1", "middle 101", "middle 102", "last 103 msn 1"];
    assert_eq!(s.deliver(100, whole, &[]), response);
    assert_eq!(s.deliver(100, whole, &[]), response);
    let tail = Request::Read(s.reth(512, 488));
    assert_eq!(s.deliver(102, tail, &[]), ["first 102 msn 1", "last 103 msn 1"]);
    let last = Request::Read(s.reth(768, 232));
    assert_eq!(s.deliver(103, last, &[]), ["only 103 msn 1"]);
    // The original range is kept after any number of shorter duplicates.
    assert_eq!(s.deliver(100, whole, &[]), response);
    assert_eq!(s.deliver(104, SEND_ONLY, &[]), ["rnr 104"]);
}

// clause: DUP-READ-SILENT
#[test]
fn duplicate_read_outside_the_original_is_dropped() {
    let mut s = Script::new(Setup::default());
    s.deliver(100, Request::Read(s.reth(1000, 1000)), &[]);
    let other_key = blank(&mut s.p, B, 4096).rkey();
    for (psn, reth) in [
        (100, s.reth(1000, 1001)),
        (100, s.reth(999, 1000)),
        (101, s.reth(1000, 744)),
        (101, s.reth(1256, 745)),
        (100, Reth { rkey: other_key, ..s.reth(1000, 1000) }),
        (99, s.reth(1000, 1000)),
    ] {
        assert_eq!(s.deliver(psn, Request::Read(reth), &[]), [""; 0], "{psn} {reth:?}");
    }
    assert_eq!(s.state(), QpState::Rts, "a duplicate is never an error");
}

// clause: DUP-ATOMIC
#[test]
fn duplicate_atomic_gets_the_saved_response() {
    let mut s = Script::new(Setup { max_dest_rd_atomic: 2, ..Setup::default() });
    let word = |s: &Script| s.p.ends[1].host.memory.word(s.mr, 0);
    assert_eq!(s.deliver(100, s.add(5), &[]), ["atomic 100 msn 1 = 0"]);
    assert_eq!(s.deliver(101, s.add(5), &[]), ["atomic 101 msn 2 = 5"]);
    assert_eq!(s.deliver(100, s.add(5), &[]), ["atomic 100 msn 2 = 0"]);
    assert_eq!(s.deliver(101, s.add(5), &[]), ["atomic 101 msn 2 = 5"]);
    assert_eq!(word(&s), 10);
    // A request of another kind with that PSN is not a duplicate.
    let swap = AtomicEth { va: s.mr.addr, rkey: s.mr.rkey(), swap_or_add: 1, compare: 0 };
    assert_eq!(s.deliver(100, Request::CompareSwap(swap), &[]), [""; 0]);
    // Two more atomics overwrite the oldest, which cannot be answered any more.
    s.deliver(102, s.add(1), &[]);
    assert_eq!(s.deliver(100, s.add(5), &[]), [""; 0]);
    assert_eq!(s.deliver(101, s.add(5), &[]), ["atomic 101 msn 3 = 5"]);
    assert_eq!(word(&s), 11);
}

// clause: DUP-ACK-BOUND
#[test]
fn duplicate_send_ack_stops_before_read_or_atomic() {
    let mut s = Script::new(Setup::default());
    let write = Request::WriteOnly(s.reth(8, 0), None);
    s.deliver(100, write, &[]);
    s.deliver(101, s.add(5), &[]);
    s.deliver(102, write, &[]);
    // The response to 101 may be lost. Acknowledging 102 would make the peer request it again;
    // acknowledging 100 and sending the response again are safe.
    let responses = s.deliver(100, write, &[]);
    let safe = [vec!["ack 100 msn 3".to_string()], vec!["ack 100 msn 3".into(), "atomic 101 msn 3 = 0".into()]];
    assert!(safe.contains(&responses), "{responses:?}");
}

// clause: ACK-BEFORE-READ, ANSWER-ORDER
#[test]
fn responses_leave_in_psn_order() {
    let mut s = Script::new(Setup { batch: 1, ..Setup::default() });
    let (read, write) = (Request::Read(s.reth(0, 600)), Request::WriteOnly(s.reth(0, 0), None));
    for (psn, req) in [(100, write), (101, read), (104, s.add(1)), (105, write)] {
        s.p.inject(B, &request(B, psn, req), &[]);
    }
    s.p.transmit(B);
    // The acknowledgement requested at 100 is sent alone: some requesters do not accept a READ
    // response as an acknowledgement.
    let heads: Vec<_> = s.responses().iter().map(|a| a.split(" msn").next().unwrap_or_default().to_string()).collect();
    assert_eq!(heads, ["ack 100", "first 101", "middle 102", "last 103", "atomic 104", "ack 105"]);
}

// clause: CHECK-SEQUENCE
#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let full = [7; 256];
    let in_send: &[Request] = &[
        Request::SendFirst,
        SEND_ONLY,
        Request::WriteMiddle,
        WRITE_LAST,
        Request::WriteFirst(Reth { va: 0, rkey: RKey(0), dma_len: 512 }),
        Request::WriteOnly(Reth { va: 0, rkey: RKey(0), dma_len: 0 }, None),
        Request::Read(Reth { va: 0, rkey: RKey(0), dma_len: 0 }),
    ];
    let in_write: &[Request] = &[Request::SendFirst, SEND_ONLY, Request::SendMiddle, send_last(), in_send[4]];
    let in_none: &[Request] = &[Request::SendMiddle, send_last(), Request::WriteMiddle, WRITE_LAST];
    for (open, wrong) in [(0, in_none), (1, in_send), (2, in_write)] {
        for req in wrong {
            let mut s = Script::new(Setup::default());
            let mr = s.mr;
            recv(&mut s.p, B, 1, &[mr.all()]);
            match open {
                1 => _ = s.deliver(100, Request::SendFirst, &full),
                2 => _ = s.deliver(100, Request::WriteFirst(s.reth(0, 1024)), &full),
                _ => s.p.ends[1].events = QpEvents::empty(),
            }
            let psn = if open == 0 { 100 } else { 101 };
            let has_full_payload = !matches!(req, Request::Read(_) | Request::WriteOnly(..) | Request::SendOnly(_));
            let responses = s.deliver(psn, *req, if has_full_payload { &full } else { &[] });
            assert_eq!(responses, [format!("nak InvalidRequest {psn}")], "{req:?} in {open}");
            assert_eq!(s.state(), QpState::Err);
        }
    }
}

// clause: CHECK-LENGTH, CHECK-DMA-LENGTH
#[test]
fn payloads_of_the_wrong_length_are_invalid_requests() {
    let data = [3; 4096];
    let cases = |s: &Script| {
        [
            // FIRST and MIDDLE carry exactly one MTU.
            (vec![(Request::SendFirst, 252)], false),
            (vec![(Request::SendFirst, 256)], true),
            (vec![(Request::SendFirst, 260)], false),
            (vec![(Request::SendFirst, 256), (Request::SendMiddle, 252)], false),
            (vec![(Request::SendFirst, 256), (Request::SendMiddle, 256)], true),
            // LAST carries at least one byte, ONLY at most one MTU.
            (vec![(Request::SendFirst, 256), (send_last(), 1)], true),
            (vec![(Request::SendFirst, 256), (send_last(), 256)], true),
            (vec![(Request::SendFirst, 256), (send_last(), 257)], false),
            (vec![(Request::SendFirst, 256), (send_last(), 0)], false),
            (vec![(SEND_ONLY, 256)], true),
            (vec![(SEND_ONLY, 257)], false),
            // A WRITE is exactly as long as the length in its RETH.
            (vec![(Request::WriteOnly(s.reth(0, 10), None), 10)], true),
            (vec![(Request::WriteOnly(s.reth(0, 10), None), 9)], false),
            (vec![(Request::WriteOnly(s.reth(0, 10), None), 11)], false),
            (vec![(Request::WriteFirst(s.reth(0, 300)), 256), (WRITE_LAST, 44)], true),
            (vec![(Request::WriteFirst(s.reth(0, 300)), 256), (WRITE_LAST, 43)], false),
            (vec![(Request::WriteFirst(s.reth(0, 300)), 256), (WRITE_LAST, 45)], false),
            (vec![(Request::WriteFirst(s.reth(0, 256)), 256), (WRITE_LAST, 0)], false),
            (vec![(Request::WriteFirst(s.reth(0, 300)), 256), (Request::WriteMiddle, 256)], false),
            (vec![(Request::WriteFirst(s.reth(0, 255)), 256)], false),
            (vec![(Request::WriteFirst(s.reth(0, (1 << 31) + 1)), 256)], false),
            (vec![(Request::Read(s.reth(0, (1 << 31) + 1)), 0)], false),
        ]
    };
    let count = cases(&Script::new(Setup::default())).len();
    for case in 0..count {
        let mut s = Script::new(Setup::default());
        let mr = s.mr;
        recv(&mut s.p, B, 1, &[mr.all()]);
        let (packets, good) = cases(&s)[case].clone();
        for (n, (req, len)) in packets.iter().enumerate() {
            let last = n + 1 == packets.len();
            let responses = s.deliver(100 + n as u32, *req, &data[..*len]);
            let refused = responses.iter().any(|a| a.starts_with("nak InvalidRequest"));
            assert_eq!(refused, last && !good, "{req:?} with {len} bytes: {responses:?}");
        }
        assert_eq!(s.state(), if good { QpState::Rts } else { QpState::Err }, "{packets:?}");
    }
}

// clause: CHECK-KEY
#[test]
fn refused_first_write_packet_leaves_memory_unchanged() {
    let mut s = Script::new(Setup::default());
    // The whole range is checked at the first packet, although its own bytes would fit.
    let responses = s.deliver(100, Request::WriteFirst(s.reth(3900, 300)), &[9; 256]);
    assert_eq!(responses, ["nak RemoteAccess 100"]);
    assert!(bytes(&s.p, B, s.mr).iter().all(|&b| b == 0));
}

// clause: CHECK-RD-ATOMIC
#[test]
fn reads_beyond_max_dest_rd_atomic_are_refused() {
    let mut s = Script::new(Setup { max_dest_rd_atomic: 2, ..Setup::default() });
    let read = Request::Read(s.reth(0, 8));
    for psn in 100..103 {
        s.p.inject(B, &request(B, psn, read), &[]);
    }
    s.p.transmit(B);
    let responses = s.responses();
    assert_eq!(responses[..2], ["only 100 msn 2", "only 101 msn 2"]);
    assert_eq!(responses[2..], ["nak InvalidRequest 102"]);
}

// clause: NAK-FATAL
#[test]
fn fatal_nak_follows_earlier_responses_and_is_last() {
    let mut s = Script::new(Setup { batch: 1, ..Setup::default() });
    let read = Request::Read(s.reth(0, 600));
    s.p.inject(B, &request(B, 100, read), &[]);
    s.p.inject(B, &request(B, 103, Request::WriteOnly(s.reth(0, 0), None)), &[]);
    s.p.inject(B, &request(B, 104, WRITE_LAST), &[1]);
    s.p.inject(B, &request(B, 105, read), &[]);
    s.p.transmit(B);
    let heads: Vec<_> = s.responses().iter().map(|a| a.split(" msn").next().unwrap_or_default().to_string()).collect();
    assert_eq!(heads, ["first 100", "middle 101", "last 102", "nak InvalidRequest 104"]);
    assert_eq!(s.state(), QpState::Err);
    assert_eq!(s.deliver(104, read, &[]), [""; 0]);
    assert!(!s.p.ends[1].qp.has_work());
}

// clause: TAKE-SERVICE, TAKE-ADDRESS, TAKE-PKEY
#[test]
fn packets_of_other_hosts_change_nothing() {
    let mut s = Script::new(Setup::default());
    let write = Request::WriteOnly(s.reth(0, 4), None);
    let mut good = request(B, 100, write);
    let net = net_header(&av(A));
    let other = std::net::Ipv4Addr::new(10, 0, 0, 9).into();

    for net in [NetHeader { src: other, ..net }, NetHeader { dst: other, ..net }] {
        s.p.inject_from(B, &net, &good, b"evil");
        assert_eq!(s.last_drop(), Some(DropReason::Address));
    }
    for pkey in [0x7ffe, 0x0001, 0x8001] {
        good.bth.pkey = Pkey(pkey);
        assert_eq!(s.deliver_header(&good, b"evil"), [""; 0]);
        assert_eq!(s.last_drop(), Some(DropReason::Pkey));
    }
    good.bth.pkey = Pkey::DEFAULT;
    let uc = Header { kind: uc(Request::WriteOnly(s.reth(0, 4), None)), ..good };
    let ud =
        Header { kind: Kind::Ud { deth: roxe_wire::Deth { qkey: QKEY, src_qpn: Qpn::new(7) }, imm: None }, ..good };
    for header in [uc, ud] {
        assert_eq!(s.deliver_header(&header, b"evil"), [""; 0]);
        assert_eq!(s.last_drop(), Some(DropReason::WrongService));
    }
    s.p.transmit(B);
    assert_eq!(s.responses(), [""; 0]);
    assert!(bytes(&s.p, B, s.mr).iter().all(|&b| b == 0));
    // A limited member of our partition may send to us.
    good.bth.pkey = Pkey(0x7fff);
    assert_eq!(s.deliver_header(&good, b"good"), ["ack 100 msn 1"]);
    assert_eq!(s.p.ends[1].events, QpEvents::empty());
}

// clause: TAKE-REQUESTS
#[test]
fn requests_are_accepted_from_rtr_on() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        let mut p = Pair::idle(Setup::default(), Rng::new(1));
        p.bring_to(B, state);
        p.inject(B, &request(B, 100, SEND_ONLY), &[]);
        p.transmit(B);
        let expected = usize::from(matches!(state, QpState::Rtr | QpState::Rts));
        assert_eq!(p.log.len(), expected, "{state:?}");
    }
    let mut s = Script::new(Setup::default());
    assert_eq!(go_to(&mut s.p, B, QpState::Err), Ok(()));
    assert_eq!(s.deliver(100, SEND_ONLY, &[]), [""; 0]);
    assert_eq!(s.last_drop(), Some(DropReason::BadState));
}

// clause: WC-SOLICITED
#[test]
fn completion_is_solicited_if_its_last_packet_is() {
    let mut s = Script::new(Setup::default());
    let mr = s.mr;
    for (first, last) in [(true, false), (false, true)] {
        recv(&mut s.p, B, 1, &[mr.all()]);
        let psn = s.p.log.iter().filter(|l| l.from == B).count() as u32 * 2 + 100;
        let header = |psn, solicited, req| {
            let mut header = request(B, psn, req);
            header.bth.solicited = solicited;
            header.bth.ack_req = req == send_last();
            header
        };
        s.deliver_header(&header(psn, first, Request::SendFirst), &[0; 256]);
        s.deliver_header(&header(psn + 1, last, send_last()), &[0; 1]);
        assert_eq!(one_recv(&mut s.p, B).solicited, last);
    }
}

// clause: WC-SOLICITED
#[test]
fn error_completion_is_always_solicited() {
    let mut s = Script::new(Setup::default());
    recv(&mut s.p, B, 1, &[]);
    assert_eq!(s.deliver(100, SEND_ONLY, b"too long"), ["nak InvalidRequest 100"]);
    assert!(one_recv(&mut s.p, B).solicited);
}

// clause: INVALIDATE-KEY
#[test]
fn completion_reports_the_invalidated_key() {
    let mut s = Script::new(Setup::default());
    let mr = s.mr;
    s.p.end(B).host.memory.make_window(mr);
    recv(&mut s.p, B, 1, &[]);
    let tail = SendTail::Invalidate(Ieth(mr.rkey()));
    assert_eq!(s.deliver(100, Request::SendOnly(tail), &[]), ["ack 100 msn 1"]);
    assert_eq!(one_recv(&mut s.p, B).extra, roxe_transport::wr::WcExtra::Invalidated(mr.rkey()));
    let nak = format!("nak {:?} 101", NakCode::RemoteAccess);
    assert_eq!(s.deliver(101, Request::Read(s.reth(0, 1)), &[]), [nak]);
}

// clause: TAKE-SERVICE
#[test]
fn responder_of_another_service_ignores_rc() {
    for service in [Service::Uc, Service::Ud] {
        let mut p = alone(B, Setup::of(service));
        p.inject(B, &request(B, 100, SEND_ONLY), &[]);
        assert_eq!(p.ends[1].dropped.0, Some(DropReason::WrongService));
    }
}
