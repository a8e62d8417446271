//! The agent next to a card under test, and its controllers.
//!
//! A controller (a protocol script, a fuzzer, a check of two cards) sends requests to the agent as
//! lines of JSON over TCP. The agent executes them with the `libibverbs.so.1` of its host. It opens
//! the library at run time and is not linked with it, so that one binary works with any driver.
//!
//! The agent does not trust requests. They refer to memory by region and offset, which the agent
//! checks; it passes an address given as a number to the card and never dereferences it.
//! [`protocol::limits`] bounds sizes, counts and times. [`protocol`] has the requests, [`check`]
//! the check of two cards.

pub mod check;
pub mod client;
pub mod plan;
pub mod protocol;
pub mod server;
mod session;
mod verbs;
pub mod visitors;
