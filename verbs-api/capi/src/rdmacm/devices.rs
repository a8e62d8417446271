//! The devices that librdmacm opens, with the default protection domain and XRC domain of
//! identifiers. All identifiers of the process share them.

use crate::abi::{ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context;
use crate::device::{self, c_array, handles};
use crate::domain::ibv_alloc_pd;
use crate::domain::open_xrcd;
use crate::errno::{Errno, Result, pointer};
use crate::lock::OpenedDevices;
use crate::objects;
use core::ffi::c_int;
use core::ptr::null_mut;
use roxe_check::for_library;
use roxe_provider::Device;
use roxe_provider::lock::Mutex;
use std::sync::Arc;

/// A context, which stays open until the process ends, and the domains that identifiers share. A
/// domain is NULL until it is needed.
#[derive(Clone, Copy)]
pub(super) struct OpenDevice {
    pub(super) context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
}

// SAFETY: any thread may use handles of verbs objects.
unsafe impl Send for OpenDevice {}

/// One entry per device, in device order.
static OPENED: Mutex<OpenedDevices, Vec<OpenDevice>> = Mutex::new(Vec::new());

/// Opens the devices that are not open, and those whose context the program has closed, which it
/// must not do.
fn open_all(opened: &mut Vec<OpenDevice>) -> Result<()> {
    for (index, device) in handles()?.into_iter().enumerate() {
        if opened.get(index).is_some_and(|known| objects::context(known.context).is_ok()) {
            continue;
        }
        opened.truncate(index);
        opened.push(OpenDevice { context: context::open(device)?, pd: null_mut(), xrcd: null_mut() });
    }
    Ok(())
}

/// Calls `use_it` with the entry of a device. Fails with ENODEV if the device is not in the list.
fn with_device<T>(device: &Arc<Device>, use_it: impl FnOnce(&mut OpenDevice) -> Result<T>) -> Result<T> {
    let mut opened = OPENED.lock();
    for_library(|| open_all(&mut opened))?;
    let at =
        handles()?.into_iter().position(|handle| device::device(handle).is_ok_and(|ours| Arc::ptr_eq(&ours, device)));
    use_it(at.and_then(|at| opened.get_mut(at)).ok_or(Errno(libc::ENODEV))?)
}

/// Converts the result of an exported function: for NULL, returns the error in `errno`.
pub(super) fn non_null<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    }
    Ok(pointer)
}

/// Returns the context of a device, and the default protection domain of its identifiers.
pub(super) fn default_context_and_pd(device: &Arc<Device>) -> Result<(*mut ibv_context, *mut ibv_pd)> {
    with_device(device, |opened| {
        if opened.pd.is_null() {
            // SAFETY: `open_all` checked that the context is open.
            opened.pd = non_null(for_library(|| unsafe { ibv_alloc_pd(opened.context) }))?;
        }
        Ok((opened.context, opened.pd))
    })
}

pub(super) fn xrc_domain(device: &Arc<Device>) -> Result<*mut ibv_xrcd> {
    with_device(device, |opened| {
        if opened.xrcd.is_null() {
            let mut init = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: `open_all` checked that the context is open; `init` is a local variable.
            opened.xrcd = non_null(for_library(|| unsafe { open_xrcd(opened.context, &raw mut init) }))?;
        }
        Ok(opened.xrcd)
    })
}

/// `man rdma_get_devices`. On failure writes the number 0, because libfabric checks the number
/// first.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let count = |number: usize| {
        if !num_devices.is_null() {
            // SAFETY: not NULL; the program passes a variable that is valid during the call.
            unsafe { num_devices.write(c_int::try_from(number).unwrap_or(c_int::MAX)) };
        }
    };
    count(0);
    pointer(|| {
        let mut opened = OPENED.lock();
        for_library(|| open_all(&mut opened))?;
        let contexts: Vec<_> = opened.iter().map(|known| known.context).collect();
        if contexts.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let array = c_array(&contexts)?;
        count(contexts.len());
        Ok(array)
    })
}

/// `man rdma_free_devices`: frees the array; the devices stay open.
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program passes NULL or an array from `c_array`, which `calloc` allocated, and
    // frees it once.
    unsafe { libc::free(list.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_get_devices_returns_the_same_open_contexts() {
        let mut count = -1;
        // SAFETY: `count` is a local variable; NULL is allowed.
        let (first, second) = unsafe { (rdma_get_devices(&raw mut count), rdma_get_devices(null_mut())) };
        assert!(count >= 1 && !first.is_null() && !second.is_null());
        for at in 0..count.cast_unsigned() as usize {
            // SAFETY: both arrays have `count` entries.
            let (one, other) = unsafe { (*first.add(at), *second.add(at)) };
            assert!(core::ptr::eq(one, other) && objects::context(one).is_ok());
        }
        // SAFETY: the arrays have `count` entries and a NULL at the end; each is freed once.
        unsafe {
            assert!((*first.add(count.cast_unsigned() as usize)).is_null());
            rdma_free_devices(first);
            rdma_free_devices(second);
            rdma_free_devices(null_mut());
        }
    }
}
