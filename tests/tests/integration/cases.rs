//! Tests requests and their results by scripts. Each script runs through the Rust API and the C
//! ABI, in one process and between two, over shared memory and UDP, and for reliable services also
//! on a lossy network.
//!
//! `script.rs` describes the language. Errors of calls, C structures and the engine have tests in
//! their own crates.

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

/// The program of an agent process. As a test it does nothing.
#[test]
fn agent() {
    if std::env::var_os(configs::ROLE).is_some() {
        agent::run();
    }
}
