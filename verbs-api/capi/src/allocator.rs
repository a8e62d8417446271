//! Allocators of the program (`man ibv_alloc_parent_domain`): objects that a parent domain's
//! program wants to place itself get their memory here.

use crate::abi::ibv_pd;
use crate::errno::{EINVAL, Errno, Result};
use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::NonNull;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// Blocks start at, and are multiples of, this many bytes: simple allocators that only count
/// upwards keep them aligned.
const GRAIN: usize = 64;

/// What a block is for, as allocators are told. The upper 32 bits, a number of the kernel for the
/// driver, are 0 (unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Resource {
    Qp = 1,
    Srq = 2,
    Cq = 3,
}

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// A program's functions.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: Alloc,
    pub(crate) free: Free,
    pub(crate) pd_context: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program's own functions, which it promised to be
// callable from every thread that creates or destroys an object of the domain.
unsafe impl Send for Allocators {}
// SAFETY: the pointer is only handed back to the program's own functions, which it promised to be
// callable from every thread that creates or destroys an object of the domain.
unsafe impl Sync for Allocators {}

/// The allocator for one kind of object of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct ObjectAllocator {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) allocators: Allocators,
    pub(crate) resource: Resource,
}

impl ObjectAllocator {
    /// A block from the program; `None` if it leaves that to us, ENOMEM if it has none.
    pub(crate) fn alloc(&self, layout: Layout) -> Result<Option<NonNull<c_void>>> {
        let Allocators { alloc, pd_context, .. } = self.allocators;
        let align = layout.align().max(GRAIN);
        let size = layout.size().next_multiple_of(align);
        // SAFETY: a function of the program, called with what its man page promises.
        let block = unsafe { alloc(self.pd, pd_context, size, align, self.resource as u64) };
        match block.addr() {
            USE_DEFAULT => Ok(None),
            addr if addr.is_multiple_of(layout.align()) => NonNull::new(block).map(Some).ok_or(Errno(libc::ENOMEM)),
            _ => {
                self.free(block);
                Err(EINVAL)
            }
        }
    }

    /// Returns a block.
    pub(crate) fn free(&self, block: *mut c_void) {
        let Allocators { free, pd_context, .. } = self.allocators;
        // SAFETY: a function of the program, called with a block that its other function gave us.
        unsafe { free(self.pd, pd_context, block, self.resource as u64) };
    }
}
