//! [`CallInjector`] applies rules to calls, completions and events: it keeps the counters of each
//! rule and derives random decisions from the seed.

use super::call::{Call, CallAction, CallRule, Completion, Errno, EventFault};
use super::injector::{mix, salt};
use super::rule::{Hold, is_selected};
use super::rules::Rules;
use crate::wr::WcStatus;
use core::fmt;
use core::time::Duration;

/// Fate of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallVerdict {
    /// Time to wait before the call.
    pub slow: Duration,
    /// Error that the call returns without an effect.
    pub fail: Option<Errno>,
    /// Events of the device to raise before the call, with the time of `PORT_ERR`.
    pub events: Vec<(EventFault, Duration)>,
    /// The texts of the rules that are applied.
    pub rules: Vec<String>,
}

/// Fate of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionVerdict {
    /// Fault that replaces the completion.
    pub fault: CompletionFault,
    /// The text of the rule.
    pub rule: String,
}

/// A fault of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionFault {
    /// The completion reports this status.
    Status(WcStatus),
    /// The queue pair of the completion fails (`QP_FATAL`).
    QpFatal,
    /// The completion queue of the completion fails (`CQ_ERR`).
    CqErr,
}

/// An event that a rule raises on an occasion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Time until the event.
    pub wait: Duration,
    /// Time of the rule: until the port is up again, or until the connection ends.
    pub time: Duration,
    /// The text of the rule.
    pub rule: String,
}

#[derive(Debug)]
struct CallRuleState {
    rule: CallRule,
    salt: u64,
    matched: u64,
    applied: u64,
}

impl CallRuleState {
    /// Counts a call, completion or event that the rule allows. Returns a random number if a fault
    /// is due.
    fn is_due(&mut self, seed: u64) -> Option<u64> {
        self.matched += 1;
        let random = mix(seed ^ self.salt ^ mix(self.matched));
        let CallRule { nth, times, rate, .. } = &self.rule;
        let is_due = is_selected((nth.as_ref(), *times, *rate), (self.matched, self.applied), random);
        self.applied += u64::from(is_due);
        is_due.then(|| mix(random))
    }
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug)]
pub struct CallReport<'a> {
    /// The rule of these counters.
    pub rule: &'a CallRule,
    /// Calls, completions or events allowed by all words but rate, `nth` and `times`.
    pub matched: u64,
    /// Faults of the rule.
    pub applied: u64,
}

impl fmt::Display for CallReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = match &self.rule.action {
            CallAction::Complete(_) => "completions",
            CallAction::Event { event, .. } if event.is_of_completion() => "completions",
            CallAction::Event { call: None, .. } => "occasions",
            _ => "calls",
        };
        write!(f, "{}: {} {about} matched, {} faults", self.rule, self.matched, self.applied)
    }
}

/// Applies the rules about calls, completions and events to those of a process.
#[derive(Debug)]
pub struct CallInjector {
    seed: u64,
    rules: Vec<CallRuleState>,
}

impl CallInjector {
    /// Creates an injector for [`Rules::calls`]; `random` is the seed if they set none.
    pub fn new(rules: &Rules, random: u64) -> Self {
        let list = rules.calls();
        let judged = list.iter().enumerate().map(|(at, rule)| {
            let twins = list.iter().take(at).filter(|other| *other == rule).count();
            CallRuleState { rule: rule.clone(), salt: salt(rule, twins as u64), matched: 0, applied: 0 }
        });
        Self { seed: rules.seed().unwrap_or(random), rules: judged.collect() }
    }

    /// Decides the fate of a call. `is_at` compares a site with the stack of the call; it runs only
    /// for rules with a site.
    pub fn call(&mut self, call: &Call<'_>, is_at: &mut dyn FnMut(&str) -> bool) -> CallVerdict {
        let mut verdict = CallVerdict::default();
        for judged in &mut self.rules {
            if !judged.rule.is_for_call(call, is_at) {
                continue;
            }
            let Some(random) = judged.is_due(self.seed) else { continue };
            verdict.rules.push(judged.rule.to_string());
            match &judged.rule.action {
                CallAction::Fail { errno, .. } => verdict.fail = verdict.fail.or(Some(*errno)),
                CallAction::Slow { by, .. } => verdict.slow = verdict.slow.saturating_add(by.pick(random)),
                CallAction::Event { event, by, .. } => verdict.events.push((*event, pick(*by, random))),
                CallAction::Complete(_) => {}
            }
        }
        verdict
    }

    /// Decides the fate of a completion that reports success.
    pub fn completion(&mut self, done: &Completion) -> Option<CompletionVerdict> {
        let mut verdict = None;
        for judged in &mut self.rules {
            if !judged.rule.is_for_completion(done) || judged.is_due(self.seed).is_none() {
                continue;
            }
            let fault = match judged.rule.action {
                CallAction::Complete(status) => CompletionFault::Status(status),
                CallAction::Event { event: EventFault::CqErr, .. } => CompletionFault::CqErr,
                _ => CompletionFault::QpFatal,
            };
            verdict.get_or_insert_with(|| CompletionVerdict { fault, rule: judged.rule.to_string() });
        }
        verdict
    }

    /// Decides how often `event`, which no rule ties to a call, happens on this occasion. For
    /// events of the device the occasion is its opening, and `at` of the rule is the time until the
    /// event.
    pub fn occasion(&mut self, event: EventFault, at: Duration) -> Vec<Raised> {
        let mut found = Vec::new();
        for judged in &mut self.rules {
            let CallAction::Event { event: wanted, call: None, by } = judged.rule.action else { continue };
            if wanted != event {
                continue;
            }
            let wait = match judged.rule.at {
                Some(window) if event.is_of_device() => window.from,
                Some(window) if !window.contains(at) => continue,
                _ => Duration::ZERO,
            };
            if let Some(random) = judged.is_due(self.seed) {
                found.push(Raised { wait, time: pick(by, random), rule: judged.rule.to_string() });
            }
        }
        found
    }

    /// Returns the counters of each rule, in the order of the list.
    pub fn report(&self) -> impl Iterator<Item = CallReport<'_>> {
        self.rules.iter().map(|CallRuleState { rule, matched, applied, .. }| CallReport {
            rule,
            matched: *matched,
            applied: *applied,
        })
    }
}

fn pick(by: Option<Hold>, random: u64) -> Duration {
    by.map_or(Duration::ZERO, |by| by.pick(random))
}
