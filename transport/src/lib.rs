//! The InfiniBand transport (RC, UC, UD, XRC, raw packets) as state machines without I/O, clock or
//! threads.
//!
//! A [`Qp`] is driven from outside by three kinds of method:
//!
//! 1. verbs of the application: [`Qp::post_send`], [`Qp::post_recv`], [`Qp::modify`];
//! 2. inputs: [`Qp::handle_packet`] for a received packet, [`Qp::handle_timeout`] when
//!    [`Qp::poll_timeout`] is due;
//! 3. outputs: [`Qp::poll_transmit`], [`Qp::poll_timeout`], [`Qp::poll_event`].
//!
//! After any verb or input, call the outputs in this order: `poll_transmit` until it returns
//! [`cx::TxState::Drained`], then `poll_event`, then `poll_timeout` for the next wake-up. An
//! unnecessary call is harmless. Time, memory, completion queues and room at the peer are passed to
//! every call as a [`cx::Host`] and never stored, so the same code runs in the engine, in unit
//! tests and in fuzzers:
//!
//! ```
//! use roxe_transport::Qp;
//! use roxe_transport::cx::{Host, TxBatch, TxState};
//!
//! /// Drives `qp` after a post, a packet or a timeout.
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
//! # Modules
//!
//! - [`qp`]: the queue pair; [`qp::EarlyPackets`] is its optional reorder buffer
//! - [`cx`]: the traits that a driver implements
//! - [`wr`]: work requests, completions, address vectors
//! - [`tags`], [`rss`], [`steering`]: tag matching lists, receive-side scaling, flow rules
//! - [`cm`]: connection management, a state machine of the same kind
//! - [`fault`]: rules that drop, delay or damage packets
//!
//! The crate `roxe-sim` simulates many queue pairs and a network, and checks their guarantees.
//!
//! Time is an argument ([`time::Instant`]). Nothing allocates per packet once the queues have
//! grown, except for packets that must wait in [`qp::EarlyPackets`].
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

// Unit tests of private types need a `Host` of this crate, so they compile the simulation's host
// again as a module. Tests of whole queue pairs, in `tests/`, use the crate `roxe-sim`.
#[cfg(test)]
extern crate self as roxe_transport;
#[cfg(test)]
#[path = "../sim/src/host.rs"]
#[allow(dead_code, unreachable_pub)]
mod sim_host;

pub use qp::Qp;
pub use qp::features::tags;
