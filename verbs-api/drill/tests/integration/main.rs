//! Conformance cases and the fuzzer, on virtual cards.

mod catalogue;
mod fuzz;
mod messages;
