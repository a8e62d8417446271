//! Duplicate requests.

use super::*;

// clause: DUP-SEND-WRITE
#[test]
fn duplicate_send_is_acked_without_a_receive() {
    let mut s = rc();
    s.receive(1, &[s.mr.sge(0, 8)]);
    s.receive(2, &[s.mr.sge(8, 8)]);
    assert_eq!(s.deliver(FIRST, SEND, b"one"), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::WriteOnly(s.reth(32, 3), None), b"two"), Ok(()));
    s.out();
    assert_eq!(s.deliver_no_ackreq(FIRST, SEND, b"won"), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [ack(FIRST + 1, 2)], "the newest PSN, with or without AckReq");
    assert_eq!(
        s.deliver(FIRST + 1, Request::WriteOnly(s.reth(32, 3), None), b"TWO"),
        Err(DropReason::DuplicateRequest)
    );
    assert_eq!(s.out(), [ack(FIRST + 1, 2)]);
    assert_eq!((s.bytes(0, 3), s.bytes(32, 3)), (b"one".to_vec(), b"two".to_vec()));
    assert_eq!(s.done().len(), 1);
}

// clause: DUP-ACK-BOUND
#[test]
fn duplicate_ack_stops_before_a_read() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 0), None);
    let read = Request::Read(s.reth(0, 1));
    assert_eq!(s.deliver(FIRST, write, b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, write, b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, read, b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 3, write, b""), Ok(()));
    s.out();
    assert_eq!(s.deliver(FIRST, write, b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [ack(FIRST + 1, 4)]);
    assert_eq!(s.deliver(FIRST + 3, write, b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [ack(FIRST + 3, 4)]);
}

// clause: DUP-ORDER
#[test]
fn duplicates_are_answered_in_order() {
    let mut s = rc();
    let write = Request::WriteOnly(s.reth(0, 0), None);
    let reads = [s.reth(0, 300), s.reth(300, 1)].map(Request::Read);
    let requests = [(FIRST, reads[0]), (FIRST + 2, write), (FIRST + 3, reads[1]), (FIRST + 4, write)];
    for (psn, req) in requests {
        assert_eq!(s.deliver(psn, req, b""), Ok(()));
    }
    let first_time = s.out();
    for (psn, req) in requests {
        assert_eq!(s.deliver(psn, req, b""), Err(DropReason::DuplicateRequest));
    }
    let replayed = s.out();
    let psns = |out: &[Out]| out.iter().map(|(psn, ..)| *psn).collect::<Vec<_>>();
    assert_eq!(psns(&first_time), [FIRST, FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 4]);
    assert_eq!(replayed, first_time);
}
