//! Requests of made-up targets of other processes, for a queue of this process.

use super::*;
use crate::cq::CqInit;
use crate::srq::{Srq, SrqInit};
use crate::testing::{self, PAGE, Pages};
use crate::xrcd::XrcdInit;
use roxe_transport::wr::{Access, Cqe, RecvRequest, Sge, WcStatus};
use roxe_wire::{Bth, Header, Kind as PacketKind, Psn, Request, SendTail, XrcEth};
use std::net::Ipv4Addr;

const MTU: PathMtu = PathMtu::Mtu256;
const NOW: Instant = Instant(1_000_000_000);

/// A queue with receives of one page each, and where they complete.
fn queue() -> (Arc<Srq>, Arc<Cq>, Pages) {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let context = pd.context();
    let xrcd = context.open_xrcd(XrcdInit { create: true, ..XrcdInit::default() }).unwrap();
    let cq = context.create_cq(CqInit { cqe: 16, ..CqInit::default() }).unwrap();
    let srq = xrcd.create_srq(&pd, &cq, SrqInit { max_wr: 8, max_sge: 1, limit: 0, user: 0 }).unwrap();
    let mr = pd.register(pages.addr(), PAGE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..4 {
        let sges = [Sge { addr: pages.addr(), length: PAGE as u32, lkey: mr.lkey() }];
        srq.post_recv(&RecvRequest { wr_id, sges: &sges }).unwrap();
    }
    // The region stays as long as the test.
    std::mem::forget(mr);
    (srq, cq, pages)
}

fn id(epoch: u64, seq: u64) -> XrcRequestId {
    XrcRequestId { target: Qpn::new(0x77_7001), epoch, seq }
}

/// The remote target of `id` gets `request` with `len` bytes.
fn execute(srq: &Srq, id: XrcRequestId, request: Request, len: usize, now: Instant) -> Option<Outcome> {
    let kind = PacketKind::XrcRequest(XrcEth(srq.number().unwrap()), request);
    let header = Header { bth: Bth::new(id.target, Psn::new(0xff_ffff)), kind };
    let (src, dst) = (Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into());
    let net = NetHeader { src, dst, ..NetHeader::default() };
    srq.xrc_owner().unwrap().execute(id, MTU, (&net, &Packet { header, payload: &vec![1; len] }), now)
}

const WHOLE: Request = Request::SendOnly(SendTail::Plain);

fn done(cq: &Cq) -> Vec<(u64, WcStatus, u32)> {
    let mut done = vec![];
    let add = |cqe: &Cqe| done.push((cqe.wr_id, cqe.status, cqe.byte_len));
    cq.poll(16, add).unwrap();
    done
}

// clause: XRC-PROCESSES
#[test]
fn each_request_is_executed_once_however_often_it_is_asked_for() {
    let (srq, cq, _pages) = queue();
    for _ in 0..3 {
        assert_eq!(execute(&srq, id(1, 5), Request::SendFirst, 256, NOW), Some(Outcome::Done(0)));
    }
    for _ in 0..3 {
        assert_eq!(execute(&srq, id(1, 9), Request::SendLast(SendTail::Plain), 7, NOW), Some(Outcome::Done(0)));
    }
    assert_eq!(execute(&srq, id(1, 5), Request::SendFirst, 256, NOW), None, "its answer was seen");
    assert_eq!(done(&cq), [(0, WcStatus::Success, 263)]);
}

// clause: XRC-PROCESSES
#[test]
fn the_end_of_a_connection_ends_the_receive_in_use() {
    let (srq, cq, _pages) = queue();
    assert_eq!(execute(&srq, id(1, 1), Request::SendFirst, 256, NOW), Some(Outcome::Done(0)));
    srq.xrc_owner().unwrap().end_remote_target(id(2, 2), NOW);
    assert_eq!(done(&cq), [], "another connection");
    srq.xrc_owner().unwrap().end_remote_target(id(1, 2), NOW);
    assert_eq!(done(&cq), [(0, WcStatus::WrFlushErr, 0)]);
    assert_eq!(execute(&srq, id(2, 1), Request::SendFirst, 256, NOW), Some(Outcome::Done(0)));
    assert_eq!(execute(&srq, id(3, 1), WHOLE, 1, NOW), Some(Outcome::Done(0)), "the same target, connected anew");
    assert_eq!(done(&cq), [(1, WcStatus::WrFlushErr, 0), (2, WcStatus::Success, 1)]);
}

// clause: XRC-PROCESSES
#[test]
fn a_request_that_is_refused_ends_the_remote_target_but_a_missing_receive_does_not() {
    let (srq, cq, _pages) = queue();
    assert_eq!(execute(&srq, id(1, 1), Request::SendMiddle, 256, NOW), Some(Outcome::NO_QUEUE));
    assert!(matches!(execute(&srq, id(1, 2), WHOLE, 1, NOW), Some(Outcome::Refused(..))));
    assert_eq!(done(&cq), []);
    for seq in 1..=4 {
        assert_eq!(execute(&srq, id(2, seq), WHOLE, 1, NOW), Some(Outcome::Done(0)));
    }
    assert_eq!(execute(&srq, id(2, 5), WHOLE, 1, NOW), Some(Outcome::NotReady));
    srq.post_recv(&RecvRequest { wr_id: 9, sges: &[] }).unwrap();
    assert_eq!(execute(&srq, id(2, 6), WHOLE, 0, NOW), Some(Outcome::Done(0)));
    assert_eq!(done(&cq).last(), Some(&(9, WcStatus::Success, 0)));
}

#[test]
fn remote_targets_are_bounded_and_idle_ones_make_room() {
    let (srq, cq, _pages) = queue();
    srq.post_recv(&RecvRequest { wr_id: 4, sges: &[] }).unwrap();
    let target = |n: usize| XrcRequestId { target: Qpn::new(0x10_0000 + n as u32), epoch: 1, seq: 1 };
    // Without a receive nothing is used up.
    (0..5).for_each(|n| assert_eq!(execute(&srq, target(n), WHOLE, 0, NOW), Some(Outcome::Done(0))));
    (5..MAX_REMOTE_TARGETS).for_each(|n| assert_eq!(execute(&srq, target(n), WHOLE, 0, NOW), Some(Outcome::NotReady)));
    assert_eq!(execute(&srq, target(MAX_REMOTE_TARGETS), WHOLE, 0, NOW), Some(Outcome::NO_QUEUE));
    let later = NOW.after(IDLE);
    assert_eq!(execute(&srq, target(MAX_REMOTE_TARGETS), WHOLE, 0, later), Some(Outcome::NotReady));
    let again = |n| execute(&srq, target(n), WHOLE, 0, later);
    (1..MAX_REMOTE_TARGETS).for_each(|n| assert_eq!(again(MAX_REMOTE_TARGETS + n), Some(Outcome::NotReady)));
    assert_eq!(again(0), Some(Outcome::NO_QUEUE), "as many as before have taken the places of all that were idle");
    assert_eq!(done(&cq).len(), 5);
}
