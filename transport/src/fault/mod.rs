//! Faults on demand: one rule language for tests, the simulation, `ROXE_FAULTS` and `roxe run
//! --faults`.
//!
//! [`Rules`] are parsed from text, an [`Injector`] keeps what they must remember, and
//! [`Injector::judge`] tells for one packet what shall happen to it. Whoever owns the packet
//! carries the [`Verdict`] out. Nothing here touches packets in flight, clocks or threads; a
//! program without rules has no injector and pays one test per packet for that.
//!
//! # The language
#![doc = include_str!("language.md")]
//!
//! # The same seed repeats it
//!
//! A random decision depends on the seed, the text of the rule, the queue pair (which one of the
//! process), the direction, and how many packets went that way before: not on other rules, other
//! queue pairs or threads.
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

/// The rule language in words, for people.
pub const LANGUAGE: &str = include_str!("language.md");

mod injector;
mod parse;
mod rule;
mod verdict;

#[cfg(test)]
mod tests;

pub use injector::{Injector, RuleReport, mix};
pub use parse::RuleError;
pub use rule::{Action, Hold, OpSet, Part, PsnSpans, QpSelector, Rate, Rule, Rules, ServiceSet, Spans, Window};
pub use verdict::{Corruption, Direction, Forged, RuleId, Seen, Verdict};
