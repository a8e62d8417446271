//! Completion queues: create, resize, modify, destroy. Polling is in `data_path.rs` (plain CQs) and
//! `cq_ex.rs` (extended CQs).

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr};
use crate::domain::hold_parent;
use crate::errno::{EINVAL, EOPNOTSUPP, Result, einval, out_of_range, pointer, required, status, unsupported};
use crate::event::{change_cq_count, optional_channel};
use crate::object::Resource;
use crate::object::{Object, Token, Unacked};
use crate::objects::{CqInner, allocator, context, cq};
use crate::{cq_ex, faults, tsan, undefined};
use core::ffi::{c_int, c_void};
use parking_lot::Mutex;
use roxe_provider::{Cq, CqInit, Moderation};
use std::sync::Arc;

/// `IBV_CREATE_CQ_SUP_WC_FLAGS`: every flag that verbs defines.
const KNOWN_WC_FLAGS: u64 = 0xfff;
/// `IBV_WC_EX_WITH_CVLAN`: completions have no VLAN tag.
pub(crate) const UNSUPPORTED_WC_FLAGS: u64 = 0x100;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`: the field `flags` is set.
const INIT_MASK_FLAGS: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_PD`: the field `parent_domain` is set.
const INIT_MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, a hint; ignored, because an uncontended lock is cheap.
const SINGLE_THREADED: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 2;

/// Accepted numbers of completions, for messages.
const CQE_RANGE: &str = "1 to max_cqe of the device";

/// `IBV_CQ_ATTR_MODERATE`: the field `moderate` is set.
const ATTR_MODERATE: u32 = 1;

/// Returns the provider's CQ of a handle from `ibv_create_cq_ex`. Fails with EINVAL for other
/// handles.
pub(crate) fn extended_cq<'a>(handle: *mut ibv_cq) -> Result<&'a Arc<Cq>> {
    let inner = &Object::<ibv_cq_ex>::live(handle)?.inner;
    let not_extended = || einval("the completion queue was created by ibv_create_cq, not ibv_create_cq_ex");
    if inner.is_extended { Ok(&inner.cq) } else { Err(not_extended()) }
}

fn cqe_field(cq: &Cq) -> c_int {
    c_int::try_from(cq.capacity()).unwrap_or(c_int::MAX)
}

fn create(handle: *mut ibv_context, attr: &ibv_cq_init_attr_ex, is_extended: bool) -> Result<*mut ibv_cq> {
    let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, parent_domain, .. } = *attr;
    let ignore_overrun = flags(attr) & IGNORE_OVERRUN != 0;
    let (cq_allocator, parent) = if attr.comp_mask & INIT_MASK_PD == 0 {
        (None, None)
    } else {
        let parent = hold_parent(parent_domain)?;
        (allocator(parent_domain, Resource::Cq)?, Some(parent))
    };
    let token = Token::new();
    let init = CqInit { cqe, channel: optional_channel(channel)?, user_context: token.0, comp_vector, ignore_overrun };
    let cq = context(handle)?.create_cq(init)?;
    let base =
        ibv_cq { context: handle, channel, cq_context, handle: token.short(), cqe: cqe_field(&cq), ..ibv_cq::ZERO };
    let inner = CqInner {
        comp_events: Unacked::new("completion events", Some(cq.id())),
        async_events: Unacked::new("asynchronous events", Some(cq.id())),
        cq,
        cursor: Mutex::default(),
        is_extended,
        _parent: parent,
    };
    let created = Object::publish_in(cq_allocator, token, faults::cq_ex(tsan::cq_ex(cq_ex::exposed(base))), inner)?;
    change_cq_count(channel, 1);
    Ok(created)
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let cqe = u32::try_from(cqe).map_err(|_| out_of_range("cqe", cqe, CQE_RANGE))?;
        let comp_vector = u32::try_from(comp_vector).map_err(|_| out_of_range("comp_vector", comp_vector, "0"))?;
        let attr = ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, ..Default::default() };
        create(context, &attr, false)
    })
}

const fn flags(attr: &ibv_cq_init_attr_ex) -> u32 {
    if attr.comp_mask & INIT_MASK_FLAGS != 0 { attr.flags } else { 0 }
}

/// Checks the flags. Fails with EINVAL for undefined ones; EOPNOTSUPP for features that the device
/// lacks.
fn check_extended(attr: &ibv_cq_init_attr_ex) -> Result<()> {
    let flags = flags(attr);
    if attr.wc_flags & !KNOWN_WC_FLAGS != 0 {
        let value = u32::try_from(attr.wc_flags).unwrap_or(u32::MAX);
        let accepted = "the bits of enum ibv_create_cq_wc_flags, 0xfff";
        return Err(undefined::refuse(EINVAL, "ibv_create_cq_ex", ("wc_flags", value), accepted));
    }
    if attr.wc_flags & UNSUPPORTED_WC_FLAGS != 0 {
        return Err(unsupported(|| "wc_flags requests the VLAN tag (0x100), which no completion has".to_owned()));
    }
    if attr.comp_mask & !(INIT_MASK_FLAGS | INIT_MASK_PD) != 0 || flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
        return Err(undefined::cq_init(EOPNOTSUPP, attr.comp_mask, flags));
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let attr = required!(attr);
        check_extended(attr)?;
        create(context, attr, true).map(|cq| cq.cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(handle: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        let object = Object::<ibv_cq_ex>::live(handle)?;
        object.inner.cq.resize(u32::try_from(cqe).map_err(|_| out_of_range("cqe", cqe, CQE_RANGE))?)?;
        // SAFETY: `live` found the object, so its structure is alive. Programs only read the field.
        unsafe { (&raw mut (*handle).cqe).write(cqe_field(&object.inner.cq)) };
        Ok(())
    })
}

/// As `man ibv_modify_cq` says. Fails with EINVAL for undefined attributes.
pub(crate) unsafe extern "C" fn modify_cq(handle: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    status(|| {
        let cq = cq(handle)?;
        let attr = required!(attr);
        if attr.attr_mask & !ATTR_MODERATE != 0 {
            let field = ("attr_mask", attr.attr_mask);
            return Err(undefined::refuse(EINVAL, "ibv_modify_cq", field, "IBV_CQ_ATTR_MODERATE, 1"));
        }
        if attr.attr_mask & ATTR_MODERATE != 0 {
            cq.moderate(Moderation { count: attr.moderate.cq_count, period: attr.moderate.cq_period });
        }
        Ok(())
    })
}

/// As `man ibv_create_cq` says: waits until every event of the CQ is acknowledged. Fails with EBUSY
/// while QPs use the CQ.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(handle: *mut ibv_cq) -> c_int {
    status(|| {
        let object = Object::<ibv_cq_ex>::to_destroy(handle)?;
        object.inner.cq.destroy()?;
        object.hide_from_events();
        object.inner.comp_events.wait();
        object.inner.async_events.wait();
        let object = Object::<ibv_cq_ex>::retire(handle)?;
        // SAFETY: `retire` made `object` the owner of the block; nothing writes the field after
        // creation.
        change_cq_count(unsafe { (&raw const (*object.exposed()).base.channel).read() }, -1);
        Ok(())
    })
}
