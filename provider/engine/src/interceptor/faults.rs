//! The fault rules of this process (`ROXE_FAULTS`) and what they have done, told on standard error.
//!
//! Touches the injector, randomness for a seed, and standard error.

use super::packet_comment::Fate;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, rank};
use roxe_base::random;
use roxe_base::weakest::{self, Weakness};
use roxe_observe::notice;
use roxe_transport::fault::{Injector, Rules, Verdict};
use roxe_transport::time::Instant;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What every network may do: a reliable connection recovers from it, the others know it. A NAK
/// that ends a connection is left alone: lost, it would be another error.
const LEGAL_LOSS: &str = "drop rx 0.2% service=RC,XRC op=REQUEST,READ_RESPONSE,ATOMIC_ACK,ACK,RNR_NAK; \
                          duplicate rx 0.5% service=RC,XRC; drop rx 0.5% service=UC,UD; \
                          reorder rx 2% by=300us service=UD";

/// Rules and their memory. Queue pairs of all devices count in it.
#[derive(Debug)]
pub(crate) struct Faults {
    /// With the seed in force.
    rules: Rules,
    /// How many of them were asked for.
    asked: usize,
    injector: Mutex<rank::Faults, Injector>,
    /// When they came into force.
    start: Instant,
    /// Whether rules of this process have been applied, and not only those of the parent of a fork.
    active: AtomicBool,
}

impl Faults {
    /// The rules that were asked for, announced with a seed that repeats them, and behind them
    /// those of the weakest legal card; `None`: there are none. What those that were asked for did
    /// is to be reported at the end.
    pub(crate) fn start(asked: Option<&Rules>) -> Result<Option<Self>, Error> {
        let weak = weakest::has(Weakness::LOSS);
        if asked.is_none() && !weak {
            return Ok(None);
        }
        let drawn = || random::number().map_err(|e| Error::os("cannot draw a seed", &e));
        let named = asked.and_then(Rules::seed).or_else(|| weak.then(weakest::seed));
        let seed = named.map_or_else(drawn, Ok)?;
        let mut list = asked.map_or_else(Vec::new, |rules| rules.list().to_vec());
        let asked = list.len();
        if asked > 0 {
            notice::tell(&format_args!("faults: {}", Rules::new(Some(seed), list.clone())));
        }
        if weak {
            let rules = LEGAL_LOSS.parse::<Rules>().map_err(|e| Error::invalid(e.to_string()))?;
            list.extend_from_slice(rules.list());
        }
        let rules = Rules::new(Some(seed), list);
        let injector = Mutex::new(Injector::new(&rules, seed));
        Ok(Some(Self { rules, asked, injector, start: clock::now(), active: AtomicBool::new(true) }))
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
        Some(Fate { rule, verdict, is_copy: false, is_forged: false })
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
        for report in self.injector.lock().report().take(self.asked) {
            notice::tell(&format_args!("faults: {report}"));
        }
    }

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl Lockable {
        &self.injector
    }
}
