//! Random work on a pair, and the judge of what comes out.
//!
//! May touch: the rest of `sim`. One scenario serves the simulation (decisions from a seed, everything must succeed) and
//! the fuzzer (decisions from its input, mishaps allowed). What is judged:
//! * every work request completes at most once, in posting order, and exactly once when nothing goes wrong;
//! * a successful receive, READ or atomic delivered exactly the right bytes and no byte beyond them;
//! * RC delivers every message once and in order, and remote memory ends as if every operation ran once, in order;
//! * UC and UD deliver a message whole and right or not at all.

use super::host::SRQ_MAX_SGE;
use super::memory::Mr;
use super::pair::Pair;
use super::rng::{Choices, Rng};
use super::setup::{QKEY, Setup, av, qpn};
use super::wire::{Peer, Tally};
use crate::qp::PostError;
use crate::qp::attr::{AttrMask, QpAttr, QpState};
use crate::qp::shared::Service;
use crate::wr::{Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest};
use crate::wr::{WcExtra, WcOpcode, WcStatus};
use roxe_wire::{ImmDt, RKey};
use std::collections::VecDeque;

/// Bytes of constant, random data that each side sends from and lets the peer read.
const SOURCE_LEN: u32 = 1 << 17;
/// Bytes of each side that the peer writes.
const SHARED_LEN: u32 = 1 << 16;
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
pub fn random_pair<C: Choices>(service: Service, worst: u32, mut choices: C) -> Pair<C> {
    let setup = random_setup(service, &mut choices);
    let mut pair = Pair::with_choices(setup, choices);
    pair.wire.mercy = Some(3);
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
            let source = memory.register(SOURCE_LEN, Access::REMOTE_READ);
            let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let shared = memory.register(SHARED_LEN, everything);
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

    fn post_recv(&mut self, who: Peer) -> bool {
        let side = &mut self.sides[who.index()];
        if side.recvs.len() >= self.pair.setup.caps.max_recv_wr as usize {
            return false;
        }
        let Some(index) = side.free.pop() else { return false };
        let short = self.work.mishaps && self.pair.choices.chance(30);
        let room = self.work.max_len + GRH_LEN;
        let slot = Slot { index, len: if short { self.pair.choices.below(room) } else { room } };
        let wr_id = side.fresh_id();
        side.recvs.push_back(PostedRecv { wr_id, slot });
        let (sges, count) = self.landing(who, slot);
        let posted = self.pair.post_recv(who, &RecvRequest { wr_id, sges: &sges[..count] });
        assert_eq!(posted, Ok(()), "there is room for a receive in {:?}", self.pair.end(who).qp.state());
        true
    }

    /// Marks a slot untouched and splits it into a random list.
    fn landing(&mut self, who: Peer, slot: Slot) -> ([Sge; SRQ_MAX_SGE], usize) {
        let size = slot_size(&self.work);
        let sink = self.sides[who.index()].sink;
        let start = (slot.index * size) as usize;
        let memory = &mut self.pair.end(who).host.memory;
        memory.bytes_mut(sink)[start..start + (slot.len + GUARD) as usize].fill(UNTOUCHED);
        split(&mut self.pair.choices, sink, slot.index * size, slot.len)
    }

    fn post_send(&mut self, who: Peer) -> bool {
        let side = &self.sides[who.index()];
        if side.sends.len() >= self.pair.setup.caps.max_send_wr as usize || side.free.is_empty() {
            return false;
        }
        match self.pair.setup.service {
            Service::Rc => self.post_rc(who),
            Service::Uc => self.post_uc(who),
            Service::Ud => self.post_ud(who),
        }
        self.sides[who.index()].posted += 1;
        true
    }

    fn post_rc(&mut self, who: Peer) {
        match self.pair.choices.below(10) {
            0..=3 => self.post_message(who, false),
            4 => self.post_message(who, true),
            5 | 6 => self.post_write(who),
            7 | 8 => self.post_read(who),
            _ => self.post_atomic(who),
        }
    }

    fn post_uc(&mut self, who: Peer) {
        match self.pair.choices.below(4) {
            0 => self.post_uc_write(who, false),
            1 => self.post_uc_write(who, true),
            _ => self.post_message(who, false),
        }
    }

    fn post_ud(&mut self, who: Peer) {
        self.post_message(who, false);
    }

    /// A SEND, or a WRITE with immediate into the peer's shared region; both consume a receive.
    fn post_message(&mut self, who: Peer, write: bool) {
        let mut len = self.length();
        if self.pair.setup.service == Service::Ud {
            len = len.min(self.pair.setup.path_mtu.bytes());
        }
        let source = self.pair.choices.below(SOURCE_LEN - len);
        let imm =
            (write || self.pair.choices.chance(500)).then(|| ImmDt(self.pair.choices.below(u32::MAX).to_be_bytes()));
        let op = match (imm, write) {
            (Some(imm), true) => {
                let (remote_addr, rkey) = self.change_shared(who, source, len);
                SendOp::WriteImm { remote_addr, rkey, imm }
            }
            (Some(imm), false) => SendOp::SendImm(imm),
            (None, _) => SendOp::Send,
        };
        self.sides[who.index()].messages.push_back(Message { source, len, imm, write });
        self.post_from_source(who, op, source, len);
    }

    fn post_write(&mut self, who: Peer) {
        let len = self.length();
        let source = self.pair.choices.below(SOURCE_LEN - len);
        let (remote_addr, rkey) = self.change_shared(who, source, len);
        self.post_from_source(who, SendOp::Write { remote_addr, rkey }, source, len);
    }

    /// Chooses where in the peer's shared region a write of RC lands and keeps the model up to date.
    fn change_shared(&mut self, who: Peer, source: u32, len: u32) -> (u64, RKey) {
        if self.pair.setup.service != Service::Rc {
            return self.claim_uc_target(who, source, len);
        }
        let target = self.pair.choices.below(SHARED_LEN - len);
        let data =
            range(self.pair.ends[who.index()].host.memory.bytes(self.sides[who.index()].source), source, len).to_vec();
        let peer = &mut self.sides[who.other().index()];
        peer.model[target as usize..(target + len) as usize].copy_from_slice(&data);
        (peer.shared.addr + u64::from(target), peer.shared.rkey())
    }

    /// A UC write gets a place of its own, because it may be lost.
    fn claim_uc_target(&mut self, who: Peer, source: u32, len: u32) -> (u64, RKey) {
        let side = &mut self.sides[who.index()];
        let target = side.uc_write_next;
        side.uc_write_next += len;
        side.uc_writes.push(UcWrite { target, source, len });
        let shared = self.sides[who.other().index()].shared;
        (shared.addr + u64::from(target), shared.rkey())
    }

    fn post_uc_write(&mut self, who: Peer, imm: bool) {
        if self.sides[who.index()].uc_write_next + self.work.max_len > SHARED_LEN || imm {
            let fits = self.sides[who.index()].uc_write_next + self.work.max_len <= SHARED_LEN;
            return self.post_message(who, imm && fits);
        }
        self.post_write(who);
    }

    /// Posts an operation whose payload is `len` bytes at `source`, inline or as a random list.
    fn post_from_source(&mut self, who: Peer, op: SendOp, source: u32, len: u32) {
        let mr = self.sides[who.index()].source;
        let inline = len <= self.pair.setup.caps.max_inline_data && self.pair.choices.chance(400);
        let fence = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. }) && self.take_read_pending(who);
        if inline {
            let bytes = range(self.pair.ends[who.index()].host.memory.bytes(mr), source, len);
            let mut copy = [0; 64];
            copy[..bytes.len()].copy_from_slice(bytes);
            self.post(who, op, SendData::Inline(&copy[..len as usize]), fence, Expect::Nothing);
        } else {
            let (mut sges, count) = split(&mut self.pair.choices, mr, source, len);
            self.maybe_spoil(&mut sges);
            self.post(who, op, SendData::Sges(&sges[..count]), fence, Expect::Nothing);
        }
    }

    fn take_read_pending(&mut self, who: Peer) -> bool {
        core::mem::take(&mut self.sides[who.index()].read_pending) || self.pair.choices.chance(50)
    }

    fn post_read(&mut self, who: Peer) {
        let len = self.length();
        let peer = who.other();
        let modelled = self.pair.choices.chance(400);
        let (remote_addr, rkey, data) = if modelled {
            self.sides[who.index()].read_pending = true;
            let at = self.pair.choices.below(SHARED_LEN - len);
            let peer = &self.sides[peer.index()];
            (peer.shared.addr + u64::from(at), peer.shared.rkey(), range(&peer.model, at, len).to_vec())
        } else {
            let at = self.pair.choices.below(SOURCE_LEN - len);
            let mr = self.sides[peer.index()].source;
            let bytes = self.pair.ends[peer.index()].host.memory.bytes(mr);
            (mr.addr + u64::from(at), mr.rkey(), range(bytes, at, len).to_vec())
        };
        self.post_landing(who, SendOp::Read { remote_addr, rkey }, data, modelled, false);
    }

    fn post_atomic(&mut self, who: Peer) {
        let at = self.pair.choices.below(SHARED_LEN / 8) * 8;
        let peer = &mut self.sides[who.other().index()];
        let word = &mut peer.model[at as usize..at as usize + 8];
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        let (remote_addr, rkey) = (peer.shared.addr + u64::from(at), peer.shared.rkey());
        let operand = u64::from(self.pair.choices.below(u32::MAX)) << 13;
        let (op, new) = match self.pair.choices.below(3) {
            0 => (SendOp::FetchAdd { remote_addr, rkey, add: operand }, old.wrapping_add(operand)),
            1 => (SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: operand }, operand),
            _ => (SendOp::CompareSwap { remote_addr, rkey, compare: !old, swap: operand }, old),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        let fence = self.take_read_pending(who);
        self.post_landing(who, op, old.to_ne_bytes().to_vec(), true, fence);
    }

    /// Posts an operation whose result `data` lands in a slot of ours.
    fn post_landing(&mut self, who: Peer, op: SendOp, data: Vec<u8>, modelled: bool, fence: bool) {
        let index = self.sides[who.index()].free.pop().expect("checked by the caller");
        let slot = Slot { index, len: data.len() as u32 };
        let (mut sges, count) = self.landing(who, slot);
        self.maybe_spoil(&mut sges);
        self.post(who, op, SendData::Sges(&sges[..count]), fence, Expect::Bytes { slot, data, modelled });
    }

    fn post(&mut self, who: Peer, op: SendOp, data: SendData<'_>, fence: bool, expect: Expect) {
        let opcode = opcode_of(&op);
        let side = &self.sides[who.index()];
        // A queue full of unsignaled requests could never be known to have drained.
        let must =
            side.posted + 1 == self.work.messages || side.sends.len() + 1 == self.pair.setup.caps.max_send_wr as usize;
        let signaled = must || self.pair.choices.chance(700);
        let wr_id = self.sides[who.index()].fresh_id();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, self.pair.choices.chance(100));
        let ud = UdDest { av: av(who), qpn: qpn(who.other()), qkey: QKEY };
        let ud = (self.pair.setup.service == Service::Ud).then_some(ud);
        let op = self.maybe_mistarget(op);
        let posted = self.pair.post_send(who, &SendRequest { wr_id, op, flags, data, ud });
        if posted == Err(PostError::QueueFull) || (posted.is_err() && self.work.mishaps) {
            panic!("room for a send, yet {posted:?}");
        }
        assert_eq!(posted, Ok(()));
        let signaled = signaled || self.pair.setup.sq_sig_all;
        self.sides[who.index()].sends.push_back(PostedSend { wr_id, signaled, opcode, expect });
    }

    /// With mishaps: sometimes one element of the list has a key of nobody.
    fn maybe_spoil(&mut self, sges: &mut [Sge]) {
        if self.work.mishaps && self.pair.choices.chance(20) {
            sges[0].lkey.0 ^= 0x80;
        }
    }

    /// With mishaps: sometimes the remote key or address is wrong.
    fn maybe_mistarget(&mut self, mut op: SendOp) -> SendOp {
        if !(self.work.mishaps && self.pair.choices.chance(20)) {
            return op;
        }
        let far = self.pair.choices.chance(500);
        match &mut op {
            SendOp::Write { remote_addr, rkey }
            | SendOp::WriteImm { remote_addr, rkey, .. }
            | SendOp::Read { remote_addr, rkey }
            | SendOp::CompareSwap { remote_addr, rkey, .. }
            | SendOp::FetchAdd { remote_addr, rkey, .. } => {
                if far {
                    *remote_addr = u64::MAX - 3;
                } else {
                    rkey.0 = rkey.0.wrapping_add(1);
                }
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => {}
        }
        op
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

    /// A length near the interesting borders, or any.
    fn length(&mut self) -> u32 {
        let mtu = self.pair.setup.path_mtu.bytes();
        let max = self.work.max_len;
        let len = match self.pair.choices.below(8) {
            0 => 0,
            1 => 1,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            5 => self.pair.choices.below(64),
            6 => 2 * mtu,
            _ => self.pair.choices.below(max + 1),
        };
        len.min(max)
    }

    fn reap(&mut self, who: Peer) {
        while let Some(cqe) = self.pair.send_done(who) {
            self.check_send(who, &cqe);
        }
        while let Some(cqe) = self.pair.recv_done(who) {
            self.check_recv(who, &cqe);
        }
    }

    fn check_send(&mut self, who: Peer, cqe: &Cqe) {
        assert!(cqe.status == WcStatus::Success || self.work.mishaps, "{who:?}: {cqe:?}");
        assert_eq!(cqe.qpn, qpn(who));
        loop {
            let posted = self.sides[who.index()].sends.pop_front();
            let posted = posted.unwrap_or_else(|| panic!("{who:?}: completion of no outstanding send: {cqe:?}"));
            let this = posted.wr_id == cqe.wr_id;
            assert!(this || !posted.signaled, "{who:?}: {cqe:?} came before {posted:?}");
            if this && cqe.status != WcStatus::Success {
                return self.forget(who, &posted.expect);
            }
            assert!(!this || posted.signaled, "{who:?}: unsignaled success reported: {cqe:?}");
            assert!(!this || posted.opcode == cqe.opcode, "{who:?}: {cqe:?} for {posted:?}");
            self.sides[who.index()].ok_sends += 1;
            self.check_landed(who, &posted);
            if this {
                return;
            }
        }
    }

    fn forget(&mut self, who: Peer, expect: &Expect) {
        if let Expect::Bytes { slot, .. } = expect {
            self.sides[who.index()].free.push(slot.index);
        }
    }

    fn check_landed(&mut self, who: Peer, posted: &PostedSend) {
        let Expect::Bytes { slot, data, modelled } = &posted.expect else { return };
        // With mishaps the order at the peer is not modelled.
        if !(*modelled && self.work.mishaps) {
            assert_eq!(self.slot(who, *slot, slot.len), &data[..], "{who:?}: {posted:?}");
        }
        self.check_guard(who, *slot, slot.len);
        self.forget(who, &posted.expect);
    }

    /// The first `len` bytes of a slot.
    fn slot(&self, who: Peer, slot: Slot, len: u32) -> &[u8] {
        let sink = self.sides[who.index()].sink;
        range(self.pair.ends[who.index()].host.memory.bytes(sink), slot.index * slot_size(&self.work), len)
    }

    /// Bytes behind the first `len` of a slot are as they were.
    fn check_guard(&self, who: Peer, slot: Slot, len: u32) {
        let all = self.slot(who, slot, slot.len + GUARD);
        assert!(all[len as usize..].iter().all(|&b| b == UNTOUCHED), "{who:?}: bytes beyond the message were written");
    }

    fn check_recv(&mut self, who: Peer, cqe: &Cqe) {
        let posted = self.sides[who.index()].recvs.pop_front();
        let posted = posted.unwrap_or_else(|| panic!("{who:?}: completion of no outstanding receive: {cqe:?}"));
        assert_eq!(posted.wr_id, cqe.wr_id, "{who:?}: receives complete in order");
        assert!(cqe.status == WcStatus::Success || self.work.mishaps, "{who:?}: {cqe:?}");
        if cqe.status == WcStatus::Success {
            self.sides[who.index()].ok_recvs += 1;
            self.check_message(who, cqe, posted.slot);
        }
        self.sides[who.index()].free.push(posted.slot.index);
    }

    fn check_message(&mut self, who: Peer, cqe: &Cqe, slot: Slot) {
        if self.pair.setup.service == Service::Rc {
            let message = self.sides[who.other().index()].messages.pop_front();
            let message = message.unwrap_or_else(|| panic!("{who:?}: a message nobody sent: {cqe:?}"));
            assert!(self.is_message(who, cqe, slot, &message), "{who:?}: {cqe:?} should be {message:?}");
        } else {
            let sent = &self.sides[who.other().index()].messages;
            let found = sent.iter().any(|message| self.is_message(who, cqe, slot, message));
            assert!(found, "{who:?}: a message nobody sent: {cqe:?}");
        }
        let landed = match (cqe.opcode, self.pair.setup.service) {
            // Pieces of a longer message that was lost may lie behind this one: UC reuses the receive.
            (_, Service::Uc) => slot.len,
            (WcOpcode::Recv, _) => cqe.byte_len,
            _ => 0,
        };
        self.check_guard(who, slot, landed);
    }

    /// Whether a completed receive is exactly `message` of the peer.
    fn is_message(&self, who: Peer, cqe: &Cqe, slot: Slot, message: &Message) -> bool {
        let grh = if self.pair.setup.service == Service::Ud { GRH_LEN } else { 0 };
        let opcode = if message.write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let extra = message.imm.map_or(WcExtra::None, WcExtra::Imm);
        if (cqe.opcode, cqe.byte_len, cqe.extra) != (opcode, message.len + grh, extra) {
            return false;
        }
        let source = self.pair.ends[who.other().index()].host.memory.bytes(self.sides[who.other().index()].source);
        message.write
            || self.slot(who, slot, grh + message.len)[grh as usize..] == *range(source, message.source, message.len)
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

    /// Memory that the peer writes ends as the model says (RC), or with each write absent or right (UC).
    fn check_shared(&self, who: Peer) {
        let side = &self.sides[who.index()];
        let actual = self.pair.ends[who.index()].host.memory.bytes(side.shared);
        if self.pair.setup.service == Service::Rc {
            assert!(actual == side.model, "{who:?}: remote writes and atomics did not run exactly once and in order");
            return;
        }
        let peer = &self.sides[who.other().index()];
        let source = self.pair.ends[who.other().index()].host.memory.bytes(peer.source);
        for write in &peer.uc_writes {
            let pairs = range(actual, write.target, write.len).iter().zip(range(source, write.source, write.len));
            assert!(pairs.clone().all(|(&got, &sent)| got == sent || got == 0), "{who:?}: wrong bytes of {write:?}");
        }
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
        }
    }
}

impl SideState {
    fn new(source: Mr, sink: Mr, shared: Mr, slots: u32) -> Self {
        Self {
            source,
            sink,
            shared,
            model: vec![0; SHARED_LEN as usize],
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

/// The opcode that the completion of `op` must have.
fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
    }
}

/// Bytes between the starts of two slots.
fn slot_size(work: &Work) -> u32 {
    work.max_len.max(8) + GRH_LEN + GUARD
}

fn range(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    &bytes[start as usize..(start + len) as usize]
}

/// Splits `len` bytes at `start` of `mr` into one to four elements, some of them empty.
fn split(choices: &mut impl Choices, mr: Mr, start: u32, len: u32) -> ([Sge; SRQ_MAX_SGE], usize) {
    let mut sges = [mr.sge(start, 0); SRQ_MAX_SGE];
    let count = choices.between(1, SRQ_MAX_SGE as u32) as usize;
    let mut at = 0;
    for (i, sge) in sges[..count].iter_mut().enumerate() {
        let take = if i + 1 == count { len - at } else { choices.below(len - at + 1) };
        *sge = mr.sge(start + at, take);
        at += take;
    }
    (sges, count)
}
