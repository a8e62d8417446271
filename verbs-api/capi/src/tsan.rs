//! The data path for programs built with ThreadSanitizer.
//!
//! Programs hand buffers between threads through posts and completions. The sanitizer sees neither
//! our locks nor the peer, so these functions annotate that a post happens before a completion. A
//! context chooses its functions when it is opened, so other programs pay nothing. All posts and
//! completions of the process form one order: the sanitizer may miss a race, but never reports a
//! false one.

use crate::abi::*;
use crate::{cq_ex, data_path, qp_ex};
use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// `__tsan_acquire` or `__tsan_release` of the sanitizer's runtime (`sanitizer/tsan_interface.h`).
type Annotation = unsafe extern "C" fn(*mut c_void);

struct Sanitizer {
    acquire: Annotation,
    release: Annotation,
}

/// Only its address matters: the object of all annotations.
static ORDER: u8 = 0;

fn sanitizer() -> Option<&'static Sanitizer> {
    static FOUND: OnceLock<Option<Sanitizer>> = OnceLock::new();
    let find = || Some(Sanitizer { acquire: annotation(c"__tsan_acquire")?, release: annotation(c"__tsan_release")? });
    FOUND.get_or_init(find).as_ref()
}

fn annotation(name: &CStr) -> Option<Annotation> {
    // SAFETY: a C string; the result is NULL or the function of this documented type.
    unsafe { core::mem::transmute::<*mut c_void, Option<Annotation>>(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr())) }
}

/// Orders everything that this thread did before what others do after a completion.
fn release() {
    if let Some(Sanitizer { release, .. }) = sanitizer() {
        // SAFETY: takes any address and does not touch what is there.
        unsafe { release((&raw const ORDER).cast_mut().cast()) };
    }
}

/// Orders everything that others did before posting before what this thread does next.
fn acquire() {
    if let Some(Sanitizer { acquire, .. }) = sanitizer() {
        // SAFETY: takes any address and does not touch what is there.
        unsafe { acquire((&raw const ORDER).cast_mut().cast()) };
    }
}

/// Returns the functions of a context, annotated under the sanitizer.
pub(crate) fn ops(plain: ibv_context_ops) -> ibv_context_ops {
    if sanitizer().is_none() {
        return plain;
    }
    ibv_context_ops {
        poll_cq: Some(poll_cq),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        post_srq_recv: Some(post_srq_recv),
        ..plain
    }
}

pub(crate) fn cq_ex(plain: ibv_cq_ex) -> ibv_cq_ex {
    if sanitizer().is_none() {
        return plain;
    }
    ibv_cq_ex { start_poll: Some(start_poll), next_poll: Some(next_poll), ..plain }
}

pub(crate) fn qp_ex(plain: ibv_qp_ex) -> ibv_qp_ex {
    if sanitizer().is_none() {
        return plain;
    }
    ibv_qp_ex { wr_complete: Some(wr_complete), ..plain }
}

/// Declares annotated functions: `release` before a post, `acquire` after a found completion.
macro_rules! annotated {
    ($($plain:ident::$name:ident($($argument:ident: $type:ty),*), $(before $release:ident)?
        $(after acquire if $found:expr)?;)+) => {
        $(
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                $($release();)?
                // SAFETY: the caller's promises are those of the plain function.
                let result = unsafe { $plain::$name($($argument),*) };
                $(if $found(result) {
                    acquire();
                })?
                result
            }
        )+
    };
}

annotated! {
    data_path::post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr), before release;
    data_path::post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr), before release;
    data_path::post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr), before release;
    qp_ex::wr_complete(qp: *mut ibv_qp_ex), before release;
    data_path::poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc), after acquire if |found| found > 0;
    cq_ex::start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr), after acquire if |status| status == 0;
    cq_ex::next_poll(cq: *mut ibv_cq_ex), after acquire if |status| status == 0;
}
