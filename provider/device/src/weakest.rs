//! The weakest legal card (`ROXE_WEAKEST`): what queue pairs and completion queues remember for it,
//! and decide.
//!
//! - `WeakQp`: payload that is not in memory yet, places of the send queue, acknowledgements that
//!   wait; asked by `qp/cold.rs` in place of the usual way, and where sends are posted
//! - `atomic`: atomics in steps
//! - `WeakCq`: completions that are not shown yet; asked by `cq.rs`
//!
//! Names, settings and the choices of a seed are [`roxe_base::weakest`]; weaker limits, numbers and
//! keys stand where the usual ones are made. Touches the program's memory, at addresses that were
//! checked, and the timers of the engine. Nothing of it is there on a card that is not weak.

#[cfg(test)]
mod tests;

pub use roxe_base::weakest::{Wanted, Weakness, draw_seed, turn_on};

use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::standard_error;
use roxe_base::weakest::{Choices, Subject, has, seed};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_memory::guard::{self, own_cells};
use roxe_memory::region::Reach;
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

/// How long what waits may wait until there is another look, microseconds: well below any timeout
/// of a peer.
const ROUNDS: [u64; 4] = [5, 30, 100, 300];
/// Bytes that wait for one queue pair.
const MOST: usize = 1 << 18;
/// Pieces that payload comes apart into, but for the last byte.
const MOST_PIECES: usize = 12;
/// Between the halves of an atomic, for the processors to come in between.
const PAUSE: u32 = 200;
/// How often in a row a program polls in vain although there is something.
const MOST_IN_VAIN: u32 = 3;
/// How long completions are not shown, microseconds.
const HIDDEN_FOR: [u64; 4] = [10, 50, 200, 1000];

/// The atomics of the card, which are atomic among themselves.
static ATOMICS: Mutex<rank::CardAtomics, ()> = Mutex::new(());

/// Completion queues created in this process.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// Makes the card of this process a weak one, once, if the settings say so. A seed that they do not
/// name is told.
pub(crate) fn start(config: &Config) -> Result<(), Error> {
    static STARTED: Once = Once::new();
    let Some(wanted) = config.weakest else { return Ok(()) };
    let seed = wanted.seed.map_or_else(draw_seed, Ok).map_err(|e| Error::os("cannot draw a seed", &e))?;
    STARTED.call_once(|| {
        if wanted.seed.is_none() {
            standard_error::write(&format!("roxe: weakest: seed {seed}\n"));
        }
        turn_on(seed, wanted.weaknesses);
    });
    Ok(())
}

/// The bytes of one payload, and the addresses where parts of it belong.
pub(crate) type Payload = (Vec<u8>, Vec<(u64, Range<usize>)>);

/// What a queue pair remembers, under its lock.
#[derive(Debug)]
pub(crate) struct WeakQp {
    /// Who is told when the time has come.
    me: Weak<dyn Deadline>,
    placement: Placement,
    slots: Slots,
    acks: Choices,
    ack: Ack,
    /// The engine knows of a deadline.
    is_waiting: bool,
}

/// What becomes of the next acknowledgement that has no company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ack {
    Undecided,
    Waits,
    Leaves,
}

impl WeakQp {
    /// That of the queue pair `ordinal` of the process, with a send queue of `depth` places, if the
    /// card is weak in any way.
    pub(crate) fn of_new(me: Weak<dyn Deadline>, ordinal: u32, depth: u32) -> Option<Box<Self>> {
        has(Weakness::all()).then(|| {
            let slots = Slots { depth, posted: VecDeque::new(), groups: VecDeque::new() };
            let placement = Placement::new(seed(), ordinal);
            let acks = Choices::new(seed(), Subject::Acks, ordinal.into());
            Box::new(Self { me, placement, slots, acks, ack: Ack::Undecided, is_waiting: false })
        })
    }

    /// Returns true if a message of UC or UD that finds no receive is lost at once.
    pub(crate) fn loses_early_messages(&self) -> bool {
        has(Weakness::RECEIVES)
    }

    /// Returns true if payload is to be handed to [`WeakQp::take_in`] instead of memory.
    pub(crate) fn delays_payload(&self) -> bool {
        has(Weakness::PLACEMENT)
    }

    /// Takes in the payload `found`; it is in memory before anything that is ordered behind it.
    /// Returns false if it goes the usual way, which says why: nothing was found, or memory is not
    /// there.
    pub(crate) fn take_in(&mut self, side: Side, found: Option<Payload>, (engine, now): (&Engine, Instant)) -> bool {
        let is_there = |(addr, part): &(u64, Range<usize>)| {
            let mut bytes = vec![0; part.len()];
            guard::read(*addr, own_cells(&mut bytes)).is_ok()
        };
        let Some((bytes, places)) = found.filter(|(_, places)| places.iter().all(is_there)) else {
            // What goes the usual way comes behind everything else.
            self.placement.settle_all();
            return false;
        };
        let parts: Vec<_> = places.into_iter().filter_map(|(addr, part)| Some((addr, bytes.get(part)?))).collect();
        self.placement.take_in(side, &parts);
        if !self.placement.is_settled(side) {
            self.look_again(engine, now);
        }
        true
    }

    /// Everything of `side` is in memory from now on.
    pub(crate) fn settle(&mut self, side: Side) {
        self.placement.settle(side);
    }

    /// Nothing waits any more: everything is in memory, and acknowledgements leave.
    pub(crate) fn settle_all(&mut self) {
        self.placement.settle_all();
        self.ack = Ack::Leaves;
    }

    /// Returns true if the queue pair sends now; if not, an acknowledgement waits for company.
    /// Nothing is acknowledged or answered that is not in memory.
    pub(crate) fn lets_send(
        &mut self,
        machine: &mut Machine,
        is_reliable: bool,
        engine: &Engine,
        now: Instant,
    ) -> bool {
        // What a READ has brought may be sent now.
        self.placement.settle(Side::Send);
        if is_reliable {
            if machine.owes_only_ack() && self.holds_ack() {
                self.look_again(engine, now);
                return false;
            }
            self.placement.settle(Side::Recv);
            self.ack = Ack::Undecided;
            // Behind the requests that are there.
            machine.set_acks_last(has(Weakness::ACKS) && self.acks.one_in(2));
        }
        true
    }

    /// Whether an acknowledgement that would leave alone waits for another look.
    fn holds_ack(&mut self) -> bool {
        if !self.placement.is_settled(Side::Recv) {
            return true;
        }
        if self.ack == Ack::Undecided {
            let waits = has(Weakness::ACKS) && self.acks.one_in(4);
            self.ack = if waits { Ack::Waits } else { Ack::Leaves };
        }
        self.ack == Ack::Waits
    }

    /// Sees to it that there is another look soon.
    fn look_again(&mut self, engine: &Engine, now: Instant) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            let after = Duration::from_micros(self.acks.pick(ROUNDS));
            engine.scheduler.add_deadline(now.after(after), Weak::clone(&self.me));
        }
    }

    /// Another look: more is placed, and an acknowledgement has waited long enough.
    pub(crate) fn on_deadline(&mut self, engine: &Engine, now: Instant) {
        self.is_waiting = false;
        self.placement.go_on();
        self.ack = Ack::Leaves;
        if !(self.placement.is_settled(Side::Recv) && self.placement.is_settled(Side::Send)) {
            self.look_again(engine, now);
        }
    }

    /// Places of the send queue that are free, while so many of its completions were not polled.
    pub(crate) fn free_sends(&mut self, unpolled: impl FnOnce() -> u32) -> u32 {
        if has(Weakness::SLOTS) { self.slots.free(unpolled()) } else { u32::MAX }
    }

    /// A request was posted.
    pub(crate) fn posted(&mut self, signaled: bool) {
        self.slots.posted.push_back(signaled);
    }

    /// Those posted last were taken back.
    pub(crate) fn take_back(&mut self, count: u32) {
        let left = self.slots.posted.len().saturating_sub(count as usize);
        self.slots.posted.truncate(left);
    }

    /// A request ends: what it brought is in memory, and on the receiving side what came before it.
    pub(crate) fn completed(&mut self, side: Side, cqe: &Cqe) {
        self.placement.settle(side);
        if side == Side::Send {
            self.slots.completed(cqe);
        }
    }

    /// The send queue starts anew.
    pub(crate) fn reset(&mut self) {
        self.slots.posted.clear();
        self.slots.groups.clear();
    }
}

/// Places of the send queue as a card counts them: one is free once a completion behind it was
/// polled.
#[derive(Debug)]
struct Slots {
    depth: u32,
    /// Whether each request that has not completed reports its completion.
    posted: VecDeque<bool>,
    /// How many requests stand behind each completion that may not have been polled.
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

    /// A completion is about to be reported. Behind one in error each request reports its own.
    fn completed(&mut self, cqe: &Cqe) {
        let behind = match cqe.status {
            WcStatus::Success => self.posted.iter().position(|signaled| *signaled).map_or(0, |at| at + 1),
            _ => self.posted.len().min(1),
        };
        self.posted.drain(..behind);
        self.groups.push_back(u32::try_from(behind).unwrap_or(u32::MAX));
    }
}

/// Returns true if atomics of the card are atomic among themselves only.
pub(crate) fn splits_atomics() -> bool {
    has(Weakness::ATOMICS)
}

/// Executes an atomic of a peer. On a card that splits atomics the memory is read and written back
/// in steps, which exclude atomics of the card only.
pub(crate) fn atomic(regions: &Regions<'_>, reach: Reach, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemError> {
    if !splits_atomics() {
        return regions.atomic_remote(reach, rkey, va, op);
    }
    let _alone = ATOMICS.lock();
    let pause = || (0..PAUSE).for_each(|_| std::hint::spin_loop());
    regions.atomic_in_steps(reach, rkey, va, op, pause)
}

/// Bytes that are not placed yet.
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

    /// Memory that the program has unmapped meanwhile takes nothing.
    fn place(self) {
        let _ = guard::write(self.addr, &self.bytes);
    }
}

/// Payload that one queue pair has taken in and that is not in memory yet.
///
/// Payload comes apart into pieces. Some are placed at once, the last byte first, the others bit by
/// bit, in any order, until something asks for all of one side: a completion, an atomic, an
/// acknowledgement. Bytes that are written twice end as they were written last. Whoever takes a
/// region away has everything placed before it returns.
#[derive(Debug)]
struct Placement {
    pieces: Vec<Piece>,
    waiting: usize,
    payloads: Choices,
    rounds: Choices,
}

impl Placement {
    /// Of the queue pair `ordinal` of the process.
    fn new(seed: u64, ordinal: u32) -> Self {
        let choices = |subject| Choices::new(seed, subject, ordinal.into());
        Self { pieces: vec![], waiting: 0, payloads: choices(Subject::Payload), rounds: choices(Subject::Rounds) }
    }

    /// Whether everything of `side` is in memory.
    fn is_settled(&self, side: Side) -> bool {
        self.pieces.iter().all(|piece| piece.side != side)
    }

    /// Takes in one payload, whose parts belong at these addresses.
    fn take_in(&mut self, side: Side, parts: &[(u64, &[u8])]) {
        for (addr, bytes) in parts {
            self.place_where(|piece| piece.overlaps(*addr, bytes.len()));
        }
        let mut pieces: Vec<Piece> =
            parts.iter().flat_map(|(addr, bytes)| self.take_apart(side, *addr, bytes)).collect();
        self.shuffle(&mut pieces);
        let at_once = self.payloads.below(pieces.len() + 1);
        let waiting = pieces.split_off(at_once);
        pieces.into_iter().for_each(Piece::place);
        self.waiting += waiting.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        self.pieces.extend(waiting);
        if self.waiting > MOST {
            self.place_where(|_| true);
        }
    }

    /// The last byte alone, which programs wait for, and the rest in pieces of one size.
    fn take_apart(&mut self, side: Side, addr: u64, bytes: &[u8]) -> Vec<Piece> {
        let (rest, last) = bytes.split_at(bytes.len().saturating_sub(1));
        let size = self.payloads.pick([1, 3, 8, 61, 64, 256]).max(rest.len().div_ceil(MOST_PIECES));
        let pieces = rest.chunks(size).chain([last]).scan(addr, |at, bytes| {
            let piece = Piece { side, addr: *at, bytes: bytes.into() };
            *at += bytes.len() as u64;
            Some(piece)
        });
        pieces.collect()
    }

    /// Mostly the last byte comes first.
    fn shuffle(&mut self, pieces: &mut [Piece]) {
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, self.payloads.below(at + 1));
        }
        let last = pieces.iter().enumerate().max_by_key(|(_, piece)| piece.addr).map(|(at, _)| at);
        if let Some(last) = last.filter(|_| !self.payloads.one_in(4)) {
            pieces.swap(0, last);
        }
    }

    /// Some more of what waits is placed.
    fn go_on(&mut self) {
        for _ in 0..=self.rounds.below(self.pieces.len()) {
            if self.pieces.is_empty() {
                return;
            }
            let piece = self.pieces.swap_remove(self.rounds.below(self.pieces.len()));
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }

    /// Places everything of `side`.
    fn settle(&mut self, side: Side) {
        self.place_where(|piece| piece.side == side);
    }

    /// Places everything.
    fn settle_all(&mut self) {
        self.place_where(|_| true);
    }

    fn place_where(&mut self, mut is_due: impl FnMut(&Piece) -> bool) {
        for piece in self.pieces.extract_if(.., |piece| is_due(piece)) {
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }
}

/// What a completion queue remembers, under its lock: completions that it holds and does not show
/// yet.
///
/// The newest entries of a queue may not have happened yet for a program: they neither come out nor
/// raise an event. They do after a while, or when a program has looked in vain a few times. A poll
/// gives all that has happened, as its man page says. Entries keep their order. An arming may find
/// that a completion came since the last event, and raise one although it was polled.
#[derive(Debug)]
pub(crate) struct WeakCq {
    completions: Choices,
    polls: Choices,
    events: Choices,
    /// What it does of what concerns completion queues.
    does: Weakness,
    /// The newest entries that are not shown yet.
    pub(crate) hidden: usize,
    in_vain: u32,
    /// The engine knows of a deadline.
    is_waiting: bool,
}

impl WeakCq {
    /// That of a new queue, if it is one of the weakest legal card.
    pub(crate) fn of_new() -> Option<Box<Self>> {
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let all = [Weakness::COMPLETIONS, Weakness::SPURIOUS, Weakness::EVENTS];
        let does = all.into_iter().filter(|weakness| has(*weakness)).collect();
        (does != Weakness::empty()).then(|| Box::new(Self::new(seed(), number, does)))
    }

    fn new(seed: u64, number: u64, does: Weakness) -> Self {
        let choices = |subject| Choices::new(seed, subject, number);
        let [completions, polls, events] = [Subject::Completions, Subject::Polls, Subject::Events].map(choices);
        Self { completions, polls, events, does, hidden: 0, in_vain: 0, is_waiting: false }
    }

    /// Whether an entry that was just appended is not shown yet; all behind one that is not are not
    /// either.
    pub(crate) fn hides(&mut self) -> bool {
        let hides = self.hidden > 0 || self.does.contains(Weakness::COMPLETIONS) && self.completions.one_in(2);
        self.hidden += usize::from(hides);
        hides
    }

    /// Returns true if arming raises no event for what came before.
    pub(crate) fn looks_ahead_only(&self) -> bool {
        self.does.contains(Weakness::EVENTS)
    }

    /// Whether an event is raised for completions that were polled.
    pub(crate) fn raises_for_nothing(&mut self) -> bool {
        self.does.contains(Weakness::SPURIOUS) && self.events.one_in(2)
    }

    /// When to show what is hidden, if nobody has been told.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        let is_new = !std::mem::replace(&mut self.is_waiting, true);
        is_new.then(|| Duration::from_micros(self.completions.pick(HIDDEN_FOR)))
    }

    /// How many entries the time lets be shown.
    pub(crate) fn on_deadline(&mut self) -> usize {
        self.is_waiting = false;
        self.hidden
    }

    /// How many entries a poll for `max` gets, of `held` in the queue, and how many of those that
    /// are hidden are to be shown first.
    pub(crate) fn poll(&mut self, max: usize, held: usize) -> (usize, usize) {
        let shown = held.saturating_sub(self.hidden);
        if held == 0 {
            return (0, 0);
        }
        if shown == 0 {
            self.in_vain += 1;
            if self.in_vain <= MOST_IN_VAIN && !self.polls.one_in(3) {
                return (0, 0);
            }
        }
        self.in_vain = 0;
        let more = if shown == 0 { 1 + self.polls.below(self.hidden) } else { 0 };
        (max.min(shown + more), more)
    }
}
