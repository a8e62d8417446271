//! Judges one clean conversation of two cards. No missing part of it leads to a charge, and every
//! planted fault is charged to the card at fault.

use super::{Charge, Class, Judgement, Rule, Vantage, judge};
use crate::reader::{Captured, Item, items};
use roxe_wire::capture::{Direction, Outgoing, frames, write_interface, write_packet, write_section};
use roxe_wire::cm::{
    CommId, Drep, Dreq, Mad, Message, MtuCode, Path, Rep, Req, Rtu, TimeCode, TransactionId, gsi_header,
};
use roxe_wire::opcode::PayloadRule;
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Gid, Header, Kind, Msn, NakCode, NetHeader, Pkey, Psn, Qpn, RKey, Request,
    Response, Reth, SendTail, Syndrome, UcRequest, XrcEth, icrc,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Path MTU of the conversation, bytes.
const MTU: usize = 1024;
/// Queue pairs of the cards.
const QPNS: [u32; 2] = [0x11, 0x22];
/// Offset of the BTH in an IPv4 packet.
const BTH: usize = 28;

/// The requester of the conversation.
const A: usize = 0;
/// The responder of the conversation.
const B: usize = 1;

fn gid(side: usize) -> Gid {
    Ipv4Addr::new(10, 0, 0, side as u8 + 1).into()
}

/// A packet of the conversation.
#[derive(Clone, Debug)]
struct Packet {
    name: &'static str,
    from: usize,
    /// Time in microseconds.
    time: u64,
    net: NetHeader,
    header: Header,
    payload: Vec<u8>,
    /// Offsets in and after the BTH, and the bytes to store there before the ICRC is computed.
    edits: Vec<(usize, u8)>,
    /// Edits of the IP packet, applied after `edits`.
    damage: Vec<(usize, u8)>,
    /// Bytes added to the payload in spite of the opcode.
    extra: usize,
}

impl Packet {
    fn new(name: &'static str, from: usize, psn: u32, kind: Kind, len: usize) -> Self {
        let net = NetHeader {
            src: gid(from),
            dst: gid(1 - from),
            src_port: 0xc000,
            traffic_class: 2,
            hop_limit: 64,
            ..NetHeader::default()
        };
        let mut bth = Bth::new(Qpn::new(QPNS[1 - from]), Psn::new(psn));
        bth.ack_req = kind.request().is_some();
        let (header, payload) = (Header { bth, kind }, vec![psn as u8; len]);
        Self { name, from, time: 0, net, header, payload, edits: vec![], damage: vec![], extra: 0 }
    }

    fn mad(name: &'static str, from: usize, message: Message) -> Self {
        let mad = Mad { tid: TransactionId(7), modifier: 0, message };
        let header = gsi_header(Psn::new(1));
        Self { header, payload: mad.to_bytes().to_vec(), ..Self::new(name, from, 1, header.kind, 0) }
    }

    /// Changes the packet's message.
    fn with_mad(&mut self, change: impl FnOnce(&mut Mad)) {
        let mut mad = Mad::parse(&self.payload).unwrap();
        change(&mut mad);
        self.payload = mad.to_bytes().to_vec();
    }

    fn request(&mut self) -> &mut Request {
        match &mut self.header.kind {
            Kind::RcRequest(request) => request,
            kind => panic!("{kind:?}"),
        }
    }

    fn reth(&mut self) -> &mut Reth {
        match self.request() {
            Request::WriteFirst(reth) | Request::WriteOnly(reth, _) | Request::Read(reth) => reth,
            request => panic!("{request:?}"),
        }
    }

    fn set_aeth(&mut self, aeth: Aeth) {
        match &mut self.header.kind {
            Kind::RcResponse(
                Response::Ack(own) | Response::ReadFirst(own) | Response::ReadLast(own) | Response::AtomicAck(own, _),
            ) => *own = aeth,
            kind => panic!("{kind:?}"),
        }
    }

    fn msn(&mut self, msn: u32) {
        let syndrome = self.header.kind_aeth().syndrome;
        self.set_aeth(Aeth { syndrome, msn: Msn::new(msn) });
    }

    fn datagram(&self, number: usize) -> (NetHeader, Vec<u8>) {
        let net = NetHeader { ident: number as u16 + 1, ..self.net };
        let len = self.payload.len();
        let mut bytes = vec![0; self.header.padded_len(len)];
        self.header.emit(len, &mut bytes).unwrap().copy_from_slice(&self.payload);
        bytes.extend(vec![0; self.extra + icrc::LEN]);
        self.edits.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        icrc::seal(&net, &mut bytes);
        (net, bytes)
    }
}

trait HasAeth {
    fn kind_aeth(&self) -> Aeth;
}

impl HasAeth for Header {
    fn kind_aeth(&self) -> Aeth {
        match &self.kind {
            Kind::RcResponse(response) => *response.aeth().unwrap(),
            kind => panic!("{kind:?}"),
        }
    }
}

const fn ack(msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(msn) }
}

const fn nak(code: NakCode, msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::Nak(code), msn: Msn::new(msn) }
}

const fn rnr(timer: u8, msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::RnrNak { timer }, msn: Msn::new(msn) }
}

const fn reth(dma_len: usize) -> Reth {
    Reth { va: 0x1000, rkey: RKey(7), dma_len: dma_len as u32 }
}

fn req(name: &'static str, psn: u32, request: Request, len: usize) -> Packet {
    Packet::new(name, A, psn, Kind::RcRequest(request), len)
}

fn send(name: &'static str, psn: u32) -> Packet {
    req(name, psn, Request::SendOnly(SendTail::Plain), 16)
}

fn resp(name: &'static str, psn: u32, response: Response, len: usize) -> Packet {
    Packet::new(name, B, psn, Kind::RcResponse(response), len)
}

fn acked(name: &'static str, psn: u32, msn: u32) -> Packet {
    resp(name, psn, Response::Ack(ack(msn)), 0)
}

fn cnp() -> Packet {
    let mut packet = Packet::new("cnp", B, 0, Kind::Cnp, 0);
    (packet.header.bth.becn, packet.net.traffic_class) = (true, 48 << 2);
    packet
}

/// The packets of a capture, in their order.
#[derive(Clone, Debug)]
struct Tape(Vec<Packet>);

impl Tape {
    /// Returns a connection from its REQ to its DREP: every kind of request, a packet lost after
    /// the capture, a missing receive, a congestion mark.
    fn clean() -> Self {
        let primary =
            Path { local_gid: gid(A), remote_gid: gid(B), local_ack_timeout: TimeCode::new(14), ..Path::default() };
        let connect = Req {
            local_comm_id: CommId(70),
            local_qpn: Qpn::new(QPNS[A]),
            starting_psn: Psn::new(500),
            responder_resources: 2,
            initiator_depth: 2,
            path_mtu: MtuCode::new(3),
            primary,
            ..Req::default()
        };
        let accept = Rep {
            local_comm_id: CommId(80),
            remote_comm_id: CommId(70),
            local_qpn: Qpn::new(QPNS[B]),
            starting_psn: Psn::new(100),
            responder_resources: 2,
            initiator_depth: 2,
            ..Rep::default()
        };
        let (local, remote) = (CommId(70), CommId(80));
        let rtu = Rtu { local_comm_id: local, remote_comm_id: remote, ..Rtu::default() };
        let (remote_qpn, ids) = (Qpn::new(QPNS[B]), (local, remote));
        let dreq = Dreq { local_comm_id: ids.0, remote_comm_id: ids.1, remote_qpn, ..Dreq::default() };
        let drep = Drep { local_comm_id: ids.1, remote_comm_id: ids.0, ..Drep::default() };
        let atomic = AtomicEth { va: 0x1000, rkey: RKey(7), swap_or_add: 1, compare: 0 };
        let mut tape = Self(vec![
            Packet::mad("REQ", A, Message::Req(connect)),
            Packet::mad("REP", B, Message::Rep(accept)),
            Packet::mad("RTU", A, Message::Rtu(rtu)),
            send("send", 100),
            acked("ack send", 100, 1),
            req("send first", 101, Request::SendFirst, MTU),
            req("send middle", 102, Request::SendMiddle, MTU),
            req("send last", 103, Request::SendLast(SendTail::Plain), 100),
            acked("ack sends", 103, 2),
            req("write first", 104, Request::WriteFirst(reth(MTU + 50)), MTU),
            req("write last", 105, Request::WriteLast(None), 50),
            acked("ack write", 105, 3),
            req("read", 106, Request::Read(reth(2500)), 0),
            resp("read first", 106, Response::ReadFirst(ack(4)), MTU),
            resp("read middle", 107, Response::ReadMiddle, MTU),
            resp("read last", 108, Response::ReadLast(ack(4)), 2500 - 2 * MTU),
            req("add", 109, Request::FetchAdd(atomic), 0),
            resp("ack add", 109, Response::AtomicAck(ack(5), AtomicAckEth(3)), 0),
            send("one", 110),
            send("two", 111),
            send("three", 112),
            resp("nak", 111, Response::Ack(nak(NakCode::PsnSequence, 6)), 0),
            send("two again", 111),
            send("three again", 112),
            acked("ack three", 112, 8),
            send("no receive", 113),
            resp("rnr", 113, Response::Ack(rnr(1, 8)), 0),
            send("receive", 113),
            acked("ack receive", 113, 9),
            Packet::new("back", B, 500, Kind::RcRequest(Request::WriteOnly(reth(8), None)), 8),
            Packet::new("ack back", A, 500, Kind::RcResponse(Response::Ack(ack(1))), 0),
            send("marked", 114),
            cnp(),
            acked("ack marked", 114, 10),
            Packet::mad("DREQ", A, Message::Dreq(dreq)),
            Packet::mad("DREP", B, Message::Drep(drep)),
        ]);
        tape.packet("marked").net.mark();
        tape.0.iter_mut().zip(0..).for_each(|(packet, index)| packet.time = 100 * index);
        tape
    }

    fn at(&self, name: &str) -> usize {
        self.0.iter().position(|packet| packet.name == name).unwrap_or_else(|| panic!("no packet {name}"))
    }

    fn packet(&mut self, name: &str) -> &mut Packet {
        let at = self.at(name);
        &mut self.0[at]
    }

    /// Inserts a packet 10 µs after another packet.
    fn insert_after(&mut self, name: &str, packet: Packet) {
        let at = self.at(name);
        let time = self.0[at].time + 10;
        self.0.insert(at + 1, Packet { time, ..packet });
    }

    /// Moves a packet after another packet.
    fn move_after(&mut self, name: &str, other: &str) {
        let packet = self.0.remove(self.at(name));
        self.insert_after(other, packet);
    }

    fn remove(&mut self, name: &str) {
        self.0.remove(self.at(name));
    }

    /// Returns IP packets with their times in nanoseconds.
    fn ip_packets(&self) -> Vec<(u64, Vec<u8>)> {
        let mut file = Vec::new();
        write_section(&mut file, "test");
        write_interface(&mut file, "test");
        for (number, packet) in self.0.iter().enumerate() {
            let (net, payload) = packet.datagram(number);
            let (timestamp_ns, direction) = (packet.time * 1000, Direction::Inbound);
            let outgoing = Outgoing { interface: 0, timestamp_ns, direction, net, payload: &payload, comment: "" };
            write_packet(&mut file, &outgoing);
        }
        let frames = frames(&file).unwrap().map(|frame| frame.unwrap());
        let ip = frames.zip(&self.0).map(|(frame, packet)| {
            let mut bytes = roxe_wire::capture::ip_packet(frame.link, frame.data).unwrap().to_vec();
            packet.damage.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            (frame.timestamp_ns, bytes)
        });
        ip.collect()
    }

    /// Returns a capture with a link header of this type, and at most `snap` bytes of each frame.
    fn capture(&self, link: u32, header: &[u8], snap: usize) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_3c4d, 2 << 16 | 4, 0, 0, 65535, link] {
            file.extend_from_slice(&u32::to_be_bytes(word));
        }
        for (time, ip) in self.ip_packets() {
            let frame: Vec<u8> = header.iter().chain(&ip).copied().collect();
            let (seconds, nanos) = ((time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32);
            let captured = frame.len().min(snap);
            for word in [seconds, nanos, captured as u32, frame.len() as u32] {
                file.extend_from_slice(&word.to_be_bytes());
            }
            file.extend_from_slice(&frame[..captured]);
        }
        file
    }

    fn judged(&self, is_complete: bool) -> Judgement {
        judged(&self.capture(RAW, &[], usize::MAX), is_complete)
    }
}

/// `LINKTYPE_RAW`.
const RAW: u32 = 101;

fn packets(file: &[u8]) -> Vec<Captured<'_>> {
    let found = items(file, |_| false).unwrap().map(|item| match item {
        Item::Packet(packet) => packet,
        other => panic!("{other:?}"),
    });
    found.collect()
}

fn judged(file: &[u8], is_complete: bool) -> Judgement {
    judge(&packets(file), Vantage { is_complete })
}

fn faults(judgement: &Judgement) -> Vec<&Charge> {
    judgement.charges.iter().filter(|charge| charge.class == Class::Fault).collect()
}

#[track_caller]
fn assert_clean(judgement: &Judgement, what: &str) {
    assert!(faults(judgement).is_empty(), "{what}: {:#?}", faults(judgement));
}

#[test]
fn clean_conversation_brings_no_charge_and_no_advice() {
    let judgement = Tape::clean().judged(false);
    assert!(judgement.charges.is_empty(), "{:#?}", judgement.charges);
    let [connection] = &judgement.connections[..] else { panic!("{:#?}", judgement.connections) };
    assert_eq!(connection.ends.map(|end| end.to_string()), ["10.0.0.1 qp 0x11", "10.0.0.2 qp 0x22"]);
    assert_eq!((connection.mtu, connection.lost), (Some(1024), 0));
    assert_eq!(connection.packets, [17, 14]);
}

#[test]
fn packets_lost_by_the_capture_bring_no_charge() {
    let clean = Tape::clean();
    for first in 0..clean.0.len() {
        for second in first..clean.0.len() {
            let mut tape = clean.clone();
            let names = [tape.0[first].name, tape.0[second].name];
            tape.0.remove(second);
            if first < second {
                tape.0.remove(first);
            }
            assert_clean(&tape.judged(false), &names.join(" and "));
        }
    }
}

#[test]
fn runs_lost_by_the_capture_bring_no_charge() {
    let clean = Tape::clean();
    for begin in 0..clean.0.len() {
        for end in begin..=clean.0.len() {
            let mut tape = clean.clone();
            tape.0.drain(begin..end);
            assert_clean(&tape.judged(false), &format!("without {begin}..{end}"));
            let tape = Tape(clean.0[begin..end].to_vec());
            assert_clean(&tape.judged(false), &format!("only {begin}..{end}"));
        }
    }
}

#[test]
fn loss_is_counted_when_a_later_ack_proves_delivery() {
    let mut tape = Tape::clean();
    tape.remove("send middle");
    tape.remove("write first");
    assert_eq!(tape.judged(false).connections[0].lost, 2);
}

#[test]
fn single_directions_bring_no_charge() {
    for side in [A, B] {
        let mut tape = Tape::clean();
        tape.0.retain(|packet| packet.from == side);
        let judgement = tape.judged(false);
        assert_clean(&judgement, "one direction");
        assert!(judgement.connections.iter().all(super::Connection::is_half));
    }
}

#[test]
fn truncated_packets_bring_no_charge() {
    let clean = Tape::clean();
    for snap in 20..200 {
        let file = clean.capture(RAW, &[], snap);
        let found = items(&file, |_| false).unwrap();
        let packets: Vec<_> =
            found.filter_map(|item| if let Item::Packet(packet) = item { Some(packet) } else { None }).collect();
        assert_clean(&judge(&packets, Vantage::default()), &format!("{snap} bytes"));
    }
}

#[test]
fn encapsulations_are_judged_alike() {
    let mut tape = Tape::clean();
    tape.packet("ack sends").msn(3);
    let ethernet = |tail: &[u8]| [&[2; 12][..], tail].concat();
    let cooked = [&[0, 0, 0, 1, 0, 6][..], &[2; 8], &[8, 0]].concat();
    let cooked2 = [&[8, 0][..], &[0; 18]].concat();
    let headers = [
        (1, ethernet(&[8, 0])),
        (1, ethernet(&[0x81, 0, 0, 5, 8, 0])),
        (1, ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0])),
        (113, cooked),
        (276, cooked2),
        (RAW, vec![]),
        (0, vec![2, 0, 0, 0]),
        (108, vec![0, 0, 0, 2]),
    ];
    for (link, header) in headers {
        assert_clean(&judged(&Tape::clean().capture(link, &header, usize::MAX), false), "clean");
        let judgement = judged(&tape.capture(link, &header, usize::MAX), false);
        assert_eq!(faults(&judgement).iter().map(|charge| charge.rule).collect::<Vec<_>>(), [Rule::Msn], "link {link}");
    }
}

#[test]
fn conversation_over_ipv6_brings_no_charge() {
    let mut tape = Tape::clean();
    let address = |side: usize| Gid(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, side as u16 + 1).octets());
    for packet in &mut tape.0 {
        (packet.net.src, packet.net.dst) = (address(packet.from), address(1 - packet.from));
    }
    tape.packet("REQ").with_mad(|mad| {
        let Message::Req(req) = &mut mad.message else { panic!() };
        (req.primary.local_gid, req.primary.remote_gid) = (address(A), address(B));
    });
    assert!(tape.judged(false).charges.is_empty());
}

#[test]
fn packets_captured_at_two_places_are_judged_once() {
    let clean = Tape::clean();
    let mut file = clean.capture(1, &[&[2; 12][..], &[8, 0]].concat(), usize::MAX);
    let again = clean.capture(1, &[&[3; 12][..], &[8, 0]].concat(), usize::MAX);
    file.extend_from_slice(&again[24..]);
    let mut packets = packets(&file);
    packets.sort_by_key(|packet| packet.time);
    let judgement = judge(&packets, Vantage::default());
    assert!(judgement.charges.is_empty(), "{:#?}", judgement.charges);
    assert_eq!(judgement.repeated, clean.0.len());
}

#[test]
fn send_beyond_credits_is_advice() {
    let mut tape = Tape::clean();
    let none = Aeth { syndrome: Syndrome::Ack { credits: 0 }, msn: Msn::new(6) };
    tape.insert_after("one", resp("no credits", 110, Response::Ack(none), 0));
    let judgement = tape.judged(false);
    assert!(judgement.charges.iter().any(|charge| charge.rule == Rule::Credits), "{:#?}", judgement.charges);
    assert_clean(&judgement, "credits");
}

/// A change of the clean conversation that breaks a rule.
struct Planted {
    rule: Rule,
    side: usize,
    change: fn(&mut Tape),
    /// True if only a complete capture proves the fault.
    is_complete: bool,
}

const fn planted(rule: Rule, side: usize, change: fn(&mut Tape)) -> Planted {
    Planted { rule, side, change, is_complete: false }
}

const fn complete(rule: Rule, side: usize, change: fn(&mut Tape)) -> Planted {
    Planted { rule, side, change, is_complete: true }
}

/// Makes a conversation of one message of two packets of another service.
fn only(tape: &mut Tape, kinds: &[Kind]) {
    let packets = kinds.iter().zip(0..).map(|(kind, index)| {
        let is_full =
            kind.request().is_some_and(|request| request.operation().properties().payload == PayloadRule::Full);
        let len = if is_full { MTU } else { 8 };
        let from = if kind.request().is_some() { A } else { B };
        Packet { time: index * 10, ..Packet::new("other", from, 100 + index as u32, *kind, len) }
    });
    tape.0 = packets.collect();
}

fn uc(request: Request) -> Kind {
    Kind::UcRequest(UcRequest::try_from(request).unwrap())
}

/// Every planted fault.
const PLANTED: &[Planted] = &[
    // Single packets.
    planted(Rule::IpDf, A, |tape| tape.packet("one").damage.extend([(6, 0), (10, 0), (11, 0)])),
    planted(Rule::IpChecksum, A, |tape| tape.packet("one").damage.push((10, 0x55))),
    planted(Rule::Address, B, |tape| tape.packet("ack add").net.dst = Ipv4Addr::new(239, 1, 1, 1).into()),
    planted(Rule::Icrc, A, |tape| tape.packet("one").damage.push((BTH + 14, 0x55))),
    planted(Rule::Icrc, B, |tape| {
        let of_b = tape.0.iter_mut().filter(|packet| packet.from == B);
        of_b.for_each(|packet| packet.damage.push((BTH + 7, 0x55)));
    }),
    planted(Rule::Version, A, |tape| tape.packet("one").edits.push((1, 0x01))),
    planted(Rule::Opcode, A, |tape| tape.packet("one").edits.push((0, 0x15))),
    planted(Rule::Headers, B, |tape| tape.packet("ack receive").edits.push((0, 0x12))),
    planted(Rule::Pad, A, |tape| tape.packet("send first").edits.push((1, 0x10))),
    planted(Rule::Payload, B, |tape| tape.packet("ack receive").extra = 4),
    planted(Rule::Reserved, A, |tape| tape.packet("two").edits.push((8, 0x81))),
    planted(Rule::Reserved, B, |tape| tape.packet("ack three").header.bth.becn = true),
    planted(Rule::Pkey, A, |tape| tape.packet("marked").header.bth.pkey = Pkey(0x8001)),
    planted(Rule::QueuePair, A, |tape| tape.packet("marked").header.bth.dest_qpn = Qpn::new(0)),
    planted(Rule::QueuePair, A, |tape| tape.packet("RTU").edits.push((12, 0))),
    planted(Rule::Multicast, A, |tape| tape.packet("RTU").header.bth.dest_qpn = Qpn::MULTICAST),
    planted(Rule::Solicited, A, |tape| tape.packet("send first").header.bth.solicited = true),
    planted(Rule::AnswerBits, B, |tape| tape.packet("ack sends").header.bth.ack_req = true),
    planted(Rule::Syndrome, B, |tape| tape.packet("ack sends").edits.push((12, 0x40))),
    // Requests.
    planted(Rule::Service, A, |tape| {
        let kind = uc(Request::SendOnly(SendTail::Plain));
        tape.insert_after("one", Packet::new("other service", A, 111, kind, 16));
    }),
    planted(Rule::PsnOrder, A, |tape| tape.packet("one").header.bth.psn = Psn::new(0x80_0000)),
    planted(Rule::PsnOrder, A, |tape| {
        only(tape, &[uc(Request::SendOnly(SendTail::Plain)), uc(Request::SendOnly(SendTail::Plain))]);
        tape.0[1].header.bth.psn = Psn::new(100);
        tape.0[1].payload = vec![0x55; 8];
    }),
    planted(Rule::PsnStart, A, |tape| {
        tape.insert_after("RTU", send("too early", 99));
    }),
    complete(Rule::PsnContiguous, A, |tape| tape.remove("send middle")),
    planted(Rule::OpcodeOrder, A, |tape| {
        tape.packet("send middle").header.kind = Kind::RcRequest(Request::WriteMiddle)
    }),
    planted(Rule::OpcodeOrder, A, |tape| {
        tape.packet("one").header.kind = Kind::RcRequest(Request::SendLast(SendTail::Plain));
    }),
    planted(Rule::Mtu, A, |tape| tape.packet("send middle").payload.truncate(1000)),
    planted(Rule::PacketLength, A, |tape| tape.packet("send middle").payload.truncate(512)),
    planted(Rule::PacketLength, A, |tape| tape.packet("send last").payload.clear()),
    planted(Rule::PacketLength, A, |tape| tape.packet("send last").payload.resize(MTU + 4, 1)),
    planted(Rule::DmaLength, A, |tape| tape.packet("write first").reth().dma_len += 1),
    planted(Rule::DmaLength, A, |tape| tape.packet("write last").payload.truncate(49)),
    planted(Rule::DmaLength, B, |tape| tape.packet("back").reth().dma_len = 9),
    planted(Rule::MessageLength, B, |tape| tape.packet("back").reth().dma_len = 0x8000_0001),
    planted(Rule::XrcQueue, A, |tape| {
        let last = Request::SendLast(SendTail::Plain);
        only(tape, &[Kind::XrcRequest(XrcEth(1), Request::SendFirst), Kind::XrcRequest(XrcEth(2), last)]);
    }),
    planted(Rule::ReadDepth, A, |tape| {
        let read = |psn| req("deep", psn, Request::Read(reth(4)), 0);
        let answer = |psn, msn| resp("deep answer", psn, Response::ReadOnly(ack(msn)), 4);
        for (psn, msn) in [(117, 13), (116, 12), (115, 11)] {
            tape.insert_after("ack marked", answer(psn, msn));
        }
        [117, 116, 115].into_iter().for_each(|psn| tape.insert_after("ack marked", read(psn)));
    }),
    planted(Rule::Repeat, A, |tape| {
        tape.packet("two again").header.kind = Kind::RcRequest(Request::WriteOnly(reth(16), None));
    }),
    planted(Rule::Repeat, A, |tape| tape.packet("two again").payload.truncate(15)),
    planted(Rule::ReadTail, A, |tape| {
        let other = Reth { rkey: RKey(8), ..reth(2500) };
        tape.insert_after("read", req("read again", 106, Request::Read(other), 0));
    }),
    planted(Rule::ReadTail, A, |tape| {
        tape.insert_after("read first", req("tail", 107, Request::Read(reth(2500 - MTU)), 0));
    }),
    complete(Rule::GoBack, A, |tape| {
        tape.insert_after("three again", send("back to one", 110));
    }),
    complete(Rule::EarlyRepeat, A, |tape| tape.insert_after("send", send("send again", 100))),
    complete(Rule::AfterNak, A, |tape| {
        tape.packet("two").net.traffic_class = 0;
        tape.remove("two again");
    }),
    planted(Rule::RnrWait, A, |tape| tape.packet("rnr").set_aeth(rnr(20, 8))),
    // Responses.
    planted(Rule::ResponseMatch, B, |tape| tape.move_after("ack sends", "send first")),
    complete(Rule::ResponseMatch, B, |tape| {
        tape.insert_after("one", resp("nak nothing", 110, Response::Ack(nak(NakCode::PsnSequence, 5)), 0));
    }),
    planted(Rule::ResponseKind, B, |tape| {
        ["read middle", "read last"].into_iter().for_each(|name| tape.remove(name));
        tape.packet("read first").payload.clear();
        tape.packet("read first").header.kind = Kind::RcResponse(Response::Ack(ack(4)));
    }),
    planted(Rule::ResponseKind, B, |tape| {
        tape.packet("ack add").header.kind = Kind::RcResponse(Response::Ack(ack(5)));
    }),
    planted(Rule::ResponseKind, B, |tape| {
        let atomic = Response::AtomicAck(ack(1), AtomicAckEth(0));
        tape.packet("ack send").header.kind = Kind::RcResponse(atomic);
    }),
    planted(Rule::ReadLength, B, |tape| tape.packet("read last").payload.truncate(4)),
    planted(Rule::ReadLength, B, |tape| tape.packet("read middle").payload.truncate(512)),
    planted(Rule::ReadOrder, B, |tape| {
        tape.packet("read first").header.kind = Kind::RcResponse(Response::ReadMiddle);
    }),
    planted(Rule::ReadOrder, B, |tape| {
        tape.packet("read last").header.kind = Kind::RcResponse(Response::ReadOnly(ack(4)));
    }),
    planted(Rule::ReadPositive, B, |tape| tape.packet("ack add").set_aeth(nak(NakCode::RemoteAccess, 5))),
    complete(Rule::AnswerOrder, B, |tape| tape.remove("read middle")),
    complete(Rule::AnswerOrder, B, |tape| tape.move_after("ack send", "ack sends")),
    planted(Rule::Msn, B, |tape| tape.packet("ack sends").msn(3)),
    planted(Rule::Msn, B, |tape| {
        let of_b = tape.0.iter_mut().filter(|packet| matches!(packet.header.kind, Kind::RcResponse(Response::Ack(_))));
        of_b.filter(|packet| packet.from == B).for_each(|packet| packet.msn(0));
    }),
    planted(Rule::AtomicAligned, B, |tape| {
        let atomic = AtomicEth { va: 0x1004, rkey: RKey(7), swap_or_add: 1, compare: 0 };
        *tape.packet("add").request() = Request::FetchAdd(atomic);
    }),
    planted(Rule::NakGap, B, |tape| {
        tape.insert_after("ack sends", resp("late nak", 102, Response::Ack(nak(NakCode::PsnSequence, 2)), 0));
    }),
    planted(Rule::NakGap, B, |tape| {
        for _ in 0..3 {
            tape.insert_after("nak", resp("nak again", 111, Response::Ack(nak(NakCode::PsnSequence, 6)), 0));
        }
    }),
    planted(Rule::AfterNak, A, |tape| {
        for _ in 0..3 {
            tape.insert_after("nak", send("three again", 112));
            tape.insert_after("nak", resp("nak again", 111, Response::Ack(nak(NakCode::PsnSequence, 6)), 0));
        }
        let at = tape.at("nak") + 3;
        tape.0[at..].iter_mut().for_each(|packet| packet.time += 20_000);
    }),
    complete(Rule::NakGap, B, |_| {}),
    planted(Rule::LateRefusal, B, |tape| {
        tape.insert_after("ack sends", resp("refused", 103, Response::Ack(nak(NakCode::InvalidRequest, 2)), 0));
    }),
    planted(Rule::LateRefusal, B, |tape| {
        tape.insert_after("ack sends", resp("rnr late", 103, Response::Ack(rnr(1, 2)), 0));
    }),
    planted(Rule::AfterRefusal, B, |tape| {
        tape.insert_after("no receive", resp("refused", 113, Response::Ack(nak(NakCode::RemoteAccess, 8)), 0));
        tape.remove("rnr");
    }),
    planted(Rule::UnreliableAnswer, B, |tape| {
        only(tape, &[uc(Request::SendFirst), uc(Request::SendLast(SendTail::Plain))]);
        // The handshake and requests in both directions show both ends.
        let connect = Tape::clean();
        tape.0.splice(0..0, connect.0[..3].iter().cloned());
        tape.0.push(Packet { time: 900, ..acked("ack", 101, 1) });
        tape.0.push(Packet { time: 910, ..Packet::new("b", B, 500, uc(Request::SendOnly(SendTail::Plain)), 4) });
    }),
    // Congestion.
    planted(Rule::CnpFields, B, |tape| tape.packet("cnp").header.bth.becn = false),
    planted(Rule::CnpFields, B, |tape| tape.packet("cnp").edits.push((20, 1))),
    planted(Rule::CnpUnmarked, B, |tape| {
        tape.0.iter_mut().for_each(|packet| packet.net.traffic_class &= !3);
    }),
    planted(Rule::CnpPace, B, |tape| {
        for index in 0..8 {
            tape.insert_after("cnp", cnp());
            let at = tape.at("cnp") + 1;
            tape.0[at].name = "more";
            tape.0[at].time = tape.packet("cnp").time + 8 - index;
        }
    }),
    // The connection manager.
    planted(Rule::CmMad, A, |tape| tape.packet("RTU").payload[2] = 9),
    planted(Rule::CmId, A, |tape| {
        tape.packet("REQ").with_mad(|mad| {
            let Message::Req(req) = &mut mad.message else { panic!() };
            req.local_comm_id = CommId(0);
        });
    }),
    planted(Rule::CmAddress, A, |tape| {
        tape.packet("REQ").with_mad(|mad| {
            let Message::Req(req) = &mut mad.message else { panic!() };
            req.primary.local_gid = gid(B);
        });
    }),
    planted(Rule::CmMatch, B, |tape| tape.packet("REP").with_mad(|mad| mad.tid = TransactionId(8))),
    planted(Rule::CmMatch, A, |tape| {
        tape.packet("RTU").with_mad(|mad| {
            let Message::Rtu(rtu) = &mut mad.message else { panic!() };
            rtu.remote_comm_id = CommId(81);
        });
    }),
    planted(Rule::CmMatch, B, |tape| {
        tape.packet("DREP").with_mad(|mad| {
            let Message::Drep(drep) = &mut mad.message else { panic!() };
            drep.local_comm_id = CommId(81);
        });
    }),
    planted(Rule::CmOrder, B, |tape| {
        let rep = tape.0.remove(1);
        tape.0.insert(0, Packet { time: 0, ..rep });
        tape.0[1].time = 1;
    }),
    planted(Rule::CmOrder, A, |tape| {
        let rtu = tape.0.remove(2);
        tape.0.insert(1, Packet { time: 50, ..rtu });
    }),
    complete(Rule::CmOrder, B, |tape| tape.remove("DREQ")),
    planted(Rule::CmRepeat, B, |tape| {
        let mut again = tape.packet("REP").clone();
        again.with_mad(|mad| {
            let Message::Rep(rep) = &mut mad.message else { panic!() };
            rep.starting_psn = Psn::new(200);
        });
        tape.insert_after("REP", again);
    }),
    planted(Rule::CmQueuePair, A, |tape| {
        tape.packet("DREQ").with_mad(|mad| {
            let Message::Dreq(dreq) = &mut mad.message else { panic!() };
            dreq.remote_qpn = Qpn::new(0x23);
        });
    }),
];

/// A local error within a UC message ends in SQE, and the next message begins after RTS.
// clause: UC-NEW-START, STATE-SQE
#[test]
fn uc_message_after_a_broken_one_brings_only_advice() {
    for next in [Request::SendOnly(SendTail::Plain), Request::SendFirst] {
        let mut tape = Tape::clean();
        only(&mut tape, &[uc(Request::SendFirst), uc(next)]);
        let judgement = tape.judged(false);
        assert!(faults(&judgement).is_empty(), "{next:?}: {:#?}", judgement.charges);
        assert_eq!(judgement.charges.iter().filter(|charge| charge.rule == Rule::OpcodeOrder).count(), 1);
    }
    // Without a new start the packet is still wrong.
    let mut tape = Tape::clean();
    only(&mut tape, &[uc(Request::SendFirst), uc(Request::WriteLast(None))]);
    assert!(!faults(&tape.judged(false)).is_empty());
}

#[test]
fn planted_faults_are_charged_to_the_right_card() {
    let mut missed = Vec::new();
    for (number, Planted { rule, side, change, is_complete }) in PLANTED.iter().enumerate() {
        let mut tape = Tape::clean();
        change(&mut tape);
        let judgement = tape.judged(*is_complete);
        let charges: Vec<_> = faults(&judgement).into_iter().map(ToString::to_string).collect();
        let is_named =
            faults(&judgement).iter().any(|charge| charge.rule == *rule && charge.card.address == gid(*side));
        let accuses_other = !*is_complete && faults(&judgement).iter().any(|charge| charge.card.address != gid(*side));
        if !is_named || accuses_other {
            missed.push(format!("{number} {}: {charges:#?}\nall: {:#?}", rule.name(), judgement.charges));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(PLANTED.len() >= 60);
}
