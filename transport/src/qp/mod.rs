//! The queue pair.
