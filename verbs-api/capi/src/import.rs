//! Importing: a second handle for a device, domain or region of this process, found by the numbers
//! that programs pass on.
//!
//! The numbers are the kernel's for a card in hardware. Here they name objects of this process; a
//! descriptor or number that came from another process names nothing, because its memory and its
//! queues cannot be reached from here.

use crate::abi::{ibv_context, ibv_mr, ibv_pd, verbs_context};
use crate::context;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, pointer, silent};
use crate::object::{Object, Token};
use crate::objects::{ContextInner, PdInner, context, context_of, pd};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use roxe_provider::Mr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// Device and inode number of a descriptor; EBADF if it is none.
fn identity(fd: c_int) -> Result<(u64, u64)> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: any number may be asked about, and the structure has the size that the call fills.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } != 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the call has succeeded, so it has filled the structure.
    let found = unsafe { found.assume_init() };
    Ok((found.st_dev, found.st_ino))
}

/// `man ibv_import_device`: EOPNOTSUPP for the descriptor of another process. The descriptor
/// belongs to the new context.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let wanted = identity(cmd_fd)?;
        let is_it = |object: &Object<verbs_context>| {
            let context = &object.inner.context;
            // SAFETY: the structure lives as long as the object and the field is never written
            // after creation.
            let device = unsafe { (&raw const (*object.exposed()).context.device).read() };
            context.cmd_identity().is_ok_and(|id| id == wanted).then(|| (Arc::clone(context), device))
        };
        let (context, device) = Object::<verbs_context>::find(is_it).ok_or(EOPNOTSUPP)?;
        let mut exposed = context::exposed(device, &context);
        exposed.context.cmd_fd = cmd_fd;
        // SAFETY: the descriptor is open, and the man page gives it to the new context.
        let imported = Some(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
        Ok(Object::publish(Token::new(), exposed, ContextInner { context, _imported: imported }))
    })
}

/// `man ibv_import_pd`.
pub(crate) unsafe extern "C" fn ibv_import_pd(handle: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    pointer(|| {
        let context = context(handle)?;
        let is_here = |found: &PdInner| Arc::ptr_eq(found.pd.context(), context).then(|| Arc::clone(&found.pd));
        let found = Object::<ibv_pd>::numbered(pd_handle, is_here)?;
        Ok(Object::publish_numbered(PdInner::plain(found), |_| ibv_pd { context: handle, handle: pd_handle }))
    })
}

/// `man ibv_import_pd`: only the handle goes.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(handle: *mut ibv_pd) {
    silent(|| Object::<ibv_pd>::retire(handle).map(drop));
}

/// `man ibv_import_mr`: `addr` is NULL.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd_handle: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    pointer(|| {
        let pd = pd(pd_handle)?;
        let is_here = |found: &Arc<Mr>| Arc::ptr_eq(found.pd().context(), pd.context()).then(|| Arc::clone(found));
        let mr = Object::<ibv_mr>::numbered(mr_handle, is_here)?;
        let exposed = ibv_mr {
            context: context_of(pd_handle)?,
            pd: pd_handle,
            addr: core::ptr::null_mut(),
            length: usize::try_from(mr.length()).map_err(|_| EINVAL)?,
            handle: mr_handle,
            lkey: mr.lkey().0,
            rkey: mr.rkey().0,
        };
        Ok(Object::publish_numbered(mr, |_| exposed))
    })
}

/// `man ibv_import_mr`: only the handle goes.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(handle: *mut ibv_mr) {
    silent(|| Object::<ibv_mr>::retire(handle).map(drop));
}
