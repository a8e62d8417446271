//! Conformance cases and the fuzzer, judged without a card.

mod altered;
mod catalogue;
mod fuzz;
mod messages;
