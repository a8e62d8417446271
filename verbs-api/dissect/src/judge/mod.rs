//! Judges the packets between cards that a capture shows: which card breaks which rule.
//!
//! There are three passes: over single packets and messages of the connection manager; over flows
//! and their pairs; over each connection in the order of time. Loss is not a fault of a card: there
//! is no charge if the loss of a packet between a card and the capture explains the other packets.
//! If a packet that the capture lacks is acknowledged, the capture itself has lost it.

mod channel;
mod charge;
mod congestion;
mod flows;
mod history;
mod manager;
mod packet;
mod record;
mod requester;
mod responder;
#[cfg(test)]
mod tests;

use charge::Charges;
pub use charge::{Card, Charge, Class, Role, Rule};

use crate::analysis::sender;
use crate::reader::{Captured, Integrity};
use channel::{Channel, Params};
use congestion::Congestion;
use flows::Flows;
use manager::{Handshake, Handshakes, Manager};
use record::{PacketRecord, RepeatedCaptures};
use roxe_transport::time::ack_timeout;
use roxe_wire::cm::Message;
use roxe_wire::opcode::{PayloadRule, Service};
use roxe_wire::{Kind, Pkey, Response};
use std::collections::BTreeMap;

/// Knowledge of the caller about a capture that its packets do not show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vantage {
    /// True if the capture has all packets, and each packet reached its receiver in this order.
    pub is_complete: bool,
}

/// A connection, or the direction of a connection that the capture has.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Both ends; the first end sent the first packet.
    pub ends: [Card; 2],
    /// Transport service.
    pub service: Service,
    /// Number of packets from each end.
    pub packets: [usize; 2],
    /// Path MTU in bytes; `None` if unknown.
    pub mtu: Option<u32>,
    /// Number of packets that the capture has lost.
    pub lost: u64,
    /// Indexes of the connection's packets, in capture order.
    pub members: Vec<usize>,
}

impl Connection {
    /// Returns true if the capture has no packets of one end, or does not show which they are.
    pub const fn is_half(&self) -> bool {
        self.packets[0] == 0 || self.packets[1] == 0
    }
}

/// The result for a capture.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Connections in the order of their first packets.
    pub connections: Vec<Connection>,
    /// Charges in the order of packets; charges of one kind in one connection are counted as one.
    pub charges: Vec<Charge>,
    /// Number of packets that were captured twice and judged once.
    pub repeated: usize,
    /// Number of packets that the capture has truncated.
    pub truncated: usize,
    /// Number of datagrams.
    pub datagrams: usize,
}

impl Judgement {
    /// Returns the number of faults, without advice.
    pub fn faults(&self) -> usize {
        self.charges.iter().filter(|charge| charge.class == Class::Fault).map(|charge| charge.count).sum()
    }

    /// Returns the indexes of the packets around a charge: `before` packets of the
    /// connection before each packet of the proof and `after` packets after it.
    pub fn ladder(&self, charge: &Charge, before: usize, after: usize) -> Vec<usize> {
        let Some(connection) = charge.connection.and_then(|index| self.connections.get(index)) else {
            return charge.packets.clone();
        };
        let mut rows = std::collections::BTreeSet::new();
        for packet in &charge.packets {
            rows.insert(*packet);
            let at = connection.members.partition_point(|member| member < packet);
            let end = connection.members.len().min(at + after + 1);
            rows.extend(connection.members.get(at.saturating_sub(before)..end).unwrap_or_default());
        }
        rows.into_iter().collect()
    }
}

/// Judges the packets of a capture, which are in the order of time.
pub fn judge(captured: &[Captured<'_>], vantage: Vantage) -> Judgement {
    let mut judgement = Judgement::default();
    let (mut integrities, mut repeated) = (packet::Integrities::default(), RepeatedCaptures::default());
    let (mut manager, mut flows) = (Manager::new(vantage.is_complete), Flows::default());
    let (mut all, mut handshakes, mut charges) = (Vec::new(), Vec::new(), Charges::default());
    for (index, captured) in captured.iter().enumerate() {
        if repeated.is_repeated(captured) {
            judgement.repeated += 1;
            continue;
        }
        judgement.truncated += usize::from(captured.is_truncated());
        packet::ip(index, captured, &mut charges);
        integrities.add(index, captured);
        if let Integrity::Malformed(error) = captured.integrity {
            packet::malformed(index, captured, error, &mut charges);
        }
        let Some(current) = PacketRecord::of(index, captured) else { continue };
        packet::fields(&current, captured, &mut charges);
        judgement.datagrams += usize::from(matches!(current.header.kind, Kind::Ud { .. }));
        if !captured.is_truncated()
            && let Some(mad) = manager.judge_datagram(&current, captured)
        {
            match &mad.message {
                Message::Req(req) => flows.connect((current.net.src, req.local_qpn), req.local_comm_id.0),
                Message::Rep(rep) => {
                    let qpn = if rep.local_qpn.get() == 0 { rep.local_eecn } else { rep.local_qpn };
                    flows.connect((current.net.src, qpn), rep.local_comm_id.0);
                    handshakes.extend(manager.handshake(&current, rep, |end| flows.life(end)));
                }
                _ => {}
            }
        }
        flows.add(all.len(), &current, sender(captured));
        all.push(current);
    }
    integrities.charge(&mut charges);
    charges.0.append(&mut manager.charges.0);
    let handshakes = Handshake::by_end(&handshakes);
    for (one, two) in flows.pairs(&handshakes) {
        let connection = Judged::new(&flows, &handshakes, &all, (one, two), vantage);
        connection.run(&all, judgement.connections.len(), &mut judgement.connections, &mut charges);
    }
    judgement.charges = complete_charges(charges.0, &judgement.connections, captured);
    judgement
}

/// Adds the connection to each charge, turns charges that lost packets may explain into advice, and
/// counts charges of one kind as one.
fn complete_charges(charges: Vec<Charge>, connections: &[Connection], captured: &[Captured<'_>]) -> Vec<Charge> {
    let mut owners = vec![None; captured.len()];
    for (index, connection) in connections.iter().enumerate() {
        connection.members.iter().for_each(|member| owners[*member] = Some(index));
    }
    let lost_anywhere = connections.iter().any(|connection| connection.lost > 0);
    let mut completed: Vec<Charge> = Vec::new();
    let mut kinds = BTreeMap::new();
    for mut charge in charges {
        charge.packets.sort_unstable();
        charge.packets.dedup();
        let last = charge.packets.last().copied().unwrap_or_default();
        charge.connection = charge.connection.or_else(|| owners.get(last).copied().flatten());
        let has_loss = charge.connection.map_or(lost_anywhere, |index| connections[index].lost > 0);
        if charge.needs_whole_capture && has_loss {
            charge.class = Class::Advice;
        }
        if let Some(fate) = captured.get(last).and_then(Captured::fate) {
            charge.text.push_str(&format!("; a fault rule of the recording process acted on the packet: {fate}"));
            charge.or_network = true;
        }
        if charge.card.qpn.is_none()
            && let Some(connection) = charge.connection.map(|index| &connections[index])
        {
            // If both queue pairs are of one host, the sender is the one that is not the
            // destination.
            let to = captured[last].packet().map(|packet| packet.header.bth.dest_qpn);
            let is_sender = |end: &&Card| end.address == charge.card.address && end.qpn != to;
            charge.card = connection.ends.iter().find(is_sender).copied().unwrap_or(charge.card);
        }
        let key = (charge.connection, charge.rule, charge.class, charge.role, charge.card.address.0);
        let at = *kinds.entry(key).or_insert(completed.len());
        match completed.get_mut(at) {
            Some(first) => first.count += charge.count,
            None => completed.push(charge),
        }
    }
    completed.sort_by_key(|charge| (charge.class, charge.packets.last().copied()));
    completed
}

/// A connection while it is judged. In each array, index 0 is for packets to the first flow's queue
/// pair, index 1 for packets from it.
struct Judged<'f> {
    flows: [Option<&'f flows::Flow>; 2],
    ends: [Card; 2],
    service: Service,
    channels: [Channel; 2],
    congestion: [Congestion; 2],
}

impl<'f> Judged<'f> {
    fn new(
        flows: &'f Flows,
        handshakes: &Handshakes<'_>,
        all: &[PacketRecord],
        (one, two): (usize, Option<usize>),
        vantage: Vantage,
    ) -> Self {
        let pair = [Some(&flows.flows[one]), two.map(|two| &flows.flows[two])];
        let first = &flows.flows[one];
        let handshake = flows.handshake(one, handshakes);
        let known = handshake.map(|(handshake, is_to_passive)| match is_to_passive {
            true => handshake.active.0.1,
            false => handshake.passive.0.1,
        });
        let sender = Card { address: first.key.src, qpn: two.map(|two| flows.flows[two].key.qpn).or(known) };
        let receiver = Card { address: first.key.dst, qpn: Some(first.key.qpn) };
        let mtu = path_mtu(pair, all).or_else(|| handshake.and_then(|(handshake, _)| handshake.mtu));
        let mut services = pair.into_iter().flatten().map(|flow| flow.service);
        let service = services.find(|service| *service != Service::Cnp).unwrap_or(first.service);
        let channel = |is_first: bool| {
            let (requester, responder) = if is_first { (sender, receiver) } else { (receiver, sender) };
            // In a handshake, the active side comes first.
            let side = handshake.map(|(handshake, is_to_passive)| (handshake, usize::from(is_first != is_to_passive)));
            Channel::new(Params {
                requester,
                responder,
                service,
                mtu,
                start: side.map(|(handshake, side)| handshake.starts[side]),
                depth: side.map(|(handshake, side)| handshake.depths[side]).filter(|depth| *depth > 0),
                timeout: side.and_then(|(handshake, side)| ack_timeout(handshake.timeout.saturating_sub(side as u8))),
                is_complete: vantage.is_complete,
            })
        };
        let congestion = [receiver, sender].map(|notifier| Congestion::new(notifier, vantage.is_complete));
        let channels = [channel(true), channel(false)];
        Self { flows: pair, ends: [sender, receiver], service, channels, congestion }
    }

    fn run(mut self, all: &[PacketRecord], index: usize, connections: &mut Vec<Connection>, charges: &mut Charges) {
        let places = self.flows.map(|flow| flow.map_or(&[][..], |flow| &flow.packets));
        let tagged = places
            .iter()
            .enumerate()
            .flat_map(|(direction, places)| places.iter().map(move |place| (*place, direction)));
        let mut order: Vec<_> = tagged.collect();
        order.sort_unstable();
        let (mut members, mut pkeys) = (Vec::new(), [None; 2]);
        let services = places.map(|places| services(places, all));
        for (place, direction) in order {
            let current = &all[place];
            members.push(current.index);
            self.pkey(current, direction, &mut pkeys);
            self.judge_packet(current, direction);
        }
        let lost = self.channels.iter().map(|channel| channel.lost).sum();
        let packets = places.map(<[usize]>::len);
        let Self { ends, service, channels, congestion, .. } = self;
        let mtu = channels[0].params.mtu;
        let own = channels.into_iter().flat_map(|channel| channel.charges.0);
        let own = own.chain(congestion.into_iter().flat_map(|congestion| congestion.charges.0));
        for (direction, strays) in services.into_iter().enumerate() {
            for stray in strays {
                let text = format!("{} belongs to another service than its connection", all[stray].header.opcode());
                charges.add(Rule::Service, ends[direction], Role::Sender, all[stray].index, text);
            }
        }
        charges.0.extend(own.map(|charge| Charge { connection: Some(index), ..charge }));
        connections.push(Connection { ends, service, packets, mtu, lost, members });
    }

    // clause: PKEY-MATCH
    fn pkey(&mut self, current: &PacketRecord, direction: usize, pkeys: &mut [Option<(Pkey, usize)>; 2]) {
        let pkey = current.header.bth.pkey;
        let (first, packet) = *pkeys[direction].get_or_insert((pkey, current.index));
        if first != pkey {
            let text = format!("the P_Key is {:#06x}, but was {:#06x} before", pkey.0, first.0);
            self.channels[direction]
                .charges
                .add(Rule::Pkey, self.ends[direction], Role::Sender, current.index, text)
                .with(packet);
        }
    }

    /// Judges a packet to the first flow's queue pair (`direction` 0) or from it (1).
    fn judge_packet(&mut self, current: &PacketRecord, direction: usize) {
        if !matches!(current.header.kind, Kind::Cnp) {
            self.congestion[direction].packet(current);
        }
        let other = 1 - direction;
        match current.header.kind {
            Kind::RcRequest(request) | Kind::XrcRequest(_, request) if self.service != Service::Uc => {
                self.channels[direction].request(current, request);
            }
            Kind::UcRequest(request) if self.service == Service::Uc => {
                self.channels[direction].request(current, request.into());
            }
            Kind::RcResponse(response) | Kind::XrcResponse(response) => self.response(current, response, other),
            // A CNP reports marks on packets of the card that receives the CNP.
            Kind::Cnp => self.congestion[other].cnp(current),
            _ => {}
        }
    }

    // clause: UC-SILENT
    fn response(&mut self, current: &PacketRecord, response: Response, direction: usize) {
        if self.service == Service::Uc {
            let text = format!("{} is a response on an unreliable connection", current.header.opcode());
            self.channels[direction].responder(Rule::UnreliableAnswer, current.index, text);
        } else {
            self.channels[direction].response(current, response);
        }
    }
}

/// Returns the payload that most full packets of a connection have.
fn path_mtu(flows: [Option<&flows::Flow>; 2], all: &[PacketRecord]) -> Option<u32> {
    let mut counts = BTreeMap::<u32, usize>::new();
    for current in flows.into_iter().flatten().flat_map(|flow| &flow.packets).map(|place| &all[*place]) {
        let is_full = current.header.opcode().properties().payload == PayloadRule::Full;
        if is_full && matches!(current.len, 256 | 512 | 1024 | 2048 | 4096) {
            *counts.entry(current.len).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(mtu, _)| mtu)
}

/// Returns packets of another service than the packets before and after them.
// clause: TAKE-SERVICE
fn services(places: &[usize], all: &[PacketRecord]) -> Vec<usize> {
    let service_at = |place: usize| all[place].header.opcode().service();
    let places: Vec<_> = places.iter().copied().filter(|place| service_at(*place) != Service::Cnp).collect();
    let strays = places
        .windows(3)
        .filter(|three| service_at(three[0]) == service_at(three[2]) && service_at(three[1]) != service_at(three[0]));
    strays.map(|three| three[1]).collect()
}
