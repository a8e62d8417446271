//! `librspreload.so`: put in front of libc with `LD_PRELOAD`, it makes the TCP and UDP sockets of
//! an unmodified program rsockets (`man 7 rsocket`). Both ends of a connection need it. `roxe run
//! --rsocket` sets it up.
//!
//! Every number that `socket` or `accept` returns is an ordinary, unconnected kernel socket of the
//! kind that was asked for; the [`table`] knows the rsocket that stands behind it, and the
//! functions in [`calls`] go there instead. The kernel socket keeps the number, the flags and the
//! options; when `connect` finds nobody who speaks RDMA, it is the one that is connected, and from
//! then on the number is nothing special.
//!
//! The rsocket functions come from whatever `librdmacm.so.1` the loader finds ([`rdma`]), so this
//! works with rdma-core's own library too. It is loaded when the program first asks for a socket
//! that could be one of ours.
//!
//! - `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`: `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE` of every
//!   socket
//! - `RDMAV_FORK_SAFE`: connections are made by TCP and move to RDMA with the first byte, in the
//!   process that needs it; see [`fork`]
//!
//! `/etc/rdma/rsocket/preload_config` says which programs and sockets it is for; see [`config`].
//!
//! - a call, under the name that it has in libc: `calls.rs`; those that wait for several:
//!   `calls/wait.rs`
//! - what a number of the program stands for: `table.rs`
//! - libc's own functions; those of `librdmacm.so.1`: `real.rs`; `rdma.rs`
//! - epoll sets with rsockets in them; servers that fork: `epoll.rs`; `fork.rs`
//!
//! `unsafe` is allowed everywhere here: both sides of this crate are C.

mod calls;
mod config;
mod epoll;
mod fork;
mod rdma;
mod real;
mod table;

use core::ffi::c_int;

/// This thread's `errno`.
fn errno() -> c_int {
    // SAFETY: glibc returns the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` and returns the -1 that goes with it.
fn fail(value: c_int) -> c_int {
    // SAFETY: glibc returns the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = value };
    -1
}
