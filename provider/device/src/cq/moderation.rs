//! Interrupt moderation: one event for several completions, or for those within a period (`man
//! ibv_modify_cq`).

use roxe_transport::time::Instant;
use std::time::Duration;

/// Number of completions per event. Off if `count` is 0 or 1, or `period` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions that raise an event.
    pub count: u16,
    /// Microseconds after the first completion, after which fewer completions raise the event.
    pub period: u16,
}

impl Moderation {
    fn is_on(self) -> bool {
        self.count > 1 && self.period > 0
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moderator {
    pub(super) rule: Moderation,
    pending: u16,
    /// End of the period.
    due: Option<Instant>,
    /// Deadline registered with the engine.
    registered: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Announce,
    Wait,
    /// Wait, with a deadline from the engine.
    WaitUntil(Instant),
}

impl Moderator {
    #[inline]
    pub(super) fn count(&mut self, now: impl FnOnce() -> Instant) -> Verdict {
        if self.rule.is_on() { self.collect(now()) } else { Verdict::Announce }
    }

    #[cold]
    fn collect(&mut self, now: Instant) -> Verdict {
        self.pending += 1;
        if self.pending >= self.rule.count {
            self.start_over();
            return Verdict::Announce;
        }
        let due = *self.due.get_or_insert_with(|| now.after(Duration::from_micros(self.rule.period.into())));
        self.register(due)
    }

    /// Registers a deadline unless there is one: one per queue is enough, `on_deadline` renews it.
    fn register(&mut self, due: Instant) -> Verdict {
        if self.registered.is_some() {
            return Verdict::Wait;
        }
        self.registered = Some(due);
        Verdict::WaitUntil(due)
    }

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
        (self.pending, self.due) = (0, None);
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
    fn without_rule_every_completion_is_announced() {
        for (count, period) in [(0, 0), (1, 100), (0, 100), (16, 0)] {
            let mut moderator = moderator(count, period);
            assert_eq!(moderator.count(|| unreachable!("the time is not needed")), Verdict::Announce);
        }
    }

    #[test]
    fn full_count_is_announced_and_counting_restarts() {
        let mut moderator = moderator(3, 100);
        for start in [0, 50] {
            let first = moderator.count(|| at(start));
            assert_eq!(first, if start == 0 { Verdict::WaitUntil(at(100)) } else { Verdict::Wait });
            assert_eq!(moderator.count(|| at(start + 1)), Verdict::Wait);
            assert_eq!(moderator.count(|| at(start + 2)), Verdict::Announce);
        }
    }

    #[test]
    fn first_completion_waits_at_most_the_period() {
        let mut moderator = moderator(3, 100);
        assert_eq!(moderator.count(|| at(7)), Verdict::WaitUntil(at(107)));
        assert_eq!(moderator.count(|| at(100)), Verdict::Wait);
        assert_eq!(moderator.on_deadline(at(107)), Verdict::Announce);
        assert_eq!(moderator.count(|| at(200)), Verdict::WaitUntil(at(300)));
    }

    #[test]
    fn deadline_after_full_count_is_renewed_or_dropped() {
        let mut moderator = moderator(2, 100);
        assert_eq!(moderator.count(|| at(0)), Verdict::WaitUntil(at(100)));
        assert_eq!(moderator.count(|| at(1)), Verdict::Announce);
        assert_eq!(moderator.count(|| at(60)), Verdict::Wait);
        assert_eq!(moderator.on_deadline(at(100)), Verdict::WaitUntil(at(160)));
        assert_eq!(moderator.on_deadline(at(100)), Verdict::Wait, "called twice");
        assert_eq!(moderator.count(|| at(150)), Verdict::Announce);
        assert_eq!(moderator.on_deadline(at(160)), Verdict::Wait, "no completion since");
    }
}
