//! The Rust API over the loopback device, both ends in one process.

mod beyond_pairs;
mod connections;
mod loopback;
mod shared_counter;
