//! Rates that programs and paths set: the times of transmission, and the end of a limit.
//!
//! Packets hold 1024 bytes and count as 1088, which take 87.04 µs at 100 Mbit/s. A millisecond of
//! that is 12,500 bytes, so a burst has 12 packets (13,056 bytes). The first burst has 13, because
//! 100 µs of unused time are added (13 · 87.04 - 100 = 1031.52 µs).

use super::*;
use roxe_transport::qp::{RateLimit, Service};
use roxe_wire::PathMtu;

const MTU: u32 = 1024;
const PACKET: Duration = Duration::from_nanos(87_040);

fn setup(service: Service) -> Setup {
    Setup { path_mtu: PathMtu::Mtu1024, ..Setup::of(service) }
}

fn mbps(mbps: u32) -> RateLimit {
    RateLimit { kbps: mbps * 1000, max_burst: 0 }
}

fn limit(p: &mut Pair, side: Peer, rate_limit: RateLimit) {
    let end = p.end(side);
    let attr = QpAttr { rate_limit, ..QpAttr::default() };
    assert_eq!(end.qp.modify(&mut end.host, &attr, AttrMask::RATE_LIMIT), Ok(()));
    assert_eq!(end.qp.attr().rate_limit, rate_limit);
}

/// Posts `packets` packets of A, in messages of one packet (UD) or one message.
fn load(p: &mut Pair, packets: u32) {
    let from = filled(p, A, MTU * packets);
    let to = blank(p, B, MTU * packets);
    if p.setup.service == Service::Ud {
        (0..packets).for_each(|at| post(p, A, at.into(), SendOp::Send, &[from.sge(at * MTU, MTU)]));
    } else {
        post(p, A, 1, write_to(to), &[from.all()]);
    }
}

/// Returns the number of packets with payload that `from` sent so far.
fn data_packets(p: &Pair, from: Peer) -> usize {
    p.log.iter().filter(|packet| packet.from == from && packet.len > 0).count()
}

// clause: RATE-LIMIT
#[test]
fn rate_limit_holds_for_every_service() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut p = Pair::new(setup(service));
        limit(&mut p, A, mbps(100));
        load(&mut p, 60);
        p.transmit(A);
        assert_eq!(data_packets(&p, A), 13, "{service:?}");
        let start = p.now();
        assert_eq!(
            p.ends[0].qp.poll_timeout().map(|at| at.since(start)),
            Some(PACKET * 13 - Duration::from_micros(100))
        );
        p.run_for(PACKET * 24);
        assert!((35..=40).contains(&data_packets(&p, A)), "{service:?}: {} packets", data_packets(&p, A));
        limit(&mut p, A, mbps(0));
        p.transmit(A);
        assert_eq!(data_packets(&p, A), 60, "{service:?}: the other packets leave at once");
        p.run();
        assert!(sends(&mut p, A).iter().all(|(_, status)| *status == WcStatus::Success));
        p.assert_settled();
    }
}

// clause: RATE-LIMIT
#[test]
fn long_run_rate_is_the_requested_rate() {
    let mut p = Pair::new(Setup { timeout: 20, ..setup(Service::Rc) });
    limit(&mut p, A, mbps(10));
    load(&mut p, 500);
    p.run();
    // 500 packets of 870.4 µs.
    let (took, ideal) = (p.elapsed(), PACKET * 10 * 500);
    assert!(took > ideal - PACKET * 30 && took < ideal + PACKET * 30, "{took:?}, {ideal:?}");
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
}

// clause: RATE-LIMIT
#[test]
fn max_burst_sets_the_burst_length() {
    let mut p = Pair::new(setup(Service::Rc));
    limit(&mut p, A, RateLimit { kbps: 100_000, max_burst: 1 });
    load(&mut p, 60);
    p.transmit(A);
    assert_eq!(data_packets(&p, A), 2, "one packet, and one for the unused time before");
    assert!(p.log[1].header.bth.ack_req, "the last one before a pause requests an acknowledgement");
    limit(&mut p, A, RateLimit { kbps: 100_000, max_burst: 40_000 });
    p.transmit(A);
    assert_eq!(data_packets(&p, A), 2 + 38, "37 packets are less than the burst plus the unused time");
}

// clause: RATE-LIMIT, STATIC-RATE
#[test]
fn slower_limit_of_program_and_path_applies() {
    let burst_of = |static_rate, rate_limit| {
        let mut p = Pair::idle(setup(Service::Rc), Rng::new(1));
        p.bring_to(B, QpState::Rts);
        let (mut attr, setup, end) = (p.setup.attr(A), p.setup, p.end(A));
        attr.av.static_rate = static_rate;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = setup.mask(state) | if state == QpState::Rts { AttrMask::RATE_LIMIT } else { AttrMask::empty() };
            end.qp
                .modify(&mut end.host, &QpAttr { state, rate_limit, ..attr }, mask)
                .expect("modify the QP to its next state");
        }
        load(&mut p, 60);
        p.transmit(A);
        data_packets(&p, A)
    };
    assert_eq!((burst_of(0, mbps(0)), burst_of(100, mbps(0)), burst_of(2500, mbps(100))), (60, 13, 13));
    assert_eq!(burst_of(100, mbps(2500)), 13);
}

// clause: RATE-LIMIT
#[test]
fn read_responses_are_paced_and_acks_are_not() {
    let mut p = Pair::new(setup(Service::Rc));
    limit(&mut p, B, mbps(100));
    let (from, to) = (filled(&mut p, B, 60 * MTU), blank(&mut p, A, 60 * MTU));
    post(&mut p, A, 1, read_from(from), &[to.all()]);
    p.step();
    p.transmit(B);
    assert_eq!(data_packets(&p, B), 13);
    post(&mut p, A, 2, write_to(from), &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!(bytes(&p, A, to), bytes(&p, B, from));
}

// clause: STATE-RESET
#[test]
fn reset_lifts_the_limit() {
    let mut p = Pair::new(setup(Service::Rc));
    limit(&mut p, A, mbps(100));
    load(&mut p, 60);
    p.transmit(A);
    let end = p.end(A);
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    end.qp.modify(&mut end.host, &attr, AttrMask::STATE).expect("always");
    assert_eq!((end.qp.attr().rate_limit, end.qp.poll_timeout()), (mbps(0), None));
}
