//! Protection domains, parent domains, thread domains and XRC domains.
//!
//! A parent domain is an `ibv_pd` that shares the memory regions of another (`man
//! ibv_alloc_parent_domain`). The program's allocator supplies the block for the handle of each QP,
//! SRQ and CQ created in it. With a thread domain the program promises that one thread at a time
//! uses its objects; roxe ignores it, because an uncontended lock is cheap. A file identifies an
//! XRC domain within this process only.

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, *};
use crate::errno::{Errno, Result, einval, invalid, no_comp_mask, no_result, pointer, required, status};
use crate::object::{Allocators, Object};
use crate::objects::{Parent, PdInner, context, pd};
use core::ffi::c_int;
use roxe_provider::{Use, Xrcd, XrcdInit};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const MASK_ALLOCATORS: u32 = 1;
const MASK_PD_CONTEXT: u32 = 2;
/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC`; has no effect.
const MASK_UNPROTECTED: u32 = 4;

/// Marks the parent domain `handle` as used by a CQ. Fails with EINVAL if it is not a parent
/// domain.
pub(crate) fn hold_parent(handle: *mut ibv_pd) -> Result<Use> {
    let inner = &Object::<ibv_pd>::live(handle)?.inner;
    inner
        .parent
        .as_ref()
        .map(|_| inner.pd.hold())
        .ok_or_else(|| einval("parent_domain is an ordinary protection domain, not one of ibv_alloc_parent_domain"))
}

fn allocators(attr: &ibv_parent_domain_init_attr) -> Result<Option<Allocators>> {
    let given = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(MASK_ALLOCATORS | MASK_PD_CONTEXT | MASK_UNPROTECTED) != 0 {
        let given = attr.comp_mask;
        return Err(invalid(|| {
            format!("comp_mask is {given:#x}; accepted are the bits of ibv_parent_domain_init_attr_mask")
        }));
    }
    if !given(MASK_ALLOCATORS) {
        return Ok(None);
    }
    let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else {
        return Err(einval("alloc or free is NULL, although comp_mask has IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS"));
    };
    let pd_context = if given(MASK_PD_CONTEXT) { attr.pd_context } else { core::ptr::null_mut() };
    Ok(Some(Allocators { alloc, free, pd_context }))
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(handle: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        let pd = context(handle)?.alloc_pd()?;
        Ok(Object::publish_numbered(PdInner::plain(pd), |number| ibv_pd { context: handle, handle: number }))
    })
}

/// `man ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(handle: *mut ibv_pd) -> c_int {
    status(|| Object::<ibv_pd>::destroy(handle, |inner| inner.pd.dealloc()))
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    handle: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        let context = context(handle)?;
        let attr = required!(attr);
        let base = pd(attr.pd)?;
        if !Arc::ptr_eq(base.context(), context) {
            return Err(einval("attr->pd belongs to another context"));
        }
        let allocators = allocators(attr)?;
        let td = Object::<ibv_td>::optional(attr.td)?.map(|object| Arc::clone(&object.inner));
        let parent = Parent { allocators, _td: td };
        let inner = PdInner { pd: base.extend()?, parent: Some(parent) };
        Ok(Object::publish_numbered(inner, |number| ibv_pd { context: handle, handle: number }))
    })
}

pub(crate) unsafe extern "C" fn alloc_td(handle: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer(|| {
        context(handle)?;
        no_comp_mask(required!(attr).comp_mask)?;
        Ok(Object::publish_numbered(Arc::default(), |_| ibv_td { context: handle }))
    })
}

/// `man ibv_alloc_td`: fails with EBUSY while a parent domain uses it.
pub(crate) unsafe extern "C" fn dealloc_td(handle: *mut ibv_td) -> c_int {
    status(|| {
        if Arc::strong_count(&Object::<ibv_td>::to_destroy(handle)?.inner) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        Object::<ibv_td>::retire(handle).map(drop)
    })
}

pub(crate) unsafe extern "C" fn ibv_import_pd(handle: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    pointer(|| {
        let context = context(handle)?;
        let if_same_context = |found: &PdInner| Arc::ptr_eq(found.pd.context(), context).then(|| Arc::clone(&found.pd));
        let found = Object::<ibv_pd>::by_number(pd_handle, if_same_context)?;
        Ok(Object::publish_numbered(PdInner::plain(found), |_| ibv_pd { context: handle, handle: pd_handle }))
    })
}

/// `man ibv_import_pd`: releases only the handle.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(handle: *mut ibv_pd) {
    no_result(|| Object::<ibv_pd>::retire(handle).map(drop));
}

/// `IBV_XRCD_INIT_ATTR_FD` and `IBV_XRCD_INIT_ATTR_OFLAGS`; both are required.
const MASK_FD_OFLAGS: u32 = 3;

pub(crate) fn xrcd<'a>(handle: *mut ibv_xrcd) -> Result<&'a Arc<Xrcd>> {
    Object::<ibv_xrcd>::live(handle).map(|object| &object.inner)
}

/// Returns the file that identifies an XRC domain; `None` for -1, EBADF if it is not open.
fn borrow_fd<'a>(fd: c_int) -> Result<Option<BorrowedFd<'a>>> {
    if fd == -1 {
        return Ok(None);
    }
    // SAFETY: the call takes no pointers, and accepts any descriptor.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the descriptor is open, and the program keeps it open during this call.
    Ok(Some(unsafe { BorrowedFd::borrow_raw(fd) }))
}

pub(crate) unsafe extern "C" fn open_xrcd(handle: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    pointer(|| {
        let context = context(handle)?;
        let init = required!(init);
        if init.comp_mask != MASK_FD_OFLAGS {
            let given = init.comp_mask;
            return Err(invalid(|| format!("comp_mask is {given:#x}; accepted is {MASK_FD_OFLAGS:#x}, FD and OFLAGS")));
        }
        let given = |flag| init.oflags & flag != 0;
        let (create, exclusive) = (given(libc::O_CREAT), given(libc::O_EXCL));
        let xrcd = context.open_xrcd(XrcdInit { file: borrow_fd(init.fd)?, create, exclusive })?;
        Ok(Object::publish_numbered(xrcd, |_| ibv_xrcd { context: handle }))
    })
}

/// `man ibv_open_xrcd`: fails with EBUSY while SRQs or targets use it.
pub(crate) unsafe extern "C" fn close_xrcd(handle: *mut ibv_xrcd) -> c_int {
    status(|| Object::<ibv_xrcd>::destroy(handle, |xrcd| xrcd.close()))
}
