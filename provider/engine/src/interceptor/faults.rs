//! The fault rules of this process (`ROXE_FAULTS`), reported on standard error.

use super::packet_comment::Fate;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, rank};
use roxe_base::weakest::{self, Weakness};
use roxe_check::faults;
use roxe_observe::notice;
use roxe_transport::fault::{Injector, Rule, Rules, Verdict};
use roxe_transport::time::Instant;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Losses that every network may cause and that programs must handle. NAKs that end a connection
/// are excluded: losing one causes a different error.
const LEGAL_LOSS: &str = "drop rx 0.2% service=RC,XRC op=REQUEST,READ_RESPONSE,ATOMIC_ACK,ACK,RNR_NAK; \
                          duplicate rx 0.5% service=RC,XRC; drop rx 0.5% service=UC,UD; \
                          reorder rx 2% by=300us service=UD";

/// Rules and their state, shared by the queue pairs of all devices.
#[derive(Debug)]
pub(crate) struct Faults {
    /// With the effective seed.
    rules: Rules,
    /// Number of rules from `ROXE_FAULTS`; those of the weakest card follow.
    configured: usize,
    injector: Mutex<rank::Faults, Injector>,
    start: Instant,
    /// True once rules have been applied in this process, not only in the parent of a fork.
    active: AtomicBool,
}

impl Faults {
    /// The rules of this process about packets, followed by those of the weakest legal card; `None`
    /// if there are none.
    pub(crate) fn start() -> Result<Option<Self>, Error> {
        let (rules, weak) = (faults::rules()?, weakest::has(Weakness::LOSS));
        let mut list = rules.map_or_else(Vec::new, |rules| rules.list().to_vec());
        let configured = list.len();
        if list.is_empty() && !weak {
            return Ok(None);
        }
        let seed = rules.and_then(Rules::seed).unwrap_or_else(weakest::seed);
        if weak {
            let rules = LEGAL_LOSS.parse::<Rules>().map_err(|e| Error::invalid(e.to_string()))?;
            list.extend_from_slice(rules.list());
        }
        let rules = Rules::new(Some(seed), list);
        let injector = Mutex::new(Injector::new(&rules, seed));
        Ok(Some(Self { rules, configured, injector, start: clock::now(), active: AtomicBool::new(true) }))
    }

    pub(crate) fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().0.saturating_sub(self.start.0))
    }

    pub(crate) fn injector(&self) -> MutexGuard<'_, rank::Faults, Injector> {
        self.injector.lock()
    }

    /// The outcome of `verdict` for a capture; `None` if no rule applied.
    pub(crate) fn fate(&self, verdict: Verdict) -> Option<Fate<'_>> {
        let id = verdict.rule?;
        let rule = self.rules.list().get(usize::from(id.0)).map(|rule| (u32::from(id.0) + 1, rule));
        Some(Fate { rule, verdict, is_copy: false, is_forged: false })
    }

    /// The configured rule that was applied first.
    pub(crate) fn rule_of(&self, verdict: &Verdict) -> Option<&Rule> {
        let at = usize::from(verdict.rule?.0);
        self.rules.list()[..self.configured].get(at)
    }

    /// Resets the state in the child of a fork, which has not applied any rule.
    pub(crate) fn abandon(&self) {
        self.active.store(false, Ordering::Relaxed);
        *self.injector.lock() = Injector::new(&self.rules, 0);
    }

    /// Called when a child of a fork begins to send.
    pub(crate) fn resume(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Reports on standard error how often each rule was applied.
    pub(crate) fn report(&self) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        for report in self.injector.lock().report().take(self.configured) {
            notice::tell(&format_args!("faults: {report}"));
        }
    }

    pub(crate) fn raw(&self) -> &impl Lockable {
        &self.injector
    }
}
