//! Analyses the packets of a capture in their order: flows, the pairs of flows that form a
//! connection, messages, and a verdict on each packet.
//!
//! A packet of a connected service carries only its destination queue pair. The source queue pair
//! is found through the comment of the recording process, messages of the connection manager, or
//! responses, which carry the PSNs of their requests.

use crate::event::{Cause, Event};
use crate::reader::{Captured, Integrity};
use crate::requests::Requests;
use crate::sequence::{Seq, psn_of};
use roxe_transport::time::rnr_wait;
use roxe_wire::capture::Direction;
use roxe_wire::cm::{CommId, Mad, Message as CmMessage};
use roxe_wire::opcode::{Operation, Position, Service};
use roxe_wire::{Gid, Kind, NakCode, Packet, Psn, Qpn, Request, Response, Syndrome};
use std::collections::{HashMap, VecDeque};

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not complete in this capture.
    Open,
    /// Acknowledged, or the response is complete.
    Done,
    /// Sent over a service without acknowledgements.
    Sent,
    /// Refused by the responder.
    Refused(NakCode),
}

/// A message: a request, its packets and its responses.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Index of the flow of the requests.
    pub flow: usize,
    /// Operation of the first packet.
    pub operation: Operation,
    /// First PSN.
    pub psn: Psn,
    /// Number of packets, including retransmissions and responses.
    pub packets: u32,
    /// Payload bytes of requests, without retransmissions.
    pub bytes: u64,
    /// Number of retransmitted packets.
    pub repeats: u32,
    /// Time of the first packet, in nanoseconds.
    pub begin: u64,
    /// Time of the end, in nanoseconds.
    pub end: Option<u64>,
    /// Outcome so far.
    pub outcome: Outcome,
    /// Sequence number of the newest packet, and true if it is the last packet of the message.
    last: (Seq, bool),
}

/// The result for one packet.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// Verdict on the packet in its flow.
    pub event: Event,
    /// Flow of the packet.
    pub flow: Option<usize>,
    /// Message of the packet.
    pub message: Option<usize>,
    /// Number of messages that the packet completes.
    pub completes: u32,
}

impl Finding {
    pub(crate) const fn of(event: Event) -> Self {
        Self { event, flow: None, message: None, completes: 0 }
    }
}

/// State of the analysis of packets in capture order.
#[derive(Debug, Default)]
pub struct Analysis {
    flows: Vec<Flow>,
    by_key: HashMap<FlowKey, usize>,
    messages: Vec<Message>,
    pairing: Pairing,
}

impl Analysis {
    /// Returns all flows so far; a finding has the index of its flow.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns all messages so far; a finding has the index of its message.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Analyses the next packet.
    pub fn take(&mut self, captured: &Captured<'_>) -> Finding {
        let Some(packet) = captured.packet() else {
            return Finding::of(match captured.integrity {
                Integrity::Malformed(error) => Event::Malformed(error),
                Integrity::Truncated(..) => Event::Truncated,
                Integrity::Good | Integrity::WrongIcrc => Event::WrongIcrc,
            });
        };
        let (net, qpn) = (&captured.net, packet.header.bth.dest_qpn);
        let key = FlowKey { src: net.src, dst: net.dst, qpn, direction: captured.direction };
        if captured.integrity.is_bad() {
            let flow = self.by_key.get(&key).copied();
            let requests = flow.and_then(|flow| self.flows[flow].requests.as_mut());
            if let Some(requests) = requests.filter(|_| !packet.header.opcode().operation().is_response()) {
                requests.take_damaged(packet.header.bth.psn);
            }
            return Finding { flow, ..Finding::of(Event::WrongIcrc) };
        }
        let flow = self.flow(key);
        self.pairing.learn(&mut self.flows, flow, captured, &packet);
        let finding = match packet.header.kind {
            Kind::RcRequest(request) | Kind::XrcRequest(_, request) => {
                self.request(flow, &packet, request, captured.time)
            }
            Kind::UcRequest(request) => self.request(flow, &packet, request.into(), captured.time),
            Kind::RcResponse(response) | Kind::XrcResponse(response) => {
                // A lost response acknowledges no request.
                if captured.is_lost() {
                    Finding::of(self.unpaired_verdict(flow, response, packet.header.bth.psn))
                } else {
                    self.response(flow, &packet, response, captured.time)
                }
            }
            Kind::Ud { .. } => Finding::of(Event::New),
            Kind::Cnp => Finding::of(Event::Congestion),
        };
        Finding { flow: Some(flow), ..finding }
    }

    fn flow(&mut self, key: FlowKey) -> usize {
        let flows = &mut self.flows;
        *self.by_key.entry(key).or_insert_with(|| {
            flows.push(Flow::new(key));
            flows.len() - 1
        })
    }

    fn request(&mut self, flow: usize, packet: &Packet<'_>, request: Request, time: u64) -> Finding {
        let (psn, operation) = (packet.header.bth.psn, request.operation());
        let is_reliable = packet.header.opcode().service() != Service::Uc;
        let len = match request {
            Request::Read(reth) => reth.dma_len,
            _ => packet.payload.len() as u32,
        };
        let Flow { requests, open, .. } = &mut self.flows[flow];
        let requests = requests.get_or_insert_with(|| Requests::new(psn));
        let step = requests.take(psn, operation, len);
        let position = operation.properties().position;
        let is_last = matches!(position, Position::Last | Position::Only);
        // A packet after a gap may continue a message whose first packet is missing.
        let continues = step.message.filter(|message| !(self.messages[*message].last.1 && step.event.is_new()));
        let index = continues.unwrap_or_else(|| {
            let message = Message {
                flow,
                operation,
                psn,
                packets: 0,
                bytes: 0,
                repeats: 0,
                begin: time,
                end: None,
                outcome: Outcome::Open,
                last: (step.seq, is_last),
            };
            self.messages.push(message);
            requests.begin(step.seq, self.messages.len() - 1);
            open.extend(is_reliable.then_some(self.messages.len() - 1));
            self.messages.len() - 1
        });
        let message = &mut self.messages[index];
        message.packets += 1;
        match step.event {
            Event::Retransmission { .. } => message.repeats += 1,
            _ => message.bytes += u64::from(len),
        }
        if step.seq > message.last.0 {
            message.last = (step.seq, is_last);
        }
        if !is_reliable && is_last {
            (message.end, message.outcome) = (Some(time), Outcome::Sent);
        }
        Finding { message: Some(index), ..Finding::of(step.event) }
    }

    fn response(&mut self, flow: usize, packet: &Packet<'_>, response: Response, time: u64) -> Finding {
        let psn = packet.header.bth.psn;
        let Some(requests_flow) = self.pairing.requests_of(&mut self.flows, &self.by_key, flow, psn) else {
            return Finding::of(self.unpaired_verdict(flow, response, psn));
        };
        let Some(requests) = self.flows[requests_flow].requests.as_mut() else { return Finding::of(Event::New) };
        let seq = requests.seq_of(psn);
        let message = requests.message_at(seq);
        if matches!(response, Response::ReadFirst(_) | Response::ReadMiddle) {
            requests.learn_mtu(packet.payload.len());
        }
        let event = match (response, response.aeth().map(|aeth| aeth.syndrome)) {
            (_, Some(Syndrome::RnrNak { timer })) => {
                requests.nak(psn, Cause::Rnr);
                self.rnr(flow, psn, timer)
            }
            (_, Some(Syndrome::Nak(code))) => {
                if code == NakCode::PsnSequence {
                    requests.nak(psn, Cause::SequenceNak);
                } else if let Some(message) = message {
                    self.messages[message].outcome = Outcome::Refused(code);
                    self.messages[message].end = Some(time);
                }
                Event::Nak(code)
            }
            (Response::Ack(_), _) => self.ack(flow, seq),
            _ => self.data(flow, seq, response),
        };
        let completes = self.complete(requests_flow, seq, event, response, time);
        if let Some(message) = message.map(|message| &mut self.messages[message]) {
            message.packets += 1;
            message.repeats += u32::from(event == Event::RepeatedResponse);
        }
        Finding { message, completes, ..Finding::of(event) }
    }

    /// Returns the verdict on a response whose requests are not in the capture.
    fn unpaired_verdict(&mut self, flow: usize, response: Response, psn: Psn) -> Event {
        match response.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak { timer }) => self.rnr(flow, psn, timer),
            Some(Syndrome::Nak(code)) => Event::Nak(code),
            _ => Event::New,
        }
    }

    fn rnr(&mut self, flow: usize, psn: Psn, timer: u8) -> Event {
        let newest = &mut self.flows[flow].responses.rnr;
        let times = newest.filter(|(last, _)| *last == psn).map_or(1, |(_, times)| times + 1);
        *newest = Some((psn, times));
        Event::Rnr { wait: rnr_wait(timer), times }
    }

    fn ack(&mut self, flow: usize, seq: Seq) -> Event {
        let newest = &mut self.flows[flow].responses.acknowledged;
        let is_old = newest.is_some_and(|newest| seq <= newest);
        *newest = (*newest).max(Some(seq));
        if is_old { Event::RepeatedAck } else { Event::New }
    }

    fn data(&mut self, flow: usize, seq: Seq, response: Response) -> Event {
        let newest = &mut self.flows[flow].responses.data;
        let continues = matches!(response, Response::ReadMiddle | Response::ReadLast(_));
        let event = match *newest {
            Some(last) if seq <= last => Event::RepeatedResponse,
            Some(last) if continues && seq > last + 1 => Event::ResponseGap { expected: psn_of(last + 1) },
            _ => Event::New,
        };
        *newest = (*newest).max(Some(seq));
        event
    }

    /// Ends the messages that this response completes, and returns their number.
    fn complete(&mut self, flow: usize, seq: Seq, event: Event, response: Response, time: u64) -> u32 {
        let Flow { requests: Some(requests), open, .. } = &mut self.flows[flow] else { return 0 };
        // NAKs and RNR NAKs acknowledge all requests before their PSN.
        let is_refusal = matches!(event, Event::Nak(_) | Event::Rnr { .. });
        let last = if is_refusal { seq - 1 } else { seq };
        requests.acknowledge(last);
        let ends_read = matches!(response, Response::ReadLast(_) | Response::ReadOnly(_) | Response::AtomicAck(..));
        let mut completed = 0;
        while let Some(index) = open.front() {
            let message = &mut self.messages[*index];
            let (end, is_whole) = message.last;
            let is_own = requests.message_at(seq) == Some(*index);
            // READs and atomics end with their own response, or with a response to a later request.
            let is_done = if has_data_response(message.operation) { ends_read || !is_own } else { is_whole };
            if end > last || !is_done {
                break;
            }
            if message.outcome == Outcome::Open {
                (message.end, message.outcome) = (Some(time), Outcome::Done);
                completed += 1;
            }
            open.pop_front();
        }
        completed
    }
}

const fn has_data_response(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
}

/// Identifies a flow: packets from a host to a queue pair, as recorded by one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Address of the sender.
    pub src: Gid,
    /// Address of the receiver.
    pub dst: Gid,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Direction at the recording end, if known. A process connected to itself records both.
    pub direction: Option<Direction>,
}

impl FlowKey {
    /// Returns the key of the opposite flow, to the queue pair `qpn`.
    pub(crate) fn back(self, qpn: Qpn) -> Self {
        let direction = self.direction.map(|direction| match direction {
            Direction::Inbound => Direction::Outbound,
            Direction::Outbound => Direction::Inbound,
        });
        Self { src: self.dst, dst: self.src, qpn, direction }
    }
}

/// The packets to one queue pair.
#[derive(Debug)]
pub struct Flow {
    /// Source host and destination queue pair.
    pub key: FlowKey,
    /// Source queue pair; `None` while unknown.
    pub source: Option<Qpn>,
    pub(crate) requests: Option<Requests>,
    pub(crate) responses: Responses,
    /// Incomplete messages, oldest first.
    open: VecDeque<usize>,
}

impl Flow {
    pub(crate) fn new(key: FlowKey) -> Self {
        let (responses, open) = (Responses::default(), VecDeque::new());
        Self { key, source: None, requests: None, responses, open }
    }
}

/// The responses towards one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    pub acknowledged: Option<Seq>,
    /// Newest response with data.
    pub data: Option<Seq>,
    /// PSN and number of repetitions of the newest RNR NAK.
    pub rnr: Option<(Psn, u32)>,
}

/// Maximum number of searches for the requests of a flow of responses.
const MAX_SEARCHES: u32 = 64;
/// Number of visited flows after which a search visits only the newest [`MAX_NEWEST`] flows, so
/// that the time is linear in the length of any capture.
const MAX_VISITS: usize = 1 << 26;
const MAX_NEWEST: usize = 1024;

/// Finds the two flows of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// Queue pairs that request a connection, by host and communication id.
    requested: HashMap<(Gid, CommId), Qpn>,
    /// Peers of queue pairs.
    connected: HashMap<(Gid, Qpn), Qpn>,
    /// Flow of requests by flow of responses, or the number of failed searches.
    request_flows: HashMap<usize, Result<usize, u32>>,
    /// Number of visited flows.
    visits: usize,
}

impl Pairing {
    /// Learns the source queue pair of the packet's flow.
    fn learn(&mut self, flows: &mut [Flow], flow: usize, captured: &Captured<'_>, packet: &Packet<'_>) {
        match Mad::of_packet(packet) {
            Some(Ok(mad)) => self.learn_connection(captured, &mad.message),
            _ if flows[flow].source.is_some() => return,
            _ => {}
        }
        let key = flows[flow].key;
        let of_datagram = match packet.header.kind {
            Kind::Ud { deth, .. } => Some(deth.src_qpn),
            _ => None,
        };
        let of_remark = sender(captured);
        let of_connection = self.connected.get(&(key.dst, key.qpn)).copied();
        let is_datagram = of_datagram.is_some() && of_datagram != Some(Qpn::GSI);
        // A queue pair may receive datagrams from several queue pairs.
        if !is_datagram {
            flows[flow].source = of_datagram.or(of_remark).or(of_connection);
        }
    }

    fn learn_connection(&mut self, captured: &Captured<'_>, message: &CmMessage) {
        let (src, dst) = (captured.net.src, captured.net.dst);
        match message {
            CmMessage::Req(req) => _ = self.requested.insert((src, req.local_comm_id), req.local_qpn),
            CmMessage::Rep(rep) => {
                if let Some(active) = self.requested.get(&(dst, rep.remote_comm_id)).copied() {
                    self.connected.insert((src, rep.local_qpn), active);
                    self.connected.insert((dst, active), rep.local_qpn);
                }
            }
            _ => {}
        }
    }

    /// Returns the flow of the requests for the responses of `flow`; one response has this PSN.
    fn requests_of(
        &mut self,
        flows: &mut [Flow],
        by_key: &HashMap<FlowKey, usize>,
        flow: usize,
        psn: Psn,
    ) -> Option<usize> {
        let attempts = match self.request_flows.get(&flow) {
            Some(Ok(found)) => return Some(*found),
            Some(Err(MAX_SEARCHES)) => return None,
            Some(Err(attempts)) => attempts + 1,
            None => 1,
        };
        let Flow { key, source, .. } = flows[flow];
        let known = source.and_then(|qpn| by_key.get(&key.back(qpn)).copied());
        let found = known.or_else(|| {
            let is_candidate = |other: &Flow| {
                key.back(other.key.qpn) == other.key
                    && source.is_none_or(|qpn| qpn == other.key.qpn)
                    && other.source.is_none_or(|qpn| qpn == key.qpn)
                    && other.requests.as_ref().is_some_and(|requests| requests.covers(psn))
            };
            let first = if self.visits < MAX_VISITS { 0 } else { flows.len().saturating_sub(MAX_NEWEST) };
            self.visits = self.visits.saturating_add(flows.len() - first);
            flows.get(first..)?.iter().rposition(is_candidate).map(|at| first + at)
        });
        self.request_flows.insert(flow, found.ok_or(attempts));
        if let Some(found) = found {
            flows[flow].source = Some(flows[found].key.qpn);
            flows[found].source = Some(key.qpn);
        }
        found
    }
}

/// Returns the source queue pair in the comment of the sending process; the comment of a receiving
/// process has the destination queue pair.
pub(crate) fn sender(captured: &Captured<'_>) -> Option<Qpn> {
    let remark = (captured.direction == Some(Direction::Outbound)).then_some(captured.remark)?;
    let number = remark.strip_prefix("qp 0x")?.split(' ').next()?;
    u32::from_str_radix(number, 16).ok().map(Qpn::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_limited_after_many_visited_flows() {
        let key = |qpn| FlowKey { src: Gid::default(), dst: Gid::default(), qpn: Qpn::new(qpn), direction: None };
        let mut flows: Vec<_> = (0..5000).map(|qpn| Flow::new(key(qpn))).collect();
        let mut pairing = Pairing::default();
        let mut visits = |pairing: &mut Pairing, flow| {
            let before = pairing.visits;
            assert_eq!(pairing.requests_of(&mut flows, &HashMap::new(), flow, Psn::new(0)), None);
            pairing.visits - before
        };
        assert_eq!(visits(&mut pairing, 0), 5000);
        pairing.visits = MAX_VISITS;
        assert_eq!(visits(&mut pairing, 1), MAX_NEWEST);
    }
}
