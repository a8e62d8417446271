//! Extended reliable connections: A is an initiator, B its target with two SRQs in the
//! domain.

use super::*;
use roxe_sim::XrcQueue;
use roxe_transport::qp::{DropReason, QpEvents, Service};
use roxe_wire::{NakCode, RKey, Reth, Syndrome, XrcEth};

/// Numbers of the SRQs of B.
const SRQNS: [u32; 2] = [0x21, 0x22];

fn setup() -> Setup {
    Setup::of(Service::XrcIni)
}

/// Creates the SRQs of B.
fn with_srqs(mut pair: Pair) -> Pair {
    let queue = |number| XrcQueue { number, ..XrcQueue::default() };
    pair.end(B).host.xrc = SRQNS.map(queue).into();
    pair
}

fn connected() -> Pair {
    with_srqs(Pair::new(setup()))
}

/// Posts a receive on SRQ `at` of B.
fn post_to(pair: &mut Pair, at: usize, wr_id: u64, sges: &[Sge]) {
    pair.end(B).host.xrc[at].srq.post(&RecvRequest { wr_id, sges });
}

/// Posts a signaled request of A for the SRQ with this number.
fn send_to(pair: &mut Pair, srqn: u32, wr_id: u64, op: SendOp, sges: &[Sge]) {
    let req = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data: SendData::Sges(sges), ud: None };
    assert_eq!(pair.end(A).qp.post_send_to_srq(srqn, &req), Ok(()));
}

/// Takes the completions of SRQ `at`.
fn done(pair: &mut Pair, at: usize) -> Vec<(u64, WcStatus, u32)> {
    let taken = pair.end(B).host.xrc[at].done.drain(..);
    taken.map(|cqe| (cqe.wr_id, cqe.status, cqe.byte_len)).collect()
}

/// Returns a request of A to B, for the SRQ `srqn`.
fn xrc_request(psn: u32, srqn: u32, request: Request) -> Header {
    Header { bth: bth(B, psn, true), kind: Kind::XrcRequest(XrcEth(srqn), request) }
}

/// Returns the syndromes that B sent.
fn syndromes(pair: &Pair) -> Vec<(Syndrome, u32)> {
    let syndrome = |(kind, psn)| match kind {
        Kind::XrcResponse(Response::Ack(aeth)) => Some((aeth.syndrome, psn)),
        _ => None,
    };
    sent(pair, B).into_iter().filter_map(syndrome).collect()
}

// clause: XRC-EVERY-REQUEST, XRC-ANSWERS, XRC-COMPLETION
#[test]
fn message_completes_in_the_srq_of_its_xrceth() {
    let mut p = connected();
    let (from, to) = (filled(&mut p, A, 600), [blank(&mut p, B, 600), blank(&mut p, B, 600)]);
    for at in [0, 1] {
        post_to(&mut p, at, 10 + at as u64, &[to[at].sge(0, 600)]);
    }
    send_to(&mut p, SRQNS[1], 1, SendOp::Send, &[from.sge(0, 600)]);
    send_to(&mut p, SRQNS[0], 2, SendOp::SendImm(imm(7)), &[from.sge(0, 300)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    let first = p.end(B).host.xrc[0].done[0];
    assert_eq!((first.qpn, first.extra), (qpn(B), roxe_transport::wr::WcExtra::Imm(imm(7))));
    assert_eq!(done(&mut p, 0), [(10, WcStatus::Success, 300)]);
    assert_eq!(done(&mut p, 1), [(11, WcStatus::Success, 600)]);
    assert_eq!(bytes(&p, B, to[1]), bytes(&p, A, from));
    let srqn = |(kind, _)| if let Kind::XrcRequest(xrc, _) = kind { Some(xrc.0) } else { None };
    let srqns: Vec<_> = sent(&p, A).into_iter().map(srqn).collect();
    let [a, b] = SRQNS.map(Some);
    assert_eq!(srqns, [b, b, b, a, a], "all packets of a message carry the number of its SRQ");
    assert!(sent(&p, B).iter().all(|(kind, _)| matches!(kind, Kind::XrcResponse(_))));
    p.assert_settled();
}

// clause: XRC-DOMAIN
#[test]
fn writes_reads_and_atomics_complete_over_xrc() {
    let mut p = connected();
    let (from, to) = (filled(&mut p, A, 600), filled(&mut p, B, 600));
    let old = u64::from_ne_bytes(bytes(&p, B, to)[..8].try_into().expect("8 bytes"));
    send_to(&mut p, SRQNS[0], 1, add_to(to, 5), &[from.sge(0, 8)]);
    send_to(&mut p, SRQNS[1], 2, read_from(to), &[from.sge(8, 592)]);
    p.run();
    assert_eq!(bytes(&p, A, from)[..8], old.to_ne_bytes());
    assert_eq!(bytes(&p, A, from)[8..], bytes(&p, B, to)[..592]);
    post_to(&mut p, 1, 9, &[]);
    let op = SendOp::WriteImm { remote_addr: to.addr, rkey: to.rkey(), imm: imm(1) };
    send_to(&mut p, SRQNS[1], 3, op, &[from.sge(0, 600)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
    assert_eq!(bytes(&p, A, from), bytes(&p, B, to));
    assert_eq!(done(&mut p, 1), [(9, WcStatus::Success, 600)]);
    p.assert_settled();
}

// clause: XRC-DOMAIN
#[test]
fn read_uses_the_domain_of_its_srq() {
    let mut p = with_srqs(alone(B, setup()));
    let to = filled(&mut p, B, 1024);
    let reth = Reth { va: to.addr, rkey: to.rkey(), dma_len: 512 };
    for (psn, srqn) in [(100, SRQNS[0]), (102, SRQNS[1])] {
        p.inject(B, &xrc_request(psn, srqn, Request::Read(reth)), &[]);
    }
    p.run();
    assert_eq!(p.end(B).host.selected, Some(1), "the last response was for the second SRQ");
    // A duplicate of the first READ uses the SRQ of that READ again.
    p.inject(B, &xrc_request(100, SRQNS[0], Request::Read(reth)), &[]);
    p.run();
    assert_eq!(p.end(B).host.selected, Some(0));
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn unknown_srq_is_refused() {
    for request in [SEND_ONLY, Request::WriteOnly(Reth { va: 0, rkey: RKey(0), dma_len: 0 }, None)] {
        let mut p = with_srqs(alone(B, setup()));
        p.inject(B, &xrc_request(100, 0x99, request), &[]);
        p.run();
        assert_eq!(syndromes(&p), [(Syndrome::Nak(NakCode::InvalidRequest), 100)]);
        assert_eq!(p.end(B).qp.state(), QpState::Err);
        assert!(p.end(B).events.contains(QpEvents::REQ_ERR));
    }
}

// clause: XRC-ONE-QUEUE
#[test]
fn message_cannot_change_its_srq() {
    for (first, rest) in
        [(Request::SendFirst, Request::SendMiddle), (Request::SendFirst, Request::SendLast(SendTail::Plain))]
    {
        let mut p = with_srqs(alone(B, setup()));
        let to = blank(&mut p, B, 600);
        post_to(&mut p, 0, 5, &[to.sge(0, 600)]);
        post_to(&mut p, 1, 6, &[to.sge(0, 600)]);
        p.inject(B, &xrc_request(100, SRQNS[0], first), &[1; 256]);
        p.inject(B, &xrc_request(101, SRQNS[1], rest), &[2; 256]);
        p.run();
        assert_eq!(syndromes(&p).last(), Some(&(Syndrome::Nak(NakCode::InvalidRequest), 101)));
        assert_eq!(done(&mut p, 0), [(5, WcStatus::RemInvReqErr, 0)], "the receive in use ends in its own queue");
        assert_eq!(done(&mut p, 1), []);
    }
}

// clause: XRC-COMPLETION
#[test]
fn empty_srq_makes_the_sender_wait() {
    let mut p = connected();
    send_to(&mut p, SRQNS[0], 1, SendOp::Send, &[]);
    p.run_for(ms(1));
    assert!(matches!(syndromes(&p).first(), Some((Syndrome::RnrNak { .. }, 100))));
    post_to(&mut p, 0, 7, &[]);
    p.run();
    assert_eq!(done(&mut p, 0), [(7, WcStatus::Success, 0)]);
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
}

// clause: XRC-COMPLETION
#[test]
fn receive_in_use_is_flushed_into_its_own_queue() {
    let mut p = with_srqs(alone(B, setup()));
    let to = blank(&mut p, B, 600);
    post_to(&mut p, 1, 5, &[to.sge(0, 600)]);
    p.inject(B, &xrc_request(100, SRQNS[1], Request::SendFirst), &[1; 256]);
    p.end(B).host.selected = None;
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    assert_eq!(done(&mut p, 1), [(5, WcStatus::WrFlushErr, 0)]);
}

// clause: XRC-DIRECTIONS
#[test]
fn initiator_only_sends_and_a_target_only_receives() {
    let mut p = connected();
    let no_receive = p.post_recv(A, &RecvRequest { wr_id: 1, sges: &[] });
    assert_eq!(no_receive, Err(PostError::BadOpcode));
    let ops = [SendOp::Send, write_to(blank(&mut p, A, 8)), read_from(blank(&mut p, A, 8))];
    for op in ops {
        assert_eq!(try_post(&mut p, B, 1, op, SendFlags::empty(), &[]), Err(PostError::BadOpcode));
    }
    for (to, kind) in [
        (A, Kind::XrcRequest(XrcEth(SRQNS[0]), SEND_ONLY)),
        (A, Kind::RcRequest(SEND_ONLY)),
        (B, Kind::RcRequest(SEND_ONLY)),
    ] {
        let end = p.end(to);
        let dropped = end.dropped.1;
        p.inject(to, &Header { bth: bth(to, 100, true), kind }, &[]);
        let now = p.end(to).dropped;
        assert_eq!(now, (Some(DropReason::WrongService), dropped + 1), "{kind:?}");
    }
    assert_eq!(sent(&p, B), []);
}

// clause: XRC-ATTRIBUTES
#[test]
fn both_ends_accept_rc_attributes() {
    let (mut p, rc) = (Pair::idle(setup(), Rng::new(1)), Setup { max_rd_atomic: 3, retry_cnt: 5, ..Setup::default() });
    for side in [A, B] {
        let attr = rc.attr(side);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let end = p.end(side);
            assert_eq!(end.qp.modify(&mut end.host, &QpAttr { state, ..attr }, rc.mask(state)), Ok(()));
        }
    }
    let set = |side: Peer| *p.ends[side.index()].qp.attr();
    assert_eq!([A, B].map(|side| (set(side).retry_cnt, set(side).max_rd_atomic)), [(5, 3), (0, 0)]);
    assert_eq!([A, B].map(|side| set(side).max_dest_rd_atomic), [0, 4]);
}

// clause: XRC-EVERY-REQUEST
#[test]
fn retransmissions_carry_the_same_srq() {
    for (lost_by, number) in [(A, 1), (A, 4), (B, 0)] {
        let mut p = connected();
        let (from, to) = (filled(&mut p, A, 900), blank(&mut p, B, 900));
        post_to(&mut p, 1, 5, &[to.sge(0, 900)]);
        post_to(&mut p, 0, 6, &[]);
        drop_nth(&mut p, lost_by, number);
        send_to(&mut p, SRQNS[1], 1, SendOp::Send, &[from.sge(0, 900)]);
        send_to(&mut p, SRQNS[0], 2, SendOp::Send, &[]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
        assert_eq!(bytes(&p, B, to), bytes(&p, A, from));
        assert_eq!((done(&mut p, 1).len(), done(&mut p, 0).len()), (1, 1));
        p.assert_settled();
    }
}
