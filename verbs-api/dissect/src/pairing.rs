//! Which flow is the way back of which. Touches flows.

use crate::flow::{Flow, FlowKey};
use crate::reader::Captured;
use roxe_wire::capture::Direction;
use roxe_wire::cm::{CommId, Mad, Message};
use roxe_wire::{Gid, Kind, Packet, Psn, Qpn};
use std::collections::HashMap;

/// How often the requests of a flow of responses are looked for.
const ATTEMPTS: u32 = 64;
/// How many flows are looked at in all, some tenths of a second, before each search is for the
/// newest flows only: the time for a capture grows with its length, whatever is in it.
const LOOKS: usize = 1 << 26;
const NEWEST: usize = 1024;

/// What is known of who talks to whom.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// Requests for a connection, by host and id: the queue pair that wants one.
    wanted: HashMap<(Gid, CommId), Qpn>,
    /// Connections: the peer of a queue pair.
    connected: HashMap<(Gid, Qpn), Qpn>,
    /// The requests that a flow of responses answers, and how often they were looked for in vain.
    answered: HashMap<usize, Result<usize, u32>>,
    /// How many flows were looked at.
    looks: usize,
}

impl Pairing {
    /// What this packet tells of where it comes from.
    pub(crate) fn learn(&mut self, flows: &mut [Flow], flow: usize, captured: &Captured<'_>, packet: &Packet<'_>) {
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
        let of_remark = if captured.direction == Some(Direction::Outbound) { sender(captured.remark) } else { None };
        let of_connection = self.connected.get(&(key.dst, key.qpn)).copied();
        let is_datagram = of_datagram.is_some() && of_datagram != Some(Qpn::GSI);
        // Several queue pairs may send datagrams to one.
        if !is_datagram {
            flows[flow].source = of_datagram.or(of_remark).or(of_connection);
        }
    }

    fn learn_connection(&mut self, captured: &Captured<'_>, message: &Message) {
        let (src, dst) = (captured.net.src, captured.net.dst);
        match message {
            Message::Req(req) => _ = self.wanted.insert((src, req.local_comm_id), req.local_qpn),
            Message::Rep(rep) => {
                if let Some(active) = self.wanted.get(&(dst, rep.remote_comm_id)).copied() {
                    self.connected.insert((src, rep.local_qpn), active);
                    self.connected.insert((dst, active), rep.local_qpn);
                }
            }
            _ => {}
        }
    }

    /// The flow of the requests that the responses of `flow` answer, one of which has this PSN.
    pub(crate) fn requests_of(
        &mut self,
        flows: &mut [Flow],
        by_key: &HashMap<FlowKey, usize>,
        flow: usize,
        psn: Psn,
    ) -> Option<usize> {
        let attempts = match self.answered.get(&flow) {
            Some(Ok(found)) => return Some(*found),
            Some(Err(ATTEMPTS)) => return None,
            Some(Err(attempts)) => attempts + 1,
            None => 1,
        };
        let Flow { key, source, .. } = flows[flow];
        let known = source.and_then(|qpn| by_key.get(&key.back(qpn)).copied());
        let found = known.or_else(|| {
            let is_asked = |other: &Flow| {
                key.back(other.key.qpn) == other.key
                    && source.is_none_or(|qpn| qpn == other.key.qpn)
                    && other.source.is_none_or(|qpn| qpn == key.qpn)
                    && other.requests.as_ref().is_some_and(|requests| requests.covers(psn))
            };
            let first = if self.looks < LOOKS { 0 } else { flows.len().saturating_sub(NEWEST) };
            self.looks = self.looks.saturating_add(flows.len() - first);
            flows.get(first..)?.iter().rposition(is_asked).map(|at| first + at)
        });
        self.answered.insert(flow, found.ok_or(attempts));
        if let Some(found) = found {
            flows[flow].source = Some(flows[found].key.qpn);
            flows[found].source = Some(key.qpn);
        }
        found
    }
}

/// The queue pair that sent a packet, as the process that sent it has noted.
fn sender(remark: &str) -> Option<Qpn> {
    let number = remark.strip_prefix("qp 0x")?.split(' ').next()?;
    u32::from_str_radix(number, 16).ok().map(Qpn::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_short_once_many_flows_were_looked_at() {
        let key = |qpn| FlowKey { src: Gid::default(), dst: Gid::default(), qpn: Qpn::new(qpn), direction: None };
        let mut flows: Vec<_> = (0..5000).map(|qpn| Flow::new(key(qpn))).collect();
        let mut pairing = Pairing::default();
        let mut looked_at = |pairing: &mut Pairing, flow| {
            let before = pairing.looks;
            assert_eq!(pairing.requests_of(&mut flows, &HashMap::new(), flow, Psn::new(0)), None);
            pairing.looks - before
        };
        assert_eq!(looked_at(&mut pairing, 0), 5000);
        pairing.looks = LOOKS;
        assert_eq!(looked_at(&mut pairing, 1), NEWEST);
    }
}
