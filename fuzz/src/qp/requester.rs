//! Fuzz target: a requester whose peer is the input, compared with a model of the completions.

use super::headers;
use super::lone_qp::{LoneQp, OWN_END, PATTERN, SRQNS, line_rate, srq_index_of};
use roxe_sim::setup::{QKEY, av, qpn};
use roxe_sim::wire::net_header;
use roxe_sim::{Choices, Mr, Script, Setup};
use roxe_transport::cx::{PacketNote, Side};
use roxe_transport::qp::{QpCaps, QpState, Service};
use roxe_transport::wr::{Access, SendData, SendFlags, SendOp, SendRequest, UdDest, WcStatus};
use roxe_wire::{Bth, Header, ImmDt, Kind, NetHeader, Packet, PathMtu, Psn, RKey, Response, Syndrome};
use std::collections::VecDeque;

const MTU: u32 = PathMtu::Mtu256.bytes();
/// Maximum message length in bytes.
const MAX_LEN: u32 = 900;
/// Number of slots for the results of READs and atomics.
const SLOTS: u64 = 16;

/// The input is the work requests of one queue pair and the responses to it.
///
/// Properties: requests complete at most once and in order, signaled ones exactly once; a request
/// succeeds only after a response has acknowledged its last packet; a successful READ or atomic has
/// the bytes of the responses in memory; a response to a request that was never sent has no effect;
/// PSNs of new requests have no gaps; no packet is sent in ERR.
///
/// # Panics
/// If a property does not hold.
pub fn requester(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&[
        Service::Rc,
        Service::Rc,
        Service::Rc,
        Service::Rc,
        Service::Uc,
        Service::Ud,
        Service::XrcIni,
        Service::XrcIni,
    ]);
    let setup = Setup {
        service,
        sq_sig_all: script.chance_per_mille(200),
        caps: QpCaps { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 },
        psn: [900, script.pick(&[100, 0x00ff_fffd, 0x007f_fffe])],
        timeout: script.pick(&[14, 0, 1]),
        retry_cnt: script.below(8) as u8,
        rnr_retry: script.below(8) as u8,
        max_rd_atomic: script.between(0, 4) as u8,
        // Only responses release credits.
        flow_limit: (service.is_reliable() && script.chance_per_mille(200)).then_some(1000),
        line_rate: line_rate(&mut script),
        log: false,
        ..Setup::default()
    };
    let mut requester = Requester::new(setup, script);
    while !requester.lone.choices.is_empty() {
        requester.turn();
    }
    requester.finish();
}

struct Requester<'a> {
    lone: LoneQp<'a>,
    /// Region of the sent data.
    source: Mr,
    /// Region of the results of READs and atomics.
    sink: Mr,
    posted: VecDeque<Posted>,
    psns: Psns,
}

/// A request without a completion.
struct Posted {
    wr_id: u64,
    signaled: bool,
    packets: u32,
    /// Number of bytes in its responses.
    response_bytes: u32,
    atomic: bool,
    /// True if an empty READ response completes it (ATOMIC WRITE, FLUSH).
    empty: bool,
    /// PSN of its first packet, once sent.
    first: Option<Psn>,
}

/// Progress of the PSNs.
struct Psns {
    /// The PSN that the next new request packet must have.
    next: Psn,
    /// Newest PSN that a response has acknowledged.
    acked: Psn,
}

impl<'a> Requester<'a> {
    fn new(setup: Setup, script: Script<'a>) -> Self {
        let mut lone = LoneQp::new(setup, QpState::Rts, script);
        let memory = &mut lone.host.memory;
        let source = memory.register(1024, Access::empty());
        let sink = memory.register(SLOTS as u32 * MAX_LEN, Access::LOCAL_WRITE);
        memory.bytes_mut(source).copy_from_slice(&PATTERN);
        let next = Psn::new(setup.psn[OWN_END.index()]);
        Self { lone, source, sink, posted: VecDeque::new(), psns: Psns { next, acked: next.sub(1) } }
    }

    fn turn(&mut self) {
        match self.lone.choices.below(8) {
            0 | 1 => self.post(),
            2 => self.transmit(),
            3 => _ = self.lone.wait(),
            _ if self.lone.choices.chance_per_mille(50) => self.notify(),
            _ => self.response(),
        }
        self.reap();
    }

    fn post(&mut self) {
        let choices = &mut self.lone.choices;
        let (remote_addr, rkey) = (0x4000, RKey(7));
        let mut len = choices.pick(&[8, 0, 1, MTU, MTU + 1, 2 * MTU, MAX_LEN]);
        let op = match choices.below(10) {
            0 => SendOp::Send,
            1 => SendOp::SendImm(ImmDt([1, 2, 3, 4])),
            2 => SendOp::SendInvalidate(rkey),
            3 => SendOp::Write { remote_addr, rkey },
            4 | 5 => SendOp::Read { remote_addr, rkey },
            6 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            8 => SendOp::AtomicWrite { remote_addr, rkey },
            9 => SendOp::Flush { remote_addr, rkey, length: len, feth: headers::FLUSH_REGION },
            _ => SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 },
        };
        let atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let empty = matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. });
        len = match op {
            SendOp::Flush { .. } => 0,
            _ if atomic || empty => 8,
            _ => len,
        };
        let response_bytes = if atomic || matches!(op, SendOp::Read { .. }) { len } else { 0 };
        let signaled = choices.chance_per_mille(700);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, choices.chance_per_mille(200));
        self.submit(
            op,
            len,
            response_bytes,
            flags,
            Posted {
                wr_id: 0,
                signaled: signaled || self.lone.setup.sq_sig_all,
                packets: len.div_ceil(MTU).max(1),
                response_bytes,
                atomic,
                empty,
                first: None,
            },
        );
    }

    fn submit(&mut self, op: SendOp, len: u32, response_bytes: u32, flags: SendFlags, posted: Posted) {
        let place = place(self.lone.next(Side::Send));
        let (mr, start) = if response_bytes > 0 { (self.sink, place) } else { (self.source, 0) };
        let mut list = [mr.sge(start, len / 3), mr.sge(start + len / 3, len - len / 3)];
        if self.lone.choices.chance_per_mille(30) {
            list[1].lkey.0 ^= 1;
        }
        let inline = len <= 64 && response_bytes == 0 && self.lone.choices.chance_per_mille(200);
        let data = if inline { SendData::Inline(&PATTERN[..len as usize]) } else { SendData::Sges(&list) };
        let ud = Some(UdDest { av: av(OWN_END), qpn: qpn(OWN_END.other()), qkey: QKEY });
        // A full queue, the state or the service may refuse it.
        if let Ok(wr_id) = self.lone.post_send(&SendRequest { wr_id: 0, op, flags, data, ud }) {
            self.posted.push_back(Posted { wr_id, ..posted });
        }
    }

    fn transmit(&mut self) {
        let dead = self.lone.qp.state() == QpState::Err;
        let room = self.lone.choices.between(1, 8) as usize;
        let (posted, psns) = (&mut self.posted, &mut self.psns);
        self.lone.transmit(room, |note, packet| {
            assert!(!dead || packet.header.kind == Kind::Cnp, "{packet} in ERR");
            psns.on_request(posted, note, packet);
        });
    }

    /// Lets the peer send a congestion notification.
    fn notify(&mut self) {
        let header = Header { bth: Bth::new(qpn(OWN_END), Psn::default()), kind: Kind::Cnp };
        let _ = self.lone.receive(&net_header(&av(OWN_END.other())), &header, &[]);
    }

    /// Delivers a response with a PSN near the outstanding ones, often the expected response.
    fn response(&mut self) {
        let psns = &self.psns;
        let choices = &mut self.lone.choices;
        let psn = match choices.below(8) {
            0 => psns.acked.sub(choices.below(6)),
            1 => psns.acked.add(choices.below(20)),
            2 => psns.next.add(choices.below(3)),
            3 => psns.next.sub(1),
            _ => psns.acked.next(),
        };
        let mut response = headers::response(choices, u64::from(psn.get()) << 8);
        let mut len = headers::payload_len(choices);
        if choices.chance_per_mille(600) {
            (response, len) = self.expected_response(psn).unwrap_or((response, len));
        }
        let is_unsent = !psn.is_before(self.psns.next);
        let kind = match self.lone.setup.service {
            Service::XrcIni => Kind::XrcResponse(response),
            _ => Kind::RcResponse(response),
        };
        let header = Header { bth: Bth::new(qpn(OWN_END), psn), kind };
        let before = (self.lone.qp.state(), self.lone.host.sends.len(), self.lone.qp.poll_timeout());
        let traffic_class = if self.lone.choices.chance_per_mille(100) { 3 } else { 0 };
        let net = NetHeader { traffic_class, ..net_header(&av(OWN_END.other())) };
        let Some(result) = self.lone.receive(&net, &header, payload_of(psn, len)) else { return };
        if is_unsent || !self.lone.setup.service.is_reliable() {
            let after = (self.lone.qp.state(), self.lone.host.sends.len(), self.lone.qp.poll_timeout());
            assert_eq!((result.is_err(), after), (true, before), "{header:?}: never sent");
        } else {
            self.psns.on_response(psn, &response);
        }
    }

    /// Returns the response that the request with `psn` expects, and its payload length.
    fn expected_response(&self, psn: Psn) -> Option<(Response, usize)> {
        use roxe_wire::{Aeth, AtomicAckEth, Msn};
        let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) };
        let (first, posted) = self.posted.iter().rev().find_map(|posted| {
            let first = posted.first?;
            (!psn.is_before(first)).then_some((first, posted))
        })?;
        let index = psn.distance(first) as u32;
        let left = posted.response_bytes.checked_sub(index * MTU)?;
        if posted.empty {
            return Some((Response::ReadOnly(aeth), 0));
        }
        if posted.atomic {
            return Some((Response::AtomicAck(aeth, AtomicAckEth(u64::from(psn.get()) << 8)), 0));
        }
        let response = match (index, left <= MTU) {
            (0, true) => Response::ReadOnly(aeth),
            (0, false) => Response::ReadFirst(aeth),
            (_, true) => Response::ReadLast(aeth),
            _ => Response::ReadMiddle,
        };
        (posted.response_bytes > 0).then_some((response, left.min(MTU) as usize))
    }

    fn reap(&mut self) {
        while let Some(cqe) = self.lone.take(Side::Send) {
            let request = loop {
                let request = self.posted.pop_front().expect("only posted requests complete");
                if request.wr_id == cqe.wr_id {
                    break request;
                }
                assert!(!request.signaled, "no completion of {} before that of {}", request.wr_id, cqe.wr_id);
            };
            if cqe.status == WcStatus::Success && self.lone.setup.service.is_reliable() {
                self.check_success(&request);
            }
        }
    }

    fn check_success(&self, request: &Posted) {
        let first = request.first.expect("it was sent");
        let last = first.add(request.packets - 1);
        assert!(!last.is_after(self.psns.acked), "{} succeeded, but only {} is acknowledged", last, self.psns.acked);
        let start = place(request.wr_id) as usize;
        let landed = &self.lone.host.memory.bytes(self.sink)[start..start + request.response_bytes as usize];
        if request.atomic {
            assert_eq!(landed, (u64::from(first.get()) << 8).to_ne_bytes(), "the old value");
            return;
        }
        for (index, piece) in landed.chunks(MTU as usize).enumerate() {
            assert_eq!(piece, payload_of(first.add(index as u32), piece.len()), "READ, packet {index}");
        }
    }

    /// Lets every timer expire, so that the outstanding requests fail, and checks that all
    /// completed.
    fn finish(&mut self) {
        let (posted, psns) = (&mut self.posted, &mut self.psns);
        self.lone.run_until_idle(|note, packet| psns.on_request(posted, note, packet));
        self.reap();
        // Without a timeout a requester may wait forever.
        let patient = self.lone.setup.timeout == 0 && self.lone.qp.state() != QpState::Err;
        assert!(patient || self.posted.iter().all(|request| !request.signaled), "a request never completed");
    }
}

impl Psns {
    fn on_request(&mut self, posted: &mut VecDeque<Posted>, note: &PacketNote, packet: &Packet<'_>) {
        let psn = packet.header.bth.psn;
        if packet.header.kind == Kind::Cnp {
            return;
        }
        let request = posted.iter_mut().find(|posted| Some(posted.wr_id) == note.wr_id);
        let request = request.unwrap_or_else(|| panic!("{packet} belongs to nothing outstanding"));
        assert!(!psn.is_after(self.next), "{packet}: {} comes next", self.next);
        if let Kind::XrcRequest(xrc, _) = packet.header.kind {
            assert_eq!(xrc.0, SRQNS[srq_index_of(request.wr_id)], "{packet} carries the number of another SRQ");
        }
        let first = *request.first.get_or_insert(psn);
        let span = if request.response_bytes > 0 && !request.atomic { request.packets } else { 1 };
        let after = if span > 1 { first.add(span) } else { psn.next() };
        if after.is_after(self.next) {
            self.next = after;
        }
    }

    fn on_response(&mut self, psn: Psn, response: &Response) {
        let executed = match response {
            Response::Ack(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }) => psn.sub(1),
            _ => psn,
        };
        if executed.is_after(self.acked) {
            self.acked = executed;
        }
    }
}

/// Returns the payload of the READ response with this PSN.
fn payload_of(psn: Psn, len: usize) -> &'static [u8] {
    &PATTERN[psn.get() as usize % 512..][..len]
}

fn place(wr_id: u64) -> u32 {
    (wr_id % SLOTS) as u32 * MAX_LEN
}
