//! Fuzz targets as functions. `cargo test` replays their corpora.
//!
//! A target accepts any bytes and panics if one of its properties, which its function lists, does
//! not hold. Some targets test parsers, [`icrc()`] compares two implementations, [`responder()`]
//! and [`requester()`] compare a queue pair with a model, [`hostile()`] and [`cm_machine()`] play a
//! hostile peer, and [`qp_pair()`] drives the simulation.
//!
//! `cargo test -p roxe-fuzz` runs each target on its corpus (`corpus/NAME/`, see [`seeds()`]) and
//! on a few thousand mutations of it, which are the same in every run. `fuzz/run MINUTES [NAME...]`
//! searches for new inputs. Add an input that found a bug to the corpus.

mod capture;
mod cm_machine;
mod cm_mad;
mod dissect;
mod frame;
mod host;
mod icrc;
mod ip;
mod packet;
mod peer_request;
mod qp;
mod replay;
mod rsocket;
mod rules;
mod script;
mod seeds;

pub use capture::capture;
pub use cm_machine::cm_machine;
pub use cm_mad::cm_mad;
pub use dissect::dissect;
pub use frame::frame;
pub use host::{mailbox, ring};
pub use icrc::icrc;
pub use ip::ip;
pub use packet::packet;
pub use peer_request::peer_request;
pub use qp::{hostile, qp_pair, requester, responder};
pub use replay::replay;
pub use rsocket::rsocket;
pub use rules::rules;
pub use script::script;
pub use seeds::{Seed, seeds};
