//! The queue pair and the SRQ of an identifier, with their completion queues.

use super::devices::{non_null, xrc_domain};
use super::id::{CmId, QpHandle, live, no_device, update_public_fields};
use crate::abi::*;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{EINVAL, Errno, Result, einval, no_result, null, out_of_range, required, zero};
use crate::event::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::object::Object;
use crate::objects::context_of;
use crate::qp::{self, XRC_INI, XRC_RECV, ibv_destroy_qp};
use crate::qp::{QP_PD, QP_XRCD, create_qp_ex};
use crate::srq::{BASIC, XRC, ibv_destroy_srq};
use crate::srq::{SRQ_CQ, SRQ_PD, SRQ_TYPE, SRQ_XRCD, create_srq_ex};
use core::ffi::c_int;
use core::ptr::null_mut;
use roxe_check::for_library;
use roxe_provider::QpState;
use roxe_transport::cx::Side;

fn foreign_pd() -> Errno {
    einval("the protection domain belongs to another context than the identifier (id->verbs)")
}

/// Returns the handle and the context of an identifier. Fails with EINVAL if it is not bound to a
/// device.
fn handle_and_context(object: &Object<CmId>) -> Result<(*mut rdma_cm_id, *mut ibv_context)> {
    let id = object.handle();
    // SAFETY: the identifier is alive; programs only read what this accesses.
    let context = unsafe { (*id).verbs };
    if context.is_null() { Err(no_device()) } else { Ok((id, context)) }
}

/// `man rdma_create_qp`: fails with EINVAL for a domain of another device, and for an identifier
/// that already has a queue pair or has no device.
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    zero(|| create_qp(id, pd, required!(mut init)))
}

/// Creates the queue pair of an identifier and writes its actual capacities to `init`.
pub(super) fn create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<()> {
    let mut extended = ibv_qp_init_attr_ex::of(init, QP_PD, pd);
    create_extended(id, &mut extended)?;
    *init = extended.classic();
    Ok(())
}

/// Acts like `rdma_create_qp`, with the attributes of `man ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    zero(|| create_extended(id, required!(mut init)))
}

fn create_extended(id: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let object = live(id)?;
    let (id, context) = handle_and_context(object)?;
    // SAFETY: the identifier is alive; the program does not write to it during a call.
    if !unsafe { (*id).qp }.is_null() {
        return Err(einval("the identifier has a queue pair already"));
    }
    set_default_domains(object, init)?;
    let qp = create_on(id, context, init).inspect_err(|_| destroy_own_cqs(id))?;
    // Fails if the identifier cannot use the queue pair, for example for another service.
    assign_qp(object, qp).inspect_err(|_| destroy_qp(id))?;
    // SAFETY: the identifier is alive; programs only read what this accesses.
    unsafe { (*id).pd = init.pd };
    update_public_fields(object)
}

/// Sets the default domains if the program has set none. Fails with EINVAL for a domain of another
/// device.
fn set_default_domains(object: &Object<CmId>, init: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let (id, context) = handle_and_context(object)?;
    if init.comp_mask & QP_PD == 0 || init.pd.is_null() {
        init.comp_mask |= QP_PD;
        // SAFETY: the identifier is alive; programs only read what this accesses.
        init.pd = unsafe { (*id).pd };
    }
    if context_of(init.pd)? != context {
        return Err(foreign_pd());
    }
    if init.qp_type == XRC_RECV && init.comp_mask & QP_XRCD == 0 {
        init.comp_mask |= QP_XRCD;
        init.xrcd = default_xrcd(object)?;
    }
    Ok(())
}

fn default_xrcd(object: &Object<CmId>) -> Result<*mut ibv_xrcd> {
    xrc_domain(&object.inner.id.device().ok_or_else(no_device)?)
}

fn create_on(id: *mut rdma_cm_id, context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
    // An XRC target has no queues; an XRC initiator has no receive side.
    let (sends, receives) = (init.qp_type != XRC_RECV, !matches!(init.qp_type, XRC_INI | XRC_RECV));
    // SAFETY: the identifier is alive, and only this library writes its fields. The context is that
    // of the identifier, which stays open; `init` is a valid structure.
    unsafe {
        if init.send_cq.is_null() && sends {
            init.send_cq = own_cq(id, context, init.cap.max_send_wr, Side::Send)?;
        }
        if init.recv_cq.is_null() && receives {
            init.recv_cq = own_cq(id, context, init.cap.max_recv_wr, Side::Recv)?;
        }
        if init.srq.is_null() && receives {
            init.srq = (*id).srq;
        }
        non_null(create_qp_ex(context, init))
    }
}

/// Assigns a queue pair to the identifier; the provider modifies it from now on.
fn assign_qp(object: &Object<CmId>, qp: *mut ibv_qp) -> Result<()> {
    let provided = &Object::<ibv_qp_ex>::live(qp)?.inner.qp;
    // Held until both fields are set and the provider has the queue pair: a thread that delivers
    // events compares them.
    let mut state = object.inner.state.lock();
    // SAFETY: the identifier is alive; the program uses it in one call at a time.
    unsafe { (*object.exposed()).public.qp = qp };
    state.qp = QpHandle(qp);
    Ok(object.inner.id.attach_qp(provided)?)
}

/// Returns pointers to the fields of a side's CQ and channel.
///
/// # Safety
/// `id` is alive.
unsafe fn cq_fields(id: *mut rdma_cm_id, side: Side) -> (*mut *mut ibv_cq, *mut *mut ibv_comp_channel) {
    // SAFETY: the caller guarantees a live identifier; this only computes addresses.
    unsafe {
        match side {
            Side::Send => (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
            Side::Recv => (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
        }
    }
}

/// Returns the CQ of a side, created with `entries` if there is none. Its context is the
/// identifier, as the inline functions of rdma_verbs.h expect.
///
/// # Safety
/// `id` is alive, and no other call creates its queues.
unsafe fn own_cq(id: *mut rdma_cm_id, context: *mut ibv_context, entries: u32, side: Side) -> Result<*mut ibv_cq> {
    let entries = c_int::try_from(entries.max(1)).map_err(|_| EINVAL)?;
    // SAFETY: the caller guarantees a live identifier whose queues no other call creates. The
    // context is that of the identifier, which stays open.
    unsafe {
        let (cq, channel) = cq_fields(id, side);
        if !(*cq).is_null() {
            return Ok(*cq);
        }
        *channel = non_null(for_library(|| ibv_create_comp_channel(context)))?;
        let new = for_library(|| ibv_create_cq(context, entries, id.cast(), *channel, 0));
        *cq = non_null(new).inspect_err(|_| destroy_own_cq(id, side))?;
        Ok(*cq)
    }
}

/// Destroys the identifier's CQ and channel of a side, unless a queue still uses the CQ.
fn destroy_own_cq(id: *mut rdma_cm_id, side: Side) {
    // SAFETY: the callers have looked the identifier up, so it is alive; this library created the
    // CQ and the channel.
    unsafe {
        let (cq, channel) = cq_fields(id, side);
        if !(*cq).is_null() && ibv_destroy_cq(*cq) != 0 {
            return;
        }
        *cq = null_mut();
        if !(*channel).is_null() {
            ibv_destroy_comp_channel(*channel);
            *channel = null_mut();
        }
    }
}

fn destroy_own_cqs(id: *mut rdma_cm_id) {
    destroy_own_cq(id, Side::Send);
    destroy_own_cq(id, Side::Recv);
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    no_result(|| live(id).map(|object| destroy_qp(object.handle())));
}

/// Destroys the queue pair of an identifier, if any, with the CQs that were created for it.
pub(super) fn destroy_qp(id: *mut rdma_cm_id) {
    let Ok(object) = live(id) else { return };
    let qp = {
        let mut state = object.inner.state.lock();
        object.inner.id.detach_qp();
        state.qp = QpHandle::default();
        // SAFETY: the identifier is alive; the program uses it in one call at a time.
        unsafe { (&raw mut (*id).qp).replace(null_mut()) }
    };
    if !qp.is_null() {
        // SAFETY: `ibv_destroy_qp` refuses a handle that is not a live queue pair.
        unsafe { ibv_destroy_qp(qp) };
    }
    destroy_own_cqs(id);
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    zero(|| {
        let init = required!(mut init);
        let object = live(id)?;
        // SAFETY: the identifier is alive; programs only read what this accesses.
        let is_target = unsafe { (*object.exposed()).public.qp_type } == XRC_RECV;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: SRQ_TYPE | SRQ_PD,
            srq_type: if is_target { XRC } else { BASIC },
            pd,
            ..ibv_srq_init_attr_ex::ZERO
        };
        create_srq(object, &mut extended)?;
        init.attr = extended.attr;
        Ok(())
    })
}

/// Acts like `rdma_create_srq`, with the attributes of `man ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    zero(|| {
        let init = required!(mut init);
        create_srq(live(id)?, init)
    })
}

fn create_srq(object: &Object<CmId>, init: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let (id, context) = handle_and_context(object)?;
    // SAFETY: the identifier is alive; programs only read what this accesses.
    let (has_one, own_pd) = unsafe { (!(*id).srq.is_null(), (*id).pd) };
    if has_one || init.comp_mask & SRQ_TYPE == 0 {
        return Err(einval(
            "the identifier has a shared receive queue already, or comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE",
        ));
    }
    let is_given = |bit| init.comp_mask & bit != 0;
    let (has_pd, has_xrcd, has_cq) = (is_given(SRQ_PD), is_given(SRQ_XRCD), is_given(SRQ_CQ));
    if !has_pd || init.pd.is_null() {
        init.comp_mask |= SRQ_PD;
        init.pd = own_pd;
    }
    if context_of(init.pd)? != context {
        return Err(foreign_pd());
    }
    if init.srq_type == XRC && (!has_xrcd || init.xrcd.is_null()) {
        init.comp_mask |= SRQ_XRCD;
        init.xrcd = default_xrcd(object)?;
    }
    if init.srq_type == XRC && (!has_cq || init.cq.is_null()) {
        init.comp_mask |= SRQ_CQ;
        // SAFETY: the identifier is alive, and the program creates its queues in one call at a
        // time.
        init.cq = unsafe { own_cq(id, context, init.attr.max_wr, Side::Recv) }?;
    }
    // SAFETY: the context is that of the identifier, which stays open; `init` is a valid structure.
    let srq = non_null(unsafe { create_srq_ex(context, init) }).inspect_err(|_| destroy_own_cq(id, Side::Recv))?;
    // SAFETY: the identifier is alive; programs only read what this accesses.
    unsafe { (*id).srq = srq };
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    no_result(|| live(id).map(|object| destroy_srq(object.handle())));
}

pub(super) fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the callers have looked the identifier up, so it is alive; this library created the
    // SRQ.
    unsafe {
        if !(*id).srq.is_null() {
            ibv_destroy_srq((*id).srq);
            (*id).srq = null_mut();
        }
        if (*id).qp.is_null() {
            destroy_own_cqs(id);
        }
    }
}

/// `man rdma_init_qp_attr`: writes the attributes for modifying a queue pair to `attr->qp_state`.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    zero(|| {
        let object = live(id)?;
        if attr.is_null() || mask.is_null() {
            return Err(null("qp_attr or qp_attr_mask"));
        }
        // SAFETY: not NULL; the program passes a structure in which it has set this field.
        let state = unsafe { (*attr).qp_state };
        let known = QpState::from_code(state.cast_unsigned());
        let state = known.ok_or_else(|| out_of_range("qp_state", state, "the values of enum ibv_qp_state"))?;
        let (found, needed) = object.inner.id.init_qp_attr(state)?;
        // SAFETY: not NULL; the program passes structures that are valid during the call.
        unsafe {
            attr.write(ibv_qp_attr { qp_state: state as c_int, ..qp::to_c(&found, ibv_qp_cap::default()) });
            mask.write(needed.bits().cast_signed());
        }
        Ok(())
    })
}
