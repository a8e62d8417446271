//! Expected PSNs, gaps and acknowledgements.

use super::*;

// clause: ACK-ASKED
#[test]
fn acks_coalesce() {
    let mut s = rc();
    let sge = s.mr.sge(0, 64);
    for psn in 0..3 {
        s.receive(psn, &[sge]);
        assert_eq!(s.deliver(FIRST + psn as u32, SEND, b"hi"), Ok(()));
    }
    assert_eq!(s.out(), [ack(FIRST + 2, 3)]);
    assert_eq!(s.done(), [0, 1, 2].map(|id| (id, WcStatus::Success, 2)));
}

// clause: ACK-ASKED
#[test]
fn ack_is_sent_only_on_request() {
    let mut s = rc();
    assert_eq!(s.deliver_no_ackreq(FIRST, Request::WriteOnly(s.reth(0, 2), None), b"hi"), Ok(()));
    assert_eq!(s.out(), []);
}

// clause: MSN-COUNT
#[test]
fn msn_is_constant_within_a_message() {
    let mut s = rc();
    s.receive(1, &[s.mr.all()]);
    assert_eq!(s.deliver(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.out(), [ack(FIRST, 0)]);
    assert_eq!(s.deliver(FIRST + 1, Request::SendLast(SendTail::Plain), &[2; 3]), Ok(()));
    assert_eq!(s.out(), [ack(FIRST + 1, 1)]);
    assert_eq!(s.bytes(0, MTU + 3), [[1; MTU].as_slice(), &[2; 3]].concat());
    assert_eq!(s.done(), [(1, WcStatus::Success, MTU as u32 + 3)]);
}

// clause: GAP-NAK
#[test]
fn gap_is_reported_once_until_it_is_closed() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST + 1, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [nak(FIRST, NakCode::PsnSequence, 0)]);
    assert_eq!(s.deliver(FIRST + 3, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), []);
    assert_eq!(s.deliver(FIRST, write, b"x"), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::PsnSequence, 1)], "the NAK acknowledges the requests before it");
}

// clause: GAP-NAK-AGAIN
#[test]
fn answered_duplicate_allows_the_next_gap_nak() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST, write, b"x"), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    s.out();
    assert_eq!(s.deliver(FIRST, write, b"x"), Err(DropReason::DuplicateRequest));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::PsnSequence, 1)]);
}

// clause: GAP-NAK
#[test]
fn unsent_nak_moves_to_the_next_gap() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST, write, b"x"), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.deliver_no_ackreq(FIRST + 1, write, b"x"), Ok(()));
    assert_eq!(s.out(), [nak(FIRST + 2, NakCode::PsnSequence, 2)], "the NAK acknowledges the requests before it");
}

#[test]
fn unsent_nak_is_withdrawn_when_all_gaps_close() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST, write, b"x"), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.deliver_no_ackreq(FIRST + 1, write, b"x"), Ok(()));
    assert_eq!(s.deliver_no_ackreq(FIRST + 2, write, b"x"), Ok(()));
    assert_eq!(s.out(), [ack(FIRST + 2, 3)], "the AckReq of the first request is still due");
}

// clause: GAP-AFTER-RNR
#[test]
fn unsent_rnr_nak_becomes_a_sequence_nak() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, SEND, b"x"), Err(DropReason::NoReceive));
    assert_eq!(s.deliver(FIRST + 1, SEND, b"x"), Err(DropReason::OutOfSequence));
    s.receive(7, &[s.mr.sge(0, 2)]);
    assert_eq!(s.deliver(FIRST, SEND, b"x"), Ok(()));
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::PsnSequence, 1)]);
}

// clause: PSN-WINDOW
#[test]
fn psn_space_is_half_past_half_future() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST + 0x7f_ffff, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(s.deliver(FIRST + 0x80_0000, write, b"x"), Err(DropReason::DuplicateRequest));
}

// clause: EVENT-COMM-EST
#[test]
fn first_request_in_rtr_raises_comm_est_once() {
    let mut s = rc();
    s.sh.set_state(QpState::Rtr);
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver(FIRST + 1, write, b"x"), Err(DropReason::OutOfSequence));
    assert_eq!(core::mem::take(&mut s.sh.events), QpEvents::empty());
    assert_eq!(s.deliver(FIRST, write, b"x"), Ok(()));
    assert_eq!(core::mem::take(&mut s.sh.events), QpEvents::COMM_EST);
    assert_eq!(s.deliver(FIRST + 1, write, b"x"), Ok(()));
    assert_eq!(s.sh.events, QpEvents::empty());
    assert_eq!(s.out(), [ack(FIRST + 1, 2)], "a QP in RTR responds");
}

#[test]
fn request_in_rts_raises_no_comm_est() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::WriteOnly(s.reth(0, 1), None), b"x"), Ok(()));
    assert_eq!(s.sh.events, QpEvents::empty());
}
