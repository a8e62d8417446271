//! Scripts of the responder: a state, a received packet, and exactly the packets that it must send.

mod atomics;
mod duplicates;
mod joined;
mod nonposted;
mod order;
mod reads;
mod receives;
mod refusals;
mod unreliable;

use super::*;
use crate::cx::{MemError, Memory, PacketNote, TxBatch, TxRoom, TxState};
use crate::qp::shared::{QpCaps, Service};
use crate::sim_host::{Mr, SimHost};
use crate::wr::{Av, RecvRequest, Sge, WcExtra, WcStatus};
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Feth, Header, Ieth, ImmDt, Kind, Msn, NakCode, Packet, Placement, Psn, Qpn, RKey,
    Response, Reth, Selectivity, SendTail, Syndrome, icrc,
};

/// The first PSN expected.
const FIRST: u32 = 100;
/// Payload bytes of a full packet.
const MTU: usize = 256;
const SEND: Request = Request::SendOnly(SendTail::Plain);

/// A batch of at most `room` packets.
struct PacketBatch {
    room: usize,
    packets: Vec<Vec<u8>>,
}

impl TxBatch for PacketBatch {
    fn slot(&mut self, _av: &Av, _to: Qpn, len: usize, _note: &PacketNote) -> Option<TxRoom<'_>> {
        if self.packets.len() == self.room {
            return None;
        }
        self.packets.push(vec![0xa5; len + icrc::LEN]);
        self.packets.last_mut()?.get_mut(..len).map(TxRoom::Own)
    }

    fn retract(&mut self) {
        self.packets.pop();
    }
}

/// A response: PSN, response, payload.
type Out = (u32, Response, Vec<u8>);

struct Script {
    sh: Shared,
    responder: Responder,
    host: SimHost,
    mr: Mr,
}

impl Script {
    fn new(service: Service) -> Self {
        Self::with(service, None)
    }

    /// Returns a QP in RTS whose peer has all rights, with a region of 64 KiB of known bytes.
    fn with(service: Service, srq_max_sge: Option<u32>) -> Self {
        let caps = QpCaps { max_recv_wr: 8, max_recv_sge: 2, ..QpCaps::default() };
        let config = QpConfig { srq_max_sge, port_mtu: MTU as u32, ..QpConfig::new(Qpn::new(2), service, caps) };
        let mut sh = Shared::new(config);
        sh.set_state(QpState::Rts);
        sh.attr.rq_psn = Psn::new(FIRST);
        sh.attr.dest_qpn = Qpn::new(3);
        sh.attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        sh.attr.max_dest_rd_atomic = 2;
        sh.attr.min_rnr_timer = 12;
        let mut responder = Responder::new(&config);
        responder.on_rtr(&sh);
        let mut host = SimHost::default();
        let mr = host.memory.register(1 << 16, Access::LOCAL_WRITE | sh.attr.access);
        for (byte, value) in host.memory.bytes_mut(mr).iter_mut().zip((0..251u8).cycle()) {
            *byte = value;
        }
        Self { sh, responder, host, mr }
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.responder.rq.post(&RecvRequest { wr_id, sges }).expect("room in the queue");
    }

    /// Delivers a request that requests an acknowledgement.
    fn deliver(&mut self, psn: u32, req: Request, payload: &[u8]) -> Result<(), DropReason> {
        self.deliver_with_bth(Bth { ack_req: true, ..Bth::new(Qpn::new(2), Psn::new(psn)) }, req, payload)
    }

    /// Delivers a request that requests no acknowledgement.
    fn deliver_no_ackreq(&mut self, psn: u32, req: Request, payload: &[u8]) -> Result<(), DropReason> {
        self.deliver_with_bth(Bth::new(Qpn::new(2), Psn::new(psn)), req, payload)
    }

    fn deliver_with_bth(&mut self, bth: Bth, req: Request, payload: &[u8]) -> Result<(), DropReason> {
        let incoming = Incoming { bth: &bth, req: &req, payload: payload.into() };
        let result = self.responder.handle_request(&mut self.sh, &mut self.host, incoming);
        self.settle();
        result
    }

    fn deliver_uc(&mut self, psn: u32, req: Request, payload: &[u8]) -> Result<(), DropReason> {
        let bth = Bth::new(Qpn::new(2), Psn::new(psn));
        let req = UcRequest::try_from(req).expect("UC has this operation");
        let result = self.responder.handle_uc(&mut self.sh, &mut self.host, &bth, &req, payload.into());
        self.settle();
        assert!(!self.responder.has_work(), "UC sends no response");
        result
    }

    /// Enters the error state as `Qp` does.
    fn settle(&mut self) {
        if core::mem::take(&mut self.sh.failed) {
            self.sh.set_state(QpState::Err);
            self.responder.flush(&mut self.sh, &mut self.host);
        }
    }

    /// Polls up to `room` packets.
    fn poll(&mut self, room: usize) -> (Vec<Out>, TxState) {
        let mut tx = PacketBatch { room, packets: Vec::new() };
        let state =
            self.responder.replies.poll_transmit(&mut self.sh, &mut self.host, &mut tx, self.responder.progress);
        self.settle();
        let parse = |bytes: &Vec<u8>| {
            let Packet { header: Header { bth, kind }, payload } = Packet::parse(bytes).expect("parse the packet");
            let Kind::RcResponse(response) = kind else { panic!("{kind:?} is not a response") };
            assert_eq!((bth.dest_qpn, bth.ack_req, bth.solicited), (Qpn::new(3), false, false));
            (bth.psn.get(), response, payload.to_vec())
        };
        (tx.packets.iter().map(parse).collect(), state)
    }

    /// Polls all due packets.
    fn out(&mut self) -> Vec<Out> {
        let (out, state) = self.poll(100);
        assert_eq!((state, self.responder.has_work()), (TxState::Drained, false));
        out
    }

    /// Takes the receive completions, as (wr_id, status, byte_len).
    fn done(&mut self) -> Vec<(u64, WcStatus, u32)> {
        self.host.recvs.drain(..).map(|cqe| (cqe.wr_id, cqe.status, cqe.byte_len)).collect()
    }

    fn reth(&self, offset: u32, dma_len: u32) -> Reth {
        Reth { va: self.mr.addr + u64::from(offset), rkey: self.mr.rkey(), dma_len }
    }

    fn eth(&self, offset: u32) -> AtomicEth {
        AtomicEth { va: self.mr.addr + u64::from(offset), rkey: self.mr.rkey(), swap_or_add: 1, compare: 0 }
    }

    fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        self.host.memory.bytes(self.mr)[from..from + len].to_vec()
    }
}

fn aeth(syndrome: Syndrome, msn: u32) -> Aeth {
    Aeth { syndrome, msn: Msn::new(msn) }
}

fn ack_aeth(msn: u32) -> Aeth {
    aeth(Syndrome::ACK_UNLIMITED, msn)
}

fn ack(psn: u32, msn: u32) -> Out {
    (psn, Response::Ack(ack_aeth(msn)), vec![])
}

fn nak(psn: u32, code: NakCode, msn: u32) -> Out {
    (psn, Response::Ack(aeth(Syndrome::Nak(code), msn)), vec![])
}

fn rnr_nak(psn: u32, msn: u32) -> Out {
    (psn, Response::Ack(aeth(Syndrome::RnrNak { timer: 12 }, msn)), vec![])
}

fn rc() -> Script {
    Script::new(Service::Rc)
}
