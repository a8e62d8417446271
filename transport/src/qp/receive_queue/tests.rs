//! Tests of `qp/receive_queue.rs`.

use super::*;
use crate::qp::shared::{QpCaps, QpEvents, Service};
use crate::sim_host::SimHost;
use crate::wr::Access;
use proptest::prelude::*;
use roxe_wire::{LKey, Qpn};
use std::collections::VecDeque;

fn config(depth: u32, srq: Option<u32>) -> QpConfig {
    let caps = QpCaps { max_recv_wr: depth, max_recv_sge: 2, ..QpCaps::default() };
    let qpn = Qpn::new(2);
    QpConfig { srq_max_sge: srq, ..QpConfig::new(qpn, Service::Rc, caps) }
}

fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: LKey(1) }
}

proptest! {
    /// Compares posts (true) and completions (false) in any order with a deque.
    #[test]
    fn receives_complete_in_posting_order(depth in 1u32..6, ops in prop::collection::vec(any::<bool>(), 0..64)) {
        let (mut rq, mut model) = (RecvQueue::new(&config(depth, None)), VecDeque::new());
        let (mut sh, mut host) = (Shared::new(config(depth, None)), SimHost::default());
        for (id, op) in (0u64..).zip(ops) {
            if op {
                let list = [sge(id, 1), sge(id, 10 + depth)];
                let list = &list[..usize::from(id % 3 != 0) + usize::from(id % 3 == 1)];
                let full = model.len() == depth as usize;
                let expected = if full { Err(PostError::QueueFull) } else { Ok(()) };
                prop_assert_eq!(rq.post(&RecvRequest { wr_id: id, sges: list }), expected);
                if !full {
                    model.push_back((id, list.to_vec()));
                }
            } else {
                prop_assert_eq!(rq.complete(&mut sh, &mut host, Cqe::default()), !model.is_empty());
                prop_assert_eq!(host.recvs.pop_front().map(|cqe| cqe.wr_id), model.pop_front().map(|(id, _)| id));
            }
            let current = rq.current().map(|(slot, sges)| (slot.wr_id, sges.to_vec()));
            prop_assert_eq!(current.as_ref(), model.front());
            let room = model.front().map_or(0, |(_, sges)| sges.iter().map(|sge| u64::from(sge.length)).sum());
            prop_assert_eq!(rq.room(), room);
            prop_assert_eq!(rq.acquire(&mut host), !model.is_empty());
        }
    }
}

// clause: SRQ-NO-OWN
#[test]
fn posts_beyond_depth_or_max_sge_are_refused() {
    let req = RecvRequest { wr_id: 1, sges: &[Sge::default(); 3] };
    assert_eq!(RecvQueue::new(&config(4, None)).post(&req), Err(PostError::TooManySges));
    let req = RecvRequest { sges: &req.sges[..2], ..req };
    assert_eq!(RecvQueue::new(&config(4, None)).post(&req), Ok(()));
    assert_eq!(RecvQueue::new(&config(0, None)).post(&req), Err(PostError::QueueFull));
    assert_eq!(RecvQueue::new(&config(0, Some(4))).post(&req), Err(PostError::BadOpcode));
}

// clause: SRQ-TAKEN
#[test]
fn shared_receive_is_kept_until_completion() {
    let (mut rq, mut host) = (RecvQueue::new(&config(0, Some(4))), SimHost::default());
    let mut sh = Shared::new(config(0, Some(4)));
    assert!(!rq.acquire(&mut host));
    host.srq.post(&RecvRequest { wr_id: 5, sges: &[sge(0, 7)] });
    host.srq.post(&RecvRequest { wr_id: 6, sges: &[sge(0, 9)] });
    assert!(rq.acquire(&mut host) && rq.acquire(&mut host));
    assert_eq!((rq.room(), host.srq.len()), (7, 1));
    rq.flush(&mut sh, &mut host);
    let ended: Vec<_> = host.recvs.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(ended, [(5, WcStatus::WrFlushErr)]);
    assert_eq!((rq.room(), host.srq.len()), (0, 1));
}

// clause: WC-SOLICITED
#[test]
fn completions_carry_the_qpn_and_errors_are_solicited() {
    let mut rq = RecvQueue::new(&config(4, None));
    let (mut sh, mut host) = (Shared::new(config(4, None)), SimHost::default());
    host.clock = crate::time::Instant(77);
    for status in [WcStatus::Success, WcStatus::LocProtErr] {
        rq.post(&RecvRequest { wr_id: 3, sges: &[] }).expect("room");
        assert!(rq.complete(&mut sh, &mut host, Cqe { status, ..Cqe::default() }));
        let cqe = host.recvs.pop_front().expect("poll a completion");
        assert_eq!((cqe.wr_id, cqe.qpn, cqe.timestamp), (3, Qpn::new(2), 77));
        assert_eq!(cqe.solicited, status != WcStatus::Success);
    }
}

#[test]
fn cq_overrun_fails_the_qp() {
    let mut rq = RecvQueue::new(&config(4, None));
    let (mut sh, mut host) = (Shared::new(config(4, None)), SimHost { cq_room: [None, Some(0)], ..SimHost::default() });
    rq.post(&RecvRequest { wr_id: 3, sges: &[] }).expect("room");
    rq.complete(&mut sh, &mut host, Cqe::default());
    assert!(sh.failed && sh.events == QpEvents::FATAL);
}

#[test]
fn message_is_scattered_over_the_list() {
    let (mut rq, mut host) = (RecvQueue::new(&config(4, None)), SimHost::default());
    let mr = host.memory.register(16, Access::LOCAL_WRITE);
    rq.post(&RecvRequest { wr_id: 1, sges: &[mr.sge(8, 3), mr.sge(0, 4)] }).expect("room");
    assert_eq!(rq.scatter(&mut host, 0, RxPayload::Bytes(b"ab")), Ok(()));
    assert_eq!(rq.scatter(&mut host, 2, RxPayload::Bytes(b"cde")), Ok(()));
    assert_eq!(host.memory.bytes(mr), b"de\0\0\0\0\0\0abc\0\0\0\0\0");
    assert_eq!(rq.scatter(&mut host, 7, RxPayload::Bytes(b"")), Ok(()));
    assert_eq!(rq.scatter(&mut host, 6, RxPayload::Bytes(b"xy")), Err(MemError::Range));
}
