//! The functions that programs call, under the names of libc.
//!
//! All are as their manual pages say; what is special about one when it meets an rsocket stands
//! with it. Streams of the C library (`fdopen`) do not come by here, so they do not work on
//! rsockets.

/// Functions that differ in their arguments only: `name / rsocket function as its number is found
/// (arguments) -> result`, and behind `uses` the event that a call uses up.
macro_rules! forwarded {
    ($($name:ident / $ours:ident by $find:ident ($($argument:ident: $type:ty),*) -> $result:ty
        $(, uses $event:expr)?;)+) => {
        $(
            #[doc = concat!("`man 2 ", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, $($argument: $type),*) -> $result {
                let Some((rdma, number)) = $find(fd) else {
                    // SAFETY: the caller's own arguments.
                    return unsafe { (real().$name)(fd, $($argument),*) };
                };
                // SAFETY: the caller's own arguments.
                let done = unsafe { rdma.$ours(number, $($argument),*) };
                $(crate::epoll::used(fd, $event);)?
                done
            }
        )+
    };
}

/// What `_FORTIFY_SOURCE` makes of calls whose buffer it knows the size of: `name = call(arguments
/// [, room: size] more arguments) if it fits`. That the buffer is large enough is checked first.
macro_rules! fortified {
    ($($name:ident = $plain:ident($($argument:ident: $type:ty),* ; room $(, $more:ident: $more_type:ty)*) -> $result:ty,
        if |$room:ident| $fits:expr;)+) => {
        $(
            #[doc = concat!("`", stringify!($plain), "` of a program that was compiled with `_FORTIFY_SOURCE`.")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type,)* $room: size_t $(, $more: $more_type)*) -> $result {
                if !$fits {
                    std::process::abort();
                }
                // SAFETY: the caller's own arguments.
                unsafe { $plain($($argument),* $(, $more)*) }
            }
        )+
    };
}

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

/// The rsocket behind `fd` where data is about to pass, which is when a socket that began as TCP
/// moves over.
fn behind_data(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    match table::fd_kind(fd) {
        FdKind::Plain => None,
        FdKind::Rsocket(number) => Some((rdma()?, number)),
        FdKind::Fork(_) => fork::move_over(fd),
    }
}
