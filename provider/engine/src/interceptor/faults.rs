//! The fault rules of this process (`ROXE_FAULTS`), reported on standard error.

use super::packet_comment::Fate;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::weakest::{self, Weakness};
use roxe_check::faults;
use roxe_observe::notice;
use roxe_transport::fault::{Injector, PacketContext, Rules};
use roxe_transport::time::Instant;
use std::mem;
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
    current: Mutex<rank::Faults, Current>,
    /// True unless this process is the child of a fork that has not sent yet.
    active: AtomicBool,
}

/// The rules in force.
#[derive(Debug)]
struct Current {
    /// The rules, with the effective seed. Leaked on each change, because a [`Fate`] refers to its
    /// rule after the lock is released.
    rules: &'static Rules,
    /// Number of rules of the user; those of the weakest card follow.
    configured: usize,
    injector: Injector,
    start: Instant,
}

impl Current {
    /// Creates the rules about packets: `rules`, then those of the weakest legal card.
    fn new(rules: Option<&Rules>) -> Result<Self, Error> {
        let mut list = rules.map_or_else(Vec::new, |rules| rules.list().to_vec());
        let configured = list.len();
        if weakest::has(Weakness::LOSS) {
            let rules = LEGAL_LOSS.parse::<Rules>().map_err(|e| Error::invalid(e.to_string()))?;
            list.extend_from_slice(rules.list());
        }
        let seed = rules.and_then(Rules::seed).unwrap_or_else(weakest::seed);
        let rules = Box::leak(Box::new(Rules::new(Some(seed), list)));
        Ok(Self { rules, configured, injector: Injector::new(rules, seed), start: clock::now() })
    }

    fn judge(&mut self, at: Duration, context: &PacketContext<'_>) -> Fate {
        let verdict = self.injector.judge(&PacketContext { at, ..*context });
        let rule = verdict.rule.and_then(|id| Some((id, self.rules.list().get(usize::from(id.0))?)));
        Fate { rule, verdict, ..Fate::PASS }
    }

    /// Returns each rule of the user with its counts.
    fn counts(&self) -> Vec<String> {
        self.injector.report().take(self.configured).map(|report| report.to_string()).collect()
    }
}

impl Faults {
    /// Creates the rules of this process; `None` if it has none about packets.
    pub(crate) fn start() -> Result<Option<Self>, Error> {
        let rules = faults::rules()?;
        let may_have_some = rules.is_some_and(|rules| rules.is_empty() || !rules.list().is_empty());
        if !may_have_some && !weakest::has(Weakness::LOSS) {
            return Ok(None);
        }
        Ok(Some(Self { current: Mutex::new(Current::new(rules)?), active: AtomicBool::new(true) }))
    }

    /// Returns the fate of each packet; `None` (an unparsable packet) passes.
    pub(crate) fn judge<'a>(&self, packets: impl Iterator<Item = Option<PacketContext<'a>>>) -> Vec<Fate> {
        let mut current = self.current.lock();
        let configured = current.configured;
        let at = Duration::from_nanos(clock::now().0.saturating_sub(current.start.0));
        let fates: Vec<_> =
            packets.map(|context| context.map_or(Fate::PASS, |context| current.judge(at, &context))).collect();
        drop(current);
        let rules = fates.iter().filter_map(|fate| fate.rule);
        rules.filter(|(id, _)| usize::from(id.0) < configured).for_each(|(_, rule)| faults::spoiled(rule));
        fates
    }

    /// Replaces the rules of the user, whose counts and times begin anew. Returns the old ones with
    /// their counts.
    pub(crate) fn replace(&self, rules: &Rules) -> Result<Vec<String>, Error> {
        let new = Current::new(Some(rules))?;
        Ok(mem::replace(&mut *self.current.lock(), new).counts())
    }

    /// Resets the counts of the queue pair `ordinal`.
    pub(crate) fn forget(&self, ordinal: u32) {
        self.current.lock().injector.forget(ordinal);
    }

    /// Resets the state in the child of a fork, which has not applied any rule.
    pub(crate) fn abandon(&self) {
        self.active.store(false, Ordering::Relaxed);
        let mut current = self.current.lock();
        current.injector = Injector::new(current.rules, 0);
    }

    /// Called when a child of a fork begins to send.
    pub(crate) fn resume(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Reports on standard error how often each rule was applied.
    pub(crate) fn report(&self) {
        if self.active.load(Ordering::Relaxed) {
            self.counts().iter().for_each(|count| notice::print(&format_args!("faults: {count}")));
        }
    }

    /// Returns each rule of the user with its counts.
    pub(crate) fn counts(&self) -> Vec<String> {
        self.current.lock().counts()
    }

    pub(crate) fn lockable(&self) -> &impl Lockable {
        &self.current
    }
}
