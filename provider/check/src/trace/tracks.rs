//! Puts events on tracks: one for each queue pair, with its states, waits and send requests, and
//! one for all other events.
//!
//! States of a queue pair are slices of its track, with RNR waits nested inside. Send requests
//! overlap, so they are asynchronous slices. A line is one event of Chrome's Trace Event format;
//! times are microseconds of CLOCK_MONOTONIC, which all processes of a host share.

use crate::event::{Event, Object, QpInfo};
use crate::explain;
use crate::id_map::IdMap;
use crate::program::{length, operation};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{PacketNote, Side, TxReason};
use roxe_transport::qp::{AttrMask, QpAttr, QpState, RetryCounts};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, SendData, SendFlags, SendRequest, WcStatus};
use roxe_wire::opcode::Position;
use roxe_wire::{Gid, Header, Kind, Psn, Qpn, Response, Syndrome};
use std::collections::VecDeque;
use std::fmt::{self, Display, Write};

/// A packet that an engine sent or received.
#[derive(Clone, Debug)]
pub struct TracedPacket {
    /// Time of the packet.
    pub at: Instant,
    /// The queue pair of this process.
    pub qpn: Qpn,
    /// Reason of the transmission; `None` for an arrival.
    pub sent: Option<PacketNote>,
    /// The address of the other end.
    pub peer: Gid,
    /// Headers and payload length; `None` if it cannot be parsed.
    pub header: Option<(Header, usize)>,
    /// The message of the connection manager in it.
    pub message: Option<String>,
    /// The effect of a fault rule on the packet, or the error in it.
    pub remark: Option<String>,
}

/// A posted receive: wr_id and time.
type Posted = (u64, Instant);

#[derive(Debug, Default)]
pub(super) struct Tracks {
    /// True once the process and its own track have names.
    is_named: bool,
    pairs: IdMap<ObjectId, PairTrack>,
    numbers: IdMap<Qpn, ObjectId>,
    /// Posted receives by queue pair, and by shared receive queue; oldest first.
    receives: IdMap<ObjectId, VecDeque<Posted>>,
    serial: u64,
}

impl Tracks {
    pub(super) fn event(&mut self, lines: &mut Lines, event: &Event<'_>, at: Instant) {
        self.name(lines, at);
        match *event {
            Event::Created(id, Object::Qp(pair)) => {
                self.numbers.insert(pair.qpn, id);
                self.pairs.insert(id, PairTrack::new(lines, at, pair));
            }
            Event::Destroyed(id) => self.on_destroyed(lines, id, at),
            Event::Modified { qp, attr, mask } => {
                if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
                    self.forget_receives(lines, qp, at);
                }
                self.on(qp, |pair| pair.on_modified(lines, at, attr, mask));
            }
            Event::StateChanged { qp, state } => self.on(qp, |pair| pair.enter(lines, at, state, Args::default())),
            Event::PostedSend { qp, request } => {
                self.serial += 1;
                let serial = self.serial;
                self.on(qp, |pair| pair.on_posted(lines, at, request, serial));
            }
            Event::SendsWithdrawn { qp, count } => self.on(qp, |pair| pair.end_sends(lines, at, count, "withdrawn")),
            Event::PostedRecv { queue, request } => {
                self.receives.entry(queue).or_default().push_back((request.wr_id, at));
                self.count_receives(lines, queue, at);
            }
            Event::Completed { qp, side: Side::Send, cqe } => self.on(qp, |pair| pair.on_completed(lines, at, cqe)),
            Event::Completed { qp, side: Side::Recv, cqe } => self.on_received(lines, qp, cqe, at),
            Event::Retried { qp, counts } => self.on(qp, |pair| pair.on_retried(lines, at, counts)),
            Event::AsyncEventQueued { source, kind } => {
                let track = self.track_of(lines, source);
                lines.put(Phase::Instant, track, at, ("async event", &format_args!("{kind:?}")), &Args::default());
            }
            Event::CmEventQueued { id, kind, status } => {
                let args = Args::default().hex("id", id.number()).text("status", &status);
                lines.put(Phase::Instant, lines.pid(), at, ("cm event", &format!("{kind:?}")), &args);
            }
            Event::CqEventQueued { cq } => {
                let args = Args::default().number("cq", cq.number());
                lines.put(Phase::Instant, lines.pid(), at, ("completion event", &"completion event"), &args);
            }
            _ => self.problem(lines, event, at),
        }
    }

    fn problem(&self, lines: &mut Lines, event: &Event<'_>, at: Instant) {
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
            Event::MissingRight { qp, right } => {
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
            // The first two words, as in "CM REQ".
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
        // Packets of queue pair 1 and of destroyed queue pairs have no track of their own.
        let pair = self.numbers.get(qpn).copied();
        let track = if pair.is_some() { qpn.get() } else { lines.pid() };
        if pair.is_none() && *qpn != Qpn::GSI {
            args = args.text("qp", &format_args!("{:#08x}", qpn.get()));
        }
        let name = format_args!("{arrow} {what}{again}{remarked}");
        lines.put(Phase::Instant, track, *at, (category, &name), &args.text("peer", peer));
        if let (Some(note), Some((header, _)), Some(id)) = (sent, header, pair) {
            self.on(id, |pair| pair.on_sent(lines, now, *note, header));
        }
    }

    /// Closes all open slices at the end of the program.
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

    fn on(&mut self, qp: ObjectId, update: impl FnOnce(&mut PairTrack)) {
        if let Some(pair) = self.pairs.get_mut(&qp) {
            update(pair);
        }
    }

    /// Returns the track of a queue pair, else that of the process.
    fn track_of(&self, lines: &Lines, object: ObjectId) -> u32 {
        self.pairs.get(&object).map_or_else(|| lines.pid(), PairTrack::track)
    }

    fn on_destroyed(&mut self, lines: &mut Lines, id: ObjectId, at: Instant) {
        self.forget_receives(lines, id, at);
        if let Some(pair) = self.pairs.remove(&id) {
            self.numbers.remove(&pair.pair.qpn);
            pair.end(lines, at, "the queue pair was destroyed");
        }
    }

    fn on_received(&mut self, lines: &mut Lines, qp: ObjectId, cqe: &Cqe, at: Instant) {
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

/// Returns the title of a packet.
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

/// A send request between its post and its completion.
#[derive(Debug)]
struct OpenSend {
    /// Sequence number among all requests of the process.
    serial: u64,
    wr_id: u64,
    name: &'static str,
    signaled: bool,
    /// First and last PSN sent so far.
    psns: Option<(Psn, Psn)>,
    /// Number of retransmitted packets.
    retransmitted: u32,
}

/// The track of a queue pair.
#[derive(Debug)]
struct PairTrack {
    pair: QpInfo,
    state: QpState,
    /// True during an RNR wait.
    waits: bool,
    /// Oldest first.
    sends: VecDeque<OpenSend>,
}

impl PairTrack {
    fn new(lines: &mut Lines, at: Instant, pair: QpInfo) -> Self {
        let new = Self { pair, state: QpState::Reset, waits: false, sends: VecDeque::new() };
        new.name(lines, at, None);
        new.begin_state(lines, at, Args::default());
        new
    }

    const fn track(&self) -> u32 {
        self.pair.qpn.get()
    }

    fn name(&self, lines: &mut Lines, at: Instant, peer: Option<Qpn>) {
        let service = format!("{:?}", self.pair.service).to_uppercase();
        let peer = peer.map(|peer| format!(" → {:#08x}", peer.get())).unwrap_or_default();
        let text = format!("QP {:#08x} {service}{peer}", self.pair.qpn.get());
        lines.put(Phase::Name, self.track(), at, ("", &"thread_name"), &Args::default().text("name", &text));
    }

    fn begin_state(&self, lines: &mut Lines, at: Instant, args: Args) {
        let state = format!("{:?}", self.state).to_uppercase();
        lines.put(Phase::Begin, self.track(), at, ("state", &state), &args);
    }

    fn end_slice(&self, lines: &mut Lines, at: Instant) {
        lines.put(Phase::End, self.track(), at, ("", &""), &Args::default());
    }

    /// Adds an instant event.
    fn note(&self, lines: &mut Lines, at: Instant, what: (&str, &dyn Display), args: &Args) {
        lines.put(Phase::Instant, self.track(), at, what, args);
    }

    fn on_modified(&mut self, lines: &mut Lines, at: Instant, attr: &QpAttr, mask: AttrMask) {
        if mask.contains(AttrMask::DEST_QPN) {
            self.name(lines, at, Some(attr.dest_qpn));
        }
        if mask.contains(AttrMask::STATE) {
            self.enter(lines, at, attr.state, attributes(attr, mask));
        }
    }

    fn enter(&mut self, lines: &mut Lines, at: Instant, state: QpState, args: Args) {
        if state == self.state {
            return;
        }
        self.end_wait(lines, at);
        self.end_slice(lines, at);
        self.state = state;
        self.begin_state(lines, at, args);
        if state == QpState::Reset {
            self.end_sends(lines, at, self.sends.len(), "reset");
        }
    }

    fn on_posted(&mut self, lines: &mut Lines, at: Instant, request: &SendRequest<'_>, serial: u64) {
        let length = match request.data {
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => length(sges),
        };
        let (wr_id, name) = (request.wr_id, operation(&request.op));
        let signaled = self.pair.sq_sig_all || request.flags.contains(SendFlags::SIGNALED);
        // Viewers merge slices of one name into one track; the number keeps queue pairs apart.
        let title = format_args!("{name} {:#08x}", self.pair.qpn.get());
        let args = Args::default().hex("wr_id", wr_id).number("length", length).number("signaled", u8::from(signaled));
        lines.put(Phase::AsyncBegin(serial), self.track(), at, ("wr", &title), &args);
        self.sends.push_back(OpenSend { serial, wr_id, name, signaled, psns: None, retransmitted: 0 });
    }

    /// Ends a send request and all before it.
    fn on_completed(&mut self, lines: &mut Lines, at: Instant, cqe: &Cqe) {
        let failed = cqe.status != WcStatus::Success;
        let is_match = |open: &OpenSend| open.wr_id == cqe.wr_id && (open.signaled || failed);
        let Some(before) = self.sends.iter().position(is_match) else { return };
        for (at_front, open) in self.sends.drain(..=before).enumerate() {
            let status = if at_front == before { explain::name(cqe.status) } else { "no completion requested" };
            open.end(lines, self.pair.qpn, at, status);
        }
        if failed && cqe.status != WcStatus::WrFlushErr {
            // Enters the state at once: the program may exit before the state change is reported.
            let state = if self.pair.service.is_reliable() { QpState::Err } else { QpState::Sqe };
            self.enter(lines, at, state, Args::default().text("why", &explain::name(cqe.status)));
        }
    }

    fn end_sends(&mut self, lines: &mut Lines, at: Instant, count: usize, status: &str) {
        let first = self.sends.len().saturating_sub(count);
        for open in self.sends.drain(first..) {
            open.end(lines, self.pair.qpn, at, status);
        }
    }

    fn on_sent(&mut self, lines: &mut Lines, at: Instant, note: PacketNote, header: &Header) {
        let Some(wr_id) = note.wr_id else { return };
        self.end_wait(lines, at);
        let psn = header.bth.psn;
        match note.reason {
            TxReason::Retransmission => {
                if let Some(open) = self.sends.iter_mut().find(|open| open.has(psn)) {
                    open.retransmitted += 1;
                }
            }
            _ => {
                // wr_ids need not be unique; packets leave in the order of posts.
                let position = header.opcode().properties().position;
                let continues_message = matches!(position, Position::Middle | Position::Last);
                let mut sends_of_request = self.sends.iter_mut().filter(|open| open.wr_id == wr_id);
                let open = match continues_message {
                    true => sends_of_request.rev().find(|open| open.psns.is_some()),
                    false => sends_of_request.find(|open| open.psns.is_none()),
                };
                if let Some(open) = open {
                    open.psns = Some((open.psns.map_or(psn, |(first, _)| first), psn));
                }
            }
        }
    }

    fn on_retried(&mut self, lines: &mut Lines, at: Instant, counts: RetryCounts) {
        let all = [
            (counts.local_ack_timeout_err, "timeout: no acknowledgement came"),
            (counts.packet_seq_err, "NAK received: PSN sequence error"),
            (counts.implied_nak_seq_err, "implied NAK received"),
            (counts.rnr_nak_retry_err, "RNR NAK received"),
            (counts.send_rnr_err, "RNR NAK sent"),
        ];
        for (times, what) in all.into_iter().filter(|(times, _)| *times > 0) {
            self.note(lines, at, ("retry", &what), &Args::default().number("times", times));
        }
        if counts.rnr_nak_retry_err > 0 && !self.waits && self.state != QpState::Err {
            self.waits = true;
            lines.put(Phase::Begin, self.track(), at, ("retry", &"RNR wait"), &Args::default());
        }
    }

    fn end_wait(&mut self, lines: &mut Lines, at: Instant) {
        if std::mem::take(&mut self.waits) {
            self.end_slice(lines, at);
        }
    }

    fn end(mut self, lines: &mut Lines, at: Instant, why: &str) {
        self.end_wait(lines, at);
        self.end_slice(lines, at);
        self.end_sends(lines, at, self.sends.len(), why);
    }
}

impl OpenSend {
    fn has(&self, psn: Psn) -> bool {
        self.psns.is_some_and(|(first, last)| psn.distance(first) >= 0 && psn.distance(last) <= 0)
    }

    fn end(self, lines: &mut Lines, qpn: Qpn, at: Instant, status: &str) {
        let mut args = Args::default().text("status", &status);
        if let Some((first, last)) = self.psns {
            args = args.number("first_psn", first.get()).number("last_psn", last.get());
        }
        if self.retransmitted > 0 {
            args = args.number("retransmitted", self.retransmitted);
        }
        lines.put(
            Phase::AsyncEnd(self.serial),
            qpn.get(),
            at,
            ("wr", &format_args!("{} {:#08x}", self.name, qpn.get())),
            &args,
        );
    }
}

/// Returns the attributes set together with a state.
fn attributes(attr: &QpAttr, mask: AttrMask) -> Args {
    let all = [
        (AttrMask::PATH_MTU, "path_mtu", attr.path_mtu.bytes()),
        (AttrMask::TIMEOUT, "timeout", attr.timeout.into()),
        (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into()),
        (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into()),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into()),
    ];
    let set = all.into_iter().filter(|(bit, ..)| mask.contains(*bit));
    let args = set.fold(Args::default(), |args, (_, name, value)| args.number(name, value));
    let psns = [(AttrMask::RQ_PSN, "rq_psn", attr.rq_psn), (AttrMask::SQ_PSN, "sq_psn", attr.sq_psn)];
    psns.into_iter()
        .filter(|(bit, ..)| mask.contains(*bit))
        .fold(args, |args, (_, name, psn)| args.number(name, psn.get()))
}

/// The phase of an event (`ph`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A nested slice begins.
    Begin,
    /// The innermost slice of the track ends.
    End,
    /// An overlapping slice with this id begins.
    AsyncBegin(u64),
    AsyncEnd(u64),
    Instant,
    /// Sets the counter to the value in the arguments.
    Counter,
    /// The arguments name the process or the track.
    Name,
}

#[derive(Debug)]
pub(super) struct Lines {
    pid: u32,
    text: String,
}

impl Lines {
    pub(super) const fn new(pid: u32) -> Self {
        Self { pid, text: String::new() }
    }

    /// Returns the process id, also the track of events that belong to no queue pair.
    const fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) const fn len(&self) -> usize {
        self.text.len()
    }

    /// Exchanges the lines with `text`, which should be empty.
    pub(super) const fn swap(&mut self, text: &mut String) {
        std::mem::swap(&mut self.text, text);
    }

    fn put(&mut self, phase: Phase, track: u32, at: Instant, (category, name): (&str, &dyn Display), args: &Args) {
        let (pid, to) = (self.pid, &mut self.text);
        let (letter, id) = match phase {
            Phase::Begin => ('B', None),
            Phase::End => ('E', None),
            Phase::AsyncBegin(id) => ('b', Some(id)),
            Phase::AsyncEnd(id) => ('e', Some(id)),
            Phase::Instant => ('i', None),
            Phase::Counter => ('C', None),
            Phase::Name => ('M', None),
        };
        let mut line = || {
            write!(to, "{{\"ph\":\"{letter}\",\"pid\":{pid},\"tid\":{track},")?;
            write!(to, "\"ts\":{}.{:03}", at.0 / 1000, at.0 % 1000)?;
            if phase != Phase::End {
                write!(to, ",\"cat\":\"{category}\",\"name\":\"")?;
                write!(Escaped(to), "{name}")?;
                to.push('"');
            }
            if let Some(id) = id {
                // Local to the process: viewers show slices with a global `id` apart from every
                // process.
                write!(to, ",\"id2\":{{\"local\":\"{id:#x}\"}}")?;
            }
            if phase == Phase::Instant {
                // Scope of the instant: its thread.
                to.push_str(",\"s\":\"t\"");
            }
            writeln!(to, ",\"args\":{{{}}}}},", args.0)
        };
        // Writing to a string cannot fail.
        let _: fmt::Result = line();
    }
}

/// The arguments of an event.
#[derive(Debug, Default)]
struct Args(String);

impl Args {
    fn number(self, key: &str, value: impl Into<u64>) -> Self {
        let value = value.into();
        self.add(key, |to| write!(to, "{value}"))
    }

    fn hex(self, key: &str, value: impl Into<u64>) -> Self {
        let value = value.into();
        self.add(key, |to| write!(to, "\"{value:#x}\""))
    }

    fn text(self, key: &str, value: &dyn Display) -> Self {
        self.add(key, |to| {
            to.push('"');
            write!(Escaped(to), "{value}")?;
            to.push('"');
            Ok(())
        })
    }

    fn add(mut self, key: &str, value: impl FnOnce(&mut String) -> fmt::Result) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(self.0, "\"{key}\":").and_then(|()| value(&mut self.0));
        self
    }
}

/// Escapes the inside of a JSON string. Control characters become spaces, because some viewers fail
/// on other escapes.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                character if character.is_control() => self.0.push(' '),
                character => self.0.push(character),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
