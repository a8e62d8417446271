//! Which Q_Key a datagram carries, and what a send error does.

use super::*;
use crate::qp::{AttrMask, QpAttr, QpState};
use crate::sim::setup::{QKEY, QPN_B, av};
use crate::sim::{Pair, Peer, Rng, Setup};
use crate::wr::{SendData, SendFlags, SendRequest, UdDest};

// clause: UD-QKEY-CONTROLLED, UD-QKEY-GSI
#[test]
fn a_controlled_q_key_in_a_request_stands_for_that_of_the_queue_pair() {
    let (qp, _) = Setup::of(Service::Ud).make(Peer::A);
    let mut sh = Shared::new(*qp.config());
    sh.attr.qkey = Qkey(7);
    assert_eq!(qkey_to_send(&sh, Qkey(0x7fff_ffff)), Qkey(0x7fff_ffff));
    assert_eq!(qkey_to_send(&sh, Qkey(0x8000_0000)), Qkey(7));
    sh.config.qpn = Qpn::GSI;
    assert_eq!(qkey_to_send(&sh, Qkey(5)), Qkey::GSI);
}

// clause: STATE-SQE
#[test]
fn a_send_error_flushes_posted_requests_until_the_queue_is_restarted() {
    let mut pair = Pair::idle(Setup::of(Service::Ud), Rng::new(1));
    pair.bring_to(Peer::A, QpState::Rts);
    let mr = pair.end(Peer::A).host.memory.register(257, crate::wr::Access::empty());
    let post = |pair: &mut Pair, wr_id, len| {
        let ud = Some(UdDest { av: av(Peer::A), qpn: QPN_B, qkey: QKEY });
        let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
        let req = SendRequest { wr_id, op, flags, data: SendData::Sges(&[mr.sge(0, len)]), ud };
        assert_eq!(pair.post_send(Peer::A, &req), Ok(()));
    };
    (1..=3).zip([256, 257, 0]).for_each(|(wr_id, len)| post(&mut pair, wr_id, len));
    pair.transmit(Peer::A);
    assert_eq!(pair.end(Peer::A).qp.state(), QpState::Sqe);
    post(&mut pair, 4, 0);
    let end = pair.end(Peer::A);
    let attr = QpAttr { state: QpState::Rts, ..*end.qp.attr() };
    assert_eq!(end.qp.modify(&mut end.host, &attr, AttrMask::STATE), Ok(()));
    post(&mut pair, 5, 0);
    pair.transmit(Peer::A);
    let done: Vec<_> = core::iter::from_fn(|| pair.send_done(Peer::A)).map(|cqe| (cqe.wr_id, cqe.status)).collect();
    let flushed = WcStatus::WrFlushErr;
    let expected =
        [(1, WcStatus::Success), (2, WcStatus::LocLenErr), (3, flushed), (4, flushed), (5, WcStatus::Success)];
    assert_eq!(done, expected);
    let psns: Vec<_> = pair.log.iter().map(|logged| logged.header.bth.psn.get()).collect();
    assert_eq!(psns, [100, 101]);
}
