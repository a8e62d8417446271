//! The agent beside a card under test, and how a controller talks to it.
//!
//! A controller (a protocol script, a fuzzer, a check of two cards) speaks to one card by raw
//! packets or through another agent, and to this agent by lines of JSON over TCP. The agent does by
//! verbs what the lines say, with whatever `libibverbs.so.1` the host has: it is opened while
//! running, never linked, so that one binary works beside any driver.
//!
//! - what the lines mean: [`protocol`]; the controller's end: [`client`]
//! - the library and its objects, each freed when nobody has it any more: `verbs.rs`, `verbs/`; the
//!   only `unsafe` of the package
//! - two cards compared, each through its agent: [`check`]
//! - what a session owns, and its commands: `session.rs`, `session/`
//! - who is let in, one at a time, and for how long: [`server`]; connections of strangers, for
//!   other servers too: [`visitors`]
//!
//! What a controller says is not trusted. It names memory by region and offset, which are checked;
//! an address that it gives as a number reaches the card as a number and is never followed here.
//! Everything is bounded: [`protocol::limits`]. Touches libibverbs, TCP, and files of counters.

pub mod check;
pub mod client;
pub mod plan;
pub mod protocol;
pub mod server;
mod session;
mod verbs;
pub mod visitors;
