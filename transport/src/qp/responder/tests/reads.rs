//! READs: responses in order, for duplicates, for a part of the READ, and none for refused ones.

use super::*;

fn data(s: &Script, offset: usize, psn: u32, lens: &[usize], msn: u32) -> Vec<Out> {
    let (last, mut at) = (lens.len() - 1, offset);
    let packet = |(i, len): (usize, &usize)| {
        let response = match (i == 0, i == last) {
            (true, true) => Response::ReadOnly(ack_aeth(msn)),
            (true, false) => Response::ReadFirst(ack_aeth(msn)),
            (false, true) => Response::ReadLast(ack_aeth(msn)),
            (false, false) => Response::ReadMiddle,
        };
        at += len;
        (psn + i as u32, response, s.bytes(at - len, *len))
    };
    lens.iter().enumerate().map(packet).collect()
}

// clause: PSN-SPAN, ACK-FIELDS, READ-RESPONSES
#[test]
fn read_of_any_length_is_answered() {
    for lens in [&[0][..], &[1], &[256], &[256, 1], &[256, 256], &[256, 256, 256, 7]] {
        let mut s = rc();
        let len: usize = lens.iter().sum();
        assert_eq!(s.deliver(FIRST, Request::Read(s.reth(16, len as u32)), b""), Ok(()));
        assert_eq!(s.out(), data(&s, 16, FIRST, lens, 1));
        let next = FIRST + lens.len() as u32;
        assert_eq!(
            s.deliver(next, Request::WriteOnly(s.reth(0, 0), None), b""),
            Ok(()),
            "the READ occupies a PSN per packet"
        );
        assert_eq!(s.out(), [ack(next, 2)]);
    }
}

// clause: CHECK-KEY-EMPTY
#[test]
fn zero_length_reads_and_writes_need_no_key() {
    let mut s = rc();
    let nowhere = Reth { va: 1, rkey: RKey(1), dma_len: 0 };
    assert_eq!(s.deliver(FIRST, Request::Read(nowhere), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::WriteOnly(nowhere, None), b""), Ok(()));
    assert_eq!(s.out(), [(FIRST, Response::ReadOnly(ack_aeth(2)), vec![]), ack(FIRST + 1, 2)]);
    assert_eq!(s.deliver(FIRST, Request::Read(nowhere), b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [(FIRST, Response::ReadOnly(ack_aeth(2)), vec![])]);
}

// clause: ANSWER-ORDER
#[test]
fn responses_leave_in_request_order() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::WriteOnly(s.reth(0, 0), None), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::Read(s.reth(0, 300)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 3, Request::WriteOnly(s.reth(0, 0), None), b""), Ok(()));
    let read = data(&s, 0, FIRST + 1, &[256, 44], 3);
    assert_eq!(s.out(), [vec![ack(FIRST, 3)], read, vec![ack(FIRST + 3, 3)]].concat());
}

#[test]
fn read_response_continues_after_a_full_batch() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 700)), b""), Ok(()));
    let (mut got, state) = s.poll(2);
    assert_eq!((got.len(), state), (2, TxState::BatchFull));
    assert!(s.responder.has_work());
    got.extend(s.out());
    assert_eq!(got, data(&s, 0, FIRST, &[256, 256, 188], 1));
}

// clause: DUP-READ, MSN-COUNT, READ-RESPONSES
#[test]
fn duplicate_read_of_any_tail_is_answered() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 700)), b""), Ok(()));
    s.out();
    for (skip, lens) in [(2, &[188][..]), (1, &[256, 188]), (0, &[256, 256, 188])] {
        let (at, len) = (skip * 256, 700 - skip * 256);
        let dup = s.deliver(FIRST + skip, Request::Read(s.reth(at, len)), b"");
        assert_eq!(dup, Err(DropReason::DuplicateRequest));
        assert_eq!(s.out(), data(&s, at as usize, FIRST + skip, lens, 1), "the MSN stays");
    }
}

#[test]
fn duplicate_read_of_another_range_is_ignored() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 700)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 3, Request::WriteOnly(s.reth(0, 0), None), b""), Ok(()));
    s.out();
    let right = s.reth(256, 444);
    let wrong = [
        (FIRST + 1, Reth { va: right.va + 1, ..right }),
        (FIRST + 1, Reth { rkey: RKey(right.rkey.0 ^ 1), ..right }),
        (FIRST + 1, Reth { dma_len: 445, ..right }),
        (FIRST + 1, Reth { dma_len: 443, ..right }),
        (FIRST + 1, Reth { dma_len: 0, ..right }),
        (FIRST + 2, right),
        (FIRST + 3, right),
        (FIRST - 1, right),
    ];
    for (psn, reth) in wrong {
        assert_eq!(s.deliver(psn, Request::Read(reth), b""), Err(DropReason::DuplicateRequest));
        assert_eq!(s.out(), [], "{psn} {reth:?}");
    }
    assert_eq!(s.deliver(FIRST + 1, Request::Read(right), b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out().len(), 2, "the correct range is answered");
}

// clause: DUP-READ-SILENT
#[test]
fn duplicate_read_with_stale_key_is_ignored() {
    let mut s = rc();
    let read = Request::Read(s.reth(0, 300));
    assert_eq!(s.deliver(FIRST, read, b""), Ok(()));
    s.out();
    s.host.memory.deregister(s.mr);
    assert_eq!(s.deliver(FIRST, read, b""), Err(DropReason::DuplicateRequest));
    assert_eq!((s.out(), s.sh.state), (vec![], QpState::Rts));
}

// clause: NAK-OPCODE, READ-GONE
#[test]
fn unmapped_memory_naks_the_failing_read_response() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 700)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 3, Request::WriteOnly(s.reth(0, 0), None), b""), Ok(()));
    assert_eq!(s.poll(1).0.len(), 1);
    s.host.memory.deregister(s.mr);
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::RemoteAccess, 2)]);
    assert_eq!((s.sh.state, s.sh.events), (QpState::Err, QpEvents::ACCESS_ERR));
    assert_eq!(s.out(), []);
}

// clause: DUP-READ-SILENT
#[test]
fn unmapped_memory_ends_a_replay_silently() {
    let mut s = rc();
    let read = Request::Read(s.reth(0, 700));
    assert_eq!(s.deliver(FIRST, read, b""), Ok(()));
    s.out();
    assert_eq!(s.deliver(FIRST, read, b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.poll(1).0.len(), 1);
    s.host.memory.unmap(s.mr);
    assert_eq!((s.out(), s.sh.state), (vec![], QpState::Rts));
}

// clause: CHECK-RD-ATOMIC
#[test]
fn max_dest_rd_atomic_limits_outstanding_requests() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 1)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::FetchAdd(s.eth(0)), b""), Ok(()));
    assert_eq!(s.poll(1).0.len(), 1);
    assert_eq!(s.deliver(FIRST + 2, Request::Read(s.reth(0, 1)), b""), Ok(()), "one is answered");
    assert_eq!(s.deliver(FIRST + 3, Request::Read(s.reth(0, 1)), b""), Err(DropReason::InvalidRequest));
    let psns: Vec<_> = s.out().into_iter().map(|(psn, ..)| psn).collect();
    assert_eq!(psns, [FIRST + 1, FIRST + 2, FIRST + 3], "the NAK after the responses before it");
    assert_eq!((s.sh.state, s.sh.events), (QpState::Err, QpEvents::REQ_ERR));
}
