//! ATOMIC WRITE and FLUSH: executed once, answered with an empty READ response.

use super::*;

const GLOBAL: Feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };

/// Returns a script like [`rc`] whose peer may also FLUSH, and the region.
fn flushable(rights: Access) -> (Script, Reth) {
    let mut s = rc();
    s.sh.attr.access |= Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let mr = s.host.memory.register(64, rights);
    (s, Reth { va: mr.addr, rkey: mr.rkey(), dma_len: 64 })
}

fn answer(psn: u32, msn: u32) -> Out {
    (psn, Response::ReadOnly(ack_aeth(msn)), vec![])
}

// clause: NONPOSTED-ANSWER, ATOMIC-WRITE-WHOLE, DUP-NONPOSTED
#[test]
fn atomic_write_is_stored_once_and_always_answered() {
    let mut s = rc();
    let write = Request::AtomicWrite(s.reth(16, 8));
    assert_eq!(s.deliver_no_ackreq(FIRST, write, b"8 bytes."), Ok(()));
    assert_eq!(s.out(), [answer(FIRST, 1)]);
    assert_eq!((s.bytes(16, 8), s.done()), (b"8 bytes.".to_vec(), vec![]));
    assert_eq!(s.deliver(FIRST, write, b"another."), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [answer(FIRST, 1)]);
    assert_eq!(s.bytes(16, 8), b"8 bytes.");
}

// clause: DUP-NONPOSTED, DUP-RING
#[test]
fn duplicate_of_another_kind_or_unknown_one_is_dropped() {
    let (mut s, reth) = flushable(Access::FLUSH_GLOBAL);
    let (write, flush) = (Request::AtomicWrite(s.reth(0, 8)), Request::Flush(GLOBAL, reth));
    for (psn, req) in (FIRST..).zip([write, write, flush]) {
        assert_eq!(s.deliver(psn, req, &[1; 8][..if req == write { 8 } else { 0 }]), Ok(()));
        s.out();
    }
    assert_eq!(s.host.memory.flushes, 1);
    for (psn, req) in [(FIRST, write), (FIRST + 1, flush), (FIRST + 1, Request::FetchAdd(s.eth(0))), (FIRST + 2, write)]
    {
        assert_eq!(s.deliver(psn, req, &[2; 8]), Err(DropReason::DuplicateRequest));
        assert_eq!(s.out(), [], "{req:?}");
    }
    assert_eq!(s.deliver(FIRST + 2, flush, b""), Err(DropReason::DuplicateRequest));
    assert_eq!(s.out(), [answer(FIRST + 2, 3)]);
    assert_eq!((s.host.memory.flushes, s.bytes(0, 8)), (1, vec![1; 8]), "neither executes again");
}

// clause: NONPOSTED-PLACE
#[test]
fn atomic_write_and_flush_count_against_max_dest_rd_atomic() {
    for too_many in [Request::AtomicWrite(rc().reth(0, 8)), Request::Flush(GLOBAL, rc().reth(0, 8))] {
        let (mut s, reth) = flushable(Access::FLUSH_GLOBAL);
        assert_eq!(s.deliver(FIRST, Request::AtomicWrite(s.reth(0, 8)), &[1; 8]), Ok(()));
        assert_eq!(s.deliver(FIRST + 1, Request::Flush(GLOBAL, reth), b""), Ok(()));
        let payload = if matches!(too_many, Request::Flush(..)) { &b""[..] } else { b"no room." };
        assert_eq!(s.deliver(FIRST + 2, too_many, payload), Err(DropReason::InvalidRequest));
        let expected = [answer(FIRST, 2), answer(FIRST + 1, 2), nak(FIRST + 2, NakCode::InvalidRequest, 2)];
        assert_eq!(s.out(), expected, "{too_many:?}");
    }
}

// clause: ACK-BEFORE-READ
#[test]
fn due_ack_leaves_before_nonposted_response() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::WriteOnly(s.reth(0, 2), None), b"hi"), Ok(()));
    assert_eq!(s.deliver(FIRST + 1, Request::AtomicWrite(s.reth(8, 8)), b"8 bytes."), Ok(()));
    assert_eq!(s.out(), [ack(FIRST, 2), answer(FIRST + 1, 2)]);
}

// clause: FLUSH-RANGE, FLUSH-RIGHTS
#[test]
fn flush_needs_a_key_for_its_whole_range() {
    let (_, good) = flushable(Access::FLUSH_GLOBAL);
    let whole = Feth { selectivity: Selectivity::Region, ..GLOBAL };
    let persistent = Feth { placement: Placement::PERSISTENCE, ..GLOBAL };
    let both = Feth { placement: Placement::BOTH, ..GLOBAL };
    let ends = |va, dma_len| Reth { va, dma_len, ..good };
    let (end, far) = (good.va + 64, good.va + (1 << 40));
    for (feth, reth) in [(GLOBAL, good), (GLOBAL, ends(end, 0)), (whole, ends(far, 0)), (whole, ends(far, 99))] {
        let (mut s, _) = flushable(Access::FLUSH_GLOBAL);
        assert_eq!(s.deliver(FIRST, Request::Flush(feth, reth), b""), Ok(()), "{feth:?} {reth:?}");
        assert_eq!((s.out(), s.host.memory.flushes), (vec![answer(FIRST, 1)], 1));
    }
    let bad_key = Reth { rkey: RKey(good.rkey.0 ^ 1), dma_len: 0, ..good };
    let refused = [(GLOBAL, ends(good.va, 65)), (GLOBAL, ends(end + 1, 0)), (GLOBAL, bad_key), (whole, bad_key)];
    for (feth, reth) in refused.into_iter().chain([(persistent, good), (both, good)]) {
        let (mut s, _) = flushable(Access::FLUSH_GLOBAL);
        assert_eq!(
            s.deliver(FIRST, Request::Flush(feth, reth), b""),
            Err(DropReason::RemoteAccess),
            "{feth:?} {reth:?}"
        );
        assert_eq!((s.out(), s.host.memory.flushes), (vec![nak(FIRST, NakCode::RemoteAccess, 0)], 0));
    }
    let (mut s, reth) = flushable(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
    assert_eq!(s.deliver(FIRST, Request::Flush(both, reth), b""), Ok(()), "the host supports both");
}

// clause: FLUSH-RESERVED
#[test]
fn flush_with_reserved_fields_is_invalid_request() {
    let feth = |selectivity, placement| Feth { selectivity, placement: Placement(placement) };
    let reserved = [
        feth(Selectivity::Range, 0),
        feth(Selectivity::Range, 4),
        feth(Selectivity::Region, 5),
        feth(Selectivity::Reserved(2), 1),
        feth(Selectivity::Reserved(3), 2),
    ];
    for feth in reserved {
        let (mut s, reth) = flushable(Access::FLUSH_GLOBAL);
        assert_eq!(s.deliver(FIRST, Request::Flush(feth, reth), b""), Err(DropReason::InvalidRequest), "{feth:?}");
        assert_eq!(s.out(), [nak(FIRST, NakCode::InvalidRequest, 0)]);
    }
}
