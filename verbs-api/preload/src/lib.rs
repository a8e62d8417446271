//! `librspreload.so`: in `LD_PRELOAD`, it makes the TCP and UDP sockets of an unmodified program
//! rsockets (`man 7 rsocket`), if both ends use it. `roxe run --rsocket` sets it up.
//!
//! Every descriptor that `socket` or `accept` returns is that of an unconnected kernel socket,
//! which keeps flags and options. The [`table`] maps it to an rsocket, which the functions in
//! [`calls`] use. If the peer does not accept RDMA, `connect` connects the kernel socket, and the
//! descriptor becomes an ordinary one.
//!
//! The rsocket functions come from the `librdmacm.so.1` that the loader finds ([`rdma`]), possibly
//! rdma-core's. [`config`] describes the settings, [`fork`] the mode `RDMAV_FORK_SAFE`. All code of
//! this crate may be `unsafe`, because its callers and the libraries below are C.

mod calls;
mod config;
mod epoll;
mod fork;
mod rdma;
mod real;
mod table;

use core::ffi::c_int;

fn errno() -> c_int {
    // SAFETY: glibc returns the address of this thread's errno, which is valid while the thread
    // runs.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`; returns -1.
fn fail(value: c_int) -> c_int {
    set_errno(value);
    -1
}

fn set_errno(value: c_int) {
    // SAFETY: glibc returns the address of this thread's errno, which is valid while the thread
    // runs.
    unsafe { *libc::__errno_location() = value };
}
