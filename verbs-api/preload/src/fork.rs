//! Servers that fork a process for each connection (`RDMAV_FORK_SAFE=1` on both ends).
//!
//! A child cannot take over an RDMA connection, so connections start as TCP. In the process that
//! transfers the first byte, the accepting side listens on the same port for RDMA, sends four zero
//! bytes over TCP, and accepts. The connecting side waits for them before its first byte and
//! connects. Then both drop the TCP connection. This is compatible with rdma-core's shim and shares
//! its limits: a process that first waits with `poll` or `select` waits forever, and a peer
//! without the shim is not detected.

use crate::rdma::{Rdma, rdma};
use crate::real::{number_option, real};
use crate::table::{self, FdKind, Stage};
use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr;
use libc::{sockaddr_in, sockaddr_storage, socklen_t};
use parking_lot::Mutex;
use std::fs::File;
use std::os::fd::RawFd;

/// Announces that the accepting side listens.
const READY: [u8; 4] = [0; 4];

/// One thread at a time moves a socket over.
static MOVING: Mutex<()> = Mutex::new(());

/// Moves a connection to RDMA; on failure it stays TCP for good. Returns the rsocket.
pub(crate) fn move_over(fd: c_int) -> Option<(&'static Rdma, RawFd)> {
    if !matches!(table::fd_kind(fd), FdKind::Fork(Stage::Accepted | Stage::Connected)) {
        return None;
    }
    let _moving = MOVING.lock();
    let make = match table::fd_kind(fd) {
        FdKind::Fork(Stage::Accepted) => accepted,
        FdKind::Fork(Stage::Connected) => connected,
        // Another thread was faster.
        FdKind::Rsocket(number) => return Some((rdma()?, number)),
        _ => return None,
    };
    let rdma = rdma()?;
    let Some(number) = make(rdma, fd) else {
        table::forget(fd);
        return None;
    };
    copy_options(rdma, fd, number);
    // SAFETY: numbers only; tells the peer that the TCP connection is no longer needed.
    unsafe { (real().shutdown)(fd, libc::SHUT_RDWR) };
    if !table::replace(fd) || !table::open(fd, number) {
        // SAFETY: numbers only.
        unsafe { rdma.rclose(number) };
        table::forget(fd);
        return None;
    }
    Some((rdma, number))
}

/// Copies flags and options that programs often set before the first byte.
fn copy_options(rdma: &Rdma, fd: c_int, number: RawFd) {
    // SAFETY: numbers only.
    unsafe {
        let flags = (real().fcntl)(fd, libc::F_GETFL) & libc::O_NONBLOCK;
        rdma.rfcntl(number, libc::F_SETFL, c_long::from(flags));
    }
    if number_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 0) != 0 {
        rdma.set_number(number, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
}

struct Name(sockaddr_storage, socklen_t);

impl Name {
    fn ask(fd: c_int, ask: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int) -> Option<Self> {
        // SAFETY: all zero is an address without a family.
        let mut name = Self(unsafe { MaybeUninit::zeroed().assume_init() }, size_of::<sockaddr_storage>() as socklen_t);
        // SAFETY: two variables.
        let status = unsafe { ask(fd, (&raw mut name.0).cast(), &raw mut name.1) };
        (status == 0).then_some(name)
    }

    fn family(&self) -> c_int {
        c_int::from(self.0.ss_family)
    }

    /// Returns the port of this name on all addresses.
    fn any_address(&self) -> Self {
        // SAFETY: all zero is an address without a family.
        let mut any = Self(unsafe { MaybeUninit::zeroed().assume_init() }, self.1);
        any.0.ss_family = self.0.ss_family;
        let (to, from) = ((&raw mut any.0).cast::<sockaddr_in>(), (&raw const self.0).cast::<sockaddr_in>());
        // SAFETY: the port of both families is at this place.
        unsafe { (*to).sin_port = (*from).sin_port };
        any
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.0).cast()
    }
}

/// The accepting side. One process of a user at a time, because all of them listen on one port.
fn accepted(rdma: &Rdma, fd: c_int) -> Option<RawFd> {
    let name = Name::ask(fd, real().getsockname)?.any_address();
    // Held until the listener is closed; otherwise the next process finds the port in use.
    let _lock = accept_lock();
    let listener = rdma.create(name.family(), libc::SOCK_STREAM, 0);
    if listener < 0 {
        return None;
    }
    rdma.set_number(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: an address with its length; numbers, one of them our own and closed once; four bytes.
    unsafe {
        let listens = rdma.rbind(listener, name.as_ptr(), name.1) == 0 && rdma.rlisten(listener, 1) == 0;
        let is_said = listens && (real().write)(fd, READY.as_ptr().cast(), READY.len()) == READY.len() as isize;
        let number = if is_said { rdma.raccept(listener, ptr::null_mut(), ptr::null_mut()) } else { -1 };
        rdma.rclose(listener);
        (number >= 0).then_some(number)
    }
}

/// Waits for other processes of this user that accept. The kernel releases the lock with its
/// holder; if the file cannot be created, there is no waiting.
fn accept_lock() -> Option<File> {
    // SAFETY: takes no pointers.
    let path = format!("/dev/shm/rsocket_fork.{}", unsafe { libc::geteuid() });
    let file = File::options().create(true).truncate(false).write(true).open(path).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// The connecting side. The peer's first four bytes announce its listener; other bytes are data.
fn connected(rdma: &Rdma, fd: c_int) -> Option<RawFd> {
    let mut seen = [1; READY.len()];
    // SAFETY: numbers, and a buffer with its size.
    let got = unsafe {
        let flags = (real().fcntl)(fd, libc::F_GETFL);
        (real().fcntl)(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
        let look = libc::MSG_PEEK | libc::MSG_WAITALL;
        let got = (real().recv)(fd, seen.as_mut_ptr().cast(), seen.len(), look);
        (real().fcntl)(fd, libc::F_SETFL, flags);
        got
    };
    if got != READY.len() as isize || seen != READY {
        return None;
    }
    let peer = Name::ask(fd, real().getpeername)?;
    let number = rdma.create(peer.family(), libc::SOCK_STREAM, 0);
    if number < 0 {
        return None;
    }
    // SAFETY: an address with its length; a number of our own, closed once.
    unsafe {
        if rdma.rconnect(number, peer.as_ptr(), peer.1) == 0 {
            return Some(number);
        }
        rdma.rclose(number);
    }
    None
}
