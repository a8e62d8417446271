//! What the lock of a completion queue guards: its entries, their numbers, and what is armed.
//! Touches nothing else.

use super::moderation::{Moderator, Verdict};
use super::weak::WeakCq;
use roxe_base::weakest::{Weakness, has};
use roxe_engine::queue_pair::Deadline;
use roxe_transport::time::Instant;
use roxe_transport::wr::Cqe;
use roxe_wire::Qpn;
use std::collections::VecDeque;
use std::sync::Arc;

/// Which entries wake the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

/// The entries of a queue, and which of them wake the program.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) ring: VecDeque<Cqe>,
    /// Entries that were ever appended: the number of the next one.
    pub(super) appended: u64,
    /// The number of the oldest entry that is left, or of the next one.
    pub(super) polled: u64,
    /// Numbers of entries that were dropped out of turn, rising. Those below `polled` mean nothing
    /// any more.
    pub(super) dropped: VecDeque<u64>,
    /// Entries that had been appended when the last event was raised.
    pub(super) announced: u64,
    /// Timestamp of the entry appended last.
    pub(super) newest: u64,
    pub(super) capacity: usize,
    pub(super) armed: Armed,
    pub(super) moderator: Moderator,
    pub(super) ignore_overrun: bool,
    pub(super) overrun: bool,
    /// When the program took an entry last; kept while something watches it.
    pub(super) polled_at: Instant,
    /// Looks for threads that sleep although there are entries, while the checker is on.
    pub(super) slept_on: Option<Arc<dyn Deadline>>,
    /// Of the weakest legal card.
    pub(super) weak: Option<Box<WeakCq>>,
}

impl State {
    /// Whether `cqe` fires the event that is armed; disarms if so. With moderation, several have to
    /// come, or time passes.
    pub(super) fn fires(&mut self, cqe: &Cqe) -> Verdict {
        let counts = match self.armed {
            Armed::No => false,
            Armed::Solicited => cqe.solicited,
            Armed::Any => true,
        };
        let verdict = if counts { self.moderator.count(|| Instant(cqe.timestamp)) } else { Verdict::Wait };
        self.disarm_if(verdict)
    }

    pub(super) fn disarm_if(&mut self, verdict: Verdict) -> Verdict {
        if verdict == Verdict::Announce {
            self.armed = Armed::No;
            self.announced = self.appended;
        }
        verdict
    }

    /// Entries that came since the last event, and that nobody has polled.
    pub(super) fn missed(&self) -> usize {
        self.ring.len().saturating_sub(self.known())
    }

    /// Entries of the ring that the last event stands for.
    fn known(&self) -> usize {
        let dropped = self.dropped.iter().filter(|&&number| (self.polled..self.announced).contains(&number)).count();
        usize::try_from(self.announced.saturating_sub(self.polled)).unwrap_or(usize::MAX) - dropped
    }

    /// Whether an entry that came since the last event, and that nobody has polled, fires the event
    /// that was just armed. The standard does not ask for that.
    pub(super) fn fires_for_missed(&mut self) -> Verdict {
        if self.fires_for_nothing() {
            return self.disarm_if(Verdict::Announce);
        }
        if has(Weakness::EVENTS) {
            return Verdict::Wait;
        }
        let known = self.known();
        let missed = match self.armed {
            Armed::No => None,
            Armed::Solicited => self.ring.iter().skip(known).find(|cqe| cqe.solicited),
            Armed::Any => self.ring.get(known),
        };
        // With moderation it starts the period, if it is not the last that is waited for.
        let verdict = missed.map_or(Verdict::Wait, |cqe| self.moderator.count(|| Instant(cqe.timestamp)));
        self.disarm_if(verdict)
    }

    /// Whether the event that was just armed is raised although all that came since the last one
    /// was polled: a card that learns late how far a program has polled does so (`man
    /// ibv_get_cq_event`).
    fn fires_for_nothing(&mut self) -> bool {
        let was_polled = self.ring.is_empty() && self.announced < self.appended && self.armed == Armed::Any;
        self.weak.as_mut().is_some_and(|weak| was_polled && weak.raises_for_nothing())
    }

    /// Shows the `count` oldest entries of those that are not shown yet: for a program they come
    /// now.
    pub(super) fn show(&mut self, count: usize) -> Verdict {
        let Some(weak) = &mut self.weak else { return Verdict::Wait };
        let first = self.ring.len().saturating_sub(weak.hidden);
        weak.hidden -= count.min(weak.hidden);
        let shown: Vec<Cqe> = self.ring.iter().skip(first).take(count).copied().collect();
        let or_before = |before, now| if now == Verdict::Wait { before } else { now };
        shown.iter().fold(Verdict::Wait, |before, cqe| or_before(before, self.fires(cqe)))
    }

    pub(super) fn take(&mut self, max: usize, mut f: impl FnMut(&Cqe)) -> usize {
        let n = max.min(self.ring.len());
        // Mostly one or a few; a drain of the ring pays for putting it together again. An entry is
        // shown where it lies: taken out first it would be copied twice.
        for _ in 0..n {
            self.ring.front().into_iter().for_each(&mut f);
            self.ring.pop_front();
        }
        self.pass(n as u64);
        n
    }

    /// The `n` oldest entries have left the ring.
    fn pass(&mut self, n: u64) {
        if self.ring.is_empty() {
            self.polled = self.appended;
            return;
        }
        let before = self.polled;
        self.polled += n;
        // Each number that no entry in front of the oldest one has any more is one to skip.
        while let Some(&number) = self.dropped.front()
            && number <= self.polled
        {
            self.dropped.pop_front();
            self.polled += u64::from(number >= before);
        }
    }

    /// Drops the entries of one queue pair; `forgotten` is told of each. The numbers of the others
    /// stay as they are: queue pairs know their completions by them.
    pub(super) fn forget(&mut self, qpn: Qpn, mut forgotten: impl FnMut(&Cqe)) {
        let mut before = std::mem::take(&mut self.dropped);
        before.retain(|&number| number >= self.polled);
        let mut number = self.polled;
        self.ring.retain(|cqe| {
            while before.front() == Some(&number) {
                before.pop_front();
                self.dropped.push_back(number);
                number += 1;
            }
            let stays = cqe.qpn != qpn;
            if !stays {
                self.dropped.push_back(number);
                forgotten(cqe);
            }
            number += 1;
            stays
        });
        self.dropped.append(&mut before);
        self.pass(0);
        let left = self.ring.len();
        self.weak.iter_mut().for_each(|weak| weak.hidden = weak.hidden.min(left));
    }
}
