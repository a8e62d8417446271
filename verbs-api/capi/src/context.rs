//! Contexts: opening, importing and closing a device. Also the tables of functions that the inline
//! functions of the headers call through a context.

use crate::abi::{ABI_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context, with_functions};
use crate::errno::{EOPNOTSUPP, Errno, Result, pointer, zero};
use crate::object::{Object, Token};
use crate::objects::ContextInner;
use crate::{cq, data_path, device, domain, faults, flow, memory, qp, query, srq, tsan, wq};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use roxe_provider::standard_error;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

pub(crate) unsafe extern "C" fn ibv_open_device(handle: *mut ibv_device) -> *mut ibv_context {
    pointer(|| open(handle))
}

pub(crate) fn open(handle: *mut ibv_device) -> Result<*mut ibv_context> {
    let context =
        device::device(handle)?.open().inspect_err(|error| standard_error::write(&format!("roxe: {error}\n")))?;
    Ok(Object::publish(Token::new(), exposed(handle, &context), ContextInner { context, _imported: None }))
}

/// `man ibv_close_device`. Objects that the program has not destroyed keep the engine running until
/// the process ends.
pub(crate) unsafe extern "C" fn ibv_close_device(handle: *mut ibv_context) -> c_int {
    zero(|| {
        let context = Arc::clone(&Object::<verbs_context>::retire(handle)?.inner.context);
        context.close();
        Ok(())
    })
}

/// Returns the structure that the program sees. The inline functions of the header return
/// EOPNOTSUPP for functions that are NULL.
pub(crate) fn exposed(device: *mut ibv_device, context: &roxe_provider::Context) -> verbs_context {
    let num_comp_vectors = context.device().attr().num_comp_vectors.cast_signed();
    with_functions!(verbs_context {
        query: query_port query_device_ex query_rt_values;
        domain: alloc_parent_domain alloc_td dealloc_td open_xrcd close_xrcd;
        memory: alloc_null_mr advise_mr alloc_dm free_dm reg_dm_mr;
        cq: create_cq_ex modify_cq;
        qp: create_qp_ex open_qp modify_qp_rate_limit;
        srq: create_srq_ex get_srq_num post_srq_ops;
        wq: create_wq modify_wq destroy_wq create_rwq_ind_table destroy_rwq_ind_table;
        flow: create_flow destroy_flow create_counters destroy_counters attach_counters_point_flow read_counters;
    } with {
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: faults::ops(tsan::ops(OPS)),
            cmd_fd: context.cmd_fd(),
            async_fd: context.async_fd(),
            num_comp_vectors,
            abi_compat: ABI_EXTENDED,
            ..ibv_context::ZERO
        },
        ..verbs_context::ZERO
    })
}

const OPS: ibv_context_ops = with_functions!(ibv_context_ops {
    memory: alloc_mw bind_mw dealloc_mw;
    data_path: poll_cq req_notify_cq post_send post_recv post_srq_recv;
} with { ..ibv_context_ops::ZERO });

/// Returns device and inode number of a descriptor. Fails with EBADF if it is not open.
fn file_identity(fd: c_int) -> Result<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` accepts any descriptor; `stat` is a local variable of the type that it fills.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: `fstat` has succeeded, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// `man ibv_import_device`: fails with EOPNOTSUPP for the descriptor of another process. The
/// descriptor belongs to the new context.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let wanted = file_identity(cmd_fd)?;
        let matches = |object: &Object<verbs_context>| {
            let context = &object.inner.context;
            // SAFETY: the structure is part of `object`; nothing writes the field after creation.
            let device = unsafe { (&raw const (*object.exposed()).context.device).read() };
            context.cmd_identity().is_ok_and(|id| id == wanted).then(|| (Arc::clone(context), device))
        };
        let (context, device) = Object::<verbs_context>::find(matches).ok_or(EOPNOTSUPP)?;
        let mut exposed = exposed(device, &context);
        exposed.context.cmd_fd = cmd_fd;
        // SAFETY: the descriptor is open, and `man ibv_import_device` makes the context its owner.
        let imported = Some(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
        Ok(Object::publish(Token::new(), exposed, ContextInner { context, _imported: imported }))
    })
}
