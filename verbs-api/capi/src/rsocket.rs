//! librdmacm's sockets: the functions of `rdma/rsocket.h`, over the crate `roxe-rsockets`.
//!
//! They are the calls of ordinary sockets with an `r` in front, and answer as those do: -1 and
//! `errno`. Here: what C means by its pointers and lengths. EBADF for numbers that are no rsockets,
//! EFAULT for NULL where something has to be.
//!
//! - `open.rs`: from nothing to a connection; `data_path.rs`: bytes; `control.rs`: waiting,
//!   options, mappings.

mod control;
mod data;
mod open;

pub(crate) use control::{
    repoll_create, repoll_ctl, repoll_wait, rfcntl, rgetsockopt, riomap, riounmap, riowrite, rpoll, rselect,
    rsetsockopt, rshutdown,
};
pub(crate) use data::{rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev};
pub(crate) use open::{raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rlisten, rsocket};

use crate::errno::{EINVAL, Errno, Result};
use crate::rdmacm::address;
use core::ffi::c_int;
use core::mem::size_of;
use core::net::SocketAddr;
use core::{ptr, slice};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use roxe_provider::cm::Address;
use roxe_rsockets::Socket;
use std::sync::Arc;

const EBADF: Errno = Errno(libc::EBADF);
const EFAULT: Errno = Errno(libc::EFAULT);

/// What Linux moves at most in one call.
const MOST: usize = 0x7fff_f000;

fn socket(fd: c_int) -> Result<Arc<Socket>> {
    roxe_rsockets::find(fd).ok_or(EBADF)
}

/// The bytes that a pointer and a length name.
///
/// # Safety
/// `start` is NULL or has `len` bytes to read, for as long as the result is used.
unsafe fn bytes<'a>(start: *const u8, len: usize) -> Result<&'a [u8]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(EFAULT),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { slice::from_raw_parts(start, len.min(MOST)) }),
    }
}

/// The bytes that a pointer and a length name, to be written.
///
/// # Safety
/// `start` is NULL or has `len` bytes that nobody else uses, for as long as the result is used.
unsafe fn bytes_mut<'a>(start: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(EFAULT),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(start, len.min(MOST)) }),
    }
}

/// The address that a program names. EINVAL when it is too short for its family, EAFNOSUPPORT for
/// families without sockets.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(EFAULT);
    }
    if (len as usize) < size_of::<sockaddr_in>() {
        return Err(EINVAL);
    }
    // SAFETY: not NULL and long enough for a family.
    let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
    let need = match c_int::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (len as usize) < need {
        return Err(EINVAL);
    }
    // SAFETY: as long as its family says.
    match unsafe { address::read(addr)? } {
        Address::Ip(addr) => Ok(addr),
        Address::Ib(_) => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Where a program wants an address: `len` says how much room there is, and afterwards how long the
/// address is.
#[derive(Clone, Copy)]
struct AddressOut {
    addr: *mut sockaddr,
    len: *mut socklen_t,
}

impl AddressOut {
    /// EFAULT when there is something to write to but no length.
    fn new(addr: *mut sockaddr, len: *mut socklen_t) -> Result<Self> {
        if len.is_null() && !addr.is_null() { Err(EFAULT) } else { Ok(Self { addr, len }) }
    }

    /// A place whose length has to be there: EFAULT for NULL.
    fn needed(addr: *mut sockaddr, len: *mut socklen_t) -> Result<Self> {
        if len.is_null() { Err(EFAULT) } else { Ok(Self { addr, len }) }
    }

    /// The program does not ask for the address.
    fn none() -> Self {
        Self { addr: ptr::null_mut(), len: ptr::null_mut() }
    }

    fn is_wanted(self) -> bool {
        !self.len.is_null()
    }

    /// # Safety
    /// `addr` is NULL or has as many bytes as `len` says, and `len` is NULL or a variable.
    unsafe fn write(self, address: Option<SocketAddr>) {
        if self.len.is_null() {
            return;
        }
        let (source, size) = match address {
            None => (address::to_c(None), 0),
            Some(addr @ SocketAddr::V4(_)) => (address::to_c(Some(&Address::Ip(addr))), size_of::<sockaddr_in>()),
            Some(addr @ SocketAddr::V6(_)) => (address::to_c(Some(&Address::Ip(addr))), size_of::<sockaddr_in6>()),
        };
        // SAFETY: this function's contract; no more is copied than there is and than there is room
        // for.
        unsafe {
            if !self.addr.is_null() {
                let room = (*self.len as usize).min(size);
                (&raw const source).cast::<u8>().copy_to_nonoverlapping(self.addr.cast(), room);
            }
            *self.len = size as socklen_t;
        }
    }
}
