//! Local operations: their order in the queue, their effect on keys, and their failures.

use super::*;
use roxe_transport::qp::Service;
use roxe_transport::wr::WcOpcode;
use roxe_transport::wr::WcStatus::{MwBindErr, RemAccessErr, Success, WrFlushErr};
use roxe_wire::{LKey, RKey};

/// Key whose index belongs to no region.
const WINDOW: RKey = RKey(0x00ff_0001);

fn bind_to(mr: Mr, access: Access) -> SendOp {
    SendOp::BindWindow { rkey: WINDOW, lkey: mr.all().lkey, access, addr: mr.addr + 8, length: 16 }
}

/// Returns a region of `side` that windows may open.
fn bindable(pair: &mut Pair, side: Peer) -> Mr {
    pair.end(side).host.memory.register(64, Access::LOCAL_WRITE | Access::MW_BIND)
}

fn window_write(addr: u64) -> SendOp {
    SendOp::Write { remote_addr: addr, rkey: WINDOW }
}

/// Returns the opcodes of the send completions of `side`.
fn opcodes(pair: &mut Pair, side: Peer) -> Vec<WcOpcode> {
    core::iter::from_fn(|| pair.send_done(side)).map(|cqe| cqe.opcode).collect()
}

// clause: WINDOW-BIND, INVALIDATE-LOCAL
#[test]
fn window_is_usable_from_bind_to_invalidate() {
    let mut p = Pair::new(Setup::default());
    let (src, mr) = (filled(&mut p, A, 16), bindable(&mut p, B));
    post(&mut p, B, 1, bind_to(mr, Access::REMOTE_WRITE), &[]);
    p.run();
    post(&mut p, A, 1, window_write(mr.addr + 8), &[src.all()]);
    p.run();
    post(&mut p, B, 2, SendOp::LocalInvalidate(WINDOW), &[]);
    p.run();
    post(&mut p, A, 2, window_write(mr.addr + 8), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, Success), (2, RemAccessErr)]);
    assert_eq!(opcodes(&mut p, B), [WcOpcode::BindWindow, WcOpcode::LocalInvalidate]);
    assert_eq!(bytes(&p, B, mr)[8..24], bytes(&p, A, src));
    assert_eq!(sent(&p, B).iter().filter(|(kind, _)| matches!(kind, Kind::RcRequest(_))).count(), 0);
}

// clause: SEND-LOCAL-ORDER, PSN-LOCAL
#[test]
fn local_operation_runs_in_order() {
    let mut p = Pair::new(Setup::default());
    let (src, dst, mr) = (filled(&mut p, A, 600), blank(&mut p, B, 600), bindable(&mut p, A));
    post(&mut p, A, 1, bind_to(mr, Access::REMOTE_READ), &[]);
    post(&mut p, A, 2, write_to(dst), &[src.all()]);
    post(&mut p, A, 3, SendOp::LocalInvalidate(WINDOW), &[]);
    post(&mut p, A, 4, write_to(dst), &[src.sge(0, 8)]);
    p.transmit(A);
    assert_eq!(sends(&mut p, A), [(1, Success)], "it is the first request");
    let psns = |p: &Pair| sent(p, A).into_iter().map(|(_, psn)| psn).collect::<Vec<_>>();
    assert_eq!(psns(&p), [100, 101, 102], "the second WRITE waits for the invalidation");
    assert_eq!(p.end(A).host.memory.windows(), 1);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(2..=4, Success));
    assert_eq!((psns(&p), p.end(A).host.memory.windows()), (vec![100, 101, 102, 103], 0));
    p.assert_settled();
}

// clause: SEND-LOCAL-ORDER
#[test]
fn retry_does_not_run_a_local_operation_again() {
    for (from, nth) in (0..8).flat_map(|nth| [(A, nth), (B, nth)]) {
        let mut p = Pair::new(Setup::default());
        let (src, dst, mr) = (filled(&mut p, A, 600), blank(&mut p, B, 600), bindable(&mut p, A));
        p.wire.set_script(from, Box::new(move |n, _| (n == nth).then_some(LOST)));
        for wr_id in [1, 4] {
            post(&mut p, A, wr_id, write_to(dst), &[src.all()]);
            // A second binding or a second invalidation would fail.
            post(&mut p, A, wr_id + 1, bind_to(mr, Access::REMOTE_READ), &[]);
            post(&mut p, A, wr_id + 2, SendOp::LocalInvalidate(WINDOW), &[]);
        }
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=6, Success), "packet {nth} of {from:?} lost");
        p.assert_settled();
    }
}

// clause: INVALIDATE-LOCAL, WINDOW-BIND
#[test]
fn failed_local_operation_is_a_memory_management_error() {
    for op in [
        SendOp::LocalInvalidate(WINDOW),
        SendOp::BindWindow { rkey: WINDOW, lkey: LKey(7), access: Access::empty(), addr: 0, length: 1 },
    ] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
        post(&mut p, A, 1, write_to(dst), &[src.all()]);
        post_with(&mut p, A, 2, op, SendFlags::empty(), &[]);
        post(&mut p, A, 3, write_to(dst), &[src.sge(0, 1)]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, Success), (2, MwBindErr), (3, WrFlushErr)]);
        assert_eq!(p.end(A).qp.state(), QpState::Err);
    }
}

// clause: SEND-OPERATIONS
#[test]
fn uc_has_windows_and_ud_has_none() {
    let mut p = Pair::new(Setup::of(Service::Uc));
    let (src, dst, mr) = (filled(&mut p, A, 600), blank(&mut p, B, 600), bindable(&mut p, A));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    post(&mut p, A, 2, bind_to(mr, Access::REMOTE_WRITE), &[]);
    post(&mut p, A, 3, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, Success));
    assert_eq!((p.end(A).host.memory.windows(), sent(&p, A).len()), (1, 6));
    post(&mut p, A, 4, SendOp::LocalInvalidate(RKey(3)), &[]);
    p.run();
    assert_eq!((sends(&mut p, A), p.end(A).qp.state()), (statuses(4..=4, MwBindErr), QpState::Sqe));

    let mut p = Pair::new(Setup::of(Service::Ud));
    let mr = bindable(&mut p, A);
    for op in [SendOp::LocalInvalidate(WINDOW), bind_to(mr, Access::empty())] {
        assert_eq!(try_post(&mut p, A, 1, op, SendFlags::SIGNALED, &[]), Err(PostError::BadOpcode));
    }
}
