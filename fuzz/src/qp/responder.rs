//! Fuzz target: a responder whose peer is the input, compared with a model of its memory.

use super::alone::{Alone, OWN_END, PATTERN, QUEUES};
use super::headers;
use roxe_sim::setup::{QKEY, av, qpn};
use roxe_sim::wire::net_header;
use roxe_sim::{Choices, Mr, Script, Setup};
use roxe_transport::cx::PacketNote;
use roxe_transport::qp::{QpCaps, QpState, Service};
use roxe_transport::wr::{Access, Cqe, RecvRequest, WcStatus};
use roxe_wire::{
    Bth, Deth, Header, Kind, NakCode, Packet, PathMtu, Placement, Psn, Qkey, Qpn, Request, Response, Reth, Selectivity,
    Syndrome, UcRequest, XrcEth,
};

const MTU: u32 = PathMtu::Mtu256.bytes();
/// Size in bytes of the region that the peer can access.
const OPEN_LEN: u32 = 2048;
/// Number of slots for receives.
const SLOTS: u64 = 16;
const SLOT_LEN: u32 = 700;
/// Length in bytes of the GRH that precedes every received datagram.
const GRH_LEN: usize = 40;

/// The input is a sequence of requests of the peer to one queue pair in any state.
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
        srq: script.chance(200) || service == Service::XrcTgt,
        caps: QpCaps { max_send_wr: 1, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 2, max_inline_data: 0 },
        max_dest_rd_atomic: script.between(0, 4) as u8,
        access: access(&mut script),
        log: false,
        ..Setup::default()
    };
    let state = script.pick(&[QpState::Rtr, QpState::Rts, QpState::Rtr, QpState::Init, QpState::Reset]);
    let mut responder = Responder::new(setup, state, script);
    while !responder.alone.choices.is_empty() {
        responder.turn();
    }
    responder.alone.rest(|_, _| {});
}

/// Returns the access rights of the queue pair: mostly all, sometimes a subset.
fn access(script: &mut Script<'_>) -> Access {
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    if script.chance(250) { all & Access::from_bits_retain(script.below(512)) } else { all }
}

struct Responder<'a> {
    alone: Alone<'a>,
    /// Region with all rights.
    open: Mr,
    /// Region that the peer can only read.
    readable: Mr,
    /// Region without remote rights.
    closed: Mr,
    /// Region of the receives.
    sink: Mr,
    model: Model,
}

/// Expected effects of the accepted requests.
struct Model {
    /// Content of the open region.
    memory: [u8; OPEN_LEN as usize],
    /// Unfinished WRITE: offset of its next byte, and number of remaining bytes.
    write: (u64, u32),
    /// Index of the SRQ of the unfinished message (XRC).
    queue: usize,
    /// Bytes of the newest SEND so far.
    message: Vec<u8>,
    /// True while a SEND is unfinished.
    sending: bool,
    /// First PSN and RETH of each accepted READ.
    reads: Vec<(Psn, Reth)>,
    /// PSNs of accepted ATOMIC WRITEs and FLUSHes, whose response is an empty READ response.
    empty: Vec<Psn>,
    /// Number of FLUSHes in `empty`.
    flushes: u32,
    /// True once the peer has repeated a PSN with another READ: the content of the response is then
    /// undefined.
    is_inconsistent: bool,
}

impl<'a> Responder<'a> {
    fn new(setup: Setup, state: QpState, script: Script<'a>) -> Self {
        let mut alone = Alone::new(setup, state, script);
        let memory = &mut alone.host.memory;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let open = memory.register(OPEN_LEN, all | Access::FLUSH_GLOBAL);
        let readable = memory.register(64, Access::REMOTE_READ);
        let closed = memory.register(64, Access::LOCAL_WRITE);
        let sink = memory.register(SLOTS as u32 * SLOT_LEN, Access::LOCAL_WRITE);
        let model = Model {
            memory: [0; OPEN_LEN as usize],
            write: (0, 0),
            queue: 0,
            message: Vec::new(),
            sending: false,
            reads: Vec::new(),
            empty: Vec::new(),
            flushes: 0,
            is_inconsistent: false,
        };
        Self { alone, open, readable, closed, sink, model }
    }

    fn turn(&mut self) {
        match self.alone.choices.below(8) {
            0 => self.post_recv(),
            1 => self.transmit(),
            _ => self.request(),
        }
    }

    fn post_recv(&mut self) {
        let place = place(self.alone.next(1));
        let (first, second) = (self.alone.choices.below(300), self.alone.choices.below(SLOT_LEN - 300));
        let list = [self.sink.sge(place, first), self.sink.sge(place + first, second)];
        // The state or the depth may refuse it.
        let _ = self.alone.post_recv(&RecvRequest { wr_id: 0, sges: &list });
    }

    fn request(&mut self) {
        let (header, len) = self.choose();
        let payload = &PATTERN[header.bth.psn.get() as usize % 512..][..len];
        let before = self.alone.qp.expected_psn();
        let state = self.alone.qp.state();
        let net = net_header(&av(OWN_END.other()));
        let Some(result) = self.alone.receive(&net, &header, payload) else { return };
        let advanced = self.alone.qp.expected_psn().distance(before);
        let request = request_of(&header.kind);
        if request.is_some() && self.alone.setup.service.is_reliable() {
            let expected = result.is_ok() && header.bth.psn == before;
            let count = request.as_ref().map_or(0, packets);
            assert_eq!(advanced, if expected { count as i32 } else { 0 }, "{header:?} at {before}");
        }
        assert!(result.is_err() || matches!(state, QpState::Rtr | QpState::Rts), "a request was executed in {state:?}");
        match (&header.kind, request) {
            (_, Some(request)) if result.is_ok() => self.model.execute(self.open, header.bth.psn, &request, payload),
            (Kind::Ud { .. }, _) if result.is_ok() => self.model.message = payload.to_vec(),
            (_, Some(Request::Read(_))) if header.bth.psn.is_before(before) => self.model.is_inconsistent = true,
            _ => {}
        }
        self.check();
    }

    /// Returns a request and the length of its payload, half of the time one that continues the
    /// unfinished message.
    fn choose(&mut self) -> (Header, usize) {
        let choices = &mut self.alone.choices;
        let mut len = headers::payload_len(choices);
        let mut request = headers::request(choices, &[self.open, self.open, self.readable, self.closed]);
        if choices.chance(500) {
            (request, len) = self.model.continuation(request, len);
        }
        let kind = match self.alone.setup.service {
            _ if choices.chance(20) => Kind::Cnp,
            Service::XrcTgt => {
                if self.model.write.1 == 0 && !self.model.sending {
                    self.model.queue = choices.below(QUEUES.len() as u32) as usize;
                }
                let named = QUEUES[self.model.queue];
                let srqn = if choices.chance(50) { choices.pick(&[QUEUES[0], QUEUES[1], 99]) } else { named };
                Kind::XrcRequest(XrcEth(srqn), request)
            }
            Service::Rc | Service::XrcIni | Service::Raw => Kind::RcRequest(request),
            Service::Uc => UcRequest::try_from(request).map_or(Kind::Cnp, Kind::UcRequest),
            Service::Ud => {
                let qkey = if choices.chance(900) { QKEY } else { Qkey(1) };
                Kind::Ud { deth: Deth { qkey, src_qpn: Qpn::new(5) }, imm: None }
            }
        };
        let expected = self.alone.qp.expected_psn();
        let choices = &mut self.alone.choices;
        let psn = match choices.below(8) {
            0 => expected.sub(choices.below(12)),
            1 => expected.add(choices.below(4)),
            2 => Psn::new(choices.below(1 << 24)),
            _ => expected,
        };
        let mut bth = Bth::new(qpn(OWN_END), psn);
        bth.ack_req = choices.chance(500);
        (Header { bth, kind }, len)
    }

    /// Checks that memory equals the model, and that receives have the right bytes.
    fn check(&mut self) {
        let memory = &self.alone.host.memory;
        assert_eq!(memory.bytes(self.open), self.model.memory, "the open region");
        assert_eq!(memory.flushes, self.model.flushes, "each FLUSH is executed once");
        assert_eq!(memory.bytes(self.readable), [0; 64], "the read-only region");
        assert_eq!(memory.bytes(self.closed), [0; 64], "the region without rights");
        while let Some(cqe) = self.alone.take(1) {
            self.check_receive(&cqe);
        }
    }

    fn check_receive(&self, cqe: &Cqe) {
        use roxe_transport::wr::WcOpcode;
        if cqe.status != WcStatus::Success || cqe.opcode != WcOpcode::Recv {
            return;
        }
        let front = if self.alone.setup.service == Service::Ud { GRH_LEN } else { 0 };
        let message = &self.model.message;
        assert_eq!(cqe.byte_len as usize, front + message.len());
        let landed = &self.alone.host.memory.bytes(self.sink)[place(cqe.wr_id) as usize + front..];
        assert_eq!(&landed[..message.len()], &message[..], "the bytes of receive {}", cqe.wr_id);
    }

    fn transmit(&mut self) {
        let room = self.alone.choices.between(1, 4) as usize;
        let expected = self.alone.qp.expected_psn();
        let (service, model) = (self.alone.setup.service, &self.model);
        let (open, readable) = (self.open, self.readable);
        self.alone.transmit(room, |note, packet| {
            assert!(service.is_reliable(), "{packet} is a response on an unreliable service");
            model.judge([open, readable], expected, note, packet);
        });
    }
}

impl Model {
    /// Applies an accepted request to the model.
    fn execute(&mut self, open: Mr, psn: Psn, request: &Request, payload: &[u8]) {
        match request {
            Request::SendFirst | Request::SendOnly(_) => self.message = payload.to_vec(),
            Request::SendMiddle | Request::SendLast(_) => self.message.extend_from_slice(payload),
            Request::WriteFirst(reth) | Request::WriteOnly(reth, _) => {
                assert!(is_within(open, reth), "{request:?} leaves {open:?}");
                self.write = (reth.va.wrapping_sub(open.addr), reth.dma_len);
                self.write(payload);
            }
            Request::WriteMiddle | Request::WriteLast(_) => self.write(payload),
            Request::FetchAdd(eth) => self.word(eth.va - open.addr, |old| old.wrapping_add(eth.swap_or_add)),
            Request::CompareSwap(eth) => {
                self.word(eth.va - open.addr, |old| if old == eth.compare { eth.swap_or_add } else { old });
            }
            Request::Read(reth) => self.reads.push((psn, *reth)),
            Request::AtomicWrite(reth) => {
                assert!(is_within(open, reth) && reth.va % 8 == 0, "{request:?} in {open:?}");
                let word = payload.try_into().expect("eight bytes");
                self.word(reth.va - open.addr, |_| u64::from_ne_bytes(word));
                self.empty.push(psn);
            }
            Request::Flush(feth, reth) => {
                let whole = feth.selectivity == Selectivity::Region && reth.rkey == open.rkey();
                assert!(
                    whole || is_within(open, &Reth { dma_len: reth.dma_len.max(1), ..*reth }) || is_end(open, reth)
                );
                assert_eq!(feth.placement, Placement::GLOBAL_VISIBILITY);
                self.empty.push(psn);
                self.flushes += 1;
            }
        }
        self.sending = matches!(request, Request::SendFirst | Request::SendMiddle);
    }

    fn write(&mut self, payload: &[u8]) {
        let (at, left) = self.write;
        if !payload.is_empty() {
            self.memory[at as usize..at as usize + payload.len()].copy_from_slice(payload);
        }
        let len = payload.len() as u32;
        self.write =
            (at.wrapping_add(len.into()), left.checked_sub(len).expect("a WRITE carries at most its announced length"));
    }

    fn word(&mut self, at: u64, change: impl Fn(u64) -> u64) {
        let word = &mut self.memory[at as usize..at as usize + 8];
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&change(old).to_ne_bytes());
    }

    /// Returns the continuation of the unfinished message, or `request` if there is none, with a
    /// legal payload length.
    fn continuation(&self, request: Request, len: usize) -> (Request, usize) {
        use roxe_wire::SendTail::Plain;
        match (self.write.1, request) {
            (left @ 1..=MTU, _) => (Request::WriteLast(None), left as usize),
            (1.., _) => (Request::WriteMiddle, MTU as usize),
            _ if self.sending && len < MTU as usize => (Request::SendLast(Plain), len.max(1)),
            _ if self.sending => (Request::SendMiddle, MTU as usize),
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

    /// Checks a response; `expected` is the PSN of the next request.
    fn judge(&self, regions: [Mr; 2], expected: Psn, note: &PacketNote, packet: &Packet<'_>) {
        let (Kind::RcResponse(response) | Kind::XrcResponse(response)) = &packet.header.kind else {
            panic!("{note:?}: {packet} is not a response")
        };
        let psn = packet.header.bth.psn;
        let refusal = match response {
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
        assert!(psn.is_before(expected) || (refusal && psn == expected), "{packet} with {expected} expected");
        if matches!(response, Response::Ack(_) | Response::AtomicAck(..)) || self.is_inconsistent {
            return;
        }
        if packet.payload.is_empty() && self.empty.contains(&psn) {
            return;
        }
        let read = self.reads.iter().rev().find(|(first, _)| !psn.is_before(*first)).expect("find the accepted READ");
        let offset = psn.distance(read.0) as u32 * MTU;
        let va = read.1.va.wrapping_add(offset.into());
        if packet.payload.is_empty() {
            assert_eq!(read.1.dma_len, 0, "{packet}");
        } else if read.1.rkey == regions[0].rkey() {
            let at = (va - regions[0].addr) as usize;
            assert_eq!(packet.payload, &self.memory[at..at + packet.payload.len()], "{packet}");
        } else {
            assert_eq!(read.1.rkey, regions[1].rkey(), "{packet} reads another region");
        }
    }
}

/// Returns true if the range of `reth` is empty and at the end of `mr`.
fn is_end(mr: Mr, reth: &Reth) -> bool {
    reth.rkey == mr.rkey() && reth.dma_len == 0 && reth.va == mr.addr + u64::from(mr.len)
}

/// Returns true if all bytes of the range of `reth` are in `mr`; always true for an empty range.
fn is_within(mr: Mr, reth: &Reth) -> bool {
    let end = mr.addr + u64::from(mr.len);
    let inside = reth.va >= mr.addr && reth.va.checked_add(reth.dma_len.into()).is_some_and(|last| last <= end);
    reth.dma_len == 0 || (reth.rkey == mr.rkey() && inside)
}

fn place(wr_id: u64) -> u32 {
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
fn packets(request: &Request) -> u32 {
    if let Request::Read(reth) = request { reth.dma_len.div_ceil(MTU).max(1) } else { 1 }
}
