//! Every invalid request: the exact status on the requester, on the receive, the event, and both
//! states.
//!
//! The rows are those of the responder error classes (IBA §9.9.3) and of the requester's statuses
//! (§9.9.2).

use super::*;
use roxe_transport::qp::QpEvents;
use roxe_transport::wr::WcStatus::*;
use roxe_wire::RKey;

/// Expected results of a refused request.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Status of the failing request at A.
    send: WcStatus,
    /// Status of the receive at B, if the failure consumes it.
    recv: WcStatus,
    /// Events at B.
    events: QpEvents,
}

/// Posts a valid WRITE, the request under test and another WRITE; a receive of 100 bytes is posted
/// at B.
fn run(p: &mut Pair, op: SendOp, sges: &[Sge]) -> Outcome {
    let (ok, landing) = (blank(p, B, 8), blank(p, B, 100));
    recv(p, B, 70, &[landing.all()]);
    recv(p, B, 71, &[landing.all()]);
    post(p, A, 1, write_to(ok), &[]);
    post_with(p, A, 2, op, SendFlags::empty(), sges);
    post_with(p, A, 3, write_to(ok), SendFlags::empty(), &[]);
    p.run();
    // Both queues are flushed to the last request, signaled or not, the failing one first (IBA
    // §10.8.5).
    let [(1, Success), (2, send), (3, WrFlushErr)] = sends(p, A)[..] else { panic!("{:?}", p.log) };
    let [(70, recv), (71, WrFlushErr)] = recvs(p, B)[..] else { panic!("receives not flushed") };
    assert_eq!([A, B].map(|side| p.end(side).qp.state()), [QpState::Err; 2]);
    assert_eq!([A, B].map(|side| p.end(side).host.flow.reserved), [0; 2]);
    Outcome { send, recv, events: p.ends[1].events - QpEvents::COMM_EST }
}

/// Returns the outcome of a failure that does not use the receive.
fn receive_flushed(send: WcStatus, events: QpEvents) -> Outcome {
    Outcome { send, recv: WrFlushErr, events }
}

/// Returns every operation on remote memory, at `remote_addr` with `rkey`.
fn remote_ops(remote_addr: u64, rkey: RKey) -> [SendOp; 4] {
    [
        SendOp::Write { remote_addr, rkey },
        SendOp::Read { remote_addr, rkey },
        SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
    ]
}

// clause: CHECK-KEY
#[test]
fn wrong_remote_key_is_a_remote_access_error() {
    for i in 0..4 {
        for key_change in [1, 0x80, 0x100, 0xff00_0000] {
            let mut p = Pair::new(Setup::default());
            let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
            let op = remote_ops(dst.addr, RKey(dst.key ^ key_change))[i];
            assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR), "{op:?}");
            assert_eq!(bytes(&p, B, dst), [0; 8]);
        }
    }
}

// clause: CHECK-KEY
#[test]
fn range_outside_the_region_is_a_remote_access_error() {
    for i in 0..4 {
        let offsets = [8, 16, 8u64.wrapping_neg(), 4096];
        for offset in offsets {
            let mut p = Pair::new(Setup::default());
            let (src, dst) = (filled(&mut p, A, 16), blank(&mut p, B, 16));
            let at = dst.addr.wrapping_add(offset);
            let op = remote_ops(at, dst.rkey())[i];
            // At offset 8 of 16 bytes the other operations exceed the end with their 16 bytes, but
            // an atomic fits.
            let atomic = i >= 2;
            if atomic && offset == 8 {
                continue;
            }
            let len = if atomic { 8 } else { 16 };
            assert_eq!(
                run(&mut p, op, &[src.sge(0, len)]),
                receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR),
                "{op:?}"
            );
            assert_eq!(bytes(&p, B, dst), [0; 16]);
        }
    }
}

// clause: CHECK-KEY-OVERFLOW
#[test]
fn address_that_overflows_is_a_remote_access_error() {
    for remote_addr in [u64::MAX, u64::MAX - 7, u64::MAX - 254] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 512), blank(&mut p, B, 8));
        let op = SendOp::Write { remote_addr, rkey: dst.rkey() };
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR));
    }
}

#[test]
fn last_byte_of_a_region_is_accessible_and_the_next_is_not() {
    for (len, status) in [(512, Success), (513, RemAccessErr)] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 513), blank(&mut p, B, 512));
        post(&mut p, A, 1, write_to(dst), &[src.sge(0, len)]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, status)]);
    }
}

// clause: CHECK-KEY
#[test]
fn missing_right_of_the_region_is_a_remote_access_error() {
    let needed = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];
    for (i, right) in needed.into_iter().enumerate() {
        let mut p = Pair::new(Setup::default());
        let src = filled(&mut p, A, 8);
        let dst = p.end(B).host.memory.register(8, all_access() - right);
        let op = remote_ops(dst.addr, dst.rkey())[i];
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR), "{op:?}");
    }
}

// clause: CHECK-KEY
#[test]
fn region_of_another_domain_is_a_remote_access_error() {
    for i in 0..4 {
        let mut p = Pair::new(Setup::default());
        let src = filled(&mut p, A, 8);
        let dst = p.end(B).host.memory.register_in(2, 8, all_access());
        let op = remote_ops(dst.addr, dst.rkey())[i];
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR), "{op:?}");
    }
}

// clause: CHECK-ACCESS-FLAGS
#[test]
fn missing_right_of_the_qp_is_an_invalid_request() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];
    for (i, right) in rights.into_iter().enumerate() {
        let access = Setup::default().access - right;
        let mut p = Pair::new(Setup { access, ..Setup::default() });
        let src = filled(&mut p, A, 8);
        let dst = blank(&mut p, B, 8);
        // The first, valid WRITE of `run` is empty; it needs the right of the QP as well.
        if right == Access::REMOTE_WRITE {
            post(&mut p, A, 1, write_to(dst), &[src.all()]);
            p.run();
            assert_eq!(sends(&mut p, A), [(1, RemInvReqErr)]);
            assert_eq!(p.ends[1].events - QpEvents::COMM_EST, QpEvents::REQ_ERR);
            continue;
        }
        let op = remote_ops(dst.addr, dst.rkey())[i];
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemInvReqErr, QpEvents::REQ_ERR), "{op:?}");
    }
}

// clause: CHECK-ATOMIC-ALIGNED
#[test]
fn misaligned_atomic_is_an_invalid_request() {
    for offset in [1, 2, 4, 7] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 64));
        let op = SendOp::FetchAdd { remote_addr: dst.addr + offset, rkey: dst.rkey(), add: 1 };
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemInvReqErr, QpEvents::REQ_ERR));
    }
}

// clause: CHECK-RD-ATOMIC
#[test]
fn max_dest_rd_atomic_0_refuses_reads_and_atomics() {
    for i in 1..4 {
        let mut p = Pair::new(Setup { max_dest_rd_atomic: 0, ..Setup::default() });
        let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
        let op = remote_ops(dst.addr, dst.rkey())[i];
        assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemInvReqErr, QpEvents::REQ_ERR), "{op:?}");
    }
}

#[test]
fn unmapped_memory_is_a_remote_operation_error() {
    for i in 0..4 {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
        p.end(B).host.memory.unmap(dst);
        let op = remote_ops(dst.addr, dst.rkey())[i];
        let outcome = run(&mut p, op, &[src.all()]);
        assert!([RemOpErr, RemAccessErr].contains(&outcome.send), "{op:?}: {outcome:?}");
        assert_eq!(outcome.recv, WrFlushErr);
    }
}

// clause: CHECK-ROOM
#[test]
fn send_longer_than_the_receive_fails_on_both_sides() {
    for (len, fits) in [(100, true), (101, false), (256, false), (257, false), (1000, false)] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 2000));
        if fits {
            recv(&mut p, B, 1, &[dst.sge(0, len)]);
            post(&mut p, A, 1, SendOp::Send, &[src.sge(0, len)]);
            p.run();
            assert_eq!((sends(&mut p, A), recvs(&mut p, B)), (statuses(1..=1, Success), statuses(1..=1, Success)));
            continue;
        }
        let outcome = run(&mut p, SendOp::Send, &[src.sge(0, len)]);
        assert_eq!(outcome, Outcome { send: RemInvReqErr, recv: LocLenErr, events: QpEvents::empty() }, "{len} bytes");
    }
}

// clause: CHECK-ROOM
#[test]
fn send_exceeding_its_receive_later_fails_on_both_sides() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 2000));
    recv(&mut p, B, 1, &[dst.sge(0, 999)]);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, B)), (statuses(1..=1, RemInvReqErr), statuses(1..=1, LocLenErr)));
    assert!(bytes(&p, B, dst)[999..].iter().all(|&b| b == 0));
}

// clause: NAK-OWN-FAULT
#[test]
fn receive_into_bad_memory_is_a_remote_operation_error() {
    let bad_sges: [fn(&mut Pair, Mr) -> Sge; 4] = [
        |_, mr| Sge { lkey: roxe_wire::LKey(mr.key ^ 1), ..mr.all() },
        |_, mr| Sge { addr: mr.addr + 64, ..mr.all() },
        |p, mr| {
            p.end(B).host.memory.deregister(mr);
            mr.all()
        },
        |p, _| p.end(B).host.memory.register(300, Access::empty()).all(),
    ];
    for bad in bad_sges {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 300), blank(&mut p, B, 300));
        let sge = bad(&mut p, dst);
        recv(&mut p, B, 1, &[sge]);
        recv(&mut p, B, 2, &[]);
        post(&mut p, A, 1, SendOp::Send, &[src.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, RemOpErr)]);
        assert_eq!(recvs(&mut p, B), [(1, LocProtErr), (2, WrFlushErr)]);
        assert_eq!([A, B].map(|side| p.end(side).qp.state()), [QpState::Err; 2]);
    }
}

// clause: SEND-LOCAL-FAULT, WC-ORDER, WC-ERROR-ALWAYS
#[test]
fn bad_source_buffer_fails_locally_and_sends_nothing() {
    let bad_sges: [fn(&mut Pair, Mr) -> Sge; 3] = [
        |_, mr| Sge { lkey: roxe_wire::LKey(mr.key ^ 1), ..mr.all() },
        |_, mr| Sge { addr: mr.addr + 64, ..mr.all() },
        |p, mr| {
            p.end(A).host.memory.unmap(mr);
            mr.all()
        },
    ];
    for bad in bad_sges {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, 300), blank(&mut p, B, 300));
        let sge = bad(&mut p, src);
        post(&mut p, A, 1, write_to(dst), &[]);
        post_with(&mut p, A, 2, write_to(dst), SendFlags::empty(), &[sge]);
        post(&mut p, A, 3, write_to(dst), &[]);
        p.run();
        // The earlier WRITE was in flight; its ACK may or may not have arrived in time.
        let done = sends(&mut p, A);
        assert!(matches!(done[0], (1, Success | WrFlushErr)), "{done:?}");
        assert_eq!(done[1..], [(2, LocProtErr), (3, WrFlushErr)]);
        assert_eq!(p.ends[0].qp.state(), QpState::Err);
        assert_eq!(p.ends[1].qp.state(), QpState::Rts, "the peer does not learn of it");
        assert!(!request_psns(&p, A).contains(&102));
    }
}

// clause: SEND-LOCAL-FAULT
#[test]
fn earlier_requests_succeed_before_a_local_error_is_reported() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 300), blank(&mut p, B, 300));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    post(&mut p, A, 2, write_to(dst), &[Sge { addr: 1, ..src.all() }]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, Success), (2, LocProtErr)]);
}

// clause: READ-LOCAL-FAULT
#[test]
fn read_or_atomic_into_bad_memory_fails_locally() {
    for i in 1..4 {
        for is_read_only in [true, false] {
            let mut p = Pair::new(Setup::default());
            let dst = blank(&mut p, B, 8);
            // A region without LOCAL_WRITE, or an element outside its region.
            let mr = p.end(A).host.memory.register(8, if is_read_only { Access::empty() } else { all_access() });
            let sge = if is_read_only { mr.all() } else { Sge { addr: mr.addr + 1, ..mr.all() } };
            let op = remote_ops(dst.addr, dst.rkey())[i];
            post(&mut p, A, 1, op, &[sge]);
            post(&mut p, A, 2, write_to(dst), &[]);
            p.run();
            assert_eq!(sends(&mut p, A), [(1, LocProtErr), (2, WrFlushErr)], "{op:?}");
            assert_eq!(p.ends[1].qp.state(), QpState::Rts, "the peer does not learn of it");
            assert_eq!(p.ends[0].host.flow.reserved, 0);
        }
    }
}

// clause: CHECK-KEY-AGAIN, NAK-DATA-STAYS
#[test]
fn region_deregistered_during_a_write_ends_it() {
    let mut p = Pair::new(Setup { batch: 1, latency: Duration::ZERO, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 2560), blank(&mut p, B, 2560));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    // Let half of the WRITE arrive.
    p.wire.set_script(A, Box::new(|n, _| (n >= 5).then_some(roxe_sim::wire::late(ms(1)))));
    p.run_for(Duration::from_micros(10));
    p.end(B).host.memory.deregister(dst);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, RemAccessErr)]);
    assert_eq!(bytes(&p, B, dst)[..1280], bytes(&p, A, src)[..1280]);
    assert_eq!(bytes(&p, B, dst)[1280..], [0; 1280]);
}

#[test]
fn region_deregistered_during_a_read_ends_it() {
    let mut p = Pair::new(Setup { batch: 2, ..Setup::default() });
    let (dst, src) = (blank(&mut p, A, 2560), filled(&mut p, B, 2560));
    // The fourth response is lost; when it is requested again, the key is invalid.
    drop_nth(&mut p, B, 3);
    post(&mut p, A, 1, read_from(src), &[dst.all()]);
    p.run_for(Duration::from_micros(11));
    p.end(B).host.memory.deregister(src);
    p.run();
    let done = sends(&mut p, A);
    // A duplicate READ whose key was invalidated is dropped (IBA C9-107), so the retries run out,
    // unless the first copy of the READ was still in execution and was refused.
    assert!(matches!(done[..], [(1, RetryExcErr | RemAccessErr | RemOpErr)]), "{done:?}");
}

// clause: INVALIDATE-REFUSED
#[test]
fn invalidating_a_key_that_cannot_be_invalidated_fails() {
    let mut p = Pair::new(Setup::default());
    let (src, dst, plain) = (filled(&mut p, A, 8), blank(&mut p, B, 8), blank(&mut p, B, 8));
    recv(&mut p, B, 1, &[dst.all()]);
    post(&mut p, A, 1, SendOp::SendInvalidate(plain.rkey()), &[src.all()]);
    p.run();
    assert_eq!(recvs(&mut p, B), [(1, RemInvReqErr)]);
    assert_eq!(p.ends[1].qp.state(), QpState::Err);
    assert_eq!(sends(&mut p, A), [(1, RemAccessErr)]);
}

#[test]
fn write_imm_to_bad_memory_leaves_receive_memory_unchanged() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 100));
    let op = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(1) };
    // The receive is taken at the last packet, the key is refused at the first (IBA §9.7.5).
    assert_eq!(run(&mut p, op, &[src.all()]), receive_flushed(RemAccessErr, QpEvents::ACCESS_ERR));
}
