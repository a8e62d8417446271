//! A case without judgement: its steps are done, and all that the card shows of it is written down.

use super::state::{Run, Stop, World};
use crate::layout;
use crate::log::Log;
use crate::script::Case;
use crate::script::steps::{Peer, Spec, Step};
use crate::target::{Completed, Target};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the answer to the last packet may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a network header in front of a datagram.
const GRH: usize = 40;
/// The most answers that are looked at.
const MAX_ANSWERS: usize = 4096;

/// What a card shows of a case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// Its packets: to which queue pair, and their bytes.
    pub(crate) answers: Vec<(String, Vec<u8>)>,
    /// Completions by queue pair, as text.
    pub(crate) completions: BTreeMap<String, Vec<String>>,
    /// States of the queue pairs.
    pub(crate) states: BTreeMap<String, String>,
    /// What is in the regions.
    pub(crate) memory: BTreeMap<String, Vec<u8>>,
    /// Whether the last packet, on the queue pair `h`, was acknowledged.
    pub(crate) is_alive: bool,
    /// How many packets were sent.
    pub(crate) sent: usize,
    /// Where in the region `mr` the network headers of datagrams go, which have addresses in them.
    headers: Vec<usize>,
}

/// Does the steps of `case`, which sends and tells the far side what to do, until nothing has come
/// for `settle`.
///
/// Its last packet is that of an honest connection, `h`. It is sent behind every other one, each
/// time with the next number `beat`, and the card acknowledges it before the case goes on: what it
/// has done by then does not depend on how much came at once.
///
/// # Errors
/// The case cannot be followed, or the target is gone: `None` for the first.
pub(crate) fn trace(case: &Case, target: &mut dyn Target, settle: Duration) -> Result<Trace, Option<String>> {
    target.begin(false).map_err(|refused| Some(refused.to_string()))?;
    let card = target.card(false).ok_or_else(|| Some("the card has no IPv4 address".to_owned()))?;
    let last = target.now();
    let world = World::default();
    let mut run = Run { target, card, names: case.names.clone(), world, log: Log::default(), last, steps: 0 };
    let honest = case.lines.iter().rev().find_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some("h") => Some(spec),
        _ => None,
    });
    let mut trace = Trace { is_alive: true, ..Trace::default() };
    run.steps(case, honest.ok_or(None)?, &mut trace).map_err(|stop| match stop {
        Stop::Refused(refused) if refused.errno == 0 => Some(refused.to_string()),
        _ => None,
    })?;
    let rest = |stop: Stop| Some(format!("{stop:?}"));
    run.settle(&mut trace, settle).map_err(rest)?;
    run.look(&mut trace).map_err(rest)?;
    Ok(trace)
}

impl Run<'_> {
    fn steps(&mut self, case: &Case, honest: &Spec, trace: &mut Trace) -> Result<(), Stop> {
        let mut beat = 0;
        for line in &case.lines {
            match &line.step {
                Step::Send(spec) if trace.is_alive && !std::ptr::eq(spec, honest) => {
                    self.send(spec)?;
                    trace.sent += 2;
                    self.beat(honest, beat, trace)?;
                    beat += 1;
                }
                Step::Peer(peer) => match self.peer(peer) {
                    // A queue pair in error refuses work on one card and flushes it on another.
                    Err(Stop::Refused(refused))
                        if refused.errno != 0 && matches!(peer, Peer::Post(_) | Peer::Recv { .. }) => {}
                    done => {
                        done?;
                        if let Peer::Recv { queue, sges, .. } = peer
                            && self.world.tie(Some(queue))?.is_datagram
                        {
                            let places: Result<Vec<_>, _> = sges.iter().map(|sge| sge.at.value(&self.names)).collect();
                            trace.headers.extend(places?.into_iter().map(|at| at as usize));
                        }
                    }
                },
                Step::Let(name, number) => {
                    self.names.insert(name.clone(), number.value(&self.names)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends the honest packet number `beat` and takes all answers until its own; once again if none
    /// comes, because the path may lose a packet.
    fn beat(&mut self, honest: &Spec, beat: u64, trace: &mut Trace) -> Result<(), Stop> {
        self.names.insert("beat".into(), beat);
        let tie = self.world.tie(Some("h"))?;
        let psn = (self.names.get(&format!("{}.psn", tie.name)).copied().unwrap_or_default() + beat) & 0xff_ffff;
        for _ in 0..2 {
            self.send(honest)?;
            let until = self.target.now() + PATIENCE;
            while let Some(packet) = self.answer(trace, until)? {
                if packet.0 == "h" && is_acknowledgement(&packet.1, psn) {
                    return Ok(());
                }
            }
        }
        trace.is_alive = false;
        Ok(())
    }

    /// All answers until none has come for so long.
    fn settle(&mut self, trace: &mut Trace, settle: Duration) -> Result<(), Stop> {
        let mut until = self.target.now() + settle;
        while self.answer(trace, until)?.is_some() && trace.answers.len() < MAX_ANSWERS {
            until = self.target.now() + settle;
        }
        Ok(())
    }

    /// The next answer, which is also written down, but for those to the honest connection.
    fn answer(&mut self, trace: &mut Trace, until: Duration) -> Result<Option<(String, Vec<u8>)>, Stop> {
        let Some((_, datagram)) = self.target.receive(until)? else { return Ok(None) };
        let to = datagram.bytes.get(5..8).map(|qpn| u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]));
        let tie = self.world.ties.iter().find(|tie| Some(tie.near) == to);
        let answer = (tie.map_or_else(|| "?".to_owned(), |tie| tie.name.clone()), datagram.bytes);
        if answer.0 != "h" {
            trace.answers.push(answer.clone());
        }
        Ok(Some(answer))
    }

    fn look(&mut self, trace: &mut Trace) -> Result<(), Stop> {
        for tie in &self.world.ties {
            trace.states.insert(tie.name.clone(), self.target.query_qp(tie.qp)?);
            let done = self.target.poll(tie.cq)?;
            // The number of the near side is another one in each run.
            let done = done.into_iter().map(|done| Completed { src_qp: 0, ..done }.to_string()).collect();
            trace.completions.insert(tie.name.clone(), done);
        }
        for (name, region) in &self.world.regions {
            let len = if name == "mr" { 8192 } else { 64 };
            let mut bytes = self.target.read(region.mr, 0, len)?;
            for at in trace.headers.iter().filter(|_| name == "mr") {
                bytes.iter_mut().skip(*at).take(GRH).for_each(|byte| *byte = 0);
            }
            trace.memory.insert(name.clone(), bytes);
        }
        Ok(())
    }
}

/// Whether a packet acknowledges the request with this PSN.
fn is_acknowledgement(packet: &[u8], psn: u64) -> bool {
    let (fields, _) = layout::fields(*packet.first().unwrap_or(&0));
    let get = |name: &str| fields.iter().find(|field| field.name == name).and_then(|field| field.get(packet));
    get("psn") == Some(psn) && get("syndrome").is_some_and(|syndrome| syndrome < 0x20)
}
