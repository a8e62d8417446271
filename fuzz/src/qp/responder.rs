//! Fuzz target: a responder executes requests from the fuzz input. A model of its memory predicts
//! the results.

use super::headers;
use super::lone_qp::{LoneQp, OWN_END, PATTERN, SRQNS};
use roxe_sim::setup::{QKEY, av, qpn};
use roxe_sim::wire::net_header;
use roxe_sim::{Choices, Mr, Script, Setup};
use roxe_transport::cx::{PacketNote, Side};
use roxe_transport::qp::{QpCaps, QpState, Service};
use roxe_transport::wr::{Access, Cqe, RecvRequest, WcStatus};
use roxe_wire::{
    Bth, Deth, Header, Kind, NakCode, Packet, PathMtu, Placement, Psn, Qkey, Qpn, Request, Response, Reth, Selectivity,
    Syndrome, UcRequest, XrcEth,
};

/// Path MTU in bytes.
const MTU: u32 = PathMtu::Mtu256.bytes();
/// Size in bytes of the region with all rights.
const REGION_LEN: u32 = 2048;
/// Number of slots in the receive buffers; receive `wr_id` uses slot `wr_id % SLOTS`.
const SLOTS: u64 = 16;
/// Length of a slot in bytes.
const SLOT_LEN: u32 = 700;
/// Length in bytes of the GRH that precedes every received UD message.
const GRH_LEN: usize = 40;

/// The input is a sequence of requests from the peer to one queue pair in any state.
///
/// Properties: memory has the results of the accepted requests, each executed once, and a refused
/// request changes nothing; only the expected request advances the expected PSN; only executed
/// requests are acknowledged; READ responses carry the content of the memory; a receive completes
/// at most once, in order, with the bytes of its message; UC and UD send no response.
///
/// # Panics
/// If a property does not hold.
pub fn responder(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&[Service::Rc, Service::Rc, Service::Uc, Service::Ud, Service::XrcTgt, Service::XrcTgt]);
    let setup = Setup {
        service,
        srq: script.chance_per_mille(200) || service == Service::XrcTgt,
        caps: QpCaps { max_send_wr: 1, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 2, max_inline_data: 0 },
        max_dest_rd_atomic: script.between(0, 4) as u8,
        access: access(&mut script),
        log: false,
        ..Setup::default()
    };
    let state = script.pick(&[QpState::Rtr, QpState::Rts, QpState::Rtr, QpState::Init, QpState::Reset]);
    let mut responder = Responder::new(setup, state, script);
    while !responder.lone.choices.is_empty() {
        responder.step();
    }
    responder.lone.run_until_idle(|_, _| {});
}

/// Returns the access rights of the queue pair: mostly all, sometimes a subset.
fn access(script: &mut Script<'_>) -> Access {
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    if script.chance_per_mille(250) { all & Access::from_bits_retain(script.below(512)) } else { all }
}

struct Responder<'a> {
    lone: LoneQp<'a>,
    /// Region with all rights.
    full_access: Mr,
    /// Region that the peer can only read.
    read_only: Mr,
    /// Region without remote rights.
    local_only: Mr,
    /// Region of the buffers of receives, one slot each.
    receive_buffers: Mr,
    model: Model,
}

/// Expected effects of the accepted requests.
struct Model {
    /// Content of the region with all rights.
    memory: [u8; REGION_LEN as usize],
    /// Offset in the region of the next byte of the unfinished WRITE.
    write_offset: u64,
    /// Number of bytes that the unfinished WRITE still brings; 0 if there is none.
    write_remaining: u32,
    /// XRC only: index in [`SRQNS`] of the SRQ of the unfinished message.
    srq: usize,
    /// Bytes received so far of the newest SEND.
    message: Vec<u8>,
    /// True while a SEND is unfinished.
    is_receiving: bool,
    /// First PSN and RETH of each accepted READ.
    reads: Vec<(Psn, Reth)>,
    /// PSNs of accepted ATOMIC WRITEs and FLUSHes, which an empty READ response answers.
    empty_responses: Vec<Psn>,
    /// Number of FLUSHes in `empty_responses`.
    flushes: u32,
    /// True once the peer has repeated the PSN of a READ: if the READ differs from the first, the
    /// content of the response is undefined.
    has_repeated_read: bool,
}

impl<'a> Responder<'a> {
    fn new(setup: Setup, state: QpState, script: Script<'a>) -> Self {
        let mut lone = LoneQp::new(setup, state, script);
        let memory = &mut lone.host.memory;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let full_access = memory.register(REGION_LEN, all | Access::FLUSH_GLOBAL);
        let read_only = memory.register(64, Access::REMOTE_READ);
        let local_only = memory.register(64, Access::LOCAL_WRITE);
        let receive_buffers = memory.register(SLOTS as u32 * SLOT_LEN, Access::LOCAL_WRITE);
        let model = Model {
            memory: [0; REGION_LEN as usize],
            write_offset: 0,
            write_remaining: 0,
            srq: 0,
            message: Vec::new(),
            is_receiving: false,
            reads: Vec::new(),
            empty_responses: Vec::new(),
            flushes: 0,
            has_repeated_read: false,
        };
        Self { lone, full_access, read_only, local_only, receive_buffers, model }
    }

    fn step(&mut self) {
        match self.lone.choices.below(8) {
            0 => self.post_recv(),
            1 => self.transmit(),
            _ => self.receive_request(),
        }
    }

    fn post_recv(&mut self) {
        let slot_offset = slot_offset(self.lone.next(Side::Recv));
        let (first, second) = (self.lone.choices.below(300), self.lone.choices.below(SLOT_LEN - 300));
        let list =
            [self.receive_buffers.sge(slot_offset, first), self.receive_buffers.sge(slot_offset + first, second)];
        // The post fails in RESET and if the queue is full.
        let _ = self.lone.post_recv(&RecvRequest { wr_id: 0, sges: &list });
    }

    fn receive_request(&mut self) {
        let (header, len) = self.choose_request();
        let payload = &PATTERN[header.bth.psn.get() as usize % 512..][..len];
        let before = self.lone.qp.expected_psn();
        let state = self.lone.qp.state();
        let net = net_header(&av(OWN_END.other()));
        let Some(result) = self.lone.receive(&net, &header, payload) else { return };
        let advanced = self.lone.qp.expected_psn().distance(before);
        let request = request_of(&header.kind);
        if request.is_some() && self.lone.setup.service.is_reliable() {
            let expected = result.is_ok() && header.bth.psn == before;
            let count = request.as_ref().map_or(0, psn_count);
            assert_eq!(advanced, if expected { count as i32 } else { 0 }, "{header:?} at {before}");
        }
        assert!(result.is_err() || matches!(state, QpState::Rtr | QpState::Rts), "a request was executed in {state:?}");
        match (&header.kind, request) {
            (_, Some(request)) if result.is_ok() => {
                self.model.execute(self.full_access, header.bth.psn, &request, payload)
            }
            (Kind::Ud { .. }, _) if result.is_ok() => self.model.message = payload.to_vec(),
            (_, Some(Request::Read(_))) if header.bth.psn.is_before(before) => self.model.has_repeated_read = true,
            _ => {}
        }
        self.check_effects();
    }

    /// Chooses a request and the length of its payload. Half of the requests continue the
    /// unfinished message.
    fn choose_request(&mut self) -> (Header, usize) {
        let choices = &mut self.lone.choices;
        let mut len = headers::payload_len(choices);
        let mut request =
            headers::request(choices, &[self.full_access, self.full_access, self.read_only, self.local_only]);
        if choices.chance_per_mille(500) {
            (request, len) = self.model.continuation(request, len);
        }
        let kind = match self.lone.setup.service {
            _ if choices.chance_per_mille(20) => Kind::Cnp,
            Service::XrcTgt => {
                if self.model.write_remaining == 0 && !self.model.is_receiving {
                    self.model.srq = choices.below(SRQNS.len() as u32) as usize;
                }
                let srqn = SRQNS[self.model.srq];
                let srqn = if choices.chance_per_mille(50) { choices.pick(&[SRQNS[0], SRQNS[1], 99]) } else { srqn };
                Kind::XrcRequest(XrcEth(srqn), request)
            }
            Service::Rc | Service::XrcIni | Service::Raw => Kind::RcRequest(request),
            Service::Uc => UcRequest::try_from(request).map_or(Kind::Cnp, Kind::UcRequest),
            Service::Ud => {
                let qkey = if choices.chance_per_mille(900) { QKEY } else { Qkey(1) };
                Kind::Ud { deth: Deth { qkey, src_qpn: Qpn::new(5) }, imm: None }
            }
        };
        let expected = self.lone.qp.expected_psn();
        let choices = &mut self.lone.choices;
        let psn = match choices.below(8) {
            0 => expected.sub(choices.below(12)),
            1 => expected.add(choices.below(4)),
            2 => Psn::new(choices.below(1 << 24)),
            _ => expected,
        };
        let mut bth = Bth::new(qpn(OWN_END), psn);
        bth.ack_req = choices.chance_per_mille(500);
        (Header { bth, kind }, len)
    }

    /// Checks that memory equals the model, and that completed receives have the bytes of the
    /// message.
    fn check_effects(&mut self) {
        let memory = &self.lone.host.memory;
        assert_eq!(memory.bytes(self.full_access), self.model.memory, "the region with all rights");
        assert_eq!(memory.flushes, self.model.flushes, "each FLUSH is executed once");
        assert_eq!(memory.bytes(self.read_only), [0; 64], "the read-only region");
        assert_eq!(memory.bytes(self.local_only), [0; 64], "the region without rights");
        while let Some(cqe) = self.lone.take(Side::Recv) {
            self.check_receive(&cqe);
        }
    }

    fn check_receive(&self, cqe: &Cqe) {
        use roxe_transport::wr::WcOpcode;
        if cqe.status != WcStatus::Success || cqe.opcode != WcOpcode::Recv {
            return;
        }
        let grh_len = if self.lone.setup.service == Service::Ud { GRH_LEN } else { 0 };
        let message = &self.model.message;
        assert_eq!(cqe.byte_len as usize, grh_len + message.len());
        let received = &self.lone.host.memory.bytes(self.receive_buffers)[slot_offset(cqe.wr_id) as usize + grh_len..];
        assert_eq!(&received[..message.len()], &message[..], "the bytes of receive {}", cqe.wr_id);
    }

    fn transmit(&mut self) {
        let room = self.lone.choices.between(1, 4) as usize;
        let expected = self.lone.qp.expected_psn();
        let (service, model) = (self.lone.setup.service, &self.model);
        let (full_access, read_only) = (self.full_access, self.read_only);
        self.lone.transmit(room, |note, packet| {
            assert!(service.is_reliable(), "{packet} is a response on an unreliable service");
            model.check_response([full_access, read_only], expected, note, packet);
        });
    }
}

impl Model {
    /// Applies an accepted request to the model.
    fn execute(&mut self, full_access: Mr, psn: Psn, request: &Request, payload: &[u8]) {
        match request {
            Request::SendFirst | Request::SendOnly(_) => self.message = payload.to_vec(),
            Request::SendMiddle | Request::SendLast(_) => self.message.extend_from_slice(payload),
            Request::WriteFirst(reth) | Request::WriteOnly(reth, _) => {
                assert!(is_within(full_access, reth), "{request:?} leaves {full_access:?}");
                (self.write_offset, self.write_remaining) = (reth.va.wrapping_sub(full_access.addr), reth.dma_len);
                self.apply_write(payload);
            }
            Request::WriteMiddle | Request::WriteLast(_) => self.apply_write(payload),
            Request::FetchAdd(eth) => {
                self.update_word(eth.va - full_access.addr, |old| old.wrapping_add(eth.swap_or_add))
            }
            Request::CompareSwap(eth) => {
                self.update_word(
                    eth.va - full_access.addr,
                    |old| if old == eth.compare { eth.swap_or_add } else { old },
                );
            }
            Request::Read(reth) => self.reads.push((psn, *reth)),
            Request::AtomicWrite(reth) => {
                assert!(is_within(full_access, reth) && reth.va % 8 == 0, "{request:?} in {full_access:?}");
                let word = payload.try_into().expect("eight bytes");
                self.update_word(reth.va - full_access.addr, |_| u64::from_ne_bytes(word));
                self.empty_responses.push(psn);
            }
            Request::Flush(feth, reth) => {
                let is_whole_region = feth.selectivity == Selectivity::Region && reth.rkey == full_access.rkey();
                assert!(
                    is_whole_region
                        || is_within(full_access, &Reth { dma_len: reth.dma_len.max(1), ..*reth })
                        || is_empty_at_end(full_access, reth)
                );
                assert_eq!(feth.placement, Placement::GLOBAL_VISIBILITY);
                self.empty_responses.push(psn);
                self.flushes += 1;
            }
        }
        self.is_receiving = matches!(request, Request::SendFirst | Request::SendMiddle);
    }

    fn apply_write(&mut self, payload: &[u8]) {
        if !payload.is_empty() {
            let offset = self.write_offset as usize;
            self.memory[offset..offset + payload.len()].copy_from_slice(payload);
        }
        let (len, remaining) = (payload.len() as u32, self.write_remaining);
        self.write_offset = self.write_offset.wrapping_add(len.into());
        self.write_remaining = remaining.checked_sub(len).expect("a WRITE carries at most its announced length");
    }

    fn update_word(&mut self, offset: u64, change: impl Fn(u64) -> u64) {
        let word = &mut self.memory[offset as usize..offset as usize + 8];
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&change(old).to_ne_bytes());
    }

    /// Returns the continuation of the unfinished message, or `request` if there is none, with a
    /// legal payload length.
    fn continuation(&self, request: Request, len: usize) -> (Request, usize) {
        use roxe_wire::SendTail::Plain;
        match (self.write_remaining, request) {
            (len @ 1..=MTU, _) => (Request::WriteLast(None), len as usize),
            (1.., _) => (Request::WriteMiddle, MTU as usize),
            _ if self.is_receiving && len < MTU as usize => (Request::SendLast(Plain), len.max(1)),
            _ if self.is_receiving => (Request::SendMiddle, MTU as usize),
            (_, Request::WriteFirst(reth)) => {
                (Request::WriteFirst(Reth { dma_len: reth.dma_len.max(MTU + 1), ..reth }), MTU as usize)
            }
            (_, Request::WriteOnly(reth, imm)) => {
                (Request::WriteOnly(Reth { dma_len: len as u32, ..reth }, imm), len.min(MTU as usize))
            }
            (_, Request::SendFirst) => (request, MTU as usize),
            (_, Request::SendOnly(_)) => (request, len.min(MTU as usize)),
            (_, Request::AtomicWrite(_)) => (request, 8),
            _ => (request, 0),
        }
    }

    /// Checks a response. `regions` are the readable ones, the region with all rights first;
    /// `expected` is the responder's expected PSN.
    fn check_response(&self, regions: [Mr; 2], expected: Psn, note: &PacketNote, packet: &Packet<'_>) {
        let (Kind::RcResponse(response) | Kind::XrcResponse(response)) = &packet.header.kind else {
            panic!("{note:?}: {packet} is not a response")
        };
        let psn = packet.header.bth.psn;
        let is_refusal = match response {
            Response::Ack(aeth) => matches!(
                aeth.syndrome,
                Syndrome::RnrNak { .. }
                    | Syndrome::Nak(
                        NakCode::PsnSequence
                            | NakCode::InvalidRequest
                            | NakCode::RemoteAccess
                            | NakCode::RemoteOperation
                    )
            ),
            _ => false,
        };
        assert!(psn.is_before(expected) || (is_refusal && psn == expected), "{packet} with {expected} expected");
        if matches!(response, Response::Ack(_) | Response::AtomicAck(..)) || self.has_repeated_read {
            return;
        }
        if packet.payload.is_empty() && self.empty_responses.contains(&psn) {
            return;
        }
        let read = self.reads.iter().rev().find(|(first, _)| !psn.is_before(*first)).expect("find the accepted READ");
        let offset = psn.distance(read.0) as u32 * MTU;
        let va = read.1.va.wrapping_add(offset.into());
        if packet.payload.is_empty() {
            assert_eq!(read.1.dma_len, 0, "{packet}");
        } else if read.1.rkey == regions[0].rkey() {
            let offset = (va - regions[0].addr) as usize;
            assert_eq!(packet.payload, &self.memory[offset..offset + packet.payload.len()], "{packet}");
        } else {
            assert_eq!(read.1.rkey, regions[1].rkey(), "{packet} reads another region");
        }
    }
}

/// Returns true if the range of `reth` is empty and begins at the end of `mr`.
fn is_empty_at_end(mr: Mr, reth: &Reth) -> bool {
    reth.rkey == mr.rkey() && reth.dma_len == 0 && reth.va == mr.addr + u64::from(mr.len)
}

/// Returns true if all bytes of the range of `reth` are in `mr`; always true for an empty range.
fn is_within(mr: Mr, reth: &Reth) -> bool {
    let end = mr.addr + u64::from(mr.len);
    let is_inside = reth.va >= mr.addr && reth.va.checked_add(reth.dma_len.into()).is_some_and(|to| to <= end);
    reth.dma_len == 0 || (reth.rkey == mr.rkey() && is_inside)
}

fn slot_offset(wr_id: u64) -> u32 {
    (wr_id % SLOTS) as u32 * SLOT_LEN
}

fn request_of(kind: &Kind) -> Option<Request> {
    match kind {
        Kind::RcRequest(request) | Kind::XrcRequest(_, request) => Some(*request),
        Kind::UcRequest(request) => Some(Request::from(*request)),
        _ => None,
    }
}

/// Returns the number of PSNs that a request occupies.
fn psn_count(request: &Request) -> u32 {
    if let Request::Read(reth) = request { reth.dma_len.div_ceil(MTU).max(1) } else { 1 }
}
