//! Joined packets have the same effect as single packets, or none.

use super::*;

const COUNT: usize = 5;

/// Returns a message of `total` bytes whose first packet has arrived.
fn begun(req: fn(&Script, u32) -> Request, total: u32) -> Script {
    let mut s = rc();
    let sge = s.mr.sge(32 << 10, total);
    s.receive(1, &[sge]);
    let first = req(&s, total);
    assert_eq!(s.deliver_no_ackreq(FIRST, first, &[1; MTU]), Ok(()));
    s
}

fn write(s: &Script, total: u32) -> Request {
    Request::WriteFirst(s.reth(32 << 10, total))
}

fn send(_: &Script, _: u32) -> Request {
    Request::SendFirst
}

fn payload() -> Vec<u8> {
    (0..=255).cycle().step_by(7).take(COUNT * MTU).collect()
}

fn join(s: &mut Script, psn: u32, req: &Request, payload: &[u8], ack_req: bool) -> bool {
    let bth = Bth { ack_req, ..Bth::new(Qpn::new(2), Psn::new(psn)) };
    let handled =
        s.responder.handle_joined(&mut s.sh, &mut s.host, Incoming { bth: &bth, req, payload: payload.into() });
    s.settle();
    handled
}

/// Delivers the last packet of the message. Returns the expected PSN, all responses, the memory and
/// the state.
fn finish_message(mut s: Script) -> (Psn, Vec<Out>, Vec<u8>, QpState) {
    let last = [9; MTU];
    let (write, send) = (Request::WriteLast(None), Request::SendLast(SendTail::Plain));
    let last = if matches!(s.responder.open, OpenMessage::Write(_)) { (write, &last) } else { (send, &last) };
    let psn = s.responder.progress.e_psn;
    let mut out = s.out();
    let _ = s.deliver(psn.get(), last.0, last.1);
    out.extend(s.out());
    (s.responder.progress.e_psn, out, s.bytes(0, 1 << 16), s.sh.state)
}

#[test]
fn joined_packets_act_as_single_packets() {
    for (first, middle) in [(write as fn(&Script, u32) -> Request, Request::WriteMiddle), (send, Request::SendMiddle)] {
        for ack_req in [false, true] {
            let total = ((COUNT + 2) * MTU) as u32;
            let (mut at_once, mut single) = (begun(first, total), begun(first, total));
            assert!(join(&mut at_once, FIRST + 1, &middle, &payload(), ack_req));
            for (psn, part) in (FIRST + 1..).zip(payload().chunks(MTU)) {
                let asks = ack_req && psn == FIRST + 1;
                let result =
                    if asks { single.deliver(psn, middle, part) } else { single.deliver_no_ackreq(psn, middle, part) };
                assert_eq!(result, Ok(()));
            }
            let (at_once, single) = (finish_message(at_once), finish_message(single));
            assert_eq!(at_once, single, "{middle:?}");
            assert_eq!(at_once.0, Psn::new(FIRST + 2 + COUNT as u32));
        }
    }
}

#[test]
fn joined_packets_that_need_checks_have_no_effect() {
    let total = ((COUNT + 2) * MTU) as u32;
    let before = || begun(write, total);
    let (write_middle, all) = (Request::WriteMiddle, payload());
    let stale = {
        let mut s = before();
        s.host.memory.deregister(s.mr);
        s
    };
    let closed = {
        let mut s = before();
        s.sh.attr.access = Access::REMOTE_READ;
        s
    };
    for (name, mut s, psn, req, payload) in [
        ("a duplicate", before(), FIRST, write_middle, &all[..]),
        ("partly a duplicate", before(), FIRST - 1, write_middle, &all),
        ("after a gap", before(), FIRST + 2, write_middle, &all),
        ("of another message", before(), FIRST + 1, Request::SendMiddle, &all),
        ("the end", before(), FIRST + 1, Request::WriteLast(None), &all),
        ("longer than the message", begun(write, (COUNT * MTU) as u32), FIRST + 1, write_middle, &all),
        ("longer than the receive", begun(send, (COUNT * MTU) as u32), FIRST + 1, Request::SendMiddle, &all),
        ("no whole packets", before(), FIRST + 1, write_middle, &all[1..]),
        ("unmapped memory", stale, FIRST + 1, write_middle, &all),
        ("a revoked right", closed, FIRST + 1, write_middle, &all),
    ] {
        let bytes = s.bytes(0, 1 << 16);
        assert!(!join(&mut s, psn, &req, payload, true), "{name}");
        assert_eq!((s.responder.progress.e_psn, s.sh.state), (Psn::new(FIRST + 1), QpState::Rts), "{name}");
        assert!(s.out().is_empty() && s.bytes(0, 1 << 16) == bytes, "{name}");
    }
}

#[test]
fn joined_packets_close_a_gap() {
    let mut s = begun(write, ((COUNT + 2) * MTU) as u32);
    assert_eq!(s.deliver(FIRST + 3, Request::WriteMiddle, &[0; MTU]), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [nak(FIRST + 1, NakCode::PsnSequence, 0)]);
    assert!(join(&mut s, FIRST + 1, &Request::WriteMiddle, &payload(), false));
    assert_eq!(s.deliver(FIRST + 20, Request::WriteMiddle, &[0; MTU]), Err(DropReason::OutOfSequence));
    assert_eq!(s.out(), [nak(FIRST + 1 + COUNT as u32, NakCode::PsnSequence, 0)], "the next gap is reported");
}
