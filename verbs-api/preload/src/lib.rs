//! `librspreload.so`: in `LD_PRELOAD`, it makes the TCP and UDP sockets of an unmodified program
//! rsockets (`man 7 rsocket`), if both ends use it. `roxe run --rsocket` sets it up.
//!
//! Every number from `socket` or `accept` is an unconnected kernel socket, which keeps flags and
//! options. The [`table`] maps it to an rsocket, and [`calls`] use that instead. If `connect` finds
//! no RDMA at the peer, it connects the kernel socket, which then is an ordinary one.
//!
//! The rsocket functions come from the `librdmacm.so.1` that the loader finds ([`rdma`]), possibly
//! rdma-core's. For settings see [`config`], for `RDMAV_FORK_SAFE` [`fork`]. All code here may be
//! `unsafe`: both sides of this crate are C.

mod calls;
mod config;
mod epoll;
mod fork;
mod rdma;
mod real;
mod table;

use core::ffi::c_int;

fn errno() -> c_int {
    // SAFETY: glibc returns the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

fn fail(value: c_int) -> c_int {
    // SAFETY: glibc returns the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = value };
    -1
}
