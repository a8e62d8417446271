//! Shared receive queues. Posting to them is in `data_path.rs`.

use crate::abi::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::allocator::Resource;
use crate::errno::{Result, invalid, null, pointer, status, write_out};
use crate::object::{Object, Token, Unacked};
use crate::objects::{SrqInner, allocator, context_of, pd, srq};
use core::ffi::{c_int, c_void};
use roxe_provider::{Error, Srq, SrqInit};
use std::sync::Arc;

/// `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`: which attributes a modify sets.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
pub(crate) const BASIC: c_int = 0;
pub(crate) const XRC: c_int = 1;

/// The SRQ a QP shall use: none for NULL.
pub(crate) fn optional_srq(handle: *mut ibv_srq) -> Result<Option<Arc<Srq>>> {
    Object::<ibv_srq>::optional(handle).map(|object| object.map(|object| Arc::clone(&object.inner.srq)))
}

fn attr(srq: &Srq) -> ibv_srq_attr {
    let attr = srq.query();
    ibv_srq_attr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.limit }
}

/// Makes an SRQ and writes what it really takes back to `wanted`. The limit is not part of creation
/// (`man ibv_create_srq`), so it starts unarmed.
pub(crate) fn create(handle: *mut ibv_pd, srq_context: *mut c_void, wanted: &mut ibv_srq_attr) -> Result<*mut ibv_srq> {
    let pd = pd(handle)?;
    publish(handle, srq_context, wanted, |init| pd.create_srq(init))
}

/// Publishes the SRQ that `make` makes, and writes what it really takes back to `wanted`.
pub(crate) fn publish(
    handle: *mut ibv_pd,
    srq_context: *mut c_void,
    wanted: &mut ibv_srq_attr,
    make: impl FnOnce(SrqInit) -> core::result::Result<Arc<Srq>, Error>,
) -> Result<*mut ibv_srq> {
    let token = Token::new();
    let init = SrqInit { max_wr: wanted.max_wr, max_sge: wanted.max_sge, limit: 0, user: token.0 };
    let srq = make(init)?;
    let exposed =
        ibv_srq { context: context_of(handle)?, srq_context, pd: handle, handle: token.short(), ..ibv_srq::ZERO };
    *wanted = attr(&srq);
    let inner = SrqInner { events: Unacked::new("asynchronous events", Some(srq.id())), srq };
    Object::publish_in(allocator(handle, Resource::Srq)?, token, exposed, inner)
}

/// `man ibv_create_srq`.
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: NULL or a whole structure of the program.
        let init = unsafe { init.as_mut() }.ok_or_else(|| null("init"))?;
        create(pd, init.srq_context, &mut init.attr)
    })
}

/// `man ibv_modify_srq`.
pub(crate) unsafe extern "C" fn ibv_modify_srq(handle: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        let srq = srq(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(invalid(|| {
                format!("srq_attr_mask is {mask:#x}; accepted are IBV_SRQ_MAX_WR 1, IBV_SRQ_LIMIT 2")
            }));
        }
        let chosen = |bit, value| (mask & bit != 0).then_some(value);
        Ok(srq.modify(chosen(MAX_WR, attr.max_wr), chosen(LIMIT, attr.srq_limit))?)
    })
}

/// `man ibv_query_srq`.
pub(crate) unsafe extern "C" fn ibv_query_srq(handle: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    status(|| {
        // SAFETY: NULL or a whole structure of the program.
        unsafe { write_out(out, attr(srq(handle)?)) }
    })
}

/// `man ibv_create_srq`: EBUSY while QPs use it; waits until every event is acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(handle: *mut ibv_srq) -> c_int {
    status(|| Object::<ibv_srq>::destroy_acknowledged(handle, |inner| inner.srq.destroy(), |inner| &inner.events))
}
