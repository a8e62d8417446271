//! Scripts of arrivals: which packets wait, their order of delivery, and the end of the wait.

use super::*;
use crate::qp::{AttrMask, QpAttr, QpCaps, QpConfig, QpState, transition};
use crate::sim_host::{Mr, SimHost};
use crate::wr::{Av, RecvRequest, WcStatus};
use core::net::Ipv4Addr;
use roxe_wire::{Bth, Deth, Gid, Header, Qkey, Qpn, Request, SendTail};

const QPN_A: Qpn = Qpn::new(0x1a);
const QPN_B: Qpn = Qpn::new(0x2b);
const QKEY: Qkey = Qkey(0x1111_2222);

/// PSN that the queue pair of a script expects first.
const FIRST: u32 = 0xff_fffe;

/// A receiving queue pair with its buffer, and the delivered packets: tag and drop reason.
struct Script {
    qp: Qp,
    host: SimHost,
    early: EarlyPackets<u32>,
    mr: Mr,
    delivered: Vec<(u32, Option<DropReason>)>,
}

fn address(host: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// Creates queue pair B in RTS, connected to A.
fn connected(service: Service, srq_max_sge: Option<u32>, host: &mut SimHost) -> Qp {
    let max_recv_wr = if srq_max_sge.is_some() { 0 } else { 64 };
    let caps = QpCaps { max_recv_wr, max_recv_sge: 4, ..QpCaps::default() };
    let mut qp = Qp::new(QpConfig { srq_max_sge, ..QpConfig::new(QPN_B, service, caps) });
    let av = Av { sgid: address(2), dgid: address(1), hop_limit: 64, ..Av::default() };
    let attr =
        QpAttr { av, dest_qpn: QPN_A, qkey: QKEY, rq_psn: Psn::new(FIRST), min_rnr_timer: 12, ..QpAttr::default() };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (required, _) = transition(service, qp.state(), state).expect("look up the transition");
        qp.modify(host, &QpAttr { state, ..attr }, required | AttrMask::STATE)
            .expect("modify the QP to its next state");
    }
    qp
}

impl Script {
    fn new(service: Service, receives: u64) -> Self {
        let mut host = SimHost::default();
        let qp = connected(service, None, &mut host);
        let mr = host.memory.register(4096, crate::wr::Access::LOCAL_WRITE);
        let mut script = Self { qp, host, early: EarlyPackets::default(), mr, delivered: vec![] };
        (0..receives).for_each(|wr_id| script.post_recv(wr_id));
        script
    }

    fn post_recv(&mut self, wr_id: u64) {
        self.qp.post_recv(&RecvRequest { wr_id, sges: &[self.mr.sge(0, 100)] }).expect("room for a receive");
        self.deliver();
    }

    fn deliver(&mut self) {
        let Self { qp, host, early, delivered, .. } = self;
        early.deliver(qp, host, |_, early, result| delivered.push((early.tag, result.err())));
    }

    fn wait(&mut self, time: Duration) {
        self.host.clock = self.host.clock.after(time);
        self.deliver();
    }

    /// Delivers a one-packet message, number `at` of those sent. Its first byte and its tag are
    /// that number. Returns true if it waits.
    fn arrive(&mut self, at: u32, may_have_overtaken: bool) -> bool {
        let kind = match self.qp.service() {
            Service::Ud => Kind::Ud { deth: Deth { qkey: QKEY, src_qpn: QPN_A }, imm: None },
            Service::Uc => {
                Kind::UcRequest(Request::SendOnly(SendTail::Plain).try_into().expect("UC has this operation"))
            }
            _ => Kind::RcRequest(Request::SendOnly(SendTail::Plain)),
        };
        let header = Header { bth: Bth::new(QPN_B, Psn::new(FIRST).add(at)), kind };
        let (net, payload) = (NetHeader { src: address(1), dst: address(2), ..NetHeader::default() }, [at as u8]);
        let packet = Packet { header, payload: &payload };
        let waits = self.early.keep(&mut self.qp, &mut self.host, (&net, &packet), at, || may_have_overtaken);
        if !waits {
            let result = self.qp.handle_packet(&mut self.host, &net, &packet);
            self.delivered.push((at, result.err()));
            self.deliver();
        }
        waits
    }

    /// Returns the tags of the executed packets, in order.
    fn executed(&self) -> Vec<u32> {
        self.delivered.iter().filter(|(_, dropped)| dropped.is_none()).map(|(tag, _)| *tag).collect()
    }
}

const ALL_DROPPED: [(u32, Option<DropReason>); 3] =
    [(0, Some(DropReason::NoReceive)), (1, Some(DropReason::NoReceive)), (2, Some(DropReason::NoReceive))];

#[test]
fn overtaking_packets_are_delivered_in_psn_order() {
    // Service, true if its packets use several paths, order of arrival, order of delivery.
    let cases: [(Service, bool, &[u32], &[u32]); 8] = [
        (Service::Uc, true, &[0, 1, 2, 3], &[0, 1, 2, 3]),
        (Service::Uc, true, &[3, 2, 1, 0], &[0, 1, 2, 3]),
        (Service::Uc, true, &[1, 0, 3, 2], &[0, 1, 2, 3]),
        // Over a single path, missing packets are lost.
        (Service::Uc, false, &[1, 0, 2, 3], &[1, 0, 2, 3]),
        (Service::Rc, true, &[2, 1, 0, 3], &[0, 1, 2, 3]),
        (Service::Rc, false, &[0, 2, 1, 2], &[0, 1, 2]),
        // Datagrams keep their order of arrival.
        (Service::Ud, true, &[2, 0, 3, 1], &[2, 0, 3, 1]),
        (Service::Ud, false, &[1, 0], &[1, 0]),
    ];
    for (service, may_have_overtaken, arrivals, delivered) in cases {
        let mut script = Script::new(service, 8);
        for &at in arrivals {
            script.arrive(at, may_have_overtaken);
        }
        assert_eq!(script.executed(), delivered, "{service:?} {arrivals:?}");
        assert!(script.early.is_empty() && script.early.deadline().is_none());
    }
}

#[test]
fn packets_wait_for_their_receives_in_order() {
    for service in [Service::Uc, Service::Ud] {
        let mut script = Script::new(service, 1);
        let waits: Vec<bool> = (0..4).map(|at| script.arrive(at, true)).collect();
        assert_eq!(waits, [false, true, true, true], "{service:?}");
        script.post_recv(7);
        assert_eq!(script.executed(), [0, 1]);
        // A later one does not overtake waiting ones, even with a receive.
        script.qp.post_recv(&RecvRequest { wr_id: 8, sges: &[script.mr.sge(0, 100)] }).expect("room");
        assert!(script.arrive(4, true));
        script.deliver();
        assert_eq!(script.executed(), [0, 1, 2]);
        (9..11).for_each(|wr_id| script.post_recv(wr_id));
        assert_eq!(script.executed(), [0, 1, 2, 3, 4]);
        assert!(script.host.recvs.iter().all(|cqe| cqe.status == WcStatus::Success));
    }
}

// clause: UC-LOST, UD-LOST
#[test]
fn packet_is_dropped_after_its_maximum_wait() {
    for service in [Service::Uc, Service::Ud] {
        let mut script = Script::new(service, 0);
        (0..3).for_each(|at| assert!(script.arrive(at, true)));
        script.wait(MAX_WAIT - Duration::from_nanos(1));
        assert_eq!((script.delivered.as_slice(), script.early.len()), (&[][..], 3));
        script.wait(Duration::from_nanos(1));
        assert_eq!((script.delivered.as_slice(), script.early.len()), (&ALL_DROPPED[..], 0), "{service:?}");
    }
}

#[test]
fn permanent_gap_drops_only_the_open_message() {
    let mut script = Script::new(Service::Uc, 8);
    assert!(script.arrive(1, true) && script.arrive(2, true));
    script.wait(MAX_WAIT);
    assert_eq!(script.executed(), [1, 2]);
    assert!(!script.arrive(3, true));
}

#[test]
fn rc_gap_is_nakked_after_a_shorter_wait() {
    let mut script = Script::new(Service::Rc, 8);
    assert!(script.arrive(1, true) && script.arrive(2, true));
    script.wait(MAX_WAIT_RC - Duration::from_nanos(1));
    assert!(!script.qp.has_work());
    script.wait(Duration::from_nanos(1));
    assert!(script.early.is_empty() && script.qp.has_work(), "a NAK is to be sent");
    assert_eq!(script.delivered[0], (1, Some(DropReason::OutOfSequence)));
}

#[test]
fn duplicate_packet_does_not_wait_longer_than_the_first() {
    let mut script = Script::new(Service::Rc, 8);
    assert!(script.arrive(1, true));
    script.wait(MAX_WAIT_RC / 2);
    assert!(script.arrive(1, true));
    script.wait(MAX_WAIT_RC / 2);
    assert_eq!(script.delivered, [(1, Some(DropReason::OutOfSequence))]);
    assert!(script.qp.has_work(), "a NAK is to be sent");
}

#[test]
fn rc_packets_do_not_wait_for_receives() {
    let mut script = Script::new(Service::Rc, 0);
    assert!(!script.arrive(0, true));
    assert!(script.qp.has_work(), "an RNR NAK is to be sent");
}

#[test]
fn packets_too_far_ahead_do_not_wait() {
    let edge = MAX_AHEAD as u32;
    for (at, waits) in [(0, false), (1, true), (edge - 1, true), (edge, false), (0xff_ffff, false), (0x80_0000, false)]
    {
        assert_eq!(Script::new(Service::Uc, 8).arrive(at, true), waits, "{at:#x}");
    }
}

#[test]
fn datagrams_of_any_host_wait_in_arrival_order() {
    let mut script = Script::new(Service::Uc, 8);
    assert!(script.arrive(3, true) && script.arrive(2, false));
    assert!(!script.arrive(0, false));
    assert_eq!(script.executed(), [0]);
    assert!(!script.arrive(1, false));
    assert_eq!(script.executed(), [0, 1, 2, 3]);
}

#[test]
fn reset_queue_pair_drops_waiting_packets_at_the_next_check() {
    let mut script = Script::new(Service::Ud, 0);
    assert!(script.arrive(0, true));
    let reset = QpAttr { state: QpState::Reset, ..*script.qp.attr() };
    script.qp.modify(&mut script.host, &reset, AttrMask::STATE).expect("allowed from every state");
    let due = script.early.deadline().expect("something waits");
    script.wait(due.since(script.host.clock));
    assert_eq!(script.delivered, [(0, Some(DropReason::BadState))]);
}

#[test]
fn deadline_is_set_while_packets_wait() {
    let mut script = Script::new(Service::Ud, 0);
    assert_eq!(script.early.deadline(), None);
    let arrival = script.host.clock;
    assert!(script.arrive(0, true));
    script.host.clock = arrival.after(RECHECK / 2);
    assert!(script.arrive(1, true));
    assert_eq!(script.early.deadline(), Some(arrival.after(RECHECK)));
    script.wait(RECHECK);
    assert_eq!(script.early.deadline(), Some(script.host.clock.after(RECHECK)));
    (0..2).for_each(|wr_id| script.post_recv(wr_id));
    assert_eq!((script.early.deadline(), script.executed()), (None, vec![0, 1]));
}

#[test]
fn srq_is_checked_periodically() {
    let mut script = Script::new(Service::Ud, 0);
    script.host = SimHost::default();
    script.qp = connected(Service::Ud, Some(4), &mut script.host);
    script.mr = script.host.memory.register(4096, crate::wr::Access::LOCAL_WRITE);
    assert!(script.arrive(0, true));
    script.host.srq.post(&RecvRequest { wr_id: 1, sges: &[script.mr.sge(0, 100)] });
    script.wait(RECHECK);
    assert_eq!(script.executed(), [0]);
}

/// Returns a datagram of `len` bytes including headers and ICRC.
fn datagram(payload: &[u8]) -> Packet<'_> {
    let kind = Kind::Ud { deth: Deth { qkey: QKEY, src_qpn: QPN_A }, imm: None };
    Packet { header: Header { bth: Bth::new(QPN_B, Psn::new(0)), kind }, payload }
}

#[test]
fn room_is_bounded_in_bytes_of_whole_packets() {
    let mut early = EarlyPackets::default();
    let payload = vec![0; 3997];
    // 12 BTH, 8 DETH, 3 pad, 4 ICRC.
    let most = MAX_BYTES / (3997 + 27);
    let push = |early: &mut EarlyPackets<usize>, tag| {
        early.push(Service::Ud, Instant(0), (&NetHeader::default(), &datagram(&payload)), tag, MAX_WAIT)
    };
    for at in 0..most {
        assert_eq!(early.is_half_full(), at > most / 2, "{at}");
        assert!(push(&mut early, at));
    }
    assert!(!push(&mut early, most), "full");
    assert_eq!(early.len(), most);
}

#[test]
fn packets_beyond_the_bound_are_delivered_at_once() {
    let mut script = Script::new(Service::Ud, 0);
    script.early.bytes = MAX_BYTES - 20;
    assert!(!script.arrive(0, true));
    assert_eq!(script.delivered, ALL_DROPPED[..1]);
}
