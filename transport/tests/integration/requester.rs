//! An RC requester against forged responses: completions, retransmissions, drops and errors.

use super::*;
use roxe_sim::host::LEAST_COST;
use roxe_transport::qp::DropReason;
use roxe_transport::wr::WcStatus::*;
use roxe_wire::{Aeth, AtomicAckEth, Msn, NakCode, Syndrome};

/// A requester with first PSN 100, whose peer is forged by the test.
struct Script {
    p: Pair,
    mr: Mr,
}

impl Script {
    fn new(setup: Setup) -> Self {
        let mut p = alone(A, setup);
        let mr = blank(&mut p, A, 8192);
        Self { p, mr }
    }

    fn post(&mut self, id: u64, op: SendOp, len: u32) {
        let sge = self.mr.sge(0, len);
        post(&mut self.p, A, id, op, &[sge]);
        self.p.transmit(A);
    }

    fn deliver(&mut self, psn: u32, resp: Response, payload: &[u8]) {
        self.p.inject(A, &response(A, psn, resp), payload);
        self.p.transmit(A);
    }

    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        sends(&mut self.p, A)
    }

    fn psns(&self) -> Vec<u32> {
        request_psns(&self.p, A)
    }

    fn state(&self) -> QpState {
        self.p.ends[0].qp.state()
    }
}

/// An address and key of the forged peer.
const REMOTE: Mr = Mr { key: 0x77, addr: 0x4000, len: 8192 };

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: Msn::new(0) }
}

fn ack() -> Response {
    Response::Ack(aeth(Syndrome::ACK_UNLIMITED))
}

fn nak(code: NakCode) -> Response {
    Response::Ack(aeth(Syndrome::Nak(code)))
}

fn ack_aeth() -> Aeth {
    aeth(Syndrome::ACK_UNLIMITED)
}

// clause: ACK-CUMULATIVE
#[test]
fn acknowledgement_completes_everything_up_to_its_psn() {
    let mut s = Script::new(Setup::default());
    for id in 1..=4 {
        s.post(id, write_to(REMOTE), 300);
    }
    s.deliver(102, ack(), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    s.deliver(105, ack(), &[]);
    assert_eq!(s.done(), statuses(2..=3, Success));
    s.deliver(107, ack(), &[]);
    assert_eq!(s.done(), statuses(4..=4, Success));
    assert_eq!((s.p.ends[0].qp.poll_timeout(), s.p.ends[0].host.flow.reserved), (None, 0));
}

// clause: RESP-REGION
#[test]
fn acks_outside_the_window_are_dropped() {
    let mut s = Script::new(Setup::default());
    s.post(1, write_to(REMOTE), 0);
    s.post(2, write_to(REMOTE), 0);
    s.deliver(100, ack(), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    for psn in [102, 103, 100 + 0x7f_ffff] {
        s.deliver(psn, ack(), &[]);
        assert_eq!(s.p.ends[0].dropped.0, Some(DropReason::GhostResponse), "{psn}");
    }
    for (psn, resp) in [(100, ack()), (99, ack()), (99, nak(NakCode::InvalidRequest)), (98, nak(NakCode::PsnSequence))]
    {
        s.deliver(psn, resp, &[]);
        assert_eq!(s.p.ends[0].dropped.0, Some(DropReason::DuplicateResponse), "{psn}");
    }
    for code in [NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::PsnSequence] {
        s.deliver(102, nak(code), &[]);
    }
    assert_eq!((s.done(), s.state(), s.psns()), (vec![], QpState::Rts, vec![100, 101]));
}

// clause: NAK-ACKNOWLEDGES, NAK-STATUS, WC-ORDER
#[test]
fn fatal_nak_status_follows_earlier_successes() {
    for (code, status) in [
        (NakCode::InvalidRequest, RemInvReqErr),
        (NakCode::RemoteAccess, RemAccessErr),
        (NakCode::RemoteOperation, RemOpErr),
    ] {
        let mut s = Script::new(Setup::default());
        for id in 1..=3 {
            s.post(id, write_to(REMOTE), 300);
        }
        s.deliver(103, nak(code), &[]);
        assert_eq!(s.done(), [(1, Success), (2, status), (3, WrFlushErr)]);
        assert_eq!((s.state(), s.p.ends[0].host.flow.reserved), (QpState::Err, 0));
    }
}

// clause: NAK-RESERVED
#[test]
fn reserved_syndromes_are_ignored() {
    let mut s = Script::new(Setup::default());
    s.post(1, write_to(REMOTE), 0);
    for code in [NakCode::InvalidRd, NakCode::Reserved(5), NakCode::Reserved(0x1f)] {
        s.deliver(100, nak(code), &[]);
    }
    for bits in [0x40, 0x5f, 0x80, 0x9f, 0xe0, 0xff] {
        s.deliver(100, Response::Ack(aeth(Syndrome::Reserved(bits))), &[]);
    }
    assert_eq!((s.done(), s.state(), s.psns()), (vec![], QpState::Rts, vec![100]));
    s.deliver(100, ack(), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
}

// clause: NAK-ACKNOWLEDGES, NAK-SEQUENCE
#[test]
fn sequence_nak_completes_earlier_requests_and_goes_back() {
    let mut s = Script::new(Setup::default());
    for id in 1..=3 {
        s.post(id, write_to(REMOTE), 300);
    }
    s.deliver(103, nak(NakCode::PsnSequence), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    assert_eq!(s.psns(), [100, 101, 102, 103, 104, 105, 103, 104, 105]);
    s.deliver(105, ack(), &[]);
    assert_eq!(s.done(), statuses(2..=3, Success));
}

// clause: NAK-ONCE
#[test]
fn each_further_loss_is_repaired_at_once() {
    let mut s = Script::new(Setup { retry_cnt: 1, ..Setup::default() });
    s.post(1, write_to(REMOTE), 256 * 4);
    for lost in 101..104 {
        s.deliver(lost, nak(NakCode::PsnSequence), &[]);
    }
    assert_eq!(s.psns(), [100, 101, 102, 103, 101, 102, 103, 102, 103, 103]);
    s.deliver(103, ack(), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
}

// clause: RNR-WAIT-WHOLE
#[test]
fn sequence_nak_does_not_shorten_an_rnr_wait() {
    let mut s = Script::new(Setup::default());
    for id in 1..=3 {
        s.post(id, write_to(REMOTE), 0);
    }
    s.deliver(101, Response::Ack(aeth(Syndrome::RnrNak { timer: 24 })), &[]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    let due = s.p.ends[0].qp.poll_timeout();
    s.deliver(101, nak(NakCode::PsnSequence), &[]);
    s.deliver(101, Response::Ack(aeth(Syndrome::RnrNak { timer: 1 })), &[]);
    assert_eq!((s.psns(), s.p.ends[0].qp.poll_timeout()), (vec![100, 101, 102], due));
    s.p.run_for(ms(41));
    assert_eq!(s.psns(), [100, 101, 102, 101, 102]);
}

// clause: ACK-OVER-RETRY
#[test]
fn ack_during_a_retry_skips_acked_packets() {
    let mut s = Script::new(Setup { batch: 1, ..Setup::default() });
    for id in 1..=3 {
        s.post(id, write_to(REMOTE), 0);
    }
    // A late acknowledgement of everything arrives just after the timer has started a
    // retransmission.
    let due = s.p.ends[0].qp.poll_timeout().expect("set");
    let end = &mut s.p.ends[0];
    end.host.clock = due;
    end.qp.handle_timeout(&mut end.host);
    s.deliver(102, ack(), &[]);
    assert_eq!((s.done(), s.psns()), (statuses(1..=3, Success), vec![100, 101, 102]));
    s.p.assert_settled();
}

// clause: READ-LENGTH, READ-POSITIVE, RESP-KIND
#[test]
fn response_of_wrong_kind_is_bad_resp_err() {
    let read = read_from(REMOTE);
    let write = write_to(REMOTE);
    let value = AtomicAckEth(1);
    let cases: &[(SendOp, u32, Response, usize)] = &[
        (write, 0, Response::AtomicAck(ack_aeth(), value), 0),
        (write, 0, Response::ReadOnly(ack_aeth()), 0),
        (read, 300, Response::AtomicAck(ack_aeth(), value), 0),
        (add_to(REMOTE, 1), 8, Response::ReadOnly(ack_aeth()), 8),
        // A READ response must be exactly as long as requested: one MTU, or the remaining bytes.
        (read, 300, Response::ReadFirst(ack_aeth()), 252),
        (read, 300, Response::ReadOnly(ack_aeth()), 256),
        (read, 300, Response::ReadOnly(ack_aeth()), 300),
        (read, 100, Response::ReadOnly(ack_aeth()), 99),
        (read, 100, Response::ReadOnly(ack_aeth()), 101),
        (read, 100, Response::ReadFirst(ack_aeth()), 256),
        (read, 0, Response::ReadOnly(ack_aeth()), 1),
        // The AETH of a READ response must be an acknowledgement.
        (read, 100, Response::ReadOnly(aeth(Syndrome::Nak(NakCode::RemoteAccess))), 100),
        (read, 100, Response::ReadOnly(aeth(Syndrome::RnrNak { timer: 1 })), 100),
    ];
    for (op, len, resp, payload) in cases {
        let mut s = Script::new(Setup::default());
        s.post(1, *op, *len);
        s.deliver(100, *resp, &vec![0xbb; *payload]);
        assert_eq!(s.done(), [(1, BadRespErr)], "{resp:?} with {payload} bytes for {op:?}");
        assert_eq!((s.state(), s.p.ends[0].host.flow.reserved), (QpState::Err, 0));
    }
}

#[test]
fn read_data_is_placed_on_arrival_and_completes_at_the_last() {
    let mut s = Script::new(Setup::default());
    s.post(1, read_from(REMOTE), 600);
    s.post(2, write_to(REMOTE), 0);
    s.deliver(100, Response::ReadFirst(ack_aeth()), &[1; 256]);
    s.deliver(101, Response::ReadMiddle, &[2; 256]);
    assert_eq!(s.done(), []);
    s.deliver(102, Response::ReadLast(ack_aeth()), &[3; 88]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    let data = bytes(&s.p, A, s.mr);
    assert_eq!([&data[..256], &data[256..512], &data[512..600]], [&[1; 256][..], &[2; 256], &[3; 88]]);
    assert_eq!(data[600], 0);
}

// clause: READ-STYLES
#[test]
fn both_read_response_styles_are_accepted_after_a_retry() {
    // After a retry, hardware restarts with FIRST or ONLY, and the kernel's rxe continues with
    // MIDDLE and LAST.
    for fresh in [true, false] {
        let mut s = Script::new(Setup::default());
        s.post(1, read_from(REMOTE), 600);
        s.deliver(100, Response::ReadFirst(ack_aeth()), &[1; 256]);
        // 101 is lost, and 102 causes the NAK.
        s.deliver(102, Response::ReadLast(ack_aeth()), &[3; 88]);
        assert_eq!(s.psns(), [100, 101]);
        let first = if fresh { Response::ReadFirst(ack_aeth()) } else { Response::ReadMiddle };
        s.deliver(101, first, &[2; 256]);
        s.deliver(102, Response::ReadLast(ack_aeth()), &[3; 88]);
        assert_eq!(s.done(), statuses(1..=1, Success));
        assert_eq!(bytes(&s.p, A, s.mr)[511..513], [2, 3]);

        let mut s = Script::new(Setup::default());
        s.post(1, read_from(REMOTE), 300);
        s.deliver(100, Response::ReadFirst(ack_aeth()), &[1; 256]);
        let due = s.p.ends[0].qp.poll_timeout().expect("set");
        s.p.run_for(due.since(s.p.now()));
        assert_eq!(s.psns(), [100, 101]);
        s.deliver(101, if fresh { Response::ReadOnly(ack_aeth()) } else { Response::ReadLast(ack_aeth()) }, &[2; 44]);
        assert_eq!(s.done(), statuses(1..=1, Success));
    }
}

// clause: NAK-ONCE, READ-IN-ORDER
#[test]
fn one_loss_causes_one_retry() {
    let mut s = Script::new(Setup { retry_cnt: 1, ..Setup::default() });
    s.post(1, read_from(REMOTE), 256 * 6);
    s.deliver(100, Response::ReadFirst(ack_aeth()), &[1; 256]);
    for psn in [102, 103, 104] {
        s.deliver(psn, Response::ReadMiddle, &[1; 256]);
    }
    s.deliver(105, Response::ReadLast(ack_aeth()), &[1; 256]);
    assert_eq!((s.psns(), s.state()), (vec![100, 101], QpState::Rts));
}

// clause: READ-IN-ORDER
#[test]
fn duplicate_read_responses_are_dropped() {
    let mut s = Script::new(Setup::default());
    s.post(1, read_from(REMOTE), 600);
    s.deliver(100, Response::ReadFirst(ack_aeth()), &[1; 256]);
    s.deliver(100, Response::ReadFirst(ack_aeth()), &[9; 256]);
    assert_eq!(s.p.ends[0].dropped.0, Some(DropReason::DuplicateResponse));
    s.deliver(101, Response::ReadMiddle, &[2; 256]);
    s.deliver(101, Response::ReadMiddle, &[9; 256]);
    s.deliver(102, Response::ReadLast(ack_aeth()), &[3; 88]);
    assert_eq!((s.done(), s.psns()), (statuses(1..=1, Success), vec![100]));
    assert!(!bytes(&s.p, A, s.mr).contains(&9));
}

// clause: READ-ACKNOWLEDGES
#[test]
fn read_response_acknowledges_earlier_requests() {
    let mut s = Script::new(Setup::default());
    s.post(1, write_to(REMOTE), 300);
    s.post(2, read_from(REMOTE), 100);
    s.deliver(102, Response::ReadOnly(ack_aeth()), &[1; 100]);
    assert_eq!(s.done(), statuses(1..=2, Success));
}

// clause: READ-NAK-MIDDLE
#[test]
fn nak_may_end_a_read_in_the_middle() {
    let mut s = Script::new(Setup::default());
    s.post(1, write_to(REMOTE), 0);
    s.post(2, read_from(REMOTE), 600);
    s.deliver(101, Response::ReadFirst(ack_aeth()), &[1; 256]);
    s.deliver(102, nak(NakCode::RemoteAccess), &[]);
    assert_eq!(s.done(), [(1, Success), (2, RemAccessErr)]);
}

// clause: NAK-IMPLIED, ATOMIC-NATIVE
#[test]
fn ack_past_an_unanswered_atomic_retransmits_it() {
    let mut s = Script::new(Setup::default());
    s.post(1, add_to(REMOTE, 1), 8);
    s.post(2, write_to(REMOTE), 0);
    s.deliver(101, ack(), &[]);
    assert_eq!((s.done(), s.psns()), (vec![], vec![100, 101, 100, 101]));
    s.deliver(100, Response::AtomicAck(ack_aeth(), AtomicAckEth(7)), &[]);
    s.deliver(101, ack(), &[]);
    assert_eq!(s.done(), statuses(1..=2, Success));
    assert_eq!(s.p.ends[0].host.memory.word(s.mr, 0), 7);
}

// clause: RETRY-SPENT
#[test]
fn implied_naks_cost_retries() {
    let mut s = Script::new(Setup { retry_cnt: 0, ..Setup::default() });
    s.post(1, add_to(REMOTE, 1), 8);
    s.post(2, write_to(REMOTE), 0);
    s.deliver(101, ack(), &[]);
    assert_eq!(s.done(), [(1, RetryExcErr), (2, WrFlushErr)]);
}

// clause: RESP-REGION
#[test]
fn idle_requester_ignores_every_response() {
    let mut s = Script::new(Setup::default());
    for psn in [99, 100, 101] {
        for resp in [ack(), nak(NakCode::InvalidRequest), Response::ReadOnly(ack_aeth()), Response::ReadMiddle] {
            s.deliver(psn, resp, &vec![0; if resp == Response::ReadMiddle { 256 } else { 0 }]);
        }
    }
    assert_eq!((s.done(), s.state(), s.psns()), (vec![], QpState::Rts, vec![]));
    assert_eq!(s.p.ends[0].qp.poll_timeout(), None);
}

// clause: TAKE-RESPONSES
#[test]
fn responses_in_rtr_are_dropped() {
    let mut p = Pair::idle(Setup::default(), Rng::new(1));
    p.bring_to(A, QpState::Rtr);
    p.inject(A, &response(A, 100, ack()), &[]);
    assert_eq!(p.ends[0].dropped.0, Some(DropReason::BadState));
}

// clause: SEND-ASK-MIDDLE
#[test]
fn long_messages_request_acks_in_the_middle() {
    let mut s = Script::new(Setup { path_mtu: roxe_wire::PathMtu::Mtu256, ..Setup::default() });
    s.post(1, write_to(REMOTE), 8192);
    let ack_reqs: Vec<_> = s.p.log.iter().map(|l| l.header.bth.ack_req).collect();
    assert_eq!(ack_reqs.len(), 32);
    assert!(ack_reqs[31], "always on the last packet");
    // A quarter of the window of the simulated host, in packets of the minimum cost.
    assert!(ack_reqs.windows(16_384 / LEAST_COST as usize + 1).all(|run| run.contains(&true)), "{ack_reqs:?}");
    assert_eq!(ack_reqs.iter().filter(|requested| **requested).count(), 2, "and no more often: {ack_reqs:?}");
}

// clause: SEND-ASK-STALL
#[test]
fn packet_that_fills_the_window_requests_an_ack() {
    for limit in [LEAST_COST, 1700, 3000] {
        let mut s = Script::new(Setup { flow_limit: Some(limit), ..Setup::default() });
        s.post(1, write_to(REMOTE), 8192);
        let last = s.p.log.last().expect("sent");
        assert!(last.header.bth.ack_req, "without a request the peer sends no ACK: limit {limit}");
        assert!(s.psns().len() < 32);
    }
}

// clause: SEND-ASK-STALL
#[test]
fn last_packet_before_a_full_window_requests_an_ack() {
    // Each row is a window in packets of the minimum cost, then the packets of 32 that are sent
    // one by one and in runs of 4. The first packet is longer.
    for (window, alone, in_runs) in [(1, 1, 1), (2, 2, 5), (5, 5, 5), (6, 6, 9), (8, 8, 9), (29, 29, 29), (30, 30, 32)]
    {
        for (run, sent) in [(0, alone), (4, in_runs)] {
            let mut s = Script::new(Setup { flow_limit: Some(window * LEAST_COST), run, ..Setup::default() });
            s.post(1, write_to(REMOTE), 8192);
            assert_eq!(s.p.log.len(), sent, "window of {window}, runs of {run}");
            assert!(s.p.log[sent - 1].header.bth.ack_req, "window of {window}, runs of {run}");
        }
    }
}

#[test]
fn request_may_wait_only_with_many_in_flight() {
    let write = || write_to(REMOTE);
    let mut s = Script::new(Setup::default());
    let may_coalesce = |s: &Script| s.p.ends[0].qp.may_coalesce();
    for id in 0..16 {
        post(&mut s.p, A, id, write(), &[s.mr.sge(0, 64)]);
        assert!(!may_coalesce(&s), "{id} are in flight");
        s.p.transmit(A);
    }
    for id in 16..16 + 31 {
        post(&mut s.p, A, id, write(), &[s.mr.sge(0, 64)]);
        assert!(may_coalesce(&s), "a train of 32 is not complete with {id}");
    }
    post(&mut s.p, A, 47, write(), &[s.mr.sge(0, 64)]);
    assert!(!may_coalesce(&s), "a train of 32 is complete");
    s.p.transmit(A);
    post(&mut s.p, A, 48, write(), &[s.mr.sge(0, 8192)]);
    assert!(may_coalesce(&s));
    for id in 49..56 {
        post(&mut s.p, A, id, write(), &[s.mr.sge(0, 8192)]);
    }
    assert!(!may_coalesce(&s), "bytes count as well");
    s.p.transmit(A);
    s.deliver(100 + 47, ack(), &[]);
    post(&mut s.p, A, 56, write(), &[s.mr.sge(0, 64)]);
    assert!(!may_coalesce(&s), "few are in flight");
}

#[test]
fn second_request_may_wait_after_a_deep_burst() {
    let mut s = Script::new(Setup::default());
    let (mut id, mut psn) = (0, 100);
    // The closure returns true if the second of `count` requests may wait after the first; it then
    // acknowledges all.
    let mut burst = |s: &mut Script, count: u32| {
        let mut may_wait = None;
        for n in 1..=count {
            post(&mut s.p, A, id, write_to(REMOTE), &[s.mr.sge(0, 64)]);
            may_wait = may_wait.or_else(|| (n == 2).then(|| s.p.ends[0].qp.may_coalesce()));
            s.p.transmit(A);
            (id, psn) = (id + 1, psn + 1);
        }
        s.deliver(psn - 1, ack(), &[]);
        may_wait
    };
    assert_eq!(burst(&mut s, 31), Some(false));
    assert_eq!(burst(&mut s, 32), Some(false), "31 in flight were too few");
    let later: Vec<_> = (0..6).map(|_| burst(&mut s, 2).unwrap()).collect();
    assert_eq!(later, [true, true, true, true, false, false]);
    assert_eq!(burst(&mut s, 32), Some(false));
    assert_eq!(burst(&mut s, 1), None, "a single request leaves at once");
    assert_eq!(burst(&mut s, 2), Some(true));
}
