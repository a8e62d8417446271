//! Random work on a pair, and the judge of what comes out.
//!
//! May touch: the rest of `sim`. One scenario serves the simulation (decisions from a seed, everything must succeed) and
//! the fuzzer (decisions from its input, mishaps allowed). What is judged:
//! * every work request completes at most once, in posting order, and exactly once when nothing goes wrong;
//! * a successful receive, READ or atomic delivered exactly the right bytes and no byte beyond them;
//! * RC delivers every message once and in order, and remote memory ends as if every operation ran once, in order;
//! * UC and UD deliver a message whole and right or not at all.

mod judge;
mod post;

use super::host::SRQ_MAX_SGE;
use super::memory::Mr;
use super::pair::Pair;
use super::rng::{Choices, Rng};
use super::setup::{QKEY, Setup, av, qpn};
use super::wire::{Peer, Tally};
use crate::qp::attr::{AttrMask, QpAttr, QpState};
use crate::qp::shared::Service;
use crate::wr::{Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest};
use crate::wr::{WcExtra, WcOpcode, WcStatus};
use roxe_wire::{ImmDt, RKey};
use std::collections::VecDeque;

/// Guard bytes behind each landing slot; they must stay as they are.
const GUARD: u32 = 16;
/// What a landing slot holds before anything lands.
const UNTOUCHED: u8 = 0x5a;
/// Bytes of GRH before a datagram.
const GRH_LEN: u32 = 40;
/// Steps after which a run that does not end is called stuck.
const STEP_LIMIT: u32 = 400_000;
/// Steps without anything posted after which a run with mishaps ends.
const QUIET_LIMIT: u32 = 1000;

/// The amount and kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Messages that each side posts.
    pub messages: u32,
    /// Longest message, bytes.
    pub max_len: u32,
    /// Work requests may be wrong, QPs may be moved between states: only "at most once, in order, right" is judged.
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
    /// Local ACK and RNR timeouts.
    pub timeouts: u64,
}

impl Report {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.sends += other.sends;
        self.recvs += other.recvs;
        self.timeouts += other.timeouts;
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
    /// These bytes; if `modelled`, as the memory model has it, which holds only while nothing goes wrong.
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
    /// Whether a successful completion says what this request did; lengths matter where data landed.
    fn is_told_by(&self, cqe: &Cqe) -> bool {
        let landed = if let Expect::Bytes { slot, .. } = self.expect { Some(slot.len) } else { None };
        self.opcode == cqe.opcode && landed.is_none_or(|len| len == cqe.byte_len)
    }
}

#[derive(Debug)]
struct PostedRecv {
    wr_id: u64,
    slot: Slot,
}

/// A message that consumes a receive of the peer.
#[derive(Debug, Clone, Copy)]
struct Message {
    source: u32,
    len: u32,
    imm: Option<ImmDt>,
    write: bool,
}

/// Plain writes of a UC peer into its own part of `shared`: they may arrive or not, but never wrong.
#[derive(Debug, Clone, Copy)]
struct UcWrite {
    target: u32,
    source: u32,
    len: u32,
}

struct SideState {
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
    /// A READ of mutable memory may be outstanding: the next change of it must be fenced.
    read_pending: bool,
    ok_sends: u64,
    ok_recvs: u64,
}

/// A pair, its work so far and the judge.
pub struct Scenario<C> {
    pair: Pair<C>,
    work: Work,
    sides: [SideState; 2],
}

/// Runs `work` on a fresh pair until all of it is done, and judges.
///
/// # Panics
/// When a promise is broken.
pub fn run<C: Choices>(pair: Pair<C>, work: Work) -> Report {
    let mut scenario = Scenario::new(pair, work);
    scenario.drive();
    scenario.finish()
}

/// A random setup for `service`, with random faults up to `worst` per thousand of each kind.
///
/// A `hardy` pair has all retries there are, and faults pause before they are spent: everything can succeed. Any other
/// has as few as it happens to get.
pub fn random_pair<C: Choices>(service: Service, worst: u32, hardy: bool, mut choices: C) -> Pair<C> {
    let mut setup = random_setup(service, &mut choices);
    if !hardy {
        (setup.retry_cnt, setup.rnr_retry) = (choices.below(8) as u8, choices.below(8) as u8);
    }
    let mut pair = Pair::with_choices(setup, choices);
    pair.wire.mercy = hardy.then_some(3);
    for who in [Peer::A, Peer::B] {
        let mut rate = || u16::try_from(pair.choices.below(worst + 1)).unwrap_or(0);
        let (drop, duplicate, reorder, corrupt) = (rate(), rate(), rate(), rate());
        pair.wire.faults[who.index()] = super::Faults { drop, duplicate, reorder, corrupt };
    }
    pair
}

fn random_setup(service: Service, choices: &mut impl Choices) -> Setup {
    let base = Setup::of(service);
    let mut caps = base.caps;
    caps.max_send_wr = choices.between(1, 32);
    caps.max_recv_wr = choices.between(1, 32);
    let max_rd_atomic = choices.between(1, 8) as u8;
    Setup {
        path_mtu: choices.pick(&roxe_wire::PathMtu::ALL),
        caps,
        sq_sig_all: choices.chance(300),
        srq: service == Service::Rc && choices.chance(250),
        // Near the end of the number space in half of the runs, so that wrap-around is the common case.
        psn: [psn(choices), psn(choices)],
        timeout: choices.between(8, 12) as u8,
        min_rnr_timer: choices.between(1, 12) as u8,
        max_rd_atomic,
        max_dest_rd_atomic: max_rd_atomic + choices.below(3) as u8,
        batch: choices.between(1, 40) as usize,
        stall: if choices.chance(500) { choices.below(600) } else { 0 },
        flow_limit: choices.chance(300).then(|| choices.between(1, 40_000)),
        log: false,
        ..base
    }
}

fn psn(choices: &mut impl Choices) -> u32 {
    if choices.chance(500) { 0x00ff_ffff - choices.below(200) } else { choices.below(1 << 24) }
}

impl<C: Choices> Scenario<C> {
    fn new(mut pair: Pair<C>, work: Work) -> Self {
        let slots = pair.setup.caps.max_send_wr + 2 * pair.setup.caps.max_recv_wr + 8;
        let seed = u64::from(pair.choices.below(1 << 16));
        let sides = [Peer::A, Peer::B].map(|who| {
            let memory = &mut pair.end(who).host.memory;
            let source = memory.register(work.source_len(), Access::REMOTE_READ);
            let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let shared = memory.register(work.shared_len(), everything);
            let sink = memory.register(slots * slot_size(&work), Access::LOCAL_WRITE);
            Rng::new(seed + who as u64).fill(memory.bytes_mut(source));
            SideState::new(source, sink, shared, slots)
        });
        Self { pair, work, sides }
    }

    fn drive(&mut self) {
        let mut quiet = 0;
        for _ in 0..STEP_LIMIT {
            let mut posted = false;
            for who in [Peer::A, Peer::B] {
                posted |= self.post_some(who);
            }
            if self.work.mishaps && self.pair.choices.chance(10) {
                self.change_state();
            }
            let moved = self.pair.step();
            for who in [Peer::A, Peer::B] {
                self.reap(who);
            }
            if self.is_done() && !moved {
                return;
            }
            assert!(posted || moved || self.may_stop(), "stuck: {:?}", self.sides.each_ref().map(|side| &side.sends));
            quiet = if posted { 0 } else { quiet + 1 };
            // A sender may wait for ever for a receive that nobody posts any more.
            if self.work.mishaps && (!posted && !moved || quiet > QUIET_LIMIT) {
                return;
            }
        }
        panic!("livelock: {:?} after {:?}", self.pair.wire.tally, self.pair.elapsed());
    }

    /// With no packet in flight and no timer set, nothing may be left in a send queue.
    fn may_stop(&self) -> bool {
        self.work.mishaps || self.pair.ends.iter().all(|end| end.qp.is_quiescent())
    }

    fn is_done(&self) -> bool {
        let reliable = self.pair.setup.service == Service::Rc;
        self.sides.iter().all(|side| {
            side.posted == self.work.messages && side.sends.is_empty() && (!reliable || side.messages.is_empty())
        })
    }

    fn post_some(&mut self, who: Peer) -> bool {
        let mut posted = false;
        while self.pair.choices.chance(600) && self.post_recv(who) {
            posted = true;
        }
        while self.sides[who.index()].posted < self.work.messages && self.pair.choices.chance(500) {
            if !self.post_send(who) {
                break;
            }
            posted = true;
        }
        posted
    }

    /// With mishaps: asks for some state, legal or not.
    fn change_state(&mut self) {
        let who = if self.pair.choices.chance(500) { Peer::A } else { Peer::B };
        let state = self.pair.choices.pick(&[QpState::Sqd, QpState::Rts, QpState::Sqd, QpState::Rts, QpState::Err]);
        let end = self.pair.end(who);
        let attr = QpAttr { state, ..*end.qp.attr() };
        // Refusals are fine: the table decides, and its own tests judge it.
        let _ = end.qp.modify(&mut end.host, &attr, AttrMask::STATE);
    }

    fn finish(mut self) -> Report {
        if !self.work.mishaps {
            self.pair.assert_settled();
            for who in [Peer::A, Peer::B] {
                self.check_shared(who);
            }
        }
        self.flush_all();
        let timeouts = self.pair.timeouts.iter().sum();
        let mut report = Report { tally: self.pair.wire.tally, timeouts, ..Report::default() };
        for side in &self.sides {
            report.sends += side.ok_sends;
            report.recvs += side.ok_recvs;
        }
        report
    }

    /// Moves both QPs to ERR: everything outstanding must come out flushed, in order, exactly once.
    fn flush_all(&mut self) {
        self.work.mishaps = true;
        for who in [Peer::A, Peer::B] {
            let end = self.pair.end(who);
            let attr = QpAttr { state: QpState::Err, ..*end.qp.attr() };
            end.qp.modify(&mut end.host, &attr, AttrMask::STATE).expect("any state may go to ERR");
        }
        self.pair.run();
        for who in [Peer::A, Peer::B] {
            self.reap(who);
            let side = &self.sides[who.index()];
            // What is left completed in silence before.
            assert!(side.sends.iter().all(|send| !send.signaled), "{who:?}: not flushed: {:?}", side.sends);
            let kept = if self.pair.setup.srq { self.pair.ends[who.index()].host.srq.len() } else { 0 };
            assert_eq!(side.recvs.len(), kept, "{who:?}: receives not flushed");
            let flow = &self.pair.ends[who.index()].host.flow;
            assert!(!flow.returns || flow.reserved == 0, "{who:?}: {} bytes leaked", flow.reserved);
        }
    }
}

impl Work {
    /// Bytes of constant, random data that each side sends from and lets the peer read: some messages long, so that two
    /// rarely look alike, and no more, because a fuzzer makes thousands of pairs a second.
    fn source_len(&self) -> u32 {
        self.max_len.saturating_mul(4).clamp(1 << 12, 1 << 17)
    }

    /// Bytes of each side that the peer writes, a multiple of 8.
    fn shared_len(&self) -> u32 {
        self.max_len.saturating_mul(8).clamp(1 << 12, 1 << 16).next_multiple_of(8)
    }
}

impl SideState {
    fn new(source: Mr, sink: Mr, shared: Mr, slots: u32) -> Self {
        Self {
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

/// Bytes between the starts of two slots.
fn slot_size(work: &Work) -> u32 {
    work.max_len.max(8) + GRH_LEN + GUARD
}

fn range(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    &bytes[start as usize..(start + len) as usize]
}
