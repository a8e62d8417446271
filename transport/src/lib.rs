//! The InfiniBand transport (RC, UC, UD, XRC, raw packets) as state machines without I/O, clock or
//! threads.
//!
//! A [`Qp`] is driven from outside and has four kinds of method:
//!
//! 1. getters, which change nothing;
//! 2. verbs of the application: [`Qp::post_send`], [`Qp::post_recv`], [`Qp::modify`];
//! 3. inputs: [`Qp::handle_packet`] when a packet arrived, [`Qp::handle_timeout`] when
//!    [`Qp::poll_timeout`] is due;
//! 4. outputs: [`Qp::poll_transmit`], [`Qp::poll_timeout`], [`Qp::poll_event`].
//!
//! After any verb or input, call the outputs in this order: `poll_transmit` until it returns
//! [`cx::TxState::Drained`], then `poll_event`, then `poll_timeout` for the next wake-up. Calling
//! any of them once too often is harmless. What a QP needs from its surroundings (the time, memory,
//! completion queues, room at the peer) comes in as a [`cx::Host`] with every call and is never
//! stored, so the same code runs under the engine, in a unit test and in a fuzzer:
//!
//! ```
//! use roxe_transport::Qp;
//! use roxe_transport::cx::{Host, TxBatch, TxState};
//!
//! /// What a driver does after it posted to `qp`, handed it a packet or was woken for it.
//! fn drive<H: Host, T: TxBatch>(qp: &mut Qp, host: &mut H, tx: &mut T, send: impl Fn(&mut T)) {
//!     if qp.poll_timeout().is_some_and(|due| due <= host.now()) {
//!         qp.handle_timeout(host);
//!     }
//!     while qp.poll_transmit(host, tx) == TxState::BatchFull {
//!         send(tx);
//!     }
//!     send(tx);
//!     let _events = qp.poll_event();
//! }
//! ```
//!
//! # Where to look
//!
//! - [`qp`]: the queue pair: requester, responder, retries, flow control, congestion, migration
//! - [`qp::EarlyPackets`]: in front of a queue pair: packets that came before their receive, or
//!   overtook others
//! - [`cx`]: the traits that a driver implements, and what passes through them
//! - [`wr`]: work requests, completions, address vectors
//! - [`tags`], [`rss`], [`steering`]: tag lists, hashing and flow rules, which queues of the driver
//!   share
//! - [`cm`]: connection management, a machine of the same kind as a queue pair: messages in,
//!   messages and events out
//! - [`fault`]: rules that lose, delay or damage packets: a language, and the judge of single
//!   packets
//!
//! The crate `roxe-sim` has many queue pairs, a network and a clock that jumps, and a judge of what
//! they promise.
//!
//! Time is a number handed in ([`time::Instant`]). No two files import each other, and nothing here
//! allocates per packet once its queues have grown, but for packets that come too early.
#![forbid(unsafe_code)]

pub mod cm;
pub mod cx;
pub mod fault;
pub mod qp;
mod reasons;
pub mod rss;
pub mod steering;
pub mod time;
pub mod wr;

// Unit tests of the parts of a queue pair need a host for private types, so they compile that of
// the simulation again, as a module of this crate. Tests of whole queue pairs, in `tests/`, use the
// crate `roxe-sim`.
#[cfg(test)]
extern crate self as roxe_transport;
#[cfg(test)]
#[path = "../sim/src/host.rs"]
#[allow(dead_code, unreachable_pub)]
mod sim_host;

pub use qp::Qp;
pub use qp::features::tags;
