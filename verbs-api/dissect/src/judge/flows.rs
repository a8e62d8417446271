//! Flows, and the pairs of flows that are connections.
//!
//! A packet carries only its destination queue pair. The judge learns the source queue pair from
//! messages of the connection manager, from the comment of the recording process, or from
//! responses, which carry the PSNs of their requests.

use super::manager::{End, Handshake, Handshakes};
use super::record::PacketRecord;
use crate::analysis::FlowKey;
use roxe_wire::opcode::Service;
use roxe_wire::{Kind, Psn, Qpn};
use std::collections::HashMap;

/// Number of flows that are searched for the request of a response: the newest flows with its PSN.
const MAX_CANDIDATES: usize = 16;

/// The packets from one host to one queue pair in one of its lives.
#[derive(Debug)]
pub(super) struct Flow {
    pub key: FlowKey,
    /// Indexes of the packets in the list of all [`PacketRecord`]s.
    pub packets: Vec<usize>,
    /// Service of the flow's requests; a reliable service if there are several, and that of the
    /// first packet if there are no requests.
    pub service: Service,
    has_requests: bool,
    /// Number of times that the queue pair was connected before.
    life: u32,
    /// Queue pair that sends the packets, from the comment of the recording process.
    source: Option<Qpn>,
}

/// Flows of connections, and what shows that two flows belong to one connection.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub flows: Vec<Flow>,
    by_key: HashMap<(FlowKey, u32), usize>,
    /// Number of connections of a queue pair so far, and the id of the newest.
    lives: HashMap<End, (u32, u32)>,
    /// Flows with a request of this PSN, by hosts, direction and PSN.
    senders: HashMap<(FlowKey, Psn), Vec<usize>>,
    /// Number of responses of the first flow to requests of the second.
    votes: HashMap<(usize, usize), usize>,
}

impl Flows {
    /// Begins a new life of a queue pair at the first message of the connection manager with this
    /// queue pair and connection `id`.
    pub(super) fn connect(&mut self, end: End, id: u32) {
        let (life, of) = self.lives.entry(end).or_insert((0, id));
        if *of != id || *life == 0 {
            (*life, *of) = (*life + 1, id);
        }
    }

    /// Returns the current life of a queue pair.
    pub(super) fn life(&self, end: End) -> u32 {
        self.lives.get(&end).map_or(0, |(life, _)| *life)
    }

    /// Adds a packet; `place` is its index.
    pub(super) fn add(&mut self, place: usize, current: &PacketRecord, source: Option<Qpn>) {
        if matches!(current.header.kind, Kind::Ud { .. }) || current.header.bth.dest_qpn.get() <= 1 {
            return;
        }
        let (qpn, psn) = (current.header.bth.dest_qpn, current.header.bth.psn);
        let key = FlowKey { src: current.net.src, dst: current.net.dst, qpn, direction: current.direction };
        let life = self.life((current.net.dst, qpn));
        let service = current.header.opcode().service();
        let next = self.flows.len();
        let index = *self.by_key.entry((key, life)).or_insert(next);
        if index == next {
            self.flows.push(Flow { key, packets: Vec::new(), service, has_requests: false, life, source: None });
        }
        let flow = &mut self.flows[index];
        let is_request = current.header.kind.request().is_some();
        let is_first = !flow.has_requests && (flow.service == Service::Cnp || is_request);
        if is_first || (is_request && flow.service == Service::Uc) {
            flow.service = service;
        }
        flow.has_requests |= is_request;
        flow.packets.push(place);
        flow.source = flow.source.or(source);
        let any = Qpn::new(0);
        match current.header.kind {
            Kind::RcResponse(_) | Kind::XrcResponse(_) => {
                let opposite = FlowKey { qpn: any, ..key.back(any) };
                for sender in self.senders.get(&(opposite, psn)).into_iter().flatten().filter(|flow| **flow != index) {
                    *self.votes.entry((index, *sender)).or_default() += 1;
                }
            }
            Kind::RcRequest(_) | Kind::XrcRequest(..) => {
                let senders = self.senders.entry((FlowKey { qpn: any, ..key }, psn)).or_default();
                if !senders.contains(&index) {
                    senders.push(index);
                }
                if senders.len() > MAX_CANDIDATES {
                    senders.remove(0);
                }
            }
            _ => {}
        }
    }

    /// Returns pairs of flows that form a connection, the one with the earlier packet first, and
    /// single flows.
    pub(super) fn pairs(&self, handshakes: &Handshakes<'_>) -> Vec<(usize, Option<usize>)> {
        let mut partner = vec![None; self.flows.len()];
        let mut join = |one: usize, two: usize| {
            if one != two && partner[one].is_none() && partner[two].is_none() {
                (partner[one], partner[two]) = (Some(two), Some(one));
            }
        };
        for (index, flow) in self.flows.iter().enumerate() {
            if let Some(other) = self.by_handshake(index, handshakes).or_else(|| self.by_source(flow)) {
                join(index, other);
            }
        }
        let mut votes: HashMap<(usize, usize), usize> = HashMap::new();
        for ((answers, requests), count) in &self.votes {
            *votes.entry((*answers.min(requests), *answers.max(requests))).or_default() += count;
        }
        // Votes of the best and of the second best candidate of each flow.
        let mut best = vec![(0, 0); self.flows.len()];
        for ((one, two), count) in &votes {
            for flow in [*one, *two] {
                let (first, second) = best[flow];
                best[flow] = if *count > first { (*count, first) } else { (first, second.max(*count)) };
            }
        }
        let mut sorted: Vec<_> = votes.into_iter().collect();
        sorted.sort_by_key(|((one, two), count)| (std::cmp::Reverse(*count), *one, *two));
        for ((one, two), count) in sorted {
            // A candidate must be clearly better than any other.
            let is_clear = [one, two].iter().all(|flow| {
                let (first, second) = best[*flow];
                first == count && count > 2 * second
            });
            if is_clear {
                join(one, two);
            }
        }
        let pairs = partner.iter().enumerate().filter_map(|(index, other)| match other {
            Some(other) if *other < index => None,
            other => Some((index, *other)),
        });
        pairs.collect()
    }

    fn by_handshake(&self, index: usize, handshakes: &Handshakes<'_>) -> Option<usize> {
        let (handshake, is_to_passive) = self.handshake(index, handshakes)?;
        let (end, life) = if is_to_passive { handshake.active } else { handshake.passive };
        self.by_key.get(&(self.flows[index].key.back(end.1), life)).copied()
    }

    /// Returns the handshake of a flow, and true if the flow goes to the passive side.
    pub(super) fn handshake<'h>(&self, index: usize, handshakes: &Handshakes<'h>) -> Option<(&'h Handshake, bool)> {
        let Flow { key, life, .. } = &self.flows[index];
        handshakes.get(&((key.dst, key.qpn), *life, key.src)).copied()
    }

    fn by_source(&self, flow: &Flow) -> Option<usize> {
        let qpn = flow.source?;
        let key = flow.key.back(qpn);
        self.by_key.get(&(key, self.life((key.dst, qpn)))).copied()
    }
}
