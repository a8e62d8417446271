//! [`Rules`]: all rules of a text.

use super::call::{CallRule, Process};
use super::rule::Rule;
use core::fmt::{self, Display, Formatter};

/// The statement of a list without rules.
pub(super) const NONE: &str = "none";

/// A list of rules with the seed of their random decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    seed: Option<u64>,
    list: Vec<Rule>,
    calls: Vec<CallRule>,
}

impl Rules {
    /// Maximum number of rules.
    pub const MAX: usize = 256;

    /// Creates rules about packets; of `list` only the first [`Rules::MAX`] count.
    pub fn new(seed: Option<u64>, mut list: Vec<Rule>) -> Self {
        list.truncate(Self::MAX);
        Self { seed, list, calls: Vec::new() }
    }

    /// Adds rules about calls; of `calls` only the first [`Rules::MAX`] count.
    #[must_use]
    pub fn with_calls(mut self, mut calls: Vec<CallRule>) -> Self {
        calls.truncate(Self::MAX);
        self.calls = calls;
        self
    }

    /// Sets the seed of random decisions.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns the rules that apply to `process`.
    #[must_use]
    pub fn for_process(&self, process: &Process) -> Self {
        let is_for = |named: &Option<Box<str>>| named.as_deref().is_none_or(|named| process.is(named));
        let list = self.list.iter().filter(|rule| is_for(&rule.process)).cloned().collect();
        let calls = self.calls.iter().filter(|rule| is_for(&rule.process)).cloned().collect();
        Self { seed: self.seed, list, calls }
    }

    /// Returns the seed, if set.
    pub const fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the rules about packets, in order.
    pub fn list(&self) -> &[Rule] {
        &self.list
    }

    /// Returns the rules about calls, completions and events, in order.
    pub fn calls(&self) -> &[CallRule] {
        &self.calls
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.calls.is_empty()
    }
}

impl Display for Rules {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seed = self.seed.map(|seed| format!("seed={seed}"));
        let rules = self.list.iter().map(Rule::to_string).chain(self.calls.iter().map(CallRule::to_string));
        let none = self.is_empty().then(|| NONE.to_owned());
        let parts: Vec<_> = seed.into_iter().chain(none).chain(rules).collect();
        f.write_str(&parts.join("; "))
    }
}
