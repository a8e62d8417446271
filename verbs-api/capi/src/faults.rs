//! The data path under fault rules, and while calls are counted for a census: the rules are applied
//! to each call before it is made.
//!
//! A context, a queue pair and a completion queue get these functions when they are created, and
//! only if there are rules, so programs without rules pay nothing.

use crate::abi::*;
use crate::errno::{EINVAL, Errno};
use crate::qp_ex;
use core::ffi::c_int;
use roxe_check::{explain, faults};
use std::sync::OnceLock;

type Post<Q, W> = unsafe extern "C" fn(*mut Q, *mut W, *mut *mut W) -> c_int;

/// The plain functions: those of `data_path`, or of `tsan` under the sanitizer.
static OPS: OnceLock<ibv_context_ops> = OnceLock::new();
static WR_COMPLETE: OnceLock<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int> = OnceLock::new();
static START_POLL: OnceLock<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int> = OnceLock::new();

/// Returns the functions of a context: the plain ones, or those of this module if there are rules.
pub(crate) fn ops(plain: ibv_context_ops) -> ibv_context_ops {
    if !faults::is_on() {
        return plain;
    }
    OPS.get_or_init(|| plain);
    ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        post_srq_recv: Some(post_srq_recv),
        ..plain
    }
}

pub(crate) fn qp_ex(plain: ibv_qp_ex) -> ibv_qp_ex {
    match plain.wr_complete.filter(|_| faults::is_on()) {
        None => plain,
        Some(complete) => {
            WR_COMPLETE.get_or_init(|| complete);
            ibv_qp_ex { wr_complete: Some(wr_complete), ..plain }
        }
    }
}

pub(crate) fn cq_ex(plain: ibv_cq_ex) -> ibv_cq_ex {
    match plain.start_poll.filter(|_| faults::is_on()) {
        None => plain,
        Some(poll) => {
            START_POLL.get_or_init(|| poll);
            ibv_cq_ex { start_poll: Some(start_poll), ..plain }
        }
    }
}

/// Makes the call `name`, unless a rule makes it fail.
fn apply_rules(name: &str, call: impl FnOnce() -> c_int) -> Result<c_int, Errno> {
    let _verb = explain::enter_verb();
    faults::call(name, None, call).map_err(|faults::Failed(errno)| {
        explain::refused(|| name.to_owned(), errno);
        Errno(errno)
    })
}

unsafe fn post<Q, W>(
    name: &str,
    plain: impl FnOnce(&ibv_context_ops) -> Option<Post<Q, W>>,
    (queue, wr, bad_wr): (*mut Q, *mut W, *mut *mut W),
) -> c_int {
    let Some(plain) = OPS.get().and_then(plain) else { return EINVAL.report() };
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    apply_rules(name, || unsafe { plain(queue, wr, bad_wr) }).unwrap_or_else(|errno| {
        if !bad_wr.is_null() {
            // SAFETY: not NULL; the program passes a variable that is valid during the call.
            unsafe { bad_wr.write(wr) };
        }
        errno.report()
    })
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    unsafe { post("ibv_post_send", |ops| ops.post_send, (qp, wr, bad_wr)) }
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    unsafe { post("ibv_post_recv", |ops| ops.post_recv, (qp, wr, bad_wr)) }
}

unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    unsafe { post("ibv_post_srq_recv", |ops| ops.post_srq_recv, (srq, wr, bad_wr)) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(plain) = OPS.get().and_then(|ops| ops.poll_cq) else { return -EINVAL.report() };
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    apply_rules("ibv_poll_cq", || unsafe { plain(cq, entries, wc) }).unwrap_or_else(|errno| -errno.report())
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let Some(plain) = OPS.get().and_then(|ops| ops.req_notify_cq) else { return EINVAL.report() };
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    apply_rules("ibv_req_notify_cq", || unsafe { plain(cq, solicited_only) }).unwrap_or_else(Errno::report)
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let Some(plain) = WR_COMPLETE.get() else { return EINVAL.report() };
    // SAFETY: this is the program's argument; the plain function has the same contract.
    apply_rules("ibv_wr_complete", || unsafe { plain(qp) }).unwrap_or_else(|errno| {
        // SAFETY: this is the program's argument. The call fails instead of completing the batch,
        // so it ends the batch that the program has started on this thread.
        unsafe { qp_ex::wr_abort(qp) };
        errno.report()
    })
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some(plain) = START_POLL.get() else { return EINVAL.report() };
    // SAFETY: these are the program's arguments; the plain function has the same contract.
    apply_rules("ibv_start_poll", || unsafe { plain(cq, attr) }).unwrap_or_else(Errno::report)
}
