//! Fault rules on two connected QPs, and the [`PacketNote`]s of their packets. The link between
//! them has no delay, so it supports only faults that need no clock: drops and RNR.

use super::*;
use roxe_sim::SimHost;
use roxe_sim::wire::net_header;
use roxe_transport::cx::{PacketNote, TxBatch, TxReason, TxRoom, TxState};
use roxe_transport::fault::{Direction, Injector, PacketContext, Rules};
use roxe_transport::qp::{DropReason, Qp, Service};
use roxe_transport::time::rnr_wait;
use roxe_transport::wr::Av;
use roxe_wire::{NakCode, NetHeader, Operation, Qpn, Syndrome, icrc};
use std::collections::VecDeque;
use std::time::Duration;

use Operation as O;

/// A packet as it was sent: sender, kind, PSN, reason and work request.
type Sent = (Peer, Operation, u32, TxReason, Option<u64>);

/// A batch that keeps each packet with its destination and note.
#[derive(Default)]
struct NotedBatch(Vec<(Av, PacketNote, Vec<u8>)>);

impl TxBatch for NotedBatch {
    fn slot(&mut self, av: &Av, _to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        self.0.push((*av, *note, vec![0; len + icrc::LEN]));
        self.0.last_mut()?.2.get_mut(..len).map(TxRoom::Own)
    }

    fn retract(&mut self) {
        self.0.pop();
    }
}

/// Two QPs with hosts, the injector of their faults, and a record of their packets.
struct FaultPair {
    qps: [Qp; 2],
    hosts: [SimHost; 2],
    injector: Injector,
    /// Packets in flight, each with its receiver.
    link: VecDeque<(Peer, NetHeader, Vec<u8>)>,
    sent: Vec<Sent>,
    /// Sent responses with their PSNs.
    responses: Vec<(u32, Response)>,
    dropped: Vec<DropReason>,
}

impl FaultPair {
    /// Creates two QPs in RTS; A has ordinal 0, B ordinal 1.
    fn new(setup: Setup, rules: &str) -> Self {
        let rules: Rules = rules.parse().expect("legal rules");
        let make = |side| {
            let (mut qp, mut host) = setup.make(side);
            setup.bring_to(side, &mut qp, &mut host, QpState::Rts);
            (qp, host)
        };
        let [(a, host_a), (b, host_b)] = [A, B].map(make);
        Self {
            qps: [a, b],
            hosts: [host_a, host_b],
            injector: Injector::new(&rules, 1),
            link: VecDeque::new(),
            sent: Vec::new(),
            responses: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn memory(&mut self, side: Peer, len: u32) -> Mr {
        self.hosts[side.index()].memory.register(len, all_access())
    }

    fn post_send(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let (data, ud) = (SendData::Sges(sges), Some(destination(A)));
        let req = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, ud };
        assert_eq!(self.qps[0].post_send(&req), Ok(()));
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        assert_eq!(self.qps[1].post_recv(&RecvRequest { wr_id, sges }), Ok(()));
    }

    fn judge(&mut self, side: Peer, dir: Direction, packet: &Packet<'_>) -> roxe_transport::fault::Verdict {
        let (qpn, peer) = (qpn(side), av(side).dgid);
        self.injector.judge(&PacketContext { dir, qpn, ordinal: side.index() as u32, peer, at: Duration::ZERO, packet })
    }

    fn transmit(&mut self, side: Peer) {
        let mut batch = NotedBatch::default();
        let state = self.qps[side.index()].poll_transmit(&mut self.hosts[side.index()], &mut batch);
        assert_eq!(state, TxState::Drained);
        for (av, note, bytes) in batch.0 {
            let packet = Packet::parse(&bytes).expect("parse the packet");
            assert_eq!(note.qpn, qpn(side));
            let (op, psn) = (packet.header.opcode().operation(), packet.header.bth.psn.get());
            self.sent.push((side, op, psn, note.reason, note.wr_id));
            if let Kind::RcResponse(response) = packet.header.kind {
                self.responses.push((psn, response));
            }
            if !self.judge(side, Direction::Tx, &packet).drop {
                self.link.push_back((side.other(), net_header(&av), bytes));
            }
        }
    }

    fn deliver(&mut self, to: Peer, net: &NetHeader, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("parse the packet");
        let verdict = self.judge(to, Direction::Rx, &packet);
        let (qp, host) = (&mut self.qps[to.index()], &mut self.hosts[to.index()]);
        let result = match verdict {
            verdict if verdict.drop => return,
            verdict if verdict.rnr => qp.handle_packet_without_receive(host, net, &packet),
            _ => qp.handle_packet(host, net, &packet),
        };
        self.dropped.extend(result.err());
    }

    /// Runs until no packet is in flight and no timer runs. The clocks advance only while no packet
    /// is in flight.
    fn run(&mut self) {
        for _ in 0..10_000 {
            for side in [A, B] {
                self.transmit(side);
            }
            if let Some((to, net, bytes)) = self.link.pop_front() {
                self.deliver(to, &net, &bytes);
                continue;
            }
            let Some(at) = self.qps.iter().filter_map(Qp::poll_timeout).min() else { return };
            for (qp, host) in self.qps.iter_mut().zip(&mut self.hosts) {
                host.clock = at;
                qp.handle_timeout(host);
            }
        }
        panic!("the traffic does not end: {:?}", self.sent);
    }

    /// Returns the packets sent by `side`: operation, PSN, reason and `wr_id`.
    fn sent_by(&self, side: Peer) -> Vec<(Operation, u32, TxReason, Option<u64>)> {
        let by_side = self.sent.iter().filter(|sent| sent.0 == side);
        by_side.map(|(_, op, psn, reason, wr_id)| (*op, *psn, *reason, *wr_id)).collect()
    }

    /// Takes the completions of A's sends, as (wr_id, status).
    fn take_send_statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.hosts[0].sends.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// Takes the completions of B's receives, as (wr_id, status, bytes).
    fn take_receives(&mut self) -> Vec<(u64, WcStatus, u32)> {
        self.hosts[1].recvs.drain(..).map(|cqe| (cqe.wr_id, cqe.status, cqe.byte_len)).collect()
    }

    /// Returns the PSNs and timer codes of the RNR NAKs.
    fn rnr_naks(&self) -> Vec<(u32, u8)> {
        let timer = |(psn, response): &(u32, Response)| match response {
            Response::Ack(aeth) => match aeth.syndrome {
                Syndrome::RnrNak { timer } => Some((*psn, timer)),
                _ => None,
            },
            _ => None,
        };
        self.responses.iter().filter_map(timer).collect()
    }
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn request_reason_is_first_then_retransmission() {
    let mut pair = FaultPair::new(Setup::default(), "drop tx op=SEND_LAST nth=1; drop rx qp=#0 op=ACK msg=2 times=1");
    let mr = pair.memory(A, 300);
    for id in [7, 8] {
        pair.post_send(id, SendOp::Send, &[mr.sge(0, 300)]);
        let into = pair.memory(B, 300);
        pair.post_recv(id, &[into.all()]);
    }
    pair.run();
    let (first, retransmission) = (TxReason::First, TxReason::Retransmission);
    let expected = [
        (O::SendFirst, 100, first, Some(7)),
        (O::SendLast, 101, first, Some(7)),
        (O::SendFirst, 102, first, Some(8)),
        (O::SendLast, 103, first, Some(8)),
        // The NAK for the lost packet makes A retransmit.
        (O::SendLast, 101, retransmission, Some(7)),
        (O::SendFirst, 102, retransmission, Some(8)),
        (O::SendLast, 103, retransmission, Some(8)),
        // The acknowledgement of both was lost.
        (O::SendFirst, 102, retransmission, Some(8)),
        (O::SendLast, 103, retransmission, Some(8)),
    ];
    assert_eq!(pair.sent_by(A), expected);
    assert_eq!(pair.sent_by(B)[0], (O::Acknowledge, 101, TxReason::Nak, None));
    assert!(pair.sent_by(B)[1..].iter().all(|sent| (sent.0, sent.2, sent.3) == (O::Acknowledge, TxReason::Ack, None)));
    assert_eq!(
        (pair.take_send_statuses(), pair.take_receives()),
        (statuses(7..=8, OK), vec![(7, OK, 300), (8, OK, 300)])
    );
}

#[test]
fn response_reason_is_response_then_replay() {
    let rules = "drop tx qp=#1 op=READ_RESPONSE_MIDDLE nth=1; drop tx qp=#1 op=ATOMIC_ACK nth=1";
    let mut pair = FaultPair::new(Setup::default(), rules);
    let (src, dst) = (pair.memory(B, 768), pair.memory(A, 768));
    pair.post_send(1, read_from(src), &[dst.all()]);
    pair.run();
    pair.post_send(2, add_to(src, 1), &[dst.sge(0, 8)]);
    pair.run();
    let (read, atomic, replay) = (TxReason::ReadResponse, TxReason::AtomicResponse, TxReason::Replay);
    let expected = [
        (O::ReadResponseFirst, 100, read, None),
        (O::ReadResponseMiddle, 101, read, None),
        (O::ReadResponseLast, 102, read, None),
        (O::ReadResponseFirst, 101, replay, None),
        (O::ReadResponseLast, 102, replay, None),
        (O::AtomicAcknowledge, 103, atomic, None),
        (O::AtomicAcknowledge, 103, replay, None),
    ];
    assert_eq!(pair.sent_by(B), expected);
    let expected = [
        (O::ReadRequest, 100, TxReason::First, Some(1)),
        (O::ReadRequest, 101, TxReason::Retransmission, Some(1)),
        (O::FetchAdd, 103, TxReason::First, Some(2)),
        (O::FetchAdd, 103, TxReason::Retransmission, Some(2)),
    ];
    assert_eq!(pair.sent_by(A), expected);
    assert_eq!(pair.take_send_statuses(), statuses(1..=2, OK));
}

#[test]
fn notes_of_naks_uc_and_ud_packets_have_their_reason() {
    let mut pair = FaultPair::new(Setup::default(), "");
    pair.post_send(1, SendOp::Write { remote_addr: 0, rkey: roxe_wire::RKey(77) }, &[]);
    let src = pair.memory(A, 8);
    pair.post_send(2, SendOp::Write { remote_addr: 0, rkey: roxe_wire::RKey(77) }, &[src.all()]);
    pair.run();
    assert_eq!(pair.sent_by(B).last(), Some(&(O::Acknowledge, 101, TxReason::Nak, None)));
    let refused = |(_, response): &(u32, Response)| matches!(response, Response::Ack(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::RemoteAccess));
    assert!(pair.responses.iter().any(refused));
    for service in [Service::Uc, Service::Ud] {
        let mut pair = FaultPair::new(Setup::of(service), "drop tx nth=1");
        for id in 1..=2 {
            pair.post_send(id, SendOp::Send, &[]);
        }
        pair.run();
        let expected = [(O::SendOnly, 100, TxReason::First, Some(1)), (O::SendOnly, 101, TxReason::First, Some(2))];
        assert_eq!(pair.sent_by(A), expected, "{service:?}");
    }
}

#[test]
fn reason_names_are_unique() {
    let all = [
        TxReason::First,
        TxReason::Retransmission,
        TxReason::ReadResponse,
        TxReason::AtomicResponse,
        TxReason::Replay,
        TxReason::Ack,
        TxReason::Nak,
        TxReason::Cnp,
    ];
    let names: std::collections::HashSet<_> = all.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), all.len());
}

// clause: CHECK-RECEIVE
#[test]
fn request_with_hidden_receive_is_rnr_nakked_then_succeeds() {
    let mut pair = FaultPair::new(Setup { min_rnr_timer: 9, ..Setup::default() }, "rnr qp=#1 msg=2 times=3");
    let (src, dst) = (pair.memory(A, 300), pair.memory(B, 900));
    for id in 1..=3 {
        pair.post_recv(id, &[dst.sge(300 * (id as u32 - 1), 300)]);
        pair.post_send(id, SendOp::Send, &[src.all()]);
    }
    pair.run();
    assert_eq!(pair.rnr_naks(), [(102, 9); 3]);
    assert_eq!(pair.take_send_statuses(), statuses(1..=3, OK));
    assert_eq!(pair.take_receives(), [(1, OK, 300), (2, OK, 300), (3, OK, 300)]);
    assert!(pair.hosts[0].clock.0 >= 3 * rnr_wait(9).as_nanos() as u64, "no wait was cut short");
    let psns: Vec<_> = pair.sent_by(A).into_iter().map(|(_, psn, ..)| psn).collect();
    let attempts = (0..4).flat_map(|_| 102..=105);
    assert_eq!(psns, [100, 101].into_iter().chain(attempts).collect::<Vec<_>>());
    assert_eq!(pair.injector.report().map(|report| report.applied).collect::<Vec<_>>(), [3]);
}

#[test]
fn write_imm_with_hidden_receive_is_rnr_nakked_at_its_end() {
    let mut pair = FaultPair::new(Setup::default(), "rnr nth=1");
    let (src, dst) = (pair.memory(A, 300), pair.memory(B, 300));
    pair.post_recv(9, &[]);
    let op = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(5) };
    pair.post_send(1, op, &[src.all()]);
    pair.run();
    assert_eq!(pair.rnr_naks(), [(101, 12)]);
    assert_eq!((pair.take_send_statuses(), pair.take_receives()), (statuses(1..=1, OK), vec![(9, OK, 300)]));
}

#[test]
fn hidden_receive_leaves_srq_unchanged() {
    let mut pair = FaultPair::new(Setup { srq: true, ..Setup::default() }, "rnr nth=1");
    pair.hosts[1].srq.post(&RecvRequest { wr_id: 4, sges: &[] });
    pair.post_send(1, SendOp::Send, &[]);
    pair.transmit(A);
    let (to, net, bytes) = pair.link.pop_front().expect("a packet is on the link");
    pair.deliver(to, &net, &bytes);
    assert_eq!((pair.dropped.as_slice(), pair.hosts[1].srq.len()), (&[DropReason::NoReceive][..], 1));
    pair.run();
    assert_eq!((pair.take_send_statuses(), pair.take_receives()), (statuses(1..=1, OK), vec![(4, OK, 0)]));
}

#[test]
fn injected_rnr_naks_count_as_rnr_retries() {
    for (times, status) in [(2, OK), (3, WcStatus::RnrRetryExcErr)] {
        let mut pair = FaultPair::new(Setup { rnr_retry: 2, ..Setup::default() }, &format!("rnr times={times}"));
        pair.post_recv(1, &[]);
        pair.post_send(1, SendOp::Send, &[]);
        pair.run();
        assert_eq!(pair.take_send_statuses(), statuses(1..=1, status), "{times} times");
        assert_eq!(pair.rnr_naks().len(), times);
    }
}

#[test]
fn uc_and_ud_drop_packets_without_receive() {
    for service in [Service::Uc, Service::Ud] {
        let mut pair = FaultPair::new(Setup::of(service), "rnr msg=1");
        let (src, dst) = (pair.memory(A, 200), pair.memory(B, 256));
        for id in 1..=2 {
            pair.post_recv(id, &[dst.all()]);
            pair.post_send(id, SendOp::Send, &[src.sge(0, 100 * id as u32)]);
        }
        pair.run();
        let grh = if service == Service::Ud { 40 } else { 0 };
        assert_eq!(pair.take_receives(), [(1, OK, 200 + grh)], "{service:?}");
        assert_eq!((pair.dropped.as_slice(), pair.sent_by(B)), (&[DropReason::NoReceive][..], vec![]), "{service:?}");
    }
}

#[test]
fn injected_rnr_affects_only_new_requests_that_need_a_receive() {
    let mut pair = FaultPair::new(Setup::default(), "");
    let (src, dst) = (pair.memory(A, 8), pair.memory(B, 8));
    pair.post_recv(1, &[]);
    pair.post_send(1, write_to(dst), &[src.all()]);
    pair.post_send(2, SendOp::Send, &[]);
    pair.transmit(A);
    // The WRITE needs no receive. The SEND is delivered three times: without a receive, with one,
    // and as a duplicate.
    let (_, net, write) = pair.link.pop_front().expect("a packet is on the link");
    let (_, _, send) = pair.link.pop_front().expect("a packet is on the link");
    for (bytes, without_receive, expected) in [
        (&write, true, Ok(())),
        (&send, true, Err(DropReason::NoReceive)),
        (&send, false, Ok(())),
        (&send, true, Err(DropReason::DuplicateRequest)),
    ] {
        let packet = Packet::parse(bytes).expect("parse the packet");
        let (qp, host) = (&mut pair.qps[1], &mut pair.hosts[1]);
        let handled = match without_receive {
            true => qp.handle_packet_without_receive(host, &net, &packet),
            false => qp.handle_packet(host, &net, &packet),
        };
        assert_eq!(handled, expected);
    }
    pair.run();
    assert_eq!((pair.take_send_statuses(), pair.take_receives()), (statuses(1..=2, OK), vec![(1, OK, 0)]));
}

#[test]
fn msg_rule_drops_every_retry_of_the_message() {
    let mut pair = FaultPair::new(Setup { retry_cnt: 2, ..Setup::default() }, "drop tx qp=#0 msg=2");
    for id in 1..=3 {
        pair.post_recv(id, &[]);
        pair.post_send(id, SendOp::Send, &[]);
    }
    pair.run();
    let flushed = (3, WcStatus::WrFlushErr);
    assert_eq!(pair.take_send_statuses(), [(1, OK), (2, WcStatus::RetryExcErr), flushed]);
}

#[test]
fn loss_halves_window_and_acks_widen_it() {
    let mut pair = FaultPair::new(Setup::default(), "");
    let (src, dst) = (pair.memory(A, 400 * 256), pair.memory(B, 400 * 256));
    pair.post_send(1, write_to(dst), &[src.all()]);
    let burst = |pair: &mut FaultPair| {
        let before = pair.sent.len();
        pair.transmit(A);
        pair.sent.len() - before
    };
    assert_eq!(burst(&mut pair), 400);
    // A receives a NAK for its first packet, which is lost. No later packet arrives.
    let lost = core::mem::take(&mut pair.link);
    let (to, net, bytes) = &lost[1];
    pair.deliver(*to, net, bytes);
    pair.transmit(B);
    let (to, net, nak) = pair.link.pop_front().expect("a NAK is on the link");
    pair.deliver(to, &net, &nak);
    for expected in [200, 100, 64, 64] {
        assert_eq!(burst(&mut pair), expected);
        let due = pair.qps[0].poll_timeout().expect("a timer runs");
        pair.hosts[0].clock = due;
        pair.qps[0].handle_timeout(&mut pair.hosts[0]);
        pair.link.clear();
    }
    // The burst of 64 is acknowledged by four packets. Each of these frees room for 16 packets, and
    // widens the window by 16.
    assert_eq!(burst(&mut pair), 64);
    while let Some((to, net, bytes)) = pair.link.pop_front() {
        pair.deliver(to, &net, &bytes);
        pair.transmit(B);
    }
    assert_eq!(burst(&mut pair), 128);
    pair.run();
    assert_eq!(pair.take_send_statuses(), statuses(1..=1, OK));
    assert_eq!(pair.hosts[0].memory.bytes(src), pair.hosts[1].memory.bytes(dst));
}
