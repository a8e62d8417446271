//! Fuzz target: a queue pair in any state, whose application works, and which receives any packets
//! that a faulty peer or another host can send.

use super::headers;
use super::lone_qp::{LoneQp, OWN_END, PATTERN, SRQNS, line_rate};
use roxe_sim::SimHost;
use roxe_sim::setup::{QKEY, av, qpn};
use roxe_sim::wire::net_header;
use roxe_sim::{Choices, Mr, Script, Setup};
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpAttr, QpCaps, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, RecvRequest, SendData, SendFlags, SendOp, SendRequest, UdDest};
use roxe_wire::{
    Bth, Deth, Gid, Header, ImmDt, Kind, NetHeader, Packet, Pkey, Psn, Qkey, Qpn, RKey, UcRequest, XrcEth,
};

/// Length of the registered memory in bytes.
const LEN: u32 = 2048;

/// The input is the verbs of the application, and the packets of a faulty peer and of other hosts.
///
/// Properties: no panic; a packet that does not belong to the connection changes neither the state
/// nor memory nor any completion; work requests complete at most once and in order; no packet
/// changes the state of a queue pair that is not in RTR, RTS, SQD or SQE.
///
/// # Panics
/// If a property does not hold.
pub fn hostile(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&[Service::Rc, Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt]);
    let shares = script.chance_per_mille(300);
    let setup = Setup {
        service,
        srq: service == Service::XrcTgt || (shares && service != Service::XrcIni),
        caps: QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 32 },
        line_rate: line_rate(&mut script),
        log: false,
        ..Setup::default()
    };
    let state = script.pick(&[QpState::Rts, QpState::Rtr, QpState::Init, QpState::Reset]);
    let mut target = Target::new(setup, state, script);
    while !target.lone.choices.is_empty() {
        target.turn();
    }
    target.lone.run_until_idle(|_, _| {});
    target.reap();
}

/// The queue pair under test, with its memory.
struct Target<'a> {
    lone: LoneQp<'a>,
    mr: Mr,
}

/// State that a packet of another host must not change.
#[derive(Debug, PartialEq)]
struct Snapshot {
    state: QpState,
    completions: [usize; 2],
    expected: Psn,
    memory: Vec<u8>,
    timer: Option<Instant>,
}

impl<'a> Target<'a> {
    fn new(setup: Setup, state: QpState, script: Script<'a>) -> Self {
        let mut lone = LoneQp::new(setup, state, script);
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = lone.host.memory.register(LEN, all);
        Self { lone, mr }
    }

    fn turn(&mut self) {
        match self.lone.choices.below(16) {
            0 | 1 => self.post_send(),
            2 | 3 => self.post_recv(),
            4 => _ = self.lone.wait(),
            5 => self.modify(),
            6 | 7 => self.raw_bytes(),
            8 => self.foreign_packet(),
            _ => self.peer_packet(),
        }
        let room = self.lone.choices.between(1, 8) as usize;
        self.lone.transmit(room, |_, _| {});
        self.reap();
    }

    fn post_send(&mut self) {
        let len = self.lone.choices.below(1200);
        let (remote_addr, rkey) = (0x4000, RKey(7));
        let op = match self.lone.choices.below(7) {
            0 => SendOp::Send,
            1 => SendOp::Write { remote_addr, rkey },
            2 => SendOp::Read { remote_addr, rkey },
            3 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            5 => SendOp::AtomicWrite { remote_addr, rkey },
            6 => SendOp::Flush { remote_addr, rkey, length: len, feth: headers::FLUSH_REGION },
            _ => SendOp::SendImm(ImmDt([1, 2, 3, 4])),
        };
        let flags = if self.lone.choices.chance_per_mille(500) { SendFlags::SIGNALED } else { SendFlags::FENCE };
        let ud = Some(UdDest { av: av(OWN_END), qpn: qpn(OWN_END.other()), qkey: QKEY });
        let (list, word) = ([self.mr.sge(0, len / 3), self.mr.sge(len / 3, len)], [self.mr.sge(0, 8)]);
        // The state, the depth or the service may refuse it.
        let data = match op {
            SendOp::AtomicWrite { .. } => SendData::Inline(&PATTERN[..8]),
            SendOp::Flush { .. } => SendData::Sges(&[]),
            SendOp::FetchAdd { .. } => SendData::Sges(&word),
            _ => SendData::Sges(&list),
        };
        let _ = self.lone.post_send(&SendRequest { wr_id: 0, op, flags, data, ud });
    }

    fn post_recv(&mut self) {
        let list = [self.mr.sge(0, self.lone.choices.below(300)), self.mr.sge(1000, self.lone.choices.below(1000))];
        let _ = self.lone.post_recv(&RecvRequest { wr_id: 0, sges: &list });
    }

    /// Lets the application request a legal or illegal state.
    fn modify(&mut self) {
        let state = self.lone.choices.pick(&[QpState::Sqd, QpState::Rts, QpState::Err]);
        let attr = QpAttr { state, ..*self.lone.qp.attr() };
        let _ = self.lone.qp.modify(&mut self.lone.host, &attr, AttrMask::STATE);
    }

    /// Delivers bytes that may not be a packet, half of the time with the right QPN and a PSN near
    /// the expected one.
    fn raw_bytes(&mut self) {
        let mut bytes = [0; 96];
        let len = self.lone.choices.between(0, 96) as usize;
        let bytes = &mut bytes[..len];
        bytes.fill_with(|| self.lone.choices.below(256) as u8);
        if self.lone.choices.chance_per_mille(500) && len >= Bth::LEN {
            let psn = self.psn(self.lone.qp.expected_psn());
            bytes[4..8].copy_from_slice(&qpn(OWN_END).get().to_be_bytes());
            bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
        }
        let Ok(packet) = Packet::parse(bytes) else { return };
        let _ = self.lone.receive(&net_header(&av(OWN_END.other())), &packet.header, packet.payload);
    }

    /// Delivers a packet that only another host than the peer can send; it must have no effect.
    fn foreign_packet(&mut self) {
        let mut header = self.header();
        let mut net = net_header(&av(OWN_END.other()));
        let connected = self.lone.setup.service != Service::Ud;
        match self.lone.choices.below(3) {
            0 if connected => net = NetHeader { src: Gid([9; 16]), ..net },
            1 if connected => net = NetHeader { dst: Gid([9; 16]), ..net },
            _ => header.bth.pkey = Pkey(0x1234),
        }
        let before = self.snapshot();
        self.inject(&net, &header);
        assert_eq!(self.snapshot(), before, "{header:?} from {net:?}");
    }

    /// Delivers any packet from the peer's address.
    fn peer_packet(&mut self) {
        let header = self.header();
        let before = self.lone.qp.state();
        // Sometimes with a congestion mark.
        let traffic_class = if self.lone.choices.chance_per_mille(200) { 3 } else { 0 };
        self.inject(&NetHeader { traffic_class, ..net_header(&av(OWN_END.other())) }, &header);
        let after = self.lone.qp.state();
        let served = matches!(before, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        assert!(served || after == before, "{before:?} became {after:?} by {header:?}");
    }

    fn inject(&mut self, net: &NetHeader, header: &Header) {
        let len = headers::payload_len(&mut self.lone.choices);
        let _ = self.lone.receive(net, header, &PATTERN[..len]);
    }

    /// Returns a header of any kind, with a PSN near the valid ones.
    fn header(&mut self) -> Header {
        let kind = self.kind();
        // Requests have a PSN near the expected one, responses near the first of this queue pair.
        let near = match kind {
            Kind::RcResponse(_) | Kind::XrcResponse(_) => Psn::new(self.lone.setup.psn[OWN_END.index()]),
            _ => self.lone.qp.expected_psn(),
        };
        let mut bth = Bth::new(qpn(OWN_END), self.psn(near));
        bth.ack_req = self.lone.choices.chance_per_mille(500);
        bth.solicited = self.lone.choices.chance_per_mille(100);
        Header { bth, kind }
    }

    fn psn(&mut self, near: Psn) -> Psn {
        match self.lone.choices.below(8) {
            0 => Psn::new(self.lone.choices.below(1 << 24)),
            1 => near.sub(self.lone.choices.below(8)),
            2..=4 => near.add(self.lone.choices.below(24)),
            _ => near,
        }
    }

    /// Returns a kind of packet, mostly one of the queue pair's service.
    fn kind(&mut self) -> Kind {
        let service = self.lone.setup.service;
        match (service, self.any_kind()) {
            (Service::XrcTgt, Kind::RcRequest(request)) if self.lone.choices.chance_per_mille(900) => {
                let srqn = self.lone.choices.pick(&[SRQNS[0], SRQNS[0], SRQNS[1], 99]);
                Kind::XrcRequest(XrcEth(srqn), request)
            }
            (Service::XrcIni, Kind::RcResponse(response)) if self.lone.choices.chance_per_mille(900) => {
                Kind::XrcResponse(response)
            }
            (_, kind) => kind,
        }
    }

    fn any_kind(&mut self) -> Kind {
        let choices = &mut self.lone.choices;
        match choices.below(12) {
            0..=4 => Kind::RcRequest(headers::request(choices, &[self.mr])),
            5..=7 => Kind::RcResponse(headers::response(choices, 4)),
            8 | 9 => UcRequest::try_from(headers::request(choices, &[self.mr])).map_or(Kind::Cnp, Kind::UcRequest),
            10 => {
                let qkey = if choices.chance_per_mille(800) { QKEY } else { Qkey(1) };
                Kind::Ud { deth: Deth { qkey, src_qpn: Qpn::new(5) }, imm: None }
            }
            _ => Kind::Cnp,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let host = &self.lone.host;
        Snapshot {
            state: self.lone.qp.state(),
            completions: [host.sends.len(), host.recvs.len() + done_in_shared(host)],
            expected: self.lone.qp.expected_psn(),
            memory: host.memory.bytes(self.mr).to_vec(),
            timer: self.lone.qp.poll_timeout(),
        }
    }

    fn reap(&mut self) {
        for side in [Side::Send, Side::Recv] {
            while self.lone.take(side).is_some() {}
        }
    }
}

/// Returns the number of completions in the XRC SRQs.
fn done_in_shared(host: &SimHost) -> usize {
    host.xrc.iter().map(|queue| queue.done.len()).sum()
}
