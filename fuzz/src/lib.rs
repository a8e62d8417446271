//! Fuzz targets as ordinary functions, and their corpora replayed by `cargo test`.
//!
//! A target takes any bytes and panics when a property does not hold:
//!
//! - parser: [`packet()`], [`ip()`], [`capture()`]; bytes from anybody; what is read is written
//!   back
//! - parser: [`dissect()`]; a capture file; what the page of it must not hold
//! - parser: [`rsocket()`]; headers of rsockets, and what the peer of a stream says; what may be
//!   unread and posted
//! - parser: [`cm_mad()`]; a management datagram; what is read is written back, no bit is added
//! - parser: [`rules()`]; the text of fault rules, and packets; what is parsed prints as the same;
//!   equal rules judge alike
//! - parser: [`script()`]; a drill script; reading and running it never panic
//! - parser: [`peer_request()`]; a controller's line for an agent; what is read is written back
//! - parser: [`frame()`]; an Ethernet frame, and rules of flow steering; it matches what was read
//!   from it; a sorted list
//! - parser: [`mailbox()`], [`ring()`]; what another process of this host hands over; what is read
//!   is written back; it ends
//! - differential: [`icrc()`]; a network header and a packet; another CRC
//! - responder: [`responder()`]; the requests of a peer; a model of the memory it guards
//! - requester: [`requester()`]; posted work and the responses to it; a model of what may complete
//! - hostile: [`hostile()`]; strangers and a mad peer, any state; what they must not change
//! - hostile: [`cm_machine()`]; a program's verbs, strangers and a mad peer; what they must not
//!   change, what must be left
//! - differential: [`qp_pair()`]; work of two queue pairs, faults between them; the promises of the
//!   simulation
//!
//! `cargo test -p roxe-fuzz` runs each on its corpus (`corpus/NAME/`) and on some thousands of
//! mutations of it, on the stable compiler and always the same ones. To go looking for more:
//! `fuzz/run MINUTES [NAME...]`. An input that broke something becomes a file of the corpus. What
//! the captures in `tests/captures` offer is in it: see [`seeds()`].

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
