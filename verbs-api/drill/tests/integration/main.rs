//! Conformance cases and the fuzzer, judged without a card.

mod catalogue;
mod fuzz;
mod messages;
