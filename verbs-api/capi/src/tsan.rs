//! The data path for programs built with ThreadSanitizer.
//!
//! Programs pass buffers from thread to thread by posts and completions. The sanitizer sees neither
//! this library's locks nor the peer, so these functions tell it that a post happens before a
//! completion. A context gets them when it is opened, and only under the sanitizer, so other
//! programs pay nothing. All posts and completions of the process are annotated as one object: the
//! sanitizer may miss a race, but never reports a false one.

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

/// The object of all annotations, of which only the address is used.
static ORDER: u8 = 0;

fn sanitizer() -> Option<&'static Sanitizer> {
    static FOUND: OnceLock<Option<Sanitizer>> = OnceLock::new();
    let find = || Some(Sanitizer { acquire: annotation(c"__tsan_acquire")?, release: annotation(c"__tsan_release")? });
    FOUND.get_or_init(find).as_ref()
}

fn annotation(name: &CStr) -> Option<Annotation> {
    // SAFETY: the name is a C string. The result is NULL or a function of the type that
    // `sanitizer/tsan_interface.h` declares.
    unsafe { core::mem::transmute::<*mut c_void, Option<Annotation>>(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr())) }
}

/// Tells the sanitizer that this thread's past accesses happen before those of other threads after
/// a completion.
fn release() {
    if let Some(Sanitizer { release, .. }) = sanitizer() {
        // SAFETY: the annotation uses the address as a key, and does not access the memory.
        unsafe { release((&raw const ORDER).cast_mut().cast()) };
    }
}

/// Tells the sanitizer that other threads' accesses before a post happen before this thread's next
/// accesses.
fn acquire() {
    if let Some(Sanitizer { acquire, .. }) = sanitizer() {
        // SAFETY: the annotation uses the address as a key, and does not access the memory.
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

/// Declares annotated functions: `release` before a post, `acquire` after a successful poll.
macro_rules! annotated {
    ($($plain:ident::$name:ident($($argument:ident: $type:ty),*), $(before $release:ident)?
        $(after acquire if $found:expr)?;)+) => {
        $(
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                $($release();)?
                // SAFETY: these are the program's arguments; the plain function has the same
                // contract.
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
