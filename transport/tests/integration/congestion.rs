//! Congestion: the marks that cause CNPs, the content and effect of a CNP, and the state after it.
//!
//! The numbers of DCQCN itself are checked in `qp/features/congestion.rs`. Here the line carries 10
//! Gbit/s, packets hold 1024 bytes and count as 1088, so a burst of 32 KiB is 31 packets (31 · 1088
//! = 33,728).

use super::*;
use core::num::NonZeroU64;
use roxe_sim::wire::{Batch, net_header};
use roxe_sim::{LinkSpec, Topology};
use roxe_transport::qp::{CongestionCounts, DropReason, Service};
use roxe_transport::time::Instant;
use roxe_wire::{Aeth, Gid, Kind, Msn, NetHeader, PathMtu, Syndrome, icrc};

const MTU: u32 = 1024;
/// Packets of a burst.
const BURST: usize = 31;
/// Pause after the first burst at 100 Mbit/s: 31 · 1088 · 8 bits take 2698.24 µs, less the 32 µs of
/// [`slow_down`], in which nothing was sent.
const BURST_TIME: Duration = Duration::from_nanos(2_666_240);

/// ECN codes (RFC 3168 §5).
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

fn with_line_rate(service: Service) -> Setup {
    Setup { path_mtu: PathMtu::Mtu1024, line_rate: NonZeroU64::new(10_000_000_000), ..Setup::of(service) }
}

/// Returns the network header of a packet to `to`, with this ECN code.
fn net(to: Peer, ecn: u8) -> NetHeader {
    NetHeader { traffic_class: 0x60 | ecn, ..net_header(&av(to.other())) }
}

/// Returns an empty SEND of `service` to B.
fn send_to_b(service: Service, psn: u32) -> Header {
    match service {
        Service::Rc => request(B, psn, SEND_ONLY),
        _ => Header { bth: bth(B, psn, false), kind: uc(Request::SendOnly(SendTail::Plain)) },
    }
}

/// Returns the packets that `side` sends now: network header, headers and bytes.
fn emitted(pair: &mut Pair, side: Peer) -> Vec<(NetHeader, Header, Vec<u8>)> {
    let mut batch = Batch::default();
    let world = &mut **pair;
    let end = &mut world.ends[side.index()];
    let _ = end.qp.poll_transmit(&mut end.host, &mut batch.open(&mut world.wire.pool, 64, false, 0));
    let header = |bytes: &[u8]| Packet::parse(bytes).expect("parse the packet").header;
    batch.drain().map(|(net, _, bytes)| (net, header(&bytes), bytes)).collect()
}

/// Returns the number of CNPs that `side` sends now.
fn cnps(pair: &mut Pair, side: Peer) -> usize {
    emitted(pair, side).iter().filter(|(_, header, _)| header.kind == Kind::Cnp).count()
}

fn counts(pair: &mut Pair, side: Peer) -> Option<CongestionCounts> {
    pair.end(side).qp.take_congestion_counts()
}

fn cnp(to: Peer) -> Header {
    Header { bth: Bth { becn: true, ..bth(to, 0, false) }, kind: Kind::Cnp }
}

/// Delivers a CNP to `to` and returns the result.
fn deliver_cnp(pair: &mut Pair, to: Peer, net: &NetHeader) -> Option<DropReason> {
    pair.end(to).dropped = (None, 0);
    pair.inject_from(to, net, &cnp(to), &[]);
    pair.end(to).dropped.0
}

/// Moves the clock of both ends.
fn advance(pair: &mut Pair, time: Duration) {
    let now = pair.now().after(time);
    pair.ends.iter_mut().for_each(|end| end.host.clock = now);
}

/// Reduces the rate of `side` to the minimum, 100 Mbit/s: seven cuts, 4 µs apart.
fn slow_down(pair: &mut Pair, side: Peer) {
    for _ in 0..=7 {
        assert_eq!(deliver_cnp(pair, side, &net(side, ECT_0)), None);
        advance(pair, Duration::from_micros(4));
    }
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

// clause: CNP-INTERVAL
#[test]
fn marks_cause_at_most_one_cnp_per_50_us() {
    for service in [Service::Rc, Service::Uc] {
        let mut p = alone(B, Setup::of(service));
        // Marks at 0, 49.999 and 50 µs after the first. The CNP of the first mark is sent at once.
        let steps = [(Duration::ZERO, 1), (Duration::from_nanos(49_999), 0), (Duration::from_nanos(1), 1)];
        for (psn, (later, expected)) in (100..).zip(steps) {
            advance(&mut p, later);
            p.inject_from(B, &net(B, CE), &send_to_b(service, psn), &[]);
            assert_eq!(cnps(&mut p, B), expected, "{service:?} {psn}");
        }
        let expected =
            CongestionCounts { np_ecn_marked_roce_packets: 3, np_cnp_sent: 2, ..CongestionCounts::default() };
        assert_eq!(counts(&mut p, B), Some(expected));
        assert_eq!(counts(&mut p, B), None, "the first call took the counts");
        assert_eq!(p.end(B).qp.poll_timeout(), None, "the interval needs no timer");
    }
}

// clause: CNP-WHEN
#[test]
fn only_marked_data_of_the_peer_causes_cnps() {
    for ecn in [0, ECT_0, ECT_1] {
        let mut p = alone(B, Setup::default());
        p.inject_from(B, &net(B, ecn), &send_to_b(Service::Rc, 100), &[]);
        assert_eq!((cnps(&mut p, B), counts(&mut p, B)), (0, None), "{ecn:02b}");
    }
    let other_src = NetHeader { src: Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 9)), ..net(B, CE) };
    let other_dst = NetHeader { dst: other_src.src, ..net(B, CE) };
    let other_pkey = Header { bth: Bth { pkey: Pkey(0x1234), ..bth(B, 100, true) }, kind: Kind::RcRequest(SEND_ONLY) };
    let ack = Response::Ack(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(0) });
    let other_service = send_to_b(Service::Uc, 100);
    let cases = [
        (other_src, send_to_b(Service::Rc, 100)),
        (other_dst, send_to_b(Service::Rc, 100)),
        (net(B, CE), other_pkey),
        (net(B, CE), response(B, 900, ack)),
        (net(B, CE), cnp(B)),
        (net(B, CE), other_service),
    ];
    for (n, (net, header)) in cases.iter().enumerate() {
        let mut p = alone(B, Setup::default());
        p.inject_from(B, net, header, &[]);
        assert_eq!((cnps(&mut p, B), counts(&mut p, B)), (0, None), "case {n}");
    }
}

// clause: CNP-WHEN
#[test]
fn marked_datagrams_cause_no_cnp() {
    let mut p = alone(B, with_line_rate(Service::Ud));
    let deth = roxe_wire::Deth { qkey: QKEY, src_qpn: qpn(A) };
    let datagram = Header { bth: bth(B, 100, false), kind: Kind::Ud { deth, imm: None } };
    p.inject_from(B, &net(B, CE), &datagram, &[]);
    assert_eq!((cnps(&mut p, B), counts(&mut p, B)), (0, None));
    assert_eq!(deliver_cnp(&mut p, B, &net(B, 0)), Some(DropReason::WrongService));
}

// clause: CNP-WHEN
#[test]
fn marked_read_data_makes_the_requester_send_cnps() {
    let mut p = Pair::new(Setup::default());
    let (from, to) = (filled(&mut p, B, 512), blank(&mut p, A, 512));
    post(&mut p, A, 1, read_from(from), &[to.all()]);
    assert_eq!(emitted(&mut p, A).len(), 1);
    let first = Response::ReadFirst(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) });
    p.inject_from(A, &net(A, CE), &response(A, 100, first), &[7; 256]);
    assert_eq!(cnps(&mut p, A), 1);
}

// clause: CNP-WHEN
#[test]
fn cnp_is_sent_in_rtr_but_not_in_err() {
    let mut p = Pair::idle(Setup::default(), Rng::new(1));
    p.bring_to(B, QpState::Rtr);
    p.inject_from(B, &net(B, CE), &send_to_b(Service::Rc, 100), &[]);
    assert!(p.end(B).qp.has_work());
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    assert!(!p.end(B).qp.has_work());
    assert_eq!(emitted(&mut p, B), []);
}

/// Regression: the checks of the simulation counted such a CNP as sent in the error state.
// clause: CNP-WHEN
#[test]
fn cnp_of_a_refused_request_leaves_with_the_nak() {
    let mut p = Pair::new(Setup::default());
    let source = filled(&mut p, B, 4);
    let reth = roxe_wire::Reth { va: source.addr, rkey: source.rkey(), dma_len: 4 };
    p.inject_from(B, &net(B, CE), &request(B, 100, Request::Read(reth)), &[]);
    p.end(B).host.memory.unmap(source);
    p.transmit(B);
    assert_eq!(p.end(B).qp.state(), QpState::Err);
    assert_eq!(counts(&mut p, B).map(|counts| counts.np_cnp_sent), Some(1));
}

#[test]
fn cnp_waits_for_the_next_batch() {
    let mut p = alone(B, Setup::default());
    p.inject_from(B, &net(B, CE), &send_to_b(Service::Rc, 100), &[]);
    let mut batch = Batch::default();
    let world = &mut *p;
    let end = &mut world.ends[1];
    let state = end.qp.poll_transmit(&mut end.host, &mut batch.open(&mut world.wire.pool, 0, false, 0));
    assert_eq!(state, roxe_transport::cx::TxState::BatchFull);
    assert_eq!((cnps(&mut p, B), cnps(&mut p, B)), (1, 0));
}

/// Compares our CNP with that of a real card (ConnectX-4 Lx, from the captures of scapy) for the
/// same addresses and queue pair. With the card's UDP source port and IP identification, ours is
/// equal from the first byte of the BTH to the last of the ICRC.
// clause: CNP-SENT
#[test]
fn cnp_bytes_equal_those_of_hardware() {
    const TRAFFIC_CLASS: u8 = 0xc2;
    let hardware = "8100ffff40000118000000000000000000000000000000000000000082fd002a";
    let address = |net| Gid::from(core::net::Ipv4Addr::new(10, 0, net, 1));
    let (us, peer) = (address(17), address(18));
    let setup = with_line_rate(Service::Rc);
    let mut p = Pair::idle(setup, Rng::new(1));
    let end = p.end(B);
    for state in [QpState::Init, QpState::Rtr] {
        let mut attr = QpAttr { state, dest_qpn: roxe_wire::Qpn::new(0x118), ..setup.attr(B) };
        (attr.av.sgid, attr.av.dgid) = (us, peer);
        assert_eq!(end.qp.modify(&mut end.host, &attr, setup.mask(state)), Ok(()));
    }
    let marked = NetHeader { src: peer, dst: us, ..net(B, CE) };
    p.inject_from(B, &marked, &send_to_b(Service::Rc, 100), &[]);
    let (net, header, mut bytes) = emitted(&mut p, B).swap_remove(0);
    assert_eq!(header.kind, Kind::Cnp);
    assert_eq!((net.src, net.dst, net.traffic_class), (us, peer, TRAFFIC_CLASS));
    icrc::seal(&NetHeader { src_port: 0, ident: 0x718c, hop_limit: 64, ..net }, &mut bytes);
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, hardware);
}

// clause: ECN-CAPABLE
#[test]
fn packets_are_ecn_capable_with_a_line_rate() {
    let classes = |line_rate, service| {
        let setup = Setup { line_rate, ..Setup::of(service) };
        let mut p = Pair::idle(setup, Rng::new(1));
        p.bring_to(B, QpState::Init);
        let end = p.end(B);
        for state in [QpState::Rtr, QpState::Rts] {
            let mut attr = QpAttr { state, ..setup.attr(B) };
            attr.av.traffic_class = 0x68 | ECT_1;
            assert_eq!(end.qp.modify(&mut end.host, &attr, setup.mask(state)), Ok(()));
        }
        post(&mut p, B, 1, SendOp::Send, &[]);
        p.inject_from(B, &net(B, CE), &send_to_b(service, 100), &[]);
        let user = p.end(B).qp.attr().av.traffic_class;
        (user, emitted(&mut p, B).iter().map(|(net, ..)| net.traffic_class).collect::<Vec<_>>())
    };
    let line = NonZeroU64::new(10_000_000_000);
    // The CNP, on RC the RNR NAK, and the SEND: DSCP as requested, ECT(0) as set by the device.
    assert_eq!(classes(line, Service::Rc), (0x69, vec![0xc2, 0x6a, 0x6a]));
    assert_eq!(classes(line, Service::Uc), (0x69, vec![0xc2, 0x6a]));
    assert_eq!(classes(None, Service::Rc), (0x69, vec![0xc1, 0x69, 0x69]), "off: the traffic class of the program");
}

/// At 100 Mbit/s 31 packets leave, and the next 31 after the time that the first take at this rate.
/// The last packet of each burst requests an acknowledgement, so that no request waits for one
/// across a pause.
// clause: DCQCN-PACING
#[test]
fn limited_requester_sends_burst_by_burst() {
    for service in [Service::Rc, Service::Uc] {
        let mut p = alone(A, with_line_rate(service));
        let mr = filled(&mut p, A, 80 * MTU);
        slow_down(&mut p, A);
        let start = p.now();
        post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
        let first = emitted(&mut p, A);
        assert_eq!(first.len(), BURST, "{service:?}");
        assert_eq!(first.last().map(|(_, header, _)| header.bth.ack_req), Some(service == Service::Rc));
        assert_eq!(p.end(A).qp.poll_timeout(), Some(start.after(BURST_TIME)));
        assert!(!p.end(A).qp.has_work());
        advance(&mut p, BURST_TIME - Duration::from_nanos(1));
        let end = p.end(A);
        end.qp.handle_timeout(&mut end.host);
        assert_eq!(emitted(&mut p, A), [], "{service:?}: a pause is not cut short");
        advance(&mut p, Duration::from_nanos(1));
        let end = p.end(A);
        end.qp.handle_timeout(&mut end.host);
        // The rate has been raised in the meantime; the size of a burst is the same.
        assert_eq!(emitted(&mut p, A).len(), BURST, "{service:?}");
    }
}

/// All data arrives in the time that the rates allow: 1 MiB is 1024 packets of 1088 bytes. At 100
/// Mbit/s they would take 89 ms, at the line rate less than 1 ms; with the rate half way back to 10
/// Gbit/s after 1.5 ms they take about 4 ms.
#[test]
fn limited_transfer_completes_and_leaves_no_timer() {
    let mut p = Pair::new(with_line_rate(Service::Rc));
    let (from, to) = (filled(&mut p, A, 1 << 20), blank(&mut p, B, 1 << 20));
    slow_down(&mut p, A);
    post(&mut p, A, 1, write_to(to), &[from.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    assert_eq!(bytes(&p, B, to), bytes(&p, A, from));
    assert!((ms(3)..ms(6)).contains(&p.elapsed()), "{:?}", p.elapsed());
    p.assert_settled();
}

/// One CNP: 4 µs later the rate is half of 10 Gbit/s, and it is the line rate after ten raises of
/// 1.5 ms. Recovery needs no timer.
#[test]
fn idle_queue_pair_recovers_without_a_timer() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 64 * MTU);
    assert_eq!(deliver_cnp(&mut p, A, &net(A, ECT_0)), None);
    assert_eq!(p.end(A).qp.poll_timeout(), None);
    advance(&mut p, us(4 + 10 * 1500));
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), 64, "no pause at the line rate");
    let expected = CongestionCounts { rp_cnp_handled: 1, ..CongestionCounts::default() };
    assert_eq!(counts(&mut p, A), Some(expected));
}

#[test]
fn burst_is_bounded_before_the_first_cut() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 64 * MTU);
    assert_eq!(deliver_cnp(&mut p, A, &net(A, ECT_0)), None);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), BURST);
    // At the full 10 Gbit/s a packet takes 870.4 ns, rounded up.
    assert_eq!(p.end(A).qp.poll_timeout(), Some(p.now().after(Duration::from_nanos(31 * 871))));
}

// clause: CNP-RECEIVED
#[test]
fn cnps_of_other_hosts_are_ignored() {
    let other_src = NetHeader { src: Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 9)), ..net(A, 0) };
    let other_dst = NetHeader { dst: other_src.src, ..net(A, 0) };
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 64 * MTU);
    for net in [other_src, other_dst] {
        assert_eq!(deliver_cnp(&mut p, A, &net), Some(DropReason::Address));
    }
    let other_pkey = Header { bth: Bth { pkey: Pkey(0x1234), ..cnp(A).bth }, kind: Kind::Cnp };
    p.inject_from(A, &net(A, 0), &other_pkey, &[]);
    assert_eq!(p.end(A).dropped.0, Some(DropReason::Pkey));
    advance(&mut p, us(10));
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!((emitted(&mut p, A).len(), counts(&mut p, A)), (64, None));
}

// clause: DCQCN-OFF
#[test]
fn cnps_without_line_rate_are_ignored_and_counted() {
    let mut p = alone(A, Setup { line_rate: None, ..with_line_rate(Service::Rc) });
    let mr = filled(&mut p, A, 64 * MTU);
    assert_eq!(deliver_cnp(&mut p, A, &net(A, 0)), Some(DropReason::CongestionNotice));
    assert_eq!(DropReason::CongestionNotice.name(), "rp_cnp_ignored");
    advance(&mut p, us(10));
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!((emitted(&mut p, A).len(), counts(&mut p, A)), (64, None));
}

// clause: CNP-RECEIVED
#[test]
fn cnp_in_a_state_that_cannot_send_is_dropped() {
    for state in [QpState::Init, QpState::Rtr] {
        let mut p = Pair::idle(with_line_rate(Service::Rc), Rng::new(1));
        p.bring_to(A, state);
        assert_eq!(deliver_cnp(&mut p, A, &net(A, 0)), Some(DropReason::BadState), "{state:?}");
    }
}

/// With a CNP every microsecond the rate stays at its minimum, 100 Mbit/s. In 20 ms this carries
/// 229 packets, and one more burst is in progress.
// clause: DCQCN-LEAST
#[test]
fn cnp_flood_leaves_the_minimum_rate() {
    let mut p = alone(A, with_line_rate(Service::Uc));
    let mr = filled(&mut p, A, 1000 * MTU);
    slow_down(&mut p, A);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    let mut sent = 0;
    for _ in 0..20_000 {
        assert_eq!(deliver_cnp(&mut p, A, &net(A, 0)), None);
        let end = p.end(A);
        end.qp.handle_timeout(&mut end.host);
        sent += emitted(&mut p, A).len();
        advance(&mut p, us(1));
    }
    assert_eq!(sent, 8 * BURST, "a burst before and after each of the 7 pauses of 2.698 ms");
}

#[test]
fn reset_forgets_rate_and_pause() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 64 * MTU);
    slow_down(&mut p, A);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), BURST);
    assert_eq!(go_to(&mut p, A, QpState::Reset), Ok(()));
    assert_eq!(p.end(A).qp.poll_timeout(), None);
    p.bring_to(A, QpState::Rts);
    post(&mut p, A, 2, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), 64);
}

#[test]
fn error_state_has_no_timer() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 64 * MTU);
    slow_down(&mut p, A);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), BURST);
    assert_eq!(go_to(&mut p, A, QpState::Err), Ok(()));
    assert_eq!(p.end(A).qp.poll_timeout(), None);
    assert_eq!(sends(&mut p, A), [(1, WcStatus::WrFlushErr)]);
}

/// 20 packets leave and the first is NAKed. The burst of 31 packets then allows 11 retransmissions.
// clause: DCQCN-PACING
#[test]
fn retransmissions_are_paced_too() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 20 * MTU);
    slow_down(&mut p, A);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), 20);
    let nak = Aeth { syndrome: Syndrome::Nak(roxe_wire::NakCode::PsnSequence), msn: Msn::new(0) };
    p.inject_from(A, &net(A, 0), &response(A, 100, Response::Ack(nak)), &[]);
    let retransmitted = emitted(&mut p, A);
    assert_eq!((retransmitted.len(), retransmitted[0].1.bth.psn), (11, Psn::new(100)));
}

#[test]
fn pause_ends_when_everything_is_acknowledged() {
    let mut p = alone(A, with_line_rate(Service::Rc));
    let mr = filled(&mut p, A, 20 * MTU);
    slow_down(&mut p, A);
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), 20);
    let answer = |syndrome| Response::Ack(Aeth { syndrome, msn: Msn::new(1) });
    let nak = answer(Syndrome::Nak(roxe_wire::NakCode::PsnSequence));
    p.inject_from(A, &net(A, 0), &response(A, 100, nak), &[]);
    assert_eq!(emitted(&mut p, A).len(), 11);
    p.inject_from(A, &net(A, 0), &response(A, 119, answer(Syndrome::ACK_UNLIMITED)), &[]);
    assert_eq!(sends(&mut p, A), [(1, WcStatus::Success)]);
    assert_eq!(p.end(A).qp.poll_timeout(), None);
}

/// READ responses are paced like requests. Acknowledgements are not paced, unless they follow a
/// READ response.
// clause: DCQCN-PACING
#[test]
fn dcqcn_paces_read_responses_and_not_acks() {
    let mut p = alone(B, with_line_rate(Service::Rc));
    let mr = filled(&mut p, B, 64 * MTU);
    slow_down(&mut p, B);
    let start = p.now();
    let reth = roxe_wire::Reth { va: mr.addr, rkey: mr.rkey(), dma_len: 40 * MTU };
    p.inject_from(B, &net(B, 0), &request(B, 100, Request::Read(reth)), &[]);
    assert_eq!(emitted(&mut p, B).len(), BURST);
    assert_eq!(p.end(B).qp.poll_timeout(), Some(start.after(BURST_TIME)));
    assert!(!p.end(B).qp.has_work() && !p.end(B).qp.is_quiescent());
    advance(&mut p, BURST_TIME);
    let end = p.end(B);
    end.qp.handle_timeout(&mut end.host);
    assert_eq!(emitted(&mut p, B).len(), 9);
    let write = roxe_wire::Reth { dma_len: 0, ..reth };
    slow_down(&mut p, B);
    for n in 0..2 * BURST as u32 {
        p.inject_from(B, &net(B, 0), &request(B, 140 + n, Request::WriteOnly(write, None)), &[]);
        assert_eq!(emitted(&mut p, B).len(), 1, "acknowledgement {n}");
    }
}

#[test]
fn deadline_is_the_earliest_of_all_timers() {
    let mut p = alone(A, Setup { timeout: 1, ..with_line_rate(Service::Rc) });
    let mr = filled(&mut p, A, 64 * MTU);
    slow_down(&mut p, A);
    let start = p.now();
    post(&mut p, A, 1, SendOp::Send, &[mr.all()]);
    assert_eq!(emitted(&mut p, A).len(), BURST);
    let pause = start.after(BURST_TIME);
    assert_eq!(p.end(A).qp.poll_timeout(), Some(pause));
    advance(&mut p, BURST_TIME);
    let end = p.end(A);
    end.qp.handle_timeout(&mut end.host);
    // The pause is over, the wait for an acknowledgement (4.194304 ms at least) is not.
    assert_eq!(p.end(A).qp.poll_timeout(), Some(Instant(start.0 + (4096 << 10))));
}

/// Sends 32 MiB over a link of 10 Gbit/s with a window of 1 MiB and a line rate of 40 Gbit/s.
/// Returns the longest queue after the start (from the 10th millisecond on) and the total time.
fn queue_of(line_rate: Option<NonZeroU64>) -> (u64, Duration) {
    let (path_mtu, flow_limit) = (PathMtu::Mtu4096, Some(1 << 20));
    let mut p = Pair::new(Setup { path_mtu, line_rate, flow_limit, log: false, ..Setup::default() });
    let spec = LinkSpec { mark_above: Some(64 << 10), ..LinkSpec::gigabits(us(5), 10) };
    p.wire.topology = Topology::star(2, spec);
    let (from, to) = (filled(&mut p, A, 32 << 20), blank(&mut p, B, 32 << 20));
    post(&mut p, A, 1, write_to(to), &[from.all()]);
    p.run_for(ms(10));
    p.wire.topology.up(0).tally.longest = 0;
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    assert!(bytes(&p, B, to) == bytes(&p, A, from));
    p.assert_settled();
    (p.wire.topology.up(0).tally.longest, p.elapsed())
}

/// Tests the complete loop of switch, receiver and sender. Without DCQCN the queue is as long as
/// the window; with it the queue stays below a quarter of that, and the link is still busy (32 MiB
/// take it 27 ms).
#[test]
fn dcqcn_keeps_the_queue_of_a_slow_link_short() {
    let (without, took) = queue_of(None);
    let (with, took_limited) = queue_of(NonZeroU64::new(40_000_000_000));
    assert!(without > 900 << 10, "{without} bytes");
    assert!(with < without / 4, "{with} of {without} bytes");
    assert!(took >= ms(27) && took_limited < took * 3 / 2, "{took:?} and {took_limited:?}");
}
