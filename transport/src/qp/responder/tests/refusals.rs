//! Every refusal and its consequences.

use super::*;

struct Case {
    name: &'static str,
    req: Request,
    payload: usize,
    code: NakCode,
    /// Status of the receive in use; `None` if the event is raised instead.
    status: Option<WcStatus>,
    event: QpEvents,
}

fn invalid(name: &'static str, req: Request, payload: usize) -> Case {
    let (code, event) = (NakCode::InvalidRequest, QpEvents::REQ_ERR);
    Case { name, req, payload, code, status: None, event }
}

fn no_access(name: &'static str, req: Request, payload: usize) -> Case {
    Case { code: NakCode::RemoteAccess, event: QpEvents::ACCESS_ERR, ..invalid(name, req, payload) }
}

fn ends(status: WcStatus, case: Case) -> Case {
    Case { status: Some(status), event: QpEvents::empty(), ..case }
}

fn cases(s: &Script) -> Vec<Case> {
    let (imm, plain) = (Some(ImmDt([0; 4])), SendTail::Plain);
    let bad_key = |reth: Reth| Reth { rkey: RKey(reth.rkey.0 ^ 1), ..reth };
    let outside = Reth { va: s.mr.addr + 65536 - 7, ..s.reth(0, 8) };
    let wraps = Reth { va: u64::MAX - 3, ..s.reth(0, 8) };
    let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
    let inv = WcStatus::RemInvReqErr;
    vec![
        invalid("SEND middle of nothing", Request::SendMiddle, MTU),
        invalid("SEND last of nothing", Request::SendLast(plain), 1),
        invalid("WRITE middle of nothing", Request::WriteMiddle, MTU),
        invalid("WRITE last of nothing", Request::WriteLast(None), 1),
        invalid("FLUSH that the QP does not allow", Request::Flush(feth, s.reth(0, 8)), 0),
        invalid("ATOMIC WRITE that says it has 4 bytes", Request::AtomicWrite(s.reth(0, 4)), 8),
        invalid("ATOMIC WRITE that has 4 bytes", Request::AtomicWrite(s.reth(0, 4)), 4),
        invalid("misaligned ATOMIC WRITE", Request::AtomicWrite(s.reth(4, 8)), 8),
        ends(inv, invalid("SEND first too short", Request::SendFirst, MTU - 1)),
        ends(inv, invalid("SEND first too long", Request::SendFirst, MTU + 1)),
        ends(inv, invalid("SEND only too long", Request::SendOnly(plain), MTU + 1)),
        invalid("WRITE first too short", Request::WriteFirst(s.reth(0, 1024)), MTU - 1),
        invalid("WRITE first of less than it carries", Request::WriteFirst(s.reth(0, 255)), MTU),
        invalid("WRITE only too long", Request::WriteOnly(s.reth(0, 257), None), MTU + 1),
        invalid("WRITE only of more than it carries", Request::WriteOnly(s.reth(0, 2), None), 1),
        ends(
            inv,
            invalid("WRITE only of more than it carries, with a receive", Request::WriteOnly(s.reth(0, 2), imm), 1),
        ),
        invalid("WRITE of more than 2^31", Request::WriteFirst(s.reth(0, MAX_MESSAGE + 1)), MTU),
        invalid("READ of more than 2^31", Request::Read(s.reth(0, MAX_MESSAGE + 1)), 0),
        invalid("READ with a payload", Request::Read(s.reth(0, 1)), 4),
        invalid("atomic with a payload", Request::FetchAdd(s.eth(0)), 4),
        invalid("misaligned atomic", Request::CompareSwap(s.eth(4)), 0),
        no_access("WRITE of 2^31 that has no such memory", Request::WriteFirst(s.reth(0, MAX_MESSAGE)), MTU),
        no_access("READ of 2^31 that has no such memory", Request::Read(s.reth(0, MAX_MESSAGE)), 0),
        no_access("WRITE by a stale key", Request::WriteOnly(bad_key(s.reth(0, 8)), None), 8),
        ends(
            WcStatus::LocAccessErr,
            no_access("WRITE by a stale key, with a receive", Request::WriteOnly(bad_key(s.reth(0, 8)), imm), 8),
        ),
        no_access("WRITE over the end", Request::WriteOnly(outside, None), 8),
        no_access("READ over the end", Request::Read(outside), 0),
        no_access("READ over the end of all addresses", Request::Read(wraps), 0),
        no_access("atomic over the end", Request::FetchAdd(s.eth(65536)), 0),
        no_access("ATOMIC WRITE over the end", Request::AtomicWrite(s.reth(65536, 8)), 8),
        no_access("ATOMIC WRITE by a stale key", Request::AtomicWrite(bad_key(s.reth(0, 8))), 8),
    ]
}

// clause: CHECK-LENGTH, ATOMIC-WRITE-LENGTH, NAK-TABLE, NAK-OPCODE
// clause: EVENT-AFFILIATED, STATUS-WRITE-IMM
#[test]
fn every_refusal_is_nakked_reported_and_fatal() {
    for i in 0..cases(&rc()).len() {
        let mut s = rc();
        let case = cases(&s).swap_remove(i);
        s.receive(1, &[s.mr.all()]);
        s.receive(2, &[]);
        assert!(s.deliver(FIRST, case.req, &vec![0xff; case.payload]).is_err(), "{}", case.name);
        assert_eq!((s.sh.state, s.sh.events), (QpState::Err, case.event), "{}", case.name);
        let first = case.status.unwrap_or(WcStatus::WrFlushErr);
        assert_eq!(s.done(), [(1, first, 0), (2, WcStatus::WrFlushErr, 0)], "{}", case.name);
        assert_eq!(s.out(), [nak(FIRST, case.code, 0)], "{}", case.name);
        assert!(!s.bytes(0, 1 << 16).contains(&0xff), "{}: nothing is written", case.name);
    }
}

// clause: CHECK-ORDER, CHECK-ACCESS-FLAGS, FLUSH-RIGHTS
#[test]
fn qp_access_flags_are_checked_before_the_key() {
    let (w, r, a, f) = (Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::FLUSH_GLOBAL);
    let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
    for (missing, req) in [
        (w, Request::WriteOnly(rc().reth(0, 0), None)),
        (w, Request::WriteFirst(rc().reth(0, 512))),
        (r, Request::Read(rc().reth(0, 8))),
        (a, Request::FetchAdd(rc().eth(0))),
        (a, Request::CompareSwap(rc().eth(0))),
        (w, Request::AtomicWrite(rc().reth(0, 8))),
        (f, Request::Flush(feth, rc().reth(0, 0))),
    ] {
        let mut s = rc();
        s.sh.attr.access = (w | r | a | f).difference(missing);
        let payload = match req {
            Request::WriteFirst(_) => vec![0; MTU],
            Request::AtomicWrite(_) => vec![0; 8],
            _ => vec![],
        };
        assert_eq!(s.deliver(FIRST, req, &payload), Err(DropReason::InvalidRequest));
        assert_eq!(s.out(), [nak(FIRST, NakCode::InvalidRequest, 0)], "{req:?}");
        let mut s = rc();
        s.sh.attr.access = missing;
        // The region grants everything but FLUSH, so a FLUSH fails one step later.
        let result = if missing == f { Err(DropReason::RemoteAccess) } else { Ok(()) };
        assert_eq!(s.deliver(FIRST, req, &payload), result, "{req:?}");
    }
}

// clause: CHECK-SEQUENCE, EVENT-AFFILIATED
#[test]
fn interleaved_messages_are_refused() {
    for open in [Request::SendFirst, Request::WriteFirst(rc().reth(0, 512))] {
        for next in [SEND, Request::WriteOnly(rc().reth(0, 0), None), Request::Read(rc().reth(0, 0)), open] {
            let mut s = rc();
            s.receive(1, &[s.mr.all()]);
            assert_eq!(s.deliver_no_ackreq(FIRST, open, &[0; MTU]), Ok(()));
            assert_eq!(s.deliver(FIRST + 1, next, b""), Err(DropReason::InvalidRequest));
            assert_eq!(s.out(), [nak(FIRST + 1, NakCode::InvalidRequest, 0)], "{open:?} {next:?}");
            let (status, event) = match open {
                Request::SendFirst => (WcStatus::RemInvReqErr, QpEvents::empty()),
                _ => (WcStatus::WrFlushErr, QpEvents::REQ_ERR),
            };
            assert_eq!((s.done(), s.sh.events), (vec![(1, status, 0)], event));
        }
    }
}

// clause: CHECK-DMA-LENGTH
#[test]
fn write_must_have_its_announced_length() {
    let last = |len: usize| {
        let mut s = rc();
        assert_eq!(s.deliver_no_ackreq(FIRST, Request::WriteFirst(s.reth(0, 300)), &[1; MTU]), Ok(()));
        s.deliver(FIRST + 1, Request::WriteLast(None), &vec![2; len])
    };
    assert_eq!(
        (last(43), last(44), last(45)),
        (Err(DropReason::InvalidRequest), Ok(()), Err(DropReason::InvalidRequest))
    );
}

// clause: CHECK-KEY-AGAIN
#[test]
fn key_is_checked_again_for_every_packet_of_a_write() {
    let mut s = rc();
    assert_eq!(s.deliver_no_ackreq(FIRST, Request::WriteFirst(s.reth(0, 300)), &[1; MTU]), Ok(()));
    s.host.memory.deregister(s.mr);
    assert_eq!(s.deliver(FIRST + 1, Request::WriteLast(None), &[2; 44]), Err(DropReason::RemoteAccess));
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::RemoteAccess, 0)]);
}

// clause: NAK-OWN-FAULT
#[test]
fn local_memory_fault_is_remote_operation_error() {
    let mut s = rc();
    let readonly = s.host.memory.register(8, Access::empty());
    s.receive(1, &[readonly.all()]);
    assert_eq!(s.deliver(FIRST, SEND, b"hi"), Err(DropReason::LocalProtection));
    assert_eq!(s.out(), [nak(FIRST, NakCode::RemoteOperation, 0)]);
    assert_eq!(s.done(), [(1, WcStatus::LocProtErr, 0)]);
    let mut s = rc();
    s.host.memory.unmap(s.mr);
    assert_eq!(s.deliver(FIRST, Request::FetchAdd(s.eth(0)), b""), Err(DropReason::LocalProtection));
    assert_eq!(s.out(), [nak(FIRST, NakCode::RemoteOperation, 0)]);
}

// clause: INVALIDATE-REFUSED
#[test]
fn send_with_bad_invalidate_key_is_refused() {
    let mut s = rc();
    s.receive(1, &[s.mr.sge(0, 8)]);
    let tail = SendTail::Invalidate(Ieth(RKey(0xbad)));
    assert_eq!(s.deliver(FIRST, Request::SendOnly(tail), b"hi"), Err(DropReason::RemoteAccess));
    assert_eq!(s.out(), [nak(FIRST, NakCode::RemoteAccess, 0)]);
    assert_eq!((s.done(), s.bytes(0, 2)), (vec![(1, WcStatus::RemInvReqErr, 0)], b"hi".to_vec()));
}

// clause: NAK-FATAL
#[test]
fn responses_before_a_refusal_are_sent() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 300)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 2, Request::SendMiddle, &[0; MTU]), Err(DropReason::InvalidRequest));
    let psns: Vec<_> = s.out().into_iter().map(|(psn, ..)| psn).collect();
    assert_eq!(psns, [FIRST, FIRST + 1, FIRST + 2]);
}

#[test]
fn local_error_state_sends_no_nak() {
    let mut s = rc();
    assert_eq!(s.deliver(FIRST, Request::Read(s.reth(0, 300)), b""), Ok(()));
    assert_eq!(s.deliver(FIRST + 3, SEND, b""), Err(DropReason::OutOfSequence));
    s.sh.fail();
    s.settle();
    assert_eq!(s.out(), []);
}

#[test]
fn vendor_err_is_the_refusal_number() {
    let mut s = rc();
    s.receive(1, &[]);
    assert_eq!(s.deliver(FIRST, SEND, b"hi"), Err(DropReason::InvalidRequest));
    let codes: Vec<_> = s.host.recvs.iter().map(|cqe| cqe.vendor_err).collect();
    assert_eq!(codes, [VendorErr(Refusal::ReceiveTooShort as u32)]);
}
