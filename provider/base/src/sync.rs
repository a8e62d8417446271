//! What the handshakes between threads and processes are made of. The models of these
//! (`tests/models`) take the same files, but find loom's types here, which try every order in which
//! the threads could run and see each other's stores.

pub use crate::lock::{Mutex, rank};
pub use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
