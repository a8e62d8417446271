//! Attributes that both ends of a connection have to agree on.
//!
//! Programs set attributes in any order and reconnect, so a rule reports only after traffic has
//! shown a mismatch. Between two processes only packets show it; two ends in this process are
//! compared directly.

use crate::event::{DroppedPacket, Event};
use crate::id_map::{IdMap, IdSet};
use crate::program::{Attributes, Observer, Program};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, DropReason, QpState};
use roxe_transport::wr::WcStatus;
use roxe_wire::{Gid, Kind, Psn, Request};

/// A gap of fewer packets than this can be loss; a larger one cannot.
const MAX_LOSS_GAP: i32 = 1 << 10;

/// `psn-mismatch`, `mtu-mismatch`, `dest-mismatch`, `qkey-mismatch`, `depth-mismatch`,
/// `gid-mismatch`.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// The lowest PSN received while the first request was expected, and the number of packets with
    /// that PSN.
    first: IdMap<ObjectId, (Psn, u32)>,
    /// Queue pairs that were reset; packets of the previous connection may still arrive.
    reused: IdSet<ObjectId>,
    reported: IdSet<(ObjectId, Rule)>,
}

/// A local end of a connection.
#[derive(Clone, Copy)]
struct End<'a> {
    qp: ObjectId,
    own: &'a Attributes,
    program: &'a Program,
}

impl Observer for Connections {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        let found = match *event {
            Event::Dropped { qp, reason, packet: Some(packet) } => {
                let Some(own) = program.attributes(qp) else { return };
                self.on_dropped(End { qp, own, program }, reason, &packet)
            }
            Event::WrongLength { qp, request, len } => {
                program.attributes(qp).and_then(|own| Some((qp, mtu(End { qp, own, program }, request, len)?)))
            }
            Event::TooManyReads { qp } => program.attributes(qp).map(|own| (qp, depth(End { qp, own, program }))),
            Event::Retried { qp, counts } if counts.local_ack_timeout_err > 0 => dest(qp, program),
            Event::Completed { qp, side: Side::Send, cqe } if cqe.status == WcStatus::BadRespErr => {
                mtu_of_read(qp, program)
            }
            Event::FamiliesDiffer { sgid, sgid_index, dgid } => {
                let (sgid, dgid) = (sgid.to_ip(), dgid.to_ip());
                let sentence = format!(
                    "GID index {sgid_index} is {sgid}, but the destination {dgid} is of the other address family."
                );
                let report = Report::new(Rule::GidMismatch, sentence).at("called at", stack);
                reports.push(report.advice(GID_ADVICE));
                None
            }
            Event::Modified { qp, mask, .. } if mask.contains(AttrMask::RQ_PSN) => {
                self.first.remove(&qp);
                None
            }
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.reused.insert(qp);
                None
            }
            Event::Destroyed(qp) => {
                self.first.remove(&qp);
                self.reused.remove(&qp);
                self.reported.retain(|(reported, _)| *reported != qp);
                None
            }
            _ => None,
        };
        reports.extend(found.filter(|(qp, report)| self.reported.insert((*qp, report.rule))).map(|(_, report)| report));
    }
}

const GID_ADVICE: &str = "Set ah_attr.grh.sgid_index to the index of the address that the peer uses as dgid. Find it with \
     ibv_query_gid_ex; do not use a fixed number.";

type QpReport = Option<(ObjectId, Report)>;

impl Connections {
    fn on_dropped(&mut self, end: End<'_>, reason: DropReason, packet: &DroppedPacket) -> QpReport {
        let report = match reason {
            DropReason::OutOfSequence | DropReason::DuplicateRequest => self.psn(end, packet),
            DropReason::InvalidRequest if end.is_new(packet) && continues_message(&packet.header.kind) => {
                self.psn(end, packet)
            }
            DropReason::Address => gid(end, packet),
            DropReason::Qkey => qkey(end, packet),
            _ => None,
        };
        report.map(|report| (end.qp, report))
    }

    /// Reports a peer that starts with another PSN. A lost packet is retransmitted; a missing start
    /// is not.
    fn psn(&mut self, end: End<'_>, packet: &DroppedPacket) -> Option<Report> {
        let End { qp, own, program } = end;
        let (psn, expected) = (packet.header.bth.psn, packet.expected);
        if !matches!(packet.header.kind, Kind::RcRequest(_)) || !end.is_new(packet) {
            return None;
        }
        let peer = peer_of(end).filter(|(_, peer)| peer.has(AttrMask::SQ_PSN));
        if let Some((id, peer)) = peer {
            let start = peer.values.sq_psn;
            return (start != expected).then(|| {
                let sentence =
                    format!("rq_psn is {expected}, but sq_psn of the peer is {start}: every request is dropped.");
                let report = Report::new(Rule::PsnMismatch, sentence).labelled("queue pair", program.name(qp));
                let report = report.labelled("peer", program.name(id)).at("rq_psn set at", &own.call(AttrMask::RQ_PSN));
                report.at("sq_psn set at", &peer.call(AttrMask::SQ_PSN)).advice(PSN_ADVICE)
            });
        }
        let (lowest, times) = self.first.entry(qp).or_insert((psn, 0));
        if psn.is_before(*lowest) {
            (*lowest, *times) = (psn, 0);
        }
        *times += u32::from(psn == *lowest);
        let min_times = match psn.distance(expected) {
            1..MAX_LOSS_GAP => 4,
            // Neither a PSN before the first one nor the middle of a message can follow from loss.
            ..=0 if !self.reused.contains(&qp) => 1,
            _ => 3,
        };
        (psn == *lowest && *times >= min_times).then(|| {
            let sentence = format!(
                "rq_psn is {expected}, but the peer began with PSN {psn}: packets before rq_psn are \
                 dropped as duplicates, packets after it as out of sequence."
            );
            let report = Report::new(Rule::PsnMismatch, sentence).labelled("queue pair", program.name(qp));
            with_peer(report, end).at("rq_psn set at", &own.call(AttrMask::RQ_PSN)).advice(PSN_ADVICE)
        })
    }
}

const PSN_ADVICE: &str = "Set rq_psn of each end to the sq_psn of the other.";

impl End<'_> {
    /// Returns true if the packet is a request and none of the peer was accepted yet.
    fn is_new(&self, packet: &DroppedPacket) -> bool {
        let is_request = matches!(packet.header.kind, Kind::RcRequest(_) | Kind::XrcRequest(..) | Kind::UcRequest(_));
        self.own.has(AttrMask::RQ_PSN) && self.own.values.rq_psn == packet.expected && is_request
    }
}

/// Returns true for the middle or the last packet of a message.
const fn continues_message(kind: &Kind) -> bool {
    use Request::{SendLast, SendMiddle, WriteLast, WriteMiddle};
    matches!(kind, Kind::RcRequest(SendMiddle | SendLast(_) | WriteMiddle | WriteLast(_)))
}

/// Returns the peer, if it is in this process and each end is the other's destination.
fn peer_of<'w>(end: End<'w>) -> Option<(ObjectId, &'w Attributes)> {
    let End { qp, own, program } = end;
    let number = program.qp(qp)?.qpn;
    destination(end).filter(|(_, peer)| {
        own.has(AttrMask::AV) && peer.values.dest_qpn == number && peer.values.av.dgid == own.values.av.sgid
    })
}

/// Returns the connected queue pair of this process that is the destination of `end`.
fn destination<'w>(end: End<'w>) -> Option<(ObjectId, &'w Attributes)> {
    let End { own, program, .. } = end;
    let is_destination = |(id, peer): &(ObjectId, &Attributes)| {
        is_connected(peer)
            && peer.values.av.sgid == own.values.av.dgid
            && program.qp(*id).is_some_and(|pair| pair.qpn == own.values.dest_qpn)
    };
    if own.has(AttrMask::DEST_QPN) { program.all_attributes().find(is_destination) } else { None }
}

fn is_connected(attributes: &Attributes) -> bool {
    attributes.has(AttrMask::DEST_QPN) && matches!(attributes.state, QpState::Rtr | QpState::Rts)
}

/// Reports a packet whose length does not fit the path MTU.
fn mtu(end: End<'_>, request: &Request, len: usize) -> Option<Report> {
    use Request::{SendFirst, SendLast, SendMiddle, SendOnly, WriteFirst, WriteLast, WriteMiddle, WriteOnly};
    let End { qp, own, program } = end;
    let mtu = own.values.path_mtu.bytes() as usize;
    let is_wrong = match request {
        SendFirst | SendMiddle | WriteFirst(_) | WriteMiddle => len != mtu,
        SendOnly(_) | SendLast(_) | WriteOnly(..) | WriteLast(_) => len > mtu,
        _ => false,
    };
    (is_wrong && own.has(AttrMask::PATH_MTU)).then(|| {
        let what = if len > mtu { "a packet" } else { "a FIRST or MIDDLE packet" };
        let sentence = format!("path_mtu is {mtu} bytes, but the peer sent {what} of {len} bytes.");
        let report = Report::new(Rule::MtuMismatch, sentence).labelled("queue pair", program.name(qp));
        with_peer(report, end).at("set at", &own.call(AttrMask::PATH_MTU)).advice(MTU_ADVICE)
    })
}

const MTU_ADVICE: &str = "Set the same path_mtu at both ends: the smaller active_mtu of their ports.";

/// Adds the peer, as far as it is known.
fn with_peer(report: Report, end: End<'_>) -> Report {
    match peer_of(end) {
        Some((id, _)) => report.labelled("peer", end.program.name(id)),
        None => {
            let (number, address) = (end.own.values.dest_qpn.get(), end.own.values.av.dgid.to_ip());
            report.labelled("peer", format!("queue pair {number:#08x} at {address}"))
        }
    }
}

/// Reports a READ response of another path MTU.
fn mtu_of_read(qp: ObjectId, program: &Program) -> QpReport {
    let own = program.attributes(qp)?;
    let (id, peer) = peer_of(End { qp, own, program })?;
    let (ours, theirs) = (own.values.path_mtu.bytes(), peer.values.path_mtu.bytes());
    (ours != theirs).then(|| {
        let sentence =
            format!("path_mtu is {ours} bytes, but that of the peer, which responded to a READ, is {theirs} bytes.");
        let report = Report::new(Rule::MtuMismatch, sentence).labelled("queue pair", program.name(qp));
        let report = report.labelled("peer", program.name(id)).at("set at", &own.call(AttrMask::PATH_MTU));
        (qp, report.at("peer set at", &peer.call(AttrMask::PATH_MTU)).advice(MTU_ADVICE))
    })
}

/// Reports more outstanding READs and atomics than max_dest_rd_atomic.
fn depth(end: End<'_>) -> Report {
    let End { qp, own, program } = end;
    let max = own.values.max_dest_rd_atomic;
    let peer = peer_of(end).filter(|(_, peer)| peer.has(AttrMask::MAX_QP_RD_ATOMIC));
    let theirs = peer.map(|(_, peer)| format!(", whose max_rd_atomic is {},", peer.values.max_rd_atomic));
    let theirs = theirs.unwrap_or_default();
    let sentence =
        format!("The peer{theirs} had more READs or atomics outstanding than max_dest_rd_atomic, which is {max}.");
    let report = Report::new(Rule::DepthMismatch, sentence).labelled("queue pair", program.name(qp));
    let report = with_peer(report, end).at("set at", &own.call(AttrMask::MAX_DEST_RD_ATOMIC));
    let peers = peer.map(|(_, peer)| peer.call(AttrMask::MAX_QP_RD_ATOMIC));
    report.at("peer set at", &peers).advice("Set max_rd_atomic of each end to at most max_dest_rd_atomic of the other.")
}

/// Reports a first request that has other addresses than the connection.
fn gid(end: End<'_>, packet: &DroppedPacket) -> Option<Report> {
    let End { qp, own, program } = end;
    if !end.is_new(packet) || packet.header.bth.psn != packet.expected {
        return None;
    }
    let av = &own.values.av;
    let differs = |what: &str, actual: Gid, expected: Gid| {
        (actual != expected).then(|| format!("{what} {} instead of {}", actual.to_ip(), expected.to_ip()))
    };
    let differences = [differs("from", packet.src, av.dgid), differs("to", packet.dst, av.sgid)];
    let differences: Vec<_> = differences.into_iter().flatten().collect();
    let sentence = format!("The first packet of the peer was dropped: it arrived {}.", differences.join(" and "));
    let report = Report::new(Rule::GidMismatch, sentence).labelled("queue pair", program.name(qp));
    Some(report.at("set at", &own.call(AttrMask::AV)).advice(GID_ADVICE))
}

fn qkey(end: End<'_>, packet: &DroppedPacket) -> Option<Report> {
    let End { qp, own, program } = end;
    let Kind::Ud { deth, .. } = packet.header.kind else { return None };
    let (actual, ours) = (deth.qkey.0, own.values.qkey.0);
    let sentence = format!("A datagram with Q_Key {actual:#x} was dropped: the queue pair has Q_Key {ours:#x}.");
    let report = Report::new(Rule::QkeyMismatch, sentence).labelled("queue pair", program.name(qp));
    let sender = format!("queue pair {:#08x} at {}", deth.src_qpn.get(), packet.src.to_ip());
    let advice = "Set remote_qkey of the send to the receiver's qkey (below 0x80000000), or set the same qkey at both \
                  ends.";
    Some(report.labelled("sender", sender).at("set at", &own.call(AttrMask::QKEY)).advice(advice))
}

/// Reports a timeout between two queue pairs of this process that are not each other's destination.
fn dest(qp: ObjectId, program: &Program) -> QpReport {
    let own = program.attributes(qp)?;
    let number = program.qp(qp)?.qpn;
    let end = End { qp, own, program };
    let names_qp = |(_, peer): &(ObjectId, &Attributes)| {
        is_connected(peer) && peer.values.dest_qpn == number && peer.values.av.dgid == own.values.av.sgid
    };
    let (id, peer) = match destination(end) {
        Some((_, peer)) if peer.values.dest_qpn == number => return None,
        Some(found) => found,
        None if is_connected(own) => program.all_attributes().find(names_qp)?,
        None => return None,
    };
    let (ours, theirs) = (own.values.dest_qpn.get(), peer.values.dest_qpn.get());
    let sentence = format!(
        "A request timed out: dest_qp_num of queue pair {:#08x} is {ours:#08x}, and that of queue pair {:#08x} is \
         {theirs:#08x}.",
        number.get(),
        program.qp(id)?.qpn.get()
    );
    let report = Report::new(Rule::DestMismatch, sentence).labelled("queue pair", program.name(qp));
    let report = report.labelled("other one", program.name(id)).at("set at", &own.call(AttrMask::DEST_QPN));
    let report = report.at("other set at", &peer.call(AttrMask::DEST_QPN));
    Some((qp, report.advice("Set dest_qp_num of each end to qp_num of the other.")))
}

#[cfg(test)]
mod tests;
