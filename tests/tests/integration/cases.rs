//! What queue pairs do with requests, case by case: each a script that is run by the Rust API and
//! by the C functions, in one process and between two, in shared memory and over udp, and where the
//! service is reliable also on a bad network.
//!
//! `script.rs` tells the language; what only one level can say (errors of calls, C structures, what
//! the engine does) is tested there.

mod agent;
mod arms;
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
