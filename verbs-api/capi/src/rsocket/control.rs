//! Waiting, flags, options, and buffers that the peer writes to.

use super::{EFAULT, bytes, bytes_mut, socket};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, length, minus_one, zero};
use core::ffi::{c_int, c_long, c_void};
use core::ptr::NonNull;
use core::slice;
use libc::{epoll_event, fd_set, nfds_t, off_t, pollfd, socklen_t, ssize_t, timeval};
use roxe_transport::wr::Access;

/// As `man 2 shutdown`.
pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    zero(|| Ok(socket(fd)?.shutdown(how)?))
}

/// As `man 2 poll`, for rsockets and everything else.
pub(crate) unsafe extern "C" fn rpoll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    minus_one(|| {
        let count = c_int::try_from(count).map_err(|_| EINVAL)?.cast_unsigned() as usize;
        let entries = match (entries.is_null(), count) {
            (_, 0) => &mut [],
            (true, _) => return Err(EFAULT),
            // SAFETY: the program passed an array and its length.
            (false, _) => unsafe { slice::from_raw_parts_mut(entries, count) },
        };
        Ok(ready(roxe_rsockets::poll(entries, timeout)?))
    })
}

/// How many are ready: no more than were asked for.
fn ready(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// As `man 2 epoll_create1`, for rsockets and everything else; `rclose` closes the set.
pub(crate) unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    minus_one(|| Ok(roxe_rsockets::epoll_create(flags)?))
}

/// As `man 2 epoll_ctl`.
pub(crate) unsafe extern "C" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    zero(|| {
        // SAFETY: NULL or a structure of the program, which is packed and so may lie anywhere.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        Ok(roxe_rsockets::epoll_ctl(epfd, op, fd, event)?)
    })
}

/// As `man 2 epoll_wait`. Every state is reported as long as it lasts, also to who asks for edges.
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

/// The words of an `fd_set`.
type Set = [u64; 16];

/// As `man 2 select`, for rsockets and everything else; `timeout` keeps its value.
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
        // Copies, because a program may pass one set twice.
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

/// Rounded up; -1 for ever.
fn milliseconds(timeout: Option<&timeval>) -> Result<c_int> {
    let Some(time) = timeout else { return Ok(-1) };
    if time.tv_sec < 0 || time.tv_usec < 0 {
        return Err(EINVAL);
    }
    let total = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec.saturating_add(999) / 1000);
    Ok(c_int::try_from(total).unwrap_or(c_int::MAX))
}

/// As `man 2 setsockopt`.
pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    zero(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a value and its size.
        let value = unsafe { bytes(value.cast(), len as usize)? };
        Ok(socket.set_option(level, name, value)?)
    })
}

/// As `man 2 getsockopt`.
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
        let room = unsafe { bytes_mut(value.cast(), *len as usize)? };
        let found = socket.option(level, name, room.len())?;
        room.get_mut(..found.len()).ok_or(EINVAL)?.copy_from_slice(&found);
        *len = found.len() as socklen_t;
        Ok(())
    })
}

/// As `man 2 fcntl`: `F_GETFL`, `F_SETFL`, `F_GETFD`, `F_SETFD`. The argument is in a register
/// whether or not there is one.
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

/// `man 7 rsocket`: gives the peer a buffer to write to, or registers one for `riowrite` only.
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
        // SAFETY: the program passed a buffer and its size, which it leaves alone until it unmaps
        // it.
        let region = unsafe { socket.protection_domain()?.register_raw(start, len, access) }.map_err(refusal)?;
        let offset = socket.iomap(region, shared, offset)?;
        usize::try_from(offset).map_err(|_| EINVAL)
    }) as off_t
}

/// The errno of a registration that was refused.
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
    length(|| {
        let socket = socket(fd)?;
        // SAFETY: the program passed a buffer and its size.
        let buf = unsafe { bytes(buf.cast(), len)? };
        Ok(socket.iowrite(buf, offset, flags)?)
    })
}
