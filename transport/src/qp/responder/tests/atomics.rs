//! Atomics execute once.

use super::*;

fn answer(psn: u32, original: u64, msn: u32) -> Out {
    (psn, Response::AtomicAck(ack_aeth(msn), AtomicAckEth(original)), vec![])
}

// clause: DUP-ATOMIC
#[test]
fn duplicate_atomic_executes_once() {
    let mut s = rc();
    s.host.memory.bytes_mut(s.mr)[..8].copy_from_slice(&41u64.to_ne_bytes());
    let add = Request::FetchAdd(s.eth(0));
    assert_eq!(s.deliver(FIRST, add, b""), Ok(()));
    assert_eq!(s.out(), [answer(FIRST, 41, 1)]);
    for _ in 0..2 {
        assert_eq!(s.deliver(FIRST, add, b""), Err(DropReason::DuplicateRequest));
        assert_eq!(s.out(), [answer(FIRST, 41, 1)]);
    }
    assert_eq!(s.host.memory.word(s.mr, 0), 42);
}

// clause: ATOMIC-RESULT
#[test]
fn compare_and_swap_stores_only_if_the_word_is_equal() {
    let mut s = rc();
    s.host.memory.bytes_mut(s.mr)[..8].copy_from_slice(&5u64.to_ne_bytes());
    let cas = |s: &Script, compare, swap_or_add| Request::CompareSwap(AtomicEth { compare, swap_or_add, ..s.eth(0) });
    assert_eq!(s.deliver(FIRST, cas(&s, 4, 9), b""), Ok(()));
    assert_eq!(s.out(), [answer(FIRST, 5, 1)]);
    assert_eq!(s.deliver(FIRST + 1, cas(&s, 5, 9), b""), Ok(()));
    assert_eq!(s.out(), [answer(FIRST + 1, 5, 2)]);
    assert_eq!(s.host.memory.word(s.mr, 0), 9);
}

// clause: DUP-ATOMIC, DUP-RING
#[test]
fn duplicate_of_another_kind_or_unknown_one_is_ignored() {
    let mut s = rc();
    for psn in FIRST..FIRST + 3 {
        assert_eq!(s.deliver(psn, Request::FetchAdd(s.eth(8)), b""), Ok(()));
        s.out();
    }
    let word = s.host.memory.word(s.mr, 8);
    let again = [
        (FIRST, Request::FetchAdd(s.eth(8))),
        (FIRST + 1, Request::CompareSwap(s.eth(8))),
        (FIRST + 1, Request::Read(s.reth(8, 8))),
        (FIRST + 1, Request::AtomicWrite(s.reth(8, 8))),
    ];
    for (psn, req) in again {
        assert_eq!(s.deliver(psn, req, b""), Err(DropReason::DuplicateRequest));
        assert_eq!(s.out(), [], "{req:?}");
    }
    assert_eq!(s.host.memory.word(s.mr, 8), word);
    assert_eq!(s.deliver(FIRST + 1, Request::FetchAdd(s.eth(8)), b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out().len(), 1, "the saved response is sent");
}
