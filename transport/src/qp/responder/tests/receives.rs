//! Receives: taken, waited for, filled, flushed.

use super::*;

// clause: CHECK-RECEIVE, GAP-AFTER-RNR
#[test]
fn send_without_receive_is_rnr_nakked() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, SEND, b"hi"), Err(DropReason::NoReceive));
    assert_eq!(s.deliver(FIRST + 1, SEND, b"ho"), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [rnr_nak(FIRST, 0)], "no sequence NAK for packets in flight");
    assert_eq!(s.deliver(FIRST, SEND, b"hi"), Err(DropReason::NoReceive));
    assert_eq!(s.out(), [rnr_nak(FIRST, 0)], "every try is answered");
    s.receive(7, &[s.mr.sge(0, 2)]);
    assert_eq!(s.deliver(FIRST, SEND, b"hi"), Ok(()));
    assert_eq!(s.out(), [ack(FIRST, 1)]);
    assert_eq!(s.done(), [(7, WcStatus::Success, 2)]);
}

// clause: CHECK-RECEIVE, WC-BYTE-LEN
#[test]
fn write_with_immediate_needs_a_receive_at_its_end() {
    let mut s = rc();
    let imm = Some(ImmDt([1, 2, 3, 4]));
    assert_eq!(s.deliver_no_ackreq(FIRST, Request::WriteFirst(s.reth(0, 260)), &[9; MTU]), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::WriteLast(imm), &[8; 4]), Err(DropReason::NoReceive));
    assert_eq!(s.out(), [rnr_nak(FIRST + 1, 0)]);
    assert_eq!(s.bytes(MTU, 4), [5, 6, 7, 8], "not written yet");
    s.receive(7, &[]);
    assert_eq!(s.deliver(FIRST + 1, Request::WriteLast(imm), &[8; 4]), Ok(()));
    assert_eq!(s.out(), [ack(FIRST + 1, 1)]);
    let cqe = s.host.recvs.pop_front().expect("poll a completion");
    assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (7, WcStatus::Success, 260));
    assert_eq!((cqe.opcode, cqe.extra), (WcOpcode::RecvRdmaWithImm, WcExtra::Imm(ImmDt([1, 2, 3, 4]))));
    assert_eq!(s.bytes(MTU, 4), [8; 4]);
}

// clause: INVALIDATE-KEY
#[test]
fn immediate_data_and_invalidated_keys_are_in_the_completion() {
    let mut s = rc();
    let window = s.host.memory.register(8, Access::REMOTE_WRITE);
    s.host.memory.make_window(window);
    s.receive(1, &[]);
    s.receive(2, &[]);
    s.receive(3, &[]);
    let solicited = |psn| Bth { solicited: true, ..Bth::new(Qpn::new(2), Psn::new(psn)) };
    let imm = ImmDt([1, 2, 3, 4]);
    assert_eq!(s.deliver_with_bth(solicited(FIRST), Request::SendOnly(SendTail::Imm(imm)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::SendOnly(SendTail::Invalidate(Ieth(window.rkey()))), b""), Ok(()));
    assert_eq!(s.deliver_with_bth(solicited(FIRST + 2), Request::WriteOnly(s.reth(0, 0), Some(imm)), b""), Ok(()));
    let got: Vec<_> = s.host.recvs.drain(..).map(|cqe| (cqe.wr_id, cqe.extra, cqe.solicited)).collect();
    let invalidated = WcExtra::Invalidated(window.rkey());
    assert_eq!(got, [(1, WcExtra::Imm(imm), true), (2, invalidated, false), (3, WcExtra::Imm(imm), true)]);
    assert_eq!(s.out(), [ack(FIRST + 2, 3)]);
    let result = s.host.check_remote(window.rkey(), window.addr, 8, Access::REMOTE_WRITE);
    assert_eq!(result, Err(MemError::BadKey));
}

// clause: CHECK-ROOM
#[test]
fn message_longer_than_its_receive_is_refused() {
    for (len, expected) in [(300, Ok(())), (301, Err(DropReason::InvalidRequest))] {
        let mut s = rc();
        s.receive(1, &[s.mr.sge(0, 200), s.mr.sge(512, 100)]);
        assert_eq!(s.deliver_no_ackreq(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
        let rest = vec![2; len - MTU];
        assert_eq!(s.deliver(FIRST + 1, Request::SendLast(SendTail::Plain), &rest), expected);
        let (answer, status, len) = match expected {
            Ok(()) => (ack(FIRST + 1, 1), WcStatus::Success, 300),
            Err(_) => (nak(FIRST + 1, NakCode::InvalidRequest, 0), WcStatus::LocLenErr, 0),
        };
        assert_eq!(s.out(), [answer]);
        assert_eq!(s.done(), [(1, status, len)]);
    }
}

// clause: ACK-AFTER-DEED
#[test]
fn cq_overrun_fails_the_qp_without_response() {
    let mut s = rc();
    s.host.cq_room = [None, Some(0)];
    s.receive(1, &[]);
    s.deliver(FIRST, SEND, b"").ok();
    assert_eq!((s.sh.state, s.sh.events), (QpState::Err, QpEvents::FATAL));
    assert_eq!(s.out(), []);
}

// clause: SRQ-TAKEN, SRQ-LAST-RECEIVE
#[test]
fn shared_receive_belongs_to_the_qp_until_completion() {
    let mut s = Script::with(Service::Rc, Some(2));
    let sges = [s.mr.sge(0, 600)];
    s.host.srq.post(&RecvRequest { wr_id: 4, sges: &sges });
    s.host.srq.post(&RecvRequest { wr_id: 5, sges: &sges });
    assert_eq!(s.deliver(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.host.srq.len(), 1);
    s.sh.fail();
    s.settle();
    assert_eq!(s.done(), [(4, WcStatus::WrFlushErr, 0)]);
    assert_eq!((s.host.srq.len(), core::mem::take(&mut s.sh.events)), (1, QpEvents::LAST_WQE_REACHED));
    s.responder.flush(&mut s.sh, &mut s.host);
    assert_eq!(s.sh.events, QpEvents::empty(), "once");
    assert_eq!(s.out(), []);
}

// clause: STATE-RESET
#[test]
fn reset_forgets_receives_and_messages() {
    let mut s = rc();
    s.receive(1, &[s.mr.all()]);
    assert_eq!(s.deliver(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    s.responder.on_reset();
    assert_eq!((s.out(), s.done()), (vec![], vec![]));
    s.responder.on_rtr(&s.sh);
    assert_eq!(s.deliver(FIRST, SEND, b""), Err(DropReason::NoReceive), "the open message is dropped as well");
    assert_eq!(s.out(), [rnr_nak(FIRST, 0)]);
}
