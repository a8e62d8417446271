//! Runs a case without a verdict, and records the behaviour of the card.

use super::state::{CardQp, Run, Stop};
use crate::layout;
use crate::log::Log;
use crate::script::Case;
use crate::script::steps::{Line, Peer, Spec, Step};
use crate::target::{Card, Completed, Event, Target};
use roxe_wire::net::is_checksum_correct;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

/// Time limit for the acknowledgement of the honest connection.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of packets between two packets of the honest connection.
const MAX_UNFOLLOWED: u64 = 8;
/// Wait on the virtual clock for a request that is repeated after the RNR timer of 10 µs.
const RNR_WAIT: Duration = Duration::from_millis(20);
/// Time limit for a card to repeat a request after the RNR timer of 10 µs, which the kernel's rxe
/// rounds up to a tick of up to 10 ms.
const RNR_TIMEOUT: Duration = Duration::from_millis(100);
/// Additional time for a card to behave like the model. roxe's UC and UD responders keep a packet
/// for 100 ms if no receive is posted.
const EXTRA_TIME: Duration = Duration::from_millis(250);
/// Interval between two checks of the card.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Length in bytes of the GRH before a received datagram.
pub(crate) const GRH_LEN: usize = 40;
/// Value of the bytes of a region before the case, by which a GRH is recognised.
pub(crate) const FILL: u8 = 7;
/// Maximum number of bytes of a region that are compared.
const MAX_REGION: u64 = 1 << 20;
/// Maximum number of packets of the card that are recorded.
const MAX_ANSWERS: usize = 1 << 16;

/// Behaviour of a card in a case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// Destination queue pairs and bytes of the card's packets.
    pub(crate) answers: Vec<(String, Vec<u8>)>,
    /// Completions by queue pair, as text.
    pub(crate) completions: BTreeMap<String, Vec<String>>,
    /// States by queue pair.
    pub(crate) states: BTreeMap<String, String>,
    /// Asynchronous events by queue pair, with those of its shared receive queue.
    pub(crate) events: BTreeMap<String, Vec<String>>,
    /// Content by region, with zeros in place of GRHs.
    pub(crate) memory: BTreeMap<String, Vec<u8>>,
    /// GRHs by region and offset, as text.
    pub(crate) grhs: BTreeMap<(String, usize), String>,
    /// True if the card acknowledged the last packet on the honest connection.
    pub(crate) is_alive: bool,
    /// Number of packets sent.
    pub(crate) sent: usize,
    /// True if the card behaved like the model only in the additional time.
    pub(crate) is_late: bool,
    /// Additional time that the card got.
    pub(crate) waited: Duration,
    /// Lines of the case that send an RNR NAK after which the card repeats a request.
    repeats: BTreeSet<usize>,
    /// Regions and offsets of GRHs, whose addresses differ between targets.
    headers: BTreeSet<(String, usize)>,
    /// Lengths in bytes by region.
    lengths: BTreeMap<String, u64>,
}

/// The model's behaviour, and a function that returns true if the card's behaviour so far needs no
/// additional time.
pub(crate) type Expected<'a> = (&'a Trace, &'a dyn Fn(&Trace) -> bool);

/// Runs the steps of `case`, which only sends packets and drives the far side, until no packet has
/// arrived for `settle`. Returns `None` if the case is invalid.
///
/// The last packet of the case belongs to an honest connection, `h`. The judge sends that packet
/// after every few packets, each time with the next number `beat`. A queue pair gets its next
/// packet when the card has acknowledged the honest packet behind its newest one. So the behaviour
/// of a queue pair does not depend on batching.
///
/// `expected` is `None` for the model itself. A card that differs from the model gets additional
/// time. Fails if the target is lost.
pub(crate) fn trace(
    case: &Case,
    target: &mut dyn Target,
    settle: Duration,
    expected: Option<Expected<'_>>,
) -> Result<Option<Trace>, String> {
    target.begin(false).map_err(|refused| refused.to_string())?;
    let card = target.card(false).ok_or("the card has no IPv4 address")?;
    let mut run = Run::new(target, card, case);
    let honest = case.lines.iter().rev().find_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some("h") => Some(spec),
        _ => None,
    });
    let Some(honest) = honest else { return Ok(None) };
    let mut pulse = Pulse { honest, sent: 0, acked: 0, unfollowed: 0, follows: BTreeMap::new(), rnr: BTreeMap::new() };
    let mut trace = Trace { is_alive: true, ..Trace::default() };
    let model = expected.map(|(model, _)| model);
    match run.steps(case, &mut pulse, &mut trace, model) {
        Ok(()) => {}
        Err(Stop::Refused(refused)) if refused.errno == 0 => return Err(refused.to_string()),
        Err(_) => return Ok(None),
    }
    let describe = |stop: Stop| format!("{stop:?}");
    run.settle(&mut trace, settle).map_err(describe)?;
    run.snapshot(&mut trace).map_err(describe)?;
    if let Some((_, is_enough)) = expected {
        let begun = run.target.now();
        let limit = begun + EXTRA_TIME;
        while !is_enough(&trace) && run.target.now() < limit {
            trace.is_late = true;
            let until = run.target.now() + POLL_INTERVAL;
            while run.answer(&mut trace, until).map_err(describe)?.is_some() {}
            run.snapshot(&mut trace).map_err(describe)?;
        }
        trace.is_late &= is_enough(&trace);
        trace.waited = run.target.now() - begun;
    }
    Ok(Some(trace))
}

/// The honest connection, whose acknowledgements show which packets the card has received.
struct Pulse<'a> {
    honest: &'a Spec,
    /// Number of honest packets sent.
    sent: u64,
    /// Number of honest packets acknowledged.
    acked: u64,
    /// Number of other packets since the newest honest packet.
    unfollowed: u64,
    /// By queue pair: number of the honest packet behind the queue pair's newest packet.
    follows: BTreeMap<String, u64>,
    /// By queue pair that got an RNR NAK: the NAK's line in the case, and the number of packets
    /// that the queue pair had sent before.
    rnr: BTreeMap<String, (usize, usize)>,
}

/// Runs the steps of `case` and records all packets. Waits up to `limit` for the response to each
/// request that demands one, and `limit` at the end. Returns the packets and the final states of
/// the queue pairs. Fails if a verb fails, or the target is lost.
pub(crate) fn record(
    case: &Case,
    target: &mut dyn Target,
    limit: Duration,
) -> Result<(Log, BTreeMap<String, String>), String> {
    target.begin(false).map_err(|refused| refused.to_string())?;
    let card = target.card(false).ok_or("the card has no IPv4 address")?;
    let mut run = Run::new(target, card, case);
    run.record_lines(&case.lines, limit).map_err(|stop| match stop {
        Stop::Refused(refused) => refused.to_string(),
        Stop::Differs { received, .. } => received,
        Stop::Script(text) | Stop::Unsupported(text) => text,
    })?;
    let states = run.objects.qps.iter().map(|card_qp| Ok((card_qp.name.clone(), run.target.query_qp(card_qp.qp)?)));
    let states = states.collect::<Result<_, crate::target::Refused>>().map_err(|refused| refused.to_string())?;
    Ok((run.log, states))
}

impl Run<'_> {
    fn record_lines(&mut self, lines: &[Line], limit: Duration) -> Result<(), Stop> {
        for line in lines {
            match &line.step {
                Step::Send(spec) => {
                    self.send(spec)?;
                    let demands_response = spec.fields.iter().any(|(name, _)| name == "ackreq")
                        || matches!(spec.opcode, 0x0c | 0x13 | 0x14);
                    self.log_answers(if demands_response { limit } else { Duration::ZERO }, demands_response)?;
                }
                Step::Peer(peer) => self.peer(peer)?,
                Step::Repeat(count, inside) => {
                    for index in 0..count.value(&self.names)? {
                        self.names.insert("i".into(), index);
                        self.record_lines(inside, limit)?;
                    }
                }
                _ => {}
            }
        }
        self.log_answers(limit, false)
    }

    /// Records packets for `limit`; with `is_one_enough`, only until the first one.
    fn log_answers(&mut self, limit: Duration, is_one_enough: bool) -> Result<(), Stop> {
        let mut until = self.target.now() + limit;
        while let Some((at, datagram)) = self.target.receive(until)? {
            self.log.add(at, true, datagram);
            if is_one_enough {
                until = self.target.now();
            }
        }
        Ok(())
    }

    fn steps(
        &mut self,
        case: &Case,
        pulse: &mut Pulse<'_>,
        trace: &mut Trace,
        model: Option<&Trace>,
    ) -> Result<(), Stop> {
        for (index, line) in case.lines.iter().enumerate() {
            match &line.step {
                Step::Send(spec) if trace.is_alive && !std::ptr::eq(spec, pulse.honest) => {
                    let qp = spec.qp.clone().unwrap_or_default();
                    self.wait_for(&qp, pulse, trace, model)?;
                    if !trace.is_alive {
                        continue;
                    }
                    if spec.name.starts_with("RNR") {
                        pulse.rnr.insert(qp.clone(), (index, trace.count(&qp)));
                    }
                    self.send(spec)?;
                    trace.sent += 1;
                    pulse.follows.insert(qp, pulse.sent);
                    pulse.unfollowed += 1;
                    if pulse.unfollowed >= MAX_UNFOLLOWED {
                        self.beat(pulse, trace)?;
                    }
                }
                Step::Peer(peer) => match self.peer(peer) {
                    // A card may refuse work requests of a queue pair in error, or flush them.
                    Err(Stop::Refused(refused))
                        if refused.errno != 0 && matches!(peer, Peer::Post(_) | Peer::Recv { .. }) => {}
                    done => {
                        done?;
                        self.record_layout(peer, trace)?;
                    }
                },
                Step::Let(name, number) => {
                    self.names.insert(name.clone(), number.value(&self.names)?);
                }
                _ => {}
            }
        }
        if !trace.is_alive {
            return Ok(());
        }
        let repeating: Vec<_> = pulse.rnr.keys().cloned().collect();
        for qp in repeating {
            self.wait_for(&qp, pulse, trace, model)?;
        }
        if pulse.unfollowed > 0 || pulse.sent == 0 {
            self.beat(pulse, trace)?;
        }
        let last = pulse.sent - 1;
        self.wait_acknowledged(last, pulse, trace)
    }

    /// Records the length of a region, and the place of the GRH in a receive of datagrams.
    fn record_layout(&self, peer: &Peer, trace: &mut Trace) -> Result<(), Stop> {
        match peer {
            Peer::Register { name, length, .. } => {
                trace.lengths.insert(name.clone(), length.value(&self.names)?.min(MAX_REGION));
            }
            Peer::Recv { queue, sges, .. }
                if self.objects.card_qp(Some(queue)).is_ok_and(|card_qp| card_qp.is_datagram()) =>
            {
                for sge in sges.iter().take(1) {
                    trace.headers.insert((sge.mr.clone(), sge.at.value(&self.names)? as usize));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until the card has received the newest packet of a queue pair, and has repeated the
    /// request that got an RNR NAK. The run of the model records which requests are repeated.
    fn wait_for(
        &mut self,
        qp: &str,
        pulse: &mut Pulse<'_>,
        trace: &mut Trace,
        model: Option<&Trace>,
    ) -> Result<(), Stop> {
        let Some(beat) = pulse.follows.get(qp).copied() else { return Ok(()) };
        if beat >= pulse.sent {
            self.beat(pulse, trace)?;
        }
        self.wait_acknowledged(beat, pulse, trace)?;
        let Some((at, before)) = pulse.rnr.remove(qp) else { return Ok(()) };
        match model {
            None => {
                let until = self.target.now() + RNR_WAIT;
                while self.answer(trace, until)?.is_some() {}
                if trace.count(qp) > before {
                    trace.repeats.insert(at);
                }
            }
            Some(model) if model.repeats.contains(&at) => {
                let until = self.target.now() + RNR_TIMEOUT;
                while trace.count(qp) <= before && self.answer(trace, until)?.is_some() {}
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Sends the next honest packet.
    fn beat(&mut self, pulse: &mut Pulse<'_>, trace: &mut Trace) -> Result<(), Stop> {
        self.names.insert("beat".into(), pulse.sent);
        (pulse.sent, pulse.unfollowed) = (pulse.sent + 1, 0);
        trace.sent += 1;
        self.send(pulse.honest)
    }

    /// Records packets until the honest packet number `beat` is acknowledged. Retransmits it once,
    /// with the honest packets behind it, because the path may lose a packet.
    fn wait_acknowledged(&mut self, beat: u64, pulse: &mut Pulse<'_>, trace: &mut Trace) -> Result<(), Stop> {
        let first = self.names.get("h.psn").copied().unwrap_or_default();
        for _ in 0..2 {
            let until = self.target.now() + ACK_TIMEOUT;
            while pulse.acked <= beat {
                let Some((qp, packet)) = self.answer(trace, until)? else { break };
                let number = acknowledged(&packet).map(|psn| psn.wrapping_sub(first) & 0xff_ffff);
                if let Some(number) = number.filter(|number| qp == "h" && *number < pulse.sent) {
                    pulse.acked = pulse.acked.max(number + 1);
                }
            }
            if pulse.acked > beat {
                return Ok(());
            }
            for lost in pulse.acked..pulse.sent {
                self.names.insert("beat".into(), lost);
                trace.sent += 1;
                self.send(pulse.honest)?;
            }
        }
        trace.is_alive = false;
        Ok(())
    }

    /// Records packets until none has arrived for `settle`, at most for ten times as long.
    fn settle(&mut self, trace: &mut Trace, settle: Duration) -> Result<(), Stop> {
        let (mut until, limit) = (self.target.now() + settle, self.target.now() + settle * 10);
        while self.answer(trace, until)?.is_some() {
            until = limit.min(self.target.now() + settle);
        }
        Ok(())
    }

    /// Returns the next packet, and records it unless it belongs to the honest connection.
    fn answer(&mut self, trace: &mut Trace, until: Duration) -> Result<Option<(String, Vec<u8>)>, Stop> {
        let Some((_, datagram)) = self.target.receive(until)? else { return Ok(None) };
        let to = datagram.bytes.get(5..8).map(|qpn| u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]));
        let card_qp = self.objects.qps.iter().find(|card_qp| Some(card_qp.near) == to);
        let answer = (card_qp.map_or_else(|| "?".to_owned(), |card_qp| card_qp.name.clone()), datagram.bytes);
        if answer.0 != "h" && trace.answers.len() < MAX_ANSWERS {
            trace.answers.push(answer.clone());
        }
        Ok(Some(answer))
    }

    /// Reads states and memory, and adds new completions and events.
    fn snapshot(&mut self, trace: &mut Trace) -> Result<(), Stop> {
        let queues: Vec<_> = self.objects.qps.iter().map(|card_qp| (card_qp.qp, card_qp.cq)).collect();
        let regions: Vec<_> =
            self.objects.regions.iter().map(|(name, region)| (region.mr, trace.lengths[name])).collect();
        let snapshot = self.target.snapshot(&queues, &regions)?;
        for (card_qp, (state, done)) in self.objects.qps.iter().zip(snapshot.queues) {
            trace.states.insert(card_qp.name.clone(), state);
            let done = done.into_iter().map(|done| completion(card_qp, done));
            trace.completions.entry(card_qp.name.clone()).or_default().extend(done);
            let events = trace.events.entry(card_qp.name.clone()).or_default();
            events.extend(
                snapshot.events.iter().filter(|event| self.is_of(event, card_qp)).map(|event| event.name.clone()),
            );
            // A card may raise events of a queue pair and of its shared receive queue in any order.
            events.sort();
        }
        for (name, mut bytes) in self.objects.regions.keys().zip(snapshot.memory) {
            for (_, at) in trace.headers.iter().filter(|(mr, _)| mr == name) {
                if let Some(header) = bytes.get_mut(*at..).and_then(|rest| rest.first_chunk_mut::<GRH_LEN>()) {
                    trace.grhs.insert((name.clone(), *at), grh(header, &self.card));
                    header.fill(0);
                }
            }
            trace.memory.insert(name.clone(), bytes);
        }
        Ok(())
    }

    /// Returns true if an event is about this queue pair or its shared receive queue.
    fn is_of(&self, event: &Event, card_qp: &CardQp) -> bool {
        self.objects.is_of(event, &card_qp.name) || self.objects.is_of(event, &shared_queue(&card_qp.name))
    }
}

impl Trace {
    /// Returns the number of packets that came from a queue pair.
    fn count(&self, qp: &str) -> usize {
        self.answers.iter().filter(|(from, _)| from == qp).count()
    }
}

/// Returns the name of the shared receive queue of a queue pair.
pub(crate) fn shared_queue(qp: &str) -> String {
    format!("srq{qp}")
}

/// Returns a completion as text, without fields that the standard leaves undefined.
fn completion(card_qp: &CardQp, mut done: Completed) -> String {
    if matches!(done.opcode.as_str(), "SEND" | "RDMA_WRITE") {
        (done.byte_len, done.imm) = (0, None);
    }
    let source = std::mem::take(&mut done.src_qp);
    let mut text = done.to_string();
    if card_qp.is_datagram() && done.status == "SUCCESS" && done.opcode.starts_with("RECV") {
        // The near side has other queue pair numbers in each run.
        let _ = match source == card_qp.near {
            true => write!(text, " src_qp={}.near", card_qp.name),
            false => write!(text, " src_qp={source:#x}"),
        };
    }
    text
}

/// Returns the GRH of a datagram as text, with names in place of addresses, which differ between
/// targets. The text omits the first 20 bytes, which are undefined on IPv4, and the identification,
/// which the sender chooses freely.
fn grh(header: &[u8; GRH_LEN], card: &Card) -> String {
    if header.iter().all(|byte| *byte == FILL) {
        return "nothing".to_owned();
    }
    let ip = &header[GRH_LEN - 20..];
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let name = |at: usize| {
        let is = |gid: &roxe_wire::Gid| gid.0[12..] == ip[at..at + 4];
        let names = [("near", card.near[0]), ("stranger", card.near[1]), ("card", card.address)];
        let found = names.iter().find(|(_, gid)| is(gid)).map(|(name, _)| (*name).to_owned());
        found.unwrap_or_else(|| format!("{}.{}.{}.{}", ip[at], ip[at + 1], ip[at + 2], ip[at + 3]))
    };
    let checksum = if is_checksum_correct(ip) { "right" } else { "wrong" };
    format!(
        "GRH version={:#x} tos={:#x} length={} fragment={:#x} ttl={} protocol={} checksum={checksum} source={} \
         destination={}",
        ip[0],
        ip[1],
        word(2),
        word(6),
        ip[8],
        ip[9],
        name(12),
        name(16)
    )
}

/// Returns the PSN that a packet acknowledges.
fn acknowledged(packet: &[u8]) -> Option<u64> {
    layout::get(packet, "syndrome").filter(|syndrome| *syndrome < 0x20)?;
    layout::get(packet, "psn")
}
