//! From nothing to a connection, and back.

use super::{AddressOut, read_address, socket};
use crate::errno::{EOPNOTSUPP, minus_one, zero};
use core::ffi::c_int;
use libc::{SOCK_DGRAM, SOCK_STREAM, sockaddr, socklen_t};

/// `man 7 rsocket`, as `man 2 socket`. No flags in `kind`: rdma-core refuses them, and its socket
/// shim relies on that. It offers us every socket that any code of the process asks for, our own
/// included, and those all have a flag.
pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one(|| match kind {
        SOCK_STREAM | SOCK_DGRAM => Ok(roxe_rsockets::open(domain, kind, protocol)?),
        _ => Err(EOPNOTSUPP),
    })
}

/// As `man 2 bind`.
pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    zero(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed an address and its length.
        let addr = unsafe { read_address(addr, len)? };
        Ok(socket.bind(addr)?)
    })
}

/// As `man 2 listen`.
pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.listen(backlog)?))
}

/// As `man 2 accept`.
pub(crate) unsafe extern "C" fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    minus_one(|| {
        socket(fd)?;
        let place = AddressOut::new(addr, len)?;
        let (number, peer) = roxe_rsockets::accept(fd)?;
        // SAFETY: the program passed room and its size, or NULL.
        unsafe { place.write(Some(peer)) };
        Ok(number)
    })
}

/// As `man 2 connect`.
pub(crate) unsafe extern "C" fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    zero(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed an address and its length.
        let addr = unsafe { read_address(addr, len)? };
        Ok(socket.connect(addr)?)
    })
}

/// As `man 2 close`.
pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    zero(|| Ok(roxe_rsockets::close(fd)?))
}

/// As `man 2 getpeername`.
pub(crate) unsafe extern "C" fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    zero(|| {
        let peer = socket(fd)?.peer_addr()?;
        // SAFETY: the program passed room and its size.
        unsafe { AddressOut::needed(addr, len)?.write(Some(peer)) };
        Ok(())
    })
}

/// As `man 2 getsockname`.
pub(crate) unsafe extern "C" fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    zero(|| {
        let own = socket(fd)?.local_addr()?;
        // SAFETY: the program passed room and its size.
        unsafe { AddressOut::needed(addr, len)?.write(Some(own)) };
        Ok(())
    })
}
