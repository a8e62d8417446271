//! A thread of the program that waits for an event receives for a while before it sleeps.
//!
//! What comes soon then wakes nobody: neither the background thread by its packet nor the program by its event, and either
//! costs more than all the rest of a message. Meanwhile the background thread is muted like that of a program that polls.

use crate::engine::Engine;
use crate::spinning::{Look, SpinGovernor, ThisProcessor};
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// A thread that received for itself while it waited is expected to wait again so soon.
const BETWEEN_WAITS: Duration = Duration::from_micros(50);
/// Who is woken within so many times the usual patience gave up too soon: the next ones are as patient as that. A peer that
/// sleeps needs about 150 us to answer, for which two threads have to wake up. If each gives up before the other one has, both
/// sleep before every message: two of five waits ended so, and `ib_send_lat -e` took 17 us instead of 3.
const LONG: u32 = 4;

/// The threads of the program that wait for events, and what they met. Advice, but for who looks around.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many wait, asleep or not.
    waiting: AtomicU32,
    /// Those of them that receive at this moment.
    looking: AtomicU32,
    /// When the last one of these found what it waited for, nanoseconds; 0 if one gave up after that.
    last_catch: AtomicU64,
    /// Whether the next ones shall be patient.
    are_patient: AtomicBool,
    governor: SpinGovernor,
}

impl Waiters {
    /// Whether a thread waits.
    pub(crate) fn exist(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Whether one of them receives, or did a moment ago and will again.
    pub(crate) fn receive(&self, now: Instant) -> bool {
        self.looking.load(SeqCst) > 0 || now.since(Instant(self.last_catch.load(SeqCst))) < BETWEEN_WAITS
    }

    /// One more waits, until the answer is dropped.
    pub(crate) fn come(&self) -> Counted<'_> {
        Counted::new(&self.waiting)
    }

    /// In the child of a fork, where no thread waits.
    pub(crate) fn abandon(&self) {
        self.waiting.store(0, Relaxed);
        self.looking.store(0, Relaxed);
    }

    /// One of them gave up, slept, and was woken so long after it had begun to wait.
    fn note_sleep(&self, waited: Duration, patience: Duration) {
        self.are_patient.store(waited < patience * LONG, Relaxed);
    }

    /// How long to look around.
    fn patience(&self, usual: Duration) -> Duration {
        if self.are_patient.load(Relaxed) { usual * LONG } else { usual }
    }
}

/// Counts a thread for as long as it lives.
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A thread that waits.
pub struct Wait<'a> {
    engine: &'a Engine,
    _counted: Counted<'a>,
    since: Instant,
    /// Whether it looked around in vain, or not at all.
    sleeps: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.sleeps {
            let waited = clock::now().since(self.since);
            self.engine.waiters().note_sleep(waited, self.engine.usual_patience());
        }
    }
}

impl Engine {
    /// The calling thread is going to sleep until `is_over`, which it is not yet: it looks around first. Keep the answer until
    /// it has slept.
    pub fn before_sleep(&self, is_over: impl Fn() -> bool) -> Wait<'_> {
        let (presence, waiters) = (&self.presence, self.waiters());
        let counted = waiters.come();
        presence.waits_itself.store(true, Relaxed);
        let mut wait = Wait { engine: self, _counted: counted, since: clock::now(), sleeps: false };
        // A thread that is cancelled must not hold locks of ours.
        wait.sleeps = uncancelled(|| {
            let sleeps = !self.is_started() || !self.look_around(&is_over);
            if sleeps {
                self.clear_kept();
            }
            sleeps
        });
        if wait.sleeps {
            waiters.last_catch.store(0, SeqCst);
            if presence.hand_over() {
                self.kick();
            }
        }
        wait
    }

    /// Receives until `is_over`, or nothing has come for a while. Whether it is over.
    fn look_around(&self, is_over: &impl Fn() -> bool) -> bool {
        let waiters = self.waiters();
        if !waiters.governor.may_spin() {
            return false;
        }
        let _counted = Counted::new(&waiters.looking);
        let look = || {
            let found = self.work(self.enter());
            self.presence.leave();
            match found {
                _ if is_over() => Look::Enough,
                true => Look::Found,
                false => Look::Vain,
            }
        };
        let is_over = waiters.governor.keep_looking(waiters.patience(self.usual_patience()), ThisProcessor, look);
        if is_over {
            waiters.governor.note_find();
            waiters.last_catch.store(clock::now().0, SeqCst);
        }
        is_over
    }

    /// How long a thread looks around before it sleeps, if nothing is known.
    pub(crate) fn usual_patience(&self) -> Duration {
        Duration::from_micros(self.config.spin_us.into())
    }

    fn waiters(&self) -> &Waiters {
        &self.presence.waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_receives_while_it_waits_does_so_until_it_gives_up_or_does_something_else() {
        let (waiters, now) = (Waiters::default(), Instant(1_000_000_000));
        assert!(!waiters.receive(now) && !waiters.exist());
        let waiting = waiters.come();
        assert!(!waiters.receive(now) && waiters.exist(), "it sleeps");
        let looking = Counted::new(&waiters.looking);
        assert!(waiters.receive(now));
        drop((looking, waiting));
        assert!(!waiters.receive(now) && !waiters.exist());
        waiters.last_catch.store(now.0, SeqCst);
        assert!(waiters.receive(now.after(BETWEEN_WAITS / 2)));
        assert!(!waiters.receive(now.after(BETWEEN_WAITS)));
    }

    #[test]
    fn who_gave_up_too_soon_is_patient_the_next_time() {
        let (waiters, usual) = (Waiters::default(), Duration::from_micros(50));
        assert_eq!(waiters.patience(usual), usual);
        waiters.note_sleep(2 * usual, usual);
        assert_eq!(waiters.patience(usual), LONG * usual);
        waiters.note_sleep(LONG * usual, usual);
        assert_eq!(waiters.patience(usual), usual, "not even that would have been enough");
    }
}
