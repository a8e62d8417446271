//! Faults on demand: one rule language for tests, the simulation, `ROXE_FAULTS` and `roxe run
//! --faults`.
//!
//! [`Rules`] are parsed from text, an [`Injector`] keeps what they must remember, and
//! [`Injector::judge`] tells for one packet what shall happen to it. Whoever owns the packet
//! carries the [`Verdict`] out. Nothing here touches packets in flight, clocks or threads; a
//! program without rules has no injector and pays one test per packet for that.
//!
//! # The language
//!
//! Rules are separated by `;` or by the end of a line. A rule is an action, then words in any
//! order:
//!
//! ```text
//! drop 3%                                     3 of 100 packets, sent and received
//! duplicate 1% rx; reorder 2% by=1ms          several rules; each looks at every packet
//! delay tx by=5ms op=ACK                      every acknowledgement we send
//! corrupt payload 0.1%; corrupt header nth=7; corrupt icrc op=READ_RESPONSE_LAST
//! drop tx qp=#0 op=SEND_LAST nth=3            the third SEND_LAST that our first queue pair sends
//! drop tx msg=4 psn=0x10..0x20; ecn 10%; rnr msg=2 times=3; drop from=10.77.0.11
//! seed=42                                     makes the random rates repeatable
//! ```
//!
//! - `drop`: loses the packet
//! - `duplicate`: carries it twice, or once more often than `copies=N` says; `by=TIME` lets the
//!   copies travel later
//! - `delay`: holds it for `by=TIME`, or for a random time of `by=TIME..TIME`; others overtake it
//! - `reorder`: holds it for a random time up to `by=TIME` (1 ms if not said), so that others
//!   overtake it
//! - `corrupt payload`, `corrupt header`, `corrupt icrc`: flips one random bit there, which the
//!   ICRC must find
//! - `ecn`: marks it as one that met congestion (CE in the IP header)
//! - `rnr`: a request that needs a receive finds none, as if the application had not posted one
//!
//! - `P%`: a random part of the packets that all other words allow; up to six decimals
//! - `tx`, `rx`: packets we send, packets that arrive; without either word, both
//! - `qp=N`, `qp=0xN`, `qp=#N`: our queue pair with this number; the N-th that this process
//!   created, from 0
//! - `peer=ADDR`, `from=ADDR`, `to=ADDR`: the other side's address; `from` is `rx peer`, `to` is
//!   `tx peer`
//! - `service=RC,XRC`: packets of these services: `RC`, `UC`, `UD`, `XRC`; a congestion
//!   notification is of none
//! - `op=NAME,NAME`: opcodes as `roxe dump` prints them, or a class: see [`OpSet`]
//! - `psn=LIST`: packet sequence numbers; a range may wrap around
//! - `msg=LIST`: the n-th message of that direction of that queue pair, from 1; an answer counts as
//!   the message it answers
//! - `nth=LIST`: the n-th packet that all words above allow, from 1
//! - `times=N`: no more than the first N faults
//!
//! A `LIST` is `3`, `3,5`, `10..20` (both ends count) or `10..` (no end); numbers are decimal or,
//! after `0x`, hexadecimal. Times are whole numbers of `us`, `ms` or `s`. `msg`, `nth` and `times`
//! count each direction of each queue pair by itself. A retransmitted packet belongs to the message
//! that it belonged to first. `drop` beats all other actions on a packet; the others add up.
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

mod injector;
mod messages;
mod ops;
mod parse;
mod rule;
mod services;
mod show;
mod spans;
mod verdict;

#[cfg(test)]
mod tests;

pub use injector::{Injector, RuleReport, mix};
pub use ops::OpSet;
pub use parse::RuleError;
pub use rule::{Action, Hold, Part, QpSelector, Rate, Rule, Rules};
pub use services::ServiceSet;
pub use spans::{PsnSpans, Spans};
pub use verdict::{Corruption, Direction, RuleId, Seen, Verdict};
