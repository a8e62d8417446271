//! Conformance cases and the fuzzer, on virtual cards.

mod altered;
mod catalogue;
mod fuzz;
mod messages;
