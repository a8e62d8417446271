//! Requests and their results, case by case. Each case is a script that runs over the Rust API and
//! over the C ABI, in one process and between two, in shared memory and over udp, and for reliable
//! services also on a bad network.
//!
//! `script.rs` describes the language. Errors of calls, C structures and the engine are tested at
//! their own level.

mod agent;
mod arms;
mod c_abi;
mod errors;
mod line;
mod messages;
mod script;
mod self_test;
mod shared;
mod windows;

/// Not a test of its own: an agent where a script has started it.
#[test]
fn agent() {
    if std::env::var_os(arms::ROLE).is_some() {
        agent::obey();
    }
}
