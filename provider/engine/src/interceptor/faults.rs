//! The fault rules of this process (`ROXE_FAULTS`) and what they have done, told on standard error.
//!
//! Touches the injector, randomness for a seed, and standard error.

use super::packet_comment::Fate;
use crate::notice;
use roxe_base::error::Error;

use roxe_base::clock;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, rank};
use roxe_transport::fault::{Injector, Rules, Verdict};
use roxe_transport::time::Instant;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Rules and their memory. Queue pairs of all devices count in it.
#[derive(Debug)]
pub(crate) struct Faults {
    /// With the seed in force.
    rules: Rules,
    injector: Mutex<rank::Faults, Injector>,
    /// When they came into force.
    start: Instant,
    /// Whether rules of this process have been applied, and not only those of the parent of a fork.
    active: AtomicBool,
}

impl Faults {
    /// Rules for this process, announced with a seed that repeats them. What they did is to be
    /// reported at its end.
    pub(crate) fn start(rules: &Rules) -> Result<Self, Error> {
        let drawn = || getrandom::u64().map_err(|e| Error::os("cannot draw a seed", &io::Error::other(e)));
        let seed = rules.seed().map_or_else(drawn, Ok)?;
        let rules = Rules::new(Some(seed), rules.list().to_vec());
        notice::tell(&format_args!("faults: {rules}"));
        let injector = Mutex::new(Injector::new(&rules, seed));
        Ok(Self { rules, injector, start: clock::now(), active: AtomicBool::new(true) })
    }

    /// How long they have been in force.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().0.saturating_sub(self.start.0))
    }

    /// The injector, for a batch of packets.
    pub(crate) fn injector(&self) -> MutexGuard<'_, rank::Faults, Injector> {
        self.injector.lock()
    }

    /// What a capture says of `verdict`; `None` if nothing happened.
    pub(crate) fn fate(&self, verdict: Verdict) -> Option<Fate<'_>> {
        let id = verdict.rule?;
        let rule = self.rules.list().get(usize::from(id.0)).map(|rule| (u32::from(id.0) + 1, rule));
        Some(Fate { rule, verdict, is_copy: false })
    }

    /// In the child of a fork: what was done so far was done by the parent.
    pub(crate) fn abandon(&self) {
        self.active.store(false, Ordering::Relaxed);
        *self.injector.lock() = Injector::new(&self.rules, 0);
    }

    /// A child of a fork has begun to send.
    pub(crate) fn resume(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Says what every rule has done.
    pub(crate) fn report(&self) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        for report in self.injector.lock().report() {
            notice::tell(&format_args!("faults: {report}"));
        }
    }

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl Lockable {
        &self.injector
    }
}
