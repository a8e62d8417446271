//! Atomics and cells for handshakes between threads and processes. The models (`tests/models`)
//! compile the same source files with loom's types, which try every interleaving.

pub use crate::lock::{Mutex, rank};
pub use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
