//! The functions that programs call, under the names of libc.
//!
//! All are as their manual pages say; what is special about one when it meets an rsocket stands with it. Streams of the C
//! library (`fdopen`) do not come by here, so they do not work on rsockets.

mod control;
mod data;
mod events;
mod open;
mod wait;

use crate::fork;
use crate::rdma::{Rdma, rdma};
use crate::table::{self, FdKind};
use core::ffi::c_int;
use std::os::fd::RawFd;

/// The rsocket behind `fd`, with the functions for it.
fn behind(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    Some((rdma()?, table::rsocket(fd)?))
}

/// The rsocket behind `fd` where data is about to pass, which is when a socket that began as TCP moves over.
fn behind_data(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    match table::fd_kind(fd) {
        FdKind::Plain => None,
        FdKind::Rsocket(number) => Some((rdma()?, number)),
        FdKind::Fork(_) => fork::move_over(fd),
    }
}
