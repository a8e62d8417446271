//! Requests and their results, case by case. Each case is a script that runs through the Rust API
//! and the C ABI, in one process and between two, over shared memory and UDP, and for reliable
//! services also on a lossy network.
//!
//! `script.rs` describes the language. Errors of calls, C structures and the engine are tested at
//! their own level.

mod agent;
mod c_abi;
mod configs;
mod errors;
mod line;
mod messages;
mod script;
mod self_test;
mod shared;
mod windows;

/// The agent that a script starts. Passes at once as a test.
#[test]
fn agent() {
    if std::env::var_os(configs::ROLE).is_some() {
        agent::run();
    }
}
