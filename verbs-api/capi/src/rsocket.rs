//! librdmacm's sockets: the functions of `rdma/rsocket.h`, over the crate `roxe-rsockets`.
//!
//! Each call behaves like the socket call of its name without the `r` (man section 2). This file
//! interprets C's pointers and lengths: EBADF for a descriptor that is not an rsocket, EFAULT for a
//! NULL that must not be.

use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, length, minus_one, zero};
use crate::rdmacm::addrinfo;
use core::ffi::{c_int, c_long, c_void};
use core::mem::size_of;
use core::net::SocketAddr;
use core::ptr::NonNull;
use core::{array, ptr, slice};
use libc::{
    SOCK_DGRAM, SOCK_STREAM, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, sockaddr_in,
    sockaddr_in6, socklen_t, ssize_t, timeval,
};
use roxe_provider::cm::Address;
use roxe_rsockets::Socket;
use roxe_transport::wr::Access;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

const EBADF: Errno = Errno(libc::EBADF);
const EFAULT: Errno = Errno(libc::EFAULT);

/// Limit of Linux on the bytes of one call.
const MAX_BYTES: usize = 0x7fff_f000;

fn socket(fd: c_int) -> Result<Arc<Socket>> {
    roxe_rsockets::find(fd).ok_or(EBADF)
}

/// An array of the program to read; EFAULT for NULL unless it is empty.
///
/// # Safety
/// `start` is NULL or has `len` elements that outlive the result.
unsafe fn slice<'a, T>(start: *const T, len: usize) -> Result<&'a [T]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(EFAULT),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { slice::from_raw_parts(start, len) }),
    }
}

/// An array of the program to write; EFAULT for NULL unless it is empty.
///
/// # Safety
/// `start` is NULL or has `len` elements, used by no other code, that outlive the result.
unsafe fn slice_mut<'a, T>(start: *mut T, len: usize) -> Result<&'a mut [T]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(EFAULT),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(start, len) }),
    }
}

/// The program's buffer to read.
///
/// # Safety
/// The contract of [`slice`].
unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
    // SAFETY: this function's contract.
    unsafe { slice(start.cast(), len.min(MAX_BYTES)) }
}

/// The program's buffer to write.
///
/// # Safety
/// The contract of [`slice_mut`].
unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    // SAFETY: this function's contract.
    unsafe { slice_mut(start.cast(), len.min(MAX_BYTES)) }
}

/// The program's address. EINVAL if shorter than its family, EAFNOSUPPORT for other families.
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
    match unsafe { addrinfo::read(addr)? } {
        Address::Ip(addr) => Ok(addr),
        Address::Ib(_) => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Variables for an address. `len` is the size of the room, and afterwards of the address.
#[derive(Clone, Copy)]
struct AddressOut {
    addr: *mut sockaddr,
    len: *mut socklen_t,
}

impl AddressOut {
    /// EFAULT for an address without a length.
    fn new(addr: *mut sockaddr, len: *mut socklen_t) -> Result<Self> {
        if len.is_null() && !addr.is_null() { Err(EFAULT) } else { Ok(Self { addr, len }) }
    }

    const NONE: Self = Self { addr: ptr::null_mut(), len: ptr::null_mut() };

    /// # Safety
    /// `addr` is NULL or has as many bytes as `len` says, and `len` is NULL or a variable.
    unsafe fn write(self, address: Option<SocketAddr>) {
        if self.len.is_null() {
            return;
        }
        let size = match address {
            None => 0,
            Some(SocketAddr::V4(_)) => size_of::<sockaddr_in>(),
            Some(SocketAddr::V6(_)) => size_of::<sockaddr_in6>(),
        };
        let source = addrinfo::to_c(address.map(Address::Ip).as_ref());
        // SAFETY: this function's contract; the copy exceeds neither the source nor the room.
        unsafe {
            if !self.addr.is_null() {
                let room = (*self.len as usize).min(size);
                (&raw const source).cast::<u8>().copy_to_nonoverlapping(self.addr.cast(), room);
            }
            *self.len = size as socklen_t;
        }
    }
}

/// `man 7 rsocket`. Refuses flags in `kind`, as rdma-core does: its socket shim offers us every
/// socket of the process, including our own, which all have a flag.
pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one(|| match kind {
        SOCK_STREAM | SOCK_DGRAM => Ok(roxe_rsockets::open(domain, kind, protocol)?),
        _ => Err(EOPNOTSUPP),
    })
}

pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program passed an address and its length.
    zero(|| Ok(socket(fd)?.bind(unsafe { read_address(addr, len)? })?))
}

pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.listen(backlog)?))
}

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

pub(crate) unsafe extern "C" fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program passed an address and its length.
    zero(|| Ok(socket(fd)?.connect(unsafe { read_address(addr, len)? })?))
}

pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    zero(|| Ok(roxe_rsockets::close(fd)?))
}

/// Writes an address; EFAULT without a length.
///
/// # Safety
/// The contract of [`AddressOut::write`].
unsafe fn write_address(addr: *mut sockaddr, len: *mut socklen_t, address: SocketAddr) -> Result<()> {
    if len.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: this function's contract.
    unsafe { AddressOut { addr, len }.write(Some(address)) };
    Ok(())
}

pub(crate) unsafe extern "C" fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program passed room and its size.
    zero(|| unsafe { write_address(addr, len, socket(fd)?.peer_addr()?) })
}

pub(crate) unsafe extern "C" fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program passed room and its size.
    zero(|| unsafe { write_address(addr, len, socket(fd)?.local_addr()?) })
}

pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.shutdown(how)?))
}

pub(crate) unsafe extern "C" fn rpoll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    minus_one(|| {
        let count = c_int::try_from(count).map_err(|_| EINVAL)?.cast_unsigned() as usize;
        // SAFETY: the program passed an array and its length.
        let entries = unsafe { slice_mut(entries, count) }?;
        Ok(ready(roxe_rsockets::poll(entries, timeout)?))
    })
}

fn ready(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// `epoll_create1` for rsockets and other descriptors; `rclose` closes the set.
pub(crate) unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    minus_one(|| Ok(roxe_rsockets::epoll_create(flags)?))
}

pub(crate) unsafe extern "C" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    zero(|| {
        // SAFETY: NULL or a structure of the program, which is packed and may be unaligned.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        Ok(roxe_rsockets::epoll_ctl(epfd, op, fd, event)?)
    })
}

/// `epoll_wait`. Reports are level-triggered, even for `EPOLLET`.
pub(crate) unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    minus_one(|| {
        let room = usize::try_from(maxevents).ok().filter(|room| *room > 0).ok_or(EINVAL)?;
        if events.is_null() {
            return Err(EFAULT);
        }
        let found = roxe_rsockets::epoll_wait(epfd, room, timeout)?;
        // SAFETY: the program passed an array and its length, and no more is found than that.
        unsafe { events.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        Ok(ready(found.len()))
    })
}

type Set = [u64; 16];

/// `select` of rsockets and other descriptors; does not change `timeout`.
pub(crate) unsafe extern "C" fn rselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    minus_one(|| {
        // SAFETY: NULL, or the program's variable.
        let timeout = milliseconds(unsafe { timeout.as_ref() })?;
        let sets = [read, write, except].map(|set| set.cast::<Set>());
        // Copies, because a program may pass the same set twice.
        // SAFETY: NULL, or the program's set, which has this many words.
        let mut copies = sets.map(|set| unsafe { set.as_ref() }.copied());
        let count =
            roxe_rsockets::select(nfds, copies.each_mut().map(|set| set.as_mut().map(|set| &mut set[..])), timeout)?;
        for (set, copy) in sets.into_iter().zip(copies) {
            if let Some(copy) = copy {
                // SAFETY: NULL, or the program's set, which has this many words.
                unsafe { set.write(copy) };
            }
        }
        Ok(ready(count))
    })
}

/// Milliseconds, rounded up; -1 without a timeout.
fn milliseconds(timeout: Option<&timeval>) -> Result<c_int> {
    let Some(time) = timeout else { return Ok(-1) };
    if time.tv_sec < 0 || time.tv_usec < 0 {
        return Err(EINVAL);
    }
    let total = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec.saturating_add(999) / 1000);
    Ok(c_int::try_from(total).unwrap_or(c_int::MAX))
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the program passed a value and its size.
    zero(|| Ok(socket(fd)?.set_option(level, name, unsafe { bytes(value, len as usize)? })?))
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    zero(|| {
        let socket = socket(fd)?;
        // SAFETY: NULL, or the program's variable.
        let len = unsafe { len.as_mut() }.ok_or(EFAULT)?;
        // SAFETY: the program passed room and its size.
        let room = unsafe { bytes_mut(value, *len as usize)? };
        let found = socket.option(level, name, room.len())?;
        room.get_mut(..found.len()).ok_or(EINVAL)?.copy_from_slice(&found);
        *len = found.len() as socklen_t;
        Ok(())
    })
}

/// `fcntl` with `F_GETFL`, `F_SETFL`, `F_GETFD` or `F_SETFD`. Reading the argument is safe without
/// one: it is in a register.
pub(crate) unsafe extern "C" fn rfcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    minus_one(|| {
        let socket = socket(fd)?;
        match command {
            libc::F_GETFL => return Ok(socket.status_flags()),
            libc::F_GETFD => return Ok(socket.descriptor_flags()),
            libc::F_SETFL => socket.set_status_flags(arg as c_int),
            libc::F_SETFD => socket.set_descriptor_flags(arg as c_int),
            _ => return Err(EOPNOTSUPP),
        }
        Ok(0)
    })
}

/// `man 7 rsocket`: registers a buffer that the peer writes to, or one for `riowrite` only.
pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    length(|| {
        let socket = socket(fd)?;
        if prot & !libc::PROT_WRITE != 0 {
            return Err(EINVAL);
        }
        let shared = prot & libc::PROT_WRITE != 0;
        let access = if shared { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let start = NonNull::new(buf.cast()).ok_or(EFAULT)?;
        // SAFETY: the program passed a buffer and its size, and unmaps it before freeing it.
        let region = unsafe { socket.protection_domain()?.register_raw(start, len, access) }.map_err(refusal)?;
        let offset = socket.iomap(region, shared, offset)?;
        usize::try_from(offset).map_err(|_| EINVAL)
    }) as off_t
}

fn refusal(error: roxe::Error) -> Errno {
    error.refusal().map_or(EINVAL, |refusal| roxe_provider::Error::from(refusal.clone()).into())
}

/// `man 7 rsocket`: ends a mapping.
pub(crate) unsafe extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: usize) -> c_int {
    zero(|| Ok(socket(fd)?.iounmap(buf.addr(), len)?))
}

/// `man 7 rsocket`: writes into a buffer of the peer.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program passed a buffer and its size.
    length(|| Ok(socket(fd)?.iowrite(unsafe { bytes(buf, len)? }, offset, flags)?))
}

pub(crate) unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the program passed a buffer and its size.
    length(|| Ok(socket(fd)?.recv(unsafe { bytes_mut(buf, len)? }, flags)?))
}

/// `recvfrom`; on a stream the address is the peer's.
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
        let buf = unsafe { bytes_mut(buf, len)? };
        let place = if from.is_null() { AddressOut::NONE } else { AddressOut::new(from, from_len)? };
        let (got, sender) = socket.recv_from(buf, flags)?;
        // SAFETY: the program passed room and its size.
        unsafe { place.write(sender.or_else(|| socket.peer_addr().ok())) };
        Ok(got)
    })
}

/// `recvmsg` without control messages.
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
            if name.is_null() { AddressOut::NONE } else { AddressOut::new(name, &raw mut message.msg_namelen)? };
        // SAFETY: room for a name of this size.
        unsafe { place.write(sender) };
        (message.msg_controllen, message.msg_flags) = (0, 0);
        Ok(got)
    })
}

pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a list of buffers and its length.
        Ok(socket.recv_vectored(unsafe { Buffers::new(parts, list_len(count)?)? }.all(), 0)?.0)
    })
}

pub(crate) unsafe extern "C" fn rsend(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the program passed a buffer and its size.
    length(|| Ok(socket(fd)?.send(unsafe { bytes(buf, len)? }, flags)?))
}

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
        let buf = unsafe { bytes(buf, len)? };
        // SAFETY: the program passed NULL, or an address and its length.
        let to = if to.is_null() { None } else { Some(unsafe { read_address(to, to_len)? }) };
        Ok(socket.send_to(buf, flags, to)?)
    })
}

/// `sendmsg`; EOPNOTSUPP with control messages.
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

pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { rsend(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        let mut holes = Vec::new();
        // SAFETY: the program passed a list of buffers and its length.
        Ok(socket.send_vectored(unsafe { buffers(parts, list_len(count)?, &mut holes)? }, 0, None)?)
    })
}

/// Length of a buffer list that needs no allocation.
const FEW: usize = 8;

/// `IOV_MAX` of Linux.
const PARTS: usize = 1024;

fn list_len(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| EINVAL)
}

/// Calls with messages have another errno for too long lists.
fn too_long(error: Errno) -> Errno {
    if error == EINVAL { Errno(libc::EMSGSIZE) } else { error }
}

/// Checks a list of buffers: EINVAL if the list or its total is too long, EFAULT for NULL. Also
/// returns true if no buffer is NULL: a buffer of length 0 may be, which no slice can be.
///
/// # Safety
/// `parts` is NULL or has `count` entries.
unsafe fn list<'a>(parts: *const iovec, count: usize) -> Result<(&'a [iovec], bool)> {
    if count > PARTS {
        return Err(EINVAL);
    }
    // SAFETY: this function's contract.
    let parts = unsafe { slice(parts, count) }?;
    let total = parts.iter().try_fold(0usize, |total, part| total.checked_add(part.iov_len));
    if total.is_none_or(|total| total > MAX_BYTES) {
        return Err(EINVAL);
    }
    if parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(EFAULT);
    }
    Ok((parts, parts.iter().all(|part| !part.iov_base.is_null())))
}

/// Buffers to read from; `holes` stores them if some are NULL.
///
/// # Safety
/// `parts` is NULL or has `count` entries; each is a buffer of its length that outlives the result.
unsafe fn buffers<'a>(parts: *const iovec, count: usize, holes: &'a mut Vec<IoSlice<'a>>) -> Result<&'a [IoSlice<'a>]> {
    // SAFETY: this function's contract.
    let (list, whole) = unsafe { list(parts, count)? };
    if whole {
        // SAFETY: `IoSlice` is an `iovec` by its documentation; none is NULL.
        return Ok(unsafe { slice::from_raw_parts(list.as_ptr().cast(), list.len()) });
    }
    for part in list {
        // SAFETY: this function's contract.
        holes.push(IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len)? }));
    }
    Ok(holes)
}

/// Buffers to write to; a copy, because receiving advances them. Short lists need no allocation.
struct Buffers<'a> {
    few: [IoSliceMut<'a>; FEW],
    many: Vec<IoSliceMut<'a>>,
    count: usize,
}

impl<'a> Buffers<'a> {
    /// # Safety
    /// The contract of [`buffers`]; no other code uses the buffers meanwhile.
    unsafe fn new(parts: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: this function's contract.
        let (list, _) = unsafe { list(parts, count)? };
        // SAFETY: this function's contract.
        let buffer = |part: &iovec| unsafe { bytes_mut(part.iov_base, part.iov_len) };
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
