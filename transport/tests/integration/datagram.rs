//! UD: one packet is one message, placed after 40 bytes of GRH; the Q_Key selects the receiver.

use super::*;
use roxe_sim::wire::net_header;
use roxe_transport::qp::DropReason;
use roxe_transport::qp::Service;
use roxe_transport::wr::WcStatus::*;
use roxe_transport::wr::{WcExtra, WcOpcode};
use roxe_wire::{Deth, Gid, NetHeader, PathMtu, Qkey, Qpn};
use std::net::Ipv6Addr;

fn setup() -> Setup {
    Setup::of(Service::Ud)
}

fn datagram(qkey: Qkey) -> Header {
    let deth = Deth { qkey, src_qpn: Qpn::new(0x7b) };
    Header { bth: bth(B, 5, false), kind: Kind::Ud { deth, imm: None } }
}

fn send_to(dest: UdDest, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: SendData::Sges(sges), ud: Some(dest) }
}

// clause: UD-GRH
#[test]
fn datagram_is_placed_after_its_grh() {
    for mtu in PathMtu::ALL {
        let mut p = Pair::new(Setup { path_mtu: mtu, ..setup() });
        let (src, dst) = (filled(&mut p, A, mtu.bytes()), blank(&mut p, B, mtu.bytes() + 41));
        for len in [0, 1, 3, mtu.bytes() - 1, mtu.bytes()] {
            recv(&mut p, B, 1, &[dst.all()]);
            post(&mut p, A, 1, SendOp::SendImm(imm(77)), &[src.sge(0, len)]);
            p.run();
            assert_eq!(sends(&mut p, A), statuses(1..=1, Success));
            let cqe = one_recv(&mut p, B);
            assert_eq!((cqe.status, cqe.opcode, cqe.byte_len), (Success, WcOpcode::Recv, len + 40));
            assert_eq!((cqe.src_qpn, cqe.grh, cqe.extra), (qpn(A), true, WcExtra::Imm(imm(77))));
            let data = bytes(&p, B, dst);
            assert_eq!(data[40..40 + len as usize], bytes(&p, A, src)[..len as usize]);
            let udp_len = p.log.last().map_or(0, |l| l.header.padded_len(l.len) + 4);
            assert_eq!(data[..40], net_header(&av(A)).to_grh(udp_len));
            assert_eq!(data.last(), Some(&0));
        }
    }
}

// clause: UD-GRH, UD-COMPLETION
#[test]
fn grh_of_ipv4_and_ipv6_hold_the_addresses() {
    let v4 = net_header(&av(A));
    let v6 = NetHeader {
        src: Gid(Ipv6Addr::LOCALHOST.octets()),
        dst: Gid([0xfd; 16]),
        flow_label: 0x12345,
        traffic_class: 3,
        ..v4
    };
    for (net, sl) in [(v4, 0b1010), (v6, 0b1001)] {
        let mut p = alone(B, setup());
        let dst = blank(&mut p, B, 100);
        recv(&mut p, B, 1, &[dst.all()]);
        p.inject_from(B, &net, &datagram(QKEY), b"hi");
        let cqe = one_recv(&mut p, B);
        assert_eq!((cqe.sl, cqe.src_qpn, cqe.byte_len), (sl, Qpn::new(0x7b), 42));
        let grh = bytes(&p, B, dst);
        if net.is_ipv4() {
            assert_eq!((grh[20], &grh[32..36], &grh[36..40]), (0x45, &[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        } else {
            assert_eq!((grh[0] >> 4, &grh[8..24], &grh[24..40]), (6, &net.src.0[..], &net.dst.0[..]));
        }
    }
}

// clause: UD-QKEY
#[test]
fn datagram_with_wrong_qkey_is_dropped_silently() {
    let mut p = alone(B, setup());
    let dst = blank(&mut p, B, 100);
    recv(&mut p, B, 1, &[dst.all()]);
    p.inject(B, &datagram(Qkey(QKEY.0 ^ 1)), b"hi");
    assert_eq!((p.recv_done(B), p.ends[1].dropped.0), (None, Some(DropReason::Qkey)));
    p.inject(B, &datagram(QKEY), b"hi");
    assert_eq!(recvs(&mut p, B), statuses(1..=1, Success));
}

// clause: UD-QKEY-CONTROLLED
#[test]
fn controlled_qkey_is_replaced_by_that_of_the_qp() {
    for (requested, sent_key) in
        [(QKEY, QKEY), (Qkey(0x8000_0000), QKEY), (Qkey(0xffff_ffff), QKEY), (Qkey(5), Qkey(5))]
    {
        let mut p = Pair::new(setup());
        let dest = UdDest { qkey: requested, ..destination(A) };
        assert_eq!(p.post_send(A, &send_to(dest, &[])), Ok(()));
        p.run();
        let [(Kind::Ud { deth, .. }, _)] = sent(&p, A)[..] else { panic!("{:?}", p.log) };
        assert_eq!((deth.qkey, deth.src_qpn), (sent_key, qpn(A)));
    }
}

// clause: UD-LOST
#[test]
fn too_small_receive_is_kept_for_the_next_datagram() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 20), blank(&mut p, B, 60));
    recv(&mut p, B, 1, &[dst.sge(0, 59)]);
    post(&mut p, A, 1, SendOp::Send, &[src.sge(0, 20)]);
    post(&mut p, A, 2, SendOp::Send, &[src.sge(0, 19)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
    let cqe = one_recv(&mut p, B);
    assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (1, Success, 59));
}

// clause: UD-LOST
#[test]
fn datagram_without_receive_is_dropped() {
    let mut p = Pair::new(setup());
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run();
    assert_eq!((sends(&mut p, A), p.ends[1].dropped.0), (statuses(1..=1, Success), Some(DropReason::NoReceive)));
    assert_eq!(p.log.len(), 1, "the receiver sends no response");
}

// clause: UD-PORT-MTU
#[test]
fn message_longer_than_the_port_mtu_fails_locally() {
    for (len, status) in [(256, Success), (257, LocLenErr)] {
        let mut p = Pair::new(setup());
        let src = filled(&mut p, A, 300);
        post(&mut p, A, 1, SendOp::Send, &[src.sge(0, len)]);
        post(&mut p, A, 2, SendOp::Send, &[]);
        p.run();
        let second = if status == Success { Success } else { WrFlushErr };
        assert_eq!(sends(&mut p, A), [(1, status), (2, second)]);
        assert_eq!(p.log.len(), if status == Success { 2 } else { 0 });
    }
}

// clause: STATE-SQE
#[test]
fn local_error_enters_sqe_and_modify_leaves_it() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 20), blank(&mut p, B, 60));
    recv(&mut p, B, 7, &[dst.all()]);
    post(&mut p, A, 1, SendOp::Send, &[Sge { addr: 0, ..src.all() }]);
    post(&mut p, A, 2, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(p.ends[0].qp.state(), QpState::Sqe);
    assert_eq!(go_to(&mut p, A, QpState::Rts), Ok(()));
    post(&mut p, A, 3, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, B)), (statuses(3..=3, Success), statuses(7..=7, Success)));
}

// clause: UD-ONE-PACKET
#[test]
fn datagram_psns_count_packets_and_are_not_checked() {
    let mut p = Pair::new(Setup { psn: [0xff_ffff, 4], ..setup() });
    for id in 0..3 {
        recv(&mut p, B, id, &[]);
        post(&mut p, A, id, SendOp::Send, &[]);
    }
    p.run();
    assert_eq!(request_psns(&p, A), [0xff_ffff, 0, 1]);
    let mut p = alone(B, setup());
    let dst = blank(&mut p, B, 40);
    for id in 1..=2 {
        recv(&mut p, B, id, &[dst.all()]);
        p.inject(B, &datagram(QKEY), &[]);
    }
    assert_eq!(recvs(&mut p, B), statuses(1..=2, Success));
}

// clause: UD-ANY-SOURCE
#[test]
fn datagrams_from_any_source_reach_any_destination() {
    let mut p = alone(B, setup());
    let dst = blank(&mut p, B, 40);
    recv(&mut p, B, 1, &[dst.all()]);
    let net = NetHeader { src: std::net::Ipv4Addr::new(10, 9, 8, 7).into(), ..net_header(&av(A)) };
    p.inject_from(B, &net, &datagram(QKEY), &[]);
    assert_eq!(recvs(&mut p, B), statuses(1..=1, Success));

    let mut p = Pair::new(setup());
    for n in 0..3 {
        let mut dest = destination(A);
        dest.av.dgid = std::net::Ipv4Addr::new(10, 1, 1, n).into();
        dest.qpn = Qpn::new(100 + u32::from(n));
        assert_eq!(p.post_send(A, &send_to(dest, &[])), Ok(()));
    }
    p.run();
    let to: Vec<_> = p.log.iter().map(|l| l.header.bth.dest_qpn.get()).collect();
    assert_eq!((to, sends(&mut p, A)), (vec![100, 101, 102], vec![(1, Success); 3]));
}

// clause: TAKE-REQUESTS
#[test]
fn datagrams_are_accepted_from_rtr_on() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        let mut p = Pair::idle(setup(), Rng::new(1));
        p.bring_to(B, state);
        let dst = blank(&mut p, B, 40);
        if state != QpState::Reset {
            recv(&mut p, B, 1, &[dst.all()]);
        }
        p.inject(B, &datagram(QKEY), &[]);
        assert_eq!(recvs(&mut p, B).len(), usize::from(state == QpState::Rtr), "{state:?}");
    }
}

#[test]
fn receive_list_may_split_the_grh() {
    let mut p = Pair::new(setup());
    let (src, dst) = (filled(&mut p, A, 200), blank(&mut p, B, 300));
    recv(&mut p, B, 1, &[dst.sge(0, 13), dst.sge(13, 0), dst.sge(13, 50), dst.sge(63, 200)]);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.run();
    assert_eq!(one_recv(&mut p, B).byte_len, 240);
    assert_eq!(bytes(&p, B, dst)[40..240], bytes(&p, A, src)[..]);
}

// clause: STATE-SQE
#[test]
fn send_error_flushes_requests_until_restart() {
    let mut pair = Pair::idle(Setup::of(Service::Ud), Rng::new(1));
    pair.bring_to(A, QpState::Rts);
    let mr = pair.end(A).host.memory.register(257, Access::empty());
    let post = |pair: &mut Pair, wr_id, len| {
        let ud = Some(UdDest { av: av(A), qpn: qpn(B), qkey: QKEY });
        let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
        let req = SendRequest { wr_id, op, flags, data: SendData::Sges(&[mr.sge(0, len)]), ud };
        assert_eq!(pair.post_send(A, &req), Ok(()));
    };
    (1..=3).zip([256, 257, 0]).for_each(|(wr_id, len)| post(&mut pair, wr_id, len));
    pair.transmit(A);
    assert_eq!(pair.end(A).qp.state(), QpState::Sqe);
    post(&mut pair, 4, 0);
    let end = pair.end(A);
    let attr = QpAttr { state: QpState::Rts, ..*end.qp.attr() };
    assert_eq!(end.qp.modify(&mut end.host, &attr, AttrMask::STATE), Ok(()));
    post(&mut pair, 5, 0);
    pair.transmit(A);
    let done: Vec<_> = core::iter::from_fn(|| pair.send_done(A)).map(|cqe| (cqe.wr_id, cqe.status)).collect();
    let flushed = WrFlushErr;
    let expected = [(1, Success), (2, LocLenErr), (3, flushed), (4, flushed), (5, Success)];
    assert_eq!(done, expected);
    let psns: Vec<_> = pair.log.iter().map(|logged| logged.header.bth.psn.get()).collect();
    assert_eq!(psns, [100, 101]);
}
