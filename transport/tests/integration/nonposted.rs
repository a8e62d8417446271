//! ATOMIC WRITE and FLUSH between two queue pairs: order, loss, XRC.

use super::*;
use roxe_sim::XrcQueue;
use roxe_transport::qp::Service;
use roxe_transport::wr::WcOpcode;
use roxe_wire::{Feth, Operation, Placement, Selectivity};

/// Returns a setup whose responder allows FLUSH.
fn setup() -> Setup {
    let access = Setup::default().access | Access::FLUSH_GLOBAL;
    Setup { access, ..Setup::default() }
}

fn atomic_write_at(mr: Mr, offset: u64) -> SendOp {
    SendOp::AtomicWrite { remote_addr: mr.addr + offset, rkey: mr.rkey() }
}

fn flush_of(mr: Mr) -> SendOp {
    let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
    SendOp::Flush { remote_addr: mr.addr, rkey: mr.rkey(), length: mr.len, feth }
}

/// Registers zero bytes of B that A may write and FLUSH.
fn target(p: &mut Pair) -> Mr {
    p.end(B).host.memory.register(4096, all_access() | Access::FLUSH_GLOBAL)
}

/// Posts the WRITE of a log entry, a FLUSH that makes it visible, and the ATOMIC WRITE of the
/// pointer to it: the use for which both operations exist.
fn append(p: &mut Pair, to: Mr) -> Mr {
    let from = filled(p, A, 600);
    post(p, A, 1, SendOp::Write { remote_addr: to.addr + 8, rkey: to.rkey() }, &[from.all()]);
    post(p, A, 2, flush_of(to), &[]);
    post(p, A, 3, atomic_write_at(to, 0), &[from.sge(0, 8)]);
    from
}

fn check_appended(p: &mut Pair, from: Mr, to: Mr) {
    let done: Vec<_> = core::iter::from_fn(|| p.send_done(A)).collect();
    let completions: Vec<_> = done.iter().map(|cqe| (cqe.wr_id, cqe.status, cqe.opcode, cqe.byte_len)).collect();
    let ok = WcStatus::Success;
    let expected = [(1, ok, WcOpcode::RdmaWrite, 0), (2, ok, WcOpcode::Flush, 0), (3, ok, WcOpcode::AtomicWrite, 0)];
    assert_eq!(completions, expected);
    let (entry, log) = (bytes(p, A, from), bytes(p, B, to));
    assert_eq!((&log[..8], &log[8..608]), (&entry[..8], &entry[..]));
    assert_eq!((p.end(B).host.memory.flushes, recvs(p, B)), (1, vec![]));
    p.assert_settled();
}

// clause: NONPOSTED-ANSWER, SEND-ORDER
#[test]
fn log_entry_is_written_flushed_and_published() {
    let mut p = Pair::new(setup());
    let to = target(&mut p);
    let from = append(&mut p, to);
    p.run();
    check_appended(&mut p, from, to);
    let from_b = p.log.iter().filter(|packet| packet.from == B);
    let responses: Vec<_> = from_b.map(|packet| (packet.header.opcode().operation(), packet.len)).collect();
    let empty = (Operation::ReadResponseOnly, 0);
    assert_eq!(responses, [(Operation::Acknowledge, 0), empty, empty]);
}

// clause: DUP-NONPOSTED, RETRY-SAME-OPCODES
#[test]
fn nonposted_requests_execute_once_under_loss() {
    let packets = {
        let mut p = Pair::new(setup());
        let to = target(&mut p);
        append(&mut p, to);
        p.run();
        p.log.len()
    };
    for lost in 1..=packets {
        let mut p = Pair::new(setup());
        let rule =
            if lost <= 5 { format!("drop tx qp=#0 nth={lost}") } else { format!("drop tx qp=#1 nth={}", lost - 5) };
        p.wire.set_faults(&rule.parse::<Rules>().expect("parse the rule"), 0);
        let to = target(&mut p);
        let from = append(&mut p, to);
        p.run();
        assert_eq!(p.wire.tally.dropped, 1, "{rule}");
        check_appended(&mut p, from, to);
    }
}

// clause: SEND-OPERATIONS, SEND-RD-ATOMIC-0, FLUSH-RESERVED, NONPOSTED-PLACE
#[test]
fn atomic_write_and_flush_need_a_reliable_connection_with_depth() {
    let mr = Mr { key: 1, addr: 0x1000, len: 64 };
    let reserved = Feth { selectivity: Selectivity::Reserved(2), placement: Placement::GLOBAL_VISIBILITY };
    let no_placement = Feth { selectivity: Selectivity::Range, placement: Placement(0) };
    let flush = |feth| SendOp::Flush { remote_addr: 0, rkey: mr.rkey(), length: 8, feth };
    let atomic_write = |p: &mut Pair| {
        let data = SendData::Inline(&[7; 8]);
        let req = SendRequest {
            wr_id: 1,
            op: atomic_write_at(mr, 0),
            flags: SendFlags::SIGNALED,
            data,
            ud: Some(destination(A)),
        };
        p.post_send(A, &req)
    };
    for setup in [Setup::of(Service::Uc), Setup::of(Service::Ud), Setup { max_rd_atomic: 0, ..setup() }] {
        let mut p = Pair::new(setup);
        assert_eq!(atomic_write(&mut p), Err(PostError::BadOpcode));
        assert_eq!(try_post(&mut p, A, 1, flush_of(mr), SendFlags::SIGNALED, &[]), Err(PostError::BadOpcode));
    }
    let mut p = Pair::new(setup());
    for op in [flush(reserved), flush(no_placement)] {
        assert_eq!(try_post(&mut p, A, 1, op, SendFlags::SIGNALED, &[]), Err(PostError::BadOpcode));
    }
    assert_eq!(atomic_write(&mut p), Ok(()));
}

// clause: SEND-FENCE
#[test]
fn fence_waits_for_nonposted_responses() {
    let mut p = Pair::new(setup());
    let to = target(&mut p);
    let from = filled(&mut p, A, 8);
    post(&mut p, A, 1, atomic_write_at(to, 0), &[from.all()]);
    post_with(&mut p, A, 2, write_to(to), SendFlags::SIGNALED | SendFlags::FENCE, &[from.all()]);
    p.transmit(A);
    assert_eq!(p.log.len(), 1, "the WRITE waits");
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
}

// clause: XRC-DOMAIN, XRC-ANSWERS
#[test]
fn atomic_write_and_flush_work_over_xrc() {
    let mut p = Pair::new(Setup { service: Service::XrcIni, ..setup() });
    p.end(B).host.xrc = vec![XrcQueue { number: 5, ..XrcQueue::default() }];
    let to = target(&mut p);
    for (wr_id, op, data) in [(1, atomic_write_at(to, 8), &[6; 8][..]), (2, flush_of(to), &[])] {
        let data = if data.is_empty() { SendData::Sges(&[]) } else { SendData::Inline(data) };
        let req = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, ud: None };
        assert_eq!(p.end(A).qp.post_send_to_srq(5, &req), Ok(()));
    }
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!((bytes(&p, B, to)[8..16].to_vec(), p.end(B).host.memory.flushes), (vec![6; 8], 1));
    assert!(
        p.log
            .iter()
            .filter(|packet| packet.from == B)
            .all(|packet| matches!(packet.header.kind, Kind::XrcResponse(Response::ReadOnly(_))))
    );
    p.assert_settled();
}
