//! Random work on a world, and the checks of its results.
//!
//! One scenario serves the simulation (decisions from a seed, everything must succeed) and the
//! fuzzer (decisions from its input, mishaps allowed). The decisions of a connection depend neither
//! on other connections nor on time, so that they stay the same when something is removed. Besides
//! the promises of every step:
//! * every work request completes at most once, in posting order, and exactly once without
//!   failures;
//! * a successful receive, READ or atomic placed exactly the right bytes and no byte beyond them;
//! * RC delivers every message once and in order, and remote memory ends as if every operation ran
//!   once, in order; XRC does so for each SRQ;
//! * UC and UD deliver a message completely and correctly or not at all.

mod post;
use crate::host::{Mr, SRQ_MAX_SGE, XrcQueue};
use crate::judge::{Broken, ensure};
use crate::pair::Pair;
use crate::rng::{Choices, Rng};
use crate::setup::{QKEY, Setup};
use crate::wire::Tally;
use crate::world::World;
use core::time::Duration;
use roxe_transport::qp::{GRH_LEN, QpState, Service};
use roxe_transport::wr::{
    Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcExtra, WcOpcode, WcStatus,
};
use roxe_wire::{Feth, ImmDt, LKey, Placement, RKey, Selectivity};
use std::collections::VecDeque;

const UNTOUCHED: u8 = 0x5a;
/// Numbers of the SRQs of an XRC target.
const QUEUES: [u32; 2] = [0x21, 0x4_0022];
/// Key of the window that an end binds.
const WINDOW: u32 = 0xff00_0017;
/// Steps per end after which an unfinished run counts as stuck.
const STEP_LIMIT: usize = 200_000;
/// Steps without a post after which a run with mishaps ends.
const QUIET_LIMIT: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub messages: u32,
    pub max_len: u32,
    /// True if work requests may be wrong and QPs may change state: then only "at most once, in
    /// order, correct" is checked.
    pub mishaps: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub tally: Tally,
    pub sends: u64,
    pub recvs: u64,
    /// Expired timers: ACK, RNR and pacing.
    pub timeouts: u64,
    pub notices: u64,
    /// Ends in the error state at the end.
    pub failed: u64,
    /// Virtual time of all runs together.
    pub elapsed: Duration,
}

impl Report {
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.sends += other.sends;
        self.recvs += other.recvs;
        self.timeouts += other.timeouts;
        self.notices += other.notices;
        self.failed += other.failed;
        self.elapsed += other.elapsed;
    }
}

/// A destination of `len` bytes, followed by a guard.
#[derive(Clone, Copy, Debug)]
struct Slot {
    index: u32,
    len: u32,
}

#[derive(Debug)]
enum Expect {
    Nothing,
    /// Placed bytes. If `modelled`, they are those of the memory model, which is exact only without
    /// failures.
    Bytes {
        slot: Slot,
        data: Vec<u8>,
        modelled: bool,
    },
}

#[derive(Debug)]
struct PostedSend {
    wr_id: u64,
    signaled: bool,
    opcode: WcOpcode,
    expect: Expect,
}

impl PostedSend {
    /// Returns true if a successful completion matches this request; lengths matter for placed
    /// data.
    fn matches(&self, cqe: &Cqe) -> bool {
        let landed = if let Expect::Bytes { slot, .. } = self.expect { Some(slot.len) } else { None };
        self.opcode == cqe.opcode && landed.is_none_or(|len| len == cqe.byte_len)
    }
}

#[derive(Debug)]
struct PostedRecv {
    wr_id: u64,
    slot: Slot,
    /// Index of the SRQ (XRC), else 0.
    queue: usize,
}

/// A message that consumes a receive of the peer.
#[derive(Debug, Clone, Copy)]
struct Message {
    source: u32,
    len: u32,
    imm: Option<ImmDt>,
    write: bool,
    /// Index of the SRQ of the message (XRC), else 0.
    queue: usize,
}

/// A UC WRITE to its own part of `shared`: it may be lost, but never wrong.
#[derive(Debug, Clone, Copy)]
struct UcWrite {
    target: u32,
    source: u32,
    len: u32,
}

/// One end with its work and its expected results.
struct Side<C> {
    /// Decides when to post.
    when: C,
    /// Decides what to post.
    what: C,
    active: bool,
    quota: u32,
    /// True if failures are allowed at this end: only "at most once, in order, correct" is checked.
    fragile: bool,
    source: Mr,
    sink: Mr,
    /// Region that the peer writes, and its expected content at the end.
    shared: Mr,
    model: Vec<u8>,
    free: Vec<u32>,
    sends: VecDeque<PostedSend>,
    recvs: VecDeque<PostedRecv>,
    /// Messages sent by this side: those not received by the peer (RC), or all of them (UC, UD).
    messages: VecDeque<Message>,
    uc_writes: Vec<UcWrite>,
    uc_write_next: u32,
    posted: u32,
    next_id: u64,
    /// Index of the peer's SRQ for the next send (XRC).
    queue: usize,
    flushes: u32,
    /// True if the bind of a window on `shared` was posted.
    window: bool,
    /// Key of that window once it is bound.
    window_key: Option<RKey>,
    /// True if a READ of mutable memory may be outstanding: the next change of it must be fenced.
    read_pending: bool,
    ok_sends: u64,
    ok_recvs: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// This end enters the error state.
    Error(usize),
    /// This node is removed.
    Gone(usize),
}

pub struct Scenario<C> {
    pub world: World<C>,
    work: Work,
    sides: Vec<Side<C>>,
    /// Future accidents, latest first.
    accidents: Vec<(Duration, Accident)>,
}

/// Runs `work` on a new pair to its end, and checks the results.
pub fn run<C: Choices>(pair: Pair<C>, work: Work) -> Report {
    let played = Scenario::new(pair.into_world(), work).play();
    played.unwrap_or_else(|broken| panic!("{broken}"))
}

impl<C: Choices> Scenario<C> {
    /// Prepares `work` for every end of `world` that is in RTS; the others stay idle.
    pub fn new(mut world: World<C>, work: Work) -> Self {
        world.honest = true;
        let seed = u64::from(world.choices.below(1 << 16));
        let mut sides = Vec::with_capacity(world.ends.len());
        for (id, end) in world.ends.iter_mut().enumerate() {
            let active = end.qp.state() == QpState::Rts;
            if end.setup.service == Service::XrcTgt {
                end.host.xrc = QUEUES.map(|number| XrcQueue { number, ..XrcQueue::default() }).into();
            }
            sides.push(Side::new(&mut end.host.memory, &end.setup, &work, active, &mut world.choices));
            let source = sides[id].source;
            Rng::new(seed + id as u64).fill(end.host.memory.bytes_mut(source));
        }
        Self { world, work, sides, accidents: Vec::new() }
    }

    /// Lets only the first end of each connection post sends.
    pub fn mute_second_ends(&mut self) {
        self.sides.iter_mut().skip(1).step_by(2).for_each(|side| side.quota = 0);
    }

    /// Adds an `accident` after some time of the run.
    #[must_use]
    pub fn with_accident(mut self, after: Duration, accident: Accident) -> Self {
        self.accidents.push((after, accident));
        self.accidents.sort_by_key(|(after, _)| core::cmp::Reverse(*after));
        self
    }

    pub fn play(&mut self) -> Result<Report, Broken> {
        self.drive()?;
        self.finish()
    }

    fn drive(&mut self) -> Result<(), Broken> {
        let all_ids = 0..self.sides.len();
        let mut changed: Vec<usize> = all_ids.clone().collect();
        let mut quiet = 0;
        for turn in 0..STEP_LIMIT * self.sides.len() {
            self.cause_accidents()?;
            let mut posted = false;
            for &id in &changed {
                posted |= self.post_some(id)?;
            }
            if self.work.mishaps && self.world.choices.chance_per_mille(10) {
                self.change_state()?;
            }
            let moved = self.world.step()?;
            self.world.take_changed(&mut changed);
            for &id in &changed {
                self.check_completions(id)?;
            }
            if !moved && self.living().all(|id| self.has_done(id)) {
                return Ok(());
            }
            // Without a packet in flight or a timer, every send queue must be empty.
            let quiescent = |id: usize| self.world.ends[id].qp.is_quiescent();
            let stuck = !(posted || moved || self.work.mishaps || self.living().all(quiescent));
            ensure!(!stuck, Progress, None, self.world.now(), "nothing is due, yet sends are outstanding");
            quiet = if posted { 0 } else { quiet + 1 };
            // A sender may wait forever for a receive that is never posted.
            if self.work.mishaps && (!posted && !moved || quiet > QUIET_LIMIT) {
                return Ok(());
            }
            if moved {
                changed.push(turn % all_ids.len());
            } else {
                changed.clear();
                changed.extend(all_ids.clone());
            }
        }
        let tally = self.world.wire.tally;
        ensure!(false, Progress, None, self.world.now(), "no end in sight: {tally:?}");
        Ok(())
    }

    fn cause_accidents(&mut self) -> Result<(), Broken> {
        while let Some((_, accident)) = self.accidents.pop_if(|(after, _)| *after <= self.world.elapsed()) {
            match accident {
                Accident::Error(end) => {
                    self.allow_failures(end);
                    self.world.set_state(end, QpState::Err)?;
                }
                Accident::Gone(node) => {
                    for end in 0..self.sides.len() {
                        if self.world.ends[end].endpoints.here.node == node {
                            self.allow_failures(end);
                        }
                    }
                    self.world.remove_node(node);
                }
            }
        }
        Ok(())
    }

    /// Allows failures at both ends of the connection of `end`.
    fn allow_failures(&mut self, end: usize) {
        self.sides[end].fragile = true;
        self.sides[end ^ 1].fragile = true;
    }

    fn has_done(&self, id: usize) -> bool {
        let (side, end) = (&self.sides[id], &self.world.ends[id]);
        let all_sent = side.posted == side.quota && side.sends.is_empty();
        let reliable = end.setup.service.is_reliable();
        match side.fragile {
            true => all_sent || end.qp.state() == QpState::Err,
            false => all_sent && (!reliable || side.messages.is_empty()),
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sides.len()).filter(|&id| !self.world.is_removed(id))
    }

    fn post_some(&mut self, id: usize) -> Result<bool, Broken> {
        if !self.sides[id].active || self.world.is_removed(id) {
            return Ok(false);
        }
        let mut posted = false;
        while self.sides[id].when.chance_per_mille(600) && self.post_recv(id)? {
            posted = true;
        }
        while self.sides[id].posted < self.sides[id].quota && self.sides[id].when.chance_per_mille(500) {
            if !self.post_send(id)? {
                break;
            }
            posted = true;
        }
        Ok(posted)
    }

    /// Requests a random state of a random end, legal or not; called only with mishaps.
    fn change_state(&mut self) -> Result<(), Broken> {
        let ends = u32::try_from(self.sides.len()).unwrap_or(u32::MAX);
        let id = self.world.choices.below(ends) as usize;
        let state = self.world.choices.pick(&[QpState::Sqd, QpState::Rts, QpState::Sqd, QpState::Rts, QpState::Err]);
        self.world.set_state(id, state)
    }

    fn finish(&mut self) -> Result<Report, Broken> {
        if !self.work.mishaps {
            self.world.check_settled()?;
            for id in 0..self.sides.len() {
                self.check_shared(id)?;
            }
        }
        let mut report = self.report();
        self.flush_all()?;
        for side in &self.sides {
            report.sends += side.ok_sends;
            report.recvs += side.ok_recvs;
        }
        Ok(report)
    }

    fn report(&mut self) -> Report {
        let world = &mut self.world;
        let mut report = Report { tally: world.wire.tally, timeouts: world.timeouts.iter().sum(), ..Report::default() };
        report.elapsed = world.elapsed();
        for end in &mut world.ends {
            report.failed += u64::from(end.qp.state() == QpState::Err);
            report.notices += end.qp.take_congestion_counts().map_or(0, |counts| counts.rp_cnp_handled.into());
        }
        report
    }

    /// Moves all QPs to ERR: everything outstanding must be flushed, in order, exactly once.
    fn flush_all(&mut self) -> Result<(), Broken> {
        self.work.mishaps = true;
        for id in 0..self.sides.len() {
            self.sides[id].fragile = true;
            if !self.world.is_removed(id) {
                self.world.set_state(id, QpState::Err)?;
            }
        }
        while self.world.step()? {}
        let living: Vec<usize> = self.living().collect();
        for id in living {
            self.check_completions(id)?;
            self.check_flushed(id)?;
        }
        Ok(())
    }

    fn check_flushed(&self, id: usize) -> Result<(), Broken> {
        let (side, end, at) = (&self.sides[id], &self.world.ends[id], self.world.now());
        // Unsignaled requests may have completed before.
        let flushed = side.sends.iter().all(|send| !send.signaled);
        ensure!(flushed, Completions, Some(id), at, "not flushed: {:?}", side.sends);
        let kept = match end.setup.service {
            Service::XrcTgt => end.host.xrc.iter().map(|queue| queue.srq.len()).sum(),
            _ if end.setup.srq => end.host.srq.len(),
            _ => 0,
        };
        ensure!(side.recvs.len() == kept, Completions, Some(id), at, "receives not flushed: {:?}", side.recvs);
        let flow = &end.host.flow;
        ensure!(!flow.releases || flow.reserved == 0, Credit, Some(id), at, "{} bytes leaked", flow.reserved);
        Ok(())
    }
}

impl<C: Choices> Side<C> {
    fn new(memory: &mut crate::host::VecMemory, setup: &Setup, work: &Work, active: bool, choices: &mut C) -> Self {
        let slots = setup.caps.max_send_wr + 2 * setup.caps.max_recv_wr + 8;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let everything = Access::LOCAL_WRITE | remote | Access::FLUSH_GLOBAL | Access::MW_BIND;
        let used = u32::from(active);
        let source = memory.register(used * 4 * region_unit(work.max_len), Access::REMOTE_READ);
        let shared = memory.register(used * 2 * region_unit(work.max_len), everything);
        let sink = memory.register(used * slots * slot_size(work.max_len), Access::LOCAL_WRITE);
        Self {
            active,
            quota: if setup.service == Service::XrcTgt { 0 } else { used * work.messages },
            when: choices.fork(),
            what: choices.fork(),
            fragile: work.mishaps,
            source,
            sink,
            shared,
            model: vec![0; shared.len as usize],
            free: (0..slots).collect(),
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            messages: VecDeque::new(),
            uc_writes: Vec::new(),
            uc_write_next: 0,
            posted: 0,
            next_id: 1,
            queue: 0,
            flushes: 0,
            window: false,
            window_key: None,
            read_pending: false,
            ok_sends: 0,
            ok_recvs: 0,
        }
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl<C: Choices> Scenario<C> {
    fn check_completions(&mut self, id: usize) -> Result<(), Broken> {
        while let Some(cqe) = self.world.ends[id].host.sends.pop_front() {
            self.check_send(id, &cqe)?;
        }
        while let Some(cqe) = self.world.ends[id].host.recvs.pop_front() {
            self.check_recv(id, 0, &cqe)?;
        }
        for queue in 0..self.world.ends[id].host.xrc.len() {
            while let Some(cqe) = self.world.ends[id].host.xrc[queue].done.pop_front() {
                self.check_recv(id, queue, &cqe)?;
            }
        }
        Ok(())
    }

    fn check_send(&mut self, id: usize, cqe: &Cqe) -> Result<(), Broken> {
        let (me, at) = (Some(id), self.world.now());
        let (may_fail, qpn) = (self.sides[id].fragile, self.world.ends[id].endpoints.here.qpn);
        ensure!(cqe.status == WcStatus::Success || may_fail, Completions, me, at, "failed: {cqe:?}");
        ensure!(cqe.qpn == qpn, Completions, me, at, "of another queue pair: {cqe:?}");
        loop {
            let posted = self.sides[id].sends.pop_front();
            ensure!(posted.is_some(), Completions, me, at, "of no outstanding send: {cqe:?}");
            let Some(posted) = posted else { return Ok(()) };
            let is_match = posted.wr_id == cqe.wr_id;
            ensure!(is_match || !posted.signaled, Completions, me, at, "{cqe:?} completed before {posted:?}");
            if is_match && cqe.status != WcStatus::Success {
                self.free_slot(id, &posted.expect);
                return Ok(());
            }
            ensure!(!is_match || posted.signaled, Completions, me, at, "unsignaled success reported: {cqe:?}");
            ensure!(!is_match || posted.matches(cqe), Completions, me, at, "{cqe:?} for {posted:?}");
            self.sides[id].ok_sends += 1;
            self.check_placed(id, &posted)?;
            if posted.opcode == WcOpcode::BindWindow {
                self.sides[id].window_key = Some(RKey(WINDOW));
            }
            if is_match {
                return Ok(());
            }
        }
    }

    fn free_slot(&mut self, id: usize, expect: &Expect) {
        if let Expect::Bytes { slot, .. } = expect {
            self.sides[id].free.push(slot.index);
        }
    }

    fn check_placed(&mut self, id: usize, posted: &PostedSend) -> Result<(), Broken> {
        let Expect::Bytes { slot, data, modelled } = &posted.expect else { return Ok(()) };
        // After failures the order at the peer is not modelled.
        if !(*modelled && self.sides[id].fragile) {
            let right = self.slot(id, *slot, slot.len) == &data[..];
            ensure!(right, Bytes, Some(id), self.world.now(), "wrong bytes landed for {}", posted.wr_id);
        }
        self.check_guard(id, *slot, slot.len)?;
        self.free_slot(id, &posted.expect);
        Ok(())
    }

    fn slot(&self, id: usize, slot: Slot, len: u32) -> &[u8] {
        let sink = self.sides[id].sink;
        range(self.world.ends[id].host.memory.bytes(sink), slot.index * slot_size(self.work.max_len), len)
    }

    /// Checks that the bytes after the first `len` of a slot are untouched.
    fn check_guard(&self, id: usize, slot: Slot, len: u32) -> Result<(), Broken> {
        let all = self.slot(id, slot, slot.len + GUARD_LEN);
        let kept = all[len as usize..].iter().all(|&b| b == UNTOUCHED);
        ensure!(kept, Bytes, Some(id), self.world.now(), "bytes beyond the message were written");
        Ok(())
    }

    /// Checks a completed receive of the end's own queue, or of its SRQ with this index.
    fn check_recv(&mut self, id: usize, queue: usize, cqe: &Cqe) -> Result<(), Broken> {
        let (me, at) = (Some(id), self.world.now());
        let recvs = &mut self.sides[id].recvs;
        let posted = recvs.iter().position(|recv| recv.queue == queue).and_then(|at| recvs.remove(at));
        ensure!(posted.is_some(), Completions, me, at, "of no outstanding receive: {cqe:?}");
        let Some(posted) = posted else { return Ok(()) };
        ensure!(posted.wr_id == cqe.wr_id, Completions, me, at, "{cqe:?} completed before {posted:?}");
        let may_fail = self.sides[id].fragile;
        ensure!(cqe.status == WcStatus::Success || may_fail, Completions, me, at, "failed: {cqe:?}");
        if cqe.status == WcStatus::Success {
            self.sides[id].ok_recvs += 1;
            self.check_message(id, queue, cqe, posted.slot)?;
        }
        self.sides[id].free.push(posted.slot.index);
        Ok(())
    }

    fn check_message(&mut self, id: usize, queue: usize, cqe: &Cqe, slot: Slot) -> Result<(), Broken> {
        let (me, at, service) = (Some(id), self.world.now(), self.world.ends[id].setup.service);
        let sent = &self.sides[id ^ 1].messages;
        let keeps_order = self.loses_nothing(id) && self.world.ends[id].setup.service != Service::Ud;
        let found = if keeps_order {
            let next = sent.iter().position(|message| message.queue == queue);
            next.filter(|&next| self.is_message(id, cqe, slot, &sent[next]))
        } else {
            sent.iter().position(|message| self.is_message(id, cqe, slot, message))
        };
        ensure!(found.is_some(), Bytes, me, at, "no message that was sent, or not the next one: {cqe:?}");
        if let Some(found) = found.filter(|_| self.loses_nothing(id)) {
            self.sides[id ^ 1].messages.remove(found);
        }
        let landed = match (cqe.opcode, service) {
            // UC reuses the receive of a lost longer message, whose data may follow this message's
            // data.
            (_, Service::Uc) => slot.len,
            (WcOpcode::Recv, _) => cqe.byte_len,
            _ => 0,
        };
        self.check_guard(id, slot, landed)
    }

    /// Returns true if every message to this end must arrive: it is retransmitted, or nothing can
    /// lose it.
    fn loses_nothing(&self, id: usize) -> bool {
        let setup = &self.world.ends[id].setup;
        setup.service.is_reliable() || setup.early_wait && !self.sides[id].fragile
    }

    /// Returns true if a completed receive is exactly `message` of the peer.
    fn is_message(&self, id: usize, cqe: &Cqe, slot: Slot, message: &Message) -> bool {
        let grh = if self.world.ends[id].setup.service == Service::Ud { GRH_LEN } else { 0 };
        let opcode = if message.write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let extra = message.imm.map_or(WcExtra::None, WcExtra::Imm);
        if (cqe.opcode, cqe.byte_len, cqe.extra) != (opcode, message.len + grh, extra) {
            return false;
        }
        let source = self.world.ends[id ^ 1].host.memory.bytes(self.sides[id ^ 1].source);
        message.write
            || self.slot(id, slot, grh + message.len)[grh as usize..] == *range(source, message.source, message.len)
    }

    /// Checks that the memory written by the peer equals the model (RC, XRC), or that each write is
    /// absent or right (UC).
    fn check_shared(&self, id: usize) -> Result<(), Broken> {
        let (side, peer, at) = (&self.sides[id], &self.sides[id ^ 1], self.world.now());
        let lost = if self.loses_nothing(id) && !side.fragile { peer.messages.len() } else { 0 };
        ensure!(lost == 0, Bytes, Some(id), at, "{lost} messages were lost: {:?}", peer.messages.front());
        let actual = self.world.ends[id].host.memory.bytes(side.shared);
        if self.world.ends[id].setup.service.is_reliable() {
            let right = side.fragile || actual == side.model;
            ensure!(right, Bytes, Some(id), at, "remote writes and atomics did not run exactly once and in order");
            let flushed = self.world.ends[id].host.memory.flushes;
            let right = side.fragile || flushed == peer.flushes;
            ensure!(right, Bytes, Some(id), at, "{flushed} FLUSHes were done, {} posted", peer.flushes);
            return Ok(());
        }
        let source = self.world.ends[id ^ 1].host.memory.bytes(peer.source);
        for write in &peer.uc_writes {
            let mut pairs = range(actual, write.target, write.len).iter().zip(range(source, write.source, write.len));
            let right = pairs.all(|(&got, &sent)| got == sent || got == 0);
            ensure!(right, Bytes, Some(id), at, "wrong bytes of {write:?}");
        }
        Ok(())
    }
}

/// Guard bytes after each slot, which must stay untouched.
const GUARD_LEN: u32 = 16;

/// Returns the unit of the region sizes in bytes, larger than the longest message.
fn region_unit(max_len: u32) -> u32 {
    (max_len + 1).next_multiple_of(1024)
}

fn slot_size(max_len: u32) -> u32 {
    max_len.max(8) + GRH_LEN + GUARD_LEN
}

fn range(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    &bytes[start as usize..(start + len) as usize]
}
