//! Endpoints: identifiers that are created from a result of `rdma_getaddrinfo`, with a queue pair.
//! Also the requests that a synchronous listener receives.

use super::addrinfo::RAI_PASSIVE;
use super::addrinfo::{read, read_optional};
use super::event;
use super::id::{Template, live};
use super::lifecycle::{self, complete, release_event};
use super::queues::{create_qp, destroy_qp, destroy_srq};
use super::resolve::{self, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, bind, resolve, resolve_route};
use crate::abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::errno::{EINVAL, Errno, Result, einval, no_result, null, zero};
use core::ffi::c_int;
use core::ptr::null_mut;
use libc::{sockaddr, socklen_t};
use roxe_provider::cm::EventKind;

/// Time limit of resolving the address, and again of resolving the route.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// `man rdma_create_ep`: fails with EINVAL without an address.
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    zero(|| {
        // SAFETY: the program passes NULL or structures that are valid during the call.
        let (res, init) = unsafe { (res.as_ref().ok_or_else(|| null("res"))?, init.as_mut()) };
        if id.is_null() {
            return Err(null("id"));
        }
        let created = lifecycle::create(null_mut(), null_mut(), res.ai_port_space, res.ai_qp_type)?;
        let prepare = if res.ai_flags & RAI_PASSIVE != 0 { prepare_passive } else { prepare_active };
        // SAFETY: the program passes addresses and blocks of the lengths in their length fields.
        unsafe { prepare(created, res, pd, init) }.inspect_err(|_| destroy(created).unwrap_or_default())?;
        // SAFETY: not NULL; the program passes a variable that is valid during the call.
        unsafe { id.write(created) };
        Ok(())
    })
}

/// Returns the address; NULL if its length is 0.
fn address_if_given(addr: *mut sockaddr, len: socklen_t) -> *const sockaddr {
    if len == 0 { null_mut() } else { addr }
}

/// Binds the identifier of a listener, and stores the attributes for the queue pairs of its
/// requests.
///
/// # Safety
/// Each address and block in `res` has the length in its length field.
unsafe fn prepare_passive(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    // SAFETY: the caller guarantees the length of the address.
    bind(id, &unsafe { read(address_if_given(res.ai_src_addr, res.ai_src_len)) }?)?;
    // SAFETY: the identifier is alive, and the program does not have it yet.
    let qp_type = unsafe {
        if !pd.is_null() {
            (*id).pd = pd;
        }
        (*id).qp_type
    };
    live(id)?.inner.state.lock().template = init.map(|init| Template(ibv_qp_init_attr { qp_type, ..*init }));
    Ok(())
}

/// Resolves the address and creates the queue pair.
///
/// # Safety
/// Each address and block in `res` has the length in its length field.
unsafe fn prepare_active(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    let (src, dst) =
        (address_if_given(res.ai_src_addr, res.ai_src_len), address_if_given(res.ai_dst_addr, res.ai_dst_len));
    // SAFETY: the caller guarantees the lengths of both addresses.
    let (src, dst) = unsafe { (read_optional(src)?, read(dst)?) };
    resolve(id, src.as_ref(), &dst, RESOLVE_TIMEOUT_MS)?;
    if res.ai_route_len > 0 {
        // SAFETY: the caller guarantees the length of the block.
        unsafe { resolve::set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len) }?;
        complete(id)?;
    } else {
        resolve_route(id, RESOLVE_TIMEOUT_MS)?;
    }
    if let Some(init) = init {
        // SAFETY: the identifier is alive, and the program does not have it yet.
        init.qp_type = unsafe { (*id).qp_type };
        create_qp(id, pd, init)?;
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        // SAFETY: not NULL; the caller guarantees the length of the block.
        let data = unsafe { core::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        live(id)?.inner.state.lock().connect_data = data.to_vec();
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    no_result(|| destroy(id));
}

fn destroy(id: *mut rdma_cm_id) -> Result<()> {
    live(id)?;
    destroy_qp(id);
    destroy_srq(id);
    lifecycle::destroy(id)
}

/// `man rdma_get_request`: fails with EINVAL for a listener that is not synchronous.
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    zero(|| {
        let synchronous = live(listen)?.inner.state.lock().synchronous;
        if id.is_null() || !synchronous {
            return Err(einval("id is NULL, or the listener has an event channel and is not synchronous"));
        }
        release_event(listen);
        // SAFETY: the identifier is alive; a program uses a synchronous one on one thread at a
        // time.
        let event = event::next(unsafe { (*listen).channel })?;
        // SAFETY: the listener is alive, and the event has just been delivered to this call.
        let request = unsafe { take_request(listen, event) }.inspect_err(|_| unsafe { (*listen).event = event })?;
        // SAFETY: not NULL; the program passes a variable that is valid during the call.
        unsafe { id.write(request) };
        Ok(())
    })
}

/// Returns the identifier of a request, with a queue pair from the listener's template.
///
/// # Safety
/// The listener and the event are alive.
unsafe fn take_request(listen: *mut rdma_cm_id, event: *mut rdma_cm_event) -> Result<*mut rdma_cm_id> {
    // SAFETY: the caller guarantees a live listener and event.
    let (kind, status, request, pd) = unsafe { ((*event).event, (*event).status, (*event).id, (*listen).pd) };
    if status != 0 {
        return Err(Errno(status.saturating_abs()));
    }
    if kind != EventKind::ConnectRequest as c_int {
        return Err(EINVAL);
    }
    let template = live(listen)?.inner.state.lock().template;
    if let Some(Template(mut init)) = template {
        create_qp(request, pd, &mut init)?;
    }
    // SAFETY: the identifier of a request is alive while its event, which the caller guarantees,
    // is.
    unsafe { (*request).event = event };
    Ok(request)
}
