//! A program and its card as events, for tests of rules.

use crate::event::{DroppedPacket, Event, MrInfo, Object, QpInfo};
use crate::program::Program;
use crate::rule::Rule;
use crate::rules::Rules;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{PostError, QpCaps, Service};
use roxe_transport::wr::{Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode};
use roxe_wire::{Bth, Deth, Gid, Header, Kind, LKey, Psn, Qkey, Qpn, RKey};

/// A device with a domain, a completion queue and all rules.
pub(crate) struct Card {
    pub(crate) program: Program,
    rules: Rules,
    pub(crate) context: ObjectId,
    pub(crate) pd: ObjectId,
    pub(crate) cq: ObjectId,
    qp_count: u32,
}

impl Card {
    pub(crate) fn new() -> Self {
        let [context, pd, cq] = [ObjectId::next(), ObjectId::next(), ObjectId::next()];
        let mut card = Self { program: Program::default(), rules: Rules::default(), context, pd, cq, qp_count: 0 };
        card.emit(Event::Created(context, Object::Context));
        card.emit(Event::Created(pd, Object::Pd { context }));
        card.emit(Event::Created(cq, Object::Cq { context, channel: None, capacity: 16 }));
        card
    }

    /// Emits an event, and returns the rules that report it.
    pub(crate) fn emit(&mut self, event: Event<'_>) -> Vec<Rule> {
        let (stack, mut reports) = (Stack::unknown(), Vec::new());
        self.program.begin(&event, &stack);
        self.rules.observe(&event, &stack, &self.program, &mut reports);
        self.program.end(&event, &stack);
        reports.into_iter().map(|report| report.rule).collect()
    }

    pub(crate) fn qp(&mut self) -> ObjectId {
        self.qp_of(Service::Rc)
    }

    pub(crate) fn qp_of(&mut self, service: Service) -> ObjectId {
        self.qp_count += 1;
        let Self { context, pd, cq, .. } = *self;
        let pair = QpInfo { context, pd, send_cq: cq, recv_cq: cq, ..pair(self.qp_count, service) };
        let id = ObjectId::next();
        self.emit(Event::Created(id, Object::Qp(pair)));
        id
    }

    /// Registers a new region at `addr` with this key.
    pub(crate) fn mr(&mut self, key: u32, addr: u64, length: u64, access: Access) -> ObjectId {
        let Self { context, pd, .. } = *self;
        let id = ObjectId::next();
        let memory = MrInfo { context, pd, lkey: key, rkey: key, addr, base: addr, length, access };
        self.emit(Event::Created(id, Object::Mr(memory)));
        id
    }

    pub(crate) fn post(&mut self, qp: ObjectId, request: &SendRequest<'_>) -> Vec<Rule> {
        self.emit(Event::PostedSend { qp, request })
    }

    pub(crate) fn refuse(&mut self, queue: ObjectId, error: PostError) -> Vec<Rule> {
        self.emit(Event::PostRefused { queue, side: Side::Send, wr_id: 0, inline: 0, error })
    }

    fn cqe(&self, qp: ObjectId, wr_id: u64) -> Cqe {
        let qpn = self.program.qp(qp).expect("the queue pair is alive").qpn;
        Cqe { wr_id, qpn, opcode: WcOpcode::RdmaWrite, ..Cqe::default() }
    }

    /// Posts a receive of this length.
    pub(crate) fn receive(&mut self, queue: ObjectId, length: u32) -> Vec<Rule> {
        let request = RecvRequest { wr_id: 1, sges: &[Sge { addr: 0x1000, length, lkey: LKey(0) }] };
        self.emit(Event::PostedRecv { queue, request: &request })
    }

    /// Lets the card complete a send.
    pub(crate) fn complete(&mut self, qp: ObjectId, wr_id: u64) -> Vec<Rule> {
        let cqe = self.cqe(qp, wr_id);
        self.emit(Event::Completed { qp, side: Side::Send, cqe: &cqe })
    }

    /// Lets the program poll the completion of a send.
    pub(crate) fn poll(&mut self, qp: ObjectId, wr_id: u64) -> Vec<Rule> {
        let (cq, cqe) = (self.cq, self.cqe(qp, wr_id));
        self.emit(Event::Polled { cq, cqe: &cqe })
    }
}

/// Returns a queue pair whose context, domain and completion queue are its own.
pub(crate) fn pair(qpn: u32, service: Service) -> QpInfo {
    let [context, pd, cq] = [ObjectId::next(), ObjectId::next(), ObjectId::next()];
    let caps = QpCaps { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (qpn, sq_sig_all, srq) = (Qpn::new(qpn), false, None);
    QpInfo { context, pd, qpn, service, caps, sq_sig_all, send_cq: cq, recv_cq: cq, srq, port_mtu: 1024 }
}

/// Returns a packet of `kind` with `len` bytes for a queue pair that expects PSN `expected`.
pub(crate) fn packet(kind: Kind, psn: u32, expected: u32, len: usize) -> DroppedPacket {
    let header = Header { bth: Bth::new(Qpn::new(1), Psn::new(psn)), kind };
    DroppedPacket { src: Gid([1; 16]), dst: Gid([2; 16]), header, len, expected: Psn::new(expected) }
}

/// Returns a datagram of `len` bytes.
pub(crate) fn datagram(qkey: u32, len: usize) -> DroppedPacket {
    packet(Kind::Ud { deth: Deth { qkey: Qkey(qkey), src_qpn: Qpn::new(9) }, imm: None }, 0, 0, len)
}

/// Returns a WRITE of 0 bytes.
pub(crate) fn write(wr_id: u64, flags: SendFlags) -> SendRequest<'static> {
    let op = SendOp::Write { remote_addr: 0, rkey: RKey(0) };
    SendRequest { wr_id, op, flags, data: SendData::Sges(&[]), ud: None }
}
