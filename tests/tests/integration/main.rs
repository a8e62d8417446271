//! Tests that cross crates: captures of others, agents of the same cases in several languages, the
//! simulation, and rules about the tree itself.

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
