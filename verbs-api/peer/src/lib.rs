//! The agent next to a card under test, and its controllers.
//!
//! A controller (a protocol script, a fuzzer, a check of two cards) sends requests to the agent as
//! lines of JSON over TCP. The agent runs them as verbs of the `libibverbs.so.1` of its host, which
//! it opens at run time and is not linked with, so that one binary works with any driver.
//!
//! The agent does not trust requests. They refer to memory by region and offset, which it checks;
//! an address given as a number is passed to the card and never dereferenced. [`protocol::limits`]
//! bounds sizes, counts and times. [`protocol`] has the requests, [`check`] the check of two cards.

pub mod check;
pub mod client;
pub mod plan;
pub mod protocol;
pub mod server;
mod session;
mod verbs;
pub mod visitors;
