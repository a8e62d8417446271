//! A queue pair: against another one over a network that loses, and against anybody who can send a datagram.

use roxe_transport::qp::{QpState, Service};
use roxe_transport::sim::scenario::{Work, random_pair, run};
use roxe_transport::sim::setup::{QKEY, av, qpn};
use roxe_transport::sim::wire::{forge, net_header};
use roxe_transport::sim::{Choices, Mr, Pair, Peer, Script, Setup};
use roxe_transport::wr::{Access, RecvRequest, SendData, SendFlags, SendOp, SendRequest, UdDest};
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, Header, Ieth, ImmDt, Kind, Msn, NakCode, NetHeader, Pkey, Psn, Qkey,
    Qpn, RKey, Request, Response, Reth, SendTail, Syndrome, UcRequest,
};

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

/// The input decides what two queue pairs post and what the network does to their packets.
///
/// Properties: those of [`roxe_transport::sim::scenario`] with mishaps allowed: no panic, every work request completes at
/// most once and in order, what succeeds has the right bytes, what is left is flushed.
///
/// # Panics
/// When a property does not hold.
pub fn qp_pair(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&SERVICES);
    let work = Work { messages: script.between(1, 40), max_len: script.between(1, 3000), mishaps: true };
    run(random_pair(service, 100, false, script), work);
}

/// The input is what strangers and a mad peer send to one queue pair, in every state, while its application works.
///
/// Properties: no panic; a packet that does not belong to the connection changes neither the state nor memory nor any
/// completion; work requests complete at most once and in order; a queue pair in ERR stays there and keeps silent.
///
/// # Panics
/// When a property does not hold.
pub fn hostile(data: &[u8]) {
    let mut script = Script::new(data);
    let setup = Setup {
        service: script.pick(&SERVICES),
        srq: script.chance(300),
        batch: script.between(1, 8) as usize,
        log: false,
        ..Setup::default()
    };
    let state = script.pick(&[QpState::Rts, QpState::Rtr, QpState::Init, QpState::Reset]);
    let mut victim = Victim::new(setup, state, script);
    while !victim.pair.choices.is_empty() {
        victim.turn();
    }
    victim.finish();
}

/// One queue pair that works, and a peer played by the input.
struct Victim<'a> {
    pair: Pair<Script<'a>>,
    mr: Mr,
    /// Identifiers of the next posted requests and of the next that may complete, sends and receives.
    next: [u64; 2],
    done: [u64; 2],
}

/// What a stranger must not change.
#[derive(Debug, PartialEq)]
struct Snapshot {
    state: QpState,
    completions: [usize; 2],
    memory: Vec<u8>,
    timer: Option<roxe_transport::time::Instant>,
}

const WHO: Peer = Peer::B;

impl<'a> Victim<'a> {
    fn new(setup: Setup, state: QpState, script: Script<'a>) -> Self {
        let mut pair = Pair::idle(setup, script);
        pair.bring_to(WHO, state);
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pair.end(WHO).host.memory.register(4096, all);
        Self { pair, mr, next: [1; 2], done: [0; 2] }
    }

    fn turn(&mut self) {
        match self.pair.choices.below(8) {
            0 => self.post_send(),
            1 => self.post_recv(),
            2 => _ = self.pair.step(),
            3 => self.raw(),
            4 => self.stranger(),
            _ => self.peer(),
        }
        self.pair.transmit(WHO);
        self.reap();
    }

    fn post_send(&mut self) {
        let len = self.pair.choices.below(1200);
        let (remote_addr, rkey) = (0x4000, RKey(7));
        let op = match self.pair.choices.below(5) {
            0 => SendOp::Send,
            1 => SendOp::Write { remote_addr, rkey },
            2 => SendOp::Read { remote_addr, rkey },
            3 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            _ => SendOp::SendImm(ImmDt([1, 2, 3, 4])),
        };
        let flags = if self.pair.choices.chance(500) { SendFlags::SIGNALED } else { SendFlags::FENCE };
        let ud = Some(UdDest { av: av(WHO), qpn: qpn(WHO.other()), qkey: QKEY });
        let list = [self.mr.sge(0, len / 3), self.mr.sge(len / 3, len)];
        let data = SendData::Sges(&list);
        if self.pair.post_send(WHO, &SendRequest { wr_id: self.next[0], op, flags, data, ud }).is_ok() {
            self.next[0] += 1;
        }
    }

    fn post_recv(&mut self) {
        let list = [self.mr.sge(0, self.pair.choices.below(300)), self.mr.sge(1000, self.pair.choices.below(1000))];
        if self.pair.post_recv(WHO, &RecvRequest { wr_id: self.next[1], sges: &list }).is_ok() {
            self.next[1] += 1;
        }
    }

    /// Bytes that may not even be a packet.
    fn raw(&mut self) {
        let len = self.pair.choices.between(0, 80);
        let bytes: Vec<u8> = (0..len).map(|_| self.pair.choices.below(256) as u8).collect();
        self.pair.inject_bytes(WHO, &net_header(&av(WHO.other())), &bytes);
    }

    /// A packet that everybody but the peer could send.
    fn stranger(&mut self) {
        let mut header = self.header();
        let mut net = net_header(&av(WHO.other()));
        let connected = self.pair.setup.service != Service::Ud;
        match self.pair.choices.below(3) {
            0 if connected => net = NetHeader { src: Gid([9; 16]), ..net },
            1 if connected => net = NetHeader { dst: Gid([9; 16]), ..net },
            _ => header.bth.pkey = Pkey(0x1234),
        }
        let before = self.snapshot();
        self.inject(&net, &header);
        assert_eq!(self.snapshot(), before, "{header:?} from {net:?}");
    }

    /// A packet that the peer could send if it were mad.
    fn peer(&mut self) {
        let header = self.header();
        let before = self.pair.end(WHO).qp.state();
        self.inject(&net_header(&av(WHO.other())), &header);
        let after = self.pair.end(WHO).qp.state();
        let served = matches!(before, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        assert!(served || after == before, "{before:?} became {after:?} by {header:?}");
    }

    fn inject(&mut self, net: &NetHeader, header: &Header) {
        let len = self.pair.choices.pick(&[0, 1, 4, 8, 252, 256, 300]);
        let Some(bytes) = forge(header, &[0x77; 300][..len]) else { return };
        self.pair.inject_bytes(WHO, net, &bytes);
    }

    /// Any header, with numbers near those that mean something.
    fn header(&mut self) -> Header {
        let kind = self.kind();
        let choices = &mut self.pair.choices;
        // Around the first PSN of the peer (requests) and of the victim (responses).
        let start = if matches!(kind, Kind::RcResponse(_)) { 900 } else { 100 };
        let psn = if choices.chance(50) { choices.below(1 << 24) } else { start + choices.below(24) };
        let mut bth = Bth::new(qpn(WHO), Psn::new(psn.wrapping_sub(4)));
        bth.ack_req = choices.chance(500);
        bth.solicited = choices.chance(100);
        Header { bth, kind }
    }

    fn kind(&mut self) -> Kind {
        match self.pair.choices.below(12) {
            0..=4 => Kind::RcRequest(self.request()),
            5..=7 => Kind::RcResponse(self.response()),
            8 | 9 => UcRequest::try_from(self.request()).map_or(Kind::Cnp, Kind::UcRequest),
            10 => {
                let qkey = if self.pair.choices.chance(800) { QKEY } else { Qkey(1) };
                Kind::Ud { deth: Deth { qkey, src_qpn: Qpn::new(5) }, imm: None }
            }
            _ => Kind::Cnp,
        }
    }

    fn request(&mut self) -> Request {
        let reth = self.reth();
        let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add: 3, compare: 0 };
        let imm = ImmDt([9; 4]);
        match self.pair.choices.below(14) {
            0 => Request::SendOnly(SendTail::Plain),
            1 => Request::SendFirst,
            2 => Request::SendMiddle,
            3 => Request::SendLast(SendTail::Imm(imm)),
            4 => Request::WriteOnly(reth, None),
            5 => Request::WriteFirst(reth),
            6 => Request::WriteMiddle,
            7 => Request::WriteLast(None),
            8 => Request::WriteOnly(reth, Some(imm)),
            9 => Request::Read(reth),
            10 => Request::FetchAdd(atomic),
            11 => Request::CompareSwap(atomic),
            12 => Request::SendOnly(SendTail::Invalidate(Ieth(reth.rkey))),
            _ => Request::AtomicWrite(reth),
        }
    }

    fn reth(&mut self) -> Reth {
        let choices = &mut self.pair.choices;
        let va = if choices.chance(900) { self.mr.addr + u64::from(choices.below(4200)) } else { u64::MAX - 7 };
        let rkey = if choices.chance(900) { self.mr.rkey() } else { RKey(choices.below(1 << 16)) };
        let dma_len = choices.pick(&[0, 1, 4, 8, 256, 300, 512, 600, 1 << 20, 1 << 31, u32::MAX]);
        Reth { va, rkey, dma_len }
    }

    fn response(&mut self) -> Response {
        let syndrome = match self.pair.choices.below(8) {
            0..=3 => Syndrome::ACK_UNLIMITED,
            4 => Syndrome::RnrNak { timer: self.pair.choices.below(32) as u8 },
            5 => Syndrome::Nak(NakCode::PsnSequence),
            6 => Syndrome::Nak(self.pair.choices.pick(&[NakCode::InvalidRequest, NakCode::RemoteAccess])),
            _ => Syndrome::Reserved(0x5f),
        };
        let aeth = Aeth { syndrome, msn: Msn::new(1) };
        match self.pair.choices.below(6) {
            0 | 1 => Response::Ack(aeth),
            2 => Response::ReadFirst(aeth),
            3 => Response::ReadMiddle,
            4 => Response::ReadOnly(aeth),
            _ => Response::AtomicAck(aeth, AtomicAckEth(4)),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let mr = self.mr;
        let end = self.pair.end(WHO);
        Snapshot {
            state: end.qp.state(),
            completions: [end.host.sends.len(), end.host.recvs.len()],
            memory: end.host.memory.bytes(mr).to_vec(),
            timer: end.qp.poll_timeout(),
        }
    }

    /// Completions name requests that were posted, in order, each at most once.
    fn reap(&mut self) {
        let end = &mut self.pair.ends[WHO.index()];
        for (side, queue) in [&mut end.host.sends, &mut end.host.recvs].into_iter().enumerate() {
            for cqe in queue.drain(..) {
                assert!(
                    cqe.wr_id > self.done[side] && cqe.wr_id < self.next[side],
                    "{cqe:?} after {}",
                    self.done[side]
                );
                self.done[side] = cqe.wr_id;
            }
        }
    }

    /// Lets every timer run out: nothing may go on for ever.
    fn finish(&mut self) {
        self.pair.run();
        self.reap();
        assert_eq!(self.pair.end(WHO).qp.poll_timeout(), None);
    }
}
