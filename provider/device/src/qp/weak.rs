//! The weakest legal card: what a queue pair remembers for it, under its lock.
//!
//! Touches the timers of the engine, and memory by `placement`.

use super::placement::Placement;
use crate::cq::Cq;
use crate::unpolled::Unpolled;
use roxe_base::weakest::{Choices, Subject, Weakness, has, seed};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::cx::Side;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, WcStatus};
use std::collections::VecDeque;
use std::sync::Weak as WeakRef;
use std::time::Duration;

/// How long what waits may wait until there is another look: well below any timeout of a peer.
const ROUNDS: [u64; 4] = [5, 30, 100, 300];

/// What it remembers.
#[derive(Debug)]
pub(super) struct Weak {
    /// Who is told when the time has come.
    me: WeakRef<dyn Deadline>,
    pub(super) placement: Placement,
    pub(super) slots: Slots,
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

impl Weak {
    /// Of the queue pair `ordinal` of the process, with a send queue of `depth` places.
    pub(super) fn new(me: WeakRef<dyn Deadline>, ordinal: u32, depth: u32) -> Self {
        let slots = Slots { depth, posted: VecDeque::new(), groups: VecDeque::new() };
        let placement = Placement::new(seed(), ordinal);
        let acks = Choices::new(seed(), Subject::Acks, ordinal.into());
        Self { me, placement, slots, acks, ack: Ack::Undecided, is_waiting: false }
    }

    /// Sees to it that there is another look soon.
    pub(super) fn look_again(&mut self, engine: &Engine, now: Instant) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            let after = Duration::from_micros(self.acks.pick(ROUNDS));
            engine.scheduler.add_deadline(now.after(after), WeakRef::clone(&self.me));
        }
    }

    /// Another look: more is placed, and an acknowledgement has waited long enough.
    pub(super) fn on_deadline(&mut self, engine: &Engine, now: Instant) {
        self.is_waiting = false;
        self.placement.go_on();
        self.ack = Ack::Leaves;
        if !(self.placement.is_settled(Side::Recv) && self.placement.is_settled(Side::Send)) {
            self.look_again(engine, now);
        }
    }

    /// Returns true if an acknowledgement leaves behind the requests that are there.
    pub(super) fn puts_acks_last(&mut self) -> bool {
        has(Weakness::ACKS) && self.acks.one_in(2)
    }

    /// Whether an acknowledgement that would leave alone waits for another look.
    pub(super) fn holds_ack(&mut self) -> bool {
        if !self.placement.is_settled(Side::Recv) {
            return true;
        }
        if self.ack == Ack::Undecided {
            let waits = has(Weakness::ACKS) && self.acks.one_in(4);
            self.ack = if waits { Ack::Waits } else { Ack::Leaves };
        }
        self.ack == Ack::Waits
    }

    /// What there was to acknowledge was acknowledged, or is about to be.
    pub(super) fn acknowledged(&mut self) {
        self.ack = Ack::Undecided;
    }

    /// Nothing waits any more: everything is in memory, and acknowledgements leave.
    pub(super) fn settle(&mut self) {
        self.placement.settle_all();
        self.ack = Ack::Leaves;
    }
}

/// Places of the send queue as a card counts them: one is free once a completion behind it was
/// polled.
#[derive(Debug)]
pub(super) struct Slots {
    depth: u32,
    /// Whether each request that has not completed reports its completion.
    posted: VecDeque<bool>,
    /// How many requests stand behind each completion that may not have been polled.
    groups: VecDeque<u32>,
}

impl Slots {
    /// Places that are free.
    pub(super) fn free(&mut self, unpolled: &mut Unpolled, cq: &Cq) -> u32 {
        unpolled.forget(cq.polled());
        let polled = self.groups.len().saturating_sub(unpolled.len() as usize);
        self.groups.drain(..polled);
        let taken =
            self.groups.iter().sum::<u32>().saturating_add(u32::try_from(self.posted.len()).unwrap_or(u32::MAX));
        self.depth.saturating_sub(taken)
    }

    /// A request was posted.
    pub(super) fn posted(&mut self, signaled: bool) {
        self.posted.push_back(signaled);
    }

    /// Those posted last were taken back.
    pub(super) fn take_back(&mut self, count: u32) {
        let left = self.posted.len().saturating_sub(count as usize);
        self.posted.truncate(left);
    }

    /// A completion is about to be reported. Behind one in error each request reports its own.
    pub(super) fn completed(&mut self, cqe: &Cqe) {
        let behind = match cqe.status {
            WcStatus::Success => self.posted.iter().position(|signaled| *signaled).map_or(0, |at| at + 1),
            _ => self.posted.len().min(1),
        };
        self.posted.drain(..behind);
        self.groups.push_back(u32::try_from(behind).unwrap_or(u32::MAX));
    }

    /// The queue starts anew.
    pub(super) fn clear(&mut self) {
        self.posted.clear();
        self.groups.clear();
    }
}
