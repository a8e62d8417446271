//! Fault rules on two QPs over a link without delay, and the notes of the packets. The link carries
//! out only faults that need no clock: drops and RNR.

use super::*;
use roxe_sim::SimHost;
use roxe_sim::wire::net_header;
use roxe_transport::cx::{PacketNote, TxBatch, TxReason, TxRoom, TxState};
use roxe_transport::fault::{Direction, Injector, Rules, Seen};
use roxe_transport::qp::{DropReason, Qp, Service};
use roxe_transport::time::rnr_wait;
use roxe_transport::wr::Av;
use roxe_wire::{NakCode, NetHeader, Operation, Qpn, Syndrome, icrc};
use std::collections::VecDeque;
use std::time::Duration;

use Operation as O;

/// A packet as it was sent: sender, kind, PSN, reason and work request.
type Sent = (Peer, Operation, u32, TxReason, Option<u64>);

/// A batch that keeps the notes of its packets.
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

struct Bench {
    qps: [Qp; 2],
    hosts: [SimHost; 2],
    injector: Injector,
    link: VecDeque<(Peer, NetHeader, Vec<u8>)>,
    sent: Vec<Sent>,
    /// Sent responses with their PSNs.
    responses: Vec<(u32, Response)>,
    dropped: Vec<DropReason>,
}

impl Bench {
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

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let (data, ud) = (SendData::Sges(sges), Some(destination(A)));
        let req = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, ud };
        assert_eq!(self.qps[0].post_send(&req), Ok(()));
    }

    fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        assert_eq!(self.qps[1].post_recv(&RecvRequest { wr_id, sges }), Ok(()));
    }

    fn judge(&mut self, side: Peer, dir: Direction, packet: &Packet<'_>) -> roxe_transport::fault::Verdict {
        let (qpn, peer) = (qpn(side), av(side).dgid);
        self.injector.judge(&Seen { dir, qpn, ordinal: side.index() as u32, peer, at: Duration::ZERO, packet })
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

    /// Runs until nothing is due; time passes only while no packet is in flight.
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
        panic!("no end: {:?}", self.sent);
    }

    /// Returns the packets sent by A.
    fn sent_by_a(&self) -> Vec<(Operation, u32, TxReason, Option<u64>)> {
        self.sent_by(A)
    }

    fn sent_by(&self, side: Peer) -> Vec<(Operation, u32, TxReason, Option<u64>)> {
        let mine = self.sent.iter().filter(|sent| sent.0 == side);
        mine.map(|(_, op, psn, reason, wr_id)| (*op, *psn, *reason, *wr_id)).collect()
    }

    /// Takes the completions of A's sends, as (wr_id, status).
    fn sends(&mut self) -> Vec<(u64, WcStatus)> {
        self.hosts[0].sends.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// Takes the completions of B's receives, as (wr_id, status, bytes).
    fn recvs(&mut self) -> Vec<(u64, WcStatus, u32)> {
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
fn request_notes_are_first_then_retransmission() {
    let mut bench = Bench::new(Setup::default(), "drop tx op=SEND_LAST nth=1; drop rx qp=#0 op=ACK msg=2 times=1");
    let mr = bench.memory(A, 300);
    for id in [7, 8] {
        bench.post(id, SendOp::Send, &[mr.sge(0, 300)]);
        let into = bench.memory(B, 300);
        bench.recv(id, &[into.all()]);
    }
    bench.run();
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
    assert_eq!(bench.sent_by_a(), expected);
    assert_eq!(bench.sent_by(B)[0], (O::Acknowledge, 101, TxReason::Nak, None));
    assert!(bench.sent_by(B)[1..].iter().all(|sent| (sent.0, sent.2, sent.3) == (O::Acknowledge, TxReason::Ack, None)));
    assert_eq!((bench.sends(), bench.recvs()), (each(7..=8, OK), vec![(7, OK, 300), (8, OK, 300)]));
}

#[test]
fn response_notes_are_response_then_replay() {
    let rules = "drop tx qp=#1 op=READ_RESPONSE_MIDDLE nth=1; drop tx qp=#1 op=ATOMIC_ACK nth=1";
    let mut bench = Bench::new(Setup::default(), rules);
    let (src, dst) = (bench.memory(B, 768), bench.memory(A, 768));
    bench.post(1, read_from(src), &[dst.all()]);
    bench.run();
    bench.post(2, add_to(src, 1), &[dst.sge(0, 8)]);
    bench.run();
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
    assert_eq!(bench.sent_by(B), expected);
    let expected = [
        (O::ReadRequest, 100, TxReason::First, Some(1)),
        (O::ReadRequest, 101, TxReason::Retransmission, Some(1)),
        (O::FetchAdd, 103, TxReason::First, Some(2)),
        (O::FetchAdd, 103, TxReason::Retransmission, Some(2)),
    ];
    assert_eq!(bench.sent_by_a(), expected);
    assert_eq!(bench.sends(), each(1..=2, OK));
}

#[test]
fn nak_and_unreliable_packets_have_their_notes() {
    let mut bench = Bench::new(Setup::default(), "");
    bench.post(1, SendOp::Write { remote_addr: 0, rkey: roxe_wire::RKey(77) }, &[]);
    let src = bench.memory(A, 8);
    bench.post(2, SendOp::Write { remote_addr: 0, rkey: roxe_wire::RKey(77) }, &[src.all()]);
    bench.run();
    assert_eq!(bench.sent_by(B).last(), Some(&(O::Acknowledge, 101, TxReason::Nak, None)));
    let refused = |(_, response): &(u32, Response)| matches!(response, Response::Ack(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::RemoteAccess));
    assert!(bench.responses.iter().any(refused));
    for service in [Service::Uc, Service::Ud] {
        let mut bench = Bench::new(Setup::of(service), "drop tx nth=1");
        for id in 1..=2 {
            bench.post(id, SendOp::Send, &[]);
        }
        bench.run();
        let expected = [(O::SendOnly, 100, TxReason::First, Some(1)), (O::SendOnly, 101, TxReason::First, Some(2))];
        assert_eq!(bench.sent_by_a(), expected, "{service:?}");
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
    let mut bench = Bench::new(Setup { min_rnr_timer: 9, ..Setup::default() }, "rnr qp=#1 msg=2 times=3");
    let (src, dst) = (bench.memory(A, 300), bench.memory(B, 900));
    for id in 1..=3 {
        bench.recv(id, &[dst.sge(300 * (id as u32 - 1), 300)]);
        bench.post(id, SendOp::Send, &[src.all()]);
    }
    bench.run();
    assert_eq!(bench.rnr_naks(), [(102, 9); 3]);
    assert_eq!(bench.sends(), each(1..=3, OK));
    assert_eq!(bench.recvs(), [(1, OK, 300), (2, OK, 300), (3, OK, 300)]);
    assert!(bench.hosts[0].clock.0 >= 3 * rnr_wait(9).as_nanos() as u64, "no wait was cut short");
    let psns: Vec<_> = bench.sent_by_a().into_iter().map(|(_, psn, ..)| psn).collect();
    let attempts = (0..4).flat_map(|_| 102..=105);
    assert_eq!(psns, [100, 101].into_iter().chain(attempts).collect::<Vec<_>>());
    assert_eq!(bench.injector.report().map(|report| report.applied).collect::<Vec<_>>(), [3]);
}

#[test]
fn write_imm_with_hidden_receive_is_rnr_nakked_at_its_end() {
    let mut bench = Bench::new(Setup::default(), "rnr nth=1");
    let (src, dst) = (bench.memory(A, 300), bench.memory(B, 300));
    bench.recv(9, &[]);
    let op = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(5) };
    bench.post(1, op, &[src.all()]);
    bench.run();
    assert_eq!(bench.rnr_naks(), [(101, 12)]);
    assert_eq!((bench.sends(), bench.recvs()), (each(1..=1, OK), vec![(9, OK, 300)]));
}

#[test]
fn hidden_receive_leaves_the_shared_queue_unchanged() {
    let mut bench = Bench::new(Setup { srq: true, ..Setup::default() }, "rnr nth=1");
    bench.hosts[1].srq.post(&RecvRequest { wr_id: 4, sges: &[] });
    bench.post(1, SendOp::Send, &[]);
    bench.transmit(A);
    let (to, net, bytes) = bench.link.pop_front().expect("a packet is on the link");
    bench.deliver(to, &net, &bytes);
    assert_eq!((bench.dropped.as_slice(), bench.hosts[1].srq.len()), (&[DropReason::NoReceive][..], 1));
    bench.run();
    assert_eq!((bench.sends(), bench.recvs()), (each(1..=1, OK), vec![(4, OK, 0)]));
}

#[test]
fn injected_rnr_naks_count_as_rnr_retries() {
    for (times, status) in [(2, OK), (3, WcStatus::RnrRetryExcErr)] {
        let mut bench = Bench::new(Setup { rnr_retry: 2, ..Setup::default() }, &format!("rnr times={times}"));
        bench.recv(1, &[]);
        bench.post(1, SendOp::Send, &[]);
        bench.run();
        assert_eq!(bench.sends(), each(1..=1, status), "{times} times");
        assert_eq!(bench.rnr_naks().len(), times);
    }
}

#[test]
fn unreliable_services_drop_packets_that_find_no_receive() {
    for service in [Service::Uc, Service::Ud] {
        let mut bench = Bench::new(Setup::of(service), "rnr msg=1");
        let (src, dst) = (bench.memory(A, 200), bench.memory(B, 256));
        for id in 1..=2 {
            bench.recv(id, &[dst.all()]);
            bench.post(id, SendOp::Send, &[src.sge(0, 100 * id as u32)]);
        }
        bench.run();
        let grh = if service == Service::Ud { 40 } else { 0 };
        assert_eq!(bench.recvs(), [(1, OK, 200 + grh)], "{service:?}");
        assert_eq!((bench.dropped.as_slice(), bench.sent_by(B)), (&[DropReason::NoReceive][..], vec![]), "{service:?}");
    }
}

#[test]
fn injected_rnr_affects_one_request_that_needs_a_receive() {
    let mut bench = Bench::new(Setup::default(), "");
    let (src, dst) = (bench.memory(A, 8), bench.memory(B, 8));
    bench.recv(1, &[]);
    bench.post(1, write_to(dst), &[src.all()]);
    bench.post(2, SendOp::Send, &[]);
    bench.transmit(A);
    // A WRITE, and then the SEND, whose first copy finds no receive and whose second is a
    // duplicate.
    let (_, net, write) = bench.link.pop_front().expect("a packet is on the link");
    let (_, _, send) = bench.link.pop_front().expect("a packet is on the link");
    for (bytes, without_receive, expected) in [
        (&write, true, Ok(())),
        (&send, true, Err(DropReason::NoReceive)),
        (&send, false, Ok(())),
        (&send, true, Err(DropReason::DuplicateRequest)),
    ] {
        let packet = Packet::parse(bytes).expect("parse the packet");
        let (qp, host) = (&mut bench.qps[1], &mut bench.hosts[1]);
        let handled = match without_receive {
            true => qp.handle_packet_without_receive(host, &net, &packet),
            false => qp.handle_packet(host, &net, &packet),
        };
        assert_eq!(handled, expected);
    }
    bench.run();
    assert_eq!((bench.sends(), bench.recvs()), (each(1..=2, OK), vec![(1, OK, 0)]));
}

#[test]
fn msg_rule_drops_every_retry_of_the_message() {
    let mut bench = Bench::new(Setup { retry_cnt: 2, ..Setup::default() }, "drop tx qp=#0 msg=2");
    for id in 1..=3 {
        bench.recv(id, &[]);
        bench.post(id, SendOp::Send, &[]);
    }
    bench.run();
    let flushed = (3, WcStatus::WrFlushErr);
    assert_eq!(bench.sends(), [(1, OK), (2, WcStatus::RetryExcErr), flushed]);
}

#[test]
fn loss_halves_the_window_and_acknowledgements_widen_it() {
    let mut bench = Bench::new(Setup::default(), "");
    let (src, dst) = (bench.memory(A, 400 * 256), bench.memory(B, 400 * 256));
    bench.post(1, write_to(dst), &[src.all()]);
    let burst = |bench: &mut Bench| {
        let before = bench.sent.len();
        bench.transmit(A);
        bench.sent.len() - before
    };
    assert_eq!(burst(&mut bench), 400);
    // The first packet is lost and its NAK arrives; then no packet arrives any more.
    let lost = core::mem::take(&mut bench.link);
    let (to, net, bytes) = &lost[1];
    bench.deliver(*to, net, bytes);
    bench.transmit(B);
    let (to, net, nak) = bench.link.pop_front().expect("a NAK is on the link");
    bench.deliver(to, &net, &nak);
    for expected in [200, 100, 64, 64] {
        assert_eq!(burst(&mut bench), expected);
        let due = bench.qps[0].poll_timeout().expect("a timer runs");
        bench.hosts[0].clock = due;
        bench.qps[0].handle_timeout(&mut bench.hosts[0]);
        bench.link.clear();
    }
    // Each of the four acknowledgements of 16 packets frees room for 16 packets, and widens the
    // window by 16.
    assert_eq!(burst(&mut bench), 64);
    while let Some((to, net, bytes)) = bench.link.pop_front() {
        bench.deliver(to, &net, &bytes);
        bench.transmit(B);
    }
    assert_eq!(burst(&mut bench), 128);
    bench.run();
    assert_eq!(bench.sends(), each(1..=1, OK));
    assert_eq!(bench.hosts[0].memory.bytes(src), bench.hosts[1].memory.bytes(dst));
}
