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

/// Largest transfer of one call, in bytes, as on Linux (`man 2 read`).
const MAX_BYTES: usize = 0x7fff_f000;

fn socket(fd: c_int) -> Result<Arc<Socket>> {
    roxe_rsockets::find(fd).ok_or(EBADF)
}

/// Returns the program's array of `len` elements, to read. Fails with EFAULT for NULL unless `len`
/// is 0.
///
/// # Safety
/// `start` is NULL or points to `len` elements that are valid for `'a`.
unsafe fn slice<'a, T>(start: *const T, len: usize) -> Result<&'a [T]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(EFAULT),
        // SAFETY: the caller guarantees `len` elements that are valid for `'a`.
        (false, _) => Ok(unsafe { slice::from_raw_parts(start, len) }),
    }
}

/// Returns the program's array of `len` elements, to write. Fails with EFAULT for NULL unless `len`
/// is 0.
///
/// # Safety
/// `start` is NULL or points to `len` elements that are valid for `'a` and used by no other code.
unsafe fn slice_mut<'a, T>(start: *mut T, len: usize) -> Result<&'a mut [T]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(EFAULT),
        // SAFETY: the caller guarantees `len` elements, valid and unshared for `'a`.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(start, len) }),
    }
}

/// Returns the program's buffer, to read, limited to [`MAX_BYTES`].
///
/// # Safety
/// The contract of [`slice`].
unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
    // SAFETY: the caller's contract is that of `slice`, with at least this many bytes.
    unsafe { slice(start.cast(), len.min(MAX_BYTES)) }
}

/// Returns the program's buffer, to write, limited to [`MAX_BYTES`].
///
/// # Safety
/// The contract of [`slice_mut`].
unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    // SAFETY: the caller's contract is that of `slice_mut`, with at least this many bytes.
    unsafe { slice_mut(start.cast(), len.min(MAX_BYTES)) }
}

/// Returns the program's address. Fails with EINVAL if `len` is too short for its family,
/// EAFNOSUPPORT for families other than IPv4 and IPv6.
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
    // SAFETY: not NULL; the caller guarantees `len` bytes, which include the family.
    let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
    let min_len = match c_int::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (len as usize) < min_len {
        return Err(EINVAL);
    }
    // SAFETY: the caller guarantees `len` bytes, at least the size of this family's address.
    match unsafe { addrinfo::read(addr)? } {
        Address::Ip(addr) => Ok(addr),
        Address::Ib(_) => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// The program's output variables for an address.
#[derive(Clone, Copy)]
struct AddressOut {
    addr: *mut sockaddr,
    /// Size of the buffer at `addr`, in bytes; after the call, size of the address.
    len: *mut socklen_t,
}

impl AddressOut {
    /// Returns the variables. Fails with EFAULT for an address without a length.
    fn new(addr: *mut sockaddr, len: *mut socklen_t) -> Result<Self> {
        if len.is_null() && !addr.is_null() { Err(EFAULT) } else { Ok(Self { addr, len }) }
    }

    const NONE: Self = Self { addr: ptr::null_mut(), len: ptr::null_mut() };

    /// Writes `address`, cut to the size of the buffer, and its size.
    ///
    /// # Safety
    /// `len` is NULL or points to a variable; `addr` is NULL or has `*len` bytes.
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
        // SAFETY: the caller guarantees both variables; the copy exceeds neither source nor buffer.
        unsafe {
            if !self.addr.is_null() {
                let copied = (*self.len as usize).min(size);
                (&raw const source).cast::<u8>().copy_to_nonoverlapping(self.addr.cast(), copied);
            }
            *self.len = size as socklen_t;
        }
    }
}

/// `man 7 rsocket`. Refuses flags in `kind`, as rdma-core does. Its `LD_PRELOAD` shim passes every
/// `socket` call of the process to `rsocket`, including calls of this library, which all have a
/// flag: refusing them keeps those sockets in the kernel.
pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one(|| match kind {
        SOCK_STREAM | SOCK_DGRAM => Ok(roxe_rsockets::open(domain, kind, protocol)?),
        _ => Err(EOPNOTSUPP),
    })
}

pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program passes an address of `len` bytes, valid during the call.
    zero(|| Ok(socket(fd)?.bind(unsafe { read_address(addr, len)? })?))
}

pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.listen(backlog)?))
}

pub(crate) unsafe extern "C" fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    minus_one(|| {
        socket(fd)?;
        let out = AddressOut::new(addr, len)?;
        let (accepted_fd, peer) = roxe_rsockets::accept(fd)?;
        // SAFETY: the program passes NULL or a buffer of `*len` bytes, valid during the call.
        unsafe { out.write(Some(peer)) };
        Ok(accepted_fd)
    })
}

pub(crate) unsafe extern "C" fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program passes an address of `len` bytes, valid during the call.
    zero(|| Ok(socket(fd)?.connect(unsafe { read_address(addr, len)? })?))
}

pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    zero(|| Ok(roxe_rsockets::close(fd)?))
}

/// Writes an address to the program's variables. Fails with EFAULT if `len` is NULL.
///
/// # Safety
/// The contract of [`AddressOut::write`].
unsafe fn write_address(addr: *mut sockaddr, len: *mut socklen_t, address: SocketAddr) -> Result<()> {
    if len.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: the caller's contract is that of `AddressOut::write`.
    unsafe { AddressOut { addr, len }.write(Some(address)) };
    Ok(())
}

pub(crate) unsafe extern "C" fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program passes a buffer of `*len` bytes, valid during the call.
    zero(|| unsafe { write_address(addr, len, socket(fd)?.peer_addr()?) })
}

pub(crate) unsafe extern "C" fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program passes a buffer of `*len` bytes, valid during the call.
    zero(|| unsafe { write_address(addr, len, socket(fd)?.local_addr()?) })
}

pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.shutdown(how)?))
}

pub(crate) unsafe extern "C" fn rpoll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    minus_one(|| {
        let count = c_int::try_from(count).map_err(|_| EINVAL)?.cast_unsigned() as usize;
        // SAFETY: the program passes an array of `count` elements, valid during the call.
        let entries = unsafe { slice_mut(entries, count) }?;
        Ok(saturating_c_int(roxe_rsockets::poll(entries, timeout)?))
    })
}

fn saturating_c_int(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Creates an `epoll` set of rsockets and other descriptors, which `rclose` closes.
pub(crate) unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    minus_one(|| Ok(roxe_rsockets::epoll_create(flags)?))
}

pub(crate) unsafe extern "C" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    zero(|| {
        // SAFETY: not NULL; the program passes a structure that is valid during the call. It is
        // packed, so it may be unaligned.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        Ok(roxe_rsockets::epoll_ctl(epfd, op, fd, event)?)
    })
}

/// Waits like `epoll_wait`, but reports are level-triggered, even for `EPOLLET`.
pub(crate) unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    minus_one(|| {
        let max = usize::try_from(maxevents).ok().filter(|max| *max > 0).ok_or(EINVAL)?;
        if events.is_null() {
            return Err(EFAULT);
        }
        let found = roxe_rsockets::epoll_wait(epfd, max, timeout)?;
        // SAFETY: the program passes an array of `maxevents` elements, valid during the call;
        // `epoll_wait` returns at most as many.
        unsafe { events.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        Ok(saturating_c_int(found.len()))
    })
}

/// The words of an `fd_set`.
type FdSetWords = [u64; 16];

/// Waits like `select`, for rsockets and other descriptors; does not change `timeout`.
pub(crate) unsafe extern "C" fn rselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    minus_one(|| {
        // SAFETY: NULL, or the program's variable, valid during the call.
        let timeout = milliseconds(unsafe { timeout.as_ref() })?;
        let sets = [read, write, except].map(|set| set.cast::<FdSetWords>());
        // Copies, because a program may pass the same set twice.
        // SAFETY: NULL, or the program's set, which has this many words and is valid during the
        // call.
        let mut copies = sets.map(|set| unsafe { set.as_ref() }.copied());
        let count =
            roxe_rsockets::select(nfds, copies.each_mut().map(|set| set.as_mut().map(|set| &mut set[..])), timeout)?;
        for (set, copy) in sets.into_iter().zip(copies) {
            if let Some(copy) = copy {
                // SAFETY: not NULL, because it was copied; the set is valid during the call.
                unsafe { set.write(copy) };
            }
        }
        Ok(saturating_c_int(count))
    })
}

/// Converts a timeout to milliseconds, rounded up; -1 without a timeout.
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
    // SAFETY: the program passes a value of `len` bytes, valid during the call.
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
        // SAFETY: NULL, or the program's variable, valid during the call.
        let len = unsafe { len.as_mut() }.ok_or(EFAULT)?;
        // SAFETY: the program passes a buffer of `*len` bytes, valid during the call.
        let out = unsafe { bytes_mut(value, *len as usize)? };
        let found = socket.option(level, name, out.len())?;
        out.get_mut(..found.len()).ok_or(EINVAL)?.copy_from_slice(&found);
        *len = found.len() as socklen_t;
        Ok(())
    })
}

/// Supports the `fcntl` commands `F_GETFL`, `F_SETFL`, `F_GETFD` and `F_SETFD`. The C declaration
/// is variadic; a caller that passes no `arg` leaves an arbitrary value in its register, which is
/// not used then.
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

/// `man 7 rsocket`: registers a buffer, with `PROT_WRITE` for the peer's `riowrite`, else for local
/// access only.
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
        // SAFETY: the program passes a buffer of `len` bytes, valid until `riounmap` or `rclose`.
        let region = unsafe { socket.protection_domain()?.register_raw(start, len, access) }.map_err(errno_of)?;
        let offset = socket.iomap(region, shared, offset)?;
        usize::try_from(offset).map_err(|_| EINVAL)
    }) as off_t
}

fn errno_of(error: roxe::Error) -> Errno {
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
    // SAFETY: the program passes a buffer of `len` bytes, valid during the call.
    length(|| Ok(socket(fd)?.iowrite(unsafe { bytes(buf, len)? }, offset, flags)?))
}

pub(crate) unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the program passes a buffer of `len` bytes, valid during the call.
    length(|| Ok(socket(fd)?.recv(unsafe { bytes_mut(buf, len)? }, flags)?))
}

/// Receives like `recvfrom`; on a stream, `from` receives the peer's address.
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
        // SAFETY: the program passes a buffer of `len` bytes, valid during the call.
        let buf = unsafe { bytes_mut(buf, len)? };
        let out = if from.is_null() { AddressOut::NONE } else { AddressOut::new(from, from_len)? };
        let (got, sender) = socket.recv_from(buf, flags)?;
        // SAFETY: the program passes NULL or a buffer of `*from_len` bytes, valid during the call.
        unsafe { out.write(sender.or_else(|| socket.peer_addr().ok())) };
        Ok(got)
    })
}

/// Receives like `recvmsg`, without control messages.
pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: NULL, or the program's structure, valid during the call.
        let message = unsafe { message.as_mut() }.ok_or(EFAULT)?;
        // SAFETY: the program passes a list of buffers and its length, all valid during the call.
        let mut bufs = unsafe { Buffers::new(message.msg_iov, message.msg_iovlen as _) }.map_err(too_long)?;
        let (got, sender) = socket.recv_vectored(bufs.as_mut_slice(), flags)?;
        let name = message.msg_name.cast::<sockaddr>();
        let out = if name.is_null() { AddressOut::NONE } else { AddressOut::new(name, &raw mut message.msg_namelen)? };
        // SAFETY: the program passes NULL or a buffer of `msg_namelen` bytes, valid during the
        // call.
        unsafe { out.write(sender) };
        (message.msg_controllen, message.msg_flags) = (0, 0);
        Ok(got)
    })
}

pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: these are the program's arguments; both functions have the same contract.
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passes a list of buffers and its length, all valid during the call.
        Ok(socket.recv_vectored(unsafe { Buffers::new(parts, list_len(count)?)? }.as_mut_slice(), 0)?.0)
    })
}

pub(crate) unsafe extern "C" fn rsend(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the program passes a buffer of `len` bytes, valid during the call.
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
        // SAFETY: the program passes a buffer of `len` bytes, valid during the call.
        let buf = unsafe { bytes(buf, len)? };
        // SAFETY: not NULL; the program passes an address and its length, valid during the call.
        let to = if to.is_null() { None } else { Some(unsafe { read_address(to, to_len)? }) };
        Ok(socket.send_to(buf, flags, to)?)
    })
}

/// Sends like `sendmsg`. Fails with EOPNOTSUPP with control messages.
pub(crate) unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: NULL, or the program's structure, valid during the call.
        let message = unsafe { message.as_ref() }.ok_or(EFAULT)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(EOPNOTSUPP);
        }
        let name = message.msg_name.cast::<sockaddr>();
        // SAFETY: not NULL; the program passes an address and its length, valid during the call.
        let to = if name.is_null() { None } else { Some(unsafe { read_address(name, message.msg_namelen)? }) };
        let mut copy = Vec::new();
        // SAFETY: the program passes a list of buffers and its length, all valid during the call.
        let bufs = unsafe { buffers(message.msg_iov, message.msg_iovlen as _, &mut copy) };
        Ok(socket.send_vectored(bufs.map_err(too_long)?, flags, to)?)
    })
}

pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: these are the program's arguments; both functions have the same contract.
    unsafe { rsend(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    length(|| {
        let socket = socket(fd)?;
        let mut copy = Vec::new();
        // SAFETY: the program passes a list of buffers and its length, all valid during the call.
        Ok(socket.send_vectored(unsafe { buffers(parts, list_len(count)?, &mut copy)? }, 0, None)?)
    })
}

/// Longest buffer list, in buffers, that [`Buffers`] holds without an allocation.
const INLINE_LEN: usize = 8;

/// Longest buffer list of Linux.
const IOV_MAX: usize = 1024;

fn list_len(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| EINVAL)
}

/// Replaces EINVAL, because `recvmsg` and `sendmsg` report too long a list as EMSGSIZE.
fn too_long(error: Errno) -> Errno {
    if error == EINVAL { Errno(libc::EMSGSIZE) } else { error }
}

/// Checks a list of buffers. Fails with EINVAL if the list or its total is too long, EFAULT for
/// NULL with a length. Returns the list, and true if no buffer in it is NULL. An empty buffer may
/// be NULL, but a Rust slice may not.
///
/// # Safety
/// `parts` is NULL or points to `count` entries that are valid for `'a`.
unsafe fn checked_list<'a>(parts: *const iovec, count: usize) -> Result<(&'a [iovec], bool)> {
    if count > IOV_MAX {
        return Err(EINVAL);
    }
    // SAFETY: the caller guarantees `count` entries that are valid for `'a`.
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

/// Returns the program's buffers, to read: its own list, or a copy in `copy` if some are NULL.
///
/// # Safety
/// `parts` is NULL or points to `count` entries; each is a buffer of its length, valid for `'a`.
unsafe fn buffers<'a>(parts: *const iovec, count: usize, copy: &'a mut Vec<IoSlice<'a>>) -> Result<&'a [IoSlice<'a>]> {
    // SAFETY: the caller guarantees `count` entries that are valid for `'a`.
    let (list, no_null) = unsafe { checked_list(parts, count)? };
    if no_null {
        // SAFETY: `IoSlice` has the layout of `iovec`, as its documentation guarantees. No buffer
        // is NULL, and the caller guarantees that each is valid for `'a`.
        return Ok(unsafe { slice::from_raw_parts(list.as_ptr().cast(), list.len()) });
    }
    for part in list {
        // SAFETY: the caller guarantees buffers of these lengths, valid for `'a`.
        copy.push(IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len)? }));
    }
    Ok(copy)
}

/// The program's buffers, to write. A copy of its list, because receiving advances the buffers.
struct Buffers<'a> {
    /// The buffers of a short list.
    inline: [IoSliceMut<'a>; INLINE_LEN],
    /// The buffers of a longer list.
    heap: Vec<IoSliceMut<'a>>,
    /// Number of buffers.
    count: usize,
}

impl<'a> Buffers<'a> {
    /// # Safety
    /// The contract of [`buffers`]; no other code uses the buffers meanwhile.
    unsafe fn new(parts: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: the caller guarantees `count` entries that are valid for `'a`.
        let (list, _) = unsafe { checked_list(parts, count)? };
        // SAFETY: the caller guarantees buffers of these lengths, valid and unshared for `'a`.
        let buffer = |part: &iovec| unsafe { bytes_mut(part.iov_base, part.iov_len) };
        let mut new = Self { inline: array::from_fn(|_| IoSliceMut::new(&mut [])), heap: Vec::new(), count };
        for (index, part) in list.iter().enumerate() {
            match new.inline.get_mut(index) {
                Some(slot) if count <= INLINE_LEN => *slot = IoSliceMut::new(buffer(part)?),
                _ => new.heap.push(IoSliceMut::new(buffer(part)?)),
            }
        }
        Ok(new)
    }

    fn as_mut_slice(&mut self) -> &mut [IoSliceMut<'a>] {
        if self.count <= INLINE_LEN { &mut self.inline[..self.count] } else { &mut self.heap }
    }
}
