//! Bytes in and out. Nothing is allocated, but for long lists of buffers and for lists with holes.

use super::{AddressOut, EFAULT, MOST, bytes, bytes_mut, read_address, socket};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, length};
use core::ffi::{c_int, c_void};
use core::{array, slice};
use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

/// As `man 2 recv`.
pub(crate) unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a buffer and its size.
        let buf = unsafe { bytes_mut(buf.cast(), len)? };
        Ok(socket.recv(buf, flags)?)
    })
}

/// As `man 2 recvfrom`; on a stream the address is the peer's.
pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a buffer and its size.
        let buf = unsafe { bytes_mut(buf.cast(), len)? };
        let place = if from.is_null() { AddressOut::none() } else { AddressOut::new(from, from_len)? };
        let (got, sender) = socket.recv_from(buf, flags)?;
        if place.is_wanted() {
            // SAFETY: the program passed room and its size.
            unsafe { place.write(sender.or_else(|| socket.peer_addr().ok())) };
        }
        Ok(got)
    })
}

/// As `man 2 recvmsg`. There are no control messages.
pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: NULL, or the program's structure.
        let message = unsafe { message.as_mut() }.ok_or(EFAULT)?;
        // SAFETY: the program passed a list of buffers and its length.
        let mut bufs = unsafe { Buffers::new(message.msg_iov, message.msg_iovlen as _) }.map_err(too_long)?;
        let (got, sender) = socket.recv_vectored(bufs.all(), flags)?;
        let name = message.msg_name.cast::<sockaddr>();
        let place =
            if name.is_null() { AddressOut::none() } else { AddressOut::new(name, &raw mut message.msg_namelen)? };
        // SAFETY: room for a name, of this size.
        unsafe { place.write(sender) };
        (message.msg_controllen, message.msg_flags) = (0, 0);
        Ok(got)
    })
}

/// As `man 2 read`.
pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// As `man 2 readv`.
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a list of buffers and its length.
        let mut bufs = unsafe { Buffers::new(parts, list_len(count)?)? };
        Ok(socket.recv_vectored(bufs.all(), 0)?.0)
    })
}

/// As `man 2 send`.
pub(crate) unsafe extern "C" fn rsend(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a buffer and its size.
        let buf = unsafe { bytes(buf.cast(), len)? };
        Ok(socket.send(buf, flags)?)
    })
}

/// As `man 2 sendto`.
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a buffer and its size.
        let buf = unsafe { bytes(buf.cast(), len)? };
        // SAFETY: the program passed NULL, or an address and its length.
        let to = if to.is_null() { None } else { Some(unsafe { read_address(to, to_len)? }) };
        Ok(socket.send_to(buf, flags, to)?)
    })
}

/// As `man 2 sendmsg`. EOPNOTSUPP for control messages.
pub(crate) unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: NULL, or the program's structure.
        let message = unsafe { message.as_ref() }.ok_or(EFAULT)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(EOPNOTSUPP);
        }
        let name = message.msg_name.cast::<sockaddr>();
        // SAFETY: the program passed NULL, or an address and its length.
        let to = if name.is_null() { None } else { Some(unsafe { read_address(name, message.msg_namelen)? }) };
        let mut holes = Vec::new();
        // SAFETY: the program passed a list of buffers and its length.
        let bufs = unsafe { buffers(message.msg_iov, message.msg_iovlen as _, &mut holes) };
        Ok(socket.send_vectored(bufs.map_err(too_long)?, flags, to)?)
    })
}

/// As `man 2 write`.
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { rsend(fd, buf, len, 0) }
}

/// As `man 2 writev`.
pub(crate) unsafe extern "C" fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        let mut holes = Vec::new();
        // SAFETY: the program passed a list of buffers and its length.
        let bufs = unsafe { buffers(parts, list_len(count)?, &mut holes)? };
        Ok(socket.send_vectored(bufs, 0, None)?)
    })
}

/// How long a list is that needs no memory.
const FEW: usize = 8;

/// The most buffers that Linux takes in one list (`IOV_MAX`).
const PARTS: usize = 1024;

fn list_len(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| EINVAL)
}

/// For messages, a list of too many buffers has an errno of its own.
fn too_long(error: Errno) -> Errno {
    if error == EINVAL { Errno(libc::EMSGSIZE) } else { error }
}

/// Checks a list of buffers: EINVAL when it or what it names is too long, EFAULT when something is
/// not there. Returns it, and whether all of its entries are buffers: one of length 0 may be NULL,
/// which no slice can be.
///
/// # Safety
/// `parts` is NULL or has `count` entries.
unsafe fn list<'a>(parts: *const iovec, count: usize) -> Result<(&'a [iovec], bool)> {
    if count > PARTS {
        return Err(EINVAL);
    }
    if count == 0 {
        return Ok((&[], true));
    }
    if parts.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: this function's contract.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    let total = parts.iter().try_fold(0usize, |total, part| total.checked_add(part.iov_len));
    if total.is_none_or(|total| total > MOST) {
        return Err(EINVAL);
    }
    if parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(EFAULT);
    }
    Ok((parts, parts.iter().all(|part| !part.iov_base.is_null())))
}

/// The buffers of a list, to read from; `holes` keeps them when some entries have to be left out.
///
/// # Safety
/// `parts` is NULL or has `count` entries; each is a buffer of its length, for as long as the
/// result is used.
unsafe fn buffers<'a>(parts: *const iovec, count: usize, holes: &'a mut Vec<IoSlice<'a>>) -> Result<&'a [IoSlice<'a>]> {
    // SAFETY: this function's contract.
    let (list, whole) = unsafe { list(parts, count)? };
    if whole {
        // SAFETY: `IoSlice` is an `iovec` by its documentation; none is NULL.
        return Ok(unsafe { slice::from_raw_parts(list.as_ptr().cast(), list.len()) });
    }
    for part in list {
        // SAFETY: this function's contract.
        holes.push(IoSlice::new(unsafe { bytes(part.iov_base.cast(), part.iov_len)? }));
    }
    Ok(holes)
}

/// A list of buffers to write to; our own copy, because a list is used up as it is filled. Short
/// ones need no memory.
struct Buffers<'a> {
    few: [IoSliceMut<'a>; FEW],
    many: Vec<IoSliceMut<'a>>,
    count: usize,
}

impl<'a> Buffers<'a> {
    /// # Safety
    /// As for [`buffers`]; nobody else uses the buffers meanwhile.
    unsafe fn new(parts: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: this function's contract.
        let (list, _) = unsafe { list(parts, count)? };
        // SAFETY: this function's contract.
        let buffer = |part: &iovec| unsafe { bytes_mut(part.iov_base.cast(), part.iov_len) };
        let mut new = Self { few: array::from_fn(|_| IoSliceMut::new(&mut [])), many: Vec::new(), count };
        for (at, part) in list.iter().enumerate() {
            match new.few.get_mut(at) {
                Some(place) if count <= FEW => *place = IoSliceMut::new(buffer(part)?),
                _ => new.many.push(IoSliceMut::new(buffer(part)?)),
            }
        }
        Ok(new)
    }

    fn all(&mut self) -> &mut [IoSliceMut<'a>] {
        if self.count <= FEW { &mut self.few[..self.count] } else { &mut self.many }
    }
}
