//! Fuzz targets as ordinary functions, and their corpora replayed by `cargo test`.
//!
//! A target takes any bytes and panics when a property does not hold. `cargo test -p roxe-fuzz` runs each on its corpus
//! (`corpus/NAME/`) and on some thousands of mutations of it, on the stable compiler and always the same ones. To go
//! looking for more: `fuzz/run MINUTES [NAME...]`. An input that broke something becomes a file of the corpus.

mod capture;
mod icrc;
mod ip;
mod packet;
mod qp;
mod replay;
mod rules;
mod seeds;

pub use capture::capture;
pub use icrc::icrc;
pub use ip::ip;
pub use packet::packet;
pub use qp::{hostile, qp_pair, requester, responder};
pub use replay::replay;
pub use rules::rules;
pub use seeds::{Seed, seeds};
