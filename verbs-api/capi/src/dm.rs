//! Device memory (`man ibv_alloc_dm`), called through the context and the buffer.

use crate::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::errno::{EINVAL, Errno, Result, no_comp_mask, pointer, required, silent, status};
use crate::memory::{self, access};
use crate::object::Object;
use crate::objects::{context, pd};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use roxe_provider::Dm;
use std::sync::Arc;

/// `IBV_DM_MASK_HANDLE`: the field `handle` is there.
const MASK_HANDLE: u32 = 1;

fn exposed(context: *mut ibv_context, handle: u32) -> ibv_dm {
    let (memcpy_to_dm, memcpy_from_dm) = (Some(memcpy_to_dm as _), Some(memcpy_from_dm as _));
    ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: MASK_HANDLE, handle }
}

pub(crate) unsafe extern "C" fn alloc_dm(handle: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    pointer(|| {
        let context = context(handle)?;
        let attr = required!(attr);
        no_comp_mask(attr.comp_mask)?;
        let dm = context.alloc_dm(attr.length as u64, attr.log_align_req)?;
        Ok(Object::publish_numbered(dm, |number| exposed(handle, number)))
    })
}

/// `man ibv_alloc_dm`: EBUSY while a region is registered in it. Frees the memory, also for imported
/// handles.
pub(crate) unsafe extern "C" fn free_dm(handle: *mut ibv_dm) -> c_int {
    status(|| Object::<ibv_dm>::destroy(handle, |dm| dm.free()))
}

/// `man ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    handle: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    bits: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        let dm = &Object::<ibv_dm>::live(dm)?.inner;
        let mr = pd(handle)?.reg_dm_mr(dm, offset, length as u64, access(bits)?)?;
        memory::publish(handle, null_mut(), length, mr)
    })
}

/// The buffer of a copy; EINVAL without one, EFAULT for NULL or more bytes than the buffer has.
///
/// # Safety
/// `handle` is NULL or alive.
unsafe fn for_copy<'a>(handle: *mut ibv_dm, host: *const c_void, length: usize) -> Result<&'a Dm> {
    // SAFETY: this function's contract.
    let dm = unsafe { Object::<ibv_dm>::trusted(handle) }.ok_or(EINVAL)?;
    if host.is_null() || length as u64 > dm.inner.length() {
        return Err(Errno(libc::EFAULT));
    }
    Ok(&dm.inner)
}

/// `man ibv_alloc_dm`: offset and length are multiples of 4.
unsafe extern "C" fn memcpy_to_dm(handle: *mut ibv_dm, offset: u64, host: *const c_void, length: usize) -> c_int {
    status(|| {
        // SAFETY: NULL or alive, as everywhere on the data path.
        let dm = unsafe { for_copy(handle, host, length) }?;
        // SAFETY: not NULL, no longer than a buffer, and the program says that this many bytes are
        // there to be read.
        let data = unsafe { core::slice::from_raw_parts(host.cast::<u8>(), length) };
        Ok(dm.write(offset, data)?)
    })
}

/// `man ibv_alloc_dm`: offset and length are multiples of 4.
unsafe extern "C" fn memcpy_from_dm(host: *mut c_void, handle: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status(|| {
        // SAFETY: NULL or alive, as everywhere on the data path.
        let dm = unsafe { for_copy(handle, host, length) }?;
        // SAFETY: not NULL, no longer than a buffer, and the program says that there is room for
        // this many bytes.
        let out = unsafe { core::slice::from_raw_parts_mut(host.cast::<u8>(), length) };
        Ok(dm.read(offset, out)?)
    })
}

/// `man ibv_import_dm`: the number is that of a buffer of the same context.
pub(crate) unsafe extern "C" fn ibv_import_dm(handle: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    pointer(|| {
        let context = context(handle)?;
        let is_here = |found: &Arc<Dm>| Arc::ptr_eq(found.context(), context).then(|| Arc::clone(found));
        let dm = Object::<ibv_dm>::numbered(dm_handle, is_here)?;
        Ok(Object::publish_numbered(dm, |_| exposed(handle, dm_handle)))
    })
}

/// `man ibv_import_dm`: releases only the handle.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(handle: *mut ibv_dm) {
    silent(|| Object::<ibv_dm>::retire(handle).map(drop));
}
