//! Servers that fork a process for each connection (`RDMAV_FORK_SAFE=1` on both ends).
//!
//! A child cannot take over an RDMA connection, so connections start as TCP. Each side moves its
//! connection to RDMA in the process that first transfers data. The accepting side listens for RDMA
//! on the same port, sends four zero bytes over TCP, and accepts an RDMA connection. The connecting
//! side waits for the four bytes, and connects by RDMA. Then both shut the TCP connection down.
//!
//! This is compatible with rdma-core's shim and shares its limits: a process that calls `poll` or
//! `select` before its first transfer waits forever, and a peer without the shim is not detected.

use crate::rdma::{RdmaLibrary, rdma_library};
use crate::real::{number_option, real};
use crate::table::{self, FdKind, Stage};
use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr;
use libc::{sockaddr_in, sockaddr_storage, socklen_t};
use parking_lot::Mutex;
use std::fs::File;
use std::os::fd::RawFd;

/// Bytes over TCP that announce that the accepting side listens for RDMA.
const READY: [u8; 4] = [0; 4];

/// Held by the thread that moves a connection.
static MOVING: Mutex<()> = Mutex::new(());

/// Moves a connection to RDMA, and returns the rsocket. Returns `None` if the connection is not to
/// be moved or the move fails; after a failure it stays TCP.
pub(crate) fn move_over(fd: c_int) -> Option<(&'static RdmaLibrary, RawFd)> {
    if !matches!(table::fd_kind(fd), FdKind::Fork(Stage::Accepted | Stage::Connected)) {
        return None;
    }
    let _moving = MOVING.lock();
    let establish = match table::fd_kind(fd) {
        FdKind::Fork(Stage::Accepted) => accept_rdma,
        FdKind::Fork(Stage::Connected) => connect_rdma,
        // Another thread has moved the connection.
        FdKind::Rsocket(rsocket) => return Some((rdma_library()?, rsocket)),
        _ => return None,
    };
    let rdma = rdma_library()?;
    let Some(rsocket) = establish(rdma, fd) else {
        table::forget(fd);
        return None;
    };
    copy_options(rdma, fd, rsocket);
    // SAFETY: the call takes no pointers.
    unsafe { (real().shutdown)(fd, libc::SHUT_RDWR) };
    if !table::replace_with_new_socket(fd) || !table::open(fd, rsocket) {
        // SAFETY: the call takes no pointers; the program does not know the rsocket.
        unsafe { rdma.rclose(rsocket) };
        table::forget(fd);
        return None;
    }
    Some((rdma, rsocket))
}

/// Copies the flags and options that programs often set before the first transfer.
fn copy_options(rdma: &RdmaLibrary, fd: c_int, rsocket: RawFd) {
    // SAFETY: the calls take no pointers.
    unsafe {
        let flags = (real().fcntl)(fd, libc::F_GETFL) & libc::O_NONBLOCK;
        rdma.rfcntl(rsocket, libc::F_SETFL, c_long::from(flags));
    }
    if number_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 0) != 0 {
        rdma.set_number(rsocket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
}

/// A socket address and its length in bytes.
struct Address(sockaddr_storage, socklen_t);

impl Address {
    /// Returns the address that `get`, `getsockname` or `getpeername`, has for a socket.
    fn of(fd: c_int, get: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int) -> Option<Self> {
        // SAFETY: the structure has only integers, which may be zero.
        let mut address =
            Self(unsafe { MaybeUninit::zeroed().assume_init() }, size_of::<sockaddr_storage>() as socklen_t);
        // SAFETY: `address` is a local variable, with its size.
        let status = unsafe { get(fd, (&raw mut address.0).cast(), &raw mut address.1) };
        (status == 0).then_some(address)
    }

    fn family(&self) -> c_int {
        c_int::from(self.0.ss_family)
    }

    /// Returns the wildcard address with this port.
    fn wildcard(&self) -> Self {
        // SAFETY: the structure has only integers, which may be zero.
        let mut any = Self(unsafe { MaybeUninit::zeroed().assume_init() }, self.1);
        any.0.ss_family = self.0.ss_family;
        let (to, from) = ((&raw mut any.0).cast::<sockaddr_in>(), (&raw const self.0).cast::<sockaddr_in>());
        // SAFETY: `sockaddr_storage` is larger than `sockaddr_in` and aligned for it; IPv6
        // addresses have their port at the same offset.
        unsafe { (*to).sin_port = (*from).sin_port };
        any
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.0).cast()
    }
}

/// Listens for RDMA on the port of `fd`, announces it to the peer, and accepts one connection. One
/// process of a user at a time does so, because all of them listen on the same port.
fn accept_rdma(rdma: &RdmaLibrary, fd: c_int) -> Option<RawFd> {
    let address = Address::of(fd, real().getsockname)?.wildcard();
    // Held until the listener is closed; otherwise the next process finds the port in use.
    let _lock = accept_lock();
    let listener = rdma.create(address.family(), libc::SOCK_STREAM, 0);
    if listener < 0 {
        return None;
    }
    rdma.set_number(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: `address` is a local variable with its length, `READY` a constant with its length.
    // This function created `listener`, and closes it once.
    unsafe {
        let listens = rdma.rbind(listener, address.as_ptr(), address.1) == 0 && rdma.rlisten(listener, 1) == 0;
        let announced = listens && (real().write)(fd, READY.as_ptr().cast(), READY.len()) == READY.len() as isize;
        let rsocket = if announced { rdma.raccept(listener, ptr::null_mut(), ptr::null_mut()) } else { -1 };
        rdma.rclose(listener);
        (rsocket >= 0).then_some(rsocket)
    }
}

/// Waits until no other process of this user is in [`accept_rdma`], and locks it. The kernel
/// releases the lock when its holder ends. Does not wait if the file cannot be created.
fn accept_lock() -> Option<File> {
    // SAFETY: the call takes no pointers.
    let path = format!("/dev/shm/rsocket_fork.{}", unsafe { libc::geteuid() });
    let file = File::options().create(true).truncate(false).write(true).open(path).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Waits until the peer announces its listener, and connects to it by RDMA. Returns `None` if the
/// first bytes of the peer are data.
fn connect_rdma(rdma: &RdmaLibrary, fd: c_int) -> Option<RawFd> {
    let mut seen = [1; READY.len()];
    // SAFETY: `seen` is a local array of this length; the other arguments are numbers.
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
    let peer = Address::of(fd, real().getpeername)?;
    let rsocket = rdma.create(peer.family(), libc::SOCK_STREAM, 0);
    if rsocket < 0 {
        return None;
    }
    // SAFETY: `peer` is a local variable with its length. This function created the rsocket, and
    // closes it once.
    unsafe {
        if rdma.rconnect(rsocket, peer.as_ptr(), peer.1) == 0 {
            return Some(rsocket);
        }
        rdma.rclose(rsocket);
    }
    None
}
