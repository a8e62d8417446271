//! Observable state of a device: the interface as a port, counters and their files, and the reasons
//! that processes leave for each other.
//!
//! Begin with [`adapter`]. [`reasons`] explain drops to the peer (`ROXE_EXPLAIN`). Only `port`
//! contains unsafe code (one ioctl).
#![deny(unsafe_code)]

pub mod adapter;
pub mod counter_files;
pub mod counters;
pub mod flow_counters;
pub mod notice;
#[allow(unsafe_code)]
pub mod port;
pub mod reasons;
pub mod stats_file;
