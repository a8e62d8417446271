//! State and decisions of the weakest legal card (`ROXE_WEAKEST`). Settings and the choices of a
//! seed are in [`roxe_base::weakest`].
//!
//! - `WeakQp`: payload not in memory yet, slots of the send queue, delayed acknowledgements; used
//!   by `qp/cold.rs` and where sends are posted
//! - `atomic`: atomics in steps
//! - `WeakCq`: completions not shown yet; used by `cq.rs`

#[cfg(test)]
mod tests;

pub use roxe_base::weakest::{Wanted, Weakness, draw_seed, turn_on};

use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::standard_error;
use roxe_base::weakest::{Choices, Subject, has, is_used, narrow, seed};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_memory::guard::{self, own_cells};
use roxe_memory::region::AccessScope;
use roxe_memory::regions::Regions;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{AtomicOp, MemError, Side};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, WcStatus};
use roxe_wire::RKey;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, Weak};
use std::time::Duration;

/// Delays of payload and acknowledgements, microseconds: well below any timeout of a peer.
const DELAYS: [u64; 4] = [5, 30, 100, 300];
/// Maximum number of delayed payload bytes per queue pair.
const MAX_DELAYED: usize = 1 << 18;
/// Maximum number of pieces of one payload, without the last byte.
const MAX_PIECES: usize = 12;
/// Spins between the halves of an atomic, to let other processors in.
const PAUSE: u32 = 200;
/// Maximum number of successive empty polls while entries are hidden.
const MAX_EMPTY_POLLS: u32 = 3;
/// Delays of hidden entries, microseconds.
const HIDDEN_FOR: [u64; 4] = [10, 50, 200, 1000];

/// Makes the card's atomics atomic among themselves.
static ATOMICS: Mutex<rank::CardAtomics, ()> = Mutex::new(());

static CREATED: AtomicU64 = AtomicU64::new(0);

/// Turns on the weaknesses in the settings, once, and prints the seed if it is drawn.
pub(crate) fn start(config: &Config) -> Result<(), Error> {
    static STARTED: Once = Once::new();
    let Some(wanted) = config.weakest else { return Ok(()) };
    let seed = wanted.seed.map_or_else(draw_seed, Ok).map_err(|e| Error::os("cannot draw a seed", &e))?;
    STARTED.call_once(|| {
        if wanted.seed.is_none() {
            standard_error::write(&format!("roxe: weakest: seed {seed}\n"));
        }
        narrow(&wanted);
        turn_on(seed, wanted.weaknesses);
    });
    Ok(())
}

/// Bytes of one payload, and the address for each part of it.
pub(crate) type Payload = (Vec<u8>, Vec<(u64, Range<usize>)>);

/// The weakest legal card's state of a queue pair.
#[derive(Debug)]
pub(crate) struct WeakQp {
    me: Weak<dyn DeadlineOwner>,
    placement: Placement,
    slots: Slots,
    acks: Choices,
    ack: Ack,
    is_scheduled: bool,
}

/// Fate of the next acknowledgement that would leave alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ack {
    Undecided,
    Waits,
    Leaves,
}

impl WeakQp {
    pub(crate) fn of_new(me: Weak<dyn DeadlineOwner>, ordinal: u32, depth: u32) -> Option<Box<Self>> {
        has(Weakness::all()).then(|| {
            let slots = Slots { depth, posted: VecDeque::new(), groups: VecDeque::new() };
            let placement = Placement::new(seed(), ordinal);
            let acks = Choices::new(seed(), Subject::Acks, ordinal.into());
            Box::new(Self { me, placement, slots, acks, ack: Ack::Undecided, is_scheduled: false })
        })
    }

    /// Returns true if a UC or UD message without a posted receive is lost at once.
    pub(crate) fn loses_early_messages(&self) -> bool {
        has(Weakness::RECEIVES)
    }

    pub(crate) fn delays_payload(&self) -> bool {
        has(Weakness::PLACEMENT)
    }

    /// Delays the payload `found`; it is in memory before anything that is ordered after it.
    /// Returns false if the fast path must write, and report the error: no address was found, or
    /// the memory is not mapped.
    pub(crate) fn delay(&mut self, side: Side, found: Option<Payload>, (engine, now): (&Engine, Instant)) -> bool {
        let is_mapped = |(addr, part): &(u64, Range<usize>)| {
            let mut bytes = vec![0; part.len()];
            guard::read(*addr, own_cells(&mut bytes)).is_ok()
        };
        let Some((bytes, places)) = found.filter(|(_, places)| places.iter().all(is_mapped)) else {
            // The fast path writes after everything delayed.
            self.placement.place_where(|_| true);
            return false;
        };
        let parts: Vec<_> = places.into_iter().filter_map(|(addr, part)| Some((addr, bytes.get(part)?))).collect();
        self.placement.delay(side, &parts);
        if !self.placement.is_settled(side) {
            self.schedule(engine, now);
        }
        true
    }

    pub(crate) fn settle(&mut self, side: Side) {
        self.placement.settle(side);
    }

    pub(crate) fn settle_all(&mut self) {
        self.placement.place_where(|_| true);
        self.ack = Ack::Leaves;
    }

    /// Returns true if the queue pair may send now, false if an acknowledgement waits for other
    /// packets. Payload is in memory before an acknowledgement or a response leaves.
    pub(crate) fn may_send(&mut self, machine: &mut Machine, is_reliable: bool, engine: &Engine, now: Instant) -> bool {
        // Requests may send the payload of a READ.
        self.placement.settle(Side::Send);
        if is_reliable {
            if machine.owes_only_ack() && self.holds_ack() {
                self.schedule(engine, now);
                return false;
            }
            self.placement.settle(Side::Recv);
            self.ack = Ack::Undecided;
            // Acknowledgements leave after the requests that are ready.
            machine.set_acks_last(has(Weakness::ACKS) && self.acks.one_in(2) && is_used(Weakness::ACKS));
        }
        true
    }

    /// Returns true if an acknowledgement that would leave alone waits for the next deadline.
    fn holds_ack(&mut self) -> bool {
        if !self.placement.is_settled(Side::Recv) {
            return true;
        }
        if self.ack == Ack::Undecided {
            let waits = has(Weakness::ACKS) && self.acks.one_in(4) && is_used(Weakness::ACKS);
            self.ack = if waits { Ack::Waits } else { Ack::Leaves };
        }
        self.ack == Ack::Waits
    }

    fn schedule(&mut self, engine: &Engine, now: Instant) {
        if !std::mem::replace(&mut self.is_scheduled, true) {
            let after = Duration::from_micros(self.acks.pick(DELAYS));
            engine.scheduler.add_deadline(now.after(after), Weak::clone(&self.me));
        }
    }

    /// Writes some delayed payload and releases acknowledgements.
    pub(crate) fn on_deadline(&mut self, engine: &Engine, now: Instant) {
        self.is_scheduled = false;
        self.placement.place_some();
        self.ack = Ack::Leaves;
        if !(self.placement.is_settled(Side::Recv) && self.placement.is_settled(Side::Send)) {
            self.schedule(engine, now);
        }
    }

    /// Returns the free slots of the send queue, given the number of its unpolled completions.
    pub(crate) fn free_sends(&mut self, unpolled: impl FnOnce() -> u32) -> u32 {
        if has(Weakness::SLOTS) { self.slots.free(unpolled()) } else { u32::MAX }
    }

    pub(crate) fn on_posted(&mut self, signaled: bool) {
        self.slots.posted.push_back(signaled);
    }

    pub(crate) fn take_back(&mut self, count: u32) {
        let left = self.slots.posted.len().saturating_sub(count as usize);
        self.slots.posted.truncate(left);
    }

    /// Writes payload ordered before a completion, and counts the completed send.
    pub(crate) fn on_completed(&mut self, side: Side, cqe: &Cqe) {
        self.placement.settle(side);
        if side == Side::Send {
            self.slots.on_completed(cqe);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.slots.posted.clear();
        self.slots.groups.clear();
    }
}

/// Slots of the send queue as a card counts them: polling a completion frees its slot and those
/// of the unsignaled requests before it.
#[derive(Debug)]
struct Slots {
    depth: u32,
    /// For each request not completed, true if it reports its completion.
    posted: VecDeque<bool>,
    /// For each completion that may be unpolled, the number of slots that it frees.
    groups: VecDeque<u32>,
}

impl Slots {
    fn free(&mut self, unpolled: u32) -> u32 {
        let polled = self.groups.len().saturating_sub(unpolled as usize);
        self.groups.drain(..polled);
        let taken =
            self.groups.iter().sum::<u32>().saturating_add(u32::try_from(self.posted.len()).unwrap_or(u32::MAX));
        self.depth.saturating_sub(taken)
    }

    /// Records a completion to be reported; after a failed one each request reports its own.
    fn on_completed(&mut self, cqe: &Cqe) {
        let freed = match cqe.status {
            WcStatus::Success => self.posted.iter().position(|signaled| *signaled).map_or(0, |at| at + 1),
            _ => self.posted.len().min(1),
        };
        self.posted.drain(..freed);
        self.groups.push_back(u32::try_from(freed).unwrap_or(u32::MAX));
    }
}

/// Returns true if the card's atomics are atomic only among themselves.
pub(crate) fn splits_atomics() -> bool {
    has(Weakness::ATOMICS)
}

/// Executes an atomic operation of a peer. If atomics are split, executes it in steps that exclude
/// only other atomics of the card.
pub(crate) fn atomic(
    regions: &Regions<'_>,
    scope: AccessScope,
    rkey: RKey,
    va: u64,
    op: AtomicOp,
) -> Result<u64, MemError> {
    if !splits_atomics() {
        return regions.atomic_remote(scope, rkey, va, op);
    }
    let _alone = ATOMICS.lock();
    if !is_used(Weakness::ATOMICS) {
        return regions.atomic_remote(scope, rkey, va, op);
    }
    let pause = || (0..PAUSE).for_each(|_| std::hint::spin_loop());
    regions.atomic_in_steps(scope, rkey, va, op, pause)
}

#[derive(Debug)]
struct Piece {
    side: Side,
    addr: u64,
    bytes: Box<[u8]>,
}

impl Piece {
    fn overlaps(&self, addr: u64, len: usize) -> bool {
        self.addr < addr.saturating_add(len as u64) && addr < self.addr.saturating_add(self.bytes.len() as u64)
    }

    /// Writes the bytes; memory that the program has unmapped meanwhile is skipped.
    fn place(self) {
        let _ = guard::write(self.addr, &self.bytes);
    }
}

/// Delayed payload of one queue pair.
///
/// A payload is split into pieces. Some are written at once, mostly the last byte first, the others
/// in any order, until a completion, atomic or acknowledgement requires all of one side.
/// Overlapping writes keep their order. Deregistration writes all delayed payload before it
/// returns.
#[derive(Debug)]
struct Placement {
    pieces: Vec<Piece>,
    waiting: usize,
    payloads: Choices,
    rounds: Choices,
}

impl Placement {
    fn new(seed: u64, ordinal: u32) -> Self {
        let choices = |subject| Choices::new(seed, subject, ordinal.into());
        Self { pieces: vec![], waiting: 0, payloads: choices(Subject::Payload), rounds: choices(Subject::Rounds) }
    }

    /// Returns true if no payload of `side` is delayed.
    fn is_settled(&self, side: Side) -> bool {
        self.pieces.iter().all(|piece| piece.side != side)
    }

    fn delay(&mut self, side: Side, parts: &[(u64, &[u8])]) {
        for (addr, bytes) in parts {
            self.place_where(|piece| piece.overlaps(*addr, bytes.len()));
        }
        let mut pieces: Vec<Piece> = parts.iter().flat_map(|(addr, bytes)| self.split(side, *addr, bytes)).collect();
        self.shuffle(&mut pieces);
        let at_once = self.payloads.below(pieces.len() + 1);
        if !is_used(Weakness::PLACEMENT) {
            // Errors are ignored, as in `Piece::place`.
            parts.iter().for_each(|(addr, bytes)| _ = guard::write(*addr, bytes));
            return;
        }
        let waiting = pieces.split_off(at_once);
        pieces.into_iter().for_each(Piece::place);
        self.waiting += waiting.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        self.pieces.extend(waiting);
        if self.waiting > MAX_DELAYED {
            self.place_where(|_| true);
        }
    }

    /// Splits bytes into pieces of one size, with the last byte alone: programs poll the last byte.
    fn split(&mut self, side: Side, addr: u64, bytes: &[u8]) -> Vec<Piece> {
        let (rest, last) = bytes.split_at(bytes.len().saturating_sub(1));
        let size = self.payloads.pick([1, 3, 8, 61, 64, 256]).max(rest.len().div_ceil(MAX_PIECES));
        let pieces = rest.chunks(size).chain([last]).scan(addr, |at, bytes| {
            let piece = Piece { side, addr: *at, bytes: bytes.into() };
            *at += bytes.len() as u64;
            Some(piece)
        });
        pieces.collect()
    }

    /// Shuffles pieces and mostly puts the last byte first.
    fn shuffle(&mut self, pieces: &mut [Piece]) {
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, self.payloads.below(at + 1));
        }
        let last = pieces.iter().enumerate().max_by_key(|(_, piece)| piece.addr).map(|(at, _)| at);
        if let Some(last) = last.filter(|_| !self.payloads.one_in(4)) {
            pieces.swap(0, last);
        }
    }

    fn place_some(&mut self) {
        for _ in 0..=self.rounds.below(self.pieces.len()) {
            if self.pieces.is_empty() {
                return;
            }
            let piece = self.pieces.swap_remove(self.rounds.below(self.pieces.len()));
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }

    fn settle(&mut self, side: Side) {
        self.place_where(|piece| piece.side == side);
    }

    fn place_where(&mut self, mut is_due: impl FnMut(&Piece) -> bool) {
        for piece in self.pieces.extract_if(.., |piece| is_due(piece)) {
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }
}

/// The weakest legal card's state of a completion queue.
///
/// The newest entries may be hidden: neither polled nor announced, until a deadline or a few empty
/// polls. A poll returns all entries that are shown, as its man page says, and entries keep their
/// order. Arming may raise an event for a completion since the last event that was polled already.
#[derive(Debug)]
pub(crate) struct WeakCq {
    completions: Choices,
    polls: Choices,
    events: Choices,
    /// Weaknesses of completion queues that are on.
    weaknesses: Weakness,
    /// Number of hidden entries, the newest.
    pub(crate) hidden: usize,
    empty_polls: u32,
    is_scheduled: bool,
}

impl WeakCq {
    pub(crate) fn of_new() -> Option<Box<Self>> {
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let all = [Weakness::COMPLETIONS, Weakness::SPURIOUS, Weakness::EVENTS];
        let weaknesses = all.into_iter().filter(|weakness| has(*weakness)).collect();
        (weaknesses != Weakness::empty()).then(|| Box::new(Self::new(seed(), number, weaknesses)))
    }

    fn new(seed: u64, number: u64, weaknesses: Weakness) -> Self {
        let choices = |subject| Choices::new(seed, subject, number);
        let [completions, polls, events] = [Subject::Completions, Subject::Polls, Subject::Events].map(choices);
        Self { completions, polls, events, weaknesses, hidden: 0, empty_polls: 0, is_scheduled: false }
    }

    /// Decides if an entry just appended is hidden; entries after a hidden one are.
    pub(crate) fn hides(&mut self) -> bool {
        let may_be_late = self.weaknesses.contains(Weakness::COMPLETIONS);
        let hides = self.hidden > 0 || may_be_late && self.completions.one_in(2) && is_used(Weakness::COMPLETIONS);
        self.hidden += usize::from(hides);
        hides
    }

    /// Returns true if arming raises no event for earlier entries.
    pub(crate) fn looks_ahead_only(&self) -> bool {
        self.weaknesses.contains(Weakness::EVENTS) && is_used(Weakness::EVENTS)
    }

    /// Returns true if an event is raised for polled completions.
    pub(crate) fn raises_for_polled(&mut self) -> bool {
        self.weaknesses.contains(Weakness::SPURIOUS) && self.events.one_in(2) && is_used(Weakness::SPURIOUS)
    }

    /// Returns the delay of a deadline to show hidden entries, unless one is registered.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        let is_new = !std::mem::replace(&mut self.is_scheduled, true);
        is_new.then(|| Duration::from_micros(self.completions.pick(HIDDEN_FOR)))
    }

    /// Returns the number of entries to show at the deadline.
    pub(crate) fn on_deadline(&mut self) -> usize {
        self.is_scheduled = false;
        self.hidden
    }

    /// Returns the number of entries that a poll for `max` may take of `held`, and the number of
    /// hidden entries to show first.
    pub(crate) fn poll(&mut self, max: usize, held: usize) -> (usize, usize) {
        let shown = held.saturating_sub(self.hidden);
        if held == 0 {
            return (0, 0);
        }
        if shown == 0 {
            self.empty_polls += 1;
            if self.empty_polls <= MAX_EMPTY_POLLS && !self.polls.one_in(3) {
                return (0, 0);
            }
        }
        self.empty_polls = 0;
        let more = if shown == 0 { 1 + self.polls.below(self.hidden) } else { 0 };
        (max.min(shown + more), more)
    }
}
