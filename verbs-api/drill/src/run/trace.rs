//! Runs a case without a verdict, and records the behaviour of the card.

use super::state::{Run, Stop};
use crate::layout;
use crate::log::Log;
use crate::script::Case;
use crate::script::steps::{Line, Peer, Spec, Step};
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time limit for the acknowledgement of the honest connection.
const IDLE_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of the GRH before a received datagram.
const GRH: usize = 40;
/// Maximum number of recorded packets of the card.
const MAX_ANSWERS: usize = 1024;

/// Behaviour of a card in a case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// Destination queue pairs and bytes of the card's packets.
    pub(crate) answers: Vec<(String, Vec<u8>)>,
    /// Completions by queue pair, as text.
    pub(crate) completions: BTreeMap<String, Vec<String>>,
    /// States by queue pair.
    pub(crate) states: BTreeMap<String, String>,
    /// Content by region.
    pub(crate) memory: BTreeMap<String, Vec<u8>>,
    /// True if the card acknowledged the last packet on the honest connection.
    pub(crate) is_alive: bool,
    /// Number of packets sent.
    pub(crate) sent: usize,
    /// Regions and offsets of GRHs, whose addresses differ between targets.
    headers: Vec<(String, usize)>,
}

/// Runs the steps of `case`, which only sends packets and drives the far side, until no packet has
/// arrived for `settle`. Returns `None` if the case is invalid.
///
/// The last packet of the case belongs to an honest connection, `h`. It is sent, each time with the
/// next number `beat`, before a queue pair gets its next packet, and the case continues when the
/// card has acknowledged it: so the behaviour of a queue pair does not depend on batching.
///
/// # Errors
/// If the target is lost.
pub(crate) fn trace(case: &Case, target: &mut dyn Target, settle: Duration) -> Result<Option<Trace>, String> {
    target.begin(false).map_err(|refused| refused.to_string())?;
    let card = target.card(false).ok_or("the card has no IPv4 address")?;
    let mut run = Run::new(target, card, &case.names);
    let honest = case.lines.iter().rev().find_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some("h") => Some(spec),
        _ => None,
    });
    let Some(honest) = honest else { return Ok(None) };
    let mut trace = Trace { is_alive: true, ..Trace::default() };
    match run.steps(case, honest, &mut trace) {
        Ok(()) => {}
        Err(Stop::Refused(refused)) if refused.errno == 0 => return Err(refused.to_string()),
        Err(_) => return Ok(None),
    }
    let rest = |stop: Stop| format!("{stop:?}");
    run.settle(&mut trace, settle).map_err(rest)?;
    run.look(&mut trace).map_err(rest)?;
    Ok(Some(trace))
}

/// Runs the steps of `case` and records all packets; waits `limit` for the response to each
/// request that demands one, and at the end. Returns the packets and the final states of the queue
/// pairs.
///
/// # Errors
/// If a verb fails, or the target is lost.
pub(crate) fn record(
    case: &Case,
    target: &mut dyn Target,
    limit: Duration,
) -> Result<(Log, BTreeMap<String, String>), String> {
    target.begin(false).map_err(|refused| refused.to_string())?;
    let card = target.card(false).ok_or("the card has no IPv4 address")?;
    let mut run = Run::new(target, card, &case.names);
    run.recorded(&case.lines, limit).map_err(|stop| match stop {
        Stop::Refused(refused) => refused.to_string(),
        Stop::Differs { received, .. } => received,
        Stop::Script(text) | Stop::Unsupported(text) => text,
    })?;
    let states = run.objects.ties.iter().map(|tie| Ok((tie.name.clone(), run.target.query_qp(tie.qp)?)));
    let states = states.collect::<Result<_, crate::target::Refused>>().map_err(|refused| refused.to_string())?;
    Ok((run.log, states))
}

impl Run<'_> {
    fn recorded(&mut self, lines: &[Line], limit: Duration) -> Result<(), Stop> {
        for line in lines {
            match &line.step {
                Step::Send(spec) => {
                    self.send(spec)?;
                    let asks = spec.fields.iter().any(|(name, _)| name == "ackreq")
                        || matches!(spec.opcode, 0x0c | 0x13 | 0x14);
                    self.log_answers(if asks { limit } else { Duration::ZERO }, asks)?;
                }
                Step::Peer(peer) => self.peer(peer)?,
                Step::Repeat(count, inside) => {
                    for index in 0..count.value(&self.names)? {
                        self.names.insert("i".into(), index);
                        self.recorded(inside, limit)?;
                    }
                }
                _ => {}
            }
        }
        self.log_answers(limit, false)
    }

    /// Records packets for `limit`, or until the first one.
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

    fn steps(&mut self, case: &Case, honest: &Spec, trace: &mut Trace) -> Result<(), Stop> {
        let (mut beat, mut busy) = (0, BTreeSet::new());
        for line in &case.lines {
            match &line.step {
                Step::Send(spec) if trace.is_alive && !std::ptr::eq(spec, honest) => {
                    if busy.contains(&spec.qp) {
                        busy.clear();
                        self.beat(honest, beat, trace)?;
                        beat += 1;
                    }
                    busy.insert(&spec.qp);
                    self.send(spec)?;
                    trace.sent += 1;
                }
                Step::Peer(peer) => match self.peer(peer) {
                    // A queue pair in error refuses work on one card and flushes it on another.
                    Err(Stop::Refused(refused))
                        if refused.errno != 0 && matches!(peer, Peer::Post(_) | Peer::Recv { .. }) => {}
                    done => {
                        done?;
                        if let Peer::Recv { queue, sges, .. } = peer
                            && self.objects.tie(Some(queue))?.is_datagram
                        {
                            for sge in sges {
                                trace.headers.push((sge.mr.clone(), sge.at.value(&self.names)? as usize));
                            }
                        }
                    }
                },
                Step::Let(name, number) => {
                    self.names.insert(name.clone(), number.value(&self.names)?);
                }
                _ => {}
            }
        }
        if trace.is_alive { self.beat(honest, beat, trace) } else { Ok(()) }
    }

    /// Sends the honest packet number `beat` and records packets until its acknowledgement. Tries
    /// twice, because the path may lose a packet.
    fn beat(&mut self, honest: &Spec, beat: u64, trace: &mut Trace) -> Result<(), Stop> {
        self.names.insert("beat".into(), beat);
        let tie = self.objects.tie(Some("h"))?;
        let psn = (self.names.get(&format!("{}.psn", tie.name)).copied().unwrap_or_default() + beat) & 0xff_ffff;
        for _ in 0..2 {
            self.send(honest)?;
            trace.sent += 1;
            let until = self.target.now() + IDLE_LIMIT;
            while let Some(packet) = self.answer(trace, until)? {
                if packet.0 == "h" && is_acknowledgement(&packet.1, psn) {
                    return Ok(());
                }
            }
        }
        trace.is_alive = false;
        Ok(())
    }

    /// Records packets until none has arrived for `settle`, at most for ten times as long.
    fn settle(&mut self, trace: &mut Trace, settle: Duration) -> Result<(), Stop> {
        let (mut until, limit) = (self.target.now() + settle, self.target.now() + settle * 10);
        while self.answer(trace, until)?.is_some() && trace.answers.len() < MAX_ANSWERS {
            until = limit.min(self.target.now() + settle);
        }
        Ok(())
    }

    /// Returns the next packet, and records it unless it belongs to the honest connection.
    fn answer(&mut self, trace: &mut Trace, until: Duration) -> Result<Option<(String, Vec<u8>)>, Stop> {
        let Some((_, datagram)) = self.target.receive(until)? else { return Ok(None) };
        let to = datagram.bytes.get(5..8).map(|qpn| u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]));
        let tie = self.objects.ties.iter().find(|tie| Some(tie.near) == to);
        let answer = (tie.map_or_else(|| "?".to_owned(), |tie| tie.name.clone()), datagram.bytes);
        if answer.0 != "h" {
            trace.answers.push(answer.clone());
        }
        Ok(Some(answer))
    }

    fn look(&mut self, trace: &mut Trace) -> Result<(), Stop> {
        let queues: Vec<_> = self.objects.ties.iter().map(|tie| (tie.qp, tie.cq)).collect();
        let len = |name: &str| if name.starts_with('m') { 8192 } else { 64 };
        let regions: Vec<_> = self.objects.regions.iter().map(|(name, region)| (region.mr, len(name))).collect();
        let look = self.target.look(&queues, &regions)?;
        for (tie, (state, done)) in self.objects.ties.iter().zip(look.queues) {
            trace.states.insert(tie.name.clone(), state);
            // The near side has other queue pair numbers in each run.
            let done = done.into_iter().map(|mut done| {
                done.src_qp = 0;
                if matches!(done.opcode.as_str(), "SEND" | "RDMA_WRITE") {
                    // Undefined for these.
                    done.byte_len = 0;
                }
                done.to_string()
            });
            let done = done.collect();
            trace.completions.insert(tie.name.clone(), done);
        }
        for (name, mut bytes) in self.objects.regions.keys().zip(look.memory) {
            for (_, at) in trace.headers.iter().filter(|(mr, _)| mr == name) {
                bytes.iter_mut().skip(*at).take(GRH).for_each(|byte| *byte = 0);
            }
            trace.memory.insert(name.clone(), bytes);
        }
        Ok(())
    }
}

fn is_acknowledgement(packet: &[u8], psn: u64) -> bool {
    layout::get(packet, "psn") == Some(psn) && layout::get(packet, "syndrome").is_some_and(|syndrome| syndrome < 0x20)
}
