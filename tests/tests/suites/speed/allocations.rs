//! Checks that transport allocates no memory for a message: not to post, send, receive,
//! acknowledge, retransmit or complete it, nor to apply fault rules to its packets.
//!
//! Two queue pairs exchange messages over the simulated network, which does not allocate either
//! once it is warm. A suite has no test harness, which would allocate on another thread.

use crate::ALLOCATOR;
use roxe_sim::{Mr, Pair, Peer, Setup};
use roxe_tests::report::{self, Check, Verdict};
use roxe_transport::fault::{Direction, Injector, PacketContext};
use roxe_transport::qp::Service;
use roxe_transport::wr::{Access, RecvRequest, SendData, SendFlags, SendOp, SendRequest, UdDest, WcStatus};
use roxe_wire::{Bth, Header, Kind, Packet, Psn, Qpn, Request, SendTail};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

/// Number of messages or packets in a measurement.
const MESSAGES: u32 = 10_000;

pub(crate) fn main() -> ExitCode {
    let check =
        |service| Check::new(format!("10,000 messages allocate nothing: {service:?}"), move || exchange(service));
    let mut checks: Vec<_> = [Service::Rc, Service::Uc, Service::Ud].map(check).into();
    checks.push(Check::new("10,000 packets under fault rules allocate nothing".to_owned(), judge));
    report::main(checks)
}

fn exchange(service: Service) -> Verdict {
    let mut bench = Bench::new(service);
    bench.exchange(200);
    ALLOCATOR.check_none_during(|| bench.exchange(MESSAGES)).into()
}

/// Applies every kind of fault rule to packets of both directions.
fn judge() -> Verdict {
    let rules = "drop 1%; duplicate 1%; delay 1% by=1ms..2ms; reorder 1%; corrupt header 1%; corrupt payload 1%; ecn 1%; rnr 1%; \
                 drop qp=#0 from=10.0.0.1 op=SEND,ACK psn=1..0x300 msg=2..90 nth=3..700,800 times=9";
    let mut injector = Injector::new(&rules.parse().expect("legal rules"), 1);
    let mut apply = |psn: u32| {
        let dir = if psn.is_multiple_of(2) { Direction::Tx } else { Direction::Rx };
        let bth = Bth::new(Qpn::new(2), Psn::new(psn / 2));
        let header = Header { bth, kind: Kind::RcRequest(Request::SendOnly(SendTail::Plain)) };
        let packet = Packet { header, payload: b"data" };
        injector.judge(&PacketContext {
            dir,
            qpn: Qpn::new(1),
            ordinal: 0,
            peer: Ipv4Addr::new(10, 0, 0, 1).into(),
            at: Duration::ZERO,
            packet: &packet,
        })
    };
    apply(0);
    ALLOCATOR.check_none_during(|| (1..=MESSAGES).for_each(|psn| _ = apply(psn))).into()
}

/// Two queue pairs and their buffers.
struct Bench {
    pair: Pair,
    service: Service,
    src: [Mr; 2],
    dst: [Mr; 2],
}

impl Bench {
    fn new(service: Service) -> Self {
        let mut pair = Pair::new(Setup { log: false, ..Setup::of(service) });
        pair.wire.reserve(256);
        if service == Service::Rc {
            let rules = "drop tx 1%; duplicate tx 1% by=1us..20us; reorder tx 1% by=20us; corrupt header tx 1%";
            pair.wire.set_faults(&rules.parse().expect("legal rules"), 7);
            pair.wire.pause_faults_after = Some(3);
        }
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mut register = |who| pair.end(who).host.memory.register(4096, all);
        let src = [Peer::A, Peer::B].map(&mut register);
        let dst = [Peer::A, Peer::B].map(&mut register);
        Self { pair, service, src, dst }
    }

    /// Exchanges `messages` messages, half in each direction, of all kinds in turn.
    fn exchange(&mut self, messages: u32) {
        for n in 0..messages / 2 {
            for who in [Peer::A, Peer::B] {
                self.post(who, n);
            }
            self.pair.run();
            for who in [Peer::A, Peer::B] {
                while let Some(cqe) = self.pair.send_done(who) {
                    assert_eq!(cqe.status, WcStatus::Success);
                }
                while let Some(cqe) = self.pair.recv_done(who) {
                    assert_eq!(cqe.status, WcStatus::Success);
                }
            }
        }
    }

    fn post(&mut self, who: Peer, n: u32) {
        let (src, dst) = (self.src[who.index()], self.dst[who.other().index()]);
        let (remote_addr, rkey) = (dst.addr, dst.rkey());
        let op = match (self.service, n % 5) {
            (Service::Ud, _) | (_, 0) => SendOp::Send,
            (_, 1) => SendOp::Write { remote_addr, rkey },
            (Service::Rc, 2) => SendOp::Read { remote_addr, rkey },
            (Service::Rc, 3) => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            _ => SendOp::SendImm(roxe_wire::ImmDt(n.to_be_bytes())),
        };
        let len = if self.service == Service::Ud { 200 } else { 1 + n * 7 % 2000 };
        let len = if let SendOp::FetchAdd { .. } = op { 8 } else { len };
        if matches!(op, SendOp::Send | SendOp::SendImm(_)) {
            let sges = [self.dst[who.other().index()].sge(0, 1000), self.dst[who.other().index()].sge(1000, 3000)];
            let posted = self.pair.post_recv(who.other(), &RecvRequest { wr_id: n.into(), sges: &sges });
            // A lost UC message consumes no receive, so the receive queue may be full.
            assert!(posted.is_ok() || self.service != Service::Rc, "{posted:?}");
        }
        let ud = (self.service == Service::Ud).then(|| UdDest {
            av: roxe_sim::setup::av(who),
            qpn: roxe_sim::setup::qpn(who.other()),
            qkey: roxe_sim::setup::QKEY,
        });
        let list = [src.sge(0, len / 2), src.sge(len / 2, len - len / 2)];
        let req = SendRequest { wr_id: n.into(), op, flags: SendFlags::SIGNALED, data: SendData::Sges(&list), ud };
        assert_eq!(self.pair.post_send(who, &req), Ok(()));
    }
}
