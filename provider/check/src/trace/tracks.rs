//! What happens, put on tracks: one for each queue pair, one for what belongs to none.
//!
//! Touches nothing but lines.

use super::lines::{Args, Lines, Phase};
use super::packet::TracedPacket;
use super::pair::PairTrack;
use crate::event::{Event, Made};
use crate::explain;
use crate::id_map::IdMap;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{Side, TxReason};
use roxe_transport::qp::{AttrMask, QpState};
use roxe_transport::time::Instant;
use roxe_transport::wr::Cqe;
use roxe_wire::{Header, Kind, Qpn, Response, Syndrome};
use std::collections::VecDeque;
use std::fmt::Display;

/// A receive request that is posted.
type Posted = (u64, Instant);

/// What the tracks show now.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    /// The process and the track of what belongs to no queue pair have their names.
    is_named: bool,
    pairs: IdMap<ObjectId, PairTrack>,
    numbers: IdMap<Qpn, ObjectId>,
    /// By queue pair, and by shared receive queue; oldest first.
    receives: IdMap<ObjectId, VecDeque<Posted>>,
    /// Send requests so far.
    serial: u64,
}

impl Tracks {
    /// Something happened.
    pub(super) fn event(&mut self, lines: &mut Lines, event: &Event<'_>, at: Instant) {
        self.name(lines, at);
        match *event {
            Event::Created(id, Made::Qp(pair)) => {
                self.numbers.insert(pair.qpn, id);
                self.pairs.insert(id, PairTrack::new(lines, at, pair));
            }
            Event::Destroyed(id) => self.destroyed(lines, id, at),
            Event::Modified { qp, attr, mask } => {
                if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
                    self.forget_receives(lines, qp, at);
                }
                self.on(qp, |pair| pair.modified(lines, at, attr, mask));
            }
            Event::StateChanged { qp, state } => self.on(qp, |pair| pair.enter(lines, at, state, Args::default())),
            Event::PostedSend { qp, request } => {
                self.serial += 1;
                let serial = self.serial;
                self.on(qp, |pair| pair.posted(lines, at, request, serial));
            }
            Event::TakenBack { qp, count } => self.on(qp, |pair| pair.end_sends(lines, at, count, "withdrawn")),
            Event::PostedRecv { queue, request } => {
                self.receives.entry(queue).or_default().push_back((request.wr_id, at));
                self.count_receives(lines, queue, at);
            }
            Event::Completed { qp, side: Side::Send, cqe } => self.on(qp, |pair| pair.completed(lines, at, cqe)),
            Event::Completed { qp, side: Side::Recv, cqe } => self.received(lines, qp, cqe, at),
            Event::Retried { qp, counts } => self.on(qp, |pair| pair.retried(lines, at, counts)),
            Event::Raised { source, kind } => {
                let track = self.track_of(lines, source);
                lines.put(Phase::Instant, track, at, ("async event", &format_args!("{kind:?}")), &Args::default());
            }
            Event::Connection { id, kind, status } => {
                let args = Args::default().hex("id", id.number()).text("status", &status);
                lines.put(Phase::Instant, lines.pid(), at, ("cm event", &format!("{kind:?}")), &args);
            }
            Event::Announced { cq } => {
                let args = Args::default().number("cq", cq.number());
                lines.put(Phase::Instant, lines.pid(), at, ("completion event", &"completion event"), &args);
            }
            _ => self.mishap(lines, event, at),
        }
    }

    /// What goes wrong.
    fn mishap(&self, lines: &mut Lines, event: &Event<'_>, at: Instant) {
        let none = Args::default;
        let mut put = |object: ObjectId, name: &dyn Display, args: Args| {
            let track = self.track_of(lines, object);
            lines.put(Phase::Instant, track, at, ("problem", name), &args);
        };
        match *event {
            Event::PostRefused { queue, wr_id, error, .. } => {
                put(queue, &"post refused", none().hex("wr_id", wr_id).text("why", &error));
            }
            Event::ModifyRefused { qp, error, .. } => put(qp, &"modify refused", none().text("why", error)),
            Event::LocalFault { qp, error, .. } => {
                put(qp, &"local list unusable", none().text("why", &format_args!("{error:?}")))
            }
            Event::RemoteFault { qp, rkey, va, len, error, .. } => {
                let args = none().hex("rkey", rkey.0).hex("addr", va).number("length", len);
                put(qp, &"remote key refused", args.text("why", &format_args!("{error:?}")));
            }
            Event::Denied { qp, right } => {
                put(qp, &"operation not enabled", none().text("right", &format_args!("{right:?}")))
            }
            Event::WrongLength { qp, len, .. } => put(qp, &"wrong length", none().number("length", len as u64)),
            Event::TooManyReads { qp } => put(qp, &"too many READs and atomics", none()),
            Event::MessageWaits { qp } => put(qp, &"message waits for a receive", none()),
            Event::Dropped { qp, reason, packet } => {
                let args = packet.map_or_else(none, |packet| none().number("psn", packet.header.bth.psn.get()));
                put(qp, &format_args!("packet dropped: {}", reason.name()), args);
            }
            Event::Overrun { cq } => put(cq, &"completion queue overrun", none().number("cq", cq.number())),
            _ => {}
        }
    }

    /// A packet left or arrived.
    pub(super) fn packet(&mut self, lines: &mut Lines, packet: &TracedPacket, now: Instant) {
        self.name(lines, now);
        let TracedPacket { at, qpn, sent, peer, header, message, remark } = packet;
        let arrow = if sent.is_some() { "→" } else { "←" };
        let (category, again) = match sent.map(|note| note.reason) {
            None => ("received", ""),
            Some(TxReason::Retransmission | TxReason::Replay) => ("retransmission", " again"),
            Some(_) => ("sent", ""),
        };
        let what = match (message, header) {
            // "CM REQ", and behind that what the request says.
            (Some(message), _) => message.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" "),
            (None, Some((header, _))) => packet_name(header),
            (None, None) => "no packet".to_owned(),
        };
        let remarked = remark.as_ref().map(|remark| format!(" ({remark})")).unwrap_or_default();
        let mut args = Args::default();
        if let Some(message) = message {
            args = args.text("message", message);
        }
        if let Some((header, length)) = header {
            args = args.number("psn", header.bth.psn.get()).number("length", *length as u64);
        }
        if let Some(wr_id) = sent.and_then(|note| note.wr_id) {
            args = args.hex("wr_id", wr_id);
        }
        // Packets of queue pair 1, and of those that are gone, have no track of their own.
        let pair = self.numbers.get(qpn).copied();
        let track = if pair.is_some() { qpn.get() } else { lines.pid() };
        if pair.is_none() && *qpn != Qpn::GSI {
            args = args.text("qp", &format_args!("{:#08x}", qpn.get()));
        }
        let name = format_args!("{arrow} {what}{again}{remarked}");
        lines.put(Phase::Instant, track, *at, (category, &name), &args.text("peer", peer));
        if let (Some(note), Some((header, _)), Some(id)) = (sent, header, pair) {
            self.on(id, |pair| pair.sent(lines, now, *note, header));
        }
    }

    /// The program ends: what is open ends with it.
    pub(super) fn end(&mut self, lines: &mut Lines, at: Instant) {
        self.pairs.drain().for_each(|(_, pair)| pair.end(lines, at, "the program ended"));
        *self = Self { is_named: self.is_named, serial: self.serial, ..Self::default() };
    }

    fn name(&mut self, lines: &mut Lines, at: Instant) {
        if !std::mem::replace(&mut self.is_named, true) {
            let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
            let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
            let program = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let (program, track) = (String::from_utf8_lossy(program), lines.pid());
            for (what, name) in [("process_name", &*program), ("thread_name", "connections and events")] {
                lines.put(Phase::Name, track, at, ("", &what), &Args::default().text("name", &name));
            }
        }
    }

    fn on(&mut self, qp: ObjectId, what: impl FnOnce(&mut PairTrack)) {
        if let Some(pair) = self.pairs.get_mut(&qp) {
            what(pair);
        }
    }

    /// The track of a queue pair, or that of all else.
    fn track_of(&self, lines: &Lines, object: ObjectId) -> u32 {
        self.pairs.get(&object).map_or_else(|| lines.pid(), PairTrack::track)
    }

    fn destroyed(&mut self, lines: &mut Lines, id: ObjectId, at: Instant) {
        self.forget_receives(lines, id, at);
        if let Some(pair) = self.pairs.remove(&id) {
            self.numbers.remove(&pair.pair.qpn);
            pair.end(lines, at, "the queue pair was destroyed");
        }
    }

    /// A receive request ends.
    fn received(&mut self, lines: &mut Lines, qp: ObjectId, cqe: &Cqe, at: Instant) {
        let Some(pair) = self.pairs.get(&qp) else { return };
        let queue = pair.pair.srq.unwrap_or(qp);
        let posted = self.receives.get_mut(&queue).and_then(|posted| {
            let at = posted.iter().position(|(wr_id, _)| *wr_id == cqe.wr_id)?;
            posted.remove(at)
        });
        let mut args = Args::default()
            .hex("wr_id", cqe.wr_id)
            .number("length", cqe.byte_len)
            .text("status", &explain::name(cqe.status));
        if let Some((_, posted)) = posted {
            args = args.number("posted_us_ago", at.0.saturating_sub(posted.0) / 1000);
        }
        pair.note(lines, at, ("receive", &"receive completed"), &args);
        self.count_receives(lines, queue, at);
    }

    fn forget_receives(&mut self, lines: &mut Lines, queue: ObjectId, at: Instant) {
        if let Some(posted) = self.receives.get_mut(&queue) {
            posted.clear();
            self.count_receives(lines, queue, at);
        }
    }

    /// How many receives are posted now.
    fn count_receives(&self, lines: &mut Lines, queue: ObjectId, at: Instant) {
        let posted = self.receives.get(&queue).map_or(0, VecDeque::len) as u64;
        let args = Args::default().number("posted", posted);
        let (track, name) = match self.pairs.get(&queue) {
            Some(pair) => (pair.track(), format!("QP {:#08x} receives", pair.track())),
            None => (lines.pid(), format!("SRQ {} receives", queue.number())),
        };
        lines.put(Phase::Counter, track, at, ("receive", &name), &args);
    }
}

/// What is read first.
fn packet_name(header: &Header) -> String {
    match header.kind {
        Kind::RcResponse(Response::Ack(aeth)) | Kind::XrcResponse(Response::Ack(aeth)) => match aeth.syndrome {
            Syndrome::Ack { .. } => "ACK".to_owned(),
            Syndrome::RnrNak { .. } => "RNR NAK".to_owned(),
            Syndrome::Nak(code) => format!("NAK {code}"),
            Syndrome::Reserved(_) => aeth.syndrome.to_string(),
        },
        _ => header.opcode().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use roxe_transport::cx::PacketNote;
    use roxe_transport::qp::{QpAttr, RetryCounts, Service};
    use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
    use roxe_wire::{Bth, Gid, Psn, Request, SendTail};
    use serde_json::Value;

    /// Tracks with one queue pair, and what they wrote.
    struct Traced {
        qp: ObjectId,
        tracks: Tracks,
        lines: Lines,
        now: u64,
    }

    impl Traced {
        fn new() -> Self {
            let qp = ObjectId::next();
            let mut traced = Self { qp, tracks: Tracks::default(), lines: Lines::new(7), now: 0 };
            traced.tell(&Event::Created(qp, Made::Qp(testing::pair(0x11, Service::Rc))));
            traced
        }

        fn tell(&mut self, event: &Event<'_>) {
            self.now += 1000;
            self.tracks.event(&mut self.lines, event, Instant(self.now));
        }

        fn post(&mut self, wr_id: u64, flags: SendFlags) {
            let data = SendData::Sges(&[Sge { addr: 0, length: 100, lkey: roxe_wire::LKey(1) }]);
            let request = SendRequest { wr_id, op: SendOp::Send, flags, data, ud: None };
            self.tell(&Event::PostedSend { qp: self.qp, request: &request });
        }

        fn complete(&mut self, wr_id: u64, status: WcStatus) {
            let cqe = Cqe { wr_id, status, ..Cqe::default() };
            self.tell(&Event::Completed { qp: self.qp, side: Side::Send, cqe: &cqe });
        }

        fn send(&mut self, psn: u32, reason: TxReason) {
            self.now += 1000;
            let kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
            let header = Header { bth: Bth::new(Qpn::new(0x12), Psn::new(psn)), kind };
            let (at, qpn) = (Instant(self.now), Qpn::new(0x11));
            let sent = Some(PacketNote { qpn, wr_id: Some(5), reason });
            let (peer, header) = (Gid([0; 16]), Some((header, 100)));
            let packet = TracedPacket { at, qpn, sent, peer, header, message: None, remark: None };
            self.tracks.packet(&mut self.lines, &packet, at);
        }

        /// What was written since the last look: phase, name, and arguments.
        fn seen(&mut self) -> Vec<(String, String, Value)> {
            let mut text = String::new();
            self.lines.swap(&mut text);
            let line = |line: &str| {
                let event: Value = serde_json::from_str(line.trim_end_matches(',')).unwrap();
                let word = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
                (word("ph"), word("name"), event["args"].clone())
            };
            text.lines().map(line).collect()
        }

        /// The same without names of tracks and arguments.
        fn names(&mut self) -> Vec<String> {
            let seen = self.seen().into_iter().filter(|(phase, ..)| phase != "M");
            seen.map(|(phase, name, _)| format!("{phase} {name}").trim_end().to_owned()).collect()
        }
    }

    #[test]
    fn a_queue_pair_has_a_named_track_with_its_states() {
        let mut traced = Traced::new();
        let attr = QpAttr { state: QpState::Rtr, dest_qpn: Qpn::new(0x12), ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        traced.tell(&Event::Modified { qp: traced.qp, attr: &attr, mask });
        let seen = traced.seen();
        let names: Vec<_> =
            seen.iter().filter_map(|(phase, _, args)| args["name"].as_str().filter(|_| phase == "M")).collect();
        assert_eq!(names[1..], ["connections and events", "QP 0x000011 RC", "QP 0x000011 RC → 0x000012"]);
        assert_eq!(seen.last().unwrap().1, "RTR");
        assert_eq!(seen.last().unwrap().2["rq_psn"], 0);
        traced.tell(&Event::StateChanged { qp: traced.qp, state: QpState::Err });
        traced.tell(&Event::StateChanged { qp: traced.qp, state: QpState::Err });
        traced.tell(&Event::Destroyed(traced.qp));
        assert_eq!(traced.names(), ["E", "B ERR", "E"]);
    }

    #[test]
    fn a_completion_ends_its_request_and_the_unsignaled_ones_before_it() {
        let mut traced = Traced::new();
        traced.seen();
        traced.post(5, SendFlags::empty());
        traced.post(5, SendFlags::SIGNALED);
        traced.post(5, SendFlags::SIGNALED);
        (8..10).for_each(|psn| traced.send(psn, TxReason::First));
        traced.send(9, TxReason::Retransmission);
        traced.complete(5, WcStatus::Success);
        let ends: Vec<_> =
            traced.seen().into_iter().filter(|(phase, ..)| phase == "e").map(|(.., args)| args).collect();
        assert_eq!(ends.len(), 2);
        assert_eq!((&ends[0]["status"], &ends[0]["first_psn"]), (&"no completion asked for".into(), &8.into()));
        assert_eq!((&ends[1]["status"], &ends[1]["retransmitted"]), (&"success".into(), &1.into()));
        traced.tell(&Event::TakenBack { qp: traced.qp, count: 1 });
        assert_eq!(traced.names(), ["e SEND 0x000011"]);
    }

    #[test]
    fn a_wait_for_a_peer_that_is_not_ready_ends_with_the_next_packet_of_a_request() {
        let mut traced = Traced::new();
        traced.post(5, SendFlags::SIGNALED);
        traced.send(8, TxReason::First);
        traced.seen();
        let counts = RetryCounts { rnr_nak_retry_err: 1, ..RetryCounts::default() };
        traced.tell(&Event::Retried { qp: traced.qp, counts });
        traced.send(8, TxReason::Retransmission);
        assert_eq!(traced.names(), ["i RNR NAK received", "B RNR wait", "i → RC SEND_ONLY again", "E"]);
    }

    #[test]
    fn what_is_open_ends_with_the_program() {
        let mut traced = Traced::new();
        traced.post(5, SendFlags::SIGNALED);
        traced.seen();
        traced.tracks.end(&mut traced.lines, Instant(9));
        assert_eq!(traced.names(), ["E", "e SEND 0x000011"]);
    }
}
