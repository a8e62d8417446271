//! Creating, destroying and migrating identifiers; waiting for the outcomes of synchronous calls.

use super::event;
use super::id;
use super::id::OwnChannel;
use super::id::{CmId, create_on, default_type, live, port_space};
use crate::abi::{rdma_cm_id, rdma_event_channel};
use crate::errno::{Result, einval, null, zero};
use crate::object::Object;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// `man rdma_create_id`: an identifier without a channel is synchronous.
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    zero(|| {
        if id.is_null() {
            return Err(null("id"));
        }
        let created = create(channel, context, ps, 0)?;
        // SAFETY: not NULL; the program passes a variable that is valid during the call.
        unsafe { id.write(created) };
        Ok(())
    })
}

/// Creates an identifier for queue pairs of `qp_type`; 0 is the default of the port space.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: c_int,
    qp_type: c_int,
) -> Result<*mut rdma_cm_id> {
    let port_space = port_space(ps)?;
    let qp_type = if qp_type == 0 { default_type(port_space) } else { qp_type };
    if !channel.is_null() {
        return create_on(channel, context, port_space, qp_type, false);
    }
    let own = OwnChannel::new()?;
    let created = create_on(own.0, context, port_space, qp_type, true)?;
    own.into_handle();
    Ok(created)
}

/// `man rdma_destroy_id`: waits until the program has acknowledged all events.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    zero(|| destroy(id))
}

pub(super) fn destroy(handle: *mut rdma_cm_id) -> Result<()> {
    let object = live(handle)?;
    object.inner.id.destroy();
    object.hide_from_events();
    release_event(handle);
    object.inner.events.wait();
    let object = Object::<CmId>::retire(handle)?;
    if object.inner.state.lock().synchronous {
        // SAFETY: `retire` made `object` the owner of the block.
        drop(OwnChannel(unsafe { (*object.exposed()).public.channel }));
    }
    Ok(())
}

/// Acknowledges the event that a synchronous call left in the identifier.
pub(super) fn release_event(handle: *mut rdma_cm_id) {
    // SAFETY: the callers have looked the identifier up, so it is alive during the call.
    let event = unsafe { (&raw mut (*handle).event).replace(null_mut()) };
    if !event.is_null() {
        event::acknowledge(event).ok();
    }
}

/// `man rdma_migrate_id`: waits until the program has acknowledged events of the old channel.
/// Fails with EINVAL for a NULL channel if the identifier is synchronous already.
pub(crate) unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    zero(|| migrate(id, channel))
}

fn migrate(handle: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<()> {
    let object = live(handle)?;
    let synchronous = channel.is_null();
    let was_synchronous = object.inner.state.lock().synchronous;
    if synchronous && was_synchronous {
        return Err(einval("channel is NULL, and the identifier is synchronous already"));
    }
    let own = synchronous.then(OwnChannel::new).transpose()?;
    let channel = own.as_ref().map_or(channel, |own| own.0);
    object.inner.id.migrate(&id::inner(channel)?.channel)?;
    if was_synchronous {
        release_event(handle);
    }
    object.inner.state.lock().synchronous = synchronous;
    // SAFETY: the identifier is alive; the program uses it in one call at a time.
    let old = unsafe { (&raw mut (*handle).channel).replace(channel) };
    own.map(OwnChannel::into_handle);
    if was_synchronous {
        drop(OwnChannel(old));
    }
    object.inner.events.wait();
    Ok(())
}

/// Waits for the outcome of a call of a synchronous identifier and stores it in `id->event`.
/// Fails with ECONNREFUSED if the peer rejects; otherwise the errno of the event.
pub(super) fn complete(handle: *mut rdma_cm_id) -> Result<()> {
    if !live(handle)?.inner.state.lock().synchronous {
        return Ok(());
    }
    release_event(handle);
    // SAFETY: the identifier is alive; a program uses a synchronous one on one thread at a time.
    let event = event::next(unsafe { (*handle).channel })?;
    // SAFETY: the identifier is alive; a program uses a synchronous one on one thread at a time.
    // The event has just been delivered to this call.
    let (kind, status) = unsafe {
        (*handle).event = event;
        ((*event).event, (*event).status)
    };
    event::event_result(kind, status)
}
