//! Completion channels, and the two kinds of events a program waits for.
//!
//! An event carries a token, not a pointer; an object that was destroyed meanwhile is not found,
//! and its event is passed over. Finding the object and counting the event are one step under the
//! lock of the register, for handing out as for acknowledging, so a destroy either comes first or
//! waits for the acknowledgement.
//!
//! In a call that waits, a thread of the program can be cancelled
//! (`man pthread_cancel`), as it can with rdma-core. The sleep is a plain `read` without a lock of
//! ours, and between it and the program is nothing that stops what unwinds: these functions are
//! `C-unwind`.

use crate::abi::*;
use crate::errno::{EINVAL, Result, contained, null, pointer, silent, status};
use crate::object::{Exposed, Object, Token, Unacked, with_token};
use crate::objects::context;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use roxe_provider::{AsyncEvent, AsyncEventKind, CompChannel};
use std::io;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Arc;

/// `man ibv_create_comp_channel`.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(handle: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        let channel = context(handle)?.create_comp_channel()?;
        let exposed = ibv_comp_channel { context: handle, fd: channel.fd(), refcnt: 0 };
        Ok(Object::publish(Token::new(), exposed, channel))
    })
}

/// `man ibv_create_comp_channel`: EBUSY while CQs use it.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(handle: *mut ibv_comp_channel) -> c_int {
    status(|| Object::<ibv_comp_channel>::destroy(handle, |channel| channel.destroy()))
}

/// The channel a CQ shall use: none for NULL.
pub(crate) fn optional_channel(handle: *mut ibv_comp_channel) -> Result<Option<Arc<CompChannel>>> {
    Object::<ibv_comp_channel>::optional(handle).map(|object| object.map(|object| Arc::clone(&object.inner)))
}

/// Keeps the public count of CQs on a channel; NULL and destroyed channels are passed over.
pub(crate) fn count_cq(handle: *mut ibv_comp_channel, change: i32) {
    let _ = Object::<ibv_comp_channel>::with_live(handle, |object| {
        // SAFETY: the field lives as long as the object, and only this line touches it.
        let refcnt = unsafe { AtomicI32::from_ptr(&raw mut (*object.exposed()).refcnt) };
        refcnt.fetch_add(change, Ordering::Relaxed);
    });
}

/// The CQ of the next event and its context pointer; `None` if it is gone.
fn next_cq(channel: &CompChannel, slept: bool) -> Option<(*mut ibv_cq, *mut c_void)> {
    with_token::<ibv_cq_ex, _>(Token(channel.take_event(slept)?), |object| {
        object.inner.comp_events.hand_out();
        // SAFETY: the structure is alive; the field is not written after creation.
        (object.handle(), unsafe { (&raw const (*object.handle()).cq_context).read() })
    })
}

/// `man ibv_get_cq_event`.
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
    for_event(
        find,
        |channel| Ok(channel.before_wait()?),
        |channel, slept| {
            let Some(found) = next_cq(channel, slept) else { return Ok(false) };
            // SAFETY: not NULL; the program passes two variables.
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
    silent(|| Object::<ibv_cq_ex>::with_live(cq, |object| object.inner.comp_events.ack(nevents.into())));
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Cq,
    Qp,
    Srq,
    Wq,
    Port,
}

impl Source {
    fn of(event_type: u32) -> Self {
        const CQ_ERR: u32 = AsyncEventKind::CqErr as u32;
        const QP_FATAL: u32 = AsyncEventKind::QpFatal as u32;
        /// The last of the row of QP events.
        const PATH_MIG_ERR: u32 = AsyncEventKind::PathMigErr as u32;
        const SRQ_ERR: u32 = AsyncEventKind::SrqErr as u32;
        const SRQ_LIMIT: u32 = AsyncEventKind::SrqLimitReached as u32;
        const WQ_FATAL: u32 = AsyncEventKind::WqFatal as u32;
        const LAST_WQE: u32 = AsyncEventKind::QpLastWqeReached as u32;
        match event_type {
            CQ_ERR => Self::Cq,
            QP_FATAL..=PATH_MIG_ERR | LAST_WQE => Self::Qp,
            SRQ_ERR | SRQ_LIMIT => Self::Srq,
            WQ_FATAL => Self::Wq,
            _ => Self::Port,
        }
    }
}

/// The handle of the object named `token`, with one of its events more handed out; `None` if the
/// object is gone.
fn handed_out<E: Exposed>(token: Token, events: impl FnOnce(&E::Inner) -> &Unacked) -> Option<*mut E::Handle> {
    with_token::<E, _>(token, |object| {
        events(&object.inner).hand_out();
        object.handle()
    })
}

/// Finds the object of an event and counts the event as handed out; `None` if the object is gone.
fn hand_out(event: AsyncEvent) -> Option<async_element> {
    let token = Token(event.user);
    Some(match Source::of(event.kind as u32) {
        Source::Cq => async_element { cq: handed_out::<ibv_cq_ex>(token, |inner| &inner.async_events)? },
        Source::Qp => async_element { qp: handed_out::<ibv_qp_ex>(token, |inner| &inner.events)? },
        Source::Srq => async_element { srq: handed_out::<ibv_srq>(token, |inner| &inner.events)? },
        Source::Wq => async_element { wq: handed_out::<ibv_wq>(token, |inner| &inner.events)? },
        Source::Port => async_element { port_num: c_int::try_from(event.user).unwrap_or_default() },
    })
}

/// `man ibv_get_async_event`.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    handle: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let find = || if event.is_null() { Err(null("event")) } else { context(handle) };
    for_event(
        find,
        |context| Ok((context.before_async_wait()?, ())),
        |context, slept| {
            let next = context.take_async_event(slept);
            let Some((next, element)) = next.and_then(|next| Some((next, hand_out(next)?))) else { return Ok(false) };
            // SAFETY: not NULL; the program passes a whole structure.
            unsafe { event.write(ibv_async_event { element, event_type: next.kind as c_int }) };
            Ok(true)
        },
    )
}

/// `man ibv_get_async_event`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    silent(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes the structure that `ibv_get_async_event` filled.
        let event = unsafe { event.read() };
        // SAFETY: all members are pointers or shorter than one; the type says which one is meant.
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
    /// `man 2 read`; the declaration of the crate `libc` promises that it does not unwind.
    fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
}

/// For calls that wait for an event and return 0, or -1 with `errno` set. `find` says on what,
/// once: a thread that waits on it goes on doing so when another one destroys it, as with
/// rdma-core. `prepare` returns the eventfd to sleep on, if no event is pending, and what to keep
/// until then; `take` works off an event, told whether its unit was read from there, and returns
/// true if it was one for the program.
pub(crate) fn for_event<T, W>(
    find: impl FnOnce() -> Result<T>,
    prepare: impl Fn(&T) -> Result<(Option<RawFd>, W)>,
    mut take: impl FnMut(&T, bool) -> Result<bool>,
) -> c_int {
    let found = match step(find) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    loop {
        let (sleep_on, kept) = match step(|| prepare(&found)) {
            Ok(prepared) => prepared,
            Err(refused) => return refused,
        };
        let slept = sleep_on.map_or(Ok(()), take_unit);
        drop(kept);
        match step(|| match slept {
            // Only the program's own descriptor says whether a call may wait.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            slept => slept.map_err(Into::into).and_then(|()| take(&found, sleep_on.is_some())),
        }) {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(refused) => return refused,
        }
    }
}

/// What `body` makes, or what the call returns instead, with `errno` set.
fn step<T>(body: impl FnOnce() -> Result<T>) -> core::result::Result<T, c_int> {
    contained(body).map_err(|errno| errno.set(-1))
}

/// Waits for one unit of an eventfd in semaphore mode and reads it. A signal handler installed with
/// `SA_RESTART` does not end that.
fn take_unit(fd: RawFd) -> io::Result<()> {
    let mut unit = [0u8; 8];
    // SAFETY: room for the eight bytes that an eventfd gives.
    let count = unsafe { read(fd, unit.as_mut_ptr().cast(), unit.len()) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_source() {
        let of = |kind: AsyncEventKind| Source::of(kind as u32);
        assert_eq!(of(AsyncEventKind::CqErr), Source::Cq);
        assert_eq!(of(AsyncEventKind::CommEst), Source::Qp);
        assert_eq!(of(AsyncEventKind::QpLastWqeReached), Source::Qp);
        assert_eq!(of(AsyncEventKind::SrqLimitReached), Source::Srq);
        assert_eq!(of(AsyncEventKind::WqFatal), Source::Wq);
        assert_eq!(of(AsyncEventKind::PortActive), Source::Port);
        assert_eq!(of(AsyncEventKind::GidChange), Source::Port);
        assert_eq!(of(AsyncEventKind::DeviceFatal), Source::Port);
    }
}
