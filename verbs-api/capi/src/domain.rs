//! Protection domains; parent domains and thread domains, which are such with a program's own allocators and with a promise
//! about threads.
//!
//! A parent domain is an `ibv_pd` of its own on the access to memory of another (`man ibv_alloc_parent_domain`). What the
//! device allocates for a queue pair, a shared receive queue or a completion queue, so that the program can see it, is the
//! one block that its handle points to; the program's allocator is asked for that block. A thread domain promises that
//! its objects are used by one thread at a time; it changes nothing here, because a lock nobody waits for is cheap.

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::context::context;
use crate::errno::{EINVAL, Errno, Result, pointer, status};
use crate::home::{Allocators, Home, Resource};
use crate::object::{Exposed, Object, Token};
use core::ffi::c_int;
use core::mem::offset_of;
use roxe_provider::{Pd, Use};
use std::sync::Arc;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const MASK_ALLOCATORS: u32 = 1;
const MASK_PD_CONTEXT: u32 = 2;

/// The Rust part of a protection domain.
pub(crate) struct PdInner {
    pub(crate) pd: Arc<Pd>,
    /// Present on a parent domain.
    parent: Option<Parent>,
}

/// What makes a protection domain a parent domain.
struct Parent {
    allocators: Option<Allocators>,
    /// Keeps the thread domain busy.
    _td: Option<Arc<()>>,
}

impl PdInner {
    /// A domain that is no parent domain.
    pub(crate) fn plain(pd: Arc<Pd>) -> Self {
        Self { pd, parent: None }
    }
}

// SAFETY: the handle is the whole structure, at offset 0; the fields are where the offsets say.
unsafe impl Exposed for ibv_pd {
    type Handle = Self;
    type Inner = PdInner;
    const CONTEXT_FIELD: Option<usize> = Some(offset_of!(Self, context));
    const HANDLE_FIELD: Option<usize> = Some(offset_of!(Self, handle));
}

// SAFETY: the handle is the whole structure, at offset 0; the fields are where the offsets say.
unsafe impl Exposed for ibv_td {
    type Handle = Self;
    /// Every parent domain on it has a clone.
    type Inner = Arc<()>;
    const CONTEXT_FIELD: Option<usize> = Some(offset_of!(Self, context));
}

/// The provider's domain behind a handle.
pub(crate) fn pd<'a>(handle: *mut ibv_pd) -> Result<&'a Arc<Pd>> {
    Object::<ibv_pd>::live(handle).map(|object| &object.inner.pd)
}

/// The context of an object, as its structure says; the object is alive, so the field is ours.
pub(crate) fn context_of(pd: *mut ibv_pd) -> Result<*mut ibv_context> {
    let object = Object::<ibv_pd>::live(pd)?;
    // SAFETY: the structure lives as long as the object and the field is never written after creation.
    Ok(unsafe { (&raw const (*object.exposed()).context).read() })
}

/// Where the block of an object of the domain `handle` shall live; `None`: wherever we like.
pub(crate) fn home(handle: *mut ibv_pd, resource: Resource) -> Result<Option<Home>> {
    let parent = Object::<ibv_pd>::live(handle)?.inner.parent.as_ref();
    Ok(parent.and_then(|parent| parent.allocators).map(|allocators| Home { pd: handle, allocators, resource }))
}

/// The use of the parent domain `handle` by a completion queue; EINVAL if it is no parent domain.
pub(crate) fn hold_parent(handle: *mut ibv_pd) -> Result<Use> {
    let inner = &Object::<ibv_pd>::live(handle)?.inner;
    inner.parent.as_ref().map(|_| inner.pd.hold()).ok_or(EINVAL)
}

fn allocators(attr: &ibv_parent_domain_init_attr) -> Result<Option<Allocators>> {
    let given = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(MASK_ALLOCATORS | MASK_PD_CONTEXT) != 0 {
        return Err(EINVAL);
    }
    if !given(MASK_ALLOCATORS) {
        return Ok(None);
    }
    let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else { return Err(EINVAL) };
    let pd_context = if given(MASK_PD_CONTEXT) { attr.pd_context } else { core::ptr::null_mut() };
    Ok(Some(Allocators { alloc, free, pd_context }))
}

fn optional_td(handle: *mut ibv_td) -> Result<Option<Arc<()>>> {
    if handle.is_null() {
        return Ok(None);
    }
    Object::<ibv_td>::live(handle).map(|object| Some(Arc::clone(&object.inner)))
}

/// `man ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(handle: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        let pd = context(handle)?.alloc_pd()?;
        let token = Token::new();
        Ok(Object::publish(token, ibv_pd { context: handle, handle: token.short() }, PdInner::plain(pd)))
    })
}

/// `man ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(handle: *mut ibv_pd) -> c_int {
    status(|| {
        Object::<ibv_pd>::to_destroy(handle)?.inner.pd.dealloc()?;
        Object::<ibv_pd>::retire(handle).map(drop)
    })
}

/// `man ibv_alloc_parent_domain`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    handle: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        let context = context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let base = pd(attr.pd)?;
        if !Arc::ptr_eq(base.context(), context) {
            return Err(EINVAL);
        }
        let parent = Parent { allocators: allocators(attr)?, _td: optional_td(attr.td)? };
        let token = Token::new();
        let exposed = ibv_pd { context: handle, handle: token.short() };
        Ok(Object::publish(token, exposed, PdInner { pd: base.extend()?, parent: Some(parent) }))
    })
}

/// `man ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(handle: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer(|| {
        context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(EINVAL);
        }
        Ok(Object::publish(Token::new(), ibv_td { context: handle }, Arc::default()))
    })
}

/// `man ibv_alloc_td`: EBUSY while a parent domain has it.
pub(crate) unsafe extern "C" fn dealloc_td(handle: *mut ibv_td) -> c_int {
    status(|| {
        if Arc::strong_count(&Object::<ibv_td>::to_destroy(handle)?.inner) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        Object::<ibv_td>::retire(handle).map(drop)
    })
}
