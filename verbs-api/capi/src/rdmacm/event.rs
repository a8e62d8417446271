//! Events that programs read from channels and acknowledge.
//!
//! Each identifier counts its delivered events; a connection request counts at the listener.
//! Destroying or migrating an identifier waits until the program has acknowledged these events.

use super::id::inner;
use super::id::{self, CmId};
use crate::abi::*;
use crate::ah;
use crate::errno::{EINVAL, Errno, Result, null, zero};
use crate::event::wait_for_event;
use crate::object::{Object, Token, exposed, with_token};
use core::ffi::c_int;
use core::ptr::null_mut;
use roxe_provider::cm::{ConnParam, Event, EventData, EventKind, Id, RejReason, UdParam};

/// Largest private data of the peer, in bytes: the length field is one byte.
const MAX_PRIVATE_DATA: usize = u8::MAX as usize;

/// The C structure of an event, and the private data that it points to.
#[repr(C)]
pub(crate) struct CmEvent {
    public: rdma_cm_event,
    private_data: [u8; MAX_PRIVATE_DATA],
}

exposed! {
    CmEvent => rdma_cm_event: ();
}

/// `man rdma_get_cm_event`: fails with EAGAIN if the descriptor is non-blocking and no event is
/// pending.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let find = || {
        if event.is_null() {
            return Err(null("event"));
        }
        inner(channel)
    };
    wait_for_event(
        find,
        |inner| Ok(inner.channel.before_wait()?),
        |inner, slept| {
            let _turn = inner.turn.lock();
            let Some(next) = inner.channel.take(slept).and_then(|next| deliver(&next)) else { return Ok(false) };
            // SAFETY: not NULL; the program passes a variable that is valid during the call.
            unsafe { event.write(next) };
            Ok(true)
        },
    )
}

/// Waits for the next event of a channel and delivers it.
pub(super) fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    let inner = inner(channel)?;
    let _turn = inner.turn.lock();
    loop {
        let event = inner.channel.next()?;
        if let Some(delivered) = deliver(&event) {
            return Ok(delivered);
        }
    }
}

/// Creates the program's event. `None` if the identifier was destroyed, or if there are no
/// resources for the identifier of a request.
fn deliver(event: &Event) -> Option<*mut rdma_cm_event> {
    let owner = count_delivered(event.listener.as_ref().unwrap_or(&event.id).user_context());
    match (owner, &event.listener) {
        (Some(listener), Some(_)) => deliver_request(event, listener),
        (Some(id), None) => Some(publish(event, id, null_mut(), outcome(event, id))),
        (None, listener) => {
            if listener.is_some() {
                event.id.destroy();
            }
            None
        }
    }
}

/// Counts an event as delivered to the identifier whose token is `user_context`.
fn count_delivered(user_context: u64) -> Option<*mut rdma_cm_id> {
    with_token::<CmId, _>(Token(user_context), |object| {
        object.inner.events.deliver();
        object.handle()
    })
}

fn count_acknowledged(owner: *mut rdma_cm_id) -> Result<()> {
    Object::<CmId>::with_live(owner, |object| object.inner.events.ack(1))
}

/// Creates the identifier and the event of a connection request; rejects the request on failure.
fn deliver_request(event: &Event, listener: *mut rdma_cm_id) -> Option<*mut rdma_cm_event> {
    match id::create_for_request(event, listener) {
        Ok(id) => Some(publish(event, id, listener, (event.kind, event.status))),
        Err(_) => {
            event.id.destroy();
            count_acknowledged(listener).ok();
            None
        }
    }
}

/// Updates the public fields of the identifier; returns the kind and status that the program sees.
/// A resolved address becomes an error if there are no resources for the fields. A connect response
/// becomes an established connection if the program has assigned a queue pair to the identifier
/// since it connected.
fn outcome(event: &Event, id: *mut rdma_cm_id) -> (EventKind, c_int) {
    let found = id::live(id);
    let (kind, status) = match &found {
        Ok(object) if event.kind == EventKind::ConnectResponse && object.inner.id.qp().is_some() => confirm(&event.id),
        _ => (event.kind, event.status),
    };
    match (found.and_then(id::update_public_fields), kind) {
        (Err(errno), EventKind::AddrResolved) => (EventKind::AddrError, -errno.0),
        (_, kind) => (kind, status),
    }
}

/// Confirms the peer's response with the identifier's queue pair; rejects it if the queue pair
/// cannot be modified.
fn confirm(id: &Id) -> (EventKind, c_int) {
    match id.accept(&ConnParam::NOTHING) {
        Ok(()) => (EventKind::Established, 0),
        Err(e) => {
            id.reject(&[], RejReason::ConsumerDefined).ok();
            (EventKind::ConnectError, -e.errno())
        }
    }
}

fn publish(
    event: &Event,
    id: *mut rdma_cm_id,
    listen_id: *mut rdma_cm_id,
    (kind, status): (EventKind, c_int),
) -> *mut rdma_cm_event {
    let public = rdma_cm_event { id, listen_id, event: kind as c_int, status, param: event_param(&event.data) };
    let private_data = event.data.private_data();
    let len = private_data.len().min(MAX_PRIVATE_DATA);
    let mut exposed = CmEvent { public, private_data: [0; MAX_PRIVATE_DATA] };
    exposed.private_data[..len].copy_from_slice(&private_data[..len]);
    let handle = Object::<CmEvent>::publish(Token::new(), exposed, ());
    if len > 0 {
        let event = handle.cast::<CmEvent>();
        // SAFETY: `publish` has just created the block, and the program does not have it yet. Both
        // members of the union start with these two fields.
        unsafe {
            (*event).public.param.conn.private_data = (&raw const (*event).private_data).cast();
            (*event).public.param.conn.private_data_len = len as u8;
        }
    }
    handle
}

fn event_param(data: &EventData) -> rdma_event_param {
    // Sets the largest member first, so that the whole union is initialised.
    let mut param = rdma_event_param { ud: ud_param(&UdParam::default()) };
    match data {
        EventData::None => {}
        EventData::Arg(arg) => param.arg = *arg,
        EventData::Conn(conn) => param.conn = conn_param(conn),
        EventData::Ud(ud) => param.ud = ud_param(ud),
        EventData::Group { user_context, ud } => {
            let context = std::ptr::with_exposed_provenance(*user_context as usize);
            param.ud = rdma_ud_param { private_data: context, ..ud_param(ud) };
        }
    }
    param
}

fn conn_param(conn: &ConnParam) -> rdma_conn_param {
    copy_fields!(rdma_conn_param from conn {
        responder_resources, initiator_depth, retry_count, rnr_retry_count, qp_num,
    } with {
        flow_control: conn.flow_control.into(), srq: conn.srq.into(), ..rdma_conn_param::ZERO
    })
}

fn ud_param(ud: &UdParam) -> rdma_ud_param {
    copy_fields!(rdma_ud_param from ud { qp_num, qkey } with {
        ah_attr: ah::to_c(&ud.ah_attr), ..rdma_ud_param::ZERO
    })
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    zero(|| acknowledge(event))
}

/// `man rdma_write_cm_event`: fails with EINVAL for events other than `RDMA_CM_EVENT_USER`.
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_int,
    status: c_int,
    arg: u64,
) -> c_int {
    zero(|| {
        let id = id::provider_id(id)?;
        if event != EventKind::User as c_int {
            return Err(EINVAL);
        }
        id.write_event(EventKind::User, status, arg);
        Ok(())
    })
}

/// Acknowledges an event. Fails with EINVAL if the program does not hold it.
pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    let event = Object::<CmEvent>::retire(event)?;
    // SAFETY: `retire` made `event` the owner of the block; programs only read the fields.
    let (id, listener) = unsafe { ((*event.exposed()).public.id, (*event.exposed()).public.listen_id) };
    count_acknowledged(if listener.is_null() { id } else { listener })
}

/// Returns the result of a call that has waited for an event of this kind and status.
pub(super) fn event_result(kind: c_int, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        _ if kind == EventKind::Rejected as c_int => Err(Errno(libc::ECONNREFUSED)),
        _ => Err(Errno(status.saturating_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{rdma_create_event_channel, rdma_destroy_event_channel};
    use super::*;
    use std::io::{self, Write};
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::{fs::File, thread};

    #[test]
    fn waiting_thread_survives_destroy_of_its_channel() {
        // SAFETY: the channel is new, and its descriptor is open. When this thread destroys it, the
        // other thread has looked the channel up already; it passes a local variable.
        unsafe {
            let channel = rdma_create_event_channel();
            let copy = |fd| BorrowedFd::borrow_raw(fd).try_clone_to_owned().unwrap();
            let fd = copy((*channel).fd);
            let mut units = File::from(copy(inner(channel).unwrap().channel.before_wait().unwrap().0.unwrap()));
            let address = channel.expose_provenance();
            let waiting = thread::spawn(move || {
                let mut event = null_mut();
                let result = rdma_get_cm_event(std::ptr::with_exposed_provenance_mut(address), &raw mut event);
                (result, io::Error::last_os_error().raw_os_error())
            });
            // A unit without an event. When it has been read, the thread is waiting.
            units.write_all(&1u64.to_ne_bytes()).unwrap();
            let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            while libc::poll(&raw mut poll, 1, 0) > 0 {
                thread::yield_now();
            }
            rdma_destroy_event_channel(channel);
            libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            units.write_all(&1u64.to_ne_bytes()).unwrap();
            assert_eq!(waiting.join().unwrap(), (-1, Some(libc::EAGAIN)));
        }
    }
}
