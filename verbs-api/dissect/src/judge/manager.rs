//! Rules for messages of the connection manager, and the connection parameters that they carry.

use super::charge::{Card, Charge, Charges, Role, Rule};
use super::record::PacketRecord;
use crate::reader::Captured;
use roxe_wire::cm::{CommId, Mad, MadError, Message, Rep, Req, TransactionId};
use roxe_wire::{Gid, Psn, Qpn};
use std::collections::HashMap;

/// A queue pair of a host.
pub(super) type End = (Gid, Qpn);

/// Parameters that both ends of a connection agreed on.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    /// The ends, each with its life: the number of connections of the queue pair so far.
    pub active: (End, u32),
    pub passive: (End, u32),
    /// First PSNs of the requests of the active and of the passive side.
    pub starts: [Psn; 2],
    /// Maximum number of outstanding READs and atomics of both sides.
    pub depths: [u32; 2],
    /// Path MTU, in bytes.
    pub mtu: Option<u32>,
    /// Code of the ACK timeout.
    pub timeout: u8,
}

impl Handshake {
    /// Returns the handshakes by destination end, its life, and source host; with true if that end
    /// is the passive side. The newest handshake wins.
    pub(super) fn by_end(all: &[Self]) -> Handshakes<'_> {
        let to_passive = all.iter().map(|handshake| {
            let Self { active, passive, .. } = handshake;
            ((passive.0, passive.1, active.0.0), (handshake, true))
        });
        let to_active = all.iter().map(|handshake| {
            let Self { active, passive, .. } = handshake;
            ((active.0, active.1, passive.0.0), (handshake, false))
        });
        to_passive.chain(to_active).collect()
    }
}

/// The handshakes of connections by destination end, its life, and source host; with true if that
/// end is the passive side.
pub(super) type Handshakes<'h> = HashMap<(End, u32, Gid), (&'h Handshake, bool)>;

/// State of a connection, from its messages.
#[derive(Debug)]
struct CmConnection {
    /// Host of the passive side.
    peer: Gid,
    req: Req,
    tid: TransactionId,
    req_packet: usize,
    rep: Option<(Rep, usize)>,
    /// Packets with a DREQ from the active and from the passive side.
    dreq: [Option<(usize, TransactionId)>; 2],
}

/// The connection managers of a capture.
#[derive(Debug, Default)]
pub(super) struct Manager {
    /// Connections by host and id of the active side.
    connections: HashMap<(Gid, CommId), CmConnection>,
    /// Host and id of the active side by host and id of the passive side.
    active: HashMap<(Gid, CommId), (Gid, CommId)>,
    /// Lookups of datagram services by host and id: packet of the SIDR_REQ, and transaction.
    lookups: HashMap<(Gid, CommId), (usize, TransactionId)>,
    /// Replies that no captured request precedes, by host and id of the request: message,
    /// packet and sender.
    orphans: HashMap<(Gid, CommId), (&'static str, usize, Gid)>,
    pub charges: Charges,
    is_complete: bool,
}

impl Manager {
    pub(super) fn new(is_complete: bool) -> Self {
        Self { is_complete, ..Self::default() }
    }

    /// Judges a datagram to queue pair 1. Returns its message, if it has one.
    pub(super) fn judge_datagram(&mut self, current: &PacketRecord, captured: &Captured<'_>) -> Option<Mad> {
        let packet = captured.packet()?;
        let mad = match Mad::of_packet(&packet)? {
            Ok(mad) => mad,
            // Other classes of management datagrams do not belong to the connection manager.
            Err(MadError::Class | MadError::Method) => return None,
            Err(error) => {
                self.charge(Rule::CmMad, current, format!("this is not a message of the connection manager: {error}"));
                return None;
            }
        };
        // clause: CM-RESERVED
        if mad.to_bytes() != packet.payload {
            let text = format!("reserved bits of the {} are set", mad.message.name());
            self.charge(Rule::CmReserved, current, text).advice();
        }
        let (src, dst) = (current.net.src, current.net.dst);
        match &mad.message {
            Message::Req(req) => self.req(current, req, mad.tid),
            Message::Rep(rep) => self.rep(current, rep, mad.tid),
            Message::Rtu(rtu) => self.rtu(current, (src, rtu.local_comm_id), rtu.remote_comm_id),
            Message::Dreq(dreq) => {
                self.dreq(current, (dreq.local_comm_id, dreq.remote_comm_id), dreq.remote_qpn, mad.tid)
            }
            Message::Drep(drep) => self.drep(current, (drep.local_comm_id, drep.remote_comm_id), mad.tid),
            Message::SidrReq(req) => {
                self.charge_orphan(current, (src, req.request_id), "SIDR_REP");
                self.lookups.insert((src, req.request_id), (current.index, mad.tid));
            }
            Message::SidrRep(rep) => match self.lookups.get(&(dst, rep.request_id)).copied() {
                None => _ = self.orphans.entry((dst, rep.request_id)).or_insert(("SIDR_REP", current.index, src)),
                Some((packet, tid)) => self.transaction(current, "SIDR_REP", tid, mad.tid, packet),
            },
            Message::Mra(_) | Message::Rej(_) | Message::Lap(_) | Message::Apr(_) => {}
        }
        Some(mad)
    }

    fn charge(&mut self, rule: Rule, current: &PacketRecord, text: impl Into<String>) -> &mut Charge {
        let card = Card { address: current.net.src, qpn: None };
        self.charges.add(rule, card, Role::ConnectionManager, current.index, text)
    }

    /// Charges a reply that was sent before its request.
    // clause: CM-ESTABLISH
    fn charge_orphan(&mut self, current: &PacketRecord, id: (Gid, CommId), answer: &str) {
        let Some((name, packet, sender)) = self.orphans.remove(&id) else { return };
        if name == answer {
            let card = Card { address: sender, qpn: None };
            let text = format!("the {name} is sent before its request");
            let charge = self.charges.add(Rule::CmOrder, card, Role::ConnectionManager, packet, text);
            charge.with(current.index).if_whole();
        }
    }

    fn req(&mut self, current: &PacketRecord, req: &Req, tid: TransactionId) {
        let (src, dst) = (current.net.src, current.net.dst);
        // clause: CM-ID
        if req.local_comm_id.0 == 0 {
            self.charge(Rule::CmId, current, "the local communication ID in the REQ is 0");
        }
        // clause: CM-REQ-CHECKS
        if (req.primary.local_gid, req.primary.remote_gid) != (src, dst) {
            self.charge(Rule::CmAddress, current, "the addresses in the REQ are not those of its packet");
        }
        if req.path_mtu.mtu().is_none() {
            let text = format!("the path MTU in the REQ has the code {}", req.path_mtu.get());
            self.charge(Rule::CmAddress, current, text);
        }
        let key = (src, req.local_comm_id);
        self.charge_orphan(current, key, "REP");
        if let Some(known) = self.connections.get(&key) {
            // clause: CM-REQ-DUPLICATE
            let packet = known.req_packet;
            if known.req == *req {
                return;
            }
            if known.req.local_qpn == req.local_qpn {
                self.charge(Rule::CmRepeat, current, "a retransmitted REQ differs from the first").with(packet);
                return;
            }
        }
        let (rep, dreq, req_packet) = (None, [None; 2], current.index);
        self.connections.insert(key, CmConnection { peer: dst, req: req.clone(), tid, req_packet, rep, dreq });
    }

    fn rep(&mut self, current: &PacketRecord, rep: &Rep, tid: TransactionId) {
        let (src, dst) = (current.net.src, current.net.dst);
        if rep.local_comm_id.0 == 0 {
            self.charge(Rule::CmId, current, "the local communication ID in the REP is 0");
        }
        let key = (dst, rep.remote_comm_id);
        let Some(known) = self.connections.get_mut(&key) else {
            self.orphans.entry(key).or_insert(("REP", current.index, src));
            return;
        };
        let (packet, req_dst, req_tid) = (known.req_packet, known.peer, known.tid);
        let first = known.rep.get_or_insert_with(|| (rep.clone(), current.index)).clone();
        self.active.insert((src, rep.local_comm_id), key);
        // clause: CM-MATCH
        if req_dst != src {
            let text = format!("the REQ was sent to {}, but the REP is from another host", req_dst.to_ip());
            self.charge(Rule::CmMatch, current, text).with(packet);
        }
        if first.0 != *rep {
            self.charge(Rule::CmRepeat, current, "a retransmitted REP differs from the first").with(first.1);
        }
        self.transaction(current, "REP", req_tid, tid, packet);
        self.charge_orphan(current, key, "RTU");
    }

    // clause: CM-MATCH
    fn transaction(
        &mut self,
        current: &PacketRecord,
        name: &str,
        request_tid: TransactionId,
        tid: TransactionId,
        packet: usize,
    ) {
        if request_tid != tid {
            let text = format!("the {name} has another transaction ID than its request");
            self.charge(Rule::CmMatch, current, text).with(packet);
        }
    }

    /// Judges an RTU from `active`.
    fn rtu(&mut self, current: &PacketRecord, active: (Gid, CommId), remote: CommId) {
        let Some(known) = self.connections.get(&active) else { return };
        match &known.rep {
            None => _ = self.orphans.entry(active).or_insert(("RTU", current.index, active.0)),
            Some((rep, packet)) if rep.local_comm_id != remote => {
                let packet = *packet;
                self.charge(Rule::CmMatch, current, "the RTU carries another communication ID than the REP")
                    .with(packet);
            }
            Some(_) => {}
        }
    }

    /// Returns the connection with the sender's id `local`, and 0 if the sender is active, else 1.
    fn connection(&mut self, src: Gid, local: CommId) -> Option<(&mut CmConnection, usize)> {
        let key = (src, local);
        let (key, side) = match self.active.get(&key) {
            Some(active) => (*active, 1),
            None => (key, 0),
        };
        self.connections.get_mut(&key).map(|known| (known, side))
    }

    // clause: CM-DREQ
    fn dreq(&mut self, current: &PacketRecord, (local, remote): (CommId, CommId), qpn: Qpn, tid: TransactionId) {
        let Some((known, side)) = self.connection(current.net.src, local) else { return };
        known.dreq[side] = Some((current.index, tid));
        let Some((rep, packet)) = known.rep.clone() else { return };
        let xrc_target = rep.local_eecn;
        let expected = if side == 0 { rep.local_qpn } else { known.req.local_qpn };
        let id = if side == 0 { rep.local_comm_id } else { known.req.local_comm_id };
        if remote != id {
            let text = "the DREQ does not carry the communication ID of its receiver";
            self.charge(Rule::CmMatch, current, text).with(packet);
        } else if qpn != expected && (side == 1 || qpn != xrc_target) {
            let text = format!("the DREQ carries queue pair {qpn}, but its receiver has {expected}");
            self.charge(Rule::CmQueuePair, current, text).with(packet);
        }
    }

    fn drep(&mut self, current: &PacketRecord, (local, remote): (CommId, CommId), tid: TransactionId) {
        let is_complete = self.is_complete;
        // The sender of the DREQ knows the connection by `remote`.
        let Some((known, side)) = self.connection(current.net.dst, remote) else { return };
        let own = match side {
            0 => known.rep.as_ref().map(|(rep, _)| rep.local_comm_id),
            _ => Some(known.req.local_comm_id),
        };
        match known.dreq[side] {
            None if is_complete => {
                self.charge(Rule::CmOrder, current, "a DREP without a DREQ");
            }
            None => {}
            Some((packet, dreq_tid)) => {
                self.transaction(current, "DREP", dreq_tid, tid, packet);
                if own.is_some_and(|own| own != local) {
                    let text = "the DREP does not carry the communication ID of its sender";
                    self.charge(Rule::CmMatch, current, text).with(packet);
                }
            }
        }
    }

    /// Returns the handshake that a REP completes; `None` for a retransmitted REP.
    pub(super) fn handshake(&self, current: &PacketRecord, rep: &Rep, lives: impl Fn(End) -> u32) -> Option<Handshake> {
        let (src, dst) = (current.net.src, current.net.dst);
        let CmConnection { req, rep: first, .. } = self.connections.get(&(dst, rep.remote_comm_id))?;
        first.as_ref().filter(|(_, packet)| *packet == current.index)?;
        let passive = if rep.local_qpn.get() == 0 { rep.local_eecn } else { rep.local_qpn };
        let (active, passive) = ((dst, req.local_qpn), (src, passive));
        Some(Handshake {
            active: (active, lives(active)),
            passive: (passive, lives(passive)),
            starts: [rep.starting_psn, req.starting_psn],
            depths: [rep.responder_resources.into(), rep.initiator_depth.into()],
            mtu: req.path_mtu.mtu().map(|mtu| mtu.bytes()),
            timeout: req.primary.local_ack_timeout.get(),
        })
    }
}
