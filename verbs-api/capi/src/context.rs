//! The context: an opened device, and how it is closed.

use crate::abi::{ibv_context, verbs_context};
use crate::errno::{Result, minus_one};
use crate::object::{Exposed, Object};
use core::ffi::c_int;
use core::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The Rust part of a context.
pub(crate) struct ContextInner {
    pub(crate) context: Arc<roxe_provider::Context>,
    /// The descriptor it was imported by, which goes with it.
    pub(crate) _imported: Option<OwnedFd>,
}

// SAFETY: the public structure starts at the field `context`, whose offset is given.
unsafe impl Exposed for verbs_context {
    type Handle = ibv_context;
    type Inner = ContextInner;
    const HANDLE_OFFSET: usize = offset_of!(Self, context);
}

/// The provider's context behind a handle.
pub(crate) fn context<'a>(handle: *mut ibv_context) -> Result<&'a Arc<roxe_provider::Context>> {
    Object::<verbs_context>::live(handle).map(|object| &object.inner.context)
}

/// `man ibv_close_device`. Objects that the program leaves behind keep the engine going until the process ends.
pub(crate) unsafe extern "C" fn ibv_close_device(handle: *mut ibv_context) -> c_int {
    minus_one(|| {
        let context = Arc::clone(&Object::<verbs_context>::retire(handle)?.inner.context);
        context.close();
        Ok(0)
    })
}
