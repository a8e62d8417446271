//! XRC: domains, their shared receive queues, and targets, which are queue pairs that belong to a
//! domain.
//!
//! A target may have several handles (`man ibv_open_qp`); it lives until the last one is destroyed.
//! Its asynchronous events go to the handle that created it.

use crate::abi::*;
use crate::errno::{Errno, Result, invalid, null, pointer, status, write_out};
use crate::object::{Object, Token};
use crate::objects::{QpInner, context, cq, pd};
use crate::qp::{self, XRC_RECV};
use crate::{objects, srq};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use roxe_provider::{Qp, SrqInit, Xrcd, XrcdInit};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// `IBV_XRCD_INIT_ATTR_FD` and `IBV_XRCD_INIT_ATTR_OFLAGS`: both are needed.
const MASK_FD_OFLAGS: u32 = 3;
/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD` and `_TYPE` are needed, `_CONTEXT` is not.
const MASK_OPEN_NEEDED: u32 = 1 | 1 << 1 | 1 << 3;
const MASK_OPEN_CONTEXT: u32 = 1 << 2;

fn xrcd<'a>(handle: *mut ibv_xrcd) -> Result<&'a Arc<Xrcd>> {
    Object::<ibv_xrcd>::live(handle).map(|object| &object.inner)
}

/// The file that a domain is named by: none for -1, EBADF if it is not open.
fn file<'a>(fd: c_int) -> Result<Option<BorrowedFd<'a>>> {
    if fd == -1 {
        return Ok(None);
    }
    // SAFETY: asks about a number, whatever it is.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: open, and the program keeps it open during this call.
    Ok(Some(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// `man ibv_open_xrcd`. A file names a domain within this process only.
pub(crate) unsafe extern "C" fn open_xrcd(handle: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    pointer(|| {
        let context = context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let init = unsafe { init.as_ref() }.ok_or_else(|| null("init"))?;
        if init.comp_mask != MASK_FD_OFLAGS {
            let given = init.comp_mask;
            return Err(invalid(|| format!("comp_mask is {given:#x}; accepted is {MASK_FD_OFLAGS:#x}, FD and OFLAGS")));
        }
        let given = |flag| init.oflags & flag != 0;
        let (create, exclusive) = (given(libc::O_CREAT), given(libc::O_EXCL));
        let xrcd = context.open_xrcd(XrcdInit { file: file(init.fd)?, create, exclusive })?;
        Ok(Object::publish_numbered(xrcd, |_| ibv_xrcd { context: handle }))
    })
}

/// `man ibv_open_xrcd`: EBUSY while shared queues or targets use it.
pub(crate) unsafe extern "C" fn close_xrcd(handle: *mut ibv_xrcd) -> c_int {
    status(|| Object::<ibv_xrcd>::destroy(handle, |xrcd| xrcd.close()))
}

/// `man ibv_create_srq_ex`: the shared queue of a domain.
pub(crate) fn create_srq(init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    let (domain, own, completes) = (xrcd(init.xrcd)?, pd(init.pd)?, cq(init.cq)?);
    let make = |init: SrqInit| domain.create_srq(own, completes, init);
    srq::publish(init.pd, init.srq_context, &mut init.attr, make)
}

/// `man ibv_get_srq_num`: EINVAL for a queue of no domain.
pub(crate) unsafe extern "C" fn get_srq_num(handle: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        let found = objects::srq(handle)?
            .number()
            .ok_or_else(|| invalid(|| "the shared receive queue is of no XRC domain".to_owned()))?;
        // SAFETY: NULL or a variable of the program.
        unsafe { write_out(number, found) }
    })
}

/// `man ibv_create_qp_ex`: a target. It has no queues, whatever the program asks for.
pub(crate) fn create_target(handle: *mut ibv_context, init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
    let token = Token::new();
    let qp = xrcd(init.xrcd)?.create_target(token.0)?;
    Ok(publish_target(handle, init.qp_context, token, qp))
}

/// `man ibv_open_qp`: one more handle of a target; EINVAL if the domain has none of that number.
pub(crate) unsafe extern "C" fn open_qp(handle: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    pointer(|| {
        context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        let is_complete = attr.comp_mask & !MASK_OPEN_CONTEXT == MASK_OPEN_NEEDED;
        if !is_complete || attr.qp_type != XRC_RECV {
            let (given, kind) = (attr.comp_mask, attr.qp_type);
            return Err(invalid(|| {
                format!(
                    "comp_mask is {given:#x}, qp_type {kind}; needed are the bits NUM, XRCD and TYPE, and XRC_RECV 10"
                )
            }));
        }
        let qp = xrcd(attr.xrcd)?.open_target(attr.qp_num)?;
        let qp_context = if attr.comp_mask & MASK_OPEN_CONTEXT != 0 { attr.qp_context } else { null_mut() };
        Ok(publish_target(handle, qp_context, Token::new(), qp))
    })
}

fn publish_target(context: *mut ibv_context, qp_context: *mut c_void, token: Token, qp: Arc<Qp>) -> *mut ibv_qp {
    let base = ibv_qp {
        context,
        qp_context,
        handle: token.short(),
        qp_num: qp.qpn().get(),
        state: qp.state() as c_int,
        qp_type: XRC_RECV,
        ..ibv_qp::ZERO
    };
    Object::publish(token, qp::exposed(base), QpInner::new(qp, None))
}
