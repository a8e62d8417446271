//! The agent beside a card under test, and its controllers.
//!
//! A controller (a protocol script, a fuzzer, a check of two cards) sends requests to the agent as
//! lines of JSON over TCP. The agent runs them as verbs of the `libibverbs.so.1` of its host, which
//! it opens at run time and is not linked with, so that one binary works beside any driver.
//!
//! Requests are not trusted: memory is named by region and offset, which are checked; an address
//! given as a number goes to the card as a number and is never dereferenced. [`protocol::limits`]
//! bounds everything. Begin to read at [`protocol`] for the requests, at [`check`] for the check of
//! two cards.

pub mod check;
pub mod client;
pub mod plan;
pub mod protocol;
pub mod server;
mod session;
mod verbs;
pub mod visitors;
