//! Completion channels, and completion and asynchronous events.
//!
//! An event carries a token, not a pointer: if the object has been destroyed, the event is skipped.
//! Finding the object and counting the event as delivered (or acknowledged) is one step under the
//! registry's lock. So a destroy call either precedes the delivery or waits for the
//! acknowledgement.
//!
//! A thread that waits for an event can be cancelled (`man pthread_cancel`), as with rdma-core. The
//! thread sleeps in a plain `read` and holds no lock of this library. The functions are `C-unwind`,
//! so that the unwinding reaches the program.

use crate::abi::*;
use crate::errno::{EINVAL, Result, no_result, null, pointer, run_call, status};
use crate::object::{Exposed, Object, Token, Unacked, with_token};
use crate::objects::context;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use roxe_provider::{AsyncEvent, CompChannel};
use std::io;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(handle: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        let channel = context(handle)?.create_comp_channel()?;
        let exposed = ibv_comp_channel { context: handle, fd: channel.fd(), refcnt: 0 };
        Ok(Object::publish(Token::new(), exposed, channel))
    })
}

/// `man ibv_create_comp_channel`: fails with EBUSY while CQs use it.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(handle: *mut ibv_comp_channel) -> c_int {
    status(|| Object::<ibv_comp_channel>::destroy(handle, |channel| channel.destroy()))
}

pub(crate) fn optional_channel(handle: *mut ibv_comp_channel) -> Result<Option<Arc<CompChannel>>> {
    Object::<ibv_comp_channel>::optional(handle).map(|object| object.map(|object| Arc::clone(&object.inner)))
}

/// Changes the public count of CQs on a channel; ignores NULL and destroyed channels.
pub(crate) fn change_cq_count(handle: *mut ibv_comp_channel, change: i32) {
    let _ = Object::<ibv_comp_channel>::with_live(handle, |object| {
        // SAFETY: the field is part of the object, and only this line accesses it.
        let refcnt = unsafe { AtomicI32::from_ptr(&raw mut (*object.exposed()).refcnt) };
        refcnt.fetch_add(change, Ordering::Relaxed);
    });
}

/// Takes the next event; returns its CQ and the CQ's context pointer. `None` if there is no event
/// or the CQ was destroyed. `slept` is true if the thread has read the event's unit from the
/// eventfd.
fn next_cq(channel: &CompChannel, slept: bool) -> Option<(*mut ibv_cq, *mut c_void)> {
    with_token::<ibv_cq_ex, _>(Token(channel.take_event(slept)?), |object| {
        object.inner.comp_events.deliver();
        // SAFETY: the structure is part of `object`; nothing writes the field after creation.
        (object.handle(), unsafe { (&raw const (*object.handle()).cq_context).read() })
    })
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    handle: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let find = || {
        if cq.is_null() || cq_context.is_null() {
            return Err(null("cq or cq_context"));
        }
        Object::<ibv_comp_channel>::live(handle).map(|object| &object.inner)
    };
    wait_for_event(
        find,
        |channel| Ok(channel.before_wait()?),
        |channel, slept| {
            let Some(found) = next_cq(channel, slept) else { return Ok(false) };
            // SAFETY: not NULL; the program passes two variables that are valid during the call.
            unsafe {
                cq.write(found.0);
                cq_context.write(found.1);
            }
            Ok(true)
        },
    )
}

/// `man ibv_get_cq_event`.
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    no_result(|| Object::<ibv_cq_ex>::with_live(cq, |object| object.inner.comp_events.ack(nevents.into())));
}

/// Kind of object that raises an asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Cq,
    Qp,
    Srq,
    Wq,
    Port,
}

impl Source {
    /// Returns the source of an `enum ibv_event_type`.
    fn of(event_type: u32) -> Self {
        match event_type {
            0 => Self::Cq,
            // From QP_FATAL to PATH_MIG_ERR, and QP_LAST_WQE_REACHED.
            1..=7 | 16 => Self::Qp,
            14 | 15 => Self::Srq,
            19 => Self::Wq,
            _ => Self::Port,
        }
    }
}

/// Counts an event of the object named `token` as delivered; `None` if the object was destroyed.
fn deliver_to<E: Exposed>(token: Token, events: impl FnOnce(&E::Inner) -> &Unacked) -> Option<*mut E::Handle> {
    with_token::<E, _>(token, |object| {
        events(&object.inner).deliver();
        object.handle()
    })
}

fn deliver(event: AsyncEvent) -> Option<async_element> {
    let token = Token(event.user_context);
    Some(match Source::of(event.kind as u32) {
        Source::Cq => async_element { cq: deliver_to::<ibv_cq_ex>(token, |inner| &inner.async_events)? },
        Source::Qp => async_element { qp: deliver_to::<ibv_qp_ex>(token, |inner| &inner.events)? },
        Source::Srq => async_element { srq: deliver_to::<ibv_srq>(token, |inner| &inner.events)? },
        Source::Wq => async_element { wq: deliver_to::<ibv_wq>(token, |inner| &inner.events)? },
        Source::Port => async_element { port_num: c_int::try_from(event.user_context).unwrap_or_default() },
    })
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    handle: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let find = || if event.is_null() { Err(null("event")) } else { context(handle) };
    wait_for_event(
        find,
        |context| Ok((context.before_async_wait()?, ())),
        |context, slept| {
            let next = context.take_async_event(slept);
            let Some((next, element)) = next.and_then(|next| Some((next, deliver(next)?))) else { return Ok(false) };
            // SAFETY: not NULL; the program passes a structure that is valid during the call.
            unsafe { event.write(ibv_async_event { element, event_type: next.kind as c_int }) };
            Ok(true)
        },
    )
}

/// `man ibv_get_async_event`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    no_result(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes a structure that `ibv_get_async_event` has filled.
        let event = unsafe { event.read() };
        // SAFETY: `ibv_get_async_event` has set a member; all others are pointers or shorter, for
        // which any bits are valid. The event type selects the one that is used.
        let (cq, qp, srq, wq) = unsafe { (event.element.cq, event.element.qp, event.element.srq, event.element.wq) };
        match Source::of(event.event_type.cast_unsigned()) {
            Source::Cq => Object::<ibv_cq_ex>::with_live(cq, |object| object.inner.async_events.ack(1)),
            Source::Qp => Object::<ibv_qp_ex>::with_live(qp, |object| object.inner.events.ack(1)),
            Source::Srq => Object::<ibv_srq>::with_live(srq, |object| object.inner.events.ack(1)),
            Source::Wq => Object::<ibv_wq>::with_live(wq, |object| object.inner.events.ack(1)),
            Source::Port => Ok(()),
        }
    });
}

unsafe extern "C-unwind" {
    /// `man 2 read`. Declared here, because the declaration in `libc` promises not to unwind.
    fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
}

/// Runs a call that waits for an event and returns 0, or -1 with `errno` set.
///
/// - `find` returns the object to wait on. It runs once: the thread keeps waiting if another thread
///   destroys the object, as with rdma-core.
/// - `prepare` returns the eventfd to sleep on, if no event is pending, and a value to hold while
///   sleeping.
/// - `take` processes an event. Its argument is true if the thread has read the event's unit from
///   the eventfd. It returns true if it has delivered the event to the program.
pub(crate) fn wait_for_event<T, W>(
    find: impl FnOnce() -> Result<T>,
    prepare: impl Fn(&T) -> Result<(Option<RawFd>, W)>,
    mut take: impl FnMut(&T, bool) -> Result<bool>,
) -> c_int {
    let found = match run_step(find) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    loop {
        let (sleep_on, kept) = match run_step(|| prepare(&found)) {
            Ok(prepared) => prepared,
            Err(refused) => return refused,
        };
        let slept = sleep_on.map_or(Ok(()), read_unit);
        drop(kept);
        match run_step(|| match slept {
            // EAGAIN of the eventfd is no result of the call: only the program's descriptor decides
            // if the call blocks, and `prepare` checks it in the next round.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            slept => slept.map_err(Into::into).and_then(|()| take(&found, sleep_on.is_some())),
        }) {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(refused) => return refused,
        }
    }
}

/// Runs one step. Its error is the return value of the call, with `errno` set.
fn run_step<T>(body: impl FnOnce() -> Result<T>) -> core::result::Result<T, c_int> {
    run_call(body).map_err(|errno| errno.set(-1))
}

/// Waits for one unit of an eventfd in semaphore mode and reads it. A signal handler with
/// `SA_RESTART` does not interrupt the wait.
fn read_unit(fd: RawFd) -> io::Result<()> {
    let mut unit = [0u8; 8];
    // SAFETY: `unit` is a local array of eight bytes, as many as an eventfd returns.
    let count = unsafe { read(fd, unit.as_mut_ptr().cast(), unit.len()) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_provider::AsyncEventKind;

    #[test]
    fn event_types_map_to_their_source() {
        let source_of = |kind: AsyncEventKind| Source::of(kind as u32);
        assert_eq!(source_of(AsyncEventKind::CqErr), Source::Cq);
        assert_eq!(source_of(AsyncEventKind::CommEst), Source::Qp);
        assert_eq!(source_of(AsyncEventKind::QpLastWqeReached), Source::Qp);
        assert_eq!(source_of(AsyncEventKind::SrqLimitReached), Source::Srq);
        assert_eq!(source_of(AsyncEventKind::WqFatal), Source::Wq);
        assert_eq!(source_of(AsyncEventKind::PortActive), Source::Port);
        assert_eq!(source_of(AsyncEventKind::GidChange), Source::Port);
        assert_eq!(source_of(AsyncEventKind::DeviceFatal), Source::Port);
    }
}
