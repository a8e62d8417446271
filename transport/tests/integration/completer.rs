//! A requester: the tests read its packets from the log and forge its responses.

use roxe_sim::host::LEAST_COST;
use roxe_sim::setup::{QPN_A, Setup};
use roxe_sim::{Mr, Pair, Peer, Rng};
use roxe_transport::qp::{DropReason, QpState, RetryCounts};
use roxe_transport::wr::{Access, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus};
use roxe_wire::{
    Aeth, AtomicAckEth, Bth, Feth, Header, Kind, Msn, NakCode, PathMtu, Placement, Psn, RKey, Request, Response,
    Selectivity, Syndrome,
};

const ACK: Aeth = aeth(Syndrome::ACK_UNLIMITED);
const SEQUENCE_NAK: Response = Response::Ack(aeth(Syndrome::Nak(NakCode::PsnSequence)));
const READ: SendOp = SendOp::Read { remote_addr: 0x1000, rkey: RKey(7) };
const ADD: SendOp = SendOp::FetchAdd { remote_addr: 0x1000, rkey: RKey(7), add: 1 };
const ATOMIC_WRITE: SendOp = SendOp::AtomicWrite { remote_addr: 0x1000, rkey: RKey(7) };
const GLOBAL: Feth = Feth { selectivity: Selectivity::Region, placement: Placement::GLOBAL_VISIBILITY };
const FLUSH: SendOp = SendOp::Flush { remote_addr: 0x1000, rkey: RKey(7), length: 1 << 20, feth: GLOBAL };

const fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: Msn::new(0) }
}

const fn rnr(timer: u8) -> Response {
    Response::Ack(aeth(Syndrome::RnrNak { timer }))
}

/// A requester in RTS (MTU 256, first PSN 100, two READs at a time) and its memory.
struct Script {
    pair: Pair,
    mr: Mr,
    seen: usize,
}

impl Script {
    fn new() -> Self {
        Self::with(Setup { max_rd_atomic: 2, retry_cnt: 2, rnr_retry: 1, ..Setup::default() })
    }

    fn with(setup: Setup) -> Self {
        let mut pair = Pair::idle(setup, Rng::new(1));
        pair.bring_to(Peer::A, QpState::Rts);
        let mr = pair.end(Peer::A).host.memory.register(1 << 20, Access::LOCAL_WRITE);
        Self { pair, mr, seen: 0 }
    }

    /// Posts `op` on `len` bytes.
    fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
        self.post_on(wr_id, op, SendFlags::SIGNALED, self.mr.sge(0, len));
    }

    fn post_on(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, sge: Sge) {
        let req = SendRequest { wr_id, op, flags, data: SendData::Sges(&[sge]), ud: None };
        assert_eq!(self.pair.post_send(Peer::A, &req), Ok(()));
    }

    /// Returns the PSNs sent now.
    fn psns(&mut self) -> Vec<u32> {
        self.headers().iter().map(|header| header.bth.psn.get()).collect()
    }

    fn headers(&mut self) -> Vec<Header> {
        self.pair.transmit(Peer::A);
        let new = self.pair.log[self.seen..].iter().map(|logged| logged.header).collect();
        self.seen = self.pair.log.len();
        new
    }

    /// Delivers a response and returns the result.
    fn deliver(&mut self, psn: u32, response: Response, payload: &[u8]) -> Option<DropReason> {
        let end = self.pair.end(Peer::A);
        end.dropped = (None, 0);
        let header = Header { bth: Bth::new(QPN_A, Psn::new(psn)), kind: Kind::RcResponse(response) };
        self.pair.inject(Peer::A, &header, payload);
        self.pair.end(Peer::A).dropped.0
    }

    /// Delivers joined READ responses with `payload`; returns true if they were accepted.
    fn deliver_joined(&mut self, psn: u32, payload: &[u8]) -> bool {
        self.deliver_joined_of(256, psn, payload)
    }

    /// Delivers joined READ responses with packets of `len` bytes; returns true if they were
    /// accepted.
    fn deliver_joined_of(&mut self, len: usize, psn: u32, payload: &[u8]) -> bool {
        let net = self.pair.net_of(1);
        let header = Header { bth: Bth::new(QPN_A, Psn::new(psn)), kind: Kind::RcResponse(Response::ReadMiddle) };
        let end = self.pair.end(Peer::A);
        end.qp.handle_joined(&mut end.host, &net, &header, len, payload.into())
    }

    fn ack(&mut self, psn: u32) -> Option<DropReason> {
        self.deliver(psn, Response::Ack(ACK), &[])
    }

    /// Takes the completions since the last call.
    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        let end = self.pair.end(Peer::A);
        end.host.sends.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    fn reserved(&mut self) -> u32 {
        self.pair.end(Peer::A).host.flow.reserved
    }

    /// Lets the timer expire.
    fn time_out(&mut self) {
        let end = self.pair.end(Peer::A);
        end.host.clock = end.qp.poll_timeout().expect("a timer runs");
        end.qp.handle_timeout(&mut end.host);
    }

    fn memory(&mut self, len: usize) -> Vec<u8> {
        let mr = self.mr;
        self.pair.end(Peer::A).host.memory.bytes(mr)[..len].to_vec()
    }

    fn state(&self) -> QpState {
        self.pair.ends[0].qp.state()
    }
}

const OK: WcStatus = WcStatus::Success;

// clause: SEND-ORDER, ACK-CUMULATIVE
#[test]
fn one_ack_completes_everything_before_it_in_order() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 0);
    s.post_on(2, SendOp::Send, SendFlags::empty(), s.mr.sge(0, 300));
    s.post(3, SendOp::Send, 10);
    assert_eq!(s.psns(), [100, 101, 102, 103]);
    assert_eq!(s.ack(102), None);
    assert_eq!(s.done(), [(1, OK)]);
    assert_eq!(s.reserved(), LEAST_COST);
    assert_eq!(s.ack(103), None);
    assert_eq!(s.done(), [(3, OK)]);
    assert_eq!((s.reserved(), s.pair.ends[0].qp.poll_timeout()), (0, None));
}

#[test]
fn rnr_wait_ends_when_everything_is_acked() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 0);
    assert_eq!(s.psns(), [100]);
    assert_eq!(s.deliver(100, rnr(12), &[]), None);
    assert_eq!(s.ack(100), None);
    assert_eq!((s.done(), s.pair.ends[0].qp.poll_timeout()), (vec![(1, OK)], None));
    s.post(2, SendOp::Send, 0);
    assert_eq!(s.psns(), [101], "no response is awaited");
}

#[test]
fn sequence_nak_goes_back_once() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 256 * 4);
    assert_eq!(s.psns(), [100, 101, 102, 103]);
    assert_eq!(s.deliver(102, SEQUENCE_NAK, &[]), None);
    assert_eq!(s.reserved(), 0);
    assert_eq!(s.deliver(102, SEQUENCE_NAK, &[]), Some(DropReason::AwaitingRetry));
    let retransmitted = s.headers();
    assert_eq!(retransmitted[0].kind, Kind::RcRequest(Request::SendMiddle));
    assert_eq!(retransmitted.iter().map(|h| h.bth.psn.get()).collect::<Vec<_>>(), [102, 103]);
    assert_eq!(s.deliver(102, SEQUENCE_NAK, &[]), Some(DropReason::AwaitingRetry));
    assert_eq!(s.ack(103), None);
    assert_eq!(s.done(), [(1, OK)]);
}

// clause: ACK-OVER-RETRY
#[test]
fn late_ack_shortens_the_retry() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 256 * 3);
    s.post(2, SendOp::Send, 256 * 2);
    assert_eq!(s.psns(), [100, 101, 102, 103, 104]);
    s.time_out();
    assert_eq!(s.ack(103), None);
    assert_eq!((s.done(), s.reserved()), (vec![(1, OK)], 0));
    assert_eq!(s.psns(), [104]);
    assert_eq!(s.ack(104), None);
    assert_eq!((s.done(), s.reserved()), (vec![(2, OK)], 0));
}

// clause: RETRY-GO-BACK
#[test]
fn timeouts_are_retried_retry_cnt_times() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 0);
    s.post(2, SendOp::Send, 0);
    assert_eq!(s.psns(), [100, 101]);
    for _ in 0..2 {
        s.time_out();
        assert_eq!(s.psns(), [100, 101]);
    }
    s.time_out();
    assert_eq!(s.done(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((s.state(), s.reserved()), (QpState::Err, 0));
}

// clause: RNR-WAIT, RNR-WAIT-WHOLE
#[test]
fn rnr_wait_lasts_as_requested() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 0);
    s.post(2, SendOp::Send, 0);
    assert_eq!(s.psns(), [100, 101]);
    assert_eq!(s.deliver(101, rnr(12), &[]), None);
    assert_eq!(s.done(), [(1, OK)]);
    for early in [SEQUENCE_NAK, rnr(1)] {
        assert_eq!(s.deliver(101, early, &[]), Some(DropReason::AwaitingRetry));
        assert_eq!(s.psns(), []);
    }
    let waited = s.pair.end(Peer::A).qp.poll_timeout().map(|at| at.since(s.pair.now()));
    assert_eq!(waited, Some(core::time::Duration::from_micros(640)));
    s.time_out();
    assert_eq!(s.psns(), [101]);
    assert_eq!(s.deliver(101, rnr(12), &[]), None);
    assert_eq!(s.done(), [(2, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn each_loss_and_refusal_is_counted_once() {
    let mut s = Script::with(Setup { retry_cnt: 7, rnr_retry: 7, ..Setup::default() });
    s.post(1, READ, 8);
    s.post(2, SendOp::Send, 0);
    assert_eq!(s.psns(), [100, 101]);
    s.ack(101);
    assert_eq!(s.psns(), [100, 101]);
    s.time_out();
    assert_eq!(s.psns(), [100, 101]);
    s.deliver(100, Response::ReadOnly(ACK), &[0; 8]);
    s.deliver(101, SEQUENCE_NAK, &[]);
    s.deliver(101, rnr(1), &[]);
    let counts = s.pair.end(Peer::A).qp.take_retry_counts();
    let expected = RetryCounts {
        packet_seq_err: 1,
        implied_nak_seq_err: 1,
        rnr_nak_retry_err: 1,
        local_ack_timeout_err: 1,
        send_rnr_err: 0,
    };
    assert_eq!(counts, Some(expected));
    assert_eq!(s.pair.end(Peer::A).qp.take_retry_counts(), None);
}

// clause: READ-ACKNOWLEDGES
#[test]
fn read_responses_are_placed_and_acknowledge_earlier_requests() {
    let mut s = Script::new();
    s.post(1, SendOp::Send, 0);
    s.post(2, READ, 600);
    s.post(3, SendOp::Send, 0);
    assert_eq!(s.psns(), [100, 101, 104]);
    assert_eq!(s.deliver(101, Response::ReadFirst(ACK), &[1; 256]), None);
    assert_eq!(s.done(), [(1, OK)]);
    assert_eq!(s.deliver(101, Response::ReadFirst(ACK), &[9; 256]), Some(DropReason::DuplicateResponse));
    assert_eq!(s.deliver(102, Response::ReadMiddle, &[2; 256]), None);
    assert_eq!(s.deliver(103, Response::ReadLast(ACK), &[3; 88]), None);
    assert_eq!((s.done(), s.reserved()), (vec![(2, OK)], LEAST_COST));
    assert_eq!(s.memory(600), [[1; 256].as_slice(), &[2; 256], &[3; 88]].concat());
    assert_eq!(s.ack(104), None);
    assert_eq!(s.done(), [(3, OK)]);
}

/// Returns the result of a READ of 20 packets whose packets `from..until` arrive joined or one by
/// one.
fn read_in_parts(from: u32, until: u32, joined: bool) -> (Vec<u8>, String) {
    let mut s = Script::new();
    s.post(1, READ, 20 * 256);
    s.post(2, ADD, 8);
    s.post(3, ADD, 8);
    assert_eq!(s.psns(), [100, 120]);
    let data: Vec<u8> = (0..=255).cycle().step_by(3).take(20 * 256).collect();
    let part = |from: u32, until: u32| &data[(from - 100) as usize * 256..(until - 100) as usize * 256];
    for psn in 100..120 {
        let response = match psn {
            100 => Response::ReadFirst(ACK),
            119 => Response::ReadLast(ACK),
            _ => Response::ReadMiddle,
        };
        match psn {
            psn if joined && psn == from => assert!(s.deliver_joined(from, part(from, until))),
            psn if joined && (from..until).contains(&psn) => {}
            _ => assert_eq!(s.deliver(psn, response, part(psn, psn + 1)), None),
        }
    }
    (s.memory(20 * 256), format!("{:?}", (s.done(), s.reserved(), s.psns())))
}

#[test]
fn joined_read_responses_act_as_single_packets() {
    for (from, until) in [(101, 119), (101, 103), (105, 110), (118, 119)] {
        assert!(read_in_parts(from, until, true) == read_in_parts(from, until, false), "{from}..{until}");
    }
}

#[test]
fn joined_read_data_that_needs_checks_has_no_effect() {
    let mut s = Script::new();
    s.post(1, READ, 256 * 200);
    assert_eq!(s.psns(), [100, 164]);
    assert_eq!(s.deliver(100, Response::ReadFirst(ACK), &[1; 256]), None);
    for (what, psn, len) in [
        ("a duplicate", 100, 2 * 256),
        ("after a gap", 102, 2 * 256),
        ("the end of a request", 101, 63 * 256),
        ("beyond a request", 101, 70 * 256),
        ("no whole packets", 101, 300),
    ] {
        assert!(!s.deliver_joined(psn, &vec![9; len]), "{what}");
    }
    assert!(s.memory(256 * 200)[256..].iter().all(|byte| *byte == 0));
    assert!(!s.deliver_joined_of(512, 101, &[9; 4 * 256]), "packets of another size");
    assert!(s.deliver_joined(101, &[1; 62 * 256]));
    assert_eq!(s.deliver(163, Response::ReadLast(ACK), &[1; 256]), None);
    assert_eq!(s.psns(), [228]);
    // A retry will request them again.
    s.time_out();
    assert!(!s.deliver_joined(164, &[9; 2 * 256]));
    let mr = s.mr;
    s.pair.end(Peer::A).host.memory.deregister(mr);
    assert_eq!(s.psns(), [164]);
    assert!(!s.deliver_joined(164, &[9; 2 * 256]), "unmapped memory");
    assert_eq!(s.state(), QpState::Rts);
    let mut s = Script::new();
    s.post(1, ADD, 8);
    s.post(2, SendOp::Send, 1024);
    assert_eq!(s.psns(), [100, 101, 102, 103, 104]);
    assert!(!s.deliver_joined(100, &[9; 2 * 256]), "an atomic has no READ response");
}

#[test]
fn long_reads_are_several_requests_within_the_depth() {
    let mut s = Script::new();
    s.post(1, READ, 256 * 200);
    assert_eq!(s.psns(), [100, 164]);
    for i in 0..64 {
        let response = match i {
            0 => Response::ReadFirst(ACK),
            63 => Response::ReadLast(ACK),
            _ => Response::ReadMiddle,
        };
        assert_eq!(s.psns(), []);
        assert_eq!(s.deliver(100 + i, response, &[7; 256]), None);
    }
    assert_eq!(s.psns(), [228]);
    s.time_out();
    assert_eq!((s.psns(), s.reserved()), (vec![164], LEAST_COST), "fewer READs at a time after a loss");
    assert_eq!(s.deliver(164, Response::ReadFirst(ACK), &[7; 256]), None);
    assert_eq!((s.psns(), s.reserved()), (vec![228], 2 * LEAST_COST));
}

#[test]
fn reads_wait_for_room_in_the_local_socket() {
    let mut s = Script::with(Setup { path_mtu: PathMtu::Mtu4096, max_rd_atomic: 16, ..Setup::default() });
    s.post(1, READ, 1 << 20);
    assert_eq!(s.psns(), [100, 132]);
    assert_eq!(s.deliver(100, Response::ReadFirst(ACK), &[7; 4096]), None);
    assert_eq!(s.psns(), []);
    for psn in 101..131 {
        assert_eq!(s.deliver(psn, Response::ReadMiddle, &[7; 4096]), None);
    }
    assert_eq!(s.psns(), []);
    assert_eq!(s.deliver(131, Response::ReadLast(ACK), &[7; 4096]), None);
    assert_eq!(s.psns(), [164]);
    s.time_out();
    assert_eq!(s.psns(), [132, 164]);
}

// clause: SEND-RD-ATOMIC, SEND-FENCE
#[test]
fn fence_and_depth_delay_requests() {
    let mut s = Script::new();
    (1..=3).for_each(|id| s.post(id, ADD, 8));
    s.post_on(4, SendOp::Send, SendFlags::FENCE, s.mr.sge(0, 0));
    assert_eq!(s.psns(), [100, 101]);
    let response = Response::AtomicAck(ACK, AtomicAckEth(0));
    assert_eq!(s.deliver(100, response, &[]), None);
    assert_eq!(s.psns(), [102]);
    assert_eq!(s.deliver(101, response, &[]), None);
    assert_eq!(s.psns(), []);
    assert_eq!(s.deliver(102, response, &[]), None);
    assert_eq!(s.psns(), [103]);
}

// clause: NONPOSTED-ANSWER, NONPOSTED-PLACE, NAK-IMPLIED
#[test]
fn atomic_write_and_flush_await_their_response() {
    let mut s = Script::new();
    s.post(1, SendOp::Write { remote_addr: 0x1000, rkey: RKey(7) }, 10);
    s.post(2, ATOMIC_WRITE, 8);
    s.post(3, FLUSH, 0);
    s.post(4, READ, 8);
    assert_eq!(s.psns(), [100, 101, 102], "two at a time");
    assert_eq!(s.deliver(101, Response::ReadOnly(ACK), &[]), None);
    assert_eq!((s.done(), s.psns()), (vec![(1, OK), (2, OK)], vec![103]));
    // A response to a later request implies that this one was lost, and so does an acknowledgement
    // of it.
    assert_eq!(s.ack(102), None);
    assert_eq!((s.done(), s.psns()), (vec![], vec![102, 103]));
    assert_eq!(s.deliver(102, Response::ReadOnly(ACK), &[]), None);
    let flushed = s.pair.end(Peer::A).host.sends.pop_front().expect("the request is complete");
    assert_eq!((flushed.wr_id, flushed.opcode, flushed.byte_len), (3, WcOpcode::Flush, 0));
    assert_eq!(s.deliver(103, Response::ReadOnly(ACK), &[9; 8]), None);
    assert_eq!((s.done(), s.reserved()), (vec![(4, OK)], 0));
}

// clause: READ-LENGTH, READ-POSITIVE, RESP-KIND
#[test]
fn impossible_responses_are_fatal() {
    let nak = aeth(Syndrome::Nak(NakCode::RemoteAccess));
    let cases: [(SendOp, u32, Response, &[u8]); 14] = [
        (SendOp::Send, 10, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
        (SendOp::Send, 10, Response::ReadOnly(ACK), &[0; 10]),
        (ADD, 8, Response::ReadOnly(ACK), &[0; 8]),
        (READ, 8, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
        (READ, 8, Response::ReadOnly(ACK), &[0; 7]),
        (READ, 300, Response::ReadOnly(ACK), &[0; 256]),
        (READ, 300, Response::ReadFirst(ACK), &[0; 252]),
        (READ, 8, Response::ReadOnly(nak), &[0; 8]),
        (ATOMIC_WRITE, 8, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
        (ATOMIC_WRITE, 8, Response::ReadOnly(ACK), &[0; 8]),
        (ATOMIC_WRITE, 8, Response::ReadOnly(nak), &[]),
        (FLUSH, 0, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
        (FLUSH, 0, Response::ReadOnly(ACK), &[0; 4]),
        (FLUSH, 0, Response::ReadFirst(ACK), &[0; 256]),
    ];
    for (op, len, response, payload) in cases {
        let mut s = Script::new();
        s.post(1, op, len);
        s.post(2, SendOp::Send, 0);
        assert!(!s.psns().is_empty());
        assert_eq!(s.deliver(100, response, payload), None);
        assert_eq!(s.done(), [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)], "{response:?}");
        assert_eq!(s.reserved(), 0);
    }
}

// clause: READ-LOCAL-FAULT
#[test]
fn read_into_read_only_memory_fails() {
    let mut s = Script::new();
    let constant = s.pair.end(Peer::A).host.memory.register(64, Access::empty());
    s.post_on(1, READ, SendFlags::empty(), constant.all());
    assert_eq!(s.psns(), [100]);
    assert_eq!(s.deliver(100, Response::ReadOnly(ACK), &[0; 64]), None);
    assert_eq!(s.done(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(s.state(), QpState::Err);
}

// clause: SEND-LOCAL-FAULT
#[test]
fn bad_lkey_is_reported_after_earlier_requests() {
    let mut s = Script::new();
    let gone = s.pair.end(Peer::A).host.memory.register(64, Access::LOCAL_WRITE);
    s.pair.end(Peer::A).host.memory.deregister(gone);
    s.post(1, SendOp::Send, 10);
    s.post_on(2, SendOp::Send, SendFlags::empty(), gone.all());
    s.post(3, SendOp::Send, 10);
    assert_eq!((s.psns(), s.done()), (vec![100], vec![]));
    assert_eq!(s.ack(100), None);
    assert_eq!(s.done(), [(1, OK), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!(s.reserved(), 0);
}
