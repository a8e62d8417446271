//! Each rule fires for its mistake, and not for correct connections.

use super::*;
use crate::testing::{Card, datagram, packet};
use roxe_transport::qp::{QpAttr, RetryCounts, Service};
use roxe_transport::wr::Av;
use roxe_wire::{PathMtu, Qkey, Qpn, SendTail};

const SEND: Kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));

/// The addresses of packets from `crate::testing`.
const PEER: Gid = Gid([1; 16]);
const OWN: Gid = Gid([2; 16]);

fn attr(dest_qpn: u32) -> QpAttr {
    let psn = Psn::new(7);
    let av = Av { sgid: OWN, dgid: PEER, ..Av::default() };
    let (path_mtu, state, dest_qpn) = (PathMtu::Mtu1024, QpState::Rts, Qpn::new(dest_qpn));
    let qkey = Qkey(5);
    QpAttr { state, path_mtu, dest_qpn, rq_psn: psn, sq_psn: psn, av, qkey, retry_cnt: 7, ..QpAttr::default() }
}

fn connect(card: &mut Card, qp: ObjectId, attr: &QpAttr) {
    assert_eq!(card.emit(Event::Modified { qp, attr, mask: AttrMask::all() }), []);
}

/// Creates a queue pair whose peer, queue pair 99, is in another process.
fn end(card: &mut Card) -> ObjectId {
    let qp = card.qp();
    connect(card, qp, &attr(99));
    qp
}

/// Creates two queue pairs, numbers 1 and 2, of one process; `change` changes the second.
fn pair(card: &mut Card, change: impl FnOnce(&mut QpAttr)) -> [ObjectId; 2] {
    let [a, b] = [card.qp(), card.qp()];
    connect(card, a, &attr(2));
    let mut back = QpAttr { av: Av { sgid: PEER, dgid: OWN, ..Av::default() }, ..attr(1) };
    change(&mut back);
    connect(card, b, &back);
    [a, b]
}

fn drop_packet(card: &mut Card, qp: ObjectId, reason: DropReason, packet: DroppedPacket) -> Vec<Rule> {
    card.emit(Event::Dropped { qp, reason, packet: Some(packet) })
}

#[test]
fn peer_that_starts_at_another_psn_is_reported() {
    let mut card = Card::new();
    for (psn, times, reason) in [(8, 4, DropReason::OutOfSequence), (3, 1, DropReason::DuplicateRequest)] {
        let qp = end(&mut card);
        for _ in 1..times {
            assert_eq!(drop_packet(&mut card, qp, reason, packet(SEND, psn, 7, 64)), []);
            assert_eq!(drop_packet(&mut card, qp, reason, packet(SEND, psn + 1, 7, 64)), []);
        }
        assert_eq!(drop_packet(&mut card, qp, reason, packet(SEND, psn, 7, 64)), [Rule::PsnMismatch]);
    }
}

#[test]
fn connection_that_starts_mid_message_is_reported() {
    let mut card = Card::new();
    let [a, b] = [end(&mut card), end(&mut card)];
    let middle = Kind::RcRequest(Request::SendMiddle);
    assert_eq!(drop_packet(&mut card, a, DropReason::InvalidRequest, packet(SEND, 7, 7, 64)), []);
    assert_eq!(drop_packet(&mut card, a, DropReason::InvalidRequest, packet(middle, 8, 8, 64)), []);
    assert_eq!(drop_packet(&mut card, b, DropReason::InvalidRequest, packet(middle, 7, 7, 64)), [Rule::PsnMismatch]);
}

#[test]
fn packets_of_previous_connection_are_clean() {
    let mut card = Card::new();
    let qp = end(&mut card);
    card.emit(Event::Modified { qp, attr: &QpAttr::default(), mask: AttrMask::STATE });
    connect(&mut card, qp, &attr(99));
    for _ in 0..2 {
        assert_eq!(drop_packet(&mut card, qp, DropReason::DuplicateRequest, packet(SEND, 3, 7, 64)), []);
    }
}

#[test]
fn lost_packet_is_clean() {
    let mut card = Card::new();
    let qp = end(&mut card);
    for psn in 8..40 {
        assert_eq!(drop_packet(&mut card, qp, DropReason::OutOfSequence, packet(SEND, psn, 7, 64)), []);
    }
    for _ in 0..9 {
        assert_eq!(drop_packet(&mut card, qp, DropReason::DuplicateRequest, packet(SEND, 8, 9, 64)), []);
    }
}

#[test]
fn local_ends_with_different_psns_are_reported() {
    let mut card = Card::new();
    let [a, _] = pair(&mut card, |peer| peer.sq_psn = Psn::new(8));
    assert_eq!(drop_packet(&mut card, a, DropReason::OutOfSequence, packet(SEND, 8, 7, 64)), [Rule::PsnMismatch]);
    let mut card = Card::new();
    let [a, _] = pair(&mut card, |_| {});
    for _ in 0..9 {
        assert_eq!(drop_packet(&mut card, a, DropReason::OutOfSequence, packet(SEND, 8, 7, 64)), []);
    }
}

#[test]
fn packet_of_another_path_mtu_is_reported() {
    let mut card = Card::new();
    let [a, b] = [end(&mut card), end(&mut card)];
    let mut refuse = |qp, request, len| card.emit(Event::WrongLength { qp, request: &request, len });
    assert_eq!(refuse(a, Request::SendMiddle, 512), [Rule::MtuMismatch]);
    assert_eq!(refuse(a, Request::SendMiddle, 512), [], "once is enough");
    assert_eq!(refuse(b, Request::SendLast(SendTail::Plain), 0), []);
    assert_eq!(refuse(b, Request::SendLast(SendTail::Plain), 2048), [Rule::MtuMismatch]);
}

#[test]
fn reads_above_max_dest_rd_atomic_are_reported() {
    let mut card = Card::new();
    let qp = end(&mut card);
    assert_eq!(drop_packet(&mut card, qp, DropReason::InvalidRequest, packet(SEND, 9, 9, 0)), []);
    assert_eq!(card.emit(Event::TooManyReads { qp }), [Rule::DepthMismatch]);
}

#[test]
fn first_packet_with_other_gid_is_reported() {
    let mut card = Card::new();
    let qp = end(&mut card);
    let stranger = DroppedPacket { src: Gid([3; 16]), ..packet(SEND, 7, 7, 64) };
    assert_eq!(
        drop_packet(
            &mut card,
            qp,
            DropReason::Address,
            DroppedPacket { header: packet(SEND, 1, 7, 0).header, ..stranger }
        ),
        []
    );
    assert_eq!(drop_packet(&mut card, qp, DropReason::Address, stranger), [Rule::GidMismatch]);
    let differ = Event::FamiliesDiffer { sgid: PEER, sgid_index: 1, dgid: OWN };
    assert_eq!(card.emit(differ), [Rule::GidMismatch]);
}

#[test]
fn datagram_with_wrong_qkey_is_reported_once() {
    let mut card = Card::new();
    let qp = card.qp_of(Service::Ud);
    connect(&mut card, qp, &attr(0));
    assert_eq!(drop_packet(&mut card, qp, DropReason::NoReceive, datagram(5, 8)), []);
    assert_eq!(drop_packet(&mut card, qp, DropReason::Qkey, datagram(6, 8)), [Rule::QkeyMismatch]);
    assert_eq!(drop_packet(&mut card, qp, DropReason::Qkey, datagram(6, 8)), []);
}

#[test]
fn timeout_with_wrong_dest_qpn_is_reported() {
    let one_timeout = RetryCounts { local_ack_timeout_err: 1, ..RetryCounts::default() };
    for (dest_qpn, expected) in [(1, &[][..]), (77, &[Rule::DestMismatch])] {
        let mut card = Card::new();
        let [a, _] = pair(&mut card, |peer| peer.dest_qpn = Qpn::new(dest_qpn));
        assert_eq!(card.emit(Event::Retried { qp: a, counts: one_timeout }), expected);
    }
    let mut card = Card::new();
    let [_, b] = pair(&mut card, |peer| peer.dest_qpn = Qpn::new(77));
    assert_eq!(card.emit(Event::Retried { qp: b, counts: one_timeout }), [Rule::DestMismatch]);
}

#[test]
fn read_response_of_another_mtu_is_reported() {
    for (path_mtu, expected) in [(PathMtu::Mtu1024, &[][..]), (PathMtu::Mtu512, &[Rule::MtuMismatch])] {
        let mut card = Card::new();
        let [a, _] = pair(&mut card, |peer| peer.path_mtu = path_mtu);
        let cqe = roxe_transport::wr::Cqe { status: WcStatus::BadRespErr, ..Default::default() };
        assert_eq!(card.emit(Event::Completed { qp: a, side: Side::Send, cqe: &cqe }), expected);
    }
}
