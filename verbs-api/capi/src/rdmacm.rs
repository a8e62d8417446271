//! What there is of librdmacm: its list of devices, open already and the same for the whole process, and event channels.
//! Programs that connect their queue pairs themselves (libfabric's datagrams) need no more of it.

use crate::abi::ibv_context;
use crate::context;
use crate::device::{c_array, handles};
use crate::errno::{Errno, Result, pointer};
use core::ffi::c_int;
use parking_lot::Mutex;
use std::os::fd::{FromRawFd, OwnedFd};

/// A context that stays open until the process ends.
#[derive(Clone, Copy)]
struct Opened(*mut ibv_context);

// SAFETY: contexts may be used by any thread.
unsafe impl Send for Opened {}

/// One for every device, in their order.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The contexts; those that the program has closed, which it must not, are opened anew.
fn opened() -> Result<Vec<*mut ibv_context>> {
    let devices = handles()?;
    let mut opened = OPENED.lock();
    for (at, device) in devices.into_iter().enumerate() {
        if opened.get(at).is_some_and(|known| context::context(known.0).is_ok()) {
            continue;
        }
        opened.truncate(at);
        opened.push(Opened(context::open(device)?));
    }
    Ok(opened.iter().map(|known| known.0).collect())
}

/// `man rdma_get_devices`. The number is 0 when it fails, because libfabric looks at the number first.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let count = |number: usize| {
        if !num_devices.is_null() {
            // SAFETY: not NULL, so the program passed a variable for the number.
            unsafe { num_devices.write(c_int::try_from(number).unwrap_or(c_int::MAX)) };
        }
    };
    count(0);
    pointer(|| {
        let contexts = opened()?;
        if contexts.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let array = c_array(&contexts)?;
        count(contexts.len());
        Ok(array)
    })
}

/// `struct rdma_event_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EventChannel {
    fd: OwnedFd,
}

/// `man rdma_create_event_channel`. As long as there are no identifiers to report on, its descriptor is never readable.
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    pointer(|| {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
        }
        // SAFETY: a fresh descriptor that nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Box::into_raw(Box::new(EventChannel { fd })))
    })
}

/// `man rdma_destroy_event_channel`.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    if !channel.is_null() {
        // SAFETY: the program gives back what `rdma_create_event_channel` returned, once.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// `man rdma_free_devices`: the array, not the devices.
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: NULL or an array from `c_array`, which came from `calloc`.
    unsafe { libc::free(list.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_starts_with_its_descriptor() {
        // SAFETY: a fresh channel, whose first field is the descriptor, given back once; NULL is allowed.
        unsafe {
            let channel = rdma_create_event_channel();
            let mut poll = libc::pollfd { fd: *channel.cast::<c_int>(), events: libc::POLLIN, revents: 0 };
            assert_eq!((libc::poll(&raw mut poll, 1, 0), poll.revents), (0, 0));
            rdma_destroy_event_channel(channel);
            rdma_destroy_event_channel(core::ptr::null_mut());
        }
    }

    #[test]
    fn the_same_open_contexts_come_every_time() {
        let mut count = -1;
        // SAFETY: a variable, or NULL.
        let (first, second) = unsafe { (rdma_get_devices(&raw mut count), rdma_get_devices(core::ptr::null_mut())) };
        assert!(count >= 1 && !first.is_null() && !second.is_null());
        for at in 0..count.cast_unsigned() as usize {
            // SAFETY: both arrays have this many entries.
            let (one, other) = unsafe { (*first.add(at), *second.add(at)) };
            assert!(core::ptr::eq(one, other) && context::context(one).is_ok());
        }
        // SAFETY: the arrays end with NULL, and are freed once.
        unsafe {
            assert!((*first.add(count.cast_unsigned() as usize)).is_null());
            rdma_free_devices(first);
            rdma_free_devices(second);
            rdma_free_devices(core::ptr::null_mut());
        }
    }
}
