//! What an operator sees of a device: the interface as a port, counters and their files, and the
//! reasons that processes leave for each other.
//!
//! - [`adapter`]: a network interface as a card: port, GID table, counters
//! - [`port`]: attributes, GIDs and changes of an interface
//! - [`counters`]: names, meanings and values; [`counter_files`] and [`stats_file`] write them
//!   to files; [`flow_counters`] count frames of flow rules
//! - [`reasons`]: why packets were dropped or refused, for `--explain` at the peer
//! - [`notice`]: lines on standard error
//!
//! Unsafe code is in `port` only (one ioctl).
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
