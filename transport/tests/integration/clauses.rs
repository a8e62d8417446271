//! Clauses of `tests/clauses.txt` that no other file covers: each received packet causes exactly
//! the given packets.

use super::*;
use core::num::NonZeroU64;
use roxe_sim::wire::net_header;
use roxe_transport::cx::{PacketNote, TxBatch, TxRoom, TxState};
use roxe_transport::qp::{DropReason, Service};
use roxe_transport::time::rnr_wait;
use roxe_transport::wr::Av;
use roxe_wire::{Aeth, AtomicAckEth, AtomicEth, Msn, NakCode, NetHeader, PathMtu, Qpn, RKey, Reth, Syndrome};

/// Returns a positive acknowledgement with this credit code.
fn ack(credits: u8) -> Response {
    Response::Ack(Aeth { syndrome: Syndrome::Ack { credits }, msn: Msn::new(0) })
}

/// Returns the syndromes of the acknowledgements and NAKs that `side` sent.
fn syndromes(pair: &Pair, side: Peer) -> Vec<Syndrome> {
    let syndrome = |(response, _)| if let Response::Ack(aeth) = response { Some(aeth.syndrome) } else { None };
    responses(pair, side).into_iter().filter_map(syndrome).collect()
}

/// Changes one attribute of A in its current state, or in the transition to `state`.
fn set(pair: &mut Pair, state: QpState, mask: AttrMask, change: impl FnOnce(&mut QpAttr)) -> Result<(), ModifyError> {
    let end = pair.end(A);
    let mut attr = QpAttr { state, ..*end.qp.attr() };
    change(&mut attr);
    end.qp.modify(&mut end.host, &attr, mask | AttrMask::STATE)
}

// clause: UDP-SOURCE-PORT
#[test]
fn any_udp_source_port_is_accepted() {
    let mut p = alone(B, Setup::default());
    for (psn, src_port) in [(100, 0), (101, 4791), (102, 0xc000), (103, 0xffff)] {
        recv(&mut p, B, 1, &[]);
        p.inject_from(B, &NetHeader { src_port, ..net_header(&av(A)) }, &request(B, psn, SEND_ONLY), &[]);
        assert_eq!(one_recv(&mut p, B).status, WcStatus::Success, "port {src_port}");
    }
}

// clause: BTH-MIGRATED
#[test]
fn packets_have_the_migrated_bit_and_receivers_ignore_it() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 600), filled(&mut p, B, 600));
    post(&mut p, A, 1, read_from(dst), &[src.all()]);
    post(&mut p, A, 2, write_to(dst), &[src.all()]);
    post(&mut p, A, 3, add_to(dst, 1), &[src.sge(0, 8)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
    assert!(p.log.iter().all(|logged| logged.header.bth.mig_req) && p.log.iter().any(|logged| logged.from == B));
    for migrated in [false, true] {
        let mut p = alone(B, Setup::default());
        recv(&mut p, B, 1, &[]);
        let mut header = request(B, 100, SEND_ONLY);
        header.bth.mig_req = migrated;
        p.inject(B, &header, &[]);
        assert_eq!(one_recv(&mut p, B).status, WcStatus::Success);
    }
}

// clause: UC-SILENT, UC-NO-ANSWER, UD-ONE-PACKET
#[test]
fn unreliable_services_send_no_responses() {
    for service in [Service::Uc, Service::Ud] {
        let mut p = Pair::new(Setup::of(service));
        recv(&mut p, B, 1, &[]);
        post(&mut p, A, 1, SendOp::Send, &[]);
        p.run();
        let ack_reqs: Vec<_> = p.log.iter().map(|logged| (logged.from, logged.header.bth.ack_req)).collect();
        assert_eq!(ack_reqs, [(A, false)], "{service:?}");
    }
    let mut p = alone(B, Setup::of(Service::Uc));
    recv(&mut p, B, 1, &[]);
    p.inject(B, &Header { bth: bth(B, 100, true), kind: uc(Request::SendOnly(SendTail::Plain)) }, &[]);
    p.transmit(B);
    assert_eq!(
        (recvs(&mut p, B), p.log.len()),
        (statuses(1..=1, WcStatus::Success), 0),
        "UC sends no ACK, although AckReq is set"
    );
}

// clause: CNP-FORMAT, CNP-RECEIVED
#[test]
fn cnp_does_not_affect_the_connection() {
    for (psn, becn) in [(0, true), (100, false), (101, true), (0x80_0064, false)] {
        let mut p = alone(A, Setup { line_rate: NonZeroU64::new(10_000_000_000), ..Setup::default() });
        post(&mut p, A, 1, SendOp::Send, &[]);
        post(&mut p, A, 2, SendOp::Send, &[]);
        p.transmit(A);
        let timer = p.ends[0].qp.poll_timeout();
        p.inject(A, &Header { bth: Bth { becn, ..bth(A, psn, true) }, kind: Kind::Cnp }, &[]);
        p.transmit(A);
        assert_eq!((p.ends[0].dropped.0, p.log.len()), (None, 2), "executed without a response");
        assert_eq!((sends(&mut p, A), p.ends[0].qp.poll_timeout()), (vec![], timer));
        assert_eq!(p.end(A).qp.take_congestion_counts().map(|counts| counts.rp_cnp_handled), Some(1));
        p.inject(A, &response(A, 101, ack(31)), &[]);
        assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    }
}

/// A batch that accepts and counts every packet.
#[derive(Default)]
struct Counter {
    slot: Vec<u8>,
    sent: u32,
}

impl TxBatch for Counter {
    fn slot(&mut self, _av: &Av, _to: Qpn, len: usize, _note: &PacketNote) -> Option<TxRoom<'_>> {
        self.sent += 1;
        self.slot.resize(len, 0);
        Some(TxRoom::Own(&mut self.slot))
    }

    fn retract(&mut self) {
        self.sent -= 1;
    }
}

// clause: PSN-OUTSTANDING
#[test]
fn unacknowledged_psns_are_bounded() {
    let mut p = alone(A, Setup { path_mtu: PathMtu::Mtu256, ..Setup::default() });
    let src = blank(&mut p, A, 20 << 20);
    post(&mut p, A, 1, write_to(src), &[src.all()]);
    let mut tx = Counter::default();
    let mut transmit = |p: &mut Pair| {
        let end = p.end(A);
        assert_eq!(end.qp.poll_transmit(&mut end.host, &mut tx), TxState::Drained);
        tx.sent
    };
    let sent = transmit(&mut p);
    assert!((1000..1 << 23).contains(&sent) && sent < 20 << 12, "{sent} packets of {}", 20 << 12);
    p.inject(A, &response(A, 100, ack(31)), &[]);
    assert_eq!(transmit(&mut p), sent + 1, "one is acknowledged, one more may be in flight");
}

// clause: SEND-RD-ATOMIC-0
#[test]
fn lowering_max_rd_atomic_to_zero_fails_posted_reads() {
    let mut p = Pair::new(Setup::default());
    let (dst, src) = (blank(&mut p, A, 8), filled(&mut p, B, 8));
    assert_eq!(go_to(&mut p, A, QpState::Sqd), Ok(()));
    post(&mut p, A, 1, read_from(src), &[dst.all()]);
    let lowered = set(&mut p, QpState::Sqd, AttrMask::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 0);
    assert_eq!(lowered, Ok(()));
    assert_eq!(go_to(&mut p, A, QpState::Rts), Ok(()));
    p.run();
    assert_eq!((sends(&mut p, A), request_psns(&p, A)), (vec![(1, WcStatus::LocQpOpErr)], vec![]));
}

// clause: ACK-CREDITS
#[test]
fn credits_in_acknowledgements_do_not_limit_the_sender() {
    let mut p = alone(A, Setup::default());
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.transmit(A);
    // The peer reports no credits; hardware does so even with many receives.
    p.inject(A, &response(A, 100, ack(0)), &[]);
    (2..=4).for_each(|id| post(&mut p, A, id, SendOp::Send, &[]));
    p.transmit(A);
    assert_eq!((sends(&mut p, A), request_psns(&p, A)), (statuses(1..=1, WcStatus::Success), vec![100, 101, 102, 103]));
}

// clause: RETRY-SAME-OPCODES
#[test]
fn retried_atomic_is_the_same_packet() {
    let mut p = Pair::new(Setup::default());
    let (old, word) = (blank(&mut p, A, 8), blank(&mut p, B, 8));
    drop_nth(&mut p, A, 0);
    let cas = SendOp::CompareSwap { remote_addr: word.addr, rkey: word.rkey(), compare: 0, swap: 7 };
    post(&mut p, A, 1, cas, &[old.all()]);
    p.run();
    let requests: Vec<_> = p.log.iter().filter(|logged| logged.from == A).map(|logged| logged.header).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0], requests[1]);
}

// clause: RETRY-DATA
#[test]
fn retransmission_reads_memory_again() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (blank(&mut p, A, 600), blank(&mut p, B, 600));
    drop_nth(&mut p, A, 1);
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.transmit(A);
    p.end(A).host.memory.bytes_mut(src).fill(7);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    assert_eq!(bytes(&p, B, dst), [[0; 256].as_slice(), &[7; 344]].concat(), "the first packet was not retransmitted");
}

// clause: RNR-TABLE
#[test]
fn rnr_waits_equal_the_table() {
    #[rustfmt::skip]
    let milliseconds = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
        2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    ];
    for (code, wait) in (0..).zip(milliseconds) {
        assert_eq!(rnr_wait(code), Duration::from_secs_f64(wait / 1000.0), "code {code}");
    }
}

// clause: CHECK-ORDER, CHECK-ORDER-KEY
#[test]
fn first_failing_check_determines_the_nak() {
    let rnr = Syndrome::RnrNak { timer: 12 };
    let [invalid, access] = [NakCode::InvalidRequest, NakCode::RemoteAccess].map(Syndrome::Nak);
    let (imm, bad) = (Some(imm(1)), Reth { va: 0, rkey: RKey(0), dma_len: 4 });
    let misaligned = AtomicEth { va: 1, rkey: RKey(0), ..AtomicEth::default() };
    let (all, none) = (all_access(), Access::empty());
    // Most requests fail several checks, and no receive is posted: the first failing check decides.
    for (request_, payload, rights, expected) in [
        (Request::WriteLast(imm), &[0; 3][..], none, invalid),
        (Request::WriteOnly(bad, imm), &[0; 3], none, invalid),
        (Request::WriteOnly(bad, imm), &[0; 3], all, rnr),
        (Request::WriteOnly(bad, None), &[0; 3], all, invalid),
        (Request::WriteOnly(bad, None), &[0; 4], all, access),
        (Request::FetchAdd(misaligned), &[], all, invalid),
        (Request::FetchAdd(AtomicEth { va: 8, ..misaligned }), &[], all, access),
    ] {
        let mut p = alone(B, Setup { access: rights, ..Setup::default() });
        p.inject(B, &request(B, 101, request_), payload);
        p.transmit(B);
        p.inject(B, &request(B, 100, request_), payload);
        p.transmit(B);
        let gap = Syndrome::Nak(NakCode::PsnSequence);
        assert_eq!(syndromes(&p, B), [gap, expected], "{request_:?} with {} bytes", payload.len());
    }
    // A duplicate is not checked.
    let mut p = alone(B, Setup::default());
    p.inject(B, &request(B, 99, Request::WriteOnly(bad, imm)), &[0; 3]);
    p.transmit(B);
    assert_eq!(syndromes(&p, B), [Syndrome::ACK_UNLIMITED]);
}

// clause: GAP-DROPPED
#[test]
fn request_after_a_gap_has_no_effect() {
    let mut p = alone(B, Setup::default());
    let mr = blank(&mut p, B, 8);
    recv(&mut p, B, 1, &[mr.all()]);
    let reth = Reth { va: mr.addr, rkey: mr.rkey(), dma_len: 4 };
    p.inject(B, &request(B, 101, Request::WriteOnly(reth, None)), b"late");
    p.inject(B, &request(B, 102, SEND_ONLY), b"late");
    assert_eq!((bytes(&p, B, mr), recvs(&mut p, B)), (vec![0; 8], vec![]));
    p.inject(B, &request(B, 100, Request::WriteOnly(Reth { dma_len: 0, ..reth }, None)), &[]);
    p.transmit(B);
    assert_eq!((bytes(&p, B, mr), recvs(&mut p, B)), (vec![0; 8], vec![]), "the packet is not kept either");
}

// clause: RESP-REGION
#[test]
fn late_atomic_response_is_dropped() {
    let mut p = alone(A, Setup::default());
    let old = blank(&mut p, A, 8);
    post(&mut p, A, 1, add_to(old, 1), &[old.all()]);
    p.transmit(A);
    for value in [5, 6] {
        let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) };
        p.inject(A, &response(A, 100, Response::AtomicAck(aeth, AtomicAckEth(value))), &[]);
    }
    assert_eq!((sends(&mut p, A), p.ends[0].host.memory.word(old, 0)), (statuses(1..=1, WcStatus::Success), 5));
    assert_eq!(p.ends[0].dropped.0, Some(DropReason::DuplicateResponse));
}
