//! Moderation: one event for several completions, or for those that came within a while (`man
//! ibv_modify_cq`).
//!
//! Pure arithmetic under the lock of the queue; whoever owns the queue registers the deadline with
//! the engine.

use roxe_transport::time::Instant;
use std::time::Duration;

/// How many completions one event stands for. Off while either number says that there is nothing to
/// wait for: a count of 0 or 1, or a period of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions that cause an event.
    pub count: u16,
    /// Microseconds after which fewer of them cause it, from the first one on.
    pub period: u16,
}

impl Moderation {
    fn is_on(self) -> bool {
        self.count > 1 && self.period > 0
    }
}

/// What has come since the queue was armed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moderator {
    pub(super) rule: Moderation,
    came: u16,
    /// When those that came cause an event.
    due: Option<Instant>,
    /// The deadline that the engine knows of.
    registered: Option<Instant>,
}

/// What to do about a completion that an armed queue waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Announce,
    Wait,
    /// Wait, and let the engine call at that time.
    WaitUntil(Instant),
}

impl Moderator {
    /// One more completion came at `now`.
    #[inline]
    pub(super) fn count(&mut self, now: impl FnOnce() -> Instant) -> Verdict {
        if self.rule.is_on() { self.collect(now()) } else { Verdict::Announce }
    }

    #[cold]
    fn collect(&mut self, now: Instant) -> Verdict {
        self.came += 1;
        if self.came >= self.rule.count {
            self.start_over();
            return Verdict::Announce;
        }
        let due = *self.due.get_or_insert_with(|| now.after(Duration::from_micros(self.rule.period.into())));
        self.register(due)
    }

    /// One entry per queue is enough: it is renewed when it fires.
    fn register(&mut self, due: Instant) -> Verdict {
        if self.registered.is_some() {
            return Verdict::Wait;
        }
        self.registered = Some(due);
        Verdict::WaitUntil(due)
    }

    /// The engine calls, as it was asked to for `deadline`.
    pub(super) fn on_deadline(&mut self, deadline: Instant) -> Verdict {
        if self.registered != Some(deadline) {
            return Verdict::Wait;
        }
        self.registered = None;
        match self.due {
            None => Verdict::Wait,
            Some(due) if due > deadline => self.register(due),
            Some(_) => {
                self.start_over();
                Verdict::Announce
            }
        }
    }

    fn start_over(&mut self) {
        (self.came, self.due) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moderator(count: u16, period: u16) -> Moderator {
        Moderator { rule: Moderation { count, period }, ..Moderator::default() }
    }

    fn at(micros: u64) -> Instant {
        Instant(micros * 1000)
    }

    #[test]
    fn without_a_rule_every_completion_is_announced() {
        for (count, period) in [(0, 0), (1, 100), (0, 100), (16, 0)] {
            let mut moderator = moderator(count, period);
            assert_eq!(moderator.count(|| unreachable!("nobody asks for the time")), Verdict::Announce);
        }
    }

    #[test]
    fn a_full_count_is_announced_and_the_next_starts_anew() {
        let mut moderator = moderator(3, 100);
        for start in [0, 50] {
            let first = moderator.count(|| at(start));
            assert_eq!(first, if start == 0 { Verdict::WaitUntil(at(100)) } else { Verdict::Wait });
            assert_eq!(moderator.count(|| at(start + 1)), Verdict::Wait);
            assert_eq!(moderator.count(|| at(start + 2)), Verdict::Announce);
        }
    }

    #[test]
    fn the_first_completion_waits_no_longer_than_the_period() {
        let mut moderator = moderator(3, 100);
        assert_eq!(moderator.count(|| at(7)), Verdict::WaitUntil(at(107)));
        assert_eq!(moderator.count(|| at(100)), Verdict::Wait);
        assert_eq!(moderator.on_deadline(at(107)), Verdict::Announce);
        assert_eq!(moderator.count(|| at(200)), Verdict::WaitUntil(at(300)));
    }

    #[test]
    fn a_deadline_that_a_full_count_overtook_is_renewed_or_forgotten() {
        let mut moderator = moderator(2, 100);
        assert_eq!(moderator.count(|| at(0)), Verdict::WaitUntil(at(100)));
        assert_eq!(moderator.count(|| at(1)), Verdict::Announce);
        assert_eq!(moderator.count(|| at(60)), Verdict::Wait);
        assert_eq!(moderator.on_deadline(at(100)), Verdict::WaitUntil(at(160)));
        assert_eq!(moderator.on_deadline(at(100)), Verdict::Wait, "asked twice");
        assert_eq!(moderator.count(|| at(150)), Verdict::Announce);
        assert_eq!(moderator.on_deadline(at(160)), Verdict::Wait, "nothing has come since");
    }
}
