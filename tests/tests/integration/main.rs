//! Tests that cross crates: captures of other implementations, cases over the Rust API and the C
//! ABI, the simulation, and rules for the source tree.

mod captures;
mod cases;
mod clauses;
mod dependencies;
mod documentation;
mod judge;
mod lanes;
mod mutants;
mod peer;
mod simulation;
mod structure;
mod symbols;
