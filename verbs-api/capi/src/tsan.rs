//! The data path for programs built with ThreadSanitizer.
//!
//! What a thread did before it posted a request has happened when another sees the completion:
//! programs hand buffers over that way. The sanitizer sees neither our locks nor what the peer
//! does, so it is told. Which functions a context has is chosen when it is opened, so others pay
//! nothing. All requests and completions of the process are one order here: it may miss a race of
//! the program with itself, but never reports one that is none.

use crate::abi::*;
use crate::{cq_ex, data_path, qp_ex};
use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// `__tsan_acquire` or `__tsan_release` of the sanitizer's runtime (`sanitizer/tsan_interface.h`).
type Annotation = unsafe extern "C" fn(*mut c_void);

/// The runtime that the program was linked with.
struct Sanitizer {
    acquire: Annotation,
    release: Annotation,
}

/// What the annotations are about: its address.
static ORDER: u8 = 0;

fn sanitizer() -> Option<&'static Sanitizer> {
    static FOUND: OnceLock<Option<Sanitizer>> = OnceLock::new();
    let find = || Some(Sanitizer { acquire: annotation(c"__tsan_acquire")?, release: annotation(c"__tsan_release")? });
    FOUND.get_or_init(find).as_ref()
}

fn annotation(name: &CStr) -> Option<Annotation> {
    // SAFETY: the name is a string of C; the answer is NULL or the function of this name, whose
    // type is documented.
    unsafe { core::mem::transmute::<*mut c_void, Option<Annotation>>(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr())) }
}

/// All that this thread did comes before what others do behind a completion.
fn release() {
    if let Some(Sanitizer { release, .. }) = sanitizer() {
        // SAFETY: takes any address and does not touch what is there.
        unsafe { release((&raw const ORDER).cast_mut().cast()) };
    }
}

/// All that others did before they posted comes before what this thread does from here on.
fn acquire() {
    if let Some(Sanitizer { acquire, .. }) = sanitizer() {
        // SAFETY: takes any address and does not touch what is there.
        unsafe { acquire((&raw const ORDER).cast_mut().cast()) };
    }
}

/// The functions of a context, in place of `plain` ones.
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

/// The structure of an extended completion queue, in place of a `plain` one.
pub(crate) fn cq_ex(plain: ibv_cq_ex) -> ibv_cq_ex {
    if sanitizer().is_none() {
        return plain;
    }
    ibv_cq_ex { start_poll: Some(start_poll), next_poll: Some(next_poll), ..plain }
}

/// The structure of an extended queue pair, in place of a `plain` one.
pub(crate) fn qp_ex(plain: ibv_qp_ex) -> ibv_qp_ex {
    if sanitizer().is_none() {
        return plain;
    }
    ibv_qp_ex { wr_complete: Some(wr_complete), ..plain }
}

/// The functions with an annotation: before the plain one it says that what this thread did so far
/// comes before what others do behind a completion (`release`), or after it, if it found a
/// completion, that it comes after what others did (`acquire`).
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
