//! The objects of libibverbs: for each the C structure that the program sees, the Rust part next to
//! it, and the function from a handle to the provider's object. They are in one file, because the
//! files that create them refer to each other's objects.

use crate::abi::*;
use crate::errno::Result;
use crate::object::{Allocators, ObjectAllocator, Resource};
use crate::object::{Object, Unacked, exposed};
use crate::wallclock::WallClock;
use crate::wr_batch::Builder;
use parking_lot::Mutex;
use roxe_provider::{
    Ah, CompChannel, Context, Cq, Dm, Flow, FlowCounters, Mr, Mw, Pd, Qp, RwqTable, Service, Srq, Use, Wq, Xrcd,
};
use roxe_transport::wr::Cqe;
use std::os::fd::OwnedFd;
use std::sync::Arc;

exposed! {
    verbs_context => ibv_context at context: ContextInner;
    ibv_pd => ibv_pd: PdInner, context = context, number = handle;
    // Every parent domain on a thread domain has a clone of the `Arc`.
    ibv_td => ibv_td: Arc<()>, context = context;
    ibv_mr => ibv_mr: Arc<Mr>, context = context, number = handle;
    ibv_mw => ibv_mw: Arc<Mw>, context = context, number = handle;
    ibv_dm => ibv_dm: Arc<Dm>, context = context, number = handle;
    ibv_ah => ibv_ah: Ah, context = context, number = handle;
    ibv_comp_channel => ibv_comp_channel: Arc<CompChannel>, context = context;
    ibv_cq_ex => ibv_cq: CqInner, context = base.context, number = base.handle;
    ibv_qp_ex => ibv_qp: QpInner, context = qp_base.context, number = qp_base.handle;
    ibv_srq => ibv_srq: SrqInner, context = context, number = handle;
    ibv_xrcd => ibv_xrcd: Arc<Xrcd>, context = context;
    ibv_wq => ibv_wq: WqInner, context = context, number = handle;
    ibv_rwq_ind_table => ibv_rwq_ind_table: Arc<RwqTable>, context = context, number = ind_tbl_handle;
    ibv_flow => ibv_flow: Flow, context = context, number = handle;
    ibv_counters => ibv_counters: Arc<FlowCounters>, context = context;
}

pub(crate) struct ContextInner {
    pub(crate) context: Arc<Context>,
    /// The descriptor of `ibv_import_device`, closed with the context.
    pub(crate) _imported: Option<OwnedFd>,
}

pub(crate) struct PdInner {
    pub(crate) pd: Arc<Pd>,
    /// `None` for an ordinary protection domain.
    pub(crate) parent: Option<Parent>,
}

/// State of a parent domain.
pub(crate) struct Parent {
    pub(crate) allocators: Option<Allocators>,
    /// Makes deallocating the thread domain fail with EBUSY.
    pub(crate) _td: Option<Arc<()>>,
}

impl PdInner {
    pub(crate) fn plain(pd: Arc<Pd>) -> Self {
        Self { pd, parent: None }
    }
}

pub(crate) struct CqInner {
    pub(crate) cq: Arc<Cq>,
    pub(crate) comp_events: Unacked,
    pub(crate) async_events: Unacked,
    pub(crate) cursor: Mutex<Cursor>,
    /// True if `ibv_create_cq_ex` created the CQ.
    pub(crate) is_extended: bool,
    /// Makes deallocating the parent domain fail with EBUSY.
    pub(crate) _parent: Option<Use>,
}

/// The current entry of an extended CQ, and the clock that converts its timestamp to time of day.
/// `start_poll` locks the cursor and `end_poll` unlocks it (`man ibv_create_cq_ex`). Only `cq_ex`
/// may lock it, because any other caller would wait until the program ends its poll.
#[derive(Default)]
pub(crate) struct Cursor {
    pub(crate) entry: Cqe,
    pub(crate) clock: WallClock,
}

pub(crate) struct QpInner {
    pub(crate) qp: Arc<Qp>,
    pub(crate) service: Service,
    pub(crate) events: Unacked,
    /// `None` unless the program requested the `ibv_wr_*` interface.
    pub(crate) builder: Option<Builder>,
}

impl QpInner {
    pub(crate) fn new(qp: Arc<Qp>, builder: Option<Builder>) -> Self {
        let events = Unacked::new("asynchronous events", Some(qp.id()));
        Self { service: qp.service(), qp, events, builder }
    }
}

pub(crate) struct SrqInner {
    pub(crate) srq: Arc<Srq>,
    pub(crate) events: Unacked,
}

pub(crate) struct WqInner {
    pub(crate) wq: Arc<Wq>,
    pub(crate) events: Unacked,
}

pub(crate) fn context<'a>(handle: *mut ibv_context) -> Result<&'a Arc<Context>> {
    Object::<verbs_context>::live(handle).map(|object| &object.inner.context)
}

pub(crate) fn pd<'a>(handle: *mut ibv_pd) -> Result<&'a Arc<Pd>> {
    Object::<ibv_pd>::live(handle).map(|object| &object.inner.pd)
}

pub(crate) fn context_of(pd: *mut ibv_pd) -> Result<*mut ibv_context> {
    let object = Object::<ibv_pd>::live(pd)?;
    // SAFETY: the structure is part of `object`; nothing writes the field after creation.
    Ok(unsafe { (&raw const (*object.exposed()).context).read() })
}

/// Returns the program's allocator for objects of the domain `handle`; `None` if the program has
/// set none.
pub(crate) fn allocator(handle: *mut ibv_pd, resource: Resource) -> Result<Option<ObjectAllocator>> {
    let parent = Object::<ibv_pd>::live(handle)?.inner.parent.as_ref();
    let allocators = parent.and_then(|parent| parent.allocators);
    Ok(allocators.map(|allocators| ObjectAllocator { pd: handle, allocators, resource }))
}

pub(crate) fn cq<'a>(handle: *mut ibv_cq) -> Result<&'a Arc<Cq>> {
    Object::<ibv_cq_ex>::live(handle).map(|object| &object.inner.cq)
}

pub(crate) fn qp<'a>(handle: *mut ibv_qp) -> Result<&'a Arc<Qp>> {
    Object::<ibv_qp_ex>::live(handle).map(|object| &object.inner.qp)
}

pub(crate) fn srq<'a>(handle: *mut ibv_srq) -> Result<&'a Arc<Srq>> {
    Object::<ibv_srq>::live(handle).map(|object| &object.inner.srq)
}
