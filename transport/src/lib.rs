//! The InfiniBand transport (RC, UC, UD) as state machines without I/O, clock or threads.
#![forbid(unsafe_code)]

pub mod cx;
pub mod qp;
pub mod time;
pub mod wr;

pub use qp::Qp;
