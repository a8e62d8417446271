//! Fault injection: one rule language for tests, the simulation, `ROXE_FAULTS` and `roxe run
//! --faults`.
//!
//! [`Rules`] are parsed from text. [`Injector::judge`] decides the fate of one packet, and its
//! caller carries the [`Verdict`] out; [`CallInjector`] does the same for calls of verbs,
//! completions and events. This module holds no packets, clocks or threads; a program without rules
//! has no injector and pays one test per packet.
//!
//! # The language
#![doc = include_str!("language.md")]
//!
//! # Reproducibility
//!
//! A random decision depends on the seed, the text of the rule, the ordinal of the queue pair, the
//! direction, and the number of earlier packets in that direction: not on other rules, other queue
//! pairs or threads.
//!
//! ```
//! use roxe_transport::fault::{Injector, Rules};
//!
//! let rules: Rules = "seed=42; drop tx op=SEND_ONLY nth=3; duplicate 1%".parse()?;
//! assert_eq!(rules.to_string(), "seed=42; drop tx op=SEND_ONLY nth=3; duplicate 1%");
//! let injector = Injector::new(&rules, 7);
//! assert_eq!(injector.seed(), 42);
//! # Ok::<(), roxe_transport::fault::RuleError>(())
//! ```

/// The manual of the rule language.
pub const LANGUAGE: &str = include_str!("language.md");

mod call;
mod call_injector;
mod injector;
mod parse;
mod rule;
mod rules;
mod verdict;

#[cfg(test)]
mod tests;

pub use call::{Call, CallAction, CallRule, Completion, Errno, EventFault, Process, VERBS, Verb, WcOps};
pub use call_injector::{CallInjector, CallReport, CallVerdict, CompletionFault, CompletionVerdict, Raised};
pub use injector::{Injector, RuleReport, mix};
pub use parse::RuleError;
pub use rule::{Action, Hold, OpSet, Part, PsnSpans, QpSelector, Rate, Rule, ServiceSet, Spans, Window};
pub use rules::Rules;
pub use verdict::{Corruption, Direction, Forged, PacketContext, RuleId, Verdict};
