//! UC: lost messages stay lost, delivered ones are complete; no responses.

use super::*;
use roxe_transport::qp::DropReason;
use roxe_transport::qp::{QpEvents, Service};
use roxe_transport::wr::WcStatus::*;
use roxe_transport::wr::{WcExtra, WcOpcode};
use roxe_wire::Reth;

fn setup() -> Setup {
    Setup::of(Service::Uc)
}

/// A responder whose peer, with first PSN 100, is forged by the test; receives of 1000 bytes are
/// posted.
struct Script {
    p: Pair,
    mr: Mr,
}

impl Script {
    fn new(receives: u64) -> Self {
        let mut p = alone(B, setup());
        let mr = blank(&mut p, B, 4096);
        for id in 1..=receives {
            recv(&mut p, B, id, &[mr.sge(0, 1000)]);
        }
        Self { p, mr }
    }

    fn deliver(&mut self, psn: u32, req: Request, payload: &[u8]) {
        self.p.inject(B, &Header { bth: bth(B, psn, false), kind: uc(req) }, payload);
        self.p.transmit(B);
    }

    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        recvs(&mut self.p, B)
    }
}

const ONLY: Request = Request::SendOnly(SendTail::Plain);
const LAST: Request = Request::SendLast(SendTail::Plain);

// clause: UC-SILENT, UC-DONE-WHEN-SENT
#[test]
fn messages_of_every_size_arrive_and_complete_when_sent() {
    for mtu in roxe_wire::PathMtu::ALL {
        let mut p = Pair::new(Setup { path_mtu: mtu, ..setup() });
        let (src, dst) = (filled(&mut p, A, 1 << 16), blank(&mut p, B, 1 << 16));
        let m = mtu.bytes();
        for len in [0, 1, m - 1, m, m + 1, 2 * m, 1 << 16] {
            recv(&mut p, B, 1, &[dst.all()]);
            post(&mut p, A, 1, SendOp::SendImm(imm(len)), &[src.sge(0, len)]);
            p.transmit(A);
            assert_eq!(sends(&mut p, A), statuses(1..=1, Success), "complete when sent");
            p.run();
            let cqe = one_recv(&mut p, B);
            assert_eq!((cqe.status, cqe.byte_len, cqe.extra), (Success, len, WcExtra::Imm(imm(len))));
            assert_eq!(bytes(&p, B, dst)[..len as usize], bytes(&p, A, src)[..len as usize]);
        }
        assert_eq!(responses(&p, B), []);
        assert!(p.log.iter().all(|l| !l.header.bth.ack_req), "no packet requests an acknowledgement");
        p.assert_settled();
    }
}

#[test]
fn writes_arrive_and_those_with_immediate_take_a_receive() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 2000), blank(&mut p, B, 2000));
    recv(&mut p, B, 5, &[]);
    post(&mut p, A, 1, write_to(dst), &[src.sge(0, 1000)]);
    let second = SendOp::WriteImm { remote_addr: dst.addr + 1000, rkey: dst.rkey(), imm: imm(9) };
    post(&mut p, A, 2, second, &[src.sge(1000, 1000)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
    let cqe = one_recv(&mut p, B);
    assert_eq!((cqe.opcode, cqe.byte_len, cqe.extra), (WcOpcode::RecvRdmaWithImm, 1000, WcExtra::Imm(imm(9))));
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

// clause: UC-RECEIVE-KEPT
#[test]
fn message_with_a_gap_is_dropped_and_its_receive_reused() {
    for lost in 0..4 {
        let mut p = Pair::new(setup());
        let (src, dst) = (filled(&mut p, A, 2000), blank(&mut p, B, 2000));
        recv(&mut p, B, 1, &[dst.sge(0, 1000)]);
        recv(&mut p, B, 2, &[dst.sge(1000, 1000)]);
        drop_nth(&mut p, A, lost);
        post(&mut p, A, 1, SendOp::SendImm(imm(1)), &[src.sge(0, 1000)]);
        post(&mut p, A, 2, SendOp::SendImm(imm(2)), &[src.sge(1000, 1000)]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
        let cqe = one_recv(&mut p, B);
        assert_eq!((cqe.wr_id, cqe.byte_len, cqe.extra), (1, 1000, WcExtra::Imm(imm(2))), "packet {lost} lost");
        assert_eq!(bytes(&p, B, dst)[..1000], bytes(&p, A, src)[1000..]);
        assert_eq!(p.ends[1].qp.state(), QpState::Rts);
    }
}

// clause: UC-RESYNC
#[test]
fn pieces_of_different_messages_never_mix() {
    let mut s = Script::new(2);
    s.deliver(100, Request::SendFirst, &[1; 256]);
    // 101, the last of this message, and 102, the first of the next, are lost.
    s.deliver(103, LAST, &[2; 10]);
    assert_eq!(s.done(), []);
    s.deliver(104, ONLY, &[3; 10]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    assert_eq!(bytes(&s.p, B, s.mr)[..10], [3; 10]);
}

// clause: UC-RESYNC
#[test]
fn first_packet_is_accepted_with_any_psn() {
    for psn in [100, 101, 99, 100 + 0x80_0000, 0] {
        let mut s = Script::new(1);
        s.deliver(psn, Request::SendFirst, &[1; 256]);
        s.deliver((psn + 1) & 0xff_ffff, LAST, &[2; 1]);
        assert_eq!(s.done(), statuses(1..=1, Success), "{psn:#x}");
    }
}

// clause: UC-RESYNC
#[test]
fn packets_after_a_gap_are_dropped_until_the_next_first() {
    let mut s = Script::new(1);
    s.deliver(100, Request::SendFirst, &[1; 256]);
    s.deliver(102, Request::SendMiddle, &[1; 256]);
    s.deliver(103, Request::SendMiddle, &[1; 256]);
    s.deliver(104, LAST, &[1; 1]);
    assert_eq!((s.done(), s.p.ends[1].dropped.1), (vec![], 3));
    s.deliver(105, ONLY, &[2; 5]);
    assert_eq!(s.done(), statuses(1..=1, Success));
}

// clause: UC-NEW-START
#[test]
fn new_first_packet_abandons_the_open_message() {
    let mut s = Script::new(2);
    s.deliver(100, Request::SendFirst, &[1; 256]);
    s.deliver(101, ONLY, &[2; 5]);
    assert_eq!(one_recv(&mut s.p, B).byte_len, 5);
    s.deliver(102, LAST, &[1; 1]);
    assert_eq!(s.done(), []);
}

// clause: UC-LOST
#[test]
fn message_without_a_receive_is_dropped_whole() {
    let mut s = Script::new(0);
    s.deliver(100, Request::SendFirst, &[1; 256]);
    assert_eq!(s.p.ends[1].dropped.0, Some(DropReason::NoReceive));
    let mr = s.mr;
    recv(&mut s.p, B, 1, &[mr.all()]);
    s.deliver(101, LAST, &[1; 1]);
    assert_eq!(s.done(), []);
    s.deliver(102, ONLY, &[2; 1]);
    assert_eq!(s.done(), statuses(1..=1, Success));
}

// clause: UC-LOST
#[test]
fn too_long_message_is_dropped_and_receive_kept() {
    let mut s = Script::new(1);
    s.deliver(100, Request::SendFirst, &[1; 256]);
    s.deliver(101, Request::SendMiddle, &[1; 256]);
    s.deliver(102, Request::SendMiddle, &[1; 256]);
    s.deliver(103, LAST, &[1; 233]);
    assert_eq!(s.done(), [], "1001 bytes for a receive of 1000");
    s.deliver(104, Request::SendFirst, &[1; 256]);
    s.deliver(105, Request::SendMiddle, &[1; 256]);
    s.deliver(106, Request::SendMiddle, &[1; 256]);
    s.deliver(107, LAST, &[1; 232]);
    assert_eq!(s.done(), statuses(1..=1, Success));
    assert_eq!(s.p.ends[1].qp.state(), QpState::Rts);
}

// clause: UC-LOST
#[test]
fn packets_of_the_wrong_length_drop_their_message() {
    for (first, last) in [(252, 1), (256, 257)] {
        let mut s = Script::new(1);
        s.deliver(100, Request::SendFirst, &vec![1; first]);
        s.deliver(101, LAST, &vec![1; last]);
        assert_eq!(s.done(), [], "{first} + {last}");
        s.deliver(102, ONLY, &[1; 257]);
        assert_eq!(s.done(), []);
        s.deliver(103, ONLY, &[1; 256]);
        assert_eq!(s.done(), statuses(1..=1, Success));
    }
}

// clause: UC-LOST
#[test]
fn refused_write_is_dropped_silently() {
    let mut s = Script::new(1);
    let reth = |s: &Script, offset, dma_len| Reth { va: s.mr.addr + offset, rkey: s.mr.rkey(), dma_len };
    let good = reth(&s, 0, 4);
    let bad_key = Reth { rkey: roxe_wire::RKey(good.rkey.0 ^ 1), ..good };
    for reth in [bad_key, reth(&s, 4093, 4), Reth { va: u64::MAX, ..good }, reth(&s, 0, 5), reth(&s, 0, 3)] {
        s.deliver(100, Request::WriteOnly(reth, None), b"evil");
        s.deliver(101, Request::WriteOnly(reth, Some(imm(1))), b"evil");
    }
    assert!(bytes(&s.p, B, s.mr).iter().all(|&b| b == 0));
    assert_eq!((s.done(), s.p.ends[1].qp.state(), s.p.ends[1].events), (vec![], QpState::Rts, QpEvents::empty()));
    s.deliver(102, Request::WriteOnly(good, Some(imm(1))), b"good");
    assert_eq!((s.done(), &bytes(&s.p, B, s.mr)[..4]), (statuses(1..=1, Success), &b"good"[..]));
}

// clause: UC-LOST
#[test]
fn write_without_the_right_of_the_qp_is_dropped() {
    let mut p = Pair::new(Setup { access: Access::empty(), ..setup() });
    let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!((sends(&mut p, A), bytes(&p, B, dst)), (statuses(1..=1, Success), vec![0; 8]));
}

// clause: UC-IMM-LAST
#[test]
fn write_with_immediate_and_no_receive_leaves_its_data() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
    let op = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(1) };
    post(&mut p, A, 1, op, &[src.all()]);
    p.run();
    assert_eq!(recvs(&mut p, B), []);
    assert_eq!(bytes(&p, B, dst)[..512], bytes(&p, A, src)[..512]);
    recv(&mut p, B, 1, &[]);
    post(&mut p, A, 2, op, &[src.all()]);
    p.run();
    assert_eq!(recvs(&mut p, B), statuses(1..=1, Success));
}

// clause: STATE-SQE
#[test]
fn local_error_enters_sqe_and_modify_leaves_it() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 100), blank(&mut p, B, 100));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    post_with(&mut p, A, 2, write_to(dst), SendFlags::empty(), &[Sge { lkey: roxe_wire::LKey(1), ..src.all() }]);
    post_with(&mut p, A, 3, write_to(dst), SendFlags::empty(), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(p.ends[0].qp.state(), QpState::Sqe);
    // In SQE sends are flushed and receives continue.
    post(&mut p, A, 4, write_to(dst), &[src.all()]);
    let landing = blank(&mut p, A, 10);
    recv(&mut p, A, 9, &[landing.all()]);
    post(&mut p, B, 5, SendOp::Send, &[]);
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, A)), (statuses(4..=4, WrFlushErr), statuses(9..=9, Success)));
    assert_eq!(go_to(&mut p, A, QpState::Rts), Ok(()));
    recv(&mut p, B, 7, &[dst.all()]);
    post(&mut p, A, 6, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, B)), (statuses(6..=6, Success), statuses(7..=7, Success)));
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

#[test]
fn uc_psns_wrap() {
    let mut p = Pair::new(Setup { psn: [0xff_fffe, 0], ..setup() });
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 1000));
    recv(&mut p, B, 1, &[dst.all()]);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!(recvs(&mut p, B), statuses(1..=1, Success));
    assert_eq!(request_psns(&p, A), [0xff_fffe, 0xff_ffff, 0, 1]);
}

#[test]
fn unreliable_sends_wait_for_flow_control() {
    let mut p = Pair::new(Setup { flow_limit: Some(2000), ..setup() });
    let (src, dst) = (filled(&mut p, A, 8000), blank(&mut p, B, 8000));
    recv(&mut p, B, 1, &[dst.all()]);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.transmit(A);
    assert!(request_psns(&p, A).len() <= 3, "{:?}", request_psns(&p, A));
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, B)), (statuses(1..=1, Success), statuses(1..=1, Success)));
}
