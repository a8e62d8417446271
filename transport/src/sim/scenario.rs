//! Random work on a world, and the judge of what comes out.
//!
//! May touch: the rest of `sim`. One scenario serves the simulation (decisions from a seed,
//! everything must succeed) and the fuzzer (decisions from its input, mishaps allowed). What each
//! connection does is decided apart from the others and apart from time, so that it stays the same
//! when something is left out. What is judged, besides the promises that every step is held to:
//! * every work request completes at most once, in posting order, and exactly once when nothing
//!   goes wrong;
//! * a successful receive, READ or atomic delivered exactly the right bytes and no byte beyond
//!   them;
//! * RC delivers every message once and in order, and remote memory ends as if every operation ran
//!   once, in order;
//! * XRC does the same for each of the shared queues that messages name, and only one end of a
//!   connection sends;
//! * UC and UD deliver a message whole and right or not at all.

mod judge;
mod post;
mod slots;

use self::slots::{room, slot_size};
use super::host::{SRQ_MAX_SGE, XrcQueue};
use super::memory::Mr;
use super::pair::Pair;
use super::promise::{Broken, ensure};
use super::rng::{Choices, Rng};
use super::setup::{QKEY, Setup};
use super::wire::Tally;
use super::world::World;
use crate::qp::QpState;
use crate::qp::shared::Service;
use crate::wr::{Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest};
use crate::wr::{WcExtra, WcOpcode, WcStatus};
use core::time::Duration;
use roxe_wire::{Feth, ImmDt, LKey, Placement, RKey, Selectivity};
use std::collections::VecDeque;

/// What a landing slot holds before anything lands.
const UNTOUCHED: u8 = 0x5a;
/// Numbers of the shared queues of an XRC target.
const QUEUES: [u32; 2] = [0x21, 0x4_0022];
/// Key of the one window that an end opens.
const WINDOW: u32 = 0xff00_0017;
/// Steps for each end after which a run that does not end is called stuck.
const STEP_LIMIT: usize = 200_000;
/// Steps without anything posted after which a run with mishaps ends.
const QUIET_LIMIT: u32 = 1000;

/// The amount and kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Messages that each end posts.
    pub messages: u32,
    /// Longest message, bytes.
    pub max_len: u32,
    /// Work requests may be wrong, QPs may be moved between states: only "at most once, in order,
    /// right" is judged.
    pub mishaps: bool,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Packets and faults.
    pub tally: Tally,
    /// Successful sends, READs, writes and atomics.
    pub sends: u64,
    /// Successful receives.
    pub recvs: u64,
    /// Timers that ran out: for acknowledgements, after RNR NAKs, for the next packet of a limited
    /// rate.
    pub timeouts: u64,
    /// Congestion notices that were obeyed.
    pub notices: u64,
    /// Ends that were in the error state when all work was done.
    pub failed: u64,
    /// Virtual time, of all runs together.
    pub elapsed: Duration,
}

impl Report {
    /// Adds another run.
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

/// A place where data lands: `len` bytes and a guard.
#[derive(Clone, Copy, Debug)]
struct Slot {
    index: u32,
    len: u32,
}

/// What must lie in a slot when its request succeeds.
#[derive(Debug)]
enum Expect {
    Nothing,
    /// These bytes; if `modelled`, as the memory model has it, which holds only while nothing goes
    /// wrong.
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
    /// Whether a successful completion says what this request did; lengths matter where data
    /// landed.
    fn is_told_by(&self, cqe: &Cqe) -> bool {
        let landed = if let Expect::Bytes { slot, .. } = self.expect { Some(slot.len) } else { None };
        self.opcode == cqe.opcode && landed.is_none_or(|len| len == cqe.byte_len)
    }
}

#[derive(Debug)]
struct PostedRecv {
    wr_id: u64,
    slot: Slot,
    /// Index of the shared queue (XRC), else 0.
    queue: usize,
}

/// A message that consumes a receive of the peer.
#[derive(Debug, Clone, Copy)]
struct Message {
    source: u32,
    len: u32,
    imm: Option<ImmDt>,
    write: bool,
    /// Index of the shared queue that it names (XRC), else 0.
    queue: usize,
}

/// Plain writes of a UC peer into its own part of `shared`: they may arrive or not, but never
/// wrong.
#[derive(Debug, Clone, Copy)]
struct UcWrite {
    target: u32,
    source: u32,
    len: u32,
}

/// One end, its work so far and what must come of it.
struct Side<C> {
    /// When something is posted.
    when: C,
    /// What is posted.
    what: C,
    /// Whether this end posts anything.
    active: bool,
    /// Messages that it posts.
    quota: u32,
    /// Things may go wrong here: only "at most once, in order, right" is judged.
    fragile: bool,
    /// Constant data.
    source: Mr,
    /// Landing slots of receives, READs and atomics.
    sink: Mr,
    /// What the peer writes, and what must be in it in the end.
    shared: Mr,
    model: Vec<u8>,
    free: Vec<u32>,
    sends: VecDeque<PostedSend>,
    recvs: VecDeque<PostedRecv>,
    /// Messages this side sent that the peer has not received (RC) or all of them (UC, UD).
    messages: VecDeque<Message>,
    uc_writes: Vec<UcWrite>,
    uc_write_next: u32,
    posted: u32,
    next_id: u64,
    /// Index of the peer's shared queue that the next send names (XRC).
    queue: usize,
    /// FLUSHes posted.
    flushes: u32,
    /// A window on `shared` was posted, and what the peer may use since it is open.
    window: bool,
    open: Option<RKey>,
    /// A READ of mutable memory may be outstanding: the next change of it must be fenced.
    read_pending: bool,
    ok_sends: u64,
    ok_recvs: u64,
}

/// Something that happens to a run from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// This end is moved to the error state.
    Error(usize),
    /// This node disappears with everything on it.
    Gone(usize),
}

/// A world, its work so far and the judge.
pub struct Scenario<C> {
    /// The world.
    pub world: World<C>,
    work: Work,
    sides: Vec<Side<C>>,
    /// What is still to happen, the first last.
    accidents: Vec<(Duration, Accident)>,
}

/// Runs `work` on a fresh pair until all of it is done, and judges.
///
/// # Panics
/// When a promise is broken.
pub fn run<C: Choices>(pair: Pair<C>, work: Work) -> Report {
    let played = Scenario::new(pair.into_world(), work).play();
    played.unwrap_or_else(|broken| panic!("{broken}"))
}

impl<C: Choices> Scenario<C> {
    /// Prepares `work` for every end of `world` that is in RTS; all others do nothing.
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

    /// Only the first end of each connection posts sends.
    pub fn mute_second_ends(&mut self) {
        self.sides.iter_mut().skip(1).step_by(2).for_each(|side| side.quota = 0);
    }

    /// Lets `accident` happen after some time, if the work takes so long.
    #[must_use]
    pub fn with_accident(mut self, after: Duration, accident: Accident) -> Self {
        self.accidents.push((after, accident));
        self.accidents.sort_by_key(|(after, _)| core::cmp::Reverse(*after));
        self
    }

    /// Runs the work until all of it is done.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn play(&mut self) -> Result<Report, Broken> {
        self.drive()?;
        self.finish()
    }

    fn drive(&mut self) -> Result<(), Broken> {
        let everyone = 0..self.sides.len();
        let mut news: Vec<usize> = everyone.clone().collect();
        let mut quiet = 0;
        for turn in 0..STEP_LIMIT * self.sides.len() {
            self.cause_accidents()?;
            let mut posted = false;
            for &who in &news {
                posted |= self.post_some(who)?;
            }
            if self.work.mishaps && self.world.choices.chance(10) {
                self.change_state()?;
            }
            let moved = self.world.step()?;
            self.world.take_news(&mut news);
            for &who in &news {
                self.reap(who)?;
            }
            if !moved && self.is_done() {
                return Ok(());
            }
            let stuck = !(posted || moved || self.may_stop());
            ensure!(!stuck, Progress, None, self.world.now(), "nothing is due, yet sends are outstanding");
            quiet = if posted { 0 } else { quiet + 1 };
            // A sender may wait for ever for a receive that nobody posts any more.
            if self.work.mishaps && (!posted && !moved || quiet > QUIET_LIMIT) {
                return Ok(());
            }
            if moved {
                news.push(turn % everyone.len());
            } else {
                news.clear();
                news.extend(everyone.clone());
            }
        }
        let tally = self.world.wire.tally;
        ensure!(false, Progress, None, self.world.now(), "no end in sight: {tally:?}");
        Ok(())
    }

    /// Lets happen what is to happen by now.
    fn cause_accidents(&mut self) -> Result<(), Broken> {
        while let Some((_, accident)) = self.accidents.pop_if(|(after, _)| *after <= self.world.elapsed()) {
            match accident {
                Accident::Error(end) => {
                    self.allow_failures(end);
                    self.world.go_to(end, QpState::Err)?;
                }
                Accident::Gone(node) => {
                    for end in 0..self.sides.len() {
                        if self.world.ends[end].endpoints.here.node == node {
                            self.allow_failures(end);
                        }
                    }
                    self.world.kill_node(node);
                }
            }
        }
        Ok(())
    }

    /// From now on things may go wrong at both ends of the connection of `end`.
    fn allow_failures(&mut self, end: usize) {
        self.sides[end].fragile = true;
        self.sides[end ^ 1].fragile = true;
    }

    /// With no packet in flight and no timer set, nothing may be left in a send queue.
    fn may_stop(&self) -> bool {
        self.work.mishaps || self.living().all(|who| self.world.ends[who].qp.is_quiescent())
    }

    fn is_done(&self) -> bool {
        self.living().all(|who| self.has_done(who))
    }

    fn has_done(&self, who: usize) -> bool {
        let (side, end) = (&self.sides[who], &self.world.ends[who]);
        let all_sent = side.posted == side.quota && side.sends.is_empty();
        let reliable = end.setup.service.is_reliable();
        match side.fragile {
            true => all_sent || end.qp.state() == QpState::Err,
            false => all_sent && (!reliable || side.messages.is_empty()),
        }
    }

    /// Ends whose node is not gone.
    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sides.len()).filter(|&who| !self.world.is_gone(who))
    }

    fn post_some(&mut self, who: usize) -> Result<bool, Broken> {
        if !self.sides[who].active || self.world.is_gone(who) {
            return Ok(false);
        }
        let mut posted = false;
        while self.sides[who].when.chance(600) && self.post_recv(who)? {
            posted = true;
        }
        while self.sides[who].posted < self.sides[who].quota && self.sides[who].when.chance(500) {
            if !self.post_send(who)? {
                break;
            }
            posted = true;
        }
        Ok(posted)
    }

    /// With mishaps: asks for some state, legal or not.
    fn change_state(&mut self) -> Result<(), Broken> {
        let ends = u32::try_from(self.sides.len()).unwrap_or(u32::MAX);
        let who = self.world.choices.below(ends) as usize;
        let state = self.world.choices.pick(&[QpState::Sqd, QpState::Rts, QpState::Sqd, QpState::Rts, QpState::Err]);
        self.world.go_to(who, state)
    }

    fn finish(&mut self) -> Result<Report, Broken> {
        if !self.work.mishaps {
            self.world.check_settled()?;
            for who in 0..self.sides.len() {
                self.check_shared(who)?;
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

    /// Moves all QPs to ERR: everything outstanding must come out flushed, in order, exactly once.
    fn flush_all(&mut self) -> Result<(), Broken> {
        self.work.mishaps = true;
        for who in 0..self.sides.len() {
            self.sides[who].fragile = true;
            if !self.world.is_gone(who) {
                self.world.go_to(who, QpState::Err)?;
            }
        }
        while self.world.step()? {}
        let living: Vec<usize> = self.living().collect();
        for who in living {
            self.reap(who)?;
            self.check_flushed(who)?;
        }
        Ok(())
    }

    fn check_flushed(&self, who: usize) -> Result<(), Broken> {
        let (side, end, at) = (&self.sides[who], &self.world.ends[who], self.world.now());
        // What is left completed in silence before.
        let flushed = side.sends.iter().all(|send| !send.signaled);
        ensure!(flushed, Completions, Some(who), at, "not flushed: {:?}", side.sends);
        let kept = match end.setup.service {
            Service::XrcTgt => end.host.xrc.iter().map(|queue| queue.srq.len()).sum(),
            _ if end.setup.srq => end.host.srq.len(),
            _ => 0,
        };
        ensure!(side.recvs.len() == kept, Completions, Some(who), at, "receives not flushed: {:?}", side.recvs);
        let flow = &end.host.flow;
        ensure!(!flow.returns || flow.reserved == 0, Credit, Some(who), at, "{} bytes leaked", flow.reserved);
        Ok(())
    }
}

impl<C: Choices> Side<C> {
    fn new(memory: &mut super::memory::VecMemory, setup: &Setup, work: &Work, active: bool, choices: &mut C) -> Self {
        let slots = setup.caps.max_send_wr + 2 * setup.caps.max_recv_wr + 8;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let everything = Access::LOCAL_WRITE | remote | Access::FLUSH_GLOBAL | Access::MW_BIND;
        let used = u32::from(active);
        let source = memory.register(used * 4 * room(work.max_len), Access::REMOTE_READ);
        let shared = memory.register(used * 2 * room(work.max_len), everything);
        let sink = memory.register(used * slots * slot_size(work.max_len), Access::LOCAL_WRITE);
        Self {
            active,
            // A target has nothing to send with.
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
            open: None,
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
