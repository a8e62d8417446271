//! Fuzz targets as ordinary functions, and their corpora replayed by `cargo test`.
//!
//! A target accepts any bytes and panics if a property does not hold; each function lists its
//! properties. There are parsers, a differential target ([`icrc()`]), models of both roles of a
//! queue pair ([`responder()`], [`requester()`]), hostile peers, and the simulation
//! ([`qp_pair()`]).
//!
//! `cargo test -p roxe-fuzz` runs each on its corpus (`corpus/NAME/`, see [`seeds()`]) and on the
//! same few thousand mutations of it, on the stable compiler. `fuzz/run MINUTES [NAME...]` searches
//! for new inputs. Add an input that found a bug to the corpus.

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
